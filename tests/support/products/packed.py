"""The layout of a packed B as its format says, in numpy, and Bs to pack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.plan.formats.layout import PackedFormat
from tilewright.runtime.call.packed_matrix import PackedMatrix, _fill, matrix_in, new_block

Array = np.ndarray[Any, Any]
DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(type_)
    for name, type_ in {
        "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
        "f8_e4m3": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2,
        "s8": np.int8, "u8": np.uint8, "s16": np.int16, "u16": np.uint16,
        "s32": np.int32, "s64": np.int64,
    }.items()
}  # fmt: skip


LINE = 64
#: What integers are moved by where they are stored with the other sign.
_MOVED = {
    ("s8", "u8"): 128, ("u8", "s8"): -128, ("s16", "u16"): 32768, ("u16", "s16"): -32768,
}  # fmt: skip
_SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, -0.5, 127.5, -128.5, 254.5, 65519.9,
            65520.0, 1e30, 2.0**-25, 2.0**-133, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 240.0, 448.0, 464.0,
            465.0)  # fmt: skip


def layout(form: PackedFormat[int], b: Array) -> Array:
    """The bytes of ``b``, which has the format's type; what holds nothing is zero."""
    data = stored(form, b)
    parts = [data.view(np.uint8)]
    if form.sums:
        columns = -(-form.n // form.nb) * form.nb
        sums = np.zeros(columns, np.int32)
        sums[: form.n] = b.astype(np.int64).sum(axis=0).astype(np.int32)
        parts.append(sums.view(np.uint8))
    return np.concatenate([np.pad(part, (0, -part.size % LINE)) for part in parts])


def stored(form: PackedFormat[int], b: Array) -> Array:
    """The elements alone: groups of K together, within a block of columns group after group."""
    (rows, cols), v, nb = b.shape, form.group, form.nb
    groups, blocks = -(-rows // (v * form.step)) * form.step, -(-cols // nb)
    data = np.zeros(blocks * groups * nb * v, DTYPES[form.stored])
    k, n = np.indices(b.shape)
    at = n // nb * (groups * nb * v) + ((k // v) * nb + n % nb) * v + k % v
    moved = b.astype(np.int64) + _MOVED.get((form.type, form.stored), 0) if form.sums else b
    data[at] = moved.astype(np.float32) if form.type.startswith("f8") else moved
    return data


def convert(b: Array, type_: str) -> Array:
    """``b``, f32 or of that type already, rounded to it."""
    dtype = DTYPES[type_]
    if b.dtype == dtype:
        return b
    with np.errstate(all="ignore"):
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            b = np.clip(np.rint(np.nan_to_num(b, nan=0)), limits.min, limits.max)
        converted: Array = b.astype(dtype)
        return converted


def draw(type_: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Elements of the whole range of a type, special ones among them."""
    dtype = DTYPES[type_]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)
    found = rng.normal(size=shape) * 2.0 ** rng.integers(-8, 10, shape)
    special = rng.choice(np.array(_SPECIAL), shape)
    mixed: Array = np.where(rng.random(shape) < 0.2, special, found).astype(np.float32)
    with np.errstate(all="ignore"):
        return mixed.astype(dtype)


def differing(form: PackedFormat[int], got: Array, expected: Array) -> Array:
    """The indices of bytes that differ, but for what kind of NaN they are part of."""
    wrong = got != expected
    if not form.sums and got.size:
        dtype = DTYPES[form.stored]
        pair = [bytes_.view(dtype).astype(np.float64) for bytes_ in (got, expected)]
        both = np.repeat(np.isnan(pair[0]) & np.isnan(pair[1]), dtype.itemsize)
        wrong &= ~both
    return np.flatnonzero(wrong)


def forged(format: str, shape: tuple[int, ...], data: Array) -> PackedMatrix:
    """A packed matrix as none can be made: of any format, shape and bytes."""
    block, made = new_block(data.nbytes), PackedMatrix.__new__(PackedMatrix)
    matrix_in(block)[:] = data
    _fill(made, format, shape, block)
    return made
