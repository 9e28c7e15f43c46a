"""Few rows or columns of what is converted, where A and B lie along K, as in ``x @ w.T``."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw

BF16 = ml_dtypes.bfloat16
TYPES: tuple[tuple[Any, Any], ...] = (
    (BF16, BF16), (np.float16, np.float16), (np.uint8, np.int8), (np.int8, np.int8),
    (np.float32, BF16),
)  # fmt: skip
SIZES = (
    (1, 300, 200), (2, 300, 77), (7, 40, 64), (16, 33, 100), (17, 50, 64), (3, 31, 64), (1, 7, 7),
    (300, 1, 200), (300, 2, 77), (40, 16, 100), (50, 17, 64), (1, 1, 300), (5, 5, 500),
)  # fmt: skip


@pytest.mark.parametrize("types", TYPES, ids=lambda pair: "x".join(np.dtype(t).name for t in pair))
def test_results_are_exact(types: tuple[Any, Any]) -> None:
    """Small integers: every sum of theirs is exact, in any order."""
    rng = np.random.default_rng(3)
    orders: tuple[Any, ...] = ("C", "F")
    for index, (m, n, k) in enumerate(SIZES):
        order = orders[(index + TYPES.index(types)) % 2]
        a = rng.integers(0, 9, (m, k)).astype(types[0])
        b = rng.integers(-9, 9, (n, k)).astype(types[1]).T
        exact = a.astype(np.int64) @ b.astype(np.int64)
        made = tw.matmul(a, b, threads=1).dtype
        threads, out = 1 + index % 2, np.full((m, n), 7, made, order=order)
        for _ in range(2):  # the second finds what the first has remembered
            assert (tw.matmul(a, b, out, threads=threads) == exact).all(), (m, n, k)
        if index % 3 == 0:
            assert (tw.matmul(a, b, out, alpha=2, beta=1) == 3 * exact).all(), (m, n, k)
