"""The reference that kernels are verified against, against slower and simpler ones."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.runtime.reference.epilogue import evaluate
from tilewright.runtime.reference.gemm import expected, results
from tilewright.runtime.reference.interval import Interval, div, mul
from tilewright.spec.expression import Expression, Operand, acc, acc2, call, dst
from tilewright.spec.gemm import Gemm
from tilewright.spec.postops import (
    clip,
    copysign,
    cos,
    elu,
    erf,
    exp,
    expm1,
    gelu_erf,
    gelu_tanh,
    hardswish,
    log,
    log1p,
    logistic,
    maximum,
    mish,
    prelu,
    relu,
    sin,
    soft_relu,
    sqrt,
    square,
    swish,
    tanh,
    where,
)
from tilewright.spec.reductions import row_absmax, row_max, row_sum
from tilewright.spec.types import type_name

RNG = np.random.default_rng(0)


def full(type_: str, *shape: int) -> Any:
    info = np.iinfo({"s8": "i1", "u8": "u1", "s32": "i4"}[type_])
    return RNG.integers(info.min, info.max, shape, dtype=info.dtype, endpoint=True)


def right(spec: Gemm, got: Any, **operands: Any) -> bool:
    return not expected(spec, operands).wrong(np.asarray(got)).any()


# -- integers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("a", ["s8", "u8"])
@pytest.mark.parametrize("b", ["s8", "u8"])
def test_integers_are_numpys_int32(a: Any, b: Any) -> None:
    first, second = [full(a, 3, 40000) for _ in range(2)], [full(b, 40000, 4) for _ in range(2)]
    c = full("s32", 3, 4)
    with np.errstate(over="ignore"):
        want = sum(x.astype("i4") @ y.astype("i4") for x, y in zip(first, second, strict=True))
        want = (np.int32(3) * want - np.int32(7) * c).astype("i4")
    spec = Gemm(3, 4, 40000, a=a, b=b, alpha=3, beta=-7)
    assert right(spec, want, a=first, b=second, c=c)
    for off in (1, -1, 2**16):
        assert expected(spec, {"a": first, "b": second, "c": c}).wrong(want + np.int32(off)).all()


def test_zero_points_in_modular_arithmetic() -> None:
    """Offsets of any 32 bits: exact in Python's integers, then modulo 2**32."""
    spec = Gemm(3, 4, 9, a="u8", b="s8", a_zero="row", b_zero="column", d_zero="scalar", beta=1)
    a, b, c = full("u8", 3, 9), full("s8", 9, 4), full("s32", 3, 4)
    za, zb, zd = full("s32", 3), full("s32", 4), full("s32", 1)
    want = np.zeros((3, 4), np.int64)
    for i in range(3):
        for j in range(4):
            terms = ((int(a[i, k]) - int(za[i])) * (int(b[k, j]) - int(zb[j])) for k in range(9))
            total = sum(terms) + int(c[i, j]) + int(zd[0])
            want[i, j] = (total + 2**31) % 2**32 - 2**31
    given = {"a": [a], "b": [b], "c": c, "a_zero": za, "b_zero": zb, "d_zero": zd}
    assert right(spec, want.astype("i4"), **given)
    assert not right(spec, want.astype("i4") ^ 1, **given)
    eight = Gemm(3, 4, 9, a="u8", b="s8", d="s8", a_zero="row", b_zero="column", d_zero="scalar",
                 beta=1)  # fmt: skip
    assert right(eight, np.clip(want, -128, 127).astype("i1"), **given)


def quantised(total: int, scale: float, d_scale: float, zero: int) -> Fraction:
    """The exact value before rounding; scales as f32 has them."""
    f32 = Fraction(float(np.float32(scale))), Fraction(float(np.float32(d_scale)))
    return Fraction(float(np.float32(total))) * f32[0] / f32[1] + zero


