"""``unpack_b`` is the inverse of ``pack_b``: of each type, of several targets, of low-bit B."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cases import Cases
from support.products.packed import draw

import tilewright as tw
from tilewright.errors import SpecError
from tilewright.runtime.arrays.elements import decode

M = tw.dim("m")
PLAIN = [
    ("host", tw.Gemm(M, 21, 67, a="u8", b=tw.Packed("s8"))),
    ("avx2", tw.Gemm(M, 21, 67, a="u8", b=tw.Packed("s8"))),
    ("avx2", tw.Gemm(M, 1, 67, a="f32", b=tw.Packed("bf16"))),
    ("avx2", tw.Gemm(M, 40, 9, a="f32", b=tw.Packed("f8_e5m2"), batch=tw.Strided(2))),
    ("host", tw.Gemm(M, 40, 9, a="bf16", b=tw.Packed("bf16", 16))),
    ("scalar", tw.Gemm(M, 5, 6, a="f64", b=tw.Packed("f64"))),
    ("neon", tw.Gemm(M, 21, 11, a="u8", b=tw.Packed("u8"))),
]
QUANTIZED = [
    tw.Quantized("s4", scale="f16", block=32),
    tw.Quantized("u4", scale="e8m0", zero="u4", block=32),
    tw.Quantized("f4_e2m1", scale="f8_e4m3", block=16),
    tw.Quantized("u4", scale="f16", zero="f16", block=(32, 2)),
    tw.Quantized("s8", scale="bf16", block=8),
]


@pytest.mark.twice
@pytest.mark.parametrize(("target", "spec"), PLAIN, ids=str)
def test_a_plain_b_comes_back(target: str, spec: tw.Gemm, cases: Cases) -> None:
    kernel = tw.compile(spec, target=target)
    shape = (2, spec.k, spec.n) if spec.batch else (spec.k, spec.n)
    b = draw(spec.b.type, shape, np.random.default_rng(0))  # type: ignore[arg-type]
    found = kernel.unpack_b(kernel.pack_b(b))
    assert found.shape == b.shape
    one, other = (decode(each, spec.b.type) for each in (found, b))
    np.testing.assert_array_equal(one, other)
    cases.count(target, "compiled")


def test_a_b_of_any_size_comes_back_in_its_own_type() -> None:
    spec = tw.Gemm(M, tw.dim("n"), tw.dim("k"), b=tw.Packed("f32"), math=("bf16", "always"))
    kernel, b = tw.compile(spec), np.random.default_rng(0).integers(-99, 99, (67, 53))
    found = kernel.unpack_b(kernel.pack_b(b.astype(np.float32)))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, b)


@pytest.mark.parametrize("form", QUANTIZED, ids=str)
def test_a_quantized_b_comes_back(form: Any) -> None:
    b = tw.quantize(np.random.default_rng(0).standard_normal((67, 20), np.float32), form)
    kernel = tw.compile(tw.Gemm(1, 20, 67, b=tw.Packed(form)))
    found = kernel.unpack_b(kernel.pack_b(b))
    assert found.format == form
    for name in ("q", "scales", "zeros"):
        one, other = getattr(found, name), getattr(b, name)
        np.testing.assert_array_equal(one, other, name)


def test_another_format_is_refused() -> None:
    kernel = tw.compile(tw.Gemm(M, 8, 8, b=tw.Packed("f32")))
    with pytest.raises(tw.ArgumentError, match="in the kernel's packed format"):
        kernel.unpack_b(np.ones((8, 8), np.float32))  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="takes no packed B"):
        tw.compile(tw.Gemm(2, 2, 2)).unpack_b(None)  # type: ignore[arg-type]
