"""Define sin and cos by elementary operations on f32, for arguments of any size.

The argument is divided by 2 pi. Only the fraction of the quotient counts, so products of the
argument with parts of ``1 / (2 pi)`` are reduced to their fractions one by one, without an error.
"ulp" means units in the last place of the result.
"""

from __future__ import annotations

from functools import partial, reduce

import numpy as np

from .arithmetic import SIGN
from .define import builtin
from .nodes import Term
from .postop import Lane, Program, Within

__all__ = ["cos", "sin"]


#: Parts of ``1 / (2 pi)`` by the size of the argument: numbers of 24 bits whose sum is exact to
#: about 125 bits. ``_MIDDLE`` and ``_LARGE`` leave out leading bits, whose products with such an
#: argument are integers, and are multiplied by ``1 / _SCALE`` to keep the last part normal.
_SMALL = (0.15915494, 6.4206382e-09, 7.342739e-17, 1.5185067e-24, -3.443244e-32)
_MIDDLE = (3.2827117e08, 10.4962435, 3.5494787e-07, -9.888779e-15, -2.4431103e-22)
_LARGE = (-0.0037561683, 1.1396117e-10, -8.557476e-19, 1.744719e-26, 1.7157662e-34)
#: Magnitudes from which ``_MIDDLE`` and ``_LARGE`` are used. The products that they leave out are
#: integers for arguments that are multiples of 2**33 and 2**69, as these are.
_FROM_MIDDLE, _FROM_LARGE = 2.0**56, 2.0**92
_SCALE = 2.0**-64
#: Adding this rounds to an integer, whose last bits are then the last bits of the sum.
_MAGIC = 1.5 * 2.0**23
#: 2 pi as two numbers that add up to it: its f32 value, and the rest.
_TURN = (6.2831855, -1.7484555e-07)
#: Below this magnitude, an argument is less than an eighth of a turn, and is not reduced.
_EIGHTH = 0.785
#: Error that sin and cos may have besides 2 ulp. It counts only near their zeros, where most digits
#: of the fraction of a turn cancel. The largest found is half of it, for all results below 2**-16.
_REST = 2.0**-47
#: Coefficients of polynomials in ``x * x`` for ``(sin(x) / x - 1) / x**2`` and ``(cos(x) - 1) /
#: x**2``, for x up to pi / 4.
_SIN = (-0.16666655, 0.008332188, -0.000195181)
_COS = (-0.5, 0.041666646, -0.0013887311, 2.4432553e-05)


def _turns(b: Program, a: Lane) -> tuple[Lane, Lane]:
    """Return two numbers whose sum is ``a / (2 pi)`` less an integer; ``a`` is not negative.

    The second number is the sum of the rounding errors of the first. The error of the sum of both
    is about 2**-48 turns.
    """
    with b.part("inverse"):
        middle, large = b("lt", a, _FROM_MIDDLE), b("lt", a, _FROM_LARGE)
        parts = [
            b("select", middle, few, b("select", large, more, most))
            for few, more, most in zip(_SMALL, _MIDDLE, _LARGE, strict=True)
        ]
        a = b("select", middle, a, b("mul", a, _SCALE))
    with b.part("minus"):
        minus = b("neg", a)
    with b.part("product"):
        # Each product is -high + low exactly. ``high`` is the rounded product with its sign turned.
        highs = [b("mul", minus, part) for part in parts]
        lows = [b("fma", a, part, high) for part, high in zip(parts, highs[:-1], strict=False)]
    with b.part("turns"):
        total, rest = _fraction(b, highs[0], -1), b("sub", lows[3], highs[4])
        lost = []
        for term in (
            _fraction(b, lows[0], 1),
            _fraction(b, highs[1], -1),
            _fraction(b, lows[1], 1),
            _fraction(b, highs[2], -1),
            lows[2],
            b("neg", highs[3]),
        ):
            grown = b("add", total, term)
            lost.append(b("sub", term, b("sub", grown, total)))
            total = grown
        return total, reduce(partial(b, "add"), reversed(lost), rest)  # the smallest first


def _fraction(b: Program, x: Lane, sign: int) -> Lane:
    """Return ``sign * x`` less the nearest integer, which is exact."""
    whole = b("round", x)
    return b("sub", x, whole) if sign > 0 else b("sub", whole, x)


def _wave(b: Program, x: Lane, quarters: int) -> Lane:
    """Return the sine of ``x`` plus ``quarters`` quarter turns (0 or 1) as elementary operations.

    The error is at most 2 ulp plus ``_REST``.
    """
    a = b("abs", x)
    turns, rest = _turns(b, a)
    with b.part("quarter"):
        moved = b("fma", turns, 4.0, _MAGIC + quarters)
        quarter = b("bits", moved)
        turns = b("fma", b("sub", moved, _MAGIC + quarters), -0.25, turns)
    with b.part("angle"):
        near = b("add", turns, rest)
        rest = b("sub", rest, b("sub", near, turns))
        angle = b("fma", near, _TURN[0], b("fma", near, _TURN[1], b("mul", rest, _TURN[0])))
        angle = b("select", b("lt", a, _EIGHTH), a, angle)
    with b.part("square"):
        square = b("mul", angle, angle)
    with b.part("sin"):
        sine = b("fma", b("mul", angle, square), _horner(b, square, *_SIN), angle)
    with b.part("cos"):
        cosine = b("fma", square, _horner(b, square, *_COS), 1.0)
    with b.part("wave"):
        odd = b("eq", b("and", quarter, 1), 0)
        found = b("bits", b("select", odd, sine, cosine))
        sign = b("shl", quarter, 30)
        if not quarters:
            sign = b("xor", sign, b("bits", x))
        return b("float", b("xor", found, b("and", sign, SIGN)))


def _horner(b: Program, x: Lane, *coefficients: float) -> Lane:
    """Return the value of a polynomial in ``x``; ``coefficients`` begin with the constant term."""
    total: Lane = coefficients[-1]
    for term in reversed(coefficients[:-1]):
        total = b("fma", x, total, term)
    return total


@builtin(
    lower=lambda b, x: _wave(b, x, 0),
    reference=Within(np.sin, 2, _REST, slope=1),
    f64=False,
    sympy="sin",
)
def sin(x: Term) -> None:
    """Return the sine of ``x`` in radians, for every finite ``x``.

    The error is at most 2 units in the last place plus 2**-47, which counts near the zeros.

    Parameters
    ----------
    x : Expression or float
        The operand. The sine of an infinity is NaN.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-2, 0, 1e30]])
    >>> tw.matmul(one, x, epilogue=tw.sin(tw.acc)).round(4)
    array([[-0.9093,  0.    , -0.7912]], dtype=float32)
    """


@builtin(
    lower=lambda b, x: _wave(b, x, 1),
    reference=Within(np.cos, 2, _REST, slope=1),
    f64=False,
    sympy="cos",
)
def cos(x: Term) -> None:
    """Return the cosine of ``x`` in radians, for every finite ``x``.

    The error is at most 2 units in the last place plus 2**-47, which counts near the zeros.

    Parameters
    ----------
    x : Expression or float
        The operand. The cosine of an infinity is NaN.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-2, 0, 1e30]])
    >>> tw.matmul(one, x, epilogue=tw.cos(tw.acc)).round(4)
    array([[-0.4161,  1.    , -0.6116]], dtype=float32)
    """