def test_quantised_results_differ_only_at_ties() -> None:
    """The nearest integer, and another only where the value is as good as half-way."""
    spec = Gemm(40, 50, 9, a="u8", b="s8", d="s8", b_scale="column", d_scale="scalar", d_zero=-3)
    a, b = full("u8", 40, 9), full("s8", 9, 50)
    scale, d_scale = RNG.uniform(0.5, 2, 50).astype("f4"), np.float32(700.1)
    found = expected(spec, {"a": [a], "b": [b], "b_scale": scale, "d_scale": d_scale})
    sums = a.astype("i8") @ b.astype("i8")
    for (i, j), total in np.ndenumerate(sums):
        exact = quantised(int(total), float(scale[j]), float(d_scale), -3)
        nearest = min(max(round(exact), -128), 127)
        got = np.full(sums.shape, nearest, np.int8)
        assert not found.wrong(got)[i, j]
        off_tie = abs(abs(exact - nearest) - Fraction(1, 2))
        if off_tie > Fraction(1, 10_000) and -128 < nearest < 127:
            assert found.wrong(got + np.int8(1))[i, j]
            assert found.wrong(got - np.int8(1))[i, j]


def test_a_tie_that_is_exact_goes_to_even() -> None:
    spec = Gemm(1, 4, 1, a="u8", b="s8", d="s8", d_scale=2.0, d_zero=1)
    a, b = np.array([[1]], np.uint8), np.array([[1, 3, 5, 255 - 256]], np.int8)
    assert right(spec, np.array([[2, 2, 4, 0]], np.int8), a=[a], b=[b])
    for wrong in ([[1, 2, 4, 0]], [[2, 3, 4, 0]], [[2, 2, 3, 0]], [[2, 2, 4, 1]]):
        assert not right(spec, np.array(wrong, np.int8), a=[a], b=[b])
    near = Gemm(1, 4, 1, a="u8", b="s8", d="s8", d_scale=2.0000002, d_zero=1)
    assert right(near, np.array([[2, 2, 4, 0]], np.int8), a=[a], b=[b])
    assert right(near, np.array([[1, 3, 3, 1]], np.int8), a=[a], b=[b])


def test_saturation_and_nan() -> None:
    a = np.array([[1e30], [-1e30], [np.nan], [np.inf]], np.float32)
    b = np.ones((1, 1), np.float32)
    for type_, want in (("s8", [127, -128, 0, 127]), ("u8", [255, 0, 0, 255])):
        spec = Gemm(4, 1, 1, d=type_name(type_))
        elements = np.array(want).astype(f"{'i' if type_ == 's8' else 'u'}1")[:, None]
        assert right(spec, elements, a=[a], b=[b])
        assert expected(spec, {"a": [a], "b": [b]}).wrong(elements ^ 1).all()


# -- floating point -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "eps"), [("f32", 2.0**-23), ("bf16", 2.0**-7), ("f16", 2.0**-10), ("f64", 2.0**-52)]
)
def test_the_bound_of_the_contract(type_: Any, eps: float) -> None:
    """What is within ``(k + 4) * eps * (|A| |B|)`` and the rounding of D is right; no more is."""
    wide = type_ == "f64"
    spec = Gemm(5, 6, 7, a="f64" if wide else "f32", d=type_)
    a, b = RNG.uniform(0.5, 1, (5, 7)), RNG.uniform(0.5, 1, (7, 6))
    a, b = (x if wide else x.astype(np.float32).astype(np.float64) for x in (a, b))
    dtype = {"bf16": ml_dtypes.bfloat16, "f16": "f2", "f32": "f4", "f64": "f8"}[type_]
    value = a.astype("g") @ b.astype("g")
    bound = 11 * (2.0**-52 if wide else 2.0**-23) * value
    given = {"a": [a if wide else a.astype("f4")], "b": [b if wide else b.astype("f4")]}
    found = expected(spec, given)
    for sign in (1, -1):
        assert not found.wrong((value + sign * 0.9 * bound).astype(dtype)).any()
        outside = 1.1 * bound + 1.6 * eps * value  # one element more, and its rounding
        assert found.wrong((value + sign * outside).astype(dtype)).all()
    error, allowed = found.error(value.astype(dtype))
    assert np.all(error <= allowed)


