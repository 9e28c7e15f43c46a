"""Define exp and the functions built from it, by elementary operations on f32.

``base**x`` is ``2**(step * n)`` times ``base**r`` with a small ``r``. Adding ``MAGIC`` rounds to n
and leaves it in the last bits. A shift makes these bits the exponent of a power of two. The
polynomials are minimax: their coefficients were rounded to f32 one after another, and after each
rounding the other coefficients were fitted again by a linear program. "ulp" means units in the last
place of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import SpecError, SpecTypeError
from tilewright.keywords import spelled

from .arithmetic import SIGN, times
from .define import builtin
from .nodes import Expression, Term
from .postop import COMPOSED, Lane, Program, Within

__all__ = [
    "elu",
    "exp",
    "expm1",
    "gelu_tanh",
    "logistic",
    "mish",
    "silu",
    "soft_relu",
    "swish",
    "tanh",
]


#: Adding this to an f32 number rounds it to an integer, because f32 numbers near 1.5 * 2**23 have
#: no fractional bits. The 127 is the bias of f32's exponent.
MAGIC = 1.5 * 2.0**23 + 127
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Base:
    """The constants by which ``base**x`` is computed, for one base.

    ``base**r = 1 + r * (terms[0] + terms[1] * r + ...)`` for ``|r| <= step / 2``. ``step`` is given
    as two numbers that add up to it: its f32 value, and the rest.
    """

    rate: float
    step: tuple[float, float]
    terms: tuple[float, ...]


#: log(2) as two numbers that add up to it: its f32 value, and the rest.
LOG2 = (0.6931471824645996, -1.904654323148236e-09)
_RATE = 1 / math.log(2)
_E_TERMS = (1.0, 0.49999997, 0.16666546, 0.041667443, 0.008366256, 0.0013869862)
E = Base(_RATE, LOG2, _E_TERMS)
TWO = Base(
    1.0,
    (1.0, 0.0),
    (0.6931472, 0.24022645, 0.05550363, 0.0096187955, 0.0013389502, 0.00015257546),
)
#: Constants for exp if the result may be infinite or subnormal. The result is then scaled twice by
#: the square root of its power of two, because f32 may not be able to hold the power itself.
E_PAIRS = Base(
    _RATE / 2,
    (2 * LOG2[0], 2 * LOG2[1]),
    (1.0, 0.50000036, 0.16666618, 0.04166123, 0.00833593, 0.0014104755, 0.00019630595),
)
TWO_PAIRS = Base(
    0.5,
    (2.0, 0.0),
    (0.69314724, 0.24022669, 0.05550366, 0.009616844, 0.0013341717, 0.00015645298, 1.4917234e-05),
)
#: Coefficients of a polynomial for ``log(1 + x) / x``, for x from 0 to 1.
_LOG1P: tuple[float, ...] = (
    1.0,
    -0.49999648,
    0.3332133,
    -0.24857217,
    0.19153848,
    -0.13754189,
    0.07920889,
)
_LOG1P += (-0.030068377, 0.005365454)


def polynomial(b: Program, x: Lane, *coefficients: float) -> Lane:
    """Return the value of a polynomial in ``x``; ``coefficients`` begin with the constant term.

    Pairs of terms are computed first, then Horner's rule is used in ``x * x``. This needs half as
    many operations one after the other.
    """
    pairs: list[Lane] = [
        b("fma", x, odd, even)
        for even, odd in zip(coefficients[::2], coefficients[1::2], strict=False)
    ]
    pairs += coefficients[2 * len(pairs) :]
    total, square = pairs.pop(), b("mul", x, x)
    for pair in reversed(pairs):
        total = b("fma", total, square, pair)
    return total


def clamp(b: Program, x: Lane, low: float, high: float) -> Lane:
    """Return ``x`` limited to the range from ``low`` to ``high``; NaN stays NaN."""
    with b.part("clamped"):
        return b("min", high, b("max", low, x))


def with_sign_of(b: Program, x: Lane, source: Lane) -> Lane:
    """Return ``x`` with the sign of ``source``; ``x`` must not be negative."""
    with b.part("signed"):
        return b("float", b("or", b("bits", x), b("and", b("bits", source), SIGN)))


def _nearest(b: Program, x: Lane, rate: float, magic: float) -> tuple[Lane, Lane]:
    """Return ``rate * x + magic`` rounded, and this sum without ``magic``."""
    with b.part("rounded"):
        moved = b("fma", x, rate, magic)
    with b.part("whole"):
        return moved, b("sub", moved, magic)


def power_of_two(b: Program, x: Lane, rate: float, shift: int = 0) -> tuple[Lane, Lane]:
    """Return n and ``2**(n + shift)``, where n is the integer nearest to ``rate * x``."""
    moved, n = _nearest(b, x, rate, MAGIC + shift)
    with b.part("power"):
        return n, b("float", b("shl", b("bits", moved), 23))


def reduce(b: Program, x: Lane, base: Base, shift: int = 0, sign: float = 1) -> tuple[Lane, Lane]:
    """Return s and a small r with ``base**(sign * x) * 2**shift = s * base**(sign * r)``.

    For a base with steps of two powers of two (``E_PAIRS``), s is squared in this equation.
    """
    n, s = power_of_two(b, x, sign * base.rate, shift)
    return s, _remainder(b, x, n, [sign * part for part in base.step])


def _remainder(b: Program, x: Lane, n: Lane, step: Sequence[float]) -> Lane:
    """Return ``x - n * step``; ``step`` is given as several numbers that add up to it."""
    with b.part("remainder"):
        for part in filter(None, step):
            x = b("fma", n, -part, x)
    return x


def wide(b: Program, x: Lane, base: Base, high: float) -> tuple[Lane, Callable[[Lane], Lane]]:
    """Return r and a function that makes ``base**x`` of ``base**r``; it may be 0 or infinite.

    Larger ``x`` are taken for ``high``. ``base`` has steps of two powers of two.
    """
    # Here n is -127, and the result 0. Processors are slow if a product underflows. This one does
    # not, because ``power_of_two`` returns 0 for n = -127.
    low = float(round(-127 / base.rate))
    if not b.has("scale"):
        s, r = reduce(b, clamp(b, x, low, high), base)
        return r, lambda power: b("mul", b("mul", power, s), s)
    # Twice the rate and half the step give 2 * n, and the same remainder.
    with b.part("clamped"):
        limited = b("min", high, x)
    _, n = _nearest(b, limited, 2 * base.rate, 2 * MAGIC)
    r = _remainder(b, limited, n, [part / 2 for part in base.step])
    return r, lambda power: b("zero_below", low, x, b("scale", power, n))


def factors(
    b: Program, x: Lane, base: Base, shift: int = 0, sign: float = 1
) -> tuple[Lane, Lane, Lane]:
    """Return s, r and q with ``base**(sign * x) * 2**shift = s * (1 + r * q)``.

    For a base with steps of two powers of two (``E_PAIRS``), s is squared in this equation.
    """
    s, r = reduce(b, x, base, shift, sign)
    terms = [term * sign ** (i + 1) for i, term in enumerate(base.terms)]
    with b.part("polynomial"):
        return s, r, polynomial(b, r, *terms)


def _exp(b: Program, x: Lane, high: float = 89.0) -> Lane:
    """Return ``exp(x)`` as elementary operations; larger ``x`` are taken for ``high``."""
    r, scaled = wide(b, x, E_PAIRS, high)
    with b.part("polynomial"):
        q = polynomial(b, r, *E_PAIRS.terms)
    with b.part("exp"):
        return scaled(b("fma", r, q, 1.0))


@builtin(lower=_exp, reference=Within(np.exp, 2), f64=False, sympy="exp")
def exp(x: Term) -> None:
    """Return ``e**x``, within 2 units in the last place.

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
    >>> tw.matmul(one, x, epilogue=tw.exp(tw.acc)).round(4)
    array([[ 0.1353,  1.    , 20.0855]], dtype=float32)
    """


def _expm1_inside(b: Program, x: Lane, shift: int = 0) -> Lane:
    """Return ``(exp(x) - 1) * 2**shift`` as elementary operations.

    ``x`` is from -80 to 80, or to 89 if ``shift`` is -1.

    The relative error is small for small ``x`` too.
    """
    s, r = reduce(b, x, E, shift)
    with b.part("polynomial"):
        q = b("fma", b("mul", r, r), polynomial(b, r, *E.terms[1:]), r)
    with b.part("expm1"):
        return b("fma", s, q, b("sub", s, 2.0**shift))


def _expm1(b: Program, x: Lane) -> Lane:
    """Return ``exp(x) - 1`` as elementary operations; the error is at most 2 ulp."""
    # Half of it, because the power of two in it may be infinite.
    half = _expm1_inside(b, clamp(b, x, -20.0, 89.0), shift=-1)
    with b.part("tiny"):
        tiny = b("lt", b("abs", x), 2.0**-26)
    with b.part("expm1"):
        return b("select", tiny, x, b("mul", half, 2.0))


@builtin(lower=_expm1, reference=Within(np.expm1, 2), f64=False)
def expm1(x: Term) -> None:
    """Return ``e**x - 1``, within 2 units in the last place for small ``x`` too.

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
    >>> one, x = np.float32([[1]]), np.float32([[-2, 1e-10, 3]])
    >>> tw.matmul(one, x, epilogue=tw.expm1(tw.acc))
    array([[-8.6466473e-01,  1.0000000e-10,  1.9085537e+01]], dtype=float32)
    """


def _tanh(b: Program, x: Lane) -> Lane:
    """Return ``tanh(x)`` as elementary operations; the error is at most 2 ulp.

    With ``y = expm1(2 * |x|) / 2`` it is ``y / (y + 1)``. For small y, a correction is added.
    """
    with b.part("twice"):
        twice = b("mul", b("min", 10.0, b("abs", x)), 2.0)
    y = _expm1_inside(b, twice, shift=-1)
    with b.part("quotient"):
        quotient = b("div", y, b("add", y, 1.0))
    with b.part("corrected"):
        corrected = b("fma", b("neg", y), quotient, y)
        found = b("select", b("lt", y, 0.6), corrected, quotient)
    return with_sign_of(b, found, x)


@builtin(lower=_tanh, reference=Within(np.tanh, 2), f64=False, sympy="tanh")
def tanh(x: Term) -> None:
    """Return the hyperbolic tangent, within 2 units in the last place.

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
    >>> tw.matmul(one, x, epilogue=tw.tanh(tw.acc)).round(4)
    array([[-0.964 ,  0.    ,  0.9951]], dtype=float32)
    """


def _elu(b: Program, x: Lane, alpha: Lane) -> Lane:
    """Return ``elu(x)`` as elementary operations; the error is at most 3 ulp."""
    with b.part("clamped"):
        negative = b("max", -20.0, b("min", 0.0, x))
    below = _expm1_inside(b, negative)
    with b.part("positive"):
        positive = b("max", 0.0, x)
    return b("fma", below, alpha, positive)


@builtin(
    lower=_elu,
    reference=Within(
        lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))), 4, COMPOSED
    ),
    f64=False,
    samples=((), (2,)),
)
def elu(x: Term, alpha: float = 1) -> None:
    """Return ``x`` if it is positive, else ``alpha * (exp(x) - 1)``.

    Parameters
    ----------
    x : Expression or float
        The operand.
    alpha : float, default 1
        Magnitude of the limit at -Inf.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-2, 0, 3]])
    >>> tw.matmul(one, x, epilogue=tw.elu(tw.acc)).round(4)
    array([[-0.8647,  0.    ,  3.    ]], dtype=float32)
    """


#: Numerator and denominator of 1 / (1 + exp(-x)) are multiplied by 2 to this power, so that the
#: denominator stays finite.
_SCALE = -40


def _logistic(b: Program, x: Lane) -> Lane:
    """Return ``logistic(x)`` as elementary operations; the error is at most 2 ulp.

    The rounding error of ``1 + 2**n`` in the denominator is computed, and added back.
    """
    s, r, q = factors(b, clamp(b, x, -104.0, 50.0), E, _SCALE, sign=-1)
    one = 2.0**_SCALE
    with b.part("denominator"):
        total = b("add", one, s)
        lost = b("sub", one, b("sub", total, s))
        below = b("add", b("fma", b("mul", s, r), q, lost), total)
    return b("div", one, below)


def _logistic_of(x: Any) -> Any:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1.0 + small)


@builtin(lower=_logistic, reference=Within(_logistic_of, 2), f64=False)
def logistic(x: Term) -> None:
    """Return ``1 / (1 + exp(-x))``, within 2 units in the last place.

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
    >>> tw.matmul(one, x, epilogue=tw.logistic(tw.acc)).round(4)
    array([[0.1192, 0.5   , 0.9526]], dtype=float32)
    """


def _gate(b: Program, x: Lane, exponent: Lane, base: Base, sign: float) -> Lane:
    """Return ``x / (1 + base**-exponent)`` as elementary operations.

    If ``x`` is infinite and the factor is 0, the result is 0.
    """
    low, high = -151 * base.step[0], 60 * base.step[0]
    s, r, q = factors(b, clamp(b, exponent, low, high), base, _SCALE, sign=-1)
    one = 2.0**_SCALE
    with b.part("denominator"):
        below = b("fma", b("mul", s, r), q, b("add", one, s))
    with b.part("gate"):
        gate = b("div", one, below)
    with b.part("finite"):
        finite = b("max", -LARGEST, x) if sign > 0 else b("min", LARGEST, x)
    return b("mul", finite, gate)


def _swish(b: Program, x: Lane, alpha: float) -> Lane:
    """Return ``swish(x)`` as elementary operations; -Inf gives -0.

    The error is at most 4 ulp if ``logistic(alpha * x)`` is not subnormal, and ``alpha * x`` exact.
    """
    if alpha == 0:
        return b("mul", x, 0.5)
    with b.part("exponent"):
        exponent = b("mul", x, alpha)
    return _gate(b, x, exponent, E, math.copysign(1, alpha))


@builtin(
    lower=_swish,
    reference=Within(lambda x, alpha: times(x, _logistic_of(alpha * x)), 4, COMPOSED),
    f64=False,
    samples=((), (2,)),
)
def swish(x: Term, alpha: float = 1) -> None:
    """Return ``x * logistic(alpha * x)``.

    Parameters
    ----------
    x : Expression or float
        The operand.
    alpha : float, default 1
        Factor inside the gate.

    Returns
    -------
    Expression
        The value for each element.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-2, 0, 3]])
    >>> tw.matmul(one, x, epilogue=tw.swish(tw.acc, 2)).round(4)
    array([[-0.036 ,  0.    ,  2.9926]], dtype=float32)
    """


@spelled(SpecTypeError)
def silu(x: Term) -> Expression:
    """Return ``x * logistic(x)``.

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
    >>> tw.matmul(one, x, epilogue=tw.silu(tw.acc)).round(4)
    array([[-0.2384,  0.    ,  2.8577]], dtype=float32)
    """
    return swish(x)


def _gelu_tanh(b: Program, x: Lane) -> Lane:
    """Return ``gelu_tanh(x)`` as elementary operations; the absolute error is at most 1e-6.

    ``(1 + tanh(y)) / 2`` is computed as ``1 / (1 + exp(-2 * y))``. -Inf gives -0.
    """
    rate = 2 * math.sqrt(2 / math.pi) * _RATE
    with b.part("exponent"):
        exponent = b("mul", x, b("fma", b("mul", x, x), 0.044715 * rate, rate))
    return _gate(b, x, exponent, TWO, 1)


def _gelu_tanh_of(x: Any) -> Any:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return times(x, 0.5 * (1 + np.tanh(inner)))


@builtin(lower=_gelu_tanh, reference=Within(_gelu_tanh_of, 4, COMPOSED), f64=False)
def gelu_tanh(x: Term) -> None:
    """Return ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``.

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
    >>> tw.matmul(one, x, epilogue=tw.gelu_tanh(tw.acc)).round(4)
    array([[-0.0454,  0.    ,  2.9964]], dtype=float32)
    """


def _soft_relu(b: Program, x: Lane, alpha: float) -> Lane:
    """Return ``soft_relu(x)`` as elementary operations: ``max(x, 0)`` plus a small remainder.

    The error is at most 4 ulp if ``alpha * x`` is exact.
    """
    with b.part("exponent"):
        exponent = b("neg", b("abs", b("mul", x, alpha)))
    small = _exp(b, exponent, 0.0)
    with b.part("log1p"):
        rest = b("mul", small, polynomial(b, small, *_LOG1P))
    with b.part("positive"):
        positive = b("max" if alpha > 0 else "min", 0.0, x)
    return b("fma", rest, 1 / alpha, positive)


def _soft_relu_of(x: Any, alpha: float = 1.0) -> Any:
    scaled = alpha * x
    return (np.maximum(scaled, 0) + np.log1p(np.exp(-np.abs(scaled)))) / alpha


@builtin(lower=_soft_relu, reference=Within(_soft_relu_of, 4, COMPOSED), f64=False)
def soft_relu(x: Term, alpha: float = 1) -> None:
    """Return ``log(1 + exp(alpha * x)) / alpha`` without overflow.

    Parameters
    ----------
    x : Expression or float
        The operand.
    alpha : float, default 1
        Sharpness, not 0.

    Returns
    -------
    Expression
        The value for each element.

    Raises
    ------
    SpecError
        ``alpha`` is 0.

    Examples
    --------
    >>> one, x = np.float32([[1]]), np.float32([[-2, 0, 3]])
    >>> tw.matmul(one, x, epilogue=tw.soft_relu(tw.acc)).round(4)
    array([[0.1269, 0.6931, 3.0486]], dtype=float32)
    """
    if alpha == 0:
        raise SpecError("soft_relu divides by alpha", got="alpha=0")


def _mish(b: Program, x: Lane) -> Lane:
    """Return ``mish(x)`` as elementary operations.

    With ``e = exp(x)`` and ``y = e * (e + 2)`` it is ``x * y / (y + 2)``. The error is at most 8
    ulp if e is not subnormal.
    """
    with b.part("finite"):
        finite = b("max", -120.0, x)
    e = _exp(b, x, 20.0)
    with b.part("numerator"):
        y = b("mul", e, b("add", e, 2.0))
    with b.part("gate"):
        gate = b("div", y, b("add", y, 2.0))
    return b("mul", finite, gate)


@builtin(
    lower=_mish,
    reference=Within(lambda x: times(x, np.tanh(_soft_relu_of(x))), 4, COMPOSED),
    f64=False,
)
def mish(x: Term) -> None:
    """Return ``x * tanh(soft_relu(x))``.

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
    >>> tw.matmul(one, x, epilogue=tw.mish(tw.acc)).round(4)
    array([[-0.2525,  0.    ,  2.9865]], dtype=float32)
    """
