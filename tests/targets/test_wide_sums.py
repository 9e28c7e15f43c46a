"""Sums of 64 bits at the ends of the elements' ranges, where sums of 32 bits have long wrapped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cases import Cases

import tilewright as tw

Array = np.ndarray[Any, Any]
TARGETS = (
    "scalar", "avx2", "avx512", "avx10.2", "neon", "sve256", "sme", "sme+i16i64", "power10",
    "rvv256",
)  # fmt: skip
DTYPES: Any = {"s8": np.int8, "u8": np.uint8, "s16": np.int16, "u16": np.uint16}
M, N, K, COUNT = 7, 21, 67, 3
#: A, B, orders of A, B and C, whether B is packed, alpha, beta, the batch, and the schedule.
PRODUCTS: Any = (
    ("s16", "s16", "CCC", False, 1, 0, None, None),
    ("u16", "s16", "FFF", False, 1, 1, None, None),
    ("u8", "u16", "CFC", False, -3, 2, tw.Strided(COUNT), tw.Schedule(loops="Mnbk", threads=2)),
    ("s16", "s8", "FCF", False, 1, 1, tw.Strided(COUNT, c=None), None),
    ("s16", "s16", "CCC", True, "scalar", "scalar", None,
     tw.Schedule(loops="knmk", block={"k": 32})),
)  # fmt: skip


def ends(type_: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Mostly the least element, so that pairs of products pass 32 bits; the greatest, and 1."""
    info = np.iinfo(DTYPES[type_])
    least = info.min or info.max
    return rng.choice([least, least, least, info.max, 1], shape).astype(DTYPES[type_])


def spec_of(product: Any) -> tw.Gemm:
    a, b, orders, packed, alpha, beta, batch, _ = product
    of_b = tw.Packed(b) if packed else tw.Matrix(b, orders[1])
    return tw.Gemm(
        M, N, K, a=tw.Matrix(a, orders[0]), b=of_b, c=tw.Matrix("s64", orders[2]), alpha=alpha,
        beta=beta, batch=batch,
    )  # fmt: skip


def laid_out(array: Array, order: str) -> Array:
    """``array`` with each matrix of that order."""
    turned = array if order == "C" else np.ascontiguousarray(array.swapaxes(-1, -2))
    return turned if order == "C" else turned.swapaxes(-1, -2)


@pytest.mark.parametrize("target", TARGETS)
def test_sums_are_exact_beyond_32_bits(target: str, cases: Cases) -> None:
    how = tw.targets()[target.partition("+")[0]]
    if not how.startswith(("native", "qemu", "header")):
        pytest.skip("nothing runs it here")
    made = tw.compile_many([(spec_of(product), product[-1], target) for product in PRODUCTS])
    rng = np.random.default_rng(64)
    for kernel, (a, b, orders, packed, alpha, beta, batch, _) in zip(made, PRODUCTS, strict=True):
        many = (COUNT,) if batch else ()
        x, y = ends(a, (*many, M, K), rng), ends(b, (*many, K, N), rng)
        total = x.astype(np.int64) @ y.astype(np.int64)
        if batch is not None and batch.c == 0:
            total = total.sum(axis=0)
        assert np.abs(total).max() > 2**32 or "8" in a + b
        old = rng.integers(-(2**60), 2**60, total.shape)
        factors = {name: 5 for name in ("alpha", "beta") if "scalar" in (alpha, beta)}
        of_a, of_b = (factors.get("alpha", alpha), factors.get("beta", beta))
        given = laid_out(x, orders[0]), kernel.pack_b(y) if packed else laid_out(y, orders[1])
        c = laid_out(old.copy(), orders[2])
        found = kernel(*given, c=c, **factors) if beta else kernel(*given)
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, of_a * total + of_b * old)
        cases.count(target, "compiled")