@pytest.mark.parametrize("type_", ["f32", "f64", "f16", "bf16", "f8_e4m3", "s8", "u8"])
def test_whole_numbers_match_bit_for_bit(type_: Any) -> None:
    kind, dtype = ("f64", "f8") if type_ == "f64" else ("f32", "f4")
    a, b, c = (RNG.integers(-4, 5, shape).astype(dtype) for shape in ((5, 7), (7, 6), (5, 6)))
    spec = Gemm(
        5, 6, 7, a=type_name(kind), d=type_, beta=-2, alpha=3, a_scale=0.25 if type_ != "f64" else 2
    )
    found = expected(spec, {"a": [a], "b": [b], "c": c})
    low, high = found.range()
    np.testing.assert_array_equal(low, high)
    np.testing.assert_array_equal(found.values.low, found.values.high)


def test_what_overflows() -> None:
    """f8_e4m3 has no infinity and takes NaN; NaN is right nowhere else."""
    a, b = np.array([[500.0], [1.0], [np.nan]], "f4"), np.ones((1, 1), "f4")
    nan = np.full((3, 1), 0x7F, np.uint8)
    found = expected(Gemm(3, 1, 1, d="f8_e4m3"), {"a": [a], "b": [b]})
    assert found.wrong(nan).ravel().tolist() == [False, True, False]
    other = expected(Gemm(3, 1, 1, d="f8_e5m2"), {"a": [a * 1e3], "b": [b]})
    assert other.wrong(nan).ravel().tolist() == [True, True, False]
    assert other.wrong(np.full((3, 1), 0x7C, np.uint8)).ravel().tolist() == [False, True, True]


def test_numbers_are_taken_for_vectors_of_one() -> None:
    a, b = full("u8", 3, 5), full("s8", 5, 4)
    spec = Gemm(3, 4, 5, a="u8", b="s8", d="f32", b_scale="scalar", a_zero="scalar")
    one, other = (
        expected(spec, {"a": [a], "b": [b], "b_scale": scale, "a_zero": zero})
        for scale, zero in ((0.3, 7), (np.array([0.3], "f4"), np.array([7], "i4")))
    )
    np.testing.assert_array_equal(one.values.value, other.values.value)


# -- epilogues ----------------------------------------------------------------------------------

BIAS = Operand("bias", "f32", "column")
SLOPE = Operand("slope", "f32")


def single(expression: Expression, x: Any) -> Interval:
    """An expression of exact numbers."""
    exact = Interval.exactly(np.asarray(x, np.float64), "f32")
    with np.errstate(all="ignore"):
        return evaluate(expression, {"acc": exact}, {})


def test_arithmetic_is_not_rearranged() -> None:
    inf, nan = float("inf"), float("nan")
    assert np.isnan(single(acc - acc, [inf]).value).all()
    assert np.isnan(single(0 * acc, [nan]).value).all()
    thirds = single(acc / 3, np.arange(1000.0))
    want = np.arange(1000, dtype=np.float32) / np.float32(3)
    assert np.all((thirds.low <= want) & (want <= thirds.high))
    assert np.all(thirds.high - thirds.low <= 2.0**-22 * want + 1e-40)
    lost = single((acc + 1e8) - 1e8, [1.0])
    assert lost.low <= 0.0 <= lost.high


@pytest.mark.parametrize("fn", ["relu", "abs", "neg", "round", "floor", "ceil", "square", "sqrt"])
def test_what_is_exact_stays_exact(fn: str) -> None:
    one = relu(acc) if fn == "relu" else call(fn, acc)
    found = single(one, [0.0, 1.0, 4.0, 2.5**2, 16.0])
    np.testing.assert_array_equal(found.low, found.high)


