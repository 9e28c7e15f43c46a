"""Quantized numbers: QuantizeLinear, DequantizeLinear, and products of integers.

Constants are dequantized when the file is loaded, and keep their integers. A product of two
dequantized operands multiplies the integers, and scales the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import onnx
from tilewright import nn
from tilewright.runtime.imported import Array
from tilewright.spec.expression import activations, arithmetic, exponential
from tilewright.spec.expression.nodes import Expression, Number
from tilewright.spec.expression.products import dequantized
from tilewright.spec.expression.tensors import View
from tilewright.spec.types import is_integer, type_name

from .elementwise import saturated
from .node import Node, operator
from .products import product, turned
from .values import FLOATING, Blocks, Integers, Known, Traced, Value, type_of

Result = Sequence[Value | None]
#: Types of quantized numbers that tensors have.
_TYPES = ("s8", "u8", "s16", "u16", "f8_e4m3", "f8_e5m2")


@operator("QuantizeLinear", "com.microsoft.QuantizeLinear")
def _quantize(node: Node) -> Result:
    x = node.value(0)
    number = int(node.attribute("output_dtype", 0))
    if isinstance(x, Known) and all(isinstance(each, Known) for each in node.inputs[1:]):
        return (_known_integers(node, x, number),)
    node.floating()
    to = node.value(2).type if node.given(2) else type_of(number) if number else "u8"
    return (_quantized(node, node.tensor(0), 1, to),)


def _quantized(node: Node, x: Expression, scale: int, to: str) -> Value:
    """Return ``x`` quantized: input ``scale`` of the node is the scale, the next the zero point.

    The division is a product with the reciprocal. Numbers are rounded before the zero point is
    added, for a tie is rounded to an even number then.
    """
    if to not in _TYPES:
        node.refuse("tensors are not quantized to this type", got=to, expected=", ".join(_TYPES))
    assert x.tensor is not None
    axes = len(x.tensor.shape)
    if (again := _as_it_was(node, x, scale, to)) is not None:
        return Traced(again, to)
    found = x * _spread(node, scale, axes, inverse=True)
    zero = _zero(node, scale + 1, axes)
    if zero is not None:
        found = (arithmetic.round(found) if is_integer(type_name(to)) else found) + zero
    return node.traced(saturated(node, found, to), to)


def _as_it_was(node: Node, x: Expression, scale: int, to: str) -> Expression | None:
    """Return views of the integers that ``x`` was dequantized from, if it gets the same scale.

    None is returned for others. The integers are the same: 255 times the rounding of two
    multiplications is far below one half.
    """
    numbers = [node.value(index) for index in (scale, scale + 1) if node.given(index)]
    if not all(isinstance(each, Known) and each.array.size == 1 for each in numbers):
        return None
    of, zero, *_ = [
        *(float(each.array.reshape(())) for each in numbers if isinstance(each, Known)),
        0.0,
    ]
    views: list[View] = []
    while isinstance(x, View):
        views.append(x)
        (x,) = x.args
    found = dequantized(x)
    if found is None or found.scale != Number(of) or found.zero != zero:
        return None
    made = found.tensor
    for view in reversed(views):
        made = view.of(view.shell, (made,))
    return made if made.tensor is not None and made.tensor.type == to else None


@operator("DequantizeLinear", "com.microsoft.DequantizeLinear")
def _dequantize(node: Node) -> Result:
    value = node.value(0)
    number = int(node.attribute("output_dtype", 0))
    to = type_of(number) if number else node.value(1).type
    if to not in FLOATING:
        node.refuse("a quantized number becomes floating point", got=to)
    if isinstance(value, Known) and all(isinstance(each, Known) for each in node.inputs[1:]):
        return (_known(node, value, 1, to),)
    if value.type not in (*_TYPES, "s32"):
        node.refuse("numbers of this type are not dequantized", got=value.type)
    return node.result(_dequantized(node, node.tensor(0), 1), to)


def _dequantized(node: Node, x: Expression, scale: int) -> Expression:
    """Return ``x`` dequantized; ``scale`` is as in ``_quantized``."""
    assert x.tensor is not None
    axes = len(x.tensor.shape)
    zero = _zero(node, scale + 1, axes)
    return (x if zero is None else x - zero) * _spread(node, scale, axes)


def _zero(node: Node, index: int, axes: int) -> Expression | None:
    """Return a zero point; None if it is 0."""
    value = node.value(index) if node.given(index) else None
    none = value is None or (isinstance(value, Known) and not value.array.astype(np.float64).any())
    return None if none else _spread(node, index, axes)


def _spread(node: Node, index: int, axes: int, *, inverse: bool = False) -> Expression:
    """Return a scale or zero point as a tensor that is broadcast along the other axes."""
    value = node.value(index)
    if isinstance(value, Traced):
        if value.shape not in ((), (1,)):
            node.refuse("scales of the call are single numbers", got=value.shape)
        return 1 / value.expression if inverse else value.expression
    if node.attribute("block_size", 0):
        node.refuse("scales of blocks are of constants", got=node.attribute("block_size"))
    array = value.array.astype(np.float64)
    array = 1 / array if inverse else array
    if array.size > 1:
        array = array.reshape(_along(node, axes, array.size))
    name = f"{value.name}_inverse" if inverse else value.name
    return node.expression(Known(array.astype(np.float32), name))


def _along(node: Node, axes: int, size: int) -> list[int]:
    """Return the shape in which numbers for each index of the node's axis are broadcast."""
    shape = [1] * axes
    shape[node.axis(default=1, of=axes)] = size
    return shape


