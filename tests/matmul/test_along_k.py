"""Few rows or columns of what is converted, where A and B lie along K, as in ``x @ w.T``."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.machine.host import identify
from tilewright.runtime.matmul import along_k
from tilewright.runtime.matmul.along_k import few_along_k
from tilewright.spec.schedule import FEW_ALONG_K, FEW_BESIDE_UNIT

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
        for threads in (1, 2):
            out = np.full((m, n), 7, made, order=order)
            for _ in range(2):  # the second finds what the first has remembered
                assert (tw.matmul(a, b, out, threads=threads) == exact).all(), (m, n, k)
        assert (tw.matmul(a, b, out, alpha=2, beta=1) == 3 * exact).all(), (m, n, k)


def test_what_the_planner_says_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    target = identify("avx2").name
    assert few_along_k("bf16", "bf16", identify("amx").name) == FEW_BESIDE_UNIT
    assert few_along_k("bf16", "bf16", identify("avx512").name) == FEW_ALONG_K
    assert few_along_k("bf16", "bf16", target) == 16
    assert few_along_k("u16", "u16", target) == 0
    along_k._answer.cache_clear()  # as in another process, which need not ask again

    def asked(*given: str) -> bool:
        raise AssertionError(given)

    monkeypatch.setattr(along_k, "_planned", asked)
    assert few_along_k("bf16", "bf16", target) == 16
    assert few_along_k("u16", "u16", target) == 0
