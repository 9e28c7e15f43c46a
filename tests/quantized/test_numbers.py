"""An A of bf16 meets numbers of a quantized B in dot products, and sums of blocks are scaled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import Cases, sampled
from support.products.fused import Kernels, Trial
from support.products.packed import DTYPES, convert
from support.products.plans import nests_of, plan_of, unpack_rows_of

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.runtime.quantized.matrix import QuantizedMatrix

Array = np.ndarray[Any, Any]
M = tw.dim("m")
#: Targets with dot products of bf16, and what they are called.
PRODUCTS = {
    "avx512+bf16": "vdpbf16ps", "amx": "tdpbf16ps", "neon+bf16": "bfdot",
    "sve256+sve2+bf16": "bfdot", "sve1024+bf16": "bfdot",
}  # fmt: skip
Q4 = tw.Quantized("u4", scale="f16", zero=8, block=32)
#: Of one plane and two, of bytes; with zero points and minima; blocks that tiles of AMX halve.
FORMATS = (
    Q4,
    tw.Quantized("u4", scale="f16", zero="u4", block=128),
    tw.Quantized("f4_e2m1", scale="e8m0", block=32),
    tw.Quantized("s4", scale="f32", zero="f16", block=24),
    tw.Quantized("u3", scale="f32", zero="u3", block=64),
    tw.Quantized("s2", scale="bf16", block=16),
    tw.Quantized("s8", scale="f16", block=64),
    tw.Quantized("u8", scale="f32", zero="f16", block=(64, 24)),
)
#: Rows, columns and K: K of whole blocks or not, odd, and within one block; tails of both others.
SIZES = ((5, 50, 300), (9, 64, 384), (1, 33, 7), (40, 130, 1920))


def whole(form: tw.Quantized, k: int, n: int, seed: int) -> QuantizedMatrix:
    """A B of all numbers of its type, whose elements and minima are whole or halves."""
    rng, stored = np.random.default_rng(seed), form.stored
    q = rng.integers(stored.low, stored.high, (k, n), endpoint=True)
    blocks = form.blocks(k, n)
    zeros = None
    if form.zero == form.type:
        zeros = rng.integers(stored.low, stored.high, blocks, endpoint=True)
        zeros = zeros.astype(DTYPES[stored.unpacked])
    elif isinstance(form.zero, str):
        zeros = convert(rng.integers(-9, 9, blocks).astype(np.float32), form.zero)
    powers = rng.integers(-1, 2, blocks)
    if form.scale == "e8m0":
        scales: Array = (powers + 127).astype(np.uint8)
    else:
        scales = convert((rng.choice([-1, 1], blocks) * 2.0**powers).astype(np.float32), form.scale)
    return QuantizedMatrix(form, q.astype(DTYPES[stored.unpacked]), scales, zeros)


def rows_of(m: int, k: int, seed: int) -> Array:
    """Small integers: every sum of theirs is exact in f32, in any order."""
    return np.random.default_rng(seed).integers(-4, 5, (m, k)).astype(np.float32)


@pytest.mark.parametrize("target", [each for each in PRODUCTS if "sve256" not in each])
def test_sums_of_whole_numbers_are_exact(target: str, tmp_path: Path, cases: Cases) -> None:
    """Beside guard pages: nothing is read of A or B but what there is."""
    start, trials = sum(map(ord, target)), []
    for index, form in enumerate(FORMATS):
        m, n, k = SIZES[(start + index) % 4]
        a: Any = tw.Matrix("bf16", "F") if (start + index) % 5 == 4 else "bf16"
        more: dict[str, Any] = {"b2": tw.Packed(form)} if index % 4 == 3 else {}
        epilogue = tw.acc - 2 * tw.acc2 if more else None
        spec = tw.Gemm(M, n, k, a=a, b=tw.Packed(form), d="f32", epilogue=epilogue, **more)
        trials.append((Trial(spec, tw.Schedule(threads=1 + index % 2), {"m": m}), form))
    trials = sampled(target, trials, 3)
    kernels = Kernels(target, [trial for trial, _ in trials], tmp_path)
    for i, (trial, form) in enumerate(trials):
        _agree(kernels, i, trial, form)
    cases.count(target, kernels.lab.means, len(trials))


def _agree(kernels: Kernels, index: int, trial: Trial, form: tw.Quantized) -> None:
    """A kernel's results are those of float64, beside guard pages."""
    spec = trial.spec
    assert isinstance(spec.k, int) and isinstance(spec.n, int)
    b, b2 = (whole(form, spec.k, spec.n, 2 * index + second) for second in range(2))
    a = rows_of(trial.sizes["m"], spec.k, index)
    given = {"a": convert(a, "bf16"), "b": b} | ({"b2": b2} if spec.b2 is not None else {})
    got = kernels(index, given, "rear" if index % 2 else "front")["out"]
    exact = a.astype(np.float64) @ b.dequantize()
    if spec.b2 is not None:
        exact -= 2 * (a.astype(np.float64) @ b2.dequantize())
    assert (got == exact).all(), trial


