"""Compute with numpy what a copy must write."""

from __future__ import annotations

import numpy as np

from tilewright.isa.target import Target
from tilewright.plan.formats.layout import PackedFormat
from tilewright.plan.formats.lookup import copied_format
from tilewright.runtime.arrays.elements import decode, encode
from tilewright.runtime.call.bound_sizes import Array
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.operands import Matrix
from tilewright.spec.pack import Copy
from tilewright.spec.types import is_signed

from .pack_b import packed_in


def copied(spec: Copy, target: Target, a: Array) -> Array:
    """Return the matrix that a copy makes of ``a``; packed ones are bytes in one row."""
    source, made = (copied_format(spec, name, target) for name in "ad")
    if source is not None:
        a = unpacked(source, a.reshape(-1))
    elif isinstance(spec.a, Matrix) and spec.a.nibbles:
        a = whole_bytes(spec, a)
    if spec.type_of("a") != spec.type_of("d"):
        a = encode(decode(a, spec.type_of("a")), spec.type_of("d"))
    return a if made is None else packed_in(made, [a])


def whole_bytes(spec: Copy, nibbles: Array) -> Array:
    """Return a byte for each element of a matrix of nibbles."""
    assert isinstance(spec.a, Matrix)
    by_rows = spec.a.order == "C"
    lines, length = (nibbles, spec.cols) if by_rows else (nibbles.T, spec.rows)
    pairs = np.stack([lines & 15, lines >> 4], axis=-1).reshape(len(lines), -1)[:, :length]
    if is_signed(spec.a.type):
        pairs = (pairs ^ 8).astype(np.int8) - np.int8(8)
    return pairs if by_rows else pairs.T


def unpacked(form: PackedFormat[int], data: Array) -> Array:
    """Return the k x n elements of one packed matrix, given its bytes."""
    size = form.blocks * form.block_elements
    held = np.ascontiguousarray(data)[: size * form.itemsize].view(DTYPES[form.stored])
    blocks = held.reshape(form.blocks, form.groups, form.nb, form.group).transpose(1, 3, 0, 2)
    whole = blocks.reshape(form.groups * form.group, form.blocks * form.nb)[: form.k, : form.n]
    if form.type == form.stored:
        return np.ascontiguousarray(whole)
    return encode(decode(whole, form.stored) - form.shift, form.type)
