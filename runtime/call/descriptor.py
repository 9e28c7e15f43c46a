"""Pack a kernel's signature into the integers that the C dispatcher reads: struct tw_kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.runtime.arrays.dlpack import code_of
from tilewright.runtime.arrays.dtypes import loaded
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.signature import ArrayParameter, PackedBytes, Signature
from tilewright.spec.sizes import MAX_SIZE, Dim, Joined, Size
from tilewright.spec.types import ELEMENTS

from .abi import ALIGNED, KINDS, LIMITS, WRITEABLE
from .packed_matrix import PackedMatrix

_ABSENT = (-1, 0)
#: A size that C accepts for no array: Python checks it.
_NEVER = (-1, -1)


class _Packer:
    """Numbers the run-time sizes (dims) of a signature, and packs the signature's arrays."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        #: The run-time sizes, each once: two of the same name are the same size.
        known = {p.dim.name: p.dim for p in signature.sizes}
        # C does not check the bytes of a packed output: ``Packer`` does.
        bytes_ = (s for p in signature.arrays for s in p.shape if isinstance(s, PackedBytes))
        self.dims: list[Dim] = list((known | {size.name: size for size in bytes_}).values())
        self.least = {p.dim.name: p.least for p in signature.sizes}
        self.numbers = {dim.name: number for number, dim in enumerate(self.dims)}

    def size(self, size: Size | None) -> tuple[int, int]:
        if size is None:
            return _ABSENT
        if isinstance(size, Joined):
            return _NEVER
        return (self.numbers[size.name], 0) if isinstance(size, Dim) else (-1, size)

    def axes(self, parameter: ArrayParameter) -> list[int]:
        """Return the sizes of the axes of a tensor."""
        shape = parameter.shape if parameter.kind == "tensor" else ()
        return _padded([word for size in shape for word in self.size(size)], 2 * LIMITS["axes"])

    def array(self, parameter: ArrayParameter, static: dict[str, int]) -> list[int]:
        """Return the fields of the C struct tw_array for one array parameter."""
        lines, line = _lines(parameter)
        count = parameter.shape[0] if parameter.kind == "offsets" else parameter.count
        flags = ALIGNED | (0 if parameter.role == "in" else WRITEABLE)
        batched = parameter.kind in ("strided", "packed") and parameter.count is not None
        names = [p.name for p in self.signature.arrays]
        offsets = parameter.offsets
        return [
            KINDS.index(parameter.kind),
            id(parameter.format) if parameter.packed else 0,
            *_dtypes(parameter), parameter.itemsize, flags,
            int(parameter.order == "C"),
            *self.size(lines), *self.size(line),
            *self.size(line if parameter.leading is None else parameter.leading),
            *self.size(count), *self.size(parameter.batch_stride),
            int(batched and parameter.batch_stride is None),
            static.get(parameter.name, 0),
            names.index(offsets) if offsets in names else -1,
            _checked(parameter),
            len(parameter.shape) if parameter.kind == "tensor" else 0,
            *self.axes(parameter),
            *_plain(parameter),
        ]  # fmt: skip


def _checked(parameter: ArrayParameter) -> int:
    """Return which values C refuses: none, infinite ones, small divisors, or zeros beyond s8 or
    u8.
    """
    if parameter.within:
        return {"s8": 3, "u8": 4}[parameter.within]
    return 0 if parameter.least is None else 2 if parameter.least else 1


def descriptor(
    signature: Signature, functions: tuple[int, int], static: dict[str, int]
) -> np.ndarray[Any, Any]:
    """Return the fields of struct tw_kernel for ``functions``, the kernel's invoke and
    scratch_bytes.

    ``static`` has the address of each flat operand's static offsets, as int64. These and the
    signature, to whose formats C points, must live as long as the descriptor.
    """
    packer = _Packer(signature)
    arrays = [packer.array(parameter, static) for parameter in signature.arrays]
    output = signature.arrays.index(signature.output)
    slots = [packer.numbers[parameter.dim.name] for parameter in signature.sizes]
    words = [
        *functions,
        id(np.ndarray), id(tuple), id(PackedMatrix), object.__basicsize__, tuple.__basicsize__,
        len(arrays), len(packer.dims), len(slots), output, signature.alias,
        int(all(array[-1] for array in arrays)), _made(signature),
    ]  # fmt: skip
    limits = [
        word
        for dim in packer.dims
        for word in (
            dim.multiple_of,
            MAX_SIZE if dim.max is None else dim.max,
            packer.least.get(dim.name, 0),
        )
    ]
    words += _padded(limits, 3 * LIMITS["dims"]) + _padded(slots, LIMITS["slots"])
    for array in arrays:
        words += array
    return np.array(words, np.int64)


def _made(signature: Signature) -> int:
    """Return DLPack's type code and bits of the output if C can allocate it, else 0.

    C can allocate a single contiguous matrix.
    """
    output = signature.output
    plain = output.kind == "matrix" and output.leading is None and signature.allocates
    bits = 8 * output.itemsize
    code = code_of(ELEMENTS[output.type].numpy, bits)
    return code << 8 | bits if plain and code is not None else 0


def _lines(parameter: ArrayParameter) -> tuple[Size | None, Size | None]:
    """Return number and length of a matrix's rows, or columns in order F; a vector is one row."""
    if parameter.kind == "vector":
        return 1, parameter.shape[0]
    if not parameter.shape or parameter.kind == "tensor":
        return None, None
    first, last = parameter.shape[0], parameter.shape[-1]
    return (first, last) if parameter.order == "C" else (last, first)


def _dtypes(parameter: ArrayParameter) -> tuple[int, int, int, int]:
    """Return, for the two dtypes that arrays may have, addresses of the dtype and its scalar type.

    The second dtype holds the elements' bits as integers if numpy lacks the type. Otherwise both
    are the same.
    """
    dtypes = loaded(parameter.type), DTYPES[parameter.type]
    first, second = ((id(dtype), id(dtype.type)) for dtype in dtypes)
    return *first, *second


def _plain(parameter: ArrayParameter) -> tuple[int, ...]:
    """Return shape, strides and bytes of a contiguous matrix of fixed size, zeros for others."""
    sizes = [size for size in parameter.shape if isinstance(size, int)]
    if parameter.kind != "matrix" or parameter.leading is not None or len(sizes) < 2:
        return (0,) * 5
    (rows, cols), item = sizes, parameter.itemsize
    strides = (cols * item, item) if parameter.order == "C" else (item, rows * item)
    return rows, cols, *strides, rows * cols * item


def _padded(words: list[int], length: int) -> list[int]:
    return words + [0] * (length - len(words))
