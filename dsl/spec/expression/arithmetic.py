"""Define arithmetic operators, and simple functions whose result is exact or rounded once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.errors import SpecError

from .define import builtin
from .nodes import ARRAY_FUNCTIONS, Term
from .postop import Arithmetic, Lane, Monotone, Program

__all__ = [
    "abs", "ceil", "clip", "copysign", "floor", "linear", "maximum", "minimum", "round", "sqrt",
    "square",
]  # fmt: skip


#: The sign bit of f32.
SIGN = 0x80000000

# -- the functions behind Python's operators, which the methods of ``Expression`` call ------------


@builtin(
    lower=lambda b, x, y: b("add", x, y),
    reference=Arithmetic("add"),
    whole=True,
    sympy=lambda x, y: x + y,
)
def add(x: Term, y: Term) -> None:
    """Return ``x + y``."""


@builtin(
    lower=lambda b, x, y: b("sub", x, y),
    reference=Arithmetic("sub"),
    whole=True,
    sympy=lambda x, y: x - y,
)
def sub(x: Term, y: Term) -> None:
    """Return ``x - y``."""


@builtin(
    lower=lambda b, x, y: b("mul", x, y),
    reference=Arithmetic("mul"),
    sympy=lambda x, y: x * y,
)
def mul(x: Term, y: Term) -> None:
    """Return ``x * y``."""


@builtin(
    lower=lambda b, x, y: b("div", x, y),
    reference=Arithmetic("div"),
    sympy=lambda x, y: x / y,
)
def div(x: Term, y: Term) -> None:
    """Return ``x / y``."""


@builtin(
    lower=lambda b, x: b("neg", x), reference=Arithmetic("neg"), whole=True, sympy=lambda x: -x
)
def neg(x: Term) -> None:
    """Return ``-x``."""


# -- functions ------------------------------------------------------------------------------------


@builtin(lower=lambda b, x: b("abs", x), reference=Arithmetic("abs"), sympy="Abs", straight=True)
def abs(x: Term) -> None:
    """Return the magnitude of ``x``.

    Parameters
    ----------
    x : Expression or float
        The operand.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-2, 0, 3]])
    >>> tw.matmul(one, x, epilogue=tw.abs(tw.acc))
    array([[2., 0., 3.]], dtype=float32)
    """


def _copysign(b: Program, x: Lane, y: Lane) -> Lane:
    # A NaN may have any sign, so its sign is not used: results have the same bits on every target.
    with b.part("sign"):
        sign = b("and", b("bits", y), SIGN)
        sign = b("select", b("eq", y, y), sign, 0)
    with b.part("signed"):
        return b("float", b("or", b("bits", b("abs", x)), sign))


@builtin(lower=_copysign, reference=Arithmetic("copysign"), f64=False)
def copysign(x: Term, y: Term) -> None:
    """Return the magnitude of ``x`` with the sign of ``y``, also that of -0.0.

    Parameters
    ----------
    x, y : Expression or float
        The operands. If ``y`` is NaN, its sign does not count, and the result is not negative.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-2, 0, 3]])
    >>> tw.matmul(one, x, epilogue=tw.copysign(1, tw.acc))
    array([[-1.,  1.,  1.]], dtype=float32)
    """


@builtin(lower=lambda b, x: b("mul", x, x), reference=Arithmetic("square"), sympy=lambda x: x**2)
def square(x: Term) -> None:
    """Return ``x * x``.

    Parameters
    ----------
    x : Expression or float
        The operand.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-2, 0, 3]])
    >>> tw.matmul(one, x, epilogue=tw.square(tw.acc))
    array([[4., 0., 9.]], dtype=float32)
    """


@builtin(
    lower=lambda b, x: b("sqrt", x),
    reference=Monotone(np.sqrt, rounded=True),
    sympy="sqrt",
    straight=True,
)
def sqrt(x: Term) -> None:
    """Return the square root of ``x``, rounded once; NaN if ``x`` is negative.

    Parameters
    ----------
    x : Expression or float
        The operand.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[0, 2, 4]])
    >>> tw.matmul(one, x, epilogue=tw.sqrt(tw.acc)).round(4)
    array([[0.    , 1.4142, 2.    ]], dtype=float32)
    """


def _round(b: Program, x: Lane) -> Lane:
    if b.real == "f32":
        return b("round", x)
    magnitude = b("abs", x)
    near = b("sub", b("add", magnitude, 2.0**52), 2.0**52)
    near = b("select", b("lt", magnitude, 2.0**52), near, magnitude)
    signed = b("select", b("lt", x, 0.0), b("neg", near), near)
    return b("select", b("eq", near, 0.0), b("mul", x, 0.0), signed)


@builtin(lower=_round, reference=Monotone(np.rint), straight=True)
def round(x: Term) -> None:
    """Round ``x`` to the nearest integer; a number halfway between two goes to the even one.

    Parameters
    ----------
    x : Expression or float
        The operand.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[1, 3, 5]])
    >>> tw.matmul(one, x, epilogue=tw.round(tw.acc / 2))
    array([[0., 2., 2.]], dtype=float32)
    """


def _floor(b: Program, x: Lane) -> Lane:
    near = _round(b, x)
    return b("sub", near, b("select", b("lt", x, near), 1.0, 0.0))


def _ceil(b: Program, x: Lane) -> Lane:
    return b("neg", _floor(b, b("neg", x)))  # so that -0.5 gives -0.0


@builtin(lower=_floor, reference=Monotone(np.floor), straight=True)
def floor(x: Term) -> None:
    """Return the largest integer that is not above ``x``.

    Parameters
    ----------
    x : Expression or float
        The operand.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-3, 2, 3]])
    >>> tw.matmul(one, x, epilogue=tw.floor(tw.acc / 2))
    array([[-2.,  1.,  1.]], dtype=float32)
    """


@builtin(lower=_ceil, reference=Monotone(np.ceil), straight=True)
def ceil(x: Term) -> None:
    """Return the smallest integer that is not below ``x``.

    Parameters
    ----------
    x : Expression or float
        The operand.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-3, 2, 3]])
    >>> tw.matmul(one, x, epilogue=tw.ceil(tw.acc / 2))
    array([[-1.,  1.,  2.]], dtype=float32)
    """


@builtin(sympy=lambda x, alpha, beta: alpha * x + beta, samples=((0.5, -1),), straight=True)
def linear(x: Term, alpha: float, beta: float) -> Term:
    """Return ``alpha * x + beta``, rounded twice.

    Parameters
    ----------
    x : Expression or float
        The operand.
    alpha, beta : float
        Slope, and value at 0.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-2, 0, 3]])
    >>> tw.matmul(one, x, epilogue=tw.linear(tw.acc, 2, 1))
    array([[-3.,  1.,  7.]], dtype=float32)
    """
    return x * alpha + beta


def _extreme(b: Program, fn: str, x: Lane, y: Lane) -> Lane:
    """Return the maximum or minimum of ``x`` and ``y``; NaN if either is NaN.

    ``fn`` is the elementary operation "max" or "min", which returns y if x is NaN. Therefore x must
    be a literal, or its NaN is put back afterwards.
    """
    if isinstance(y, float) and not math.isnan(y):
        x, y = y, x
    if isinstance(x, float) and not math.isnan(x):
        return b(fn, x, y)
    return b("select", b("eq", x, x), b(fn, x, y), x)


@builtin(
    lower=lambda b, x, y: _extreme(b, "max", x, y), reference=Monotone(np.maximum), sympy="Max"
)
def maximum(x: Term, y: Term) -> None:
    """Return the larger of ``x`` and ``y``; NaN if either is NaN.

    Parameters
    ----------
    x, y : Expression or float
        The operands.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-2, 0, 3]])
    >>> tw.matmul(one, x, epilogue=tw.maximum(tw.acc, 1))
    array([[1., 1., 3.]], dtype=float32)
    """


@builtin(
    lower=lambda b, x, y: _extreme(b, "min", x, y), reference=Monotone(np.minimum), sympy="Min"
)
def minimum(x: Term, y: Term) -> None:
    """Return the smaller of ``x`` and ``y``; NaN if either is NaN.

    Parameters
    ----------
    x, y : Expression or float
        The operands.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-2, 0, 3]])
    >>> tw.matmul(one, x, epilogue=tw.minimum(tw.acc, 1))
    array([[-2.,  0.,  1.]], dtype=float32)
    """


def _clip(b: Program, x: Lane, low: float, high: float) -> Lane:
    return b("min", high, b("max", low, x))


@builtin(lower=_clip, reference=Monotone(np.clip), finite=False, samples=((-1, 2),), straight=True)
def clip(x: Term, low: float, high: float) -> None:
    """Limit ``x`` to the range from ``low`` to ``high``; NaN stays NaN.

    Parameters
    ----------
    x : Expression or float
        The operand.
    low, high : float
        The bounds.

    Returns
    -------
    Expression
        The value for each element.

    Raises
    ------
    SpecError
        ``low`` is above ``high``.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-2, 0, 3]])
    >>> tw.matmul(one, x, epilogue=tw.clip(tw.acc, -1, 1))
    array([[-1.,  0.,  1.]], dtype=float32)
    """
    if low > high:
        raise SpecError("clip has no value between its bounds", got=f"low={low:g}, high={high:g}")


def times(x: Any, factor: Any) -> Any:
    """Return the product of two numpy arrays, in which infinity times 0 is 0, not NaN."""
    return np.where(np.isinf(x) & (factor == 0), 0.0, x * factor)


ARRAY_FUNCTIONS["clip"] = clip
