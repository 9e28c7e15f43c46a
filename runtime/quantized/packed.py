"""Turn packed bytes of a quantized matrix back into the numbers they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.runtime.arrays.elements import decode, encode
from tilewright.runtime.arrays.memory import Array
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.quantized import SCALES, Quantized
from tilewright.spec.types import ITEMSIZE

from .matrix import QuantizedMatrix

if TYPE_CHECKING:
    from tilewright.plan.formats.low_bit import QuantizedFormat


def dequantized(data: Array, form: QuantizedFormat) -> Array:
    """Return the elements, k x n in float32, of a matrix that ``quantized_bytes`` packed."""
    numbers = _numbers(_codes(data, form), form)
    scales = _spread(_of_blocks(data, form.scales_at, form.scale, form), form)
    zeros: Array | np.float32 = np.float32(0)
    if form.zeros:
        zeros = _spread(_of_blocks(data, form.zeros_at, form.zeros, form), form)
    if form.minima:
        found: Array = (scales.astype(np.float64) * numbers + zeros).astype(np.float32)
    else:
        zero = zeros - np.float32(form.shift if form.zeros else -form.offset)
        found = scales * (numbers.astype(np.float32) - zero)
    return found


def unpacked(data: Array, form: QuantizedFormat, format: Quantized) -> QuantizedMatrix:
    """Return the matrix that ``quantized_bytes`` packed, with its own scales and zero points."""
    codes, stored = _codes(data, form), format.stored
    q = codes if stored.floating else _numbers(codes, form).astype(DTYPES[stored.unpacked])
    each = slice(None, None, format.columns)
    factors = _of_blocks(data, form.scales_at, form.scale, form)[:, each]
    values = factors / np.float32(stored.unit)
    if format.scale == "e8m0":  # a power of two, whose exponent is the byte
        scales = (np.frexp(values)[1] + 126).astype(np.uint8)
    else:
        scales = encode(values, SCALES[format.scale].given)
    zeros = None
    if format.zeros:
        found = _of_blocks(data, form.zeros_at, form.zeros, form)[:, each]
        integers = format.zeros == "zeros"
        type_ = stored.unpacked if integers else str(format.zero)
        zeros = encode(found - form.shift if integers else found, type_)
    return QuantizedMatrix(format, q, scales, zeros)


def _codes(data: Array, form: QuantizedFormat) -> Array:
    """Return the bits of each element of a packed matrix, k x n in uint8."""
    count = form.blocks * form.block_elements
    groups = form.block // form.group
    panels = data[:count].reshape(form.blocks, form.k_blocks, -1, form.nb, form.group)
    # Axes of ``lines``: K block, packed row, element of a K group, block of columns, column.
    lines = panels.transpose(1, 2, 4, 0, 3)
    parts = np.zeros((form.k_blocks, groups, *lines.shape[2:]), np.uint8)
    for number, plane in enumerate(form.planes):
        mask = np.uint8((1 << plane.bits) - 1)
        for index in range(groups):
            line, field = form.place(index, number)
            part = lines[:, line] >> np.uint8(plane.bits * field) & mask
            parts[:, index] |= part << np.uint8(plane.up)
    return parts.reshape(-1, form.blocks * form.nb)[: form.k, : form.n]


def _numbers(codes: Array, form: QuantizedFormat) -> Array:
    """Return the numbers of codes that a packed matrix stores, as int64, or float64 for f8."""
    stored = form.numbers
    if stored.values:
        found: Array = np.array(stored.values)[codes]
    elif stored.floating:
        found = decode(codes, stored.unpacked).astype(np.float64)
    else:
        found = codes.view(DTYPES[form.stored]).astype(np.int64) - form.shift
    return found


def _of_blocks(data: Array, start: int, type_: str, form: QuantizedFormat) -> Array:
    """Return scales, zero points or minima of each block and column, in float32."""
    count = form.blocks * form.k_blocks * form.nb
    flat = data[start : start + count * ITEMSIZE[type_]].view(DTYPES[type_])
    each = flat.reshape(form.blocks, form.k_blocks, form.nb).transpose(1, 0, 2)
    blocks = decode(each.reshape(form.k_blocks, -1), type_).astype(np.float32)
    found: Array = blocks[:, : form.n]
    return found


def _spread(blocks: Array, form: QuantizedFormat) -> Array:
    """Return the value of its block for each element."""
    found: Array = np.repeat(blocks, form.block, axis=0)[: form.k]
    return found