@pytest.mark.parametrize("count", [tw.Strided(3), tw.Offsets(3), tw.Addresses(3)], ids=str)
@pytest.mark.parametrize("form", [FORMATS[0], FORMATS[1]], ids=str)
def test_batches(form: tw.Quantized, count: Any) -> None:
    """Zero points need sums of the rows of every A; many rows find numbers that were unpacked."""
    spec = tw.Gemm(4, 48, 256, a="bf16", b=tw.Packed(form), batch=count)
    tw.compile(spec, target="avx512+bf16").verify(cases=3)
    if form.zeros or isinstance(count, tw.Addresses):
        return
    gates: dict[str, Any] = {"b2": spec.b, "epilogue": tw.silu(tw.acc) * tw.acc2}
    for more in (dict[str, Any](), gates):
        spec = tw.Gemm(M, 48, 256, a="bf16", b=tw.Packed(form), batch=count, d="f32", **more)
        kernel = tw.compile(spec, tw.Schedule(unpack_rows=2), target="avx512+bf16")
        assert "B is unpacked once for up to 256 rows" in " ".join(kernel.explain().split())
        kernel.verify(cases=3)


@pytest.mark.parametrize("target", PRODUCTS)
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_numbers_are_multiplied_as_they_are(form: tw.Quantized, target: str) -> None:
    plan = plan_of(tw.Gemm(64, 96, 1920, a="bf16", b=tw.Packed(form)), None, target)
    assert plan.staging.product.mnemonic == PRODUCTS[target]
    assert (
        plan.staging.product.along,
        plan.staging.product.across,
        plan.staging.product.partial,
    ) == ("bf16",) * 2 + ("f32",)


@pytest.mark.parametrize(
    "spec",
    [
        tw.Gemm(8, 48, 96, a="f32", b=tw.Packed(Q4)),
        tw.Gemm(8, 48, 96, a="f16", b=tw.Packed(Q4)),
        tw.Gemm(8, 48, 96, a="bf16", b=tw.Packed(tw.Quantized("u5", scale="f16", block=32))),
        tw.Gemm(8, 48, 96, a="bf16", b=tw.Packed(tw.Quantized("u8", zero=131, block=32))),
        tw.Gemm(8, 48, 96, a=tw.Matrix("bf16", "F"), b=tw.Packed(FORMATS[1])),
    ],
    ids=repr,
)
def test_others_are_f32(spec: tw.Gemm) -> None:
    plan = plan_of(spec, None, "avx512+bf16")
    assert (plan.staging.product.along, plan.staging.product.partial) == ("f32", "")


def test_tiles_of_amx_take_whole_blocks_of_rows() -> None:
    """Else vectors sum: a matrix of A would end behind its row."""
    for k, mnemonic in ((1920, "tdpbf16ps"), (1921, "vdpbf16ps")):
        plan = plan_of(tw.Gemm(64, 96, k, a="bf16", b=tw.Packed(Q4)), None, "amx")
        assert plan.staging.product.mnemonic == mnemonic


@pytest.mark.parametrize("target", ["amx", "avx512+bf16"])
def test_without_k_there_are_no_sums_of_blocks(target: str) -> None:
    """Those of A's rows, which minima multiply: the sweep found a function that used nothing."""
    spec = tw.Gemm(3, 20, 0, a="bf16", b=tw.Packed(FORMATS[3]), c="f32", beta=2)
    kernel = tw.compile(spec, target=target)
    assert "sum_blocks" not in kernel.source
    kernel.verify(cases=2)


def test_a_matrix_unit_decides_for_vectors_too() -> None:
    """Dot products take twice as long as FMA on these cores; but tiles multiply many rows."""
    spec = tw.Gemm(M, 96, 1920, a="bf16", b=tw.Packed(Q4))
    for target, along in (("amx+graniterapids", "bf16"), ("avx512+bf16+graniterapids", "f32")):
        plan, *unpacked = nests_of(spec, None, target)
        assert plan.staging.product.along == along
        assert any(each.staging.product.unit is not None for each in unpacked) == (along == "bf16")
        packed = plan.staging.quantized
        assert packed.group == (2 if along == "bf16" else 1)
        assert all(each.staging.quantized == packed for each in unpacked)


@pytest.mark.parametrize("target", ["avx512+bf16", "neon+bf16", "sve256+sve2+bf16"])
def test_many_rows_find_numbers_in_panels(target: str, tmp_path: Path, cases: Cases) -> None:
    """Whole numbers again, in one block of columns and in several, with tails and a second B."""
    start, trials = sum(map(ord, target)), []
    for index, form in enumerate(form for form in FORMATS if not form.zeros):
        m, n, k = ((9, 330, 960), (40, 70, 192), (17, 33, 1920))[(start + index) % 3]
        given = tw.Packed(form, 32 if n == 70 else None)
        more: dict[str, Any] = {"b2": given} if index % 2 else {}
        epilogue = tw.acc - 2 * tw.acc2 if more else None
        spec = tw.Gemm(M, n, k, a="bf16", b=given, d="f32", epilogue=epilogue, **more)
        schedule = tw.Schedule(unpack_rows=2, threads=1 + index % 2)
        _, many = nests_of(spec, schedule, target)
        assert many.staging.read_format(many.nest.panel_tile).stored == "bf16"
        trials.append((Trial(spec, schedule, {"m": m}), form))
    trials = sampled(target, trials)
    kernels = Kernels(target, [trial for trial, _ in trials], tmp_path)
    for i, (trial, form) in enumerate(trials):
        _agree(kernels, i, trial, form)
    cases.count(target, kernels.lab.means, len(trials))