# --- constants -----------------------------------------------------------------------------------


def _known_integers(node: Node, x: Known, number: int) -> Known:
    """Return a constant quantized."""
    kind = onnx.helper.tensor_dtype_to_np_dtype(number) if number else np.dtype(np.uint8)
    kind = node.constant(2, "a zero point").dtype if node.given(2) else kind
    if kind.kind not in "iu":
        node.refuse("constants are quantized to integers", got=kind, expected="s8, u8, s16, u16")
    found: Array = np.rint(x.array.astype(np.float64) / _numbers(node, 1, x.array))
    if node.given(2):
        found += _numbers(node, 2, x.array)
    limits = np.iinfo(kind)
    return Known(np.clip(found, limits.min, limits.max).astype(kind), x.name)


def _known(node: Node, value: Known, scale: int, to: str) -> Known:
    """Return a constant dequantized, with its integers if products can multiply them."""
    whole = value.array.astype(np.float64)
    zero = _numbers(node, scale + 1, whole) if node.given(scale + 1) else np.zeros(1)
    found: Array = (whole - zero) * _numbers(node, scale, whole)
    kind = onnx.helper.tensor_dtype_to_np_dtype(_NUMBERS[to])
    scales = node.constant(scale, "a scale").astype(np.float32)
    integers = None
    if value.type in ("s8", "u8") and zero.min() == zero.max() and scales.ndim < 2:
        axis = node.axis(default=1, of=whole.ndim) if scales.size > 1 else 1
        integers = Integers(value.array, scales, int(zero.flat[0]), axis)
    blocks = None
    if size := int(node.attribute("block_size", 0)):
        zeros = node.constant(scale + 1, "a zero point") if node.given(scale + 1) else None
        blocks = Blocks(value.array, scales, zeros, size, node.axis(default=1, of=whole.ndim))
    return Known(found.astype(kind), value.name, integers, blocks)


def _numbers(node: Node, index: int, like: Array) -> Array:
    """Return constant scales or zero points in float64, broadcast to the shape of an array."""
    array = node.constant(index, "a scale or zero point").astype(np.float64)
    if array.size == 1:
        return np.broadcast_to(array.reshape(()), like.shape)
    if not (block := int(node.attribute("block_size", 0))):
        shape = _along(node, like.ndim, array.size)
        return np.broadcast_to(array.reshape(shape), like.shape)
    axis = node.axis(default=1, of=like.ndim)
    cut = (slice(None),) * axis + (slice(0, like.shape[axis]),)
    return np.repeat(array, block, axis)[cut]


#: The number of a floating-point type in ONNX.
_NUMBERS = {
    "f32": onnx.TensorProto.FLOAT, "f64": onnx.TensorProto.DOUBLE,
    "f16": onnx.TensorProto.FLOAT16, "bf16": onnx.TensorProto.BFLOAT16,
}  # fmt: skip


# --- products and functions of integers ----------------------------------------------------------


