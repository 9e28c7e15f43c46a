"""Convert elements of each type to exact numbers and back, by numpy's own types alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.spec.dtypes import DTYPES
from tilewright.spec.types import ELEMENTS, FORMATS, is_integer

from .dtypes import FOREIGN, preferred
from .memory import Array

#: Smallest and largest value of each integer type.
INTEGERS = {
    name: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for name, dtype in DTYPES.items()
    if is_integer(name)
}


#: Floating-point types that numpy lacks.
_SMALL = {name: form for name, form in FORMATS.items() if name in FOREIGN}


def epsilon(type_: str) -> float:
    """Return the distance from 1 to the next greater number of a floating-point type."""
    if type_ in _SMALL:
        return float(2.0 ** -_SMALL[type_].mantissa)
    return float(np.finfo(DTYPES[type_]).eps)


def decode(array: Array, type_: str) -> Array:
    """Return the exact values of an array's elements: int64 for integers, else float64.

    An array of a type that numpy lacks is ml_dtypes' array, or holds its bits.
    """
    if is_integer(type_):
        return array.astype(np.int64)
    if type_ not in _SMALL:
        return array.astype(np.float64)
    form, bits = _SMALL[type_], array.view(DTYPES[type_]).astype(np.int64)
    magnitude = bits & (form.sign - 1)
    exponent, mantissa = magnitude >> form.mantissa, magnitude & ((1 << form.mantissa) - 1)
    normal = mantissa + (np.minimum(exponent, 1) << form.mantissa)
    value = np.ldexp(
        normal.astype(np.float64), np.maximum(exponent, 1) - 1 + form.least - form.mantissa
    )
    if form.above != form.nan:
        value[magnitude == form.above] = np.inf
        value[magnitude > form.above] = np.nan
    else:
        value[magnitude == form.nan] = np.nan
    signed: Array = np.where(bits & form.sign, -value, value)
    return signed


def nearest(values: Array, type_: str) -> Array:
    """Return ``values`` rounded to numbers that ``type_`` can hold, as a kernel's store does.

    Floating point rounds to nearest even and overflows to infinity. f8_e4m3 has no infinity and
    holds NaN instead. Integers saturate, and NaN becomes 0.
    """
    if is_integer(type_):
        low, high = INTEGERS[type_]
        whole = values if values.dtype.kind == "i" else np.rint(values)
        clipped: Array = np.clip(whole, low, high)
        return np.where(np.isnan(values), 0, clipped)
    with np.errstate(over="ignore"):
        if type_ not in _SMALL:
            return values.astype(DTYPES[type_]).astype(np.promote_types(values.dtype, np.float64))
        form, wide = _SMALL[type_], values.astype(np.float64)
        exponent = np.maximum(np.frexp(wide)[1] - 1, form.least) - form.mantissa
        whole = np.ldexp(np.rint(np.ldexp(wide, -exponent)), exponent)
    held: Array = np.where(np.abs(whole) > form.largest, np.copysign(np.inf, whole), whole)
    return held


def in_range(values: Array, type_: str) -> Array:
    """Return a mask of the values that neither saturate nor overflow when they are stored."""
    if is_integer(type_):
        low, high = INTEGERS[type_]
        inside: Array = (values >= low) & (values <= high)
        return inside
    return np.isfinite(nearest(values, type_))


def encode(values: Any, type_: str) -> Array:
    """Return a new array of ``type_`` with the elements nearest to ``values``."""
    values = np.asarray(values)
    if type_ == "s64" and values.dtype.kind == "f":
        # As a double, the largest s64 is rounded to 2**63, which s64 cannot hold.
        high = INTEGERS[type_][1]
        inside = nearest(np.where(values < high, values, 0), type_).astype(np.int64)
        return np.where(values >= high, high, inside)
    if type_ not in _SMALL:
        with np.errstate(over="ignore"):
            return nearest(values, type_).astype(preferred(type_))
    form, whole = _SMALL[type_], nearest(values, type_)
    finite = np.where(np.isfinite(whole), np.abs(whole), 0)
    exponent = np.where(finite == 0, form.least, np.maximum(np.frexp(finite)[1] - 1, form.least))
    bits = np.ldexp(finite, form.mantissa - exponent).astype(np.int64)
    bits += (exponent - form.least).astype(np.int64) << form.mantissa
    bits = np.where(np.isinf(whole), form.above, np.where(np.isnan(whole), form.nan, bits))
    bits |= np.where(np.signbit(whole), form.sign, 0)
    return bits.astype(ELEMENTS[type_].bits).view(preferred(type_))


def encode_towards(values: Any, type_: str, *, up: bool) -> Array:
    """Return ``values`` rounded to a floating-point type: upwards if ``up``, else downwards.

    The number after the largest one is infinity, or NaN in f8_e4m3, which has no infinity.
    """
    given, near = np.asarray(values, np.float64), encode(values, type_)
    bits = near.view(f"u{near.dtype.itemsize}").astype(np.int64)
    sign = 1 << (8 * near.dtype.itemsize - 1)
    # ``order`` has integers in the same order as the numbers: adding 1 gives the next number.
    order = np.where(bits & sign, -(bits & (sign - 1)), bits)
    found = decode(near, type_)
    order += (found < given) if up else -(found > given).astype(np.int64)
    towards: Array = np.abs(order) | np.where(order < 0, sign, 0)
    return towards.astype(f"u{near.dtype.itemsize}").view(near.dtype)
