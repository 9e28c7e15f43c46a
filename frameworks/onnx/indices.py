"""Operators of indices: places of the largest elements, one-hot rows; and of sums so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import onnx
from tilewright import nn
from tilewright.runtime.imported import Array
from tilewright.spec.expression.comparisons import eq, gt, lt, where
from tilewright.spec.expression.nodes import Expression
from tilewright.spec.expression.tensors import cast
from tilewright.spec.sizes import Dim, Size

from .node import Node, operator
from .values import FLOATING, WHOLE, Known, Value, sizes_of

Result = Sequence[Value | None]
#: Longest axis along which elements are multiplied one by one, or summed by a triangle of ones.
_LONG = 512


@operator("ArgMax", "ArgMin")
def _arg(node: Node) -> Result:
    x, shape = node.tensor(0), node.value(0).shape
    axis = node.axis(of=len(shape))
    kept = bool(node.attribute("keepdims", 1))
    reduced, beyond = (nn.max, lt) if node.operator == "ArgMax" else (nn.min, gt)
    worse = beyond(x, reduced(x, axis=axis, keepdims=True))  # nothing is worse than NaN
    place = nn.index(x, axis)
    if node.attribute("select_last_index", 0):
        found = nn.max(where(worse, -1, place), axis=axis, keepdims=kept)
    else:
        found = nn.min(where(worse, 2**24, place), axis=axis, keepdims=kept)
    return node.result(found, "s32")


@operator("Hardmax")
def _hardmax(node: Node) -> Result:
    x, shape = node.tensor(0), node.value(0).shape
    axis = node.axis(default=-1, of=len(shape))
    place = nn.index(x, axis)
    first = nn.min(
        where(eq(x, nn.max(x, axis=axis, keepdims=True)), place, 2**24),
        axis=axis,
        keepdims=True,
    )
    return node.result(eq(place, first), node.floating())


@operator("OneHot")
def _one_hot(node: Node) -> Result:
    index, shape = node.tensor(0), node.value(0).shape
    depth = int(node.constant(1, "the number of classes").reshape(()))
    off, on = (float(each) for each in node.constant(2, "the values").reshape(-1))
    axis = node.axis(default=-1, of=len(shape), end=1)
    wide = index.reshape(*shape[:axis], 1, *shape[axis:])
    places = nn.arange(depth).reshape(*[1] * axis, depth, *[1] * (len(shape) - axis))
    least = where(lt(wide, 0), wide + depth, wide)
    return node.result(where(eq(least, places), on, off), node.value(2).type)


@operator("CumSum")
def _cumsum(node: Node) -> Result:
    x, shape = node.tensor(0), node.value(0).shape
    axis = node.counted(int(node.constant(1, "an axis").reshape(())), len(shape))
    if node.type not in ("f32", "f16", "bf16"):
        return _running(node, x, axis)
    type_ = node.floating()
    size = _fixed(node, shape[axis])
    ones: Array = np.ones((size, size), np.float32)
    below = int(bool(node.attribute("exclusive", 0)))
    ones = np.tril(ones, -below) if node.attribute("reverse", 0) else np.triu(ones, below)
    w = node.weight(Known(ones, f"{node.proto.output[0]}_ones"), "", ones)
    if len(shape) == 1:
        return node.result((x.reshape(1, size) @ w).reshape(size), type_)
    return node.result((x.swapaxes(axis, -1) @ w).swapaxes(axis, -1), type_)


@operator("CumProd")
def _cumprod(node: Node) -> Result:
    axis = int(node.constant(1, "an axis").reshape(()))
    return _running(node, node.tensor(0), node.counted(axis, len(node.value(0).shape)))


def _running(node: Node, x: Expression, axis: int) -> Result:
    """Return sums or products so far, element after element."""
    size = _fixed(node, node.value(0).shape[axis])
    if node.type not in (*FLOATING, *WHOLE):
        node.refuse("numbers are added or multiplied", got=node.type)
    before, product = (slice(None),) * axis, node.operator == "CumProd"
    parts = [x[(*before, slice(place, place + 1))] for place in range(size)]
    backwards = bool(node.attribute("reverse", 0))
    parts = parts[::-1] if backwards else parts
    if node.attribute("exclusive", 0):
        none = lt(parts[0], 0) & gt(parts[0], 0)  # 0 for all numbers, and for NaN
        parts = [none + int(product), *parts[:-1]]
    total = parts[0] * 1
    found = [total]
    for part in parts[1:]:
        total = total * part if product else total + part
        found.append(total)
    joined = nn.concat(found[::-1] if backwards else found, axis)
    return node.result(joined, node.type)


@operator("ReduceProd")
def _prod(node: Node) -> Result:
    x, shape = node.tensor(0), node.value(0).shape
    type_ = node.floating()
    given = node.constants(1, "axes")
    if not given and node.attribute("noop_with_empty_axes", 0):
        return (node.inputs[0],)
    axes = {node.counted(axis, len(shape)) for axis in given or range(len(shape))}
    for axis in axes:
        before = (slice(None),) * axis
        parts = [
            x[(*before, slice(place, place + 1))] for place in range(_fixed(node, shape[axis]))
        ]
        x = parts[0] if parts else nn.full((*shape[:axis], 1, *shape[axis + 1 :]), 1.0)
        for part in parts[1:]:
            x = x * part
    if not node.attribute("keepdims", 1):
        x = x.reshape(*(size for axis, size in enumerate(shape) if axis not in axes))
    return node.result(x, type_)


def _fixed(node: Node, size: Size) -> int:
    if isinstance(size, Dim) or size > _LONG:
        node.refuse("this axis is free, or too long", got=size, expected=f"at most {_LONG}")
    return size


@operator("Tile")
def _tile(node: Node) -> Result:
    x, shape = node.tensor(0), node.value(0).shape
    for axis, count in enumerate(node.constant(1, "the repeats").reshape(-1).tolist()):
        if isinstance(shape[axis], Dim) and count != 1:
            node.refuse("an axis of free size is repeated", got=shape[axis])
        x = nn.concat([x] * count, axis) if count else _none(x, shape, axis)
    return node.result(x, node.type)


def _none(x: Expression, shape: tuple[Size, ...], axis: int) -> Expression:
    return x[(*(slice(None),) * axis, slice(0, 0))]


@operator("ConstantOfShape")
def _filled(node: Node) -> Result:
    """Return a tensor of one number, whose shape has sizes of the call."""
    shape = sizes_of(node.constant(0, "a shape"))
    given = node.attribute("value")
    value = np.zeros(1, np.float32) if given is None else onnx.numpy_helper.to_array(given)
    return node.result(nn.full(shape, float(value.reshape(()))), Known(value).type)


@operator("Range")
def _range(node: Node) -> Result:
    """Return the numbers below a size of the call."""
    first, limit, step = (node.constant(index, "a range").reshape(()).item() for index in range(3))
    if first != 0 or step != 1:
        node.refuse("a range to a size of the call has a simple start", got=(first, step),
                    expected="start 0 and delta 1")  # fmt: skip
    return node.result(nn.arange(limit), "s32")


@operator("TopK")
def _top(node: Node) -> Result:
    """Return the largest elements and their places: each is the largest of those after the last."""
    x, shape = node.tensor(0), node.value(0).shape
    axis = node.axis(default=-1, of=len(shape))
    given = node.constants(1, "k")
    count, size = int(given[0]) if given else 1, shape[axis]
    if isinstance(size, Dim) or not 1 <= count <= min(size, _FEW):
        node.refuse("few elements of a fixed axis are the largest", got=f"{count} of {size}",
                    expected=f"1 to {_FEW}")  # fmt: skip
    largest = bool(node.attribute("largest", 1))
    reduction, least = (nn.max, -np.inf) if largest else (nn.min, np.inf)
    place = nn.index(x, axis)
    after: Expression | None = None
    values, places = list[Expression](), list[Expression]()
    for _ in range(count):
        left = x if after is None else where(after, x, least)
        best = reduction(left, axis=axis, keepdims=True)
        here = eq(x, best) if after is None else eq(x, best) & after
        at = nn.min(where(here, place, 2**24), axis=axis, keepdims=True)
        after = (lt(x, best) if largest else gt(x, best)) | (eq(x, best) & gt(place, at))
        values.append(best)
        places.append(at)
    found = (cast(nn.concat(values, axis), "f32"), cast(nn.concat(places, axis), "s32"))
    return (node.traced(found[0], node.type), node.traced(found[1], "s32"))


#: The largest k of a TopK: each element takes two passes over the axis.
_FEW = 32
