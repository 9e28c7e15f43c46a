"""A stored type of one's own: seven bits in blocks of 40, which is one entry of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cases import Cases
from support.compilers import TARGETS

import tilewright as tw
from tilewright.errors import SpecError
from tilewright.runtime.driver import build_many
from tilewright.spec.quantized import STORED, Plane, StoredType, integers

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

#: Numbers of no regular distance, in units of 1 / 128: some are not exact in bf16.
OWN = (-127.25, -88, -67, -50, -36.5, -23, -12, 0, 10, 20, 31, 43, 56.125, 71, 92, 127.75)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> tw.Quantized:
    monkeypatch.setitem(STORED, "own4", StoredType(4, 0, 15, "u8", OWN, 1 / 128))
    name: Any = "own4"
    return tw.Quantized(name, scale="f32", block=32)


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_look_its_numbers_up(target: str, table: tw.Quantized, cases: Cases) -> None:
    """With an A of floating point, also where bf16 has dot products."""
    b = tw.Packed(table, nb=32)
    types: tuple[Any, ...] = ("f32", "bf16")
    requests = [(tw.Gemm(M, 41, 130, a=a, b=b), None, target) for a in types]
    for kernel in build_many(requests, ("-O0",)):
        kernel.verify(cases=2)
        cases.count(target, kernel.emulated or "native", 2)


@pytest.mark.parametrize("a", [tw.Quantize("f32", per=("row", 32)), "s8"])
def test_integers_do_not_multiply_its_numbers(a: Any, table: tw.Quantized) -> None:
    """Products and the specs that pack their B are refused; shipped tables as well."""
    for form in (table, tw.Quantized("nf4", block=32), tw.Quantized("iq4_nl", block=32)):
        problem = f"integers do not multiply the numbers of {form.type}"
        with pytest.raises(SpecError, match=problem):
            tw.Gemm(M, 16, 64, a=a, b=tw.Packed(form))
        with pytest.raises(SpecError, match=problem):
            tw.PackQuantized(64, 16, form, a=a)
    tw.Gemm(M, 16, 64, a=a, b=tw.Packed(tw.Quantized("f4_e2m1", block=32)))


def test_another_table_is_one_of_matrices(table: tw.Quantized) -> None:
    """Arrays are quantized and dequantized by it."""
    w = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    b = tw.quantize(w, table)
    right = np.repeat(b.scales, 32, axis=0) / np.float32(128) * np.array(OWN)[b.q]
    assert np.allclose(b.dequantize(), right, rtol=1e-6)
    assert np.abs(b.dequantize() - w).max() < np.abs(w).max() * 39 / 2 / 127


def test_shipped_tables_are_those_of_their_projects() -> None:
    """The smallest and the largest number, and how many there are; nf4 is rounded to f32."""
    nf4, iq4_nl = STORED["nf4"].values, STORED["iq4_nl"].values
    assert (nf4[0], nf4[7], nf4[15], len(nf4)) == (-1, 0, 1, 16)
    assert (iq4_nl[0], iq4_nl[8], iq4_nl[15], len(iq4_nl)) == (-127, 1, 113, 16)
    assert all(float(np.float32(value)) == value for value in nf4)
    for type_ in ("nf4", "iq4_nl"):
        spec = tw.Gemm(2, 33, 64, b=tw.Packed(tw.Quantized(type_, scale="f16", block=32)))
        tw.compile(spec, target="avx2").verify(cases=2)
