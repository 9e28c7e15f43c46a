"""Products that C decides about from their second call on: vectors, stacks, factors, epilogues."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.runtime.call import dispatch
from tilewright.runtime.matmul import product
from tilewright.spec.expression import Expression

Array = np.ndarray[Any, Any]
BIAS = tw.Operand("bias", per="column")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def whole(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = "f4") -> Array:
    """Small whole numbers, whose products every type holds exactly."""
    return rng.integers(-4, 5, shape).astype(dtype)


def in_python(*_: Any, **__: Any) -> None:
    raise AssertionError("Python decided about a product that C knows")


def in_c(a: Any, b: Any, out: Any, monkeypatch: pytest.MonkeyPatch, **named: Any) -> Any:
    """The product, computed by a kernel that C found, into ``out`` as it is."""
    before = None if out is None else out.copy()
    tw.matmul(a, b, out, **named)  # by which C learns of the kernel
    if out is not None:
        out[...] = before
    with monkeypatch.context() as patched:
        if dispatch.mode() != "python":
            patched.setattr(product, "_product", in_python)
        return tw.matmul(a, b, out, **named)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((9, 5), (5,)), ((5,), (5, 9)), ((4, 9, 5), (5,)), ((5,), (4, 5, 9)), ((4, 9, 5), (5, 7)),
        ((9, 5), (4, 5, 7)), ((2, 3, 9, 5), (2, 3, 5, 7)), ((2, 3, 9, 5), (5, 7)),
        ((2, 3, 2, 9, 5), (5, 7)), ((1, 3, 9, 5), (1, 3, 5, 7)), ((4, 1, 5), (5, 7)),
    ],
)  # fmt: skip
def test_vectors_and_stacks(
    a: Any, b: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = whole(rng, a), whole(rng, b)
    expected = x.astype("f8") @ y.astype("f8")
    out = np.full(expected.shape, np.nan, "f4")
    assert in_c(x, y, out, monkeypatch) is out
    np.testing.assert_array_equal(out, expected)
    made = in_c(x, y, None, monkeypatch)
    assert made.shape == expected.shape
    np.testing.assert_array_equal(made, expected)


def test_stacks_that_do_not_lie_end_to_end(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of matrices that have others between them are no rows of one product."""
    large, b = whole(rng, (6, 9, 5)), whole(rng, (5, 7))
    for x, where in (
        (large[::2], np.s_[:3, :9]), (large[:, :4], np.s_[:, :4]), (large, np.s_[:, 3:]),
    ):  # fmt: skip
        out = np.full((6, 12, 7), np.nan, "f4")
        in_c(x, b, out[where], monkeypatch)
        np.testing.assert_array_equal(out[where], x.astype("f8") @ b.astype("f8"))
        out[where] = np.nan
        assert np.isnan(out).all(), "nothing else is written"
    turned = np.moveaxis(whole(rng, (2, 9, 3, 5)), 2, 0)
    expected = turned.astype("f8") @ b.astype("f8")
    np.testing.assert_array_equal(tw.matmul(turned, b), expected)
    np.testing.assert_array_equal(tw.matmul(turned, b), expected)


def test_stacks_of_other_shapes_are_refused(rng: np.random.Generator) -> None:
    """As many matrices are not enough: axes agree one by one."""
    a, b = whole(rng, (2, 3, 4, 4)), whole(rng, (2, 3, 4, 4))
    tw.matmul(a, b)
    for x, y, out in (
        (a, b.reshape(3, 2, 4, 4), None),
        (a, b, np.empty((3, 2, 4, 4), "f4")),
        (a.reshape(6, 4, 4), b.reshape(6, 4, 4), np.empty((2, 3, 4, 4), "f4")),
        (a[0, 0], b[0, 0], np.empty((1, 4, 4), "f4")),
        (a[0, 0], b[0, 0, 0], np.empty((4, 1), "f4")),
        (a[0, 0, 0], b[0, 0], np.empty((1, 4), "f4")),
    ):
        with pytest.raises(ArgumentError):
            tw.matmul(x, y, out)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("alpha", "beta"), [(2, 0), (1, 1), (-0.5, 2.0), (0, 0.5)])
