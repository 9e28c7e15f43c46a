"""Values to try arithmetic on, and products and sums by exact fractions."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(type_)
    for name, type_ in {
        "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
        "s64": np.int64, "s32": np.int32, "s16": np.int16, "u16": np.uint16,
        "s8": np.int8, "u8": np.uint8,
        "f8_e5m2": ml_dtypes.float8_e5m2,
    }.items()
}  # fmt: skip
SIZE = 4096
_SHARED = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.0, 1 / 3, 65504.0, 65520.0, 2.0**-25,
    2.0**23 + 1, -(2.0**31), 2147483520.0, np.inf, -np.inf, np.nan,
)  # fmt: skip
#: Numbers below it are denormals of f32: ``2**-126`` less half of the last digit of those below.
_DENORMAL = 2.0**-126 - 2.0**-151
_INTEGERS = (
    0,
    1,
    -1,
    2,
    -2,
    127,
    128,
    -128,
    255,
    256,
    32767,
    65536,
    2**24 + 1,
    2**31 - 1,
    -(2**31),
    2**32 + 1,
    2**63 - 1,
    -(2**63),
)


def values(element: str, seed: int) -> tuple[Array, Array, Array]:
    """Three arrays of SIZE: every pair of special values, any bits, and moderate numbers."""
    rng, dtype = np.random.default_rng(seed), DTYPES[element]
    special = _special(dtype)
    pairs = np.array(np.meshgrid(special, special)).reshape(2, -1)
    count = pairs.shape[1]
    special_three = (*pairs, rng.choice(special, count))
    bits = rng.bytes(3 * (SIZE - count) * dtype.itemsize)
    rest = np.frombuffer(bits, dtype).reshape(3, -1).copy()
    half = rest.shape[1] // 2
    if dtype.kind == "f":
        rest[:, :half] = rng.normal(size=(3, half)) * 2.0 ** rng.integers(-3, 9, size=(3, half))
        rest[2, :half:3] = -rest[0, :half:3] * rest[1, :half:3]  # sums that nearly vanish
    x, y, z = (np.concatenate(p).astype(dtype) for p in zip(special_three, rest, strict=True))
    return x, y, z


def halfway() -> Array:
    """Numbers of f64 half way between two of f32 or of s32, their neighbours, and any bits."""
    some = values("f32", seed=3)[0][:600]
    some = some[np.isfinite(some)]
    with np.errstate(over="ignore"):
        above = np.nextafter(some, np.float32(np.inf)).astype(np.float64)
    above[np.isinf(above)] = 2.0**128
    whole = np.array([-(2**31), -129, -2, -1, 0, 1, 126, 254, 32767, 2**31 - 1, 2**31]) + 0.5
    exact = np.concatenate([(some + above) / 2, whole, whole - 1])
    near = [np.nextafter(exact, end) for end in (-np.inf, np.inf)]
    return np.concatenate([exact, *near, values("f64", seed=3)[0]])


def _special(dtype: np.dtype[Any]) -> Array:
    if dtype.kind != "f":
        return np.array(_INTEGERS).astype(dtype)
    info = np.finfo(dtype)
    edges = [info.max, -info.max, info.tiny, info.smallest_subnormal, 1 + info.eps, 1 - info.epsneg]
    with np.errstate(over="ignore"):
        return np.array([*_SHARED, *edges], dtype)


def fused(x: Array, y: Array, z: Array) -> Array:
    """``x * y + z`` rounded once to z's type."""
    dtype = z.dtype
    x, y, z = np.broadcast_arrays(*(a.astype(np.float64) for a in (x, y, z)))
    plain = x * y + z
    found = np.empty(z.shape, dtype)
    for i in np.ndindex(found.shape):
        if not np.isfinite([x[i], y[i], z[i]]).all():
            finite = np.isfinite(x[i]) and np.isfinite(y[i])
            found[i] = z[i] if finite else plain[i]  # the product may be beyond f64
            continue
        exact = Fraction(float(x[i])) * Fraction(float(y[i])) + Fraction(float(z[i]))
        found[i] = _rounded(exact, dtype) if exact else plain[i]
    return found


def flushed(x: Array) -> Array:
    """f32 without denormals: they become zeros of their sign."""
    tiny = np.abs(x) < np.finfo(np.float32).tiny
    return np.where(tiny, np.copysign(np.float32(0), x), x)


def fused_flushed(x: Array, y: Array, z: Array) -> Array:
    """``fused`` of f32 where denormals are zeros, as x86 has it.

    A result is a denormal if rounding to 24 bits, whatever its exponent, leaves it one.
    """
    x, y, z = np.broadcast_arrays(*(flushed(a.astype(np.float32)) for a in (x, y, z)))
    product = x.astype(np.float64) * y
    total = product + z
    exact = (total - product == z) & (total - z == product)
    found = total.astype(np.float32)
    found[~exact] = fused(x[~exact], y[~exact], z[~exact])
    below = np.abs(total) < _DENORMAL
    for i in map(tuple, np.argwhere(~exact & (np.abs(found) <= 2.0**-126))):
        sum_ = Fraction(float(product[i])) + Fraction(float(z[i]))
        below[i] = abs(sum_) < _DENORMAL
    return np.where(below, np.copysign(np.float32(0), found), found)


def _rounded(exact: Fraction, dtype: np.dtype[Any]) -> Any:
    """``exact``, not 0, to nearest even; by way of f64 rounded to odd, which loses nothing."""
    try:
        near = np.float64(exact)
    except OverflowError:
        return dtype.type(np.inf if exact > 0 else -np.inf)
    if dtype == np.float64 or Fraction(float(near)) == exact:
        return dtype.type(near)
    if not near.view(np.uint64) & 1:
        near = np.nextafter(near, np.inf if Fraction(float(near)) < exact else -np.inf)
    return dtype.type(near)
