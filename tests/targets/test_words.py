"""Products of 16-bit integers at the ends of their ranges: sums wrap, and D saturates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cases import Cases

import tilewright as tw

Array = np.ndarray[Any, Any]
TARGETS = (
    "scalar", "avx2", "avx512+vnni", "neon", "sve256+sve2", "power10", "rvv256",
)  # fmt: skip
DTYPES: Any = {"s8": np.int8, "s16": np.int16, "u16": np.uint16}
#: Types of A and B, whether B is packed, and D's type.
PRODUCTS: Any = (
    ("s16", "s16", False, "s32"), ("u16", "u16", True, "s32"), ("u16", "s16", False, "u16"),
    ("s8", "u16", True, "s16"),
)  # fmt: skip
M, N, K = 6, 21, 67


def ends(type_: str, shape: tuple[int, int], rng: np.random.Generator) -> Array:
    """The least element, the greatest, and 1; of every other line half are the first of these."""
    info = np.iinfo(DTYPES[type_])
    drawn = rng.choice([info.min, info.max, 1], shape)
    drawn[::2, : shape[1] // 2] = info.min or info.max
    found: Array = drawn.astype(DTYPES[type_])
    return found


def wrapped(sums: Array) -> Array:
    """Integers modulo 2**32, as s32 has them."""
    found: Array = (sums + 2**31) % 2**32 - 2**31
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_sums_wrap_and_results_saturate(target: str, cases: Cases) -> None:
    requests = [
        (tw.Gemm(M, N, K, a=a, b=tw.Packed(b) if packed else b, d=d), None, target)
        for a, b, packed, d in PRODUCTS
    ]
    rng = np.random.default_rng(5)
    for kernel, (a, b, packed, d) in zip(tw.compile_many(requests), PRODUCTS, strict=True):
        x, y = ends(a, (M, K), rng), np.ascontiguousarray(ends(b, (N, K), rng).T)
        sums = wrapped(x.astype(np.int64) @ y.astype(np.int64))
        if d != "s32":
            info = np.iinfo(DTYPES[d])
            assert (sums < info.min).any() and (sums > info.max).any()
            sums = np.clip(sums, info.min, info.max)
        np.testing.assert_array_equal(kernel(x, kernel.pack_b(y) if packed else y), sums)
        cases.count(target, "compiled")
