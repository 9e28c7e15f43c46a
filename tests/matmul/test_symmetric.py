"""A matrix times its own transpose: half of the result is computed, and copied to the rest."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.call import dispatch
from tilewright.runtime.call.abi import HALVED, PART
from tilewright.runtime.matmul import asked, product
from tilewright.runtime.matmul.families import Options
from tilewright.runtime.matmul.product import _One
from tilewright.runtime.matmul.symmetric import half_of, is_symmetric, mirror

Array = np.ndarray[Any, Any]
N, K = HALVED + 21, 131


def matrix(rows: int, k: int, dtype: Any = "f4") -> Array:
    return np.random.default_rng(rows).standard_normal((rows, k)).astype(dtype)


def views(g: Array) -> list[Array]:
    """The matrix by rows, by columns, and with gaps."""
    wide = np.zeros((len(g), g.shape[1] + 5), g.dtype)
    wide[:, 2:-3] = g
    return [g, np.asfortranarray(g), wide[:, 2:-3]]


def parts_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Rows and columns of each part that Python computes from now on; C knows no kernel yet."""
    fresh = lru_cache(maxsize=None)(asked.routes_of.__wrapped__)
    for module in (asked, product):
        monkeypatch.setattr(module, "routes_of", fresh)
    monkeypatch.setattr(asked, "_asked", {})
    found: list[tuple[int, int]] = []
    original = _One._compute_as_it_lies

    def counted(self: _One, a: Array, b: Array, out: Array) -> None:
        found.append(out.shape)
        original(self, a, b, out)

    monkeypatch.setattr(_One, "_compute_as_it_lies", counted)
    return found


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_result_is_right_and_symmetric(
    order: Any, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Python at the first call, by C from then on, with the same bits."""
    for g in views(matrix(N, K)):
        exact = g.astype("f8") @ g.T.astype("f8")
        bound = (K + 4) * np.finfo("f4").eps * (abs(g).astype("f8") @ abs(g.T).astype("f8"))
        first = np.full((N, N), np.nan, "f4", order=order)
        tw.matmul(g, g.T, first, threads=threads)
        out = np.full((N, N + 3), np.nan, "f4", order=order)
        with monkeypatch.context() as patched:
            if dispatch.mode() != "python":
                patched.setattr(product, "_product", None)
            tw.matmul(g, g.T, out[:, :N], threads=threads)
        np.testing.assert_array_equal(out[:, :N], first)
        assert np.isnan(out[:, N:]).all(), "nothing else is written"
        assert (abs(first - exact) <= bound).all()
        if threads == 1:
            np.testing.assert_array_equal(first, first.T)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_large_product_is_shared_by_threads(threads: int) -> None:
    """Each part is large enough for all threads, so large products are halved with two as well."""
    n, k = 400, 600
    assert half_of(threads, n, k) == 208
    g = matrix(n, k)
    exact = g.T.astype("f8").T @ g.T.astype("f8")
    bound = (k + 4) * np.finfo("f4").eps * (abs(g).astype("f8") @ abs(g.T).astype("f8"))
    results = [tw.matmul(g, g.T, threads=threads) for _ in range(3)]
    for found in results:
        np.testing.assert_array_equal(found, results[0])
        np.testing.assert_array_equal(found, found.T)
    assert (abs(results[0] - exact) <= bound).all()


@pytest.mark.parametrize(
    ("dtype", "out"), [("f8", "f8"), ("i1", "i4"), ("u1", "i8"), ("f4", "f2"), ("i1", "i1")]
)
def test_types(dtype: str, out: str) -> None:
    """Elements of each size are mirrored; sums that are exact or saturate are those of numpy."""
    g = np.random.default_rng(1).integers(0, 5, (N, K)).astype(dtype)
    exact = g.astype("f8") @ g.T.astype("f8")
    if out == "i1":
        exact = exact.clip(-128, 127)
    for x, y, expected in ((g, g.T, exact), (g.T.copy().T, None, exact)):
        y = x.T if y is None else y
        for _ in range(2):
            into = np.zeros((N, N), out)
            tw.matmul(x, y, into)
            np.testing.assert_array_equal(into, expected.astype(out))


def test_alpha_is_applied_and_other_calls_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    g = np.random.default_rng(1).integers(-4, 5, (N, K)).astype("f4")
    exact = g.astype("f8") @ g.T.astype("f8")
    parts = parts_of(monkeypatch)
    for _ in range(2):
        np.testing.assert_array_equal(tw.matmul(g, g.T, alpha=0.5, threads=1), 0.5 * exact)
    assert all(rows < N for rows, _ in parts)
    c = np.arange(N * N, dtype="f4").reshape(N, N) % 7
    for options in ({"beta": 2}, {"epilogue": tw.acc + tw.dst}, {"deterministic": True}):
        for _ in range(2):
            out = c.copy()
            tw.matmul(g, g.T, out, threads=1, **options)
            added = 2 * c if "beta" in options else c if "epilogue" in options else 0
            np.testing.assert_array_equal(out, exact + added)
    assert [part for part in parts if part == (N, N)]


def test_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """About half of the result is computed: nothing above the squares on the diagonal."""
    g, n = matrix(512, K), 512
    parts = parts_of(monkeypatch)
    tw.matmul(g, g.T, threads=1)
    computed = sum(rows * columns for rows, columns in parts)
    assert n * n / 2 < computed <= 0.6 * n * n
    parts.clear()
    tw.matmul(g, g.T.copy(), threads=1)
    tw.matmul(g, g[::-1].T, threads=1)
    assert (n // 2, n // 2) not in parts


def test_what_is_halved() -> None:
    g = matrix(N, K)
    square = matrix(N, N)
    assert is_symmetric(g, g.T)
    assert is_symmetric(g.T, g)
    for other in (g.T.copy(), g[:, ::-1].T, g[:-1].T, square):
        assert not is_symmetric(g, other)
    assert not is_symmetric(square, square), "a matrix times itself"
    assert half_of(1, HALVED - 1, 1000) == half_of(1, 1000, 1) == 0
    assert half_of(1, 1000, 1000) == 512
    assert half_of(16, 1000, 1000) == 512
    assert half_of(16, 1000, 400) == 0, f"each part has {PART} multiply-adds for each thread"


def test_mirror() -> None:
    x = np.random.default_rng(1).integers(0, 100, (2 * HALVED + 5,) * 2)
    expected = np.tril(x) + np.tril(x, -1).T
    mirror(x)
    np.testing.assert_array_equal(x, expected)


def test_options_with_halves() -> None:
    assert asked.routes_of(Options()).symmetric
    assert asked.routes_of(Options(scaled=True)).symmetric
    for options in (
        Options(scaled=True, reads=True), Options(deterministic=True), Options(epilogue=tw.acc)
    ):  # fmt: skip
        assert not asked.routes_of(options).symmetric
