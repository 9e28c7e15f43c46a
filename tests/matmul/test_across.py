"""Small matrices that lie across the lines of a large one: what comes out, and when C is copied."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.matmul.across import WORTH, as_it_lies, copied
from tilewright.runtime.matmul.families import UNBOUNDED, Class

RNG = np.random.default_rng(5)
SIZES = [(3, 900, 2500), (2500, 3, 900), (31, 600, 400), (600, 31, 400), (5, 90, 70), (90, 5, 70)]


def empty(rows: int, columns: int, order: str) -> np.ndarray[Any, Any]:
    array = np.empty((rows, columns), np.float32)
    return array if order == "C" else array.T.copy().T


def matrix(rows: int, columns: int, order: str) -> np.ndarray[Any, Any]:
    array = empty(rows, columns, order)
    array[...] = RNG.standard_normal((rows, columns))
    return array


@pytest.mark.parametrize("orders", list(product("CF", repeat=3)), ids="".join)
def test_results_are_those_of_numpy(orders: tuple[str, str, str]) -> None:
    """Of three sizes one, added to C or not."""
    lines = tuple(order == "F" for order in orders)
    for index, (m, n, k) in enumerate(SIZES[(lines[0] + 2 * lines[1] + lines[2]) % 3 :: 3]):
        beta = 2 * ((index + sum(lines)) % 2)
        a, b, out = (
            matrix(*shape, order)
            for shape, order in zip(((m, k), (k, n), (m, n)), orders, strict=True)
        )
        exact = a.astype(np.float64) @ b + beta * out.astype(np.float64)
        bound = 2e-6 * (abs(a.astype(np.float64)) @ abs(b)) + 1e-5
        for _ in range(2):  # the second finds what the first has remembered
            got = out.copy("K")
            assert tw.matmul(a, b, got, beta=beta, threads=1) is got
            assert (abs(got - exact) <= bound).all(), (m, n, k)


def test_what_is_copied_is_small() -> None:
    counts = dict.fromkeys((True, False), 0)
    for orders, (m, n, k) in product(product("CF", repeat=3), SIZES):
        a, b, out = matrix(m, k, orders[0]), matrix(k, n, orders[1]), matrix(m, n, orders[2])
        found = copied(a, b, out, reads=True)
        counts[found is None] += 1
        if found is not None:
            assert found.size < m * n * k / 300
            assert found.flags.c_contiguous != out.flags.c_contiguous
            assert (found == out).all()
    assert min(counts.values()) > 0


@pytest.mark.parametrize("orders", list(product("CF", repeat=3)), ids="".join)
def test_products_that_the_table_is_told_of_are_not_copied(orders: tuple[str, str, str]) -> None:
    """Of all sizes within the bounds that ``as_it_lies`` leaves none would have been copied."""
    every = Class("matrix", False, (0, 0, 0, 0), (UNBOUNDED,) * 4)
    sides = 2, 7, 31, 32, 600
    depths = 2, 63, 64, WORTH // 600, WORTH // 4
    sizes = [(m, n, k) for m, n, k in product(sides, sides, depths) if m * n * k < 1 << 25]

    def arrays(m: int, n: int, k: int) -> list[np.ndarray[Any, Any]]:
        shapes = (m, k), (k, n), (m, n)
        return [empty(*shape, order) for shape, order in zip(shapes, orders, strict=True)]

    def within(bounds: Class, m: int, n: int, k: int) -> bool:
        given = zip(bounds.least, (m, n, k, m * n * k), bounds.most, strict=True)
        return all(least <= size <= most for least, size, most in given)

    kept = [size for size in sizes if copied(*arrays(*size), reads=False) is None]
    for size in kept:
        bounds = as_it_lies(every, *arrays(*size))
        assert bounds is not None
        assert within(bounds, *size)
        assert all(other in kept for other in sizes if within(bounds, *other)), size
    for size in set(sizes) - set(kept):
        assert as_it_lies(every, *arrays(*size)) is None


def test_stacks_of_what_is_turned_are_right() -> None:
    a, b = (np.swapaxes(RNG.standard_normal(shape), 1, 2) for shape in ((3, 500, 9), (3, 400, 500)))
    a, b = a.astype(np.float32), b.astype(np.float32)
    exact = a.astype(np.float64) @ b
    for threads in (1, None):
        assert abs(tw.matmul(a, b, threads=threads) - exact).max() < 1e-3
