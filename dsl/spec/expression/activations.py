"""Define activation functions made of straight lines, for example relu."""

from __future__ import annotations

import numpy as np

from .arithmetic import clip, maximum, times
from .comparisons import where
from .define import builtin
from .nodes import Term
from .postop import COMPOSED, Lane, Program, Within

__all__ = ["hardsigmoid", "hardswish", "prelu", "relu"]


def _relu(b: Program, x: Lane, alpha: float) -> Lane:
    if alpha == 0:
        return b("max", 0.0, x)
    below = b("mul", x, alpha)
    return b("max", x, below) if 0 < alpha <= 1 else b("select", b("lt", 0.0, x), x, below)


@builtin(lower=_relu, samples=((), (0.125,)), straight=True)
def relu(x: Term, alpha: float = 0) -> Term:
    """Return ``x`` if it is positive, else ``alpha * x``.

    If alpha is 0, -Inf becomes 0. NaN stays NaN.

    Parameters
    ----------
    x : Expression or float
        The operand.
    alpha : float, default 0
        Slope for negative values.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-2, 0, 3]])
    >>> tw.matmul(one, x, epilogue=tw.relu(tw.acc))
    array([[0., 0., 3.]], dtype=float32)
    """
    return maximum(x, 0) if alpha == 0 else prelu(x, alpha)


@builtin()
def prelu(x: Term, slope: Term) -> Term:
    """Return ``x`` if it is positive, else ``slope * x``.

    Parameters
    ----------
    x : Expression or float
        The operand.
    slope : Expression or float
        Slope for negative values, for example an operand for each column.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-2, 0, 3]])
    >>> tw.matmul(one, x, epilogue=tw.prelu(tw.acc, 0.25))
    array([[-0.5,  0. ,  3. ]], dtype=float32)
    """
    return where(x > 0, x, slope * x)


@builtin()
def hardsigmoid(x: Term, alpha: float = 1 / 6, beta: float = 0.5) -> Term:
    """Return ``alpha * x + beta``, limited to the range from 0 to 1.

    Parameters
    ----------
    x : Expression or float
        The operand.
    alpha : float, default 1/6
        Slope.
    beta : float, default 0.5
        Value at 0.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-2, 0, 3]])
    >>> tw.matmul(one, x, epilogue=tw.hardsigmoid(tw.acc)).round(4)
    array([[0.1667, 0.5   , 1.    ]], dtype=float32)
    """
    return clip(x * alpha + beta, 0, 1)


def _hardswish(b: Program, x: Lane, alpha: float, beta: float) -> Lane:
    """Return ``hardswish(x)`` as elementary operations.

    An infinite ``x`` is made finite, so that its product with a gate of 0 is 0, not NaN.
    """
    largest = float(np.finfo(np.float32 if b.real == "f32" else np.float64).max)
    finite = b("max", -largest, x) if alpha > 0 else b("min", largest, x)
    gate = b("min", 1.0, b("max", 0.0, b("add", b("mul", x, alpha), beta)))
    return b("mul", finite, gate)


@builtin(
    lower=_hardswish,
    reference=Within(lambda x, a, b: times(x, np.clip(a * x + b, 0, 1)), 4, COMPOSED),
)
def hardswish(x: Term, alpha: float = 1 / 6, beta: float = 0.5) -> None:
    """Return ``x * hardsigmoid(x, alpha, beta)``.

    Parameters
    ----------
    x : Expression or float
        The operand.
    alpha : float, default 1/6
        Slope of the gate.
    beta : float, default 0.5
        Gate at 0.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-2, 0, 3]])
    >>> tw.matmul(one, x, epilogue=tw.hardswish(tw.acc)).round(4)
    array([[-0.3333,  0.    ,  3.    ]], dtype=float32)
    """
