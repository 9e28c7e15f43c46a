"""A quantized B that is unpacked once for many rows, and not by each tile that loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import Cases, sampled
from support.compilers import TARGETS
from support.products.fused import Kernels, Trial
from support.products.packed import convert
from support.products.plans import main_tiles, nests_of, plan_of, unpack_rows_of

import tilewright as tw
from tilewright.errors import ScheduleError, TargetError
from tilewright.generate import plan_for, program_for
from tilewright.plan.tiling.tiles import grids_of
from tilewright.runtime.driver import build_many
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.quantized.matrix import QuantizedMatrix
from tilewright.symbolic import evaluate

Array = np.ndarray[Any, Any]
M = tw.dim("m")
Q4 = tw.Quantized("u4", scale="f16", zero=8, block=32)
#: Of one plane and several, with blocks longer and shorter than what is unpacked at once.
FORMATS = (
    Q4,
    tw.Quantized("u4", scale="f16", zero="u4", block=128),
    tw.Quantized("f4_e2m1", scale="e8m0", block=32),
    tw.Quantized("u5", scale="f32", zero="f16", block=40),
    tw.Quantized("s3", scale="f32", zero="s3"),
    tw.Quantized("s8", scale="f16", block=24),
    tw.Quantized("f8_e4m3", scale="f32", block=(128, 24)),
    tw.Quantized("u2", scale="bf16", zero=1, block=16),
)
#: Rows, columns and K: with blocks of K and of columns, tails of both, and none.
SIZES = ((5, 100, 300), (9, 64, 192), (1, 40, 8), (12, 130, 97))


def drawn(form: tw.Quantized, k: int, n: int, seed: int) -> QuantizedMatrix:
    """A B of normally distributed numbers; without negative ones where the format has none."""
    w = np.random.default_rng(seed).standard_normal((k, n)).astype(np.float32)
    return tw.quantize(abs(w) if form.stored.low == 0 == form.zero else w, form)


@pytest.mark.parametrize("target", TARGETS)
def test_results_are_within_the_bound_of_their_sums(
    target: str, tmp_path: Path, cases: Cases
) -> None:
    start, trials = sum(map(ord, target)), []
    for index in range(4):
        form, (m, n, k) = FORMATS[(start + index) % 8], SIZES[index]
        a: Any = ("f32", "f16", tw.Matrix("f32", "F"))[(start + index) % 3]
        d: Any = (None, "f32", tw.Matrix("f32", "F"))[(start + index // 2) % 3]
        epilogue = tw.relu(tw.acc) if d == "f32" else None
        spec = tw.Gemm(M, n, k, a=a, b=tw.Packed(form), d=d, epilogue=epilogue)
        schedule = tw.Schedule(unpack_rows=2, threads=2 if index % 2 else None)
        trials.append((Trial(spec, schedule, {"m": m}), form))
    trials = sampled(target, trials, 2)
    kernels = Kernels(target, [trial for trial, _ in trials], tmp_path)
    for i, (trial, form) in enumerate(trials):
        spec = trial.spec
        assert isinstance(spec.k, int) and isinstance(spec.n, int)
        b = drawn(form, spec.k, spec.n, i)
        a = np.random.default_rng(i).standard_normal((trial.sizes["m"], spec.k))
        stored = convert(a.astype(np.float32), spec.a.type)
        got = kernels(i, {"a": stored, "b": b}, "rear" if i % 2 else "front")["out"]
        wide, exact = stored.astype(np.float64), b.dequantize().astype(np.float64)
        sums = np.maximum(wide @ exact, 0) if spec.epilogue is not None else wide @ exact
        assert (abs(got - sums) <= 2.0**-23 * (spec.k + 2) * (abs(wide) @ abs(exact))).all(), trial
    cases.count(target, kernels.lab.means, len(trials))


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_a_row_has_the_same_bits_either_way(form: tw.Quantized) -> None:
    spec = tw.Gemm(M, 70, 300, a="f16", b=tw.Packed(form), d="f32", epilogue=tw.acc * 0.5)
    schedules = [tw.Schedule(tile=(2, 8), **how) for how in ({"loops": "nmk"}, {"unpack_rows": 4})]
    loaded, both = build_many([(spec, each, "host") for each in schedules], ("-O0",))
    b = loaded.pack_b(drawn(form, 300, 70, 1))
    a = convert(np.random.default_rng(2).standard_normal((140, 300)).astype(np.float32), "f16")
    for m in (1, 3, 4, 11, 140):
        assert (loaded(a[:m], b) == both(a[:m], b)).all(), m
    assert (both(a[:3], b) == both(a, b)[:3]).all()


#: What has more than one B: gates, batches, and both, of counts that only the call knows.
SEVERAL: tuple[dict[str, Any], ...] = (
    {"b2": tw.Packed(Q4)},
    {"batch": tw.Strided(tw.dim("count"))},
    {"batch": tw.Strided(tw.dim("count"), b=0), "beta": 1},
    {"b2": tw.Packed(Q4), "batch": tw.Strided(tw.dim("count"))},
    {"b2": tw.Packed(Q4), "batch": tw.Strided(3, c=None)},
    {"b2": tw.Packed(Q4), "batch": tw.Strided(3), "outputs": {"peak": tw.row_max(tw.acc2)}},
)


#: Each of them on one of these targets.
UNPACKED = [
    (target, more)
    for i, target in enumerate(("avx512", "neon", "amx", "rvv256"))
    for j, more in enumerate(SEVERAL)
    if (i + j) % 4 == 0
]


@pytest.mark.parametrize(("target", "more"), UNPACKED, ids=str)
def test_gates_and_batches_are_unpacked(target: str, more: dict[str, Any]) -> None:
    made = tw.silu(tw.acc) * tw.acc2 if "b2" in more else tw.relu(tw.acc)
    spec = tw.Gemm(M, 100, 300, a="f16", b=tw.Packed(Q4), d="f32", epilogue=made, **more)
    try:
        (kernel,) = build_many([(spec, tw.Schedule(unpack_rows=2), target)], ("-O0",))
    except TargetError as error:
        pytest.skip(str(error))
    assert "once for up to 128 rows" in kernel.explain()
    kernel.verify(cases=4)


def test_a_row_of_a_batch_has_the_same_bits_either_way() -> None:
    spec = tw.Gemm(M, 70, 300, a="f32", b=tw.Packed(Q4), batch=tw.Strided(3), d="f32")
    kernel, rng = tw.compile(spec, tw.Schedule(unpack_rows=4)), np.random.default_rng(0)
    b = kernel.pack_b(tw.quantize(rng.standard_normal((3, 300, 70), np.float32), Q4))
    a = rng.standard_normal((3, 140, 300), np.float32)
    whole = kernel(a, b)
    for m in (1, 3, 4, 11):
        assert (kernel(a[:, :m].copy(), b) == whole[:m]).all(), m


def test_many_rows_are_those_of_more_than_two_tiles() -> None:
    spec = tw.Gemm(M, 96, 256, a="f32", b=tw.Packed(Q4))
    plan, unpacked = nests_of(spec, tw.Schedule(), "avx512")
    assert (plan.staging.packs, unpacked.staging.packs) == ("", "b")
    assert unpack_rows_of(spec, tw.Schedule(), "avx512") == 2 * plan.tiling.tiles[0].shape.rows + 1
    few, many = (tw.Gemm(m, 96, 256, a="f32", b=tw.Packed(Q4)) for m in (4, 100))
    assert plan_of(few, tw.Schedule(), "avx512").staging.packs == ""
    assert plan_of(many, tw.Schedule(), "avx512").staging.packs == "b"
    short = tw.Gemm(tw.dim("m", max=8), 96, 256, a="f32", b=tw.Packed(Q4))
    assert len(nests_of(short, tw.Schedule(), "avx512")) == 1
    assert len(nests_of(spec, tw.Schedule(loops="nmk"), "avx512")) == 1
    integers = tw.Gemm(M, 96, 256, a=tw.Quantize(), b=tw.Packed(Q4))
    assert len(nests_of(integers, tw.Schedule(), "avx512")) == 1


@pytest.mark.parametrize("target", ["avx512", "avx2", "neon", "sve256", "rvv256", "power10"])
def test_what_is_unpacked_fits_on_the_stack(target: str) -> None:
    """So nothing is lost where threads run, and no memory grows with the matrices."""
    for n, k in ((4096, 4096), (100, 14336), (16, 72)):
        spec = tw.Gemm(M, n, k, a="f32", b=tw.Packed(Q4), d="bf16")
        _, plan = nests_of(spec, tw.Schedule(threads=2), target)
        blocks = plan.nest.blocks
        assert 4 * blocks["n"] * blocks["k"] <= 32 * 1024
        assert 4 * blocks["n"] * blocks["m"] <= 32 * 1024
        assert blocks["k"] % 8 == 0


def test_the_resolved_schedule_leads_to_the_same_kernel() -> None:
    for m in (M, 100):
        kernel = tw.compile(tw.Gemm(m, 96, 256, a="f16", b=tw.Packed(Q4), d="bf16"))
        assert isinstance(kernel.spec, tw.Gemm)
        again = nests_of(kernel.spec, kernel.schedule, kernel.target)
        first = plan_of(kernel.spec, None, kernel.target)
        mains = [main_tiles(plan, kernel.schedule) for plan in (again[0], first)]
        assert mains[0] == mains[1] != []
        assert len(again) == (1 if isinstance(m, int) else 2)


def test_lines_from_afar_are_asked_for_ahead() -> None:
    """Six blocks of 32 in 32 columns; what the first cache holds is not asked for."""
    how = tw.Quantize(per=("row", 32))
    far, near = (tw.Gemm(M, n, 256, a=how, b=tw.Packed(Q4)) for n in (4096, 64))
    assert plan_of(far, tw.Schedule(), "avx512").problem.schedule.prefetch == 6
    assert plan_of(far, tw.Schedule(prefetch=9), "avx512").problem.schedule.prefetch == 9
    assert plan_of(near, tw.Schedule(), "avx512").problem.schedule.prefetch is None
    kernel = tw.compile(far, target="avx512+vnni")
    assert "prefetch" in kernel.explain() and kernel.verify(cases=2).cases == 2
    loads, asked = (kernel.source.count(x) for x in ("_bytes = ", "__builtin_prefetch(pb + "))
    assert 0 < asked <= loads


@pytest.mark.parametrize("target", ["avx2", "avx512+vnni", "neon"])
def test_what_tiles_leave_of_few_rows_unpacks_b_once(target: str) -> None:
    """As many rows as a tile holds are one; more are two, of which neither has few."""
    how = tw.Quantize(per=("row", 32))
    plan = plan_of(tw.Gemm(M, 64, 256, a=how, b=tw.Packed(Q4)), tw.Schedule(loops="nmk"), target)
    grids = list(grids_of(plan.tiling.passes["whole"]))
    tall = max(grid.tile.shape.rows for grid in grids)
    for m in range(1, 2 * tall + 1):
        sizes, there = {"m": m}, set[int]()
        for name, size in grids[0].across.given:
            sizes[name] = evaluate(size, sizes)
        for grid in grids:
            there |= {grid.tile.shape.rows} if evaluate(grid.across.count, sizes) > 0 else set()
        assert there == ({m} if m <= tall else {m // 2, (m + 1) // 2})


def test_explain_says_it() -> None:
    kernel = tw.compile(tw.Gemm(M, 96, 256, a="f32", b=tw.Packed(Q4)))
    said = " ".join(kernel.explain().split())
    assert "many rows from" in said and "B is unpacked once for up to 128 rows" in said


def test_what_is_not_unpacked_is_refused() -> None:
    for spec in (
        tw.Gemm(M, 96, 256),
        tw.Gemm(M, 96, 256, a=tw.Quantize(), b=tw.Packed(Q4)),
        tw.Gemm(M, 96, 256, a="f32", b=tw.Packed("f32"), batch=tw.Strided(2)),
        tw.Gemm(M, 96, 256, a="f32", b=tw.Packed(Q4), batch=tw.Addresses(2)),
    ):
        with pytest.raises(ScheduleError, match="no quantized B that is unpacked beforehand"):
            plan_of(spec, tw.Schedule(unpack_rows=8), "avx512")
    with pytest.raises(ScheduleError, match="unpack_rows must be a positive int"):
        tw.Schedule(unpack_rows=0)


def test_a_panel_narrower_than_a_vector_has_room_behind_it() -> None:
    """Vectors of 64 lanes read panels of few columns whole: the checker refuses less room."""
    form = tw.Quantized("s4", scale="f32", block=24)
    spec = tw.Gemm(M, 32, 33, a=tw.Matrix("f16", "F"), b=tw.Packed(form), c=tw.Matrix("f32", "F"))
    plan = plan_for(spec, tw.Schedule(unpack_rows=2), resolve("sve2048+sve2+i8mm+bf16"))
    _, unpacked = plan.nests
    assert unpacked.panel("b") < unpacked.staging.lanes
    assert program_for(plan).tiles
