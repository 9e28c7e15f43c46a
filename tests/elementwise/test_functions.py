"""What expressions compute: bit for bit where they must, elsewhere against mpmath."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from support.products.epilogues import BIAS, CLOSE, lowered, value
from support.spellings.floats import between, everywhere, same, ulps
from support.spellings.scalar_c import compiled

from tilewright.elementwise.builder import Builder, Value, live, run
from tilewright.elementwise.functions import lower_expression
from tilewright.elementwise.operations import DTYPES, OPTIONAL
from tilewright.errors import SpecError
from tilewright.spec import expression, postops
from tilewright.spec.expression import REGISTRY, Call, Expression, Number, Operand, acc, acc2, dst
from tilewright.spec.expression.checks import check_functions

INF, NAN = np.inf, np.nan


# -- arithmetic is numpy's, bit for bit ----------------------------------------------------------

X, Y = everywhere(40, seed=1), everywhere(40, seed=2)[::-1]
#: Expressions of acc and dst, and what numpy says with literals of type F.
ARITHMETIC: dict[str, tuple[Expression, Callable[[Any, Any, Any], Any]]] = {
    "acc + dst": (acc + dst, lambda F, x, y: np.add(x, y)),
    "acc - dst": (acc - dst, lambda F, x, y: np.subtract(x, y)),
    "acc * dst": (acc * dst, lambda F, x, y: np.multiply(x, y)),
    "acc / dst": (acc / dst, lambda F, x, y: np.divide(x, y)),
    "acc / 3": (acc / 3 + 0 * dst, lambda F, x, y: x / F(3) + F(0) * y),
    "3 / acc": (3 / acc - dst, lambda F, x, y: F(3) / x - y),
    "acc / 4": (acc / 4 + dst, lambda F, x, y: x / F(4) + y),
    "0.1 literal": (acc * 0.1 + dst, lambda F, x, y: x * F(0.1) + y),
    "not fused": (acc * dst + acc, lambda F, x, y: x * y + x),
    "1e8": ((acc + 1e8) - 1e8 + dst * 0, lambda F, x, y: (x + F(1e8)) - F(1e8) + y * F(0)),
    "neg abs": (-abs(acc) - -dst, lambda F, x, y: -np.abs(x) - -y),
    "sqrt": (postops.sqrt(acc) + dst, lambda F, x, y: np.sqrt(x) + y),
    "square": (postops.square(acc) - dst, lambda F, x, y: x * x - y),
    "round": (postops.round(acc) + dst, lambda F, x, y: np.rint(x) + y),
    "floor": (postops.floor(acc) + 0 * dst, lambda F, x, y: np.floor(x) + F(0) * y),
    "ceil": (postops.ceil(acc) - 0 * dst, lambda F, x, y: np.ceil(x) - F(0) * y),
    "linear": (postops.linear(acc, 1.5, -0.3) + dst, lambda F, x, y: x * F(1.5) + F(-0.3) + y),
    "maximum": (postops.maximum(acc, dst), lambda F, x, y: np.maximum(x, y)),
    "minimum": (postops.minimum(acc, dst), lambda F, x, y: np.minimum(x, y)),
    "maximum 2": (postops.maximum(acc, 2) + dst, lambda F, x, y: np.maximum(x, F(2)) + y),
    "minimum 2": (postops.minimum(-2, acc) + dst, lambda F, x, y: np.minimum(F(-2), x) + y),
    "clip": (postops.clip(acc, -1, 2) + dst, lambda F, x, y: np.clip(x, F(-1), F(2)) + y),
    "relu": (postops.relu(acc) + dst, lambda F, x, y: np.where(x < 0, F(0), x) + y),
    "leaky": (postops.relu(acc, 0.1) + dst, lambda F, x, y: np.where(x > 0, x, F(0.1) * x) + y),
    "relu -2": (postops.relu(acc, -2) + dst, lambda F, x, y: np.where(x > 0, x, F(-2) * x) + y),
    "relu 3": (postops.relu(acc, 3) + dst, lambda F, x, y: np.where(x > 0, x, F(3) * x) + y),
    "prelu": (postops.prelu(acc, dst), lambda F, x, y: np.where(x > 0, x, y * x)),
    "eq": (postops.eq(acc, dst), lambda F, x, y: np.equal(x, y)),
    "ne": (postops.ne(acc, dst), lambda F, x, y: np.not_equal(x, y)),
    "lt": (acc < dst, lambda F, x, y: np.less(x, y)),
    "le": (acc <= dst, lambda F, x, y: np.less_equal(x, y)),
    "gt": (acc > dst, lambda F, x, y: np.greater(x, y)),
    "ge": (acc >= dst, lambda F, x, y: np.greater_equal(x, y)),
    "where lt": (postops.where(acc < dst, acc, dst), lambda F, x, y: np.where(x < y, x, y)),
    "where ne": (postops.where(postops.ne(acc, dst), 1, 2), lambda F, x, y: np.where(x != y, 1, 2)),
    "where any": (postops.where(acc - dst, acc, 7), lambda F, x, y: np.where(x - y, x, F(7))),
    "both": ((acc < dst) * (dst < 1), lambda F, x, y: (x < y) & (y < 1)),
    "x ** 2": (acc**2 + dst, lambda F, x, y: x * x + y),
    "x ** 3": (acc**3 + dst, lambda F, x, y: x * x * x + y),
    "x ** -1": (acc**-1 + dst, lambda F, x, y: F(1) / x + y),
    "x ** 0": (acc**0 + dst, lambda F, x, y: F(1) + y),
    "2 x ** 1": (postops.pow(acc, 2, 1) + dst, lambda F, x, y: F(2) * x + y),
    "hardsigmoid": (
        postops.hardsigmoid(acc, 0.2, 0.5) + dst,
        lambda F, x, y: np.clip(x * F(0.2) + F(0.5), F(0), F(1)) + y,
    ),
}  # fmt: skip


def equal(found: Any, want: Any) -> Any:
    """Equal bits, NaN both, or zeros of any sign."""
    return same(found, want) | ((found == 0) & (want == 0))


@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("name", ARITHMETIC)
@np.errstate(all="ignore")
def test_arithmetic_is_numpys(name: str, element: str) -> None:
    one, reference = ARITHMETIC[name]
    real, rng = DTYPES[element], np.random.default_rng(3)
    x, y = (np.append(a.astype(real), rng.standard_normal(2000).astype(real)) for a in (X, Y))
    want = np.asarray(reference(real, x, y), real)
    found = value(one, x, y, element=element)
    assert found.dtype == real
    zeros_agree = name not in ("maximum", "minimum", "relu", "clip")
    assert (same if zeros_agree else equal)(found, want).all()


@np.errstate(invalid="ignore")
def test_the_sign_is_copied_bit_for_bit_but_not_that_of_nan() -> None:
    found, want = value(postops.copysign(acc, dst), X, Y), np.copysign(X, Y)
    assert same(found, np.where(np.isnan(Y), np.abs(X), want)).all()
    assert same(value(postops.floor(acc), X), np.floor(X)).all()
    assert same(value(postops.ceil(acc), X), np.ceil(X)).all()


@np.errstate(invalid="ignore")
def test_f64_rounds_to_integers_as_numpy() -> None:
    x = np.concatenate(
        [X.astype(np.float64), np.arange(-4, 4, 0.25), [2.0**52 - 0.5, -(2.0**53) + 1, 2.5e15]]
    )
    assert same(value(postops.round(acc), x, element="f64"), np.rint(x)).all()


def test_nothing_is_lost_to_algebra() -> None:
    assert np.isnan(value(acc - acc, [INF, -INF, NAN])).all()
    assert value(acc - acc, [3.0]) == 0
    assert np.isnan(value(0 * acc, [NAN, INF])).all()
    assert same(value(0 * acc, [-3.0]), np.array([-0.0], np.float32)).all()
    assert value((acc + 1e8) - 1e8, [1.0]) == 0
    assert value(acc * 3 / 3, [2e38]) == INF
    assert np.isnan(value(acc / acc, [0.0, INF])).all()
    thirds = np.arange(1, 2000, dtype=np.float32)
    assert same(value(acc / 3, thirds), thirds / np.float32(3)).all()
    assert (value(acc / 3, thirds) != thirds * np.float32(1 / 3)).any()


def test_relu_keeps_nan_and_drops_minus_infinity() -> None:
    found = value(postops.relu(acc), [NAN, -INF, INF, -1, 2])
    assert same(found, np.array([NAN, 0, INF, 0, 2], np.float32)).all()
    found = value(postops.relu(acc, 0.5), [NAN, -INF, INF, -1, 2])
    assert same(found, np.array([NAN, -INF, INF, -0.5, 2], np.float32)).all()


def test_constants_are_folded_in_f32() -> None:
    b, _, result = lowered(postops.where(1, 3, acc))
    assert result == 3 and not b.steps
    assert lowered(postops.exp(0) + postops.square(3) / 3)[2] == 4
    assert lowered(expression.as_expression(0.1))[2] == float(np.float32(0.1))


def test_common_subexpressions_are_computed_once() -> None:
    b, _, _ = lowered(postops.exp(acc + BIAS) / (postops.exp(acc + BIAS) + 1))
    alone, _, _ = lowered(postops.exp(acc + BIAS))
    assert len(b.steps) == len(alone.steps) + 2


def test_a_comparison_chooses_by_its_mask() -> None:
    b, _, _ = lowered(postops.where(acc < dst, acc, dst))
    assert [step.fn for step in b.steps] == ["lt", "select"]


@pytest.mark.parametrize("name", [name for name, entry in REGISTRY.items() if not entry.own])
def test_functions_have_no_dead_steps(name: str) -> None:
    entry = REGISTRY[name]
    numbers = [Number(number) for number in (0.3, 0.7)[: len(entry.parameters)]]
    one = Call(name, ((acc, dst, BIAS)[: len(entry.operands)] + tuple(numbers)))
    b, _, result = lowered(one)
    assert b.steps
    assert live(b.steps, [result]) == tuple(b.steps)


@pytest.mark.parametrize("name", postops.NAMES)
def test_every_function_is_computed_or_refused(name: str) -> None:
    function = getattr(postops, name)
    required = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    numbers = {"x": acc, "y": dst, "condition": acc < dst, "slope": dst, "beta": 2.0, "high": 9}
    one = function(*(numbers.get(p.name, 0.5) for p in required))
    arrays = (X, Y) if expression.uses(one, dst) else (X,)
    assert value(one, *arrays).dtype == np.float32
    if in_f64(one):
        assert value(one, *arrays, element="f64").dtype == np.float64
    else:
        with pytest.raises(SpecError, match="is not computed in f64"):
            check_functions(one, "f64")


def in_f64(one: Expression) -> bool:
    try:
        check_functions(one, "f64")
    except SpecError:
        return False
    return True


def test_arithmetic_is_computed_in_f64_and_exponentials_are_not() -> None:
    check_functions(postops.sqrt(abs(acc)) + postops.relu(acc), "f64")
    with pytest.raises(SpecError, match="exp is not computed in f64"):
        check_functions(postops.exp(acc), "f64")


def test_integer_additions_wrap_in_s32() -> None:
    b, inputs, result = lowered(acc + Operand("z", "s32") - (-dst) + 5, "s32")
    values = [np.array([v], np.int32) for v in (2**31 - 1, 2, 3)]
    found = run(b.steps, dict(zip(inputs.values(), values, strict=True)))
    assert isinstance(result, Value)
    assert found[result] == 2**31 - 1 + 2 + 3 + 5 - 2**32
    with pytest.raises(SpecError, match="mul is not computed in s32"):
        lowered(acc * 2, "s32")


@pytest.mark.parametrize(
    "one", [postops.exp(acc), postops.gelu_erf(acc), postops.silu(acc), acc**2.5]
)
def test_f64_has_no_transcendental_functions(one: Expression) -> None:
    with pytest.raises(SpecError, match="not computed in f64"):
        lowered(one, "f64")


# -- the others against mpmath -------------------------------------------------------------------

#: Where the functions bend.
RANGES = ((-110, 90), (-18, -15), (-11, 11), (-2, 2), (-0.01, 0.01), (0.3, 3))


def _sample() -> Any:
    dense = [between(low, high, 600, seed=i) for i, (low, high) in enumerate(RANGES)]
    return np.concatenate([everywhere(6), *dense])


SAMPLE = _sample()


@pytest.mark.parametrize("name", CLOSE)
def test_functions_are_close_everywhere(name: str) -> None:
    one, reference, bound, loose = CLOSE[name]
    finite = SAMPLE[np.isfinite(SAMPLE) & (SAMPLE != 0)]
    found = value(one, finite)
    for x, got in zip(finite, found, strict=True):
        exact = reference(mpmath.mpf(float(x)))
        if mpmath.isnan(exact):
            assert np.isnan(got), (x, got)
        else:
            small = abs(mpmath.mpf(float(got)) - exact) <= loose * mpmath.mpf(2) ** -149
            assert small or ulps(got, exact) <= bound, (x, got, mpmath.nstr(exact, 12))


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_waves_are_close_to_their_zeros(name: str) -> None:
    """The f32 numbers next to multiples of pi / 2, up to the largest: there most digits cancel."""
    one, reference, bound, loose = CLOSE[name]
    rng = np.random.default_rng(4)
    quarters = [int(rng.integers(1, 2**20)) << shift for shift in range(108) for _ in range(8)]
    with mpmath.workprec(300):
        near = [float(mpmath.pi / 2 * quarter) for quarter in quarters]
        # The largest errors of all numbers.
        near += map(float.fromhex, ("0x1.f0eaeep+46", "0x1.47d0fep+35", "0x1.13093p+76"))
        near += [float.fromhex("0x1.484dd6p+110")]
        x = np.array(near, np.float32)
        for point, got in zip(x, value(one, x), strict=True):
            exact = reference(mpmath.mpf(float(point)))
            most = bound * float(np.spacing(abs(got))) + loose * 2.0**-149
            assert abs(mpmath.mpf(float(got)) - exact) <= most, (point, mpmath.nstr(exact, 12))


@pytest.mark.parametrize("name", ["gelu_erf", "gelu_tanh"])
def test_gelu_is_within_1e_6(name: str) -> None:
    one, reference, _, _ = CLOSE[name]
    x = between(-20, 8, 6000)
    for point, got in zip(x, value(one, x), strict=True):
        assert abs(float(got) - reference(mpmath.mpf(float(point)))) < 1e-6


TOP = float(np.finfo(np.float32).max)
AT_EDGES: dict[str, tuple[Expression, list[float]]] = {
    #                               NaN  -Inf  -largest  -0    +0   largest  +Inf
    "exp": (postops.exp(acc), [NAN, 0, 0, 1, 1, INF, INF]),
    "expm1": (postops.expm1(acc), [NAN, -1, -1, -0.0, 0, INF, INF]),
    "log1p": (postops.log1p(acc), [NAN, NAN, NAN, -0.0, 0, float(np.log(np.float32(TOP))), INF]),
    "sin": (postops.sin(acc), [NAN, NAN, 0.5218765, -0.0, 0, -0.5218765, NAN]),
    "cos": (postops.cos(acc), [NAN, NAN, 0.8530211, 1, 1, 0.8530211, NAN]),
    "log": (postops.log(acc), [NAN, NAN, NAN, -INF, -INF, float(np.log(np.float32(TOP))), INF]),
    "tanh": (postops.tanh(acc), [NAN, -1, -1, -0.0, 0, 1, 1]),
    "logistic": (postops.logistic(acc), [NAN, 0, 0, 0.5, 0.5, 1, 1]),
    "erf": (postops.erf(acc), [NAN, -1, -1, -0.0, 0, 1, 1]),
    "erfc": (postops.erfc(acc), [NAN, 2, 2, 1, 1, 0, 0]),
    "gelu_erf": (postops.gelu_erf(acc), [NAN, -0.0, -0.0, -0.0, 0, TOP, INF]),
    "gelu_tanh": (postops.gelu_tanh(acc), [NAN, -0.0, -0.0, -0.0, 0, TOP, INF]),
    "swish": (postops.silu(acc), [NAN, -0.0, -0.0, -0.0, 0, TOP, INF]),
    "swish -1": (postops.swish(acc, -1), [NAN, -INF, -TOP, -0.0, 0, 0, 0]),
    "swish 0": (postops.swish(acc, 0), [NAN, -INF, -TOP / 2, -0.0, 0, TOP / 2, INF]),
    "mish": (postops.mish(acc), [NAN, -0.0, -0.0, -0.0, 0, TOP, INF]),
    "elu": (postops.elu(acc, 2), [NAN, -2, -2, 0, 0, TOP, INF]),
    "soft_relu": (postops.soft_relu(acc), [NAN, 0, 0, 0.6931472, 0.6931472, TOP, INF]),
    "soft_relu -1": (postops.soft_relu(acc, -1), [NAN, -INF, -TOP, -0.6931472, -0.6931472, 0, 0]),
    "hardsigmoid": (postops.hardsigmoid(acc), [NAN, 0, 0, 0.5, 0.5, 1, 1]),
    "hardswish": (postops.hardswish(acc), [NAN, -0.0, -0.0, -0.0, 0, TOP, INF]),
    "hardswish -1": (postops.hardswish(acc, -1), [NAN, -INF, -TOP, -0.0, 0, 0, 0]),
    "relu": (postops.relu(acc), [NAN, 0, 0, 0, 0, TOP, INF]),
    "clip": (postops.clip(acc, -1, 2), [NAN, -1, -1, -0.0, 0, 2, 2]),
    "round": (postops.round(acc), [NAN, -INF, -TOP, -0.0, 0, TOP, INF]),
    "pow 0.5": (acc**0.5, [NAN, INF, NAN, 0, 0, float(np.sqrt(np.float32(TOP))), INF]),
    "pow 0.3": (postops.pow(acc, -1, 0.3), [NAN, -INF, NAN, -0.0, -0.0, -3.6270395e11, -INF]),
    "pow -0.3": (acc**-0.3, [NAN, 0, NAN, INF, INF, 2.7570695e-12, 0]),
    "pow 5": (acc**5, [NAN, -INF, -INF, -0.0, 0, INF, INF]),
    "pow 6": (acc**6, [NAN, INF, INF, 0, 0, INF, INF]),
    "pow -5": (acc**-5, [NAN, -0.0, -0.0, -INF, INF, 0, 0]),
    "pow -1": (acc**-1, [NAN, -0.0, -2.9387359e-39, -INF, INF, 2.9387359e-39, 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", AT_EDGES)
def test_functions_at_the_edges(name: str) -> None:
    one, want = AT_EDGES[name]
    found = value(one, [NAN, -INF, -TOP, -0.0, 0.0, TOP, INF])
    expected = np.array(want, np.float32)
    unsigned = name in ("relu", "elu")
    close = np.isclose(found, expected, rtol=1e-4, atol=0, equal_nan=True)
    signs = (np.signbit(found) == np.signbit(expected)) | np.isnan(expected) | unsigned
    assert (close & signs).all(), found


@pytest.mark.parametrize("name", CLOSE)
def test_c_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    b, inputs, result = lowered(CLOSE[name][0])
    assert isinstance(result, Value)
    x = np.concatenate([everywhere(300), *(between(low, high, 20000) for low, high in RANGES)])
    found = compiled(b, [inputs[acc]], result, tmp_path)(x)
    assert same(found, run(b.steps, {inputs[acc]: x})[result]).all()


@pytest.mark.parametrize(
    "function",
    [
        postops.exp, postops.mish, postops.soft_relu, lambda x: postops.exp(-(x * x)),
        lambda x: postops.pow(x, 1, 0.7), lambda x: postops.pow(x, 1, -9001),
    ],
)  # fmt: skip
def test_scaling_by_one_instruction_gives_the_same_bits(function: Any) -> None:
    x = np.concatenate([everywhere(300), *(between(low, high, 20000) for low, high in RANGES)])
    found = []
    for extra in ((), OPTIONAL):
        b = Builder(extra=extra)
        value = b.input()
        known: dict[Expression, Value] = {acc: value}
        result = lower_expression(function(acc), b, known.__getitem__)
        assert isinstance(result, Value)
        assert any(step.fn == "scale" for step in b.steps) == bool(extra)
        found.append(run(live(b.steps, [result]), {value: x})[result])
    assert same(*found).all()


def test_a_whole_epilogue_in_c(tmp_path: Path) -> None:
    one = postops.silu(acc * 0.5 + BIAS) * acc2 + postops.where(acc < dst, postops.exp(dst), BIAS)
    b, inputs, result = lowered(one)
    assert isinstance(result, Value)
    arrays = [np.random.default_rng(i).permutation(everywhere(300)) for i in range(4)]
    given = list(inputs.values())
    found = compiled(b, given, result, tmp_path)(*arrays)
    assert same(found, run(b.steps, dict(zip(given, arrays, strict=True)))[result]).all()
    assert np.isfinite(found).sum() > 10000


#: Operations per lane, reinterpretations left out: what an epilogue costs beside its product.
COST = {
    "exp": 17,
    "tanh": 25,
    "logistic": 21,
    "erf": 34,
    "gelu_erf": 31,
    "gelu_tanh": 22,
    "swish": 20,
}


@pytest.mark.parametrize("name", COST)
def test_functions_are_short(name: str) -> None:
    b, _, result = lowered(CLOSE[name][0])
    real = [s for s in live(b.steps, [result]) if s.fn not in ("bits", "float")]
    assert len(real) <= COST[name]
