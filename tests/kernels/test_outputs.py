"""Outputs of one number for each row, against numpy, on every target and by every store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import Cases, sampled
from support.products.fused import Array, Kernels, Trial, equal, operands, product, spread
from support.products.packed import DTYPES

import tilewright as tw
from tilewright.errors import ScheduleError, SpecError
from tilewright.generate import plan_for
from tilewright.spec.expression import Operand, acc, acc2, dst
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Matrix, Order
from tilewright.spec.postops import relu
from tilewright.spec.reductions import RowReduction, row_absmax, row_max, row_sum
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from tilewright.targets import load

TARGETS = ("scalar", "avx2", "avx512", "amx", "neon", "neon+dotprod+i8mm+bf16")
every_target = pytest.mark.parametrize("target", TARGETS)
F32 = np.float32
ORDERS: tuple[Order, Order] = ("C", "F")
M, N, K = dim("m"), dim("n"), dim("k")
SIZES = {"m": 19, "n": 37, "k": 9}
bias, slope = Operand("bias", "f32", "column"), Operand("slope", "s8", "row")
OUTPUTS = {"amax": row_absmax(acc + bias), "most": row_max(acc * slope), "total": row_sum(acc)}


def trials(target: str) -> list[Trial]:
    """Types and orders by schedules: tiles along m and n, transposed, cut, of partial sums."""
    tile = (2, 2) if target == "scalar" else (4, 6)
    schedules = (
        Schedule(),
        Schedule(loops="mnk"),
        Schedule(tile=tile, loops="knm", k_unroll=4),
        Schedule(vectorize="m"),
        Schedule(loops="Mnk", threads=2),
    )
    found = []
    for index, schedule in enumerate(schedules):
        for order in ORDERS:
            types: Any = (("f32", "f32", "f32"), ("u8", "s8", "s8"), ("bf16", "bf16", "bf16"))[
                (index + (order == "F")) % 3
            ]
            a, b, d = types
            for sizes in ((13, 21, 17), (M, N, K)):
                if sizes[0] is M and schedule.tile is not None:
                    continue
                spec = Gemm(
                    *sizes, order=order, a=a, b=b, d=d, epilogue=relu(acc + bias), outputs=OUTPUTS
                )
                found.append(Trial(spec, schedule, SIZES))
    return found


def along_k() -> list[Trial]:
    """Vectors along K, whose lanes are summed; and what has no elements."""
    found = []
    for d in ORDERS:
        for schedule in (Schedule(vectorize="k"), Schedule(vectorize="k", loops="knm", k_unroll=8)):
            b, result = Matrix("f32", "F"), Matrix("f32", d)
            spec = Gemm(13, 11, 21, b=b, d=result, epilogue=relu(acc + bias), outputs=OUTPUTS)
            found.append(Trial(spec, schedule))
    for m, n, k in ((13, 0, 5), (13, 7, 0), (0, 7, 5), (1, 9, 3), (9, 1, 3)):
        found.append(Trial(Gemm(m, n, k, epilogue=relu(acc + bias), outputs=OUTPUTS)))
    return found


def rows(values: Array, reduction: RowReduction) -> Array:
    """What numpy reduces each row of f32 values to."""
    match reduction.fn:
        case "row_max":
            found = values.max(axis=1, initial=-np.inf)
        case "row_absmax":
            found = np.abs(values).max(axis=1, initial=0)
        case _:
            found = values.sum(axis=1)
    array: Array = found.astype(F32)
    return array


def check(kernels: Kernels, index: int, given: dict[str, Any]) -> None:
    """D and all outputs of a kernel made by ``trials``."""
    trial = kernels.trials[index]
    found = kernels(index, given)
    sums = product(trial, given).astype(F32)
    shifted = sums + spread(given, "bias", "column")
    assert trial.spec.d is not None
    d = np.maximum(shifted, 0)
    d = np.clip(d, -128, 127) if trial.spec.d.type == "s8" else d
    assert equal(found["out"], d.astype(DTYPES[trial.spec.d.type])), trial
    values = {"amax": shifted, "most": sums * spread(given, "slope", "row"), "total": sums}
    for name, reduction in trial.spec.outputs:
        assert equal(found[name], rows(values[name], reduction)), (name, trial)


@every_target
@pytest.mark.parametrize("which", [trials, lambda _: along_k()], ids=["tiles", "edges"])
def test_rows_are_reduced_as_numpy_does(
    target: str, which: Any, tmp_path: Path, cases: Cases
) -> None:
    kernels = Kernels(target, sampled(target, which(target), 4), tmp_path)
    for i, trial in enumerate(kernels.trials):
        check(kernels, i, operands(trial, np.random.default_rng(i)))
        cases.count(target, kernels.lab.means)


@every_target
def test_nan_and_infinity_pass_as_in_numpy(target: str, tmp_path: Path, cases: Cases) -> None:
    outputs = {"amax": row_absmax(acc), "most": row_max(acc), "total": row_sum(acc)}
    specs = [Gemm(9, 21, 1, order=order, outputs=outputs) for order in ORDERS]
    kernels = Kernels(target, [Trial(spec) for spec in specs], tmp_path)
    columns = np.ones((1, 21), F32)
    for i, place in ((i, place) for i in range(2) for place in (0, 7, 15, 20)):
        for special in (np.nan, -np.nan, np.inf, -np.inf):
            a, b = np.arange(-4, 5, dtype=F32)[:, None], columns.copy()
            b[0, place] = special
            found = kernels(i, {"a": a, "b": b})
            with np.errstate(invalid="ignore"):
                sums = a * b
                for name, reduction in outputs.items():
                    assert equal(found[name], rows(sums, reduction)), (name, place, special)
    cases.count(target, kernels.lab.means, 32)


def test_an_output_of_what_is_added_to_c_needs_no_d(tmp_path: Path) -> None:
    """C is updated, and its rows reduced; the s32 sums of the second are converted for that."""
    specs = (
        Gemm(7, 13, 5, beta=1, outputs={"amax": row_absmax(acc)}),
        Gemm(7, 13, 5, a="u8", b="s8", beta=1, outputs={"amax": row_absmax(acc)}),
        Gemm(7, 13, 5, d="f32", epilogue=acc + dst, outputs={"amax": row_absmax(acc - dst)}),
    )
    kernels = Kernels("avx2", [Trial(spec) for spec in specs], tmp_path)
    assert [spec.output for spec in specs] == ["c", "c", "d"]
    for i, trial in enumerate(kernels.trials):
        given = operands(trial, np.random.default_rng(i))
        found, sums = kernels(i, given), product(trial, given).astype(F32)
        old = given[trial.spec.output].astype(F32)
        assert equal(found["out"], (sums + old).astype(found["out"].dtype))
        seen = sums - old if i == 2 else sums + old
        assert equal(found["amax"], np.abs(seen).max(axis=1))


def test_an_output_may_be_of_what_is_the_same_everywhere(tmp_path: Path) -> None:
    outputs = {"count": row_sum(acc * 0 + 1), "most": row_max(-2.5), "scalar": row_sum(slope)}
    kernels = Kernels("avx2", [Trial(Gemm(7, 13, 5, outputs=outputs))], tmp_path)
    given = operands(kernels.trials[0], np.random.default_rng(0))
    found = kernels(0, given)
    assert equal(found["count"], np.full(7, 13, F32))
    assert equal(found["most"], np.full(7, -2.5, F32))
    assert equal(found["scalar"], 13 * given["slope"].astype(F32))


def test_other_tails(tmp_path: Path) -> None:
    tiles: dict[Order, tuple[int, int]] = {"C": (6, 16), "F": (16, 6)}
    found = [
        Trial(
            Gemm(13, 21, 7, order=order, outputs=OUTPUTS, d="f32"), Schedule(tails=cut, tile=tile)
        )
        for order, tile in tiles.items()
        for cut in ("mask", "narrow", "bounce")
    ]
    kernels = Kernels("avx2", found, tmp_path)
    for i, trial in enumerate(found):
        given = operands(trial, np.random.default_rng(i))
        result = kernels(i, given)
        sums = product(trial, given).astype(F32)
        assert equal(result["out"], sums)
        assert equal(result["total"], sums.sum(axis=1)), trial


# --- what is refused ---------------------------------------------------------------------------

REFUSED: tuple[tuple[str, Any, str], ...] = (
    ("no mapping", {"outputs": [row_max(acc)]}, "outputs are given by name"),
    ("no reduction", {"outputs": {"x": acc}}, "row_max, tw.row_sum or tw.row_absmax"),
    ("keyword", {"outputs": {"float": row_max(acc)}}, "word of C"),
    ("no name", {"outputs": {"a b": row_max(acc)}}, "C identifier"),
    ("taken", {"outputs": {"d_zero": row_max(acc)}}, "'d_zero' is taken"),
    ("operand's name", {"outputs": {"bias": row_max(acc + bias)}}, "'bias' is taken"),
    ("f64", {"a": "f64", "outputs": {"x": row_max(acc)}}, "f32, and of sums in f64"),
    ("dst", {"outputs": {"x": row_max(dst)}}, "there is no D"),
    ("acc2", {"outputs": {"x": row_max(acc2)}}, "there is none"),
    ("epilogue", {"epilogue": row_max(acc)}, "reductions of rows are outputs"),
)


@pytest.mark.parametrize(("said", "message"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_is_no_output_is_refused_by_the_spec(said: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"(?s){message}"):
        Gemm(4, 4, 4, **said)


def test_columns_are_not_reduced_in_parallel() -> None:
    spec, target = Gemm(32, 32, 8, outputs={"amax": row_absmax(acc)}), load("avx2")
    for loops in ("NMk", "mNk", "Nmk"):
        with pytest.raises(ScheduleError, match=r'(?s)in parallel.*try: "Mnk"'):
            plan_for(spec, Schedule(loops=loops, threads=2), target)
    assert plan_for(spec, Schedule(loops="NMk", threads=1), target).nest.outer == "nm"
    assert plan_for(spec, Schedule(threads=2), target).nest.outer == "Mn"
    with pytest.raises(ScheduleError, match="twice, which is wrong when a row is summed"):
        plan_for(spec, Schedule(tile=(6, 16), tails="overlap"), target)


def test_outputs_are_told_as_they_are_written() -> None:
    spec = Gemm(3, 4, 5, outputs={"z": row_max(acc + bias), "amax": row_absmax(acc)})
    assert repr(spec) == (
        "Gemm(3, 4, 5, outputs={'amax': row_absmax(acc), "
        "'z': row_max(acc + Operand('bias', 'f32', per='column'))})"
    )


# -- outputs that a call does not give ------------------------------------------------------------


def test_outputs_that_are_not_given_are_made_and_returned() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((5, 7), F32), rng.standard_normal((7, 6), F32)
    for m in (5, dim("m")):
        outputs = {"amax": row_absmax(acc), "total": row_sum(acc)}
        kernel = tw.compile(Gemm(m, 6, 7, d="f32", outputs=outputs), target="scalar")
        exact = a.astype("f8") @ b.astype("f8")
        d, amax, total = kernel(a, b)
        np.testing.assert_allclose(d, exact, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(amax, np.abs(exact).max(axis=1), rtol=1e-5)
        np.testing.assert_allclose(total, exact.sum(axis=1), rtol=1e-4, atol=1e-5)
        given = np.empty(5, F32)
        d, amax = kernel(a, b, total=given, amax=None)
        np.testing.assert_array_equal(given, total)
        out = np.empty((5, 6), F32)
        assert kernel(a, b, out=out, total=given, amax=amax) is out
        with pytest.raises(tw.ArgumentError, match="has the wrong shape"):
            kernel(a, b, total=np.empty(4, F32))
        with pytest.raises(tw.ArgumentError, match="missing"):
            kernel(a)


def test_a_stack_given_to_one_product_leads_to_matmul() -> None:
    kernel = tw.compile(Gemm(5, 6, 7), target="scalar")
    with pytest.raises(tw.ArgumentError, match=r"tw\.matmul\(a, b\) multiplies stacks"):
        kernel(np.zeros((2, 5, 7), F32), np.zeros((7, 6), F32))