@pytest.mark.parametrize("form", [FORMATS[0], FORMATS[2], FORMATS[6]], ids=str)
def test_a_row_has_the_same_bits_among_few_and_many(form: tw.Quantized) -> None:
    spec = tw.Gemm(M, 130, 384, a="bf16", b=tw.Packed(form))
    kernel = tw.compile(spec, tw.Schedule(unpack_rows=8), "avx512+bf16")
    rng = np.random.default_rng(0)
    packed = kernel.pack_b(whole(form, 384, 130, 1))
    a = convert(rng.standard_normal((300, 384)).astype(np.float32), "bf16")
    every = kernel(a, packed)
    for m in (1, 5, 40):
        assert (kernel(a[:m], packed) == every[:m]).all(), m


def test_bytes_pay_for_that_and_what_tables_look_up_does_not() -> None:
    """By the estimate: a byte takes more operations to become bf16, most where they share units."""
    s8, q4 = (
        tw.Gemm(M, 4096, 4096, a="bf16", b=tw.Packed(form))
        for form in (tw.Quantized("s8", scale="f16", block=32), Q4)
    )
    shared, own = (unpack_rows_of(s8, None, f"avx512+bf16{core}") for core in ("+zen5", ""))
    assert 16 < shared < 128 and 2 < own < shared
    assert len(nests_of(q4, None, "avx512+bf16")) == 1


def test_a_tile_of_numbers_lies_within_a_block_of_columns() -> None:
    """Scales of its columns follow each other there; one block of all columns has no such end."""
    how = tw.Schedule(tile=(4, 48), loops="mnkmnk", pack="b")
    several = tw.Gemm(M, 96, 64, a="bf16", b=tw.Packed(Q4, 32))
    with pytest.raises(ScheduleError, match="within one block of columns"):
        plan_of(several, how, "avx512+bf16")
    one = tw.Gemm(M, 96, 64, a="bf16", b=tw.Packed(Q4, 96))
    assert plan_of(one, how, "avx512+bf16").nest.panel_tile == (4, 48)


def test_zeros_of_blocks_and_parts_of_them_are_not_unpacked_beforehand() -> None:
    for form, k in ((Q4, 100), (FORMATS[1], 256)):
        spec = tw.Gemm(M, 48, k, a="bf16", b=tw.Packed(form))
        assert len(nests_of(spec, None, "avx512+bf16")) == 1
        with pytest.raises(ScheduleError, match="no quantized B that is unpacked beforehand"):
            plan_of(spec, tw.Schedule(unpack_rows=4), "avx512+bf16")


def test_tiles_have_as_many_rows_as_the_first_cache_has_places() -> None:
    """Rows of 8 KiB all begin in one set of it, and a copy for a few columns does not pay."""
    for k, most in ((4096, 8), (4096 + 32, 32)):
        plan = plan_of(tw.Gemm(M, 240, k, a="bf16", b=tw.Packed(Q4)), None, "avx512+bf16")
        assert (
            max(tile.shape.rows for tile in plan.tiling.tiles) <= most and not plan.staging.sources
        )
    asked = plan_of(
        tw.Gemm(M, 4096, 4096, a="bf16", b=tw.Packed(Q4)), tw.Schedule(tile=(12, 16)), "avx512+bf16"
    )
    assert max(tile.shape.rows for tile in asked.tiling.tiles) == 12


def test_rows_that_share_few_sets_are_copied_an_odd_number_of_lines_apart() -> None:
    """By vectors too, in f32 as in bf16; the others are read where they lie."""
    kinds: tuple[tuple[Any, int, str], ...] = (
        ("bf16", 2048, "avx512+bf16"), ("f32", 4096, "avx2"),
    )  # fmt: skip
    for type_, k, target in kinds:
        copied = plan_of(tw.Gemm(M, 256, k, a=type_, b=tw.Packed(Q4)), None, target)
        assert copied.staging.sources.keys() == {"a"}
        assert copied.staging.operands["a"].strides["m"] == k + 64 // (2 if type_ == "bf16" else 4)
        for depth, lda in ((k + 64, None), (k, tw.dim("lda"))):
            spec = tw.Gemm(M, 256, depth, a=type_, b=tw.Packed(Q4), lda=lda)
            assert not plan_of(spec, None, target).staging.sources
    _, many = nests_of(tw.Gemm(M, 256, 4096, a="f32", b=tw.Packed(Q4)), None, "avx2")
    assert not many.staging.sources, "their blocks of K lie in few lines"