def _operand(node: Node, index: int, *, transposed: bool = False) -> Known | Traced:
    """Return an integer input as a dequantized value; its scale and zero point come after it."""
    value = node.value(index)
    if isinstance(value, Known):
        return _of_vector(node, value, index, transposed=transposed)
    whole = turned(value) if transposed else value
    assert isinstance(whole, Traced)
    return Traced(_dequantized(node, whole.expression, index + 1), "f32")


def _of_vector(node: Node, value: Known, index: int, *, transposed: bool) -> Known:
    """Return a constant dequantized. Scales are of columns, or of rows if it is transposed."""
    own = Node(node.proto, node.opset, node.inputs, {"axis": 0 if transposed else -1}, node.found)
    found = _known(own, value, index + 1, "f32")
    return found.turned if transposed else found


@operator("QLinearMatMul")
def _q_matmul(node: Node) -> Result:
    found = product(node, _operand(node, 0), _operand(node, 3))
    return (_quantized(node, found, 6, node.value(7).type),)


@operator("com.microsoft.QGemm")
def _q_gemm(node: Node) -> Result:
    left, right = (bool(node.attribute(name, 0)) for name in ("transA", "transB"))
    found = product(
        node, _operand(node, 0, transposed=left), _operand(node, 3, transposed=right)
    ) * float(node.attribute("alpha", 1.0))
    if node.given(6):
        scale = float(node.attribute("alpha", 1.0)) * _number(node, 1) * _number(node, 4)
        bias = node.constant(6, "the bias").astype(np.float64) * scale
        name = node.proto.input[6]
        found = found + node.expression(Known(bias.astype(np.float32), name))
    if not node.given(7):
        return node.result(found, "f32")
    return (_quantized(node, found, 7, node.value(8).type if node.given(8) else node.type),)


def _number(node: Node, index: int) -> Array:
    return node.constant(index, "a scale").astype(np.float64).reshape(-1)


@operator("MatMulInteger")
def _integers(node: Node) -> Result:
    """Return the sums. A zero point of the call is subtracted by the sums of B's columns."""
    a, b = node.value(0), node.value(1)
    left, right = (_integer_zero(node, index) for index in (2, 3))
    if not isinstance(a, Traced) or right is None:
        node.refuse("A is computed, and the zero point of B is constant", got=node.proto.input)
    x = a.expression
    if isinstance(b, Known):
        if b.type not in ("s8", "u8"):
            node.refuse("a product of integers has operands of 8 bits", got=b.type)
        kind = type_name(b.type)
        y: Expression = node.found.weight(b.array, b.name, f"B_{a.type}", b.array, kind)
    else:
        y = b.expression
    found = nn.product(x, y, a_zero=left or 0, b_zero=right)
    if left is None:
        if not isinstance(b, Known):
            node.refuse("a zero point of the call is of a constant B", got=node.proto.input[1])
        columns: Array = (b.array.astype(np.float64) - right).sum(axis=-2)
        sums = node.expression(Known(columns.astype(np.float32), f"{b.name}_sums"))
        found = found - _spread(node, 2, len(a.shape)) * sums
    return node.result(found, "s32")


def _integer_zero(node: Node, index: int) -> int | None:
    """Return a zero point that is one number; None if it is of the call, or one of several."""
    if not node.given(index):
        return 0
    value = node.value(index)
    if not isinstance(value, Known):
        return None
    if value.array.min() != value.array.max():
        node.refuse("a zero point is one number", got=value.array, expected="equal numbers")
    return int(value.array.reshape(-1)[0])


def _function(function: Callable[..., Expression], count: int) -> Callable[[Node], Result]:
    """Return the importer of a function of ``count`` quantized tensors."""

    def importer(node: Node) -> Result:
        given = [_operand(node, 3 * index) for index in range(count)]
        found = function(node, *map(node.expression, given))
        return (_quantized(node, found, 3 * count, node.type),)

    return importer


_FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "QLinearAdd": (lambda _, x, y: x + y, 2),
    "QLinearMul": (lambda _, x, y: x * y, 2),
    "QLinearSigmoid": (lambda _, x: exponential.logistic(x), 1),
    "QLinearLeakyRelu": (
        lambda node, x: activations.relu(x, float(node.attribute("alpha", 0.01))), 1,
    ),
}  # fmt: skip
for _name, (_made, _count) in _FUNCTIONS.items():
    operator(f"com.microsoft.{_name}")(_function(_made, _count))
