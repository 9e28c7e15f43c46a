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
from tilewright.runtime.matmul.arrays import factors
from tilewright.runtime.matmul.families import Class, Family, Options, spec_of
from tilewright.runtime.matmul.wide import WIDE, computed_as
from tilewright.spec.types import INPUTS, TYPES, is_integer

Array = np.ndarray[Any, Any]
EVERY = Class("matrix", False, (0, 0, 0, 0), (9, 9, 9, 999))


def test_every_three_types_have_a_product_or_are_refused() -> None:
    """Whatever is taken has a spec: no SpecError is met later."""
    taken = 0
    for a, b in itertools.product(INPUTS, INPUTS):
        if "f64" in (a, b) and is_integer(a) != is_integer(b):
            with pytest.raises(ArgumentTypeError, match="integers by float64"):
                factors(a, b)
            continue
        types = factors(a, b)
        for out, epilogue, given in itertools.product(
            TYPES, (None, tw.acc * 0.5, tw.acc + 1), ((False, False), (True, False), (True, True))
        ):
            options = Options(*given, epilogue, target="avx2")
            made = computed_as(types, 9, out, options)
            spec_of(Family(made, (1, 1, 1), EVERY, options))
            taken += 1
            if out in WIDE:
                assert made.held in WIDE
            elif types != ("f64", "f64"):
                assert made.held == out
    assert taken == 92 * len(TYPES) * 9


def test_cures_of_mixed_types_are_taken() -> None:
    for a, b in itertools.product(INPUTS, INPUTS):
        if "f64" not in (a, b) or is_integer(a) == is_integer(b):
            continue
        with pytest.raises(ArgumentTypeError) as caught:
            factors(a, b)
        hint = caught.value.hint or ""
        assert hint.startswith(("a" if is_integer(a) else "b") + ".astype(np.float64)")


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


WHOLE = {
    "i1": (-128, 127), "u1": (0, 255), "i2": (-32768, 32767), "u2": (0, 65535),
}  # fmt: skip


def extremes(rng: np.random.Generator, shape: tuple[int, int], type_: str) -> Array:
    """Elements whose sums exceed 32 bits soon, if they have 16."""
    return rng.choice(WHOLE[type_], shape).astype(type_)


@pytest.mark.twice
@pytest.mark.parametrize("types", [("i1", "u1"), ("i2", "i2"), ("u2", "i1")])
def test_integers_are_exact_in_a_wide_out(types: tuple[str, str]) -> None:
    """In float64 and int64, with alpha, beta, an epilogue, operands of other types, and tw.dst."""
    rng = np.random.default_rng(4)
    a, b = extremes(rng, (5, 40), types[0]), extremes(rng, (40, 6), types[1])
    sums = a.astype("i8") @ b.astype("i8")
    bias = rng.integers(-99, 99, 6)
    shift = tw.Operand("bias", "s32", per="column")
    for written, order in itertools.product(("i8", "f8"), "CF"):
        old = rng.integers(-(2**52), 2**52, (5, 6)).astype(written, order=order)  # type: ignore[call-overload]
        calls: tuple[tuple[Array, dict[str, Any]], ...] = (
            (sums, {}),
            (3 * sums - 2 * old, {"alpha": 3, "beta": -2}),
            (sums + bias, {"epilogue": tw.acc + shift, "bias": bias.astype("i4")}),
            (sums + old + bias, {"beta": 1, "epilogue": tw.acc + shift, "bias": bias.astype("i4")}),
            (np.maximum(sums, 0) - old, {"epilogue": tw.relu(tw.acc) - tw.dst}),
        )
        for right, named in calls:
            out = old.copy(order="K")
            assert tw.matmul(a, b, out, **named) is out
            np.testing.assert_array_equal(out, right)


