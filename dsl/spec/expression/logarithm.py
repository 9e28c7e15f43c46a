"""Define log, log1p and pow by elementary operations on f32.

"ulp" means units in the last place of the result.
"""

from __future__ import annotations

import math

import numpy as np

from .arithmetic import SIGN
from .define import builtin
from .exponential import LOG2, TWO_PAIRS, clamp, polynomial, wide
from .nodes import Term
from .postop import Lane, Program, Within

__all__ = ["log", "log1p", "pow"]


#: The bits of sqrt(1/2) as f32. Mantissas are chosen from sqrt(1/2) to sqrt(2).
_LEAST = 0x3F3504F3
_EXPONENT = 0xFF800000
#: Coefficients of a polynomial in f for ``(log(1 + f) - f) / f**2``, for 1 + f from sqrt(1/2) to
#: sqrt(2).
_LOG1P: tuple[float, ...] = (
    -0.4999999,
    0.33333945,
    -0.25001776,
    0.19962241,
    -0.16570318,
    0.1491634,
    -0.14307664,
)
_LOG1P += (0.08738758,)
#: Coefficients for ``log2((1 + s) / (1 - s)) = s * (high + low + s**2 * (_ATANH[0] + ...))``, where
#: ``_SLOPE`` is (high, low).
_SLOPE = (2.885390043258667, 3.851925e-08)
_ATANH = (0.9617967, 0.5770788, 0.4119273, 0.33648854)


def _split(b: Program, x: Lane) -> tuple[Lane, Lane]:
    """Return k and f with ``x = 2**k * (1 + f)`` exactly; ``x`` is positive, maybe subnormal."""
    with b.part("normal"):
        scaled = b("sub", b("bits", b("mul", x, 2.0**23)), 23 << 23)
        bits = b("select", b("lt", x, 2.0**-126), scaled, b("bits", x))
    exponent = _exponent(b, bits)
    with b.part("fraction"):
        mantissa = b("float", b("sub", bits, exponent))
    whole = _whole(b, exponent)
    with b.part("fraction"):
        return whole, b("sub", mantissa, 1.0)


def _exponent(b: Program, bits: Lane) -> Lane:
    """Return k * 2**23 for the ``bits`` of a number between 2**k * sqrt(1/2) and 2**k * sqrt(2)."""
    with b.part("exponent"):
        return b("and", b("sub", bits, _LEAST), _EXPONENT)


def _whole(b: Program, exponent: Lane) -> Lane:
    with b.part("exponent"):
        return b("to_f32", b("shr", exponent, 23))


def _log(b: Program, x: Lane) -> Lane:
    """Return ``log(x)`` as elementary operations; the error is at most 2 ulp."""
    return _log_of_parts(b, x, *_split(b, x))


def _log_of_parts(b: Program, x: Lane, k: Lane, f: Lane) -> Lane:
    """Return ``log(x)``, where ``x`` is ``2**k * (1 + f)`` if it is positive and finite."""
    with b.part("log1p"):
        rest = b("fma", b("mul", f, f), polynomial(b, f, *_LOG1P), b("mul", k, LOG2[1]))
    with b.part("sum"):
        found = b("fma", k, LOG2[0], b("add", f, rest))
    with b.part("edges"):
        edge = b("select", b("eq", x, 0.0), -math.inf, math.nan)
        found = b("select", b("lt", 0.0, x), found, edge)
        return b("select", b("eq", x, math.inf), x, found)


@builtin(lower=_log, reference=Within(np.log, 2), f64=False, sympy="log")
def log(x: Term) -> None:
    """Return the natural logarithm of ``x``: -Inf at 0, NaN for negative values.

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
    >>> one, x = np.float32([[1]]), np.float32([[0, 1, 2]])
    >>> tw.matmul(one, x, epilogue=tw.log(tw.acc)).round(4)
    array([[  -inf, 0.    , 0.6931]], dtype=float32)
    """


def _log1p(b: Program, x: Lane) -> Lane:
    """Return ``log(1 + x)`` as elementary operations; the error is at most 2 ulp.

    The fraction f in ``1 + x = 2**k * (1 + f)`` is computed from ``x``, not from the rounded sum.
    """
    with b.part("sum"):
        total = b("add", x, 1.0)
    exponent = _exponent(b, b("bits", total))
    with b.part("fraction"):
        # 2**(2 - k) is a normal number, because k is from -24 to 128.
        scale = b("float", b("sub", 129 << 23, exponent))
        f = b("fma", scale, b("mul", x, 0.25), b("fma", scale, 0.25, -1.0))
    found = _log_of_parts(b, total, _whole(b, exponent), f)
    with b.part("tiny"):
        return b("select", b("lt", b("abs", x), 2.0**-24), x, found)


@builtin(lower=_log1p, reference=Within(np.log1p, 2), f64=False)
def log1p(x: Term) -> None:
    """Return ``log(1 + x)``, within 2 units in the last place for small ``x`` too.

    It is -Inf at -1, and NaN below.

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
    >>> one, x = np.float32([[1]]), np.float32([[-1, 1e-10, 3]])
    >>> tw.matmul(one, x, epilogue=tw.log1p(tw.acc))
    array([[         -inf, 1.0000000e-10, 1.3862944e+00]], dtype=float32)
    """


