"""Elementary operations: what vector registers compute, with the same bits on every target.

An operation acts on lanes of one type; a comparison gives lanes of ones or zeros. What it computes
is the numpy function in ``NUMPY``: floating-point results are rounded once, to nearest even, and
integers wrap. ``min(x, y)`` is ``x < y ? x : y`` and ``max(x, y)`` is ``x > y ? x : y``, thus y if
they are equal or unordered. ``to_s32`` rounds what is known to fit; ``bits`` and ``float`` keep
the bits. A NaN stays a NaN; nothing is said of its sign and payload.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

Array = Any
#: numpy's type for the lanes of each element type; s64 are the lanes of an f64 comparison.
DTYPES: dict[str, Any] = {"f32": np.float32, "f64": np.float64, "s32": np.int32, "s64": np.int64}

_REAL = ("f32", "f64")
_ALL = ("f32", "f64", "s32")
_KEPT: dict[str, str] = {}
#: The lanes of a comparison.
MASKS = {"f32": "s32", "f64": "s64", "s32": "s32"}


@dataclass(frozen=True, slots=True)
class Operation:
    """How many arguments, the lanes they may have, and the result's where it has others."""

    arity: int
    elements: tuple[str, ...]
    other: Mapping[str, str]

    def result(self, element: str) -> str:
        """The type of the result."""
        return self.other.get(element, element)


#: Every operation. ``select`` takes a mask first; shifts take a literal second.
OPERATIONS: dict[str, Operation] = {
    **dict.fromkeys(("add", "sub", "mul", "min", "max"), Operation(2, _ALL, _KEPT)),
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
}


# -- what they compute --------------------------------------------------------------------------


def _fma(x: Array, y: Array, z: Array) -> Array:
    return _fma_f64(x, y, z) if x.dtype == np.float64 else _fma_f32(x, y, z)


def _fma_f32(x: Array, y: Array, z: Array) -> Array:
    """The product is exact in f64; the sum is rounded to odd there, and once more to f32."""
    product, addend = x.astype(np.float64) * y, z.astype(np.float64)
    total = np.asarray(product + addend)
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    bits = total.view(np.int64)
    even = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return (bits + np.where(even, step, 0)).view(np.float64).astype(np.float32)


def _fma_one(x: float, y: float, z: float) -> float:
    if not (math.isfinite(x) and math.isfinite(y)) or x * y == 0 == min(abs(x), abs(y)):
        return x * y + z
    if not math.isfinite(z):
        return z
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    sign = -1.0 if exact < 0 else 1.0
    try:
        return sign * (abs(exact.numerator) / exact.denominator)
    except OverflowError:
        return sign * math.inf


def _fma_f64(x: Array, y: Array, z: Array) -> Array:
    lanes = np.broadcast_arrays(x, y, z)
    found = [_fma_one(*map(float, one)) for one in zip(*(a.ravel() for a in lanes), strict=True)]
    return np.array(found, np.float64).reshape(lanes[0].shape)


def _mask(found: Array, x: Array) -> Array:
    return -found.astype(np.int64 if x.dtype == np.float64 else np.int32)


def _unsigned_shift(x: Array, count: Array) -> Array:
    return (x.view(np.uint32) >> count.astype(np.uint32)).view(np.int32)


#: What each operation computes, on arrays of the lanes' types.
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
}


def compute(fn: str, *args: Array) -> Array:
    """``fn`` on arrays of the lanes' types, overflow and NaN without a warning."""
    with np.errstate(all="ignore"):
        return NUMPY[fn](*args)
