"""QuantizeLinear and DequantizeLinear: of constants when the file is loaded, of tensors as maps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.spec.expression import arithmetic
from tilewright.spec.expression.nodes import Expression
from tilewright.spec.types import is_integer

from .elementwise import saturated
from .node import Node, operator
from .values import FLOATING, Known, Traced, Value, type_of

Result = Sequence[Value | None]
#: Types of quantized numbers that tensors have.
_TYPES = ("s8", "u8", "f8_e4m3", "f8_e5m2")


@operator("QuantizeLinear")
def _quantize(node: Node) -> Result:
    x, shape = node.tensor(0), node.value(0).shape
    node.floating()
    number = int(node.attribute("output_dtype", 0))
    to = node.value(2).type if node.given(2) else type_of(number) if number else "u8"
    if to not in _TYPES:
        node.refuse("tensors are not quantized to this type", got=to, expected=", ".join(_TYPES))
    quotient = x / _spread(node, 1, len(shape))
    if is_integer(to):
        quotient = arithmetic.round(quotient)
    zero = _spread(node, 2, len(shape)) if node.given(2) else None
    found = quotient if zero is None else quotient + zero
    return node.result(saturated(node, found, to), to)


@operator("DequantizeLinear")
def _dequantize(node: Node) -> Result:
    value = node.value(0)
    if value.type not in (*_TYPES, "s32"):
        node.refuse("numbers of this type are not dequantized", got=value.type)
    number = int(node.attribute("output_dtype", 0))
    to = type_of(number) if number else node.value(1).type
    if to not in FLOATING:
        node.refuse("a quantized number becomes floating point", got=to)
    count = len(value.shape)
    x = node.tensor(0)
    zero = _spread(node, 2, count) if node.given(2) else None
    return node.result((x if zero is None else x - zero) * _spread(node, 1, count), to)


def _spread(node: Node, index: int, axes: int) -> Expression:
    """Return a scale or zero point as a tensor that is broadcast along the other axes."""
    value = node.value(index)
    if isinstance(value, Traced):
        if value.shape not in ((), (1,)):
            node.refuse("scales of the call are single numbers", got=value.shape)
        return value.expression
    array = value.array
    if node.attribute("block_size", 0):
        node.refuse("scales of blocks are not imported", got=node.attribute("block_size"))
    if array.size == 1:
        return node.expression(value)
    axis = node.axis(default=1, of=axes)
    shape = [1] * axes
    shape[axis] = array.size
    return node.expression(Known(array.astype(np.float32).reshape(shape), value.name))
