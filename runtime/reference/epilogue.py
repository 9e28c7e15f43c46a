"""Epilogues evaluated beside the kernel: in float64, with bounds on what f32 makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf, erfc, pi, sqrt
from typing import Any

import numpy as np

from tilewright.runtime.call.bound_sizes import Array
from tilewright.runtime.call.formats import decode, epsilon
from tilewright.spec.expression import Call, Expression, Leaf, Number, Operand, walk
from tilewright.spec.types import is_integer

from .interval import Interval, add, choose, div, hull, less, monotone, mul, smooth, sub

#: Results of composed functions may be this far off.
_COMPOSED = 1e-6
Function = Callable[..., Interval]


def evaluate(
    expression: Expression, sums: Mapping[str, Interval], operands: Mapping[str, Any]
) -> Interval:
    """``expression`` of the ``sums`` "acc" and "acc2".

    ``operands`` has what stands by name in the expression, and D's old value, decoded, as "d".
    """
    acc = sums["acc"]
    values: dict[int, Interval] = {}
    for node in walk(expression):
        match node:
            case Number(value):
                number = np.float32(value) if acc.element == "f32" else value
                found = Interval.exactly(np.array(number, acc.value.dtype), acc.element)
            case Call(fn, args):
                found = FUNCTIONS[fn](*(values[id(arg)] for arg in args))
            case Leaf(name) if name in sums:
                found = sums[name]
            case _:
                found = _leaf(node, acc, operands)
        values[id(node)] = found
    return values[id(expression)]


def evaluate_whole(
    expression: Expression, sums: Mapping[str, Array], operands: Mapping[str, Any]
) -> Array:
    """The same in integers, additions only; modulo 2**64."""
    match expression:
        case Number(value):
            return np.array(int(value), np.int64)
        case Call(fn, args):
            given = [evaluate_whole(arg, sums, operands) for arg in args]
            apply: Any = {"add": np.add, "sub": np.subtract, "neg": np.negative}[fn]
            whole: Array = apply(*given)
            return whole
        case Leaf(name) if name in sums:
            return sums[name]
        case _:
            return elements(expression, operands)


def elements(leaf: Expression, operands: Mapping[str, Any]) -> Array:
    """What an operand, or D's old value, stands for, in a shape that broadcasts to D's."""
    if not isinstance(leaf, Operand):
        old: Array = operands["d"]
        return old
    array = decode(np.atleast_1d(np.asarray(operands[leaf.name])), leaf.type)
    return array[:, None] if leaf.per == "row" else array


def _leaf(leaf: Expression, acc: Interval, operands: Mapping[str, Any]) -> Interval:
    value = elements(leaf, operands)
    found = Interval.exactly(value.astype(acc.value.dtype), acc.element)
    whole = isinstance(leaf, Operand) and is_integer(leaf.type)
    return found.rounded() if whole or value.dtype.kind == "i" else found


# --- functions ---------------------------------------------------------------------------------


def _named(function: Callable[..., Array], ulps: float, absolute: float = 0.0) -> Function:
    return lambda x, *numbers: smooth(
        lambda v: function(v, *(float(n.value) for n in numbers)), x, ulps, absolute
    )


def _constant(like: Interval, value: float) -> Interval:
    return Interval.exactly(np.array(value, like.value.dtype), like.element)


def _relu(x: Interval, alpha: Interval) -> Interval:
    zero = _constant(x, 0.0)
    if alpha.value == 0:
        return monotone(np.maximum, x, zero)
    return choose(less(zero, x, np.less), x, mul(alpha, x))


def _clip(x: Interval, low: Interval, high: Interval) -> Interval:
    return monotone(lambda v: np.clip(v, low.value, high.value), x)


def _hardsigmoid(x: Interval, alpha: Interval, beta: Interval) -> Interval:
    return _clip(add(mul(alpha, x), beta), _constant(x, 0.0), _constant(x, 1.0))


def _square(x: Interval) -> Interval:
    low, high = np.abs(x.low), np.abs(x.high)
    crosses = (x.low < 0) & (x.high > 0)
    least = np.where(crosses, 0, np.minimum(low, high))
    most = np.maximum(low, high)
    return Interval(x.value**2, least**2, most**2, x.element).rounded()


def _abs(x: Interval) -> Interval:
    low, high = np.abs(x.low), np.abs(x.high)
    crosses = (x.low < 0) & (x.high > 0)
    least = np.where(crosses, 0, np.minimum(low, high))
    return Interval(np.abs(x.value), least, np.maximum(low, high), x.element)


def _neg(x: Interval) -> Interval:
    return Interval(-x.value, -x.high, -x.low, x.element)


_erf, _erfc = (np.vectorize(f, otypes=[np.float64]) for f in (erf, erfc))


def _logistic(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1.0 + small)


def _soft_relu(x: Array, alpha: float = 1.0) -> Array:
    scaled = alpha * x
    return (np.maximum(scaled, 0) + np.log1p(np.exp(-np.abs(scaled)))) / alpha


def _times(x: Array, factor: Array) -> Array:
    """With the limit at infinity in place of NaN."""
    return np.where(np.isinf(x) & (factor == 0), 0.0, x * factor)


def _gelu_tanh(x: Array) -> Array:
    return _times(x, 0.5 * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))))


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _hardswish(x: Array, alpha: float, beta: float) -> Array:
    return _times(x, np.clip(alpha * x + beta, 0, 1))


FUNCTIONS: dict[str, Function] = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "div": div,
    "neg": _neg,
    "abs": _abs,
    "square": _square,
    "sqrt": lambda x: monotone(np.sqrt, x).rounded(),
    "round": lambda x: monotone(np.rint, x),
    "maximum": lambda x, y: monotone(np.maximum, x, y),
    "minimum": lambda x, y: monotone(np.minimum, x, y),
    "where": choose,
    "relu": _relu,
    "prelu": lambda x, s: choose(less(_constant(x, 0.0), x, np.less), x, mul(s, x)),
    "linear": lambda x, a, b: add(mul(a, x), b),
    "clip": _clip,
    "hardsigmoid": _hardsigmoid,
    "hardswish": _named(_hardswish, 4, _COMPOSED),
    "exp": _named(np.exp, 2),
    "log": _named(np.log, 2),
    "tanh": _named(np.tanh, 2),
    "erf": _named(_erf, 2),
    "erfc": _named(_erfc, 4, _COMPOSED),
    "logistic": _named(_logistic, 2),
    "pow": _named(lambda x, alpha, beta: alpha * x**beta, 4),
    "elu": _named(_elu, 4, _COMPOSED),
    "soft_relu": _named(_soft_relu, 4, _COMPOSED),
    "swish": _named(lambda x, alpha: _times(x, _logistic(alpha * x)), 4, _COMPOSED),
    "mish": _named(lambda x: _times(x, np.tanh(_soft_relu(x))), 4, _COMPOSED),
    "gelu_erf": _named(lambda x: _times(x, 0.5 * _erfc(-x / sqrt(2))), 4, _COMPOSED),
    "gelu_tanh": _named(_gelu_tanh, 4, _COMPOSED),
    "eq": lambda x, y: less(x, y, np.equal),
    "ne": lambda x, y: less(x, y, np.not_equal),
    "lt": lambda x, y: less(x, y, np.less),
    "le": lambda x, y: less(x, y, np.less_equal),
    "gt": lambda x, y: less(x, y, np.greater),
    "ge": lambda x, y: less(x, y, np.greater_equal),
}


# --- reductions of rows ------------------------------------------------------------------------


def _row_sum(x: Interval) -> Interval:
    """In any order; whole numbers are exact as long as their magnitudes are."""
    value, low, high = (part.sum(axis=1) for part in (x.value, x.low, x.high))
    size = np.maximum(np.abs(x.low), np.abs(x.high)).sum(axis=1)
    eps = epsilon(x.element)
    whole = np.all(x.exact & (x.value == np.rint(x.value)), axis=1) & (size * eps < 1)
    error = np.where(whole, 0, x.value.shape[1] * eps * size)
    return _row(x, value, [low - error, high + error])


def _largest(x: Interval, initial: float) -> Interval:
    ends = [np.max(end, axis=1, initial=initial) for end in (x.low, x.high)]
    return _row(x, np.max(x.value, axis=1, initial=initial), ends)


def _row(x: Interval, value: Array, ends: list[Array]) -> Interval:
    """One number for each row; unsure if one of its own is."""
    unsure = np.any(x.unsure, axis=1)
    whole = np.where(unsure, np.nan, 0.0)
    return hull(value, ends, Interval(np.zeros(value.shape), whole, whole, x.element))


REDUCTIONS: dict[str, Callable[[Interval], Interval]] = {
    "row_max": lambda x: _largest(x, -np.inf),
    "row_sum": _row_sum,
    "row_absmax": lambda x: _largest(_abs(x), 0.0),
}
