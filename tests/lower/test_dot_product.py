"""Vectors along K of what is converted: read where it lies, its sign flipped where need be."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cases import Cases, sampled

import tilewright as tw
from tilewright.generate import plan_for
from tilewright.isa.target import Target
from tilewright.plan.staging import reads_along_k
from tilewright.runtime.machine.host import identify
from tilewright.spec.schedule import FEW_ALONG_K

ALONG_K = tw.Schedule(vectorize="k")
TARGETS = (
    "avx2", "avx2+vnni", "avx512", "avx512+vnni", "avx10.2", "amx", "power10", "rvv256",
    "neon+dotprod", "neon+dotprod+i8mm+bf16", "sve256", "sve256+sve2+i8mm+bf16",
)  # fmt: skip
DTYPES: dict[str, Any] = {"s8": np.int8, "u8": np.uint8, "s16": np.int16, "u16": np.uint16}
PAIRS = (("s8", "s8"), ("u8", "s8"), ("u8", "u8"))
#: m, n, k: K that is shorter than any vector, that fills vectors, and that ends anywhere.
SIZES = ((1, 40, 256), (3, 37, 77), (16, 5, 333), (5, 9, 1), (2, 2, 3), (1, 1, 31))


def known(name: str) -> Target:
    return identify(name).description


def drawn(rng: np.random.Generator, type_: str, shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Any values of a type, its extremes among them."""
    info = np.iinfo(DTYPES[type_])
    found = rng.integers(info.min, info.max + 1, shape).astype(DTYPES[type_])
    found.flat[0], found.flat[-1] = info.min, info.min
    return found


def spec_of(a: Any, b: Any, m: Any, n: Any, k: Any, **given: Any) -> tw.Gemm:
    return tw.Gemm(m, n, k, a=a, b=tw.Matrix(b, "F"), **given)


@pytest.mark.parametrize("target", TARGETS)
def test_sums_of_bytes_are_exact(target: str, cases: Cases) -> None:
    """Of any K, known or not; few rows, or few columns; with zero points."""
    rng = np.random.default_rng(17)
    for a, b in sampled(target, PAIRS):
        rows, columns = (tw.dim(name, max=FEW_ALONG_K) for name in "mn")
        many = tw.dim("n"), tw.dim("k")
        few_rows = tw.compile(
            spec_of(a, b, rows, *many, a_zero=3, b_zero="column"), ALONG_K, target=target
        )
        few_columns = tw.compile(
            spec_of(a, b, tw.dim("m"), columns, tw.dim("k")), ALONG_K, target=target
        )
        for m, n, k in SIZES:
            x, y = drawn(rng, a, (m, k)), drawn(rng, b, (n, k)).T
            zeros = rng.integers(-9, 9, n).astype(np.int32)
            exact = (x.astype(np.int64) - 3) @ (y.astype(np.int64) - zeros)
            out = np.full((m, n), 7, np.int32)
            assert (few_rows(x, y, out, b_zero=zeros) == exact).all(), (a, b, m, n, k)
            turned = drawn(rng, a, (n, k)), drawn(rng, b, (m, k)).T
            out = np.full((n, m), 7, np.int32)
            exact = turned[0].astype(np.int64) @ turned[1].astype(np.int64)
            assert (few_columns(*turned, out) == exact).all(), (a, b, n, m, k)
            cases.count(target, few_rows.emulated or "native", 2)
        if a == "s8":
            known_k = tw.compile(spec_of(a, b, 3, 37, 77), ALONG_K, target=target)
            x, y = drawn(rng, a, (3, 77)), drawn(rng, b, (37, 77)).T
            exact = x.astype(np.int64) @ y.astype(np.int64)
            assert (known_k(x, y, np.zeros((3, 37), np.int32)) == exact).all()


@pytest.mark.parametrize(("m", "n", "flipped"), [(4, 500, "b"), (500, 4, "a")])
def test_the_sign_of_the_large_operand_is_flipped(m: int, n: int, flipped: str) -> None:
    """Its lines are then not summed, which would read all of it once more."""
    plan = plan_for(spec_of("s8", "s8", m, n, 256), ALONG_K, known("avx512+vnni"))
    assert {name for name, shift in plan.staging.product.shifts.items() if shift} == {flipped}
    assert not plan.staging.sources  # neither is copied
    assert plan.staging.product.mnemonic == "vpdpbusd"


def test_of_two_signs_one_is_flipped() -> None:
    """Where K ends zeros of the one meet what the other has there: not both can be flipped."""
    for a, b in product(DTYPES, DTYPES):
        spec, target = spec_of(a, b, 4, 64, 64), known("avx512+vnni")
        if reads_along_k(spec, target):
            shifts = plan_for(spec, ALONG_K, target).staging.product.shifts.values()
            assert sum(map(bool, shifts)) <= 1, (a, b)
    assert not reads_along_k(spec_of("u16", "u16", 4, 64, 64), known("avx512+vnni"))


@pytest.mark.parametrize(
    ("target", "mnemonic"),
    [("neon+dotprod+i8mm+bf16", "sdot"), ("amx", "vpdpbusd"), ("power10", "vmsum")],
)
def test_along_k_lanes_are_of_a_line_of_c(target: str, mnemonic: str) -> None:
    """Where blocks of C, or matrices, are otherwise multiplied."""
    spec, found = spec_of("s8", "s8", 4, 64, 256), known(target)
    assert mnemonic in plan_for(spec, ALONG_K, found).staging.product.mnemonic
    usual = plan_for(spec, tw.Schedule(vectorize="n"), found).staging.product
    assert usual.blocks or usual.unit


@pytest.mark.parametrize("target", ["avx2", "avx512", "neon+dotprod+i8mm+bf16", "rvv256"])
@pytest.mark.parametrize("k", [64, 77])
def test_a_row_ends_where_the_next_begins(target: str, k: int, cases: Cases) -> None:
    """What is no number in one row of a converted A stays out of the others, wherever K ends."""
    rng = np.random.default_rng(23)
    rows = tw.dim("m", max=FEW_ALONG_K)
    for a in ("f32", "f16"):
        spec = spec_of(a, "bf16", rows, tw.dim("n"), tw.dim("k"))
        kernel = tw.compile(spec, ALONG_K, target=target)
        x = rng.integers(-3, 4, (4, k)).astype(np.float32 if a == "f32" else np.float16)
        x[(1, 3),] = np.nan
        y = rng.integers(-3, 4, (20, k)).astype(ml_dtypes.bfloat16).T
        out = kernel(x, y, np.zeros((4, 20), np.float32))
        exact = x[::2].astype(np.float64) @ y.astype(np.float64)
        assert (out[::2] == exact).all()
        assert np.isnan(out[1::2]).all()
        cases.count(target, kernel.emulated or "native")


def test_a_tile_that_does_not_fit_is_not_one_of_fewer_lanes() -> None:
    """Lanes of scalars would hold it, and take 25 times as long."""
    schedule = tw.Schedule(vectorize="k", tile=(4, 3))
    with pytest.raises(tw.ScheduleError, match="needs 17 vector registers"):
        plan_for(spec_of("s8", "s8", 16, 64, tw.dim("k")), schedule, known("avx2"))