EXPRESSIONS = {
    "relu": (relu(acc + BIAS), lambda x, b: np.maximum(x + b, 0)),
    "leaky": (relu(acc, alpha=0.1), lambda x, b: np.where(x > 0, x, x * np.float32(0.1))),
    "prelu": (prelu(acc, BIAS), lambda x, b: np.where(x > 0, x, x * b)),
    "clip": (clip(acc * BIAS, -1, 1), lambda x, b: np.clip(x * b, -1, 1)),
    "square": (square(acc) - 1, lambda x, b: x * x - 1),
    "sqrt": (sqrt(abs(acc)), lambda x, b: np.sqrt(abs(x))),
    "exp": (exp(acc), lambda x, b: np.exp(x)),
    "expm1": (expm1(acc), lambda x, b: np.expm1(x)),
    "log": (log(abs(acc)), lambda x, b: np.log(abs(x))),
    "log1p": (log1p(abs(acc)), lambda x, b: np.log1p(abs(x))),
    "sin": (sin(acc), lambda x, b: np.sin(x)),
    "cos": (cos(acc), lambda x, b: np.cos(x)),
    "copysign": (copysign(acc, BIAS - acc), lambda x, b: np.copysign(x, b - x)),
    "tanh": (tanh(acc), lambda x, b: np.tanh(x)),
    "logistic": (logistic(acc), lambda x, b: 1 / (1 + np.exp(-x))),
    "swish": (swish(acc, 2), lambda x, b: x / (1 + np.exp(-2 * x))),
    "elu": (elu(acc, 2), lambda x, b: np.where(x > 0, x, 2 * np.expm1(x))),
    "soft_relu": (soft_relu(acc), lambda x, b: np.logaddexp(x, 0)),
    "mish": (mish(acc), lambda x, b: x * np.tanh(np.logaddexp(x, 0))),
    "hardswish": (hardswish(acc), lambda x, b: x * np.clip(x / 6 + 0.5, 0, 1)),
    "gelu_tanh": (
        gelu_tanh(acc),
        lambda x, b: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    ),
    "where": (where(acc < BIAS, acc, 2 * acc), lambda x, b: np.where(x < b, x, 2 * x)),
    "maximum": (maximum(acc / BIAS, acc), lambda x, b: np.maximum(x / b, x)),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_functions_contain_what_f32_computes(name: str) -> None:
    """Sums anywhere within their bound, then numpy in f32: always between the ends."""
    expression, compute = EXPRESSIONS[name]
    value = np.rint(RNG.uniform(-4, 4, (60, 50)) * 2**18) / 2**18
    bound = RNG.choice([0.0, 2.0**-18, 2.0**-10], (60, 50))
    bias = RNG.uniform(-2, 2, 50).astype(np.float32)
    with np.errstate(all="ignore"):
        found = evaluate(expression, {"acc": Interval.around(value, bound, "f32")}, {"bias": bias})
        for part in (-1, -0.5, 0, 0.5, 1):
            got = compute((value + part * bound).astype(np.float32), bias)
            assert np.all((found.low <= got) & (got <= found.high))
    exact = compute(value, bias.astype(np.float64))
    np.testing.assert_allclose(found.value, exact, rtol=1e-6, atol=1e-7)
    sharp = bound < 1e-5
    assert np.median((found.high - found.low)[sharp]) < 1e-4


def test_a_wide_interval_contains_all_values_of_a_wave_and_both_signs() -> None:
    wide = {"acc": Interval.around(np.array([1.0]), np.array([np.pi]), "f32")}
    for one in (sin(acc), cos(acc), copysign(1, acc)):
        found = evaluate(one, wide, {})
        assert found.low <= -1 < 1 <= found.high


def test_composed_functions_at_the_ends() -> None:
    inf = float("inf")
    for expression, want in (
        (gelu_erf(acc), [0.0, inf]),
        (mish(acc), [0.0, inf]),
        (swish(acc), [0.0, inf]),
        (hardswish(acc), [0.0, inf]),
        (tanh(acc), [-1.0, 1.0]),
        (erf(acc), [-1.0, 1.0]),
        (logistic(acc), [0.0, 1.0]),
        (relu(acc), [0.0, inf]),
        (elu(acc), [-1.0, inf]),
        (soft_relu(acc), [0.0, inf]),
        (exp(acc), [0.0, inf]),
    ):
        assert single(expression, [-inf, inf]).value.tolist() == want
        assert np.isnan(single(expression, [float("nan")]).value).all()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_arithmetic_contains_what_f32_computes(data: st.DataObject) -> None:
    """Random expressions of + - * / max where, on random sums within their bound."""
    numbers = st.floats(-100, 100, width=32)

    def term(depth: int) -> tuple[Expression | float, Any]:
        kind = data.draw(st.sampled_from(["acc", "number", "+", "-", "*", "/", "max", "where"]))
        if depth == 0 or kind == "acc":
            return acc, lambda x: x
        if kind == "number":
            number = data.draw(numbers)
            return number, lambda x: np.full_like(x, np.float32(number))
        (e, f), (g, h) = term(depth - 1), term(depth - 1)
        e = acc if isinstance(e, float) and isinstance(g, float) else e
        f = (lambda x: x) if e is acc else f
        return {
            "+": (e + g, lambda x: f(x) + h(x)),
            "-": (e - g, lambda x: f(x) - h(x)),
            "*": (e * g, lambda x: f(x) * h(x)),
            "/": (e / g if g != 0 else e, lambda x: f(x) / h(x) if g != 0 else f(x)),
            "max": (maximum(e, g), lambda x: np.maximum(f(x), h(x))),
            "where": (where(e < g, e, g), lambda x: np.where(f(x) < h(x), f(x), h(x))),
        }[kind]

    expression, compute = term(3)
    if not isinstance(expression, Expression):
        return
    value = np.array(data.draw(st.lists(st.integers(-100, 100), min_size=1, max_size=4)), float)
    bound = data.draw(st.sampled_from([0.0, 2.0**-10, 0.5]))
    with np.errstate(all="ignore"):
        sums = {"acc": Interval.around(value, np.full(value.shape, bound), "f32")}
        found = evaluate(expression, sums, {})
        for part in (0.0, 1.0, -1.0):
            got = compute((value + part * bound).astype(np.float32)).astype(np.float64)
            nan = np.isnan(got) & np.isnan(found.value)
            assert np.all((found.low <= got) & (got <= found.high) | nan | found.unsure)


def test_additions_stay_in_integers() -> None:
    bias = Operand("bias", "s8", "row")
    spec = Gemm(3, 4, 5, a="u8", b="s8", d="s32", epilogue=acc - bias + 7 + dst)
    a, b, old, rows = full("u8", 3, 5), full("s8", 5, 4), full("s32", 3, 4), full("s8", 3)
    with np.errstate(over="ignore"):
        want = a.astype("i4") @ b.astype("i4") - rows[:, None] + np.int32(7) + old
    given = {"a": [a], "b": [b], "d": old, "bias": rows}
    assert right(spec, want.astype("i4"), **given)
    assert not right(spec, want.astype("i4") + np.int32(1), **given)


# -- the second B, and outputs of rows ----------------------------------------------------------


def test_a_second_product() -> None:
    """C is added to the first product alone; zero points, factors and scales act on both."""
    spec = Gemm(3, 4, 5, a="u8", b="s8", b2="s8", d="f32", epilogue=acc - acc2, alpha=2, beta=3,
                a_zero=7, b_zero="column", a_scale="row")  # fmt: skip
    a, b, b2, c = full("u8", 3, 5), full("s8", 5, 4), full("s8", 5, 4), full("s8", 3, 4)
    zero, scale = full("s8", 4).astype("i4"), RNG.uniform(0.5, 2, 3).astype("f4")
    c = c.astype("i4")
    sums = [2 * ((a.astype("i8") - 7) @ (x.astype("i8") - zero)) for x in (b, b2)]
    want = scale[:, None].astype("f8") * (sums[0] + 3 * c - sums[1])
    given = {"a": [a], "b": [b], "b2": [b2], "c": c, "b_zero": zero, "a_scale": scale}
    assert right(spec, want.astype("f4"), **given)
    assert not right(spec, np.nextafter(want.astype("f4"), np.inf) * np.float32(1.001), **given)


def test_outputs_of_rows() -> None:
    a, b = RNG.uniform(-1, 1, (6, 40)).astype("f4"), RNG.uniform(-1, 1, (40, 7)).astype("f4")
    outputs = {"most": row_max(acc), "size": row_absmax(acc), "total": row_sum(2 * acc)}
    found = results(Gemm(6, 7, 40, outputs=outputs), {"a": [a], "b": [b]})
    product = a.astype("f8") @ b.astype("f8")
    want = {
        "most": product.max(axis=1),
        "size": abs(product).max(axis=1),
        "total": 2 * product.sum(axis=1),
    }
    assert found.keys() == {"c", *want}
    for name, values in want.items():
        assert not found[name].wrong(values.astype("f4")).any()
        assert found[name].wrong((values + 0.001).astype("f4")).all()
        assert found[name].wrong(np.full(6, np.nan, "f4")).all()


def test_outputs_of_rows_with_nan_and_of_none() -> None:
    a, b = np.array([[1.0], [np.nan]], "f4"), np.array([[1.0, -3.0]], "f4")
    outputs = {"most": row_max(acc), "size": row_absmax(acc), "total": row_sum(acc)}
    found = results(Gemm(2, 2, 1, outputs=outputs), {"a": [a], "b": [b]})
    for name, first in (("most", 1), ("size", 3), ("total", -2)):
        assert not found[name].wrong(np.array([first, np.nan], "f4")).any()
        assert found[name].wrong(np.array([first + 1, first], "f4")).all()
    none = results(Gemm(2, 0, 1, outputs=outputs), {"a": [a], "b": [b[:, :0]]})
    for name, empty in (("most", -np.inf), ("size", 0), ("total", 0)):
        assert not none[name].wrong(np.full(2, empty, "f4")).any()


def test_an_expression_that_sympy_may_rewrite() -> None:
    """What sympy makes of it is right then, too."""
    a, b = np.full((1, 1), np.inf, "f4"), np.ones((1, 1), "f4")
    zero, nan = np.zeros((1, 1), "f4"), np.full((1, 1), np.nan, "f4")
    for algebra in (False, True):
        found = expected(Gemm(1, 1, 1, epilogue=acc - acc, algebra=algebra), {"a": [a], "b": [b]})
        assert not found.wrong(nan).any()
        assert found.wrong(zero).all() == (not algebra)


def test_what_may_be_zero_over_zero_is_unsure() -> None:
    tiny = Interval.around(np.array([1e-40, 1e-40, 0.0]), np.array([1e-40, 1e-41, 0.0]), "f32")
    with np.errstate(divide="ignore", invalid="ignore"):
        found = div(tiny, Interval.exactly(np.zeros(3), "f32"))
    assert found.unsure.tolist() == [True, False, False]
    assert found.value[1] == np.inf and np.isnan(found.value[2]), "surely so"


def test_what_may_be_zero_times_infinity_is_unsure() -> None:
    """Infinity times what may underflow may be no number; times what is no 0 it is infinite."""
    many = Interval.exactly(np.array([np.inf, np.inf, -np.inf, 3.0]), "f32")
    tiny = Interval.around(np.array([1e-45, 1e-30, 0.0, 1e-45]), np.array([2e-45] * 4), "f32")
    with np.errstate(invalid="ignore"):
        found, turned = mul(many, tiny), mul(tiny, many)
        nothing = mul(many, Interval.exactly(np.zeros(4), "f32"))
    assert found.unsure.tolist() == turned.unsure.tolist() == [True, False, True, False]
    assert found.value[1] == found.low[1] == np.inf
    assert np.isnan(nothing.value[:3]).all() and not nothing.unsure.any()  # surely no number
