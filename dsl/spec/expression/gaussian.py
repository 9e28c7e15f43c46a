"""Define erf, erfc and gelu_erf by elementary operations on f32.

"ulp" means units in the last place of the result.
"""

from __future__ import annotations

import math

import numpy as np

from .arithmetic import times
from .define import builtin
from .exponential import TWO, polynomial, power_of_two, with_sign_of
from .nodes import Term
from .postop import COMPOSED, Lane, Program, Within

__all__ = ["erf", "erfc", "gelu_erf"]


#: Coefficients of a polynomial in x * x for ``erf(x) / x - 1``, used if |x| is below ``_NEAR``.
_NEAR = 0.92
_ERF = (0.12837915, -0.376125, 0.11281877, -0.02676858, 0.004995854, -0.0006003808)
#: Coefficients of a polynomial for ``log2(erfc(x))``, for x from ``_NEAR`` to 4. Above 4, erf is 1.
_LOG_ERFC: tuple[float, ...] = (
    -0.00028237063,
    -1.6268917,
    -0.9192602,
    -0.1499411,
    0.032066416,
    -0.0043903696,
)
_LOG_ERFC += (0.00028267098,)
#: Numerator and denominator of a quotient of polynomials for ``exp(x * x) * erfc(x)``, for x from 0
#: to 10.2.
_ERFC = (1.0, 1.2392544, 0.7324885, 0.22964054, 0.03288509)
_ERFC_BELOW = (1.0, 2.367634, 2.404068, 1.3270196, 0.40705326, 0.058286622)
#: Numerator and denominator of a quotient of polynomials for ``exp(x * x / 2) * erfc(x / sqrt(2)) /
#: 2``, for x from 0 to 14.6.
_GELU = (0.5, 0.438497, 0.18338498, 0.040683813, 0.0041238326)
_GELU_BELOW = (1.0, 1.674879, 1.2031252, 0.46986634, 0.10198556, 0.010336799)
#: Coefficients of polynomials: ``_EXP`` for ``exp(-r)`` if |r| is at most log(2) / 2, and
#: ``_HALF_EXP`` for ``exp(-r / 2)`` if |r| is at most log(2).
_EXP = (1.0, -1.0, 0.49999994, -0.16666521, 0.04166826, -0.008368666, 0.0013821201)
_HALF_EXP = (1.0, -0.49999985, 0.12499788, -0.02083456, 0.0026186153, -0.00025905375)
#: Two numbers whose sum is log(2). The first has few bits, so that its products with the integer n
#: are exact.
_LOG2 = (0.693145751953125, 1.4286068203094173e-06)
#: Numerators and denominators are multiplied by 2 to this power, so that they never are subnormal.
_SCALE = 64


def _erf(b: Program, x: Lane) -> Lane:
    """Return ``erf(x)`` as elementary operations; the error is at most 2 ulp.

    It is a polynomial near 0, and ``1 - 2**log2(erfc(x))`` elsewhere.
    """
    with b.part("magnitude"):
        a = b("abs", x)
    with b.part("exponent"):
        exponent = polynomial(b, b("min", 4.0, a), *_LOG_ERFC)
    # The shift of 256 sets the sign bit: ``minus`` is ``-2**n``.
    n, minus = power_of_two(b, exponent, 1.0, 256)
    with b.part("far"):
        far = b("fma", minus, polynomial(b, b("sub", exponent, n), 1.0, *TWO.terms), 1.0)
    with b.part("near"):
        near = b("fma", x, polynomial(b, b("mul", x, x), *_ERF), x)
        is_near = b("lt", a, _NEAR)
    return b("select", is_near, near, with_sign_of(b, far, x))


_erf_of, _erfc_of = (np.vectorize(f, otypes=[np.float64]) for f in (math.erf, math.erfc))


@builtin(lower=_erf, reference=Within(_erf_of, 2), f64=False, sympy="erf")
def erf(x: Term) -> None:
    """Return the error function of ``x``, within 2 units in the last place.

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
    >>> tw.matmul(one, x, epilogue=tw.erf(tw.acc)).round(4)
    array([[-0.9953,  0.    ,  1.    ]], dtype=float32)
    """


def _bell(b: Program, a: Lane, half: int, terms: tuple[float, ...]) -> Lane:
    """Return ``exp(-a * a / half) * 2**_SCALE`` as elementary operations.

    ``terms`` are the coefficients for exp. The remainder of ``a * a`` is rounded only once.
    """
    step, rest = half * _LOG2[0], half * _LOG2[1]
    with b.part("square"):
        square = b("mul", a, a)
    n, s = power_of_two(b, square, -1 / (step + rest), _SCALE)
    with b.part("remainder"):
        r = b("fma", n, rest, b("fma", a, a, b("mul", n, step)))
    with b.part("bell"):
        return b("mul", polynomial(b, r, *terms), s)


def _erfc(b: Program, x: Lane) -> Lane:
    """Return ``erfc(x)`` as elementary operations; the error is at most 8 ulp."""
    with b.part("magnitude"):
        a = b("min", 10.2, b("abs", x))
    bell = _bell(b, a, 1, _EXP)
    with b.part("numerator"):
        above = b("mul", bell, polynomial(b, a, *_ERFC))
    with b.part("denominator"):
        below = polynomial(b, a, *(math.ldexp(c, _SCALE) for c in _ERFC_BELOW))
    with b.part("quotient"):
        quotient = b("div", above, below)
    return b("select", b("lt", x, 0.0), b("sub", 2.0, quotient), quotient)


@builtin(lower=_erfc, reference=Within(_erfc_of, 4, COMPOSED), f64=False, sympy="erfc")
def erfc(x: Term) -> None:
    """Return ``1 - erf(x)``, with a small relative error.

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
    >>> tw.matmul(one, x, epilogue=tw.erfc(tw.acc)).round(4)
    array([[1.9953, 1.    , 0.    ]], dtype=float32)
    """


def _gelu_erf(b: Program, x: Lane) -> Lane:
    """Return ``gelu_erf(x)`` as elementary operations; -Inf gives -0.

    It is ``max(x, 0) - |x| * erfc(|x| / sqrt(2)) / 2``. The error is at most 8 ulp, also for
    negative x.
    """
    with b.part("magnitude"):
        a = b("min", 14.6, b("abs", x))
    bell = _bell(b, a, 2, _HALF_EXP)
    with b.part("numerator"):
        above = b("mul", bell, b("mul", a, polynomial(b, a, *_GELU)))
    with b.part("denominator"):
        below = polynomial(b, a, *(math.ldexp(c, _SCALE) for c in _GELU_BELOW))
    with b.part("positive"):
        positive = b("max", -0.0, x)
    with b.part("quotient"):
        quotient = b("div", above, below)
    return b("sub", positive, quotient)


@builtin(
    lower=_gelu_erf,
    reference=Within(lambda x: times(x, 0.5 * _erfc_of(-x / math.sqrt(2))), 4, COMPOSED),
    f64=False,
)
def gelu_erf(x: Term) -> None:
    """Return ``x / 2 * (1 + erf(x / sqrt(2)))``.

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
    >>> tw.matmul(one, x, epilogue=tw.gelu_erf(tw.acc)).round(4)
    array([[-0.0455,  0.    ,  2.996 ]], dtype=float32)
    """
