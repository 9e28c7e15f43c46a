"""Weights of few bits with a scale for each block: they stay so in the network."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes  # noqa: F401 (numpy then knows uint4)
import numpy as np

from tilewright.errors import SpecError
from tilewright.runtime.imported import Array
from tilewright.runtime.quantized.matrix import QuantizedMatrix
from tilewright.spec.quantized import Quantized, StoredName

from .node import Node, operator
from .values import Blocks, Traced, Value

Result = Sequence[Value | None]
#: The types of elements by their dtypes.
_TYPES: dict[str, StoredName] = {
    "int2": "s2", "uint2": "u2", "int4": "s4", "uint4": "u4", "int8": "s8", "uint8": "u8",
}  # fmt: skip


def matrix_of(blocks: Blocks) -> QuantizedMatrix | None:
    """Return the matrix (k, n) whose blocks of K these are; None if there is no format for it."""
    type_ = _TYPES.get(blocks.array.dtype.name)
    if type_ is None or blocks.axis != 0 or blocks.array.ndim != 2 or blocks.scales.ndim != 2:
        return None
    plain = np.int8 if type_.startswith("s") else np.uint8
    zeros = None if blocks.zeros is None else blocks.zeros.astype(plain)
    zero: int | StoredName | None = None
    if zeros is not None:
        zero = type_ if zeros.min() != zeros.max() else int(zeros.flat[0])
    try:
        form = Quantized(type_, scale="f32", zero=zero, block=blocks.size)
    except SpecError:
        return None
    each = zeros if zero == type_ else None
    return QuantizedMatrix(form, blocks.array.astype(plain), blocks.scales.astype(np.float32), each)


@operator("com.microsoft.MatMulNBits")
def _of_bits(node: Node) -> Result:
    """Return a product with a weight whose elements are packed in bytes, for each column."""
    k, n, size = (int(node.attribute(name)) for name in ("K", "N", "block_size"))
    bits = int(node.attribute("bits", 4))
    if bits not in (2, 4, 8) or node.given(4):
        node.refuse(
            "columns have elements of 2, 4 or 8 bits, in the order of K", got=f"{bits} bits"
        )
    count = -(-k // size)
    whole = _unpacked(node.constant(1, "the weight"), n, bits)[:, :k].T
    scales = node.constant(2, "the scales").reshape(n, count).T
    zeros: Array = np.full((count, n), 2 ** (bits - 1), np.uint8)
    if node.given(3):
        given = node.constant(3, "the zero points")
        if given.dtype != np.uint8:
            node.refuse("zero points are integers", got=given.dtype, expected="uint8")
        zeros = _unpacked(given, n, bits)[:, :count].T
    matrix = matrix_of(Blocks(whole.astype(f"uint{bits}"), scales, zeros, size, 0))
    value = node.value(0)
    if not isinstance(value, Traced) or matrix is None:
        node.refuse("a weight has no such blocks", got=f"blocks of {size}", expected="16, 32, 64")
    source = node.constant(1, "the weight")
    found = value.expression @ node.found.low_bit(source, node.proto.input[1], matrix)
    return node.result(found + node.tensor(5) if node.given(5) else found, node.floating())


def _unpacked(given: Array, rows: int, bits: int) -> Array:
    """Return the elements of bytes, the lowest bits first."""
    flat = given.reshape(rows, -1)
    parts = [(flat >> place) & (2**bits - 1) for place in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(rows, -1)
