"""Types of ``tw.matmul`` that no kernel has together, and products that add nothing."""

from __future__ import annotations

import itertools
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, ArgumentTypeError, ArgumentValueError, TilewrightError
from tilewright.runtime.arrays.elements import encode
from tilewright.runtime.matmul import product
from tilewright.runtime.matmul.arrays import factors, held_as
from tilewright.runtime.matmul.families import Class, Family, Options, spec_of
from tilewright.spec.types import INPUTS, TYPES, accumulator, is_integer

Array = np.ndarray[Any, Any]
EVERY = Class("matrix", False, (0, 0, 0, 0), (9, 9, 9, 999))


def test_every_three_types_have_a_product_or_are_refused() -> None:
    """Whatever is taken has a spec: no SpecError is met later."""
    taken = 0
    for a, b, out in itertools.product(INPUTS, INPUTS, TYPES):
        for epilogue, beta in itertools.product((None, tw.acc * 0.5, tw.acc + 1), (False, True)):
            options = Options(beta, beta, epilogue, target="avx2")
            if is_integer(a) != is_integer(b):
                with pytest.raises(ArgumentTypeError, match="integers by integers"):
                    factors(a, b, out)
                continue
            types = factors(a, b, out)
            sums = accumulator(*types)
            if sums == "s32" and beta and not is_integer(out):
                with pytest.raises(ArgumentTypeError, match="added to integers"):
                    held_as(sums, out, beta, epilogue)
                continue
            held = held_as(sums, out, beta, epilogue)
            spec_of(Family((*types, held), (1, 1, 1), EVERY, options))
            taken += 1
    assert taken > 2000


def test_cures_of_mixed_types_are_taken() -> None:
    for a, b in itertools.product(INPUTS, INPUTS):
        if is_integer(a) == is_integer(b):
            continue
        with pytest.raises(ArgumentTypeError) as caught:
            factors(a, b, None)
        hint = caught.value.hint or ""
        assert hint.startswith(("a" if is_integer(a) else "b") + ".astype(np.float")
        assert ("64" in hint) == ("f64" in (a, b))


@pytest.mark.twice
def test_mixed_floats_are_promoted_as_in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "COPIED", 900)  # large operands are converted part by part
    rng = np.random.default_rng(2)
    for m, stack in ((3, ()), (70, ()), (3, (4,))):
        x = rng.standard_normal((*stack, m, 20))
        y = rng.standard_normal((*stack, 20, 9))
        for one, two in (("f4", "f8"), (ml_dtypes.bfloat16, "f8"), ("f4", "f4")):
            a, b = x.astype(one), y.astype(two)
            out = np.empty((*stack, m, 9), "f8")
            given = out if one == two else None
            found = tw.matmul(a, b, given)
            assert found.dtype == np.float64
            exact = np.matmul(a.astype(np.longdouble), b.astype(np.longdouble))
            np.testing.assert_allclose(found, exact, rtol=0, atol=1e-13)
            np.testing.assert_array_equal(tw.matmul(a, b, given), found)


@pytest.mark.twice
def test_an_out_that_no_kernel_writes() -> None:
    """The sums are converted: rounded to the nearest, integers saturated."""
    rng = np.random.default_rng(3)
    whole = rng.integers(-9, 9, (5, 7)), rng.integers(-9, 9, (7, 6))
    for type_, written, scale in (
        ("f8", "i1", 1),
        ("f8", "f2", 1),
        ("f4", "i8", 1),
        ("f8", "f4", 8),
    ):
        a, b = (x.astype(type_) / scale for x in whole)
        exact = a.astype("f8") @ b.astype("f8")
        name = next(t for t in TYPES if TYPES[t].numpy == np.dtype(written).name)
        for beta in (0, 2):
            for order in "CF":
                out = np.full((5, 6), 3, written, order=order)  # type: ignore[call-overload]
                assert tw.matmul(a, b, out, beta=beta) is out
                np.testing.assert_array_equal(out, encode(exact + beta * 3.0, name))
    bytes_ = whole[0].astype("i1"), whole[1].astype("i1")
    out = np.zeros((5, 6))
    np.testing.assert_array_equal(tw.matmul(*bytes_, out), whole[0] @ whole[1])
    packed = tw.pack(whole[1].astype("f4"))
    np.testing.assert_array_equal(
        tw.matmul(whole[0].astype("f4"), packed, out), whole[0] @ whole[1]
    )


def test_64_axes_are_broadcast() -> None:
    ones = (1,) * 61
    a, b = np.ones((2, *ones, 3, 4), "f4"), np.ones((4, 5), "f4")
    assert tw.matmul(a, b).shape == (2, *ones, 3, 5)
    assert tw.matmul(a, b[:, 0]).shape == (2, *ones, 3)
    assert tw.matmul(b.T, np.ones((1, *ones, 4, 3), "f4")).shape == (1, *ones, 5, 3)
    with pytest.raises(ArgumentValueError, match="broadcast"):
        tw.matmul(a, np.ones((3, *ones, 4, 5), "f4"))


