"""Define the elementary operations, which give the same bits on every target.

An operation acts on lanes of one type. A comparison gives lanes whose bits are all ones or all
zeros. The meaning of each operation is the numpy function in ``NUMPY``. Floating-point results are
rounded once, to nearest even; integers wrap. ``min(x, y)`` is ``x < y ? x : y`` and ``max(x, y)``
is ``x > y ? x : y``: both are y if x and y are equal or unordered. ``to_s32`` requires that the
value fits. ``bits`` and ``float`` reinterpret the bits. A NaN stays a NaN, with any sign and
payload. ``scale(x, n)`` is ``x * 2**floor(n)`` for a finite n. ``zero_below(low, x, y)`` is 0 where
``x < low``, else y. Only some targets have these two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

Array = Any
#: numpy's type of the lanes of each element type. m64 is the type of an f64 comparison's result.
DTYPES: dict[str, Any] = {
    "f32": np.float32, "f64": np.float64, "s32": np.int32, "s64": np.int64, "m64": np.int64,
}  # fmt: skip

_REAL = ("f32", "f64")
_ALL = ("f32", "f64", "s32")
#: Element types of add and mul. Integers of 64 bits and f16 have no other operations.
_SUMS = (*_ALL, "s64", "f16")
_KEPT: dict[str, str] = {}
#: Type of a comparison's result, by the type of its operands.
MASKS = {"f32": "s32", "f64": "m64", "s32": "s32"}


@dataclass(frozen=True, slots=True)
class Operation:
    """An elementary operation: its number of arguments, and the lane types that it accepts.

    ``other`` gives the type of the result where it differs from the type of the lanes.
    """

    arity: int
    elements: tuple[str, ...]
    other: Mapping[str, str]

    def result(self, element: str) -> str:
        """Return the type of the result for lanes of ``element``."""
        return self.other.get(element, element)


#: Every operation. The first argument of ``select`` is a mask; the second of a shift is a literal.
OPERATIONS: dict[str, Operation] = {
    **dict.fromkeys(("add", "mul"), Operation(2, _SUMS, _KEPT)),
    **dict.fromkeys(("sub", "min", "max"), Operation(2, _ALL, _KEPT)),
    "div": Operation(2, _REAL, _KEPT),
    **dict.fromkeys(("sqrt", "abs", "neg"), Operation(1, _REAL, _KEPT)),
    "round": Operation(1, ("f32",), _KEPT),
    "fma": Operation(3, _REAL, _KEPT),
    **dict.fromkeys(("lt", "eq"), Operation(2, _ALL, MASKS)),
    "le": Operation(2, _REAL, MASKS),
    "gt": Operation(2, ("s32",), MASKS),
    "select": Operation(3, _ALL, _KEPT),
    **dict.fromkeys(("and", "or", "xor", "shl", "shr", "ushr"), Operation(2, ("s32",), _KEPT)),
    **dict.fromkeys(("to_s32", "bits"), Operation(1, ("f32",), {"f32": "s32"})),
    **dict.fromkeys(("to_f32", "float"), Operation(1, ("s32",), {"s32": "f32"})),
    "scale": Operation(2, ("f32",), _KEPT),
    "zero_below": Operation(3, ("f32",), _KEPT),
}
#: Operations that only some targets have: ``Builder.has`` tells. The others are on every target.
OPTIONAL = frozenset(("scale", "zero_below"))


# -- their meaning in numpy ---------------------------------------------------------------------

#: Number of lanes up to which a Python loop over them is faster than numpy.
_FEW = 64
#: Mask of all bits of an f64 but its sign.
_MAGNITUDE = 2**63 - 1
#: Mask of the 29 bits of an f64 that f32 drops, and their value half way between two f32.
_DROPPED, _HALF = 2**29 - 1, 2**28
#: The bits of an f64 that is the smallest normal number of f32.
_LEAST = 897 << 52
#: A larger exponent makes any f32 number infinite, and a smaller one makes it 0.
_MOST = 300
#: If a product of f64 numbers has a magnitude between these, its rounding error is computed exactly
#: from the halves of both numbers.
_SMALL, _LARGE = 2.0**-900, 2.0**900


def _fma(x: Array, y: Array, z: Array) -> Array:
    if x.dtype == np.float16:  # for f16, rounding the sum to f64 first does not change the result
        return (x.astype(np.float64) * y + z).astype(np.float16)
    return _fma_f64(x, y, z) if x.dtype == np.float64 else _fma_f32(x, y, z)


def _fma_f32(x: Array, y: Array, z: Array) -> Array:
    """Return x * y + z, rounded once.

    The product is exact in f64. The sum is rounded to f64 and then to f32. This can be wrong only
    if the f64 sum is half way between two f32 numbers. For a few lanes, a quick test excludes this
    case.
    """
    product = np.multiply(x, y, dtype=np.float64)
    total = np.asarray(product + z)
    if 0 < total.size <= _FEW and total.ndim and not _delicate(total):
        return total.astype(np.float32)
    virtual = total - product
    error = (product - (total - virtual)) + (z - virtual)
    bits = total.view(np.int64)
    even = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return (bits + np.where(even, step, 0)).view(np.float64).astype(np.float32)


def _delicate(total: Array) -> bool:
    """Return True if an f64 may be half way between two f32 numbers."""
    for bits in total.view(np.int64).ravel().tolist():
        if bits & _DROPPED == _HALF or 0 < bits & _MAGNITUDE < _LEAST:
            return True
    return False


def _fma_one(x: float, y: float, z: float) -> float:
    product = x * y
    if _SMALL < abs(product) < _LARGE and max(abs(x), abs(y), abs(z)) < _LARGE:
        (xh, xl), (yh, yl) = _halves(x), _halves(y)
        error = ((xh * yh - product + xh * yl) + xl * yh) + xl * yl
        return math.fsum((product, error, z))
    if not (math.isfinite(x) and math.isfinite(y)) or product == 0 == min(abs(x), abs(y)):
        return product + z
    if not math.isfinite(z):
        return z
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    sign = -1.0 if exact < 0 else 1.0
    try:
        return sign * (abs(exact.numerator) / exact.denominator)
    except OverflowError:
        return sign * math.inf


def _halves(x: float) -> tuple[float, float]:
    """Split ``x`` into a sum of two numbers with half as many digits each (Dekker's splitting)."""
    scaled = x * (2.0**27 + 1)
    high = scaled - (scaled - x)
    return high, x - high


def _fma_f64(x: Array, y: Array, z: Array) -> Array:
    lanes: Sequence[Array] = (x, y, z)
    if not x.shape == y.shape == z.shape:
        lanes = np.broadcast_arrays(x, y, z)
    found = list(map(_fma_one, *(a.ravel().tolist() for a in lanes)))
    return np.array(found, np.float64).reshape(lanes[0].shape)


def _mask(found: Array, x: Array) -> Array:
    return -found.astype(np.int64 if x.dtype == np.float64 else np.int32)


def _unsigned_shift(x: Array, count: Array) -> Array:
    return (x.view(np.uint32) >> count.astype(np.uint32)).view(np.int32)


def _scale(x: Array, n: Array) -> Array:
    power = np.nan_to_num(np.clip(np.floor(n), -_MOST, _MOST)).astype(np.int32)
    return np.where(np.isnan(n), np.nan, np.ldexp(x.astype(np.float64), power)).astype(np.float32)


#: For each operation, the numpy function that defines it, on arrays of the lanes' types.
NUMPY: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "neg": np.negative,
    "round": np.rint,
    "fma": _fma,
    "min": lambda x, y: np.where(x < y, x, y),
    "max": lambda x, y: np.where(x > y, x, y),
    "lt": lambda x, y: _mask(x < y, x),
    "le": lambda x, y: _mask(x <= y, x),
    "eq": lambda x, y: _mask(x == y, x),
    "gt": lambda x, y: _mask(x > y, x),
    "select": lambda mask, x, y: np.where(mask != 0, x, y),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "ushr": _unsigned_shift,
    "to_s32": lambda x: np.rint(x).astype(np.int32),
    "to_f32": lambda x: x.astype(np.float32),
    "bits": lambda x: x.view(np.int32),
    "float": lambda x: x.view(np.float32),
    "scale": _scale,
    "zero_below": lambda low, x, y: np.where(x < low, np.float32(0), y),
}


def compute(fn: str, *args: Array) -> Array:
    """Return the result of operation ``fn`` on numpy arrays, without warnings about NaN etc."""
    with np.errstate(all="ignore"):
        return NUMPY[fn](*args)