def _log2(b: Program, x: Lane) -> tuple[Lane, Lane]:
    """Return two numbers whose sum is ``log2(x)`` within 2**-29; ``x`` is positive and finite."""
    k, f = _split(b, x)
    with b.part("log2"):
        return _log2_of_parts(b, k, f)


def _log2_of_parts(b: Program, k: Lane, f: Lane) -> tuple[Lane, Lane]:
    """Return two numbers whose sum is ``k + log2(1 + f)``."""
    m = b("add", f, 1.0)
    divisor = b("add", m, 1.0)
    lost = b("sub", m, b("sub", divisor, 1.0))
    reciprocal = b("div", 1.0, divisor)
    s = b("mul", f, reciprocal)
    minus = b("neg", s)
    rest = b("fma", minus, lost, b("fma", minus, divisor, f))
    square = b("mul", s, s)
    high = b("mul", s, _SLOPE[0])
    low = b("fma", s, _SLOPE[1], b("fma", s, _SLOPE[0], b("neg", high)))
    low = b("fma", b("mul", rest, reciprocal), _SLOPE[0], low)
    low = b("fma", b("mul", s, square), polynomial(b, square, *_ATANH), low)
    return _sum(b, *_sum(b, k, high, low))


def _sum(b: Program, x: Lane, y: Lane, rest: Lane = 0.0) -> tuple[Lane, Lane]:
    """Return ``x + y`` rounded to f32, and the rounding error plus ``rest``.

    ``x`` must be 0, or its magnitude not less than that of ``y``.
    """
    total = b("add", x, y)
    return total, b("add", b("sub", y, b("sub", total, x)), rest)


def _exact_power(b: Program, x: Lane, beta: float) -> Lane | None:
    """Return ``x**beta`` if a few operations of f32 or f64 compute it; None for other exponents."""
    if abs(beta) > 1 and beta in (-2, 2, 3, 4):
        square = b("mul", x, x) if beta > 0 else b("div", 1.0, x)
        other = x if beta == 3 else square
        return square if beta == 2 else b("mul", square, other)
    if beta == 0.5:
        return b("select", b("eq", x, -math.inf), math.inf, b("sqrt", b("add", x, 0.0)))
    if abs(beta) == 1:
        return x if beta == 1 else b("div", 1.0, x)
    return None


def _power(b: Program, x: Lane, alpha: float, beta: float) -> Lane:
    """Return ``alpha * x**beta`` as elementary operations; the power's error is at most 4 ulp."""
    if beta == 0:
        return alpha
    found = _exact_power(b, x, beta)
    return b("mul", _general_power(b, x, beta) if found is None else found, alpha)


def _general_power(b: Program, x: Lane, beta: float) -> Lane:
    a = b("abs", x)
    high, low = _log2(b, a)
    # With an exponent above 2**40, the power of any f32 number but 1 is 0 or infinite anyway.
    rate = math.copysign(min(abs(beta), 2.0**40), beta)
    with b.part("exponent"):
        y = b("mul", high, rate)
        rest = b("fma", low, rate, b("fma", high, rate, b("neg", y)))
    r, scaled = wide(b, y, TWO_PAIRS, 130.0)
    r = b("add", r, rest)
    if abs(rate) > 4096:
        # ``rest`` is the low part of log2(x) times ``rate``. It is large only if ``rate`` is large.
        r = clamp(b, r, -1.0, 1.0)
    with b.part("polynomial"):
        q = polynomial(b, r, *TWO_PAIRS.terms)
    with b.part("exp2"):
        found = scaled(b("fma", r, q, 1.0))
    with b.part("edges"):
        return _power_at_edges(b, x, a, found, beta)


def _power_at_edges(b: Program, x: Lane, a: Lane, found: Lane, beta: float) -> Lane:
    """Return the power ``found``, corrected if ``x`` is 0, infinite, NaN or negative.

    The corrected results are those of C and numpy. ``a`` is ``|x|``.
    """
    whole = beta.is_integer()
    if not whole:
        found = b("select", b("lt", x, 0.0), math.nan, found)
    found = b("select", b("eq", a, 0.0), 0.0 if beta > 0 else math.inf, found)
    found = b("select", b("eq", a, math.inf), math.inf if beta > 0 else 0.0, found)
    found = b("select", b("eq", a, a), found, a)
    if whole and beta % 2:
        sign = b("and", b("bits", x), SIGN)
        found = b("float", b("or", b("bits", found), sign))
    return found


#: Exponents for which a few operations compute the power, so that it is available in f64 too.
_POWERS = (-2, -1, 0, 0.5, 1, 2, 3, 4)


@builtin(
    lower=_power,
    reference=Within(lambda x, alpha, beta: alpha * x**beta, 4),
    f64=lambda _, beta: beta in _POWERS,
    sympy=lambda x, alpha, beta: alpha * x**beta,
    samples=((0.5, 2), (2, 0.3)),
)
def pow(x: Term, alpha: float, beta: float) -> None:
    """Return ``alpha * x**beta``. The operator ``x ** beta`` is ``pow(x, 1, beta)``.

    Parameters
    ----------
    x : Expression or float
        The operand.
    alpha, beta : float
        Factor and exponent.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[0, 1, 2]])
    >>> tw.matmul(one, x, epilogue=tw.pow(tw.acc, 2, 3))
    array([[ 0.,  2., 16.]], dtype=float32)
    """
