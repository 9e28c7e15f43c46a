"""Stacks of products: broadcast on both sides, in any layout, computed by calls in C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.runtime.call import dispatch
from tilewright.runtime.matmul import product
from tilewright.runtime.matmul.stacks import broadcast

Array = np.ndarray[Any, Any]
BIAS, ROW = tw.Operand("bias", per="column"), tw.Operand("r", per="row")


def whole(*shape: int, dtype: Any = "f4") -> Array:
    """Small whole numbers, whose products every type holds exactly."""
    return np.random.default_rng(len(shape)).integers(-4, 5, shape).astype(dtype)


@pytest.fixture
def in_c(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A product that Python computes once, and that C must know after that."""

    def run(a: Any, b: Any, out: Any = None, **named: Any) -> Any:
        tw.matmul(a, b, None if out is None else np.zeros_like(out), **named)
        with monkeypatch.context() as patched:
            if dispatch.mode() != "python":
                patched.setattr(product, "_product", None)
            return tw.matmul(a, b, out, **named)

    return run


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((4, 1, 10, 10), (3, 10, 10)), ((20, 1, 3, 3), (20, 5, 3, 1)),
        ((1, 8, 4, 1, 24), (1, 8, 1, 24, 12)), ((2, 1, 3, 1, 4, 5), (1, 3, 1, 2, 5, 6)),
        ((3, 1, 1, 6), (1, 4, 6, 1)), ((2, 3, 1, 5), (2, 1, 5, 4)), ((6,), (3, 1, 6, 2)),
        ((3, 1, 2, 6), (6,)), ((5, 1, 4, 4), (1, 6, 4, 4)), ((1, 1, 3, 4), (2, 3, 4, 5)),
        ((3, 1, 1, 6), (1, 4, 6, 2)), ((5, 3, 4), (1, 4, 2)), ((1, 3, 4), (5, 4, 2)),
        ((3, 4), (5, 4, 1)), ((2, 0, 3, 4), (2, 1, 4, 2)), ((5,), (5,)), ((1,), (1,)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("new", [True, False])
def test_stacks_are_broadcast(
    a: tuple[int, ...], b: tuple[int, ...], new: bool, in_c: Callable[..., Any]
) -> None:
    x, y = whole(*a), whole(*b)
    exact = x.astype("f8") @ y.astype("f8")
    out = None if new else np.full(exact.shape, np.nan, "f4")
    found = tw.matmul(x, y, out) if not exact.size else in_c(x, y, out)
    assert found.shape == exact.shape
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, exact)


def views(x: Array) -> list[Array]:
    """Arrays that equal ``x`` and lie otherwise in memory."""
    turned = np.ascontiguousarray(np.swapaxes(x, -1, -2)).swapaxes(-1, -2)
    apart = np.full((*x.shape[:-1], 2 * x.shape[-1] + 3), np.nan, x.dtype)[..., : x.shape[-1]]
    apart[...] = x
    back = np.ascontiguousarray(x[::-1])[::-1]
    across = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -2)), -2, 0)
    return [x, turned, apart, back, across]