def test_factors(
    alpha: float, beta: float, dtype: str, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    a, b, c = (whole(rng, shape, dtype) for shape in ((9, 5), (5, 7), (9, 7)))
    expected = alpha * (a.astype("f8") @ b.astype("f8")) + beta * c.astype("f8")
    in_c(a, b, c, monkeypatch, alpha=alpha, beta=beta)
    np.testing.assert_array_equal(c, expected)


def test_a_beta_of_0_reads_no_output(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = whole(rng, (9, 5)), whole(rng, (5, 7))
    out = np.full((9, 7), np.nan, "f4")
    in_c(a, b, out, monkeypatch, alpha=2)
    np.testing.assert_array_equal(out, 2 * (a.astype("f8") @ b.astype("f8")))
    np.testing.assert_array_equal(in_c(a, b, None, monkeypatch, alpha=2), out)


@pytest.mark.parametrize("beta", [0, 2])
@pytest.mark.parametrize("written", ["f4", "f8"])
@pytest.mark.parametrize("shape", [(9, 5), (3, 9, 5)])
def test_vectors_of_an_epilogue(
    shape: tuple[int, ...], written: str, beta: float, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Rows that have numbers of their own are not those of one product."""
    bias = tw.Operand("bias", np.dtype(written), per="column")
    row = tw.Operand("r", np.dtype(written), per="row")
    a, b = whole(rng, shape, written), whole(rng, (5, 7), written)
    named = {"bias": whole(rng, (7,), written), "r": whole(rng, (9,), written)}
    out = whole(rng, (*shape[:-1], 7), written)
    sums = a.astype("f8") @ b.astype("f8") + beta * out.astype("f8")
    for epilogue, given, expected in (
        (tw.acc + bias, ("bias",), sums + named["bias"]),
        (tw.acc + bias * row, ("bias", "r"), sums + named["bias"] * named["r"][:, None]),
        (tw.relu(tw.acc), (), np.maximum(sums, 0)),
    ):
        result = out.copy()
        vectors = {name: named[name] for name in given}
        in_c(a, b, result, monkeypatch, epilogue=epilogue, beta=beta, **vectors)
        np.testing.assert_array_equal(result, expected)


def test_what_is_read_and_written_in_another_type(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An output that cannot hold the sums is two arrays to a kernel: C, and D."""
    a, b, out = whole(rng, (9, 5)), whole(rng, (5, 7)), whole(rng, (9, 7), "f2")
    expected = 0.5 * (a.astype("f8") @ b.astype("f8")) + out.astype("f8") + 1
    in_c(a, b, out, monkeypatch, alpha=0.5, beta=1, epilogue=tw.acc + 1)
    np.testing.assert_array_equal(out, expected)


def test_what_does_not_fit_an_epilogue_is_refused(rng: np.random.Generator) -> None:
    a, b, bias = whole(rng, (7, 5)), whole(rng, (5, 7)), whole(rng, (7,))
    out = tw.matmul(a, b, epilogue=tw.acc + BIAS, bias=bias)
    before = out.copy()
    refused: list[dict[str, Any]] = [
        {}, {"bias": bias[:6]}, {"bias": out[0]}, {"bias": bias, "more": bias},
        {"other": bias}, {"bias": bias.astype("f8")}, {"bias": np.repeat(bias, 2)[::2]},
    ]  # fmt: skip
    for named in refused:
        with pytest.raises((ArgumentError, TypeError)):
            tw.matmul(a, b, out, epilogue=tw.acc + BIAS, **named)
        np.testing.assert_array_equal(out, before)


def test_numbers_that_are_no_doubles_are_decided_in_python(rng: np.random.Generator) -> None:
    a, b, out = whole(rng, (7, 5)), whole(rng, (5, 7)), np.zeros((7, 7), "f4")
    expected = 2 * (a.astype("f8") @ b.astype("f8"))
    alphas: list[Any] = [2, np.float32(2), np.array(2.0)]
    for alpha in alphas:
        np.testing.assert_array_equal(tw.matmul(a, b, out, alpha=alpha), expected)
    for wrong in ("2", None, 1j, 10**400):
        with pytest.raises(ArgumentError):
            tw.matmul(a, b, out, alpha=wrong)  # type: ignore[arg-type]
    numbers = whole(rng, (7, 5), "i1"), whole(rng, (5, 7), "i1")
    for _ in range(2):
        found = tw.matmul(*numbers, alpha=3)
        np.testing.assert_array_equal(
            found, 3 * (numbers[0].astype("i8") @ numbers[1].astype("i8"))
        )
        with pytest.raises(ArgumentError, match="whole"):
            tw.matmul(*numbers, alpha=0.5)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_packed_b(order: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.array(whole(rng, (9, 5)), order=order), whole(rng, (5, 7))
    packed, bias, out = tw.pack(b), whole(rng, (7,)), whole(rng, (9, 7))
    product_ = a.astype("f8") @ b.astype("f8")
    expected = 2 * product_ + 3 * out.astype("f8") + bias
    np.testing.assert_array_equal(in_c(a, packed, None, monkeypatch), product_)
    scaled = {"alpha": 2, "beta": 3, "epilogue": tw.acc + BIAS, "bias": bias}
    in_c(a, packed, out, monkeypatch, **scaled)
    np.testing.assert_array_equal(out, expected)
    for wrong in (a[:, :4], a.astype("f8"), out):
        with pytest.raises(ArgumentError):
            tw.matmul(wrong, packed, out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    ("a", "b"),
    [((9, 5), (5, 7)), ((5,), (5,)), ((9, 5), (5,)), ((5,), (5, 7)), ((3, 1, 9, 5), (4, 5, 7))],
)
@pytest.mark.parametrize(("dtype", "made"), [("f4", "f4"), ("f8", "f8"), ("i1", "i4")])
def test_c_makes_new_results(
    a: Any, b: Any, dtype: str, made: str, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    x, y = whole(rng, a, dtype), whole(rng, b, dtype)
    exact = x.astype("f8") @ y.astype("f8")
    tw.matmul(x, y)
    if dispatch.mode() != "python":
        monkeypatch.setattr(product, "_new", in_python)
        monkeypatch.setattr(product, "_product", in_python)
    results = [tw.matmul(x, y) for _ in range(3)]
    for found in results:
        assert type(found) is np.ndarray
        assert found.dtype == made
        assert found.shape == exact.shape
        assert found.flags.owndata
        assert found.flags.c_contiguous
        assert found.flags.writeable
        np.testing.assert_array_equal(found, exact)
    results[0][...] = 0
    np.testing.assert_array_equal(results[1], exact)


def test_new_results_take_and_give_back_their_type(rng: np.random.Generator) -> None:
    """Numpy owns a reference to the dtype of each new array, also where no kernel was found."""
    a, b = whole(rng, (9, 5)), whole(rng, (5, 7))
    tw.matmul(a, b)
    dtype, none = np.dtype("f4"), tw.matmul(a, b)
    before = sys.getrefcount(dtype), sys.getrefcount(None)
    kept = [tw.matmul(a, b) for _ in range(1000)]
    assert sys.getrefcount(dtype) - before[0] >= 1000
    last = kept.pop()
    assert sys.getrefcount(last) == sys.getrefcount(none)
    del kept, last
    for wrong in ((a, b[1:]), (a, a), (b[:, :0], b)):
        for _ in range(100):
            with pytest.raises(ArgumentError):
                tw.matmul(*wrong)
    assert abs(sys.getrefcount(dtype) - before[0]) < 50
    assert abs(sys.getrefcount(None) - before[1]) < 50


def test_large_and_empty_results_and_subclasses_are_made_in_python(
    rng: np.random.Generator,
) -> None:
    a, b = whole(rng, (600, 3)), whole(rng, (3, 600))
    for _ in range(3):
        large = tw.matmul(a, b)
        assert large.ctypes.data % 64 == 0
        np.testing.assert_array_equal(large, a.astype("f8") @ b.astype("f8"))
        assert tw.matmul(a[:0], b).shape == (0, 600)

    class Mine(np.ndarray[Any, Any]):
        """A subclass, whose results are plain arrays."""

    for _ in range(2):
        assert type(tw.matmul(a[:5].view(Mine), b)) is type(tw.matmul(a[:5], b)) is np.ndarray


def test_types_of_results_are_kept_apart(rng: np.random.Generator) -> None:
    """Each pair of types has its own result, whatever was computed before with ``out``."""
    b = whole(rng, (5, 7))
    half, wide = np.empty((9, 7), "f2"), np.empty((9, 7), "f8")
    for dtype, made in (("f4", "f4"), ("f2", "f4"), ("f8", "f8"), ("f4", "f4")):
        a = whole(rng, (9, 5), dtype)
        exact = a.astype("f8") @ b.astype("f8")
        for out in (half, wide):
            np.testing.assert_array_equal(tw.matmul(a, b, out), exact)
        for _ in range(2):
            found = tw.matmul(a, b)
            assert found.dtype == made
            np.testing.assert_array_equal(found, exact)


def test_operands_that_are_missing_are_not_read(rng: np.random.Generator) -> None:
    """C that makes a result reads no operand of the epilogue, whether or not a kernel is known."""
    a, b = whole(rng, (8, 8)), whole(rng, (8, 8))
    epilogue: Expression = tw.acc
    for i in range(11):
        epilogue = epilogue + tw.Operand(f"one_{i}", per="column")
    given: dict[str, Any] = {f"one_{i}": np.ones(8, "f4") for i in range(11)}
    for known in (False, True):
        for _ in range(3):
            with pytest.raises(ArgumentError, match="one_0"):
                tw.matmul(a, b, epilogue=epilogue)
        if not known:
            np.testing.assert_array_equal(tw.matmul(a, b, epilogue=epilogue, **given), a @ b + 11)
