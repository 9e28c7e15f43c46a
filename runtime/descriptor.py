"""A signature packed for the C dispatcher: templates/dispatch_descriptor.h.j2, field by field."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.signature import ArrayParameter, Signature
from tilewright.sizes import MAX_SIZE, Dim, Size

from .abi import ALIGNED, KINDS, LIMITS, WRITEABLE
from .known import DTYPES

_ABSENT = (-1, 0)


class _Packer:
    """Numbers the dims of one signature in order of appearance."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.dims: list[Dim] = []
        for parameter in signature.sizes:
            if parameter.dim not in self.dims:
                self.dims.append(parameter.dim)

    def size(self, size: Size | None) -> tuple[int, int]:
        if size is None:
            return _ABSENT
        return (self.dims.index(size), 0) if isinstance(size, Dim) else (-1, size)

    def array(self, parameter: ArrayParameter, static: dict[str, int]) -> list[int]:
        """The fields of struct tw_array."""
        dtype = DTYPES[parameter.type]
        is_c = parameter.order == "C"
        line = parameter.shape[-1 if is_c else 0] if parameter.shape else None
        lines = parameter.shape[0 if is_c else -1] if parameter.shape else None
        count = parameter.shape[0] if parameter.kind == "offsets" else parameter.count
        flags = ALIGNED | (0 if parameter.role == "in" else WRITEABLE)
        names = [p.name for p in self.signature.arrays]
        offsets = f"{parameter.name}_offsets"
        return [
            KINDS.index(parameter.kind), id(dtype), id(dtype.type), parameter.itemsize, flags,
            int(is_c),
            *self.size(lines), *self.size(line),
            *self.size(line if parameter.leading is None else parameter.leading),
            *self.size(count), *self.size(parameter.batch_stride),
            int(parameter.kind == "strided" and parameter.batch_stride is None),
            static.get(parameter.name, 0),
            names.index(offsets) if offsets in names else -1,
            *_plain(parameter),
        ]  # fmt: skip


def descriptor(
    signature: Signature,
    functions: tuple[int, int],
    in_place: bool,
    static: dict[str, int],
) -> np.ndarray[Any, Any]:
    """The fields of struct tw_kernel for the kernel's ``functions``, invoke and scratch_bytes.

    ``static`` has the address of each flat operand's static offsets, as int64.
    """
    packer = _Packer(signature)
    arrays = [packer.array(parameter, static) for parameter in signature.arrays]
    output = next(i for i, p in enumerate(signature.arrays) if p.role != "in")
    slots = [packer.dims.index(parameter.dim) for parameter in signature.sizes]
    words = [
        *functions,
        id(np.ndarray), id(tuple), object.__basicsize__, tuple.__basicsize__,
        len(arrays), len(packer.dims), len(slots), output, int(in_place),
        int(all(array[-1] for array in arrays)),
    ]  # fmt: skip
    limits = [
        word
        for dim in packer.dims
        for word in (dim.multiple_of, MAX_SIZE if dim.max is None else dim.max)
    ]
    words += _padded(limits, 2 * LIMITS["dims"]) + _padded(slots, LIMITS["slots"])
    for array in arrays:
        words += array
    return np.array(words, np.int64)


def _plain(parameter: ArrayParameter) -> tuple[int, ...]:
    """Shape, strides and span of a tight matrix of fixed size; zeros for all others."""
    sizes = [size for size in parameter.shape if isinstance(size, int)]
    if parameter.kind != "matrix" or parameter.leading is not None or len(sizes) < 2:
        return (0,) * 5
    (rows, cols), item = sizes, parameter.itemsize
    strides = (cols * item, item) if parameter.order == "C" else (item, rows * item)
    return rows, cols, *strides, rows * cols * item


def _padded(words: list[int], length: int) -> list[int]:
    return words + [0] * (length - len(words))
