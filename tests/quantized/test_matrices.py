"""Blocks of integers that a matrix unit sums, whose sums are scaled in rows by way of memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import Cases
from support.products.fused import Trial
from support.products.plans import main_tiles, nests_of, plan_of, unpack_rows_of

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.generate import program_for
from tilewright.ir.nodes import walk
from tilewright.ir.ops import MultiplyMatrices, Prefetch, StoreMatrix

from .test_kernels import agree, kinds

M = tw.dim("m")
Q4 = tw.Quantized("u4", scale="f16", zero=8, block=32)
UNIT = tw.Schedule(unpack_rows=1)
#: In one part and several, of bytes that are unpacked and that matrices are read from.
FORMATS = (
    Q4,
    tw.Quantized("u4", scale="f32", zero="u4", block=128),
    tw.Quantized("f4_e2m1", scale="e8m0", block=32),
    tw.Quantized("u4", scale="f16", zero="f16", block=64),
    tw.Quantized("s5", scale="f32", block=40),
    tw.Quantized("s8", scale="f16", block=24),
    tw.Quantized("u2", scale="bf16", zero=1, block=96),
    tw.Quantized("s8", scale="f32"),
    tw.Quantized("s4", scale="f16", zero="f16", block=32),
)
#: Rows, columns and K: of several bands and columns of matrices, of parts of them, of one row.
SIZES = ((37, 50, 192), (16, 16, 97), (1, 70, 300), (70, 33, 256))


def trials() -> Iterator[tuple[Trial, tw.Quantized]]:
    """Every format with one of the sizes, by the unit even for one row."""
    for index, form in enumerate(FORMATS):
        m, n, k = SIZES[index % 4]
        how = kinds(form, "bf16" if index % 2 else "f32")[index % 5]
        schedule = tw.Schedule(unpack_rows=1, threads=2 if index % 3 == 0 else None)
        yield Trial(tw.Gemm(M, n, k, a=how, b=tw.Packed(form)), schedule, {"m": m}), form


def test_results_have_the_bits_that_every_target_has(tmp_path: Path, cases: Cases) -> None:
    every = list(trials())
    for trial, _ in every:
        assert unpack_rows_of(trial.spec, trial.schedule, "amx") == 1
        assert nests_of(trial.spec, trial.schedule, "amx")[1].staging.product.unit is not None
    agree("amx", every, tmp_path, cases)


#: One place, one band, one column, several of both; hold either side. K of several trips of blocks
#: of K, of the blocks left over, and of blocks in one part, two, three and four.
TILES = ((16, 16), (16, 32), (32, 16), (32, 32), (48, 16), (16, 48))
LONG = (
    (Q4, 32 * 11),
    (tw.Quantized("u4", scale="f16", zero="u4", block=128), 128 * 5),
    (tw.Quantized("f4_e2m1", scale="e8m0", block=192), 192 * 2),
    (tw.Quantized("s8", scale="f32", block=256), 256 * 2),
)


def test_sums_that_wait_for_the_next_block_are_all_added(tmp_path: Path, cases: Cases) -> None:
    every = []
    for index, tile in enumerate(TILES):
        for form, k in LONG:
            m, n = (45, 50) if index % 2 else (tile[0], tile[1])
            schedule = tw.Schedule(unpack_rows=1, tile=tile)
            spec = tw.Gemm(m, n, k, a=kinds(form)[index % 5], b=tw.Packed(form))
            every.append((Trial(spec, schedule, {"m": m}), form))
    agree("amx", every, tmp_path, cases)


def test_sums_are_stored_while_the_next_ones_are_multiplied() -> None:
    """Not at once: vectors would wait for the last product, and the next ones for vectors."""
    spec = tw.Gemm(32, 32, 256, a=tw.Quantize(per=("row", 32)), b=tw.Packed(Q4))
    program = program_for(plan_of(spec, UNIT, "amx"))
    (tile,) = (tile for tile in program.tiles if "matrix" not in tile.name and tile.accumulators)
    found = [op for op in walk(tile.body) if isinstance(op, MultiplyMatrices | StoreMatrix)]
    stored = [i for i, op in enumerate(found) if isinstance(op, StoreMatrix)]
    assert len(found) == 2 * len(stored) == 2 * 4 * 4, "four places, four blocks in a trip"
    for i in stored[:-1]:
        last = next(op for op in reversed(found[:i]) if isinstance(op, MultiplyMatrices))
        store = found[i]
        assert isinstance(store, StoreMatrix) and last.acc.name != store.src.name


def test_rows_that_matrices_load_share_no_sets() -> None:
    """Made in the kernel or copied, they are an odd number of lines apart."""
    kinds: tuple[tuple[Any, int], ...] = (
        (tw.Quantize(per=("row", 32)), 256), ("bf16", 256), ("bf16", 240),
    )  # fmt: skip
    quantised, copied, few = (
        plan_of(tw.Gemm(64, n, 4096, a=a, b=tw.Packed(Q4)), UNIT, "amx") for a, n in kinds
    )
    assert quantised.staging.operands["a"].strides["m"] == 4096 + 64
    assert copied.staging.operands["a"].strides["m"] == 4096 + 32 and "a" in copied.staging.sources
    assert not few.staging.sources, "a copy is read too seldom"


#: What is made of sums, from where they lie in memory.
ENDS: tuple[dict[str, Any], ...] = (
    {"d": tw.Matrix("bf16", "F")},
    {"d": "f32", "epilogue": tw.relu(tw.acc * 0.5) * tw.acc2, "b2": tw.Packed(Q4)},
    {"batch": tw.Strided(3), "beta": "scalar"},
    {"d": "s8", "outputs": {"most": tw.row_max(tw.acc)}},
)


@pytest.mark.parametrize("more", ENDS, ids=["turned", "gated", "batch", "outputs"])
def test_sums_become_what_other_tiles_make_of_them(more: dict[str, Any], cases: Cases) -> None:
    a = tw.Quantize("bf16", per=("row", 32))
    kernels = tw.compile_many(
        [(tw.Gemm(m, 50, 96, a=a, b=tw.Packed(Q4), **more), UNIT, "amx") for m in (37, M)]
    )
    for kernel in kernels:
        assert "_tile_dpb" in kernel.source
        kernel.verify(cases=2)
        cases.count("amx", kernel.emulated or "native", 2)


def test_rows_are_few_where_vectors_take_no_longer() -> None:
    spec = tw.Gemm(M, 96, 256, a=tw.Quantize(per=("row", 32)), b=tw.Packed(Q4))
    assert plan_of(spec, tw.Schedule(), "amx").staging.product.unit is None
    rows = unpack_rows_of(spec, tw.Schedule(), "amx")
    few, many = (
        plan_of(tw.Gemm(m, 96, 256, a=spec.a, b=spec.b), tw.Schedule(), "amx")
        for m in (rows - 1, rows)
    )
    assert few.staging.product.unit is None and many.staging.product.unit is not None
    assert len(nests_of(spec, tw.Schedule(loops="nmk"), "amx")) == 1
    assert len(nests_of(spec, tw.Schedule(), "avx512+vnni")) == 1
    both = plan_of(tw.Gemm(1, 96, 256, a=spec.a, b=spec.b), UNIT, "amx")
    assert both.staging.product.unit is not None


def test_a_block_is_summed_in_equal_parts() -> None:
    for form, depth in zip(FORMATS, (32, 64, 32, 64, 40, 24, 48, 64, 32), strict=True):
        spec = tw.Gemm(32, 64, 384, a=kinds(form)[0], b=tw.Packed(form))
        product = plan_of(spec, UNIT, "amx").staging.product
        assert product.depth == depth and product.block % depth == 0
    uneven = tw.Quantized("s8", scale="f32", block=136)  # 34 groups of 4: parts of 2 at most
    spec = tw.Gemm(32, 64, 272, a=tw.Quantize(), b=tw.Packed(uneven))
    assert plan_of(spec, tw.Schedule(), "amx").staging.product.unit is None
    with pytest.raises(ScheduleError, match="or a matrix unit that takes the numbers"):
        plan_of(spec, UNIT, "amx")


def test_rows_of_a_that_stay_in_a_cache_meet_all_of_b() -> None:
    large = tw.Gemm(M, 4096, 4096, a=tw.Quantize(per=("row", 32)), b=tw.Packed(Q4))
    _, plan = nests_of(large, tw.Schedule(), "amx")
    assert plan.nest.blocks == {"m": 128}
    _, threads = nests_of(large, tw.Schedule(threads=2), "amx")
    assert not threads.nest.blocks


@pytest.mark.parametrize("form", [Q4, tw.Quantized("s8", scale="f16", block=32)], ids=str)
def test_lines_of_b_are_asked_for_where_the_nearest_cache_lacks_room(form: tw.Quantized) -> None:
    """One for each line that is unpacked, or that a matrix is loaded from."""
    for k, blocks in ((256, 0), (8192, 4)):
        spec = tw.Gemm(32, 32, k, a=tw.Quantize(per=("row", 32)), b=tw.Packed(form))
        plan = plan_of(spec, UNIT, "amx")
        assert (plan.problem.schedule.prefetch is not None) == (blocks > 0)
        tile, lines = program_for(plan).tiles[0], 32 * 32 * form.stored.bits // 8 // 64
        asked = [op for op in walk(tile.body) if isinstance(op, Prefetch)]
        assert len(asked) == blocks * lines
        assert len({op.address for op in asked}) == len(asked)


@pytest.mark.parametrize("m", [M, 40], ids=["of the call", "fixed"])
def test_the_resolved_schedule_leads_to_the_same_kernel(m: Any) -> None:
    spec = tw.Gemm(m, 96, 256, a=tw.Quantize(per=("row", 32)), b=tw.Packed(Q4), d="bf16")
    kernel = tw.compile(spec, target="amx")
    again, first = plan_of(spec, kernel.schedule, "amx"), plan_of(spec, None, "amx")
    mains = [main_tiles(plan, kernel.schedule) for plan in (again, first)]
    assert mains[0] == mains[1] != []


def test_packed_bytes_are_those_of_vectors() -> None:
    """A caller packs once, whatever the target and the number of rows."""
    spec = tw.Gemm(M, 96, 256, a=tw.Quantize(per=("row", 32)), b=tw.Packed(Q4))
    w = np.random.default_rng(0).standard_normal((256, 96)).astype(np.float32)
    packed = [
        tw.compile(spec, target=target).pack_b(tw.quantize(w, Q4))
        for target in ("amx", "avx512+vnni")
    ]
    assert packed[0].format == packed[1].format
    assert (packed[0].data == packed[1].data).all()
