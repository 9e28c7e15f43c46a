"""From sums to D in compiled kernels: epilogues kept bit for bit, operands, D's old value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import Cases, sampled
from support.products.fused import Array, Kernels, Trial, equal, operands, product, same, spread
from support.products.packed import DTYPES

from tilewright.errors import SpecError
from tilewright.generate import plan_for, program_for
from tilewright.lower.tile import store as lines
from tilewright.spec.expression import Expression, Leaf, Operand, Per, acc, acc2, call, dst
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Matrix, Order
from tilewright.spec.postops import exp, gelu_erf, relu, silu, swish
from tilewright.spec.reductions import row_max
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from tilewright.targets import load

TARGETS = ("scalar", "avx2", "avx512", "amx", "neon")
every_target = pytest.mark.parametrize("target", TARGETS)
F32 = np.float32
bias = Operand("bias", "f32", "column")


def outer(trial: Trial, x: Array, **more: Any) -> dict[str, Any]:
    """Operands of a product whose element (i, j) is ``x[i]``."""
    dtype = DTYPES[trial.spec.a.type]
    ones = np.ones((1, trial.size(trial.spec.n)), dtype)
    return {"a": x.astype(dtype)[:, None], "b": ones, **more}


# --- floating-point results are kept -----------------------------------------------------------

SPECIAL = np.array([1.5, 1e8, 5.0, 1e-3, np.inf, -np.inf, np.nan, 0.0, 3e38], F32)
#: Each with what numpy makes of it, operation by operation.
KEPT: tuple[tuple[Expression, Any], ...] = (
    (acc - acc, lambda x, one: x - x),
    (0 * acc, lambda x, one: 0 * one * x),
    (acc / 3, lambda x, one: x / (3 * one)),
    ((acc + 1e8) - 1e8, lambda x, one: (x + 1e8 * one) - 1e8 * one),
    (acc * 3 + 1, lambda x, one: x * (3 * one) + one),
    (acc / acc, lambda x, one: x / x),
)


@every_target
@pytest.mark.parametrize("element", ["f32", "f64"])
def test_nothing_is_simplified_that_rounding_could_tell(
    target: str, element: Any, tmp_path: Path, cases: Cases
) -> None:
    trials = [Trial(Gemm(9, 5, 1, a=element, epilogue=e)) for e, _ in KEPT]
    kernels = Kernels(target, trials, tmp_path)
    x = SPECIAL.astype(DTYPES[element])
    for i, (expression, numpy) in enumerate(KEPT):
        found = kernels(i, outer(trials[i], x))["out"]
        with np.errstate(all="ignore"):
            expected = numpy(x, x.dtype.type(1))
        assert same(found, np.repeat(expected[:, None], 5, 1)), expression
        cases.count(target, kernels.lab.means)


def test_algebra_simplifies_all_of_these(tmp_path: Path) -> None:
    whole: tuple[tuple[Expression, Array], ...]
    whole = ((acc - acc, 0 * SPECIAL[:1]), (0 * acc, 0 * SPECIAL[:1]), ((acc + 1e8) - 1e8, SPECIAL))
    trials = [Trial(Gemm(9, 5, 1, epilogue=e, algebra=True)) for e, _ in whole]
    kernels = Kernels("scalar", trials, tmp_path)
    for i, (expression, expected) in enumerate(whole):
        found = kernels(i, outer(trials[i], SPECIAL))["out"]
        assert same(found, np.broadcast_to(np.resize(expected, 9)[:, None], (9, 5))), expression


# --- operands ----------------------------------------------------------------------------------

TYPES: Any = ("f32", "f16", "bf16", "s8", "u8", "s32", "f8_e4m3", "f8_e5m2")
PLACES: dict[str, Per | None] = {"one": None, "row": "row", "col": "column", "all": "full"}
ORDERS: tuple[Order, Order] = ("C", "F")
M, N, K = dim("m"), dim("n"), dim("k")
SIZES = {"m": 11, "n": 19, "k": 5}


def operand_trials() -> list[Trial]:
    """Operands of every type, along everything, with C in either order."""
    trials: list[Trial] = []
    for index, type_ in enumerate(TYPES):
        for order, c in ((ORDERS[0], ORDERS[0]), (ORDERS[1], ORDERS[1]), ORDERS):
            expression: Expression = acc
            for name, per in PLACES.items():
                expression = expression + Operand(name, type_, per)
            fixed = (11, 19, 5) if index % 2 else (M, N, K)
            spec = Gemm(*fixed, c=Matrix("f32", c), order=order, epilogue=expression)
            loops = ("nmk", "mnk", "knm")[len(trials) % 3]
            trials.append(Trial(spec, Schedule(loops=loops), SIZES))
    return trials


@every_target
def test_operands_of_every_type_and_place(target: str, tmp_path: Path, cases: Cases) -> None:
    trials = sampled(target, operand_trials(), 6)
    kernels = Kernels(target, trials, tmp_path)
    rng = np.random.default_rng(1)
    for i, trial in enumerate(trials):
        given = operands(trial, rng)
        expected = product(trial, given).astype(F32)
        for name, per in PLACES.items():
            expected = expected + spread(given, name, per)
        assert equal(kernels(i, given)["out"], expected), trial
        cases.count(target, kernels.lab.means)


@every_target
def test_d_is_read_before_it_is_written(target: str, tmp_path: Path, cases: Cases) -> None:
    halved = acc * 0.5 + 2 * dst + dst
    types: Any = (("f32", "f32", "f32"), ("bf16", "bf16", "f16"), ("u8", "s8", "s8"))
    specs = [
        Gemm(M, N, K, a=a, b=b, d=Matrix(d, order), epilogue=halved)
        for a, b, d in types
        for order in ORDERS
    ]
    trials = sampled(target, [Trial(spec, Schedule(), SIZES) for spec in specs])
    kernels = Kernels(target, trials, tmp_path)
    for i, trial in enumerate(trials):
        given = operands(trial, np.random.default_rng(i))
        exact = product(trial, given) * 0.5 + 3 * given["d"].astype(np.float64)
        integer = trial.spec.type == "s32"
        expected = np.clip(np.rint(exact), -128, 127) if integer else exact
        assert equal(kernels(i, given)["out"], expected.astype(given["d"].dtype)), trial
        cases.count(target, kernels.lab.means)


@every_target
def test_integer_additions_stay_in_s32(target: str, tmp_path: Path, cases: Cases) -> None:
    shift = Operand("shift", "s32", "column")
    spec = Gemm(5, 9, 3, a="u8", b="s8", d="s32", epilogue=acc + shift - 7 + -shift - shift)
    kernels = Kernels(target, [Trial(spec)], tmp_path)
    given = operands(kernels.trials[0], np.random.default_rng(0))
    given["shift"] = np.linspace(-(2.0**31), 2**31 - 1, 9).astype(np.int32)
    wide = product(kernels.trials[0], given) - 7 - given["shift"].astype(np.int64)
    assert same(kernels(0, given)["out"], wide.astype(np.int32))
    cases.count(target, kernels.lab.means)


def test_operands_may_be_called_as_what_the_kernel_uses_inside(tmp_path: Path) -> None:
    names = (
        "kt",
        "c0_0",
        "pa",
        "mask",
        "sums",
        "b_sums",
        "a_packed",
        "x",
        "m",
        "scratch",
        "float_",
    )
    expression: Expression = acc
    for name in names:
        expression = expression + Operand(name, "f32", "column")
    spec = Gemm(5, 9, 3, a="u8", b="s8", d="f32", a_zero=1, epilogue=expression)
    trials = [Trial(spec), Trial(spec, Schedule(loops="knm"))]
    kernels = Kernels("avx2", trials, tmp_path)
    for i, trial in enumerate(trials):
        given = operands(trial, np.random.default_rng(0))
        sums = product(trial, {**given, "a": given["a"].astype(np.int64) - 1}).astype(F32)
        assert equal(kernels(i, given)["out"], sums + sum(given[name] for name in names))


def test_threads_finish_tiles_as_one_does(tmp_path: Path) -> None:
    types: Any = (("f32", "f32", "bf16"), ("u8", "s8", "f32"))
    trials = [
        Trial(
            Gemm(33, 40, 9, a=a, b=b, d=d, a_scale="row", b_scale="column", epilogue=acc + bias),
            Schedule(loops=loops),
        )
        for a, b, d in types
        for loops in ("NMk", "nMk", "kMN")
    ]
    kernels = Kernels("avx2", trials, tmp_path)
    for i, trial in enumerate(trials):
        given = operands(trial, np.random.default_rng(i))
        sums = product(trial, given).astype(F32) * given["a_scale"][:, None] * given["b_scale"]
        expected = (sums + given["bias"]).astype(DTYPES[trial.spec.d.type])  # type: ignore[union-attr]
        assert equal(kernels(i, given)["out"], expected), trial


# --- line by line ------------------------------------------------------------------------------


def endings() -> list[Trial]:
    """Along and across the vectors, cut, reduced, of partial sums, of sizes of the call."""
    each: dict[str, Any] = {
        "epilogue": silu(acc + bias) + dst,
        "outputs": {"most": row_max(acc)},
    }
    sizes = {"m": 11, "n": 21, "k": 7}
    found = []
    for order in ("C", "F"):
        whole = Gemm(11, 21, 7, order=order, a_scale="row", **each)
        of_call = Gemm(dim("m"), dim("n"), dim("k"), order=order, **each)
        found += [Trial(whole), Trial(whole, Schedule(loops="knmk", block={"k": 4}))]
        found.append(Trial(of_call, sizes=sizes))
    return found


@every_target
def test_long_ends_are_loops_and_change_nothing(
    target: str, tmp_path: Path, cases: Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for name, least in (("loops", 0), ("straight", 1 << 30)):
        monkeypatch.setattr(lines, "LONG", least)
        (tmp_path / name).mkdir()
        kernels = Kernels(target, sampled(target, endings()), tmp_path / name)
        given = [operands(t, np.random.default_rng(i)) for i, t in enumerate(kernels.trials)]
        results.append([kernels(i, one) for i, one in enumerate(given)])
    for in_loops, straight in zip(*results, strict=True):
        assert in_loops.keys() == straight.keys()
        assert all(same(in_loops[key], straight[key]) for key in straight)
        cases.count(target, kernels.lab.means)


def test_an_end_is_a_loop_where_straight_code_would_be_long() -> None:
    def loops(epilogue: Expression) -> bool:
        spec = Gemm(64, 64, 64, epilogue=epilogue)
        program = program_for(plan_for(spec, Schedule(), load("avx2")))
        return any(op.kind == "loop" for tile in program.tiles for op in tile.end)

    assert not loops(relu(acc + bias))
    assert loops(gelu_erf(acc + bias))


# --- what a spec refuses -----------------------------------------------------------------------

f64: Any = {"a": "f64"}
REFUSED: tuple[tuple[str, Any, str], ...] = (
    ("twice", {"epilogue": acc + bias + Operand("bias", "s8", "column")}, "declared twice"),
    ("no b2", {"epilogue": acc * acc2}, "there is none"),
    ("idle b2", {"epilogue": acc, "b2": "f32"}, "no expression uses its product"),
    ("other b2", {"epilogue": acc * acc2, "b2": "bf16"}, "B's type and layout"),
    ("b2 order", {"epilogue": acc2, "b2": Matrix("f32", "F")}, "order='C'.*order='F'"),
    ("taken", {"epilogue": acc + Operand("a_scale")}, "'a_scale' is taken"),
    ("word", {"epilogue": "acc + 1"}, "made of tw.acc"),
    ("exp f64", {"epilogue": exp(acc), **f64}, "exp is not computed in f64"),
    ("pow f64", {"epilogue": acc**1.5, **f64}, "pow is not computed in f64"),
    ("f32 in f64", {"epilogue": acc + bias, **f64}, "must be f64 exactly"),
    ("f64 in f32", {"epilogue": acc + Operand("x", "f64")}, "must be f64 exactly"),
)


@pytest.mark.parametrize(("said", "message"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_means_nothing_is_refused_by_the_spec(said: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"(?s){message}"):
        Gemm(4, 4, 4, **said)


def test_there_are_three_leaves() -> None:
    with pytest.raises(SpecError, match=r"no such value(?s:.*)tw\.acc, tw\.acc2 or tw\.dst"):
        Leaf("sum")
    with pytest.raises(SpecError, match="made of"):
        call("add", acc, np.ones(3))


def test_specs_are_told_as_they_are_written() -> None:
    full = Operand("full", "f32", "full")
    specs = (
        Gemm(3, 4, 5, order="F", epilogue=acc + full),
        Gemm(3, 4, 5, order="F", c=Matrix("f32", "C"), epilogue=acc + full),
        Gemm(3, 4, 5, order="F", c=Matrix("f32", "C"), epilogue=acc + bias, algebra=True),
        Gemm(3, 4, 5, b2="f32", epilogue=silu(acc) * acc2),
    )
    names = {"Gemm": Gemm, "Matrix": Matrix, "Operand": Operand, "swish": swish}
    for spec in specs:
        assert eval(repr(spec), {**names, "acc": acc, "acc2": acc2}) == spec  # noqa: S307
