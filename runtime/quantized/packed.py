"""Turn packed bytes of a quantized matrix back into the numbers they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.runtime.arrays.elements import decode
from tilewright.runtime.arrays.memory import Array
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.quantized import STORED
from tilewright.spec.types import ITEMSIZE

if TYPE_CHECKING:
    from tilewright.plan.formats.quantized_b import QuantizedFormat


def dequantized(data: Array, form: QuantizedFormat) -> Array:
    """Return the elements, k x n in float32, of a matrix that ``quantized_bytes`` packed."""
    numbers = _numbers(data, form)
    scales = _of_blocks(data, form.scales_at, form.scale, form)
    zeros = _of_blocks(data, form.zeros_at, form.zeros, form) if form.zeros else np.float32(0)
    if form.minima:
        found: Array = (scales.astype(np.float64) * numbers + zeros).astype(np.float32)
    else:
        zero = zeros - np.float32(form.shift if form.zeros else -form.offset)
        found = scales * (numbers.astype(np.float32) - zero)
    return found


def _numbers(data: Array, form: QuantizedFormat) -> Array:
    """Return the numbers that a packed matrix stores, as int64, or as float64 for f8.

    Codes are replaced by their numbers.
    """
    stored = STORED[form.type]
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
    codes = parts.reshape(-1, form.blocks * form.nb)[: form.k, : form.n]
    if stored.values:
        found: Array = np.array(stored.values)[codes]
    elif stored.floating:
        found = decode(codes, stored.unpacked).astype(np.float64)
    else:
        found = codes.view(DTYPES[form.stored]).astype(np.int64) - form.shift
    return found


def _of_blocks(data: Array, start: int, type_: str, form: QuantizedFormat) -> Array:
    """Return scales, zero points or minima in float32, repeated for each element of a block."""
    count = form.blocks * form.k_blocks * form.nb
    flat = data[start : start + count * ITEMSIZE[type_]].view(DTYPES[type_])
    each = flat.reshape(form.blocks, form.k_blocks, form.nb).transpose(1, 0, 2)
    blocks = decode(each.reshape(form.k_blocks, -1), type_).astype(np.float32)
    found: Array = np.repeat(blocks, form.block, axis=0)[: form.k, : form.n]
    return found
