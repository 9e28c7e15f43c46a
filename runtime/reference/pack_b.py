"""Compute with numpy the bytes that a packing kernel must write."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tilewright.isa.target import Target
from tilewright.plan.formats.layout import PackedFormat
from tilewright.plan.formats.lookup import format_of
from tilewright.runtime.arrays.dtypes import accepts
from tilewright.runtime.arrays.elements import decode, encode
from tilewright.runtime.call.bound_sizes import Array
from tilewright.runtime.quantized.matrix import QuantizedMatrix, quantized_bytes
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.pack import Pack, PackQuantized
from tilewright.spec.types import is_integer


def packed_bytes(spec: Pack, target: Target, matrices: Iterable[Array]) -> Array:
    """Return the packed bytes of ``matrices``, one row for each."""
    given = list(matrices)
    k, n = given[0].shape if given else (spec.k, spec.n)
    form: PackedFormat[int] = format_of(spec, target).of(int(k), int(n))  # type: ignore[arg-type]
    return packed_in(form, given)


def packed_in(form: PackedFormat[int], matrices: Iterable[Array]) -> Array:
    """Return the bytes of ``matrices`` in a packed format, one row for each."""
    given = list(matrices)
    data: Array = np.zeros((len(given), form.nbytes), np.uint8)
    for matrix, place in zip(given, data, strict=True):
        if not accepts(form.type, matrix.dtype):
            matrix = encode(matrix, form.type)
        _pack_one(matrix, form, place)
    return data


def packed_parts(spec: PackQuantized, target: Target, parts: Iterable[Array]) -> Array:
    """Return the bytes of a packed low-bit matrix in one row: elements, scales, and zeros if
    any.
    """
    matrix = QuantizedMatrix(spec.type, *parts)
    return quantized_bytes(matrix, format_of(spec, target)).reshape(1, -1)


def _pack_one(matrix: Array, form: PackedFormat[int], place: Array) -> None:
    """Write one packed matrix to ``place``: elements, padded with zeros, then sums of columns.

    The elements are in the order ``[n / nb][k / group][nb][group]``.
    """
    groups = form.groups
    padded = np.zeros((groups * form.group, form.blocks * form.nb), DTYPES[form.stored])
    padded[: form.k, : form.n] = _stored(matrix, form)
    blocks = padded.reshape(groups, form.group, form.blocks, form.nb).transpose(2, 0, 3, 1)
    place[: padded.nbytes] = np.ascontiguousarray(blocks).reshape(-1).view(np.uint8)
    if form.sums:
        sums = decode(matrix, form.type).sum(axis=0).astype(np.int32)
        place[form.sums_at : form.sums_at + sums.nbytes] = sums.view(np.uint8)


def _stored(matrix: Array, form: PackedFormat[int]) -> Array:
    """Return a matrix's elements in the type that the target's multiply-adds read."""
    if is_integer(form.type) and is_integer(form.stored):
        return (decode(matrix, form.type) + form.shift).astype(DTYPES[form.stored])
    if form.type == form.stored:
        return matrix.view(DTYPES[form.stored])
    return encode(decode(matrix, form.type), form.stored).view(DTYPES[form.stored])
