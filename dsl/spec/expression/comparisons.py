"""Define comparisons, logical functions and ``where``. Kernels keep comparisons as masks."""

from __future__ import annotations

import numpy as np

from .define import builtin
from .nodes import Term, call
from .postop import Arithmetic, Compared, Lane, Program, Truth

__all__ = [
    "eq", "ge", "gt", "le", "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "ne",
    "where",
]  # fmt: skip


@builtin(lower=lambda b, x, y: Truth(b("eq", x, y)), reference=Compared(np.equal))
def eq(x: Term, y: Term) -> None:
    """Return 1.0 if ``x == y``, else 0.0.

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
    >>> tw.matmul(one, x, epilogue=tw.eq(tw.acc, 3))
    array([[0., 0., 1.]], dtype=float32)
    """


@builtin(lower=lambda b, x, y: Truth(b("eq", x, y), 0.0, 1.0), reference=Compared(np.not_equal))
def ne(x: Term, y: Term) -> None:
    """Return 1.0 if ``x != y`` or if either is NaN, else 0.0.

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
    >>> tw.matmul(one, x, epilogue=tw.ne(tw.acc, 3))
    array([[1., 1., 0.]], dtype=float32)
    """


@builtin(lower=lambda b, x, y: Truth(b("lt", x, y)), reference=Compared(np.less))
def lt(x: Term, y: Term) -> None:
    """Return 1.0 if ``x < y``, else 0.0.

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
    >>> tw.matmul(one, x, epilogue=tw.lt(tw.acc, 0))
    array([[1., 0., 0.]], dtype=float32)
    """


@builtin(lower=lambda b, x, y: Truth(b("le", x, y)), reference=Compared(np.less_equal))
def le(x: Term, y: Term) -> None:
    """Return 1.0 if ``x <= y``, else 0.0.

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
    >>> tw.matmul(one, x, epilogue=tw.le(tw.acc, 0))
    array([[1., 1., 0.]], dtype=float32)
    """


@builtin(lower=lambda b, x, y: Truth(b("lt", y, x)), reference=Compared(np.greater))
def gt(x: Term, y: Term) -> None:
    """Return 1.0 if ``x > y``, else 0.0.

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
    >>> tw.matmul(one, x, epilogue=tw.gt(tw.acc, 0))
    array([[0., 0., 1.]], dtype=float32)
    """


@builtin(lower=lambda b, x, y: Truth(b("le", y, x)), reference=Compared(np.greater_equal))
def ge(x: Term, y: Term) -> None:
    """Return 1.0 if ``x >= y``, else 0.0.

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
    >>> tw.matmul(one, x, epilogue=tw.ge(tw.acc, 0))
    array([[0., 1., 1.]], dtype=float32)
    """


def _where(b: Program, condition: Lane | Truth, x: Lane, y: Lane) -> Lane:
    if isinstance(condition, Truth):
        return b("select", condition.mask, *((x, y) if condition.yes else (y, x)))
    return b("select", b("eq", condition, 0.0), y, x)


@builtin(lower=_where, reference=Arithmetic("where"), condition=True)
def where(condition: Term, x: Term, y: Term) -> None:
    """Return ``x`` if the condition is not 0, else ``y``. NaN counts as not 0.

    Parameters
    ----------
    condition : Expression or float
        For example a comparison.
    x, y : Expression or float
        The values to choose from.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-2, 0, 3]])
    >>> tw.matmul(one, x, epilogue=tw.where(tw.acc < 0, -1, tw.acc))
    array([[-1.,  0.,  3.]], dtype=float32)
    """


@builtin()
def logical_and(x: Term, y: Term) -> Term:
    """Return 1.0 if neither ``x`` nor ``y`` is 0, else 0.0.

    The operator is ``x & y``. NaN is not 0.

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
    >>> tw.matmul(one, x, epilogue=(tw.acc > -1) & (tw.acc < 1))
    array([[0., 1., 0.]], dtype=float32)
    """
    return call("where", x, call("ne", y, 0), 0)


@builtin()
def logical_or(x: Term, y: Term) -> Term:
    """Return 1.0 if ``x`` or ``y`` is not 0, else 0.0.

    The operator is ``x | y``. NaN is not 0.

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
    >>> tw.matmul(one, x, epilogue=(tw.acc < -1) | (tw.acc > 1))
    array([[1., 0., 1.]], dtype=float32)
    """
    return call("where", x, 1, call("ne", y, 0))


@builtin()
def logical_xor(x: Term, y: Term) -> Term:
    """Return 1.0 if exactly one of ``x`` and ``y`` is 0, else 0.0.

    The operator is ``x ^ y``. NaN is not 0.

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
    >>> tw.matmul(one, x, epilogue=(tw.acc < 1) ^ (tw.acc > -1))
    array([[1., 0., 1.]], dtype=float32)
    """
    return call("where", x, call("eq", y, 0), call("ne", y, 0))


@builtin()
def logical_not(x: Term) -> Term:
    """Return 1.0 if ``x`` is 0, else 0.0.

    The operator is ``~x``. NaN is not 0.

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
    >>> tw.matmul(one, x, epilogue=~(tw.acc < 0))
    array([[0., 1., 1.]], dtype=float32)
    """
    return call("eq", x, 0)
