"""Expressions lowered to elementary operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.spec.expression import Call, Expression, Number, walk
from tilewright.spec.postops import check_functions

from . import exponential, gaussian, logarithm
from .builder import Argument, Builder
from .operations import DTYPES

#: The elementary comparison, and whether its arguments change places.
_COMPARISONS = {
    "eq": ("eq", False),
    "ne": ("eq", False),
    "lt": ("lt", False),
    "le": ("le", False),
    "gt": ("lt", True),
    "ge": ("le", True),
}
_DIRECT = ("add", "sub", "mul", "div", "neg", "abs", "sqrt")
Lowering = Callable[..., Argument]


@dataclass(frozen=True, slots=True)
class _Truth:
    """A comparison that has not become numbers: ``yes`` in the lanes of ``mask``, else ``no``."""

    mask: Argument
    yes: float
    no: float


def lower_expression(
    expression: Expression,
    builder: Builder,
    leaves: Callable[[Expression], Argument],
    element: str = "f32",
    entering: Callable[[Call], None] = lambda _call: None,
) -> Argument:
    """Write the steps of ``expression`` and return its value, a literal if it is constant.

    ``leaves`` gives the value of ``acc``, ``acc2``, ``dst`` and each operand, in lanes of
    ``element``, which is the builder's floating-point type or s32 for integer additions.
    ``entering`` is told of each function before its steps are written.
    """
    check_functions(expression, element)
    values: dict[int, Argument | _Truth] = {}
    for node in walk(expression):
        match node:
            case Number(value):
                values[id(node)] = builder.literal(int(value) if element == "s32" else value)
            case Call(fn, args):
                entering(node)
                given = [values[id(arg)] for arg in args]
                values[id(node)] = _lower_call(builder, fn, given, element)
            case _:
                values[id(node)] = leaves(node)
    return _number(builder, values[id(expression)])


def _number(b: Builder, value: Argument | _Truth) -> Argument:
    if isinstance(value, _Truth):
        return b("select", value.mask, value.yes, value.no)
    return value


def _lower_call(
    b: Builder, fn: str, args: list[Argument | _Truth], element: str
) -> Argument | _Truth:
    if fn == "where":
        return _where(b, args[0], *(_number(b, arg) for arg in args[1:]))
    numbers = [_number(b, arg) for arg in args]
    if fn in _COMPARISONS:
        elementary, swapped = _COMPARISONS[fn]
        mask = b(elementary, *(reversed(numbers) if swapped else numbers))
        return _Truth(mask, *((0.0, 1.0) if fn == "ne" else (1.0, 0.0)))
    if fn == "neg" and element == "s32":
        return b("sub", 0, *numbers)
    return b(fn, *numbers) if fn in _DIRECT else FUNCTIONS[fn](b, *numbers)


def _where(b: Builder, condition: Argument | _Truth, x: Argument, y: Argument) -> Argument:
    if isinstance(condition, _Truth):
        return b("select", condition.mask, *((x, y) if condition.yes else (y, x)))
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


#: Beside the operators, comparisons and ``where``.
FUNCTIONS: dict[str, Lowering] = {
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