@pytest.mark.twice
@pytest.mark.parametrize("written", ["f2", "f4", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_sums_of_integers_are_scaled_and_added_to_floating_point(written: Any) -> None:
    """Alpha and beta act in f32, and need not be whole, whether or not out is read."""
    rng = np.random.default_rng(5)
    a, b = rng.integers(-2, 3, (5, 7)).astype("i1"), rng.integers(-2, 3, (7, 6)).astype("i1")
    old = rng.integers(0, 4, (5, 6)).astype(written)
    for beta, epilogue in itertools.product((0, 0.5), (None, tw.acc + 1)):
        out = old.copy() if beta else np.full_like(old, np.nan)
        exact = 0.5 * (a.astype("f8") @ b) + (epilogue is not None)
        exact += beta * old.astype("f8") if beta else 0
        for _ in range(2):  # by Python, then by C
            found = out.copy()
            tw.matmul(a, b, found, alpha=0.5, beta=beta, epilogue=epilogue)
            np.testing.assert_array_equal(found, exact.astype(written))
    with pytest.raises(ArgumentValueError, match="whole number"):
        tw.matmul(a, b, alpha=0.5)


@pytest.mark.twice
def test_a_wide_out_in_32_bits() -> None:
    """A packed b, and functions that f64 lacks: computed if no digit of integers is lost."""
    rng = np.random.default_rng(6)
    small = extremes(rng, (5, 40), "i1"), extremes(rng, (40, 6), "i1")
    large = extremes(rng, (5, 40), "i2"), extremes(rng, (40, 6), "i2")
    exact = small[0].astype("i8") @ small[1]
    for written in ("i8", "f8"):
        out = np.full((5, 6), 7, written)
        np.testing.assert_array_equal(tw.matmul(small[0], tw.pack(small[1]), out), exact)
        added = tw.matmul(small[0], tw.pack(small[1]), out, epilogue=tw.acc + 1)
        np.testing.assert_array_equal(added, exact + 1)
        x, y = (z.astype("f4") / 128 for z in small)
        curved = tw.matmul(x, y, out, epilogue=tw.tanh(tw.acc) * 8)
        right = np.tanh(x.astype("f8") @ y) * 8
        np.testing.assert_allclose(curved, np.rint(right) if written == "i8" else right, 1e-5)
        refused: tuple[tuple[Array, Any, dict[str, Any]], ...] = (
            (large[0], tw.pack(large[1]), {}),
            (small[0], tw.pack(small[1]), {"alpha": 2}),
            (small[0], tw.pack(small[1]), {"beta": 1}),
            (*large, {"epilogue": tw.tanh(tw.acc)}),
            (x, y, {"epilogue": tw.tanh(tw.acc) + tw.dst}),
        )
        for a, b, named in refused:
            with pytest.raises(ArgumentTypeError, match="may lose digits") as caught:
                tw.matmul(a, b, out, **named)
            assert np.dtype(written).name in str(caught.value)
    with pytest.raises(ArgumentValueError, match="does not hold all"):
        tw.matmul(*small, np.full((5, 6), 2**53 + 1), beta=1, epilogue=tw.relu(tw.acc))


@pytest.mark.twice
def test_a_wide_out_changes_no_later_product() -> None:
    """The type of a new result does not depend on an out that was given before."""
    a, b = np.ones((3, 11), "f4"), np.ones((11, 2), "f4")
    for written in ("f8", "f2", "i8"):
        tw.matmul(a, b, np.empty((3, 2), written))
        assert tw.matmul(a, b).dtype == np.float32


@pytest.mark.twice
def test_operands_are_promoted_with_the_sums() -> None:
    a, b = np.full((3, 4), 1 / 3), np.ones((4, 5))
    half = tw.Operand("half", "bf16", per="row")
    given = np.arange(3).astype(ml_dtypes.bfloat16)
    exact = a @ b + given.astype("f8")[:, None]
    for bits in (given, given.view("u2")):
        found = tw.matmul(a, b, epilogue=tw.acc + half, half=bits)
        np.testing.assert_allclose(found, exact, 1e-15)
    for wrong, said in ((given.astype("f8"), "wrong dtype"), (1, "must be a numpy array")):
        with pytest.raises(ArgumentTypeError, match=said):
            tw.matmul(a, b, epilogue=tw.acc + half, half=wrong)


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


@pytest.mark.parametrize("written", ["i1", "i4", "i8", "f2", "f4", "f8"])
@pytest.mark.parametrize("given", [{}, {"epilogue": tw.acc * 0.5 + 3}])
def test_an_out_without_elements_that_is_read(written: str, given: dict[str, Any]) -> None:
    for dtype in ("f4", "f8"):
        out = np.empty((0, 2), written)
        found = tw.matmul(np.empty((0, 4), dtype), np.empty((4, 2), dtype), out, beta=2, **given)
        assert found is out