@pytest.mark.parametrize(
    ("a", "b"),
    [((4, 1, 3, 5), (1, 6, 5, 2)), ((4, 3, 1, 5), (4, 1, 5, 6)), ((3, 1, 4, 5), (3, 6, 5, 1))],
)  # fmt: skip
def test_layouts(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """All layouts of both operands, into outputs between whose matrices others lie."""
    exact = whole(*a, dtype="f8") @ whole(*b, dtype="f8")
    for x in views(whole(*a)):
        for y in views(whole(*b)):
            np.testing.assert_array_equal(tw.matmul(x, y), exact)
            for into in views(np.full(exact.shape, np.nan, "f4")):
                tw.matmul(x, y, into)
                np.testing.assert_array_equal(into, exact)
    large = np.full((*exact.shape[:-2], exact.shape[-2] + 1, exact.shape[-1] + 2), np.nan, "f4")
    inner = large[..., 1:, 1:-1]
    tw.matmul(whole(*a), whole(*b), inner)
    np.testing.assert_array_equal(inner, exact)
    inner[...] = np.nan
    assert np.isnan(large).all(), "nothing else is written"


def test_windows_overlap() -> None:
    """Operands whose matrices, or rows, share memory."""
    signal = whole(40)
    windows = np.lib.stride_tricks.sliding_window_view(signal, 8)[:, None, :]
    b = whole(8, 3)
    exact = windows.astype("f8") @ b.astype("f8")
    for _ in range(2):
        np.testing.assert_array_equal(tw.matmul(windows, b), exact)
    pairs = np.lib.stride_tricks.sliding_window_view(signal, (8,))[:, :, None]
    exact = b.T.astype("f8") @ pairs.astype("f8")
    for _ in range(2):
        np.testing.assert_array_equal(tw.matmul(b.T, pairs), exact)
    same = np.broadcast_to(whole(4, 5), (6, 4, 5))
    for _ in range(2):
        found = tw.matmul(same, b[:5])
        np.testing.assert_array_equal(found, same.astype("f8") @ b[:5].astype("f8"))


def test_an_output_that_overlaps_itself_is_refused() -> None:
    a, b = whole(4, 1, 3, 5), whole(2, 5, 3)
    memory = np.zeros(200, "f4")
    for strides in ((36, 36), (0, 36), (72, 32), (20, 120)):
        out = np.lib.stride_tricks.as_strided(memory, (4, 2, 3, 3), (*strides, 12, 4))
        for _ in range(2):
            with pytest.raises(ArgumentError, match="share memory"):
                tw.matmul(a, b, out)
    out = np.lib.stride_tricks.as_strided(memory, (4, 2, 3, 3), (72, 36, 12, 4))
    np.testing.assert_array_equal(tw.matmul(a, b, out), a @ b)
    for given in (np.broadcast_to(out[:1, :1, :, :], (4, 1, 3, 3)), out[1:, :1]):
        with pytest.raises(ArgumentError, match="shares memory"):
            tw.matmul(given, b[:, :3], out[: len(given)])


@pytest.mark.parametrize("beta", [0, 2])
def test_operands_by_row_and_by_column(beta: int, in_c: Callable[..., Any]) -> None:
    """Rows, or columns, with elements of their own are not those of one product."""
    for shapes in (((4, 3, 1, 5), (1, 1, 5, 6)), ((4, 1, 3, 5), (4, 6, 5, 1)), ((4, 2, 5), (5, 6))):
        a, b = (whole(*shape) for shape in shapes)
        exact = a.astype("f8") @ b.astype("f8")
        bias, row = whole(exact.shape[-1]), whole(exact.shape[-2])
        for epilogue, named, added in (
            (tw.acc + BIAS, {"bias": bias}, bias),
            (tw.acc + ROW, {"r": row}, row[:, None]),
            (tw.acc + 3, {}, 3),
        ):
            out = whole(*exact.shape)
            expected = exact + beta * out + added
            in_c(a, b, out, beta=beta, epilogue=epilogue, **named)
            np.testing.assert_array_equal(out, expected)


def test_deterministic_bits_do_not_depend_on_the_stack() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((6, 70)).astype("f4"), rng.standard_normal((50, 70, 1)).astype("f4")
    together = tw.matmul(a, b, deterministic=True)
    for i in (0, 7, 49):
        alone = tw.matmul(a, b[i], deterministic=True)
        np.testing.assert_array_equal(together[i], alone)


def test_what_is_one_product() -> None:
    """Rows that share a b and columns that share an a are merged; the longest axis is the stack."""
    for a, b, expected in (
        ((8, 4, 1, 9), (8, 1, 9, 3), [((8, 4, 9), (8, 9, 3), (8, 4, 3))]),
        ((8, 1, 3, 3), (8, 5, 3, 1), [((8, 3, 3), (8, 3, 5), (8, 3, 5))]),
        ((7, 2, 3), (3, 4), [((14, 3), (3, 4), (14, 4))]),
        ((4, 1, 2, 2), (3, 2, 2), [((4, 2, 2), (4, 2, 2), (4, 2, 2))] * 3),
        ((1, 1, 2, 3), (3, 4), [((2, 3), (3, 4), (2, 4))]),
        ((3, 1, 1, 6), (4, 6, 1), [((3, 6), (6, 4), (3, 4))]),
    ):
        x, y = whole(*a), whole(*b)
        parts = broadcast(x, y, x @ y, rows=True, columns=True)
        assert [tuple(part.shape for part in one) for one in parts] == expected
        for one, two, out in parts:
            np.testing.assert_array_equal(one @ two, out)


def test_many_axes_that_cannot_be_merged() -> None:
    """More axes than C's table holds are left to Python."""
    shape = (2, 1) * 5
    a, b = whole(*shape, 2, 3), whole(*shape[::-1], 3, 2)
    exact = a.astype("f8") @ b.astype("f8")
    for _ in range(2):
        np.testing.assert_array_equal(tw.matmul(a, b), exact)


def test_vectors_of_tensors(in_c: Callable[..., Any]) -> None:
    """A result without axes is a tensor that C writes too."""
    torch = pytest.importorskip("torch")
    x = torch.arange(6.0)
    found = in_c(x, x)
    assert isinstance(found, torch.Tensor)
    assert found.shape == ()
    assert found.item() == 55
