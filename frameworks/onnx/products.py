"""Products: Gemm and MatMul, of numbers and of dequantized integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright import nn
from tilewright.runtime.imported import Array
from tilewright.spec.expression.comparisons import eq, ge, lt, where
from tilewright.spec.expression.nodes import Call, Expression, Number
from tilewright.spec.expression.products import Dequantized, Product, Weight, dequantized
from tilewright.spec.expression.tensors import Cast, Count, View, cast
from tilewright.spec.expression.tensors import size as extent
from tilewright.spec.sizes import Size
from tilewright.spec.types import accumulator

from .low_bit import matrix_of
from .node import Node, operator
from .values import Integers, Known, Traced, Value

Result = Sequence[Value | None]


@operator("MatMul")
def _matmul(node: Node) -> Result:
    return node.result(product(node, node.value(0), node.value(1)), node.floating())


@operator("Gemm")
def _gemm(node: Node) -> Result:
    alpha, beta = (float(node.attribute(name, 1.0)) for name in ("alpha", "beta"))
    a, b = (
        turned(node.value(index)) if node.attribute(name, 0) else node.value(index)
        for index, name in enumerate(("transA", "transB"))
    )
    found = product(node, a, b)
    found = found if alpha == 1 else found * alpha
    if node.given(2) and beta != 0:
        c = node.tensor(2)
        found = found + (c if beta == 1 else c * beta)
    return node.result(found, node.floating())


def turned(value: Known | Traced) -> Known | Traced:
    """Return a transposed matrix."""
    return value.turned if isinstance(value, Known) else Traced(value.expression.T, value.type)


def product(node: Node, a: Known | Traced, b: Known | Traced) -> Expression:
    """Return the product of two values.

    If both are dequantized from integers, it is one of integers. If the first has one-hot rows, it
    takes rows of the second.
    """
    place = one_hot(node, a.expression) if isinstance(a, Traced) else None
    if place is not None and len(b.shape) == 2 and b.type == "f32":
        return _rows(_operand(node, b, "table"), place)
    if isinstance(a, Traced) and (left := _along(dequantized(a.expression), -1)) is not None:
        if isinstance(b, Known) and (right := b.integers) is not None and len(b.shape) == 2:
            if right.scale.size == 1 or right.axis == 1:
                return _of_integers(node, left, b, right)
        elif isinstance(b, Traced) and _along(dequantized(b.expression), -2) is not None:
            return nn.product(a.expression, b.expression)
    matrix = matrix_of(b.blocks) if isinstance(b, Known) and b.blocks is not None else None
    if isinstance(a, Traced) and isinstance(b, Known) and matrix is not None:
        return a.expression @ node.found.low_bit(b.array, b.name, matrix)
    return _plain(_operand(node, a, "A"), _operand(node, b, "B"))


def _rows(table: Expression, place: Expression) -> Expression:
    """Return the rows of a table at places (..., 1), and rows of 0 for places beyond the table."""
    assert table.tensor is not None and place.tensor is not None
    whole = cast(place, "s32")
    found = nn.take(table, whole.reshape(*place.tensor.shape[:-1]))
    inside = ge(place, 0) & lt(place, extent(table, 0))
    inside = inside if whole is place else inside & eq(place, whole)
    return where(inside, found, 0)


def one_hot(node: Node, x: Expression) -> Expression | None:
    """Return the places (..., 1) of the ones in one-hot rows; None if ``x`` is something else."""
    while isinstance(x, Cast):
        (x,) = x.args
    if isinstance(x, Call) and x.fn == "where" and x.args[1:] == (Number(1.0), Number(0.0)):
        x = x.args[0]
    if not isinstance(x, Call) or x.fn != "eq" or x.tensor is None or x.ndim < 2:
        return None
    for place, numbers in (x.args, x.args[::-1]):
        shape = None if place.tensor is None else place.tensor.shape
        if shape == (*x.tensor.shape[:-1], 1) and _counts(node, numbers, x.tensor.shape[-1]):
            return place
    return None


def _counts(node: Node, x: Expression, size: Size) -> bool:
    """Return True if a tensor has the numbers 0, 1, 2 and so on along its last axis."""
    if isinstance(x, Weight):
        counted = np.arange(x.shape[-1], dtype=np.float32)
        return x.shape[-1] == size and np.array_equal(node.found.arrays[x.key].ravel(), counted)
    shape = None if x.tensor is None else x.tensor.shape
    while isinstance(x, View) and x.fn == "reshape":
        (x,) = x.args
    return isinstance(x, Count) and shape is not None and shape[-1] == size == x.size


def _along(found: Dequantized | None, axis: int) -> Dequantized | None:
    """Return the parts of a dequantized tensor; None if its scale varies along this axis."""
    scale = None if found is None or found.scale is None else found.scale.tensor
    varies = scale is not None and len(scale.shape) >= -axis and scale.shape[axis] != 1
    return None if varies else found


def _of_integers(node: Node, left: Dequantized, b: Known, right: Integers) -> Expression:
    """Return the product with a weight of integers, whose scale takes that of ``left`` in."""
    assert left.tensor.tensor is not None
    use = f"B_{left.tensor.tensor.type}"
    weight = node.found.weight(right.array, b.name, use, right.array, right.type)
    sums = nn.product(left.tensor, weight, a_zero=left.zero, b_zero=right.zero)
    scale: Array = right.scale.reshape(-1).astype(np.float64)
    if isinstance(left.scale, Number):
        scale = scale * left.scale.value
    elif left.scale is not None:
        sums = sums * left.scale
    return sums * node.expression(Known(scale.astype(np.float32), f"{b.name}_scales"))


def _plain(a: Expression, b: Expression) -> Expression:
    """Return a product as it is, also if a scale of one operand alone is known."""
    assert a.tensor is not None and b.tensor is not None
    if 1 in (a.ndim, b.ndim) or accumulator(a.tensor.type, b.tensor.type) != "f32":
        return a @ b
    return Product("f32", 0, 0, (a, b))


def _operand(node: Node, value: Known | Traced, use: str) -> Expression:
    """Return an operand of a product: a tensor, or the weight that holds a constant."""
    if isinstance(value, Traced):
        found = value.expression
        return cast(found, "f32") if value.type in ("f16", "bf16") else found
    if value.array.dtype not in (np.float32, np.float16):
        node.refuse("weights of products have type f32", got=value.type, expected="f32")
    return node.weight(value, use, value.array.astype(np.float32))
