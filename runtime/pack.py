"""B into a packed format, by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dtypes import DTYPES
from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.feed import format_of
from tilewright.isa import Target
from tilewright.operands import Strided
from tilewright.packed_format import PackedFormat
from tilewright.spec import Gemm
from tilewright.types import is_integer

from .abi import aligned
from .dtypes import accepts, title
from .known import Array
from .packed import PackedMatrix
from .values import decode, encode

#: What is added to an element of the first type to store it as one of the second.
_SHIFTS = {("s8", "u8"): 128, ("u8", "s8"): -128}


def pack(b: Any, spec: Gemm, target: Target) -> PackedMatrix:
    """``b``, k x n or a batch of such, for ``spec`` on ``target``; f32 is converted to its type."""
    form = format_of(spec, target)
    batched = isinstance(spec.batch, Strided) and spec.batch.b != 0
    shape = (*np.shape(b)[:batched], form.k, form.n)
    if not isinstance(b, np.ndarray) or not (
        accepts(form.type, b.dtype) or accepts("f32", b.dtype)
    ):
        raise ArgumentTypeError(
            "what is packed must be an array of B's type, or of float32",
            got=f"{b.dtype} array" if isinstance(b, np.ndarray) else type(b).__name__,
            expected=title(form.type),
        )
    if b.shape != shape:
        raise ArgumentValueError("b has the wrong shape", got=b.shape, expected=shape)
    if not accepts(form.type, b.dtype):
        b = encode(b, form.type)
    matrices = b.reshape(-1, form.k, form.n)
    data = aligned(form.nbytes * len(matrices))
    for matrix, room in zip(matrices, data.reshape(len(matrices), form.nbytes), strict=True):
        _pack_one(matrix, form, room)
    return PackedMatrix(form.text, shape, data)


def _pack_one(matrix: Array, form: PackedFormat, room: Array) -> None:
    """``[n / nb][k / group][nb][group]``, then the sums of columns; zeros in between."""
    groups = -(-form.k // form.group)
    padded = np.zeros((groups * form.group, form.blocks * form.nb), DTYPES[form.stored])
    padded[: form.k, : form.n] = _stored(matrix, form)
    blocks = padded.reshape(groups, form.group, form.blocks, form.nb).transpose(2, 0, 3, 1)
    room[...] = 0
    room[: padded.nbytes] = np.ascontiguousarray(blocks).reshape(-1).view(np.uint8)
    if form.sums:
        sums = decode(matrix, form.type).sum(axis=0).astype(np.int32)
        room[form.sums_at : form.sums_at + sums.nbytes] = sums.view(np.uint8)


def _stored(matrix: Array, form: PackedFormat) -> Array:
    """The elements as the target's multiply-adds take them."""
    if is_integer(form.type):
        shift = _SHIFTS.get((form.type, form.stored), 0)
        return (decode(matrix, form.type) + shift).astype(DTYPES[form.stored])
    if form.type == form.stored:
        return matrix.view(DTYPES[form.stored])
    return encode(decode(matrix, form.type), form.stored).view(DTYPES[form.stored])