# -- nothing to add --------------------------------------------------------------------------------


@pytest.fixture
def compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(*given: Any) -> NoReturn:
        raise AssertionError(given)

    monkeypatch.setattr(product, "kernel_of", compiled)
    monkeypatch.setattr(product, "_routed", compiled, raising=False)


def of(a: tuple[int, ...], b: tuple[int, ...], dtype: Any = "f4") -> tuple[Array, Array]:
    return np.ones(a, dtype), np.ones(b, dtype)


@pytest.mark.usefixtures("compiles_nothing")
def test_products_of_nothing_compile_nothing() -> None:
    shapes = (
        ((0, 4), (4, 5)), ((3, 4), (4, 0)), ((3, 0), (0, 5)), ((0, 0), (0, 0)), ((0,), (0, 5)),
        ((3, 0), (0,)), ((0,), (0,)), ((0, 3, 4), (4, 5)), ((2, 3, 0), (2, 0, 5)),
        ((0, 3, 4), (1, 4, 5)), ((2, 0, 4), (4, 5)),
    )  # fmt: skip
    for dtype, made in (("f2", "f4"), ("f8", "f8"), ("i1", "i4")):
        for a, b in shapes:
            expected = np.matmul(*of(a, b, "f8"))
            for more in ({}, {"threads": 1}, {"alpha": 2}, {"deterministic": True}):
                found = tw.matmul(*of(a, b, dtype), **more)
                assert (found.shape, found.dtype) == (expected.shape, np.dtype(made))
                np.testing.assert_array_equal(found, expected)


@pytest.mark.usefixtures("compiles_nothing")
def test_sums_of_nothing_are_scaled_and_added() -> None:
    a, b = of((3, 0), (0, 5))
    for alpha, beta in ((1, 3.0), (-2.0, 0.5), (float("inf"), 1.0), (float("nan"), 0)):
        for dtype in ("f4", "f8"):
            out = np.full((3, 5), 7, dtype)
            with np.errstate(invalid="ignore"):
                expected = alpha * np.zeros((3, 5)) + beta * out
            tw.matmul(a.astype(dtype), b.astype(dtype), out, alpha=alpha, beta=beta)
            np.testing.assert_array_equal(out, expected)
    assert np.signbit(tw.matmul(a, b, alpha=-1.0)).all()
    whole = np.full((3, 5), 2**30, "i4")
    tw.matmul(a.astype("i1"), b.astype("i1"), whole, beta=3)
    assert (whole == 3 * 2**30 - 2**32).all()
    nothing = np.full((3, 5), 9, "i1")
    np.testing.assert_array_equal(tw.matmul(a, b, nothing, alpha=float("nan")), 0)


@pytest.mark.usefixtures("compiles_nothing")
def test_products_of_nothing_are_checked_as_others_are() -> None:
    a, b = of((0, 4), (4, 5))
    bias = tw.Operand("bias", per="column")
    good = tw.matmul(a, b, epilogue=tw.acc + bias, bias=np.ones(5, "f4"))
    assert good.shape == (0, 5)
    wrong: tuple[dict[str, Any], ...] = (
        {"bias": 1}, {"epilogue": tw.acc + bias},
        {"epilogue": tw.acc + bias, "bias": np.ones(4, "f4")},
        {"epilogue": tw.acc + bias, "bias": [1.0]}, {"epilogue": tw.acc + bias, "bias": np.ones(5)},
        {"alpha": 10**400}, {"beta": 1}, {"out": np.ones((1, 5), "f4")}, {"epilogue": tw.acc2},
    )  # fmt: skip
    for named in wrong:
        with pytest.raises(TilewrightError):
            tw.matmul(a, b, **named)
    with pytest.raises(ArgumentError, match="whole number"):
        tw.matmul(a.astype("i1"), b.astype("i1"), alpha=0.5)


@pytest.mark.usefixtures("compiles_nothing")
def test_views_of_nothing_are_not_copied() -> None:
    one = np.float32(1)
    long = np.broadcast_to(one, (4, 2**40))
    assert tw.matmul(long, np.broadcast_to(one, (2**40, 0))).shape == (4, 0)
    assert tw.matmul(long.T[:, :0].T, np.broadcast_to(one, (2**40, 3))).shape == (0, 3)


@pytest.mark.twice
def test_an_epilogue_of_nothing() -> None:
    a, b = of((3, 0), (0, 5))
    shift = np.arange(5, dtype="f4")
    found = tw.matmul(a, b, epilogue=tw.acc + tw.Operand("bias", per="column"), bias=shift)
    np.testing.assert_array_equal(found, np.stack([shift] * 3))
