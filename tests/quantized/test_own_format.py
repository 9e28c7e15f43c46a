"""A stored type of one's own: seven bits in blocks of 40, which is one entry of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cases import Cases
from support.compilers import TARGETS

import tilewright as tw
from tilewright.errors import PlanError
from tilewright.generate import plan_for
from tilewright.runtime.driver import build_many
from tilewright.spec.quantized import STORED, Plane, StoredType, integers
from tilewright.targets import load

M = tw.dim("m")


@pytest.fixture
def seven(monkeypatch: pytest.MonkeyPatch) -> tw.Quantized:
    """Numbers from 0 to 127, of which 50 stands for 0."""
    monkeypatch.setitem(STORED, "u7", integers(7, signed=False))
    name: Any = "u7"
    return tw.Quantized(name, scale="f16", zero=50, block=40)


def test_its_bits_lie_in_three_planes(seven: tw.Quantized) -> None:
    """A block of 40 takes 35 bytes of each column."""
    assert seven.stored.planes == (Plane(4, 0), Plane(2, 4), Plane(1, 6))
    kernel = tw.compile(tw.Gemm(M, 16, 400, b=tw.Packed(seven)), target="scalar")
    rng = np.random.default_rng(0)
    q, scales = rng.integers(0, 128, (400, 16), np.uint8), np.ones((10, 16), np.float16)
    packed = kernel.pack_b(q, scales=scales)
    elements = 10 * 16 * 35
    assert packed.data.nbytes == elements + -elements % 64 + 2 * 160 + 64
    assert (packed.dequantize() == q.astype(np.float32) - 50).all()


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_have_it(target: str, seven: tw.Quantized, cases: Cases) -> None:
    """In integers and in floating point, K and columns that fill no block."""
    b = tw.Packed(seven, nb=32)
    types: tuple[Any, ...] = (tw.Quantize("bf16", per=("row", 40)), "f32")
    requests = [(tw.Gemm(M, 41, 130, a=a, b=b), None, target) for a in types]
    for kernel in build_many(requests, ("-O0",)):
        kernel.verify(cases=2)
        cases.count(target, kernel.emulated or "native", 2)


def test_c_packs_it(seven: tw.Quantized) -> None:
    """Three planes, of which no block fills whole bytes, and the sums of blocks."""
    a = tw.Quantize("bf16", per=("row", 40), zero="s8")
    tw.compile(tw.PackQuantized(130, 41, seven, a=a, nb=32)).verify(cases=2)


# --- a table of one's own ------------------------------------------------------------------------

#: NormalFloat of 4 bits, in units of 1 / 127.
NF4 = (-127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> tw.Quantized:
    monkeypatch.setitem(STORED, "nf4", StoredType(4, 0, 15, "u8", NF4, 1 / 127))
    name: Any = "nf4"
    return tw.Quantized(name, scale="f32", block=32)


@pytest.mark.parametrize("target", TARGETS)
def test_another_table_is_refused_by_kernels(target: str, table: tw.Quantized) -> None:
    """Numbers are looked up in that of f4_e2m1 alone: as those they would be wrong."""
    b = tw.Packed(table)
    for a in ("f32", tw.Quantize("f32", per=("row", 32))):
        with pytest.raises(PlanError, match=r"cannot look up the numbers of nf4[\s\S]*f4_e2m1"):
            plan_for(tw.Gemm(M, 16, 64, a=a, b=b), tw.Schedule(), load(target))
    with pytest.raises(PlanError, match="cannot look up the numbers of nf4"):
        tw.compile(tw.PackQuantized(64, 16, table, a="f32"), target=target)


def test_another_table_is_one_of_matrices(table: tw.Quantized) -> None:
    """Arrays are quantized and dequantized by it."""
    w = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    b = tw.quantize(w, table)
    right = np.repeat(b.scales, 32, axis=0) / np.float32(127) * np.array(NF4)[b.q]
    assert np.allclose(b.dequantize(), right, rtol=1e-6)
    assert np.abs(b.dequantize() - w).max() < np.abs(w).max() * 39 / 2 / 127
