"""Expressions lowered to elementary operations."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from . import exponential, gaussian, logarithm
from .builder import Argument, Builder
from .elementary import DTYPES
from .errors import SpecError
from .expression import Call, Expression, Number, walk

_COMPARISONS = {"eq": "eq", "ne": "eq", "lt": "lt", "le": "le", "gt": "lt", "ge": "le"}
_DIRECT = ("add", "sub", "mul", "div", "neg", "abs", "sqrt")
Lowering = Callable[..., Argument]


def lower_expression(
    expression: Expression,
    builder: Builder,
    leaves: Callable[[Expression], Argument],
    element: str = "f32",
) -> Argument:
    """Write the steps of ``expression`` and return its value, a literal if it is constant.

    ``leaves`` gives the value of ``acc``, ``acc2``, ``dst`` and each operand, in lanes of
    ``element``, which is the builder's floating-point type or s32 for integer additions.
    """
    values: dict[int, Argument] = {}
    for node in walk(expression):
        match node:
            case Number(value):
                found: Argument = builder.literal(int(value) if element == "s32" else value)
            case Call(fn, args):
                given = [values[id(arg)] for arg in args]
                found = _apply(builder, fn, given, element)
            case _:
                found = leaves(node)
        values[id(node)] = found
    return values[id(expression)]


def _apply(b: Builder, fn: str, args: list[Argument], element: str) -> Argument:
    if element == "s32":
        if fn == "neg":
            return b("sub", 0, *args)
        if fn in ("add", "sub"):
            return b(fn, *args)
    elif fn in _DIRECT:
        return b(fn, *args)
    elif fn in FUNCTIONS and (element == "f32" or fn in ANY_REAL):
        return FUNCTIONS[fn](b, *args)
    raise SpecError(
        f"no {fn} in {element}",
        expected="additions alone" if element == "s32" else f"one of {', '.join(ANY_REAL)}",
        hint="compute in f32: accumulators of f32 or s32",
    )


def _mask(b: Builder, fn: str, x: Argument, y: Argument) -> Argument:
    """Lanes of ones where the comparison holds, for ne where it does not."""
    return b(_COMPARISONS[fn], y, x) if fn in ("gt", "ge") else b(_COMPARISONS[fn], x, y)


def _comparison(fn: str) -> Lowering:
    yes, no = (0.0, 1.0) if fn == "ne" else (1.0, 0.0)
    return lambda b, x, y: b("select", _mask(b, fn, x, y), yes, no)


def _where(b: Builder, condition: Argument, x: Argument, y: Argument) -> Argument:
    made = b.maker(condition)
    if made and made.fn == "select" and all(isinstance(arg, float) for arg in made.args[1:]):
        mask, yes, no = made.args
        return b("select", mask, x if yes != 0 else y, x if no != 0 else y)
    return b("select", b("eq", condition, 0.0), y, x)


def _extreme(fn: str) -> Lowering:
    """Elementary max and min give y if x is a NaN: so x is a literal first, or is put back."""

    def lower(b: Builder, x: Argument, y: Argument) -> Argument:
        if isinstance(y, float) and not math.isnan(y):
            x, y = y, x
        if isinstance(x, float) and not math.isnan(x):
            return b(fn, x, y)
        return b("select", b("eq", x, x), b(fn, x, y), x)

    return lower


def _relu(b: Builder, x: Argument, alpha: float) -> Argument:
    if alpha == 0:
        return b("max", 0.0, x)
    below = b("mul", x, alpha)
    return b("max", x, below) if 0 < alpha <= 1 else b("select", b("lt", 0.0, x), x, below)


def _prelu(b: Builder, x: Argument, slope: Argument) -> Argument:
    return b("select", b("lt", 0.0, x), x, b("mul", slope, x))


def _linear(b: Builder, x: Argument, alpha: float, beta: float) -> Argument:
    return b("add", b("mul", x, alpha), beta)


def _clip(b: Builder, x: Argument, low: float, high: float) -> Argument:
    return b("min", high, b("max", low, x))


def _hardsigmoid(b: Builder, x: Argument, alpha: float, beta: float) -> Argument:
    return _clip(b, _linear(b, x, alpha, beta), 0.0, 1.0)


def _hardswish(b: Builder, x: Argument, alpha: float, beta: float) -> Argument:
    """The infinity whose factor is 0 becomes finite first: the limit, not NaN."""
    largest = float(np.finfo(DTYPES[b.real]).max)
    finite = b("max", -largest, x) if alpha > 0 else b("min", largest, x)
    return b("mul", finite, _hardsigmoid(b, x, alpha, beta))


def _round(b: Builder, x: Argument) -> Argument:
    if b.real == "f32":
        return b("round", x)
    magnitude = b("abs", x)
    near = b("sub", b("add", magnitude, 2.0**52), 2.0**52)
    near = b("select", b("lt", magnitude, 2.0**52), near, magnitude)
    signed = b("select", b("lt", x, 0.0), b("neg", near), near)
    return b("select", b("eq", near, 0.0), b("mul", x, 0.0), signed)


#: Functions that f64 has too.
ANY_REAL: dict[str, Lowering] = {
    **{fn: _comparison(fn) for fn in _COMPARISONS},
    "where": _where,
    "maximum": _extreme("max"),
    "minimum": _extreme("min"),
    "square": lambda b, x: b("mul", x, x),
    "relu": _relu,
    "prelu": _prelu,
    "linear": _linear,
    "clip": _clip,
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "round": _round,
    "pow": logarithm.power,
}
FUNCTIONS: dict[str, Lowering] = {
    **ANY_REAL,
    "exp": exponential.exp,
    "tanh": exponential.tanh,
    "logistic": exponential.logistic,
    "elu": exponential.elu,
    "swish": exponential.swish,
    "gelu_tanh": exponential.gelu_tanh,
    "soft_relu": exponential.soft_relu,
    "mish": exponential.mish,
    "log": logarithm.log,
    "erf": gaussian.erf,
    "erfc": gaussian.erfc,
    "gelu_erf": gaussian.gelu_erf,
}
