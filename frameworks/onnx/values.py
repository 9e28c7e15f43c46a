"""The values of an ONNX graph while it is imported: known arrays, and tensors of a network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

import onnx
from tilewright.errors import SpecError
from tilewright.runtime.imported import Array
from tilewright.spec.expression.nodes import Expression
from tilewright.spec.sizes import Dim, Size
from tilewright.spec.types import TypeName

#: The element types of ONNX, by the names that tilewright has for them. "bool" and "s64" have no
#: arrays in a network: they are types of intermediate values, and of constants. Unsigned integers
#: of 32 and 64 bits are computed with as signed ones.
TYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "f32", onnx.TensorProto.DOUBLE: "f64",
    onnx.TensorProto.FLOAT16: "f16", onnx.TensorProto.BFLOAT16: "bf16",
    onnx.TensorProto.INT8: "s8", onnx.TensorProto.UINT8: "u8",
    onnx.TensorProto.INT16: "s16", onnx.TensorProto.UINT16: "u16",
    onnx.TensorProto.INT32: "s32", onnx.TensorProto.INT64: "s64", onnx.TensorProto.BOOL: "bool",
    onnx.TensorProto.FLOAT8E4M3FN: "f8_e4m3", onnx.TensorProto.FLOAT8E5M2: "f8_e5m2",
    onnx.TensorProto.UINT32: "s32", onnx.TensorProto.UINT64: "s64",
}  # fmt: skip
FLOATING = ("f32", "f64", "f16", "bf16")
#: Integers and the number of their bits. Arithmetic is in f32, which holds them exactly to 2**24.
WHOLE = {"s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32}


@dataclass(frozen=True, eq=False)
class Integers:
    """The integers of 8 bits that a constant is dequantized from: ``(array - zero) * scale``.

    ``scale`` is one number, or has a number for each index of ``axis``.
    """

    array: Array
    scale: Array
    zero: int
    axis: int

    @property
    def type(self) -> TypeName:
        """The element type."""
        return "s8" if self.array.dtype == np.int8 else "u8"

    @cached_property
    def turned(self) -> Integers:
        """The integers of the transposed matrix."""
        return Integers(self.array.T, self.scale, self.zero, 1 - self.axis)


@dataclass(frozen=True, eq=False)
class Blocks:
    """The elements of few bits that a constant is dequantized from.

    ``scales`` and ``zeros`` are those of stretches of ``size`` elements along ``axis``.
    """

    array: Array
    scales: Array
    zeros: Array | None
    size: int
    axis: int

    @cached_property
    def turned(self) -> Blocks:
        """The blocks of the transposed matrix."""
        zeros = None if self.zeros is None else self.zeros.T
        return Blocks(self.array.T, self.scales.T, zeros, self.size, 1 - self.axis)


@dataclass(frozen=True, eq=False)
class Known:
    """A constant, called ``name`` in the file.

    An array of type object holds the sizes of a tensor: ints, and dims of the call. ``integers``
    are those of a dequantized constant, for products of integers. ``blocks`` are its elements if
    it has a scale for each block.
    """

    array: Array
    name: str = ""
    integers: Integers | None = None
    blocks: Blocks | None = None

    @property
    def shape(self) -> tuple[Size, ...]:
        """The sizes of the axes."""
        return tuple(map(int, self.array.shape))

    @property
    def type(self) -> str:
        """The element type."""
        if self.array.dtype == object:
            return "s64"
        return TYPES.get(onnx.helper.np_dtype_to_tensor_dtype(self.array.dtype), "?")

    @cached_property
    def turned(self) -> Known:
        """The transposed matrix."""
        integers = None if self.integers is None else self.integers.turned
        blocks = None if self.blocks is None else self.blocks.turned
        return Known(self.array.T, self.name, integers, blocks)

    @property
    def symbolic(self) -> bool:
        """True if an element is a size of the call."""
        return self.array.dtype == object


@dataclass(frozen=True, eq=False)
class Traced:
    """A tensor of the network: its expression and its element type in the file."""

    expression: Expression
    type: str

    @property
    def shape(self) -> tuple[Size, ...]:
        """The sizes of the axes."""
        assert self.expression.tensor is not None
        return self.expression.tensor.shape


Value: TypeAlias = Known | Traced


def sizes_array(sizes: Any) -> Array:
    """Return sizes as an array of int64, or of objects if a size is known only at the call."""
    found = np.asarray(sizes, dtype=object)
    if any(isinstance(size, Dim) for size in found.reshape(-1)):
        return found
    return found.astype(np.int64)


def sizes_of(array: Array) -> tuple[Size, ...]:
    """Return the elements of an array of sizes."""
    return tuple(each if isinstance(each, Dim) else int(each) for each in array.reshape(-1))


def type_of(number: int) -> str:
    """Return tilewright's name of an element type of ONNX; SpecError if there is none."""
    if number not in TYPES:
        raise SpecError(
            "tilewright has no such element type",
            got=onnx.TensorProto.DataType.Name(number),
            expected=", ".join(onnx.TensorProto.DataType.Name(each) for each in TYPES),
        )
    return TYPES[number]
