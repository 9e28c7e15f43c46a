"""Operators that move elements or change shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tilewright import nn
from tilewright.runtime.imported import Array
from tilewright.spec.expression.comparisons import eq, lt, where
from tilewright.spec.expression.nodes import Expression
from tilewright.spec.expression.tensors import View, cast
from tilewright.spec.sizes import Dim, Size, joined_size
from tilewright.spec.types import type_name

from .node import Node, operator
from .values import WHOLE, Known, Value, sizes_of

Result = Sequence[Value | None]


@operator("Flatten")
def _flatten(node: Node) -> Result:
    value = _given(node)
    shape = value.shape
    given = int(node.attribute("axis", 1))
    axis = given if given == len(shape) else node.counted(given, len(shape))
    return (_reshaped(node, value, (joined_size(shape[:axis]), joined_size(shape[axis:]))),)


@operator("Reshape")
def _reshape(node: Node) -> Result:
    value = _given(node)
    if node.attributes.get("shape") is not None:
        wanted: tuple[Size, ...] = tuple(node.attributes["shape"])
    else:
        wanted = sizes_of(node.constant(1, "a shape"))
    zero = not node.attribute("allowzero", 0)
    shape = [
        value.shape[axis] if zero and size == 0 and axis < len(value.shape) else size
        for axis, size in enumerate(wanted)
    ]
    return (_reshaped(node, value, tuple(shape)),)


@operator("Squeeze", "Unsqueeze")
def _squeeze(node: Node) -> Result:
    value = _given(node)
    axes = node.constants(1, "axes")
    shape = list(value.shape)
    if node.operator == "Squeeze":
        found = [a for a, size in enumerate(shape) if size == 1]
        gone = found if axes is None else [node.counted(axis, len(shape)) for axis in axes]
        wanted = [size for axis, size in enumerate(shape) if axis not in gone]
    else:
        assert axes is not None
        wanted = list(shape)
        for axis in sorted(node.counted(axis, len(shape) + len(axes)) for axis in axes):
            wanted.insert(axis, 1)
    return (_reshaped(node, value, tuple(wanted)),)


@operator("Transpose")
def _transpose(node: Node) -> Result:
    x = node.tensor(0)
    axes = node.attribute("perm", list(range(len(node.value(0).shape)))[::-1])
    return node.result(x.transpose(*axes), node.type)


@operator("Expand")
def _expand(node: Node) -> Result:
    x, shape = node.tensor(0), node.value(0).shape
    wanted = sizes_of(node.constant(1, "a shape"))
    return node.result(_broadcast(node, x, shape, wanted), node.type)


def _broadcast(
    node: Node, x: Expression, shape: Sequence[Size], wanted: Sequence[Size]
) -> Expression:
    """Return a tensor broadcast together with a shape."""
    count = max(len(shape), len(wanted))
    pairs = zip(
        *((1,) * (count - len(each)) + tuple(each) for each in (shape, wanted)), strict=True
    )
    sizes = tuple(two if one == 1 else one for one, two in pairs)
    return nn.expand(x, sizes)


@operator("Slice")
def _slice(node: Node) -> Result:
    x, shape = node.tensor(0), node.value(0).shape
    if node.opset < 10:
        starts, ends = node.attributes["starts"], node.attributes["ends"]
        axes, steps = node.attributes.get("axes"), None
    else:
        parts = [
            node.constants(index, name)
            for index, name in enumerate(("starts", "ends", "axes", "steps"), 1)
        ]
        starts, ends, axes, steps = parts
    axes = range(len(starts)) if axes is None else [node.counted(a, len(shape)) for a in axes]
    index = [slice(None)] * len(shape)
    for number, axis in enumerate(axes):
        step = 1 if steps is None else steps[number]
        index[axis] = _cut(starts[number], ends[number], step)
    return node.result(x[tuple(index)], node.type)


def _cut(start: int, end: int, step: int) -> slice:
    """Return a slice; numbers beyond any axis mean its end."""
    far = 2**31 - 1
    first = None if start in (0, -far - 1) and step > 0 else start
    last = None if (end >= far and step > 0) or (end <= -far and step < 0) else end
    return slice(first, last, step)


@operator("Split")
def _split(node: Node) -> Result:
    x, shape = node.tensor(0), node.value(0).shape
    axis = node.axis(of=len(shape))
    whole = shape[axis]
    if isinstance(whole, Dim):
        node.refuse("an axis of free size is not cut", got=whole.name)
    sizes = node.constants(1, "split")
    if sizes is None:
        count = int(node.attribute("num_outputs", len(node.proto.output)))
        each = -(-whole // count)
        sizes = tuple(max(0, min(each, whole - first * each)) for first in range(count))
    found, first = [], 0
    for size in sizes:
        cut = (slice(None),) * axis + (slice(first, first + size),)
        found.append(node.traced(x[cut], node.type))
        first += size
    return found


@operator("Concat")
def _concat(node: Node) -> Result:
    axis = node.axis(of=len(node.value(0).shape))
    type_ = type_name(node.type if node.type not in ("bool", "s64") else "u8")
    parts = [cast(node.whole(index), type_) for index in range(len(node.inputs))]
    return node.result(nn.concat(parts, axis), node.type)


@operator("Gather")
def _gather(node: Node) -> Result:
    table, index = node.value(0), node.value(1)
    axis = node.axis(of=len(table.shape))
    if isinstance(index, Known):
        return node.result(picked(node, node.whole(0), axis, index.array), table.type)
    if axis == 0 and index.type in WHOLE:
        return node.result(nn.take(node.whole(0), index.expression), table.type)
    wide = index.expression.reshape(*index.shape, *[1] * (len(table.shape) - axis - 1))
    parts = _slices(node, axis)
    parts = [part.reshape(*_without(table.shape, axis)) for part in parts]
    before = (*table.shape[:axis], *[1] * len(index.shape), *table.shape[axis + 1 :])
    parts = [part.reshape(*before) for part in parts]
    return node.result(chosen(parts, wide), table.type)


def _without(shape: Sequence[Size], axis: int) -> tuple[Size, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


@operator("GatherElements")
def _gather_elements(node: Node) -> Result:
    table, index = node.value(0), node.value(1)
    axis = node.axis(of=len(table.shape))
    if _without(table.shape, axis) != _without(index.shape, axis):
        node.refuse(
            "the tensor and the places differ in one axis",
            got=f"{table.shape} and {index.shape}",
            expected=f"the same sizes but for axis {axis}",
        )
    return node.result(chosen(_slices(node, axis), node.whole(1)), table.type)


@operator("ScatterND", "ScatterElements")
def _scatter(node: Node) -> Result:
    """Return a tensor with rows along one axis replaced, or added to."""
    base, index, rows = (node.whole(number) for number in range(3))
    ways = {"none": nn.scatter, "add": nn.scatter_add}
    if (reduction := node.attribute("reduction", "none")) not in ways:
        node.refuse("elements are replaced or added", got=reduction, expected="none or add")
    shape, axis = node.value(0).shape, 0
    if node.operator == "ScatterND":
        *places, along = node.value(1).shape
        fits = along == 1
    else:
        axis = node.axis(of=len(shape))
        while isinstance(index, View) and index.fn == "expand":
            (index,) = index.args
        places = [node.value(1).shape[axis]]
        others = _without(node.value(2).shape, axis)
        fits = others == _without(shape, axis) and _elements(index) == places[0]
    if not fits:
        node.refuse(
            "rows have one number each",
            got=f"numbers of shape {node.value(1).shape}, for a tensor {shape}",
            expected="one axis of the tensor, along which whole rows are written",
        )
    numbers = cast(index.reshape(*places), "s32")
    found = ways[reduction](base.swapaxes(0, axis), numbers, rows.swapaxes(0, axis))
    return node.result(found.swapaxes(0, axis), node.value(0).type)


def _elements(x: Expression) -> Size:
    assert x.tensor is not None
    return joined_size(x.tensor.shape)


def _slices(node: Node, axis: int) -> list[Expression]:
    """Return the parts of the first input along an axis of few elements."""
    x, size = node.whole(0), node.value(0).shape[axis]
    if isinstance(size, Dim) or size > _PARTS:
        node.refuse(
            "places that are computed from the inputs are of few elements",
            got=f"an axis of {size}",
            expected=f"at most {_PARTS}",
            hint="load(path, constants={...}) fixes inputs",
        )
    before = (slice(None),) * axis
    return [x[(*before, slice(place, place + 1))] for place in range(size)]


def chosen(parts: Sequence[Expression], index: Expression) -> Expression:
    """Return the part with the number that ``index`` has; negative numbers count from the end."""
    place = where(lt(index, 0), index + len(parts), index)
    found = where(eq(place, 0), parts[0], parts[-1])
    for number, part in enumerate(parts[1:-1], 1):
        found = where(eq(place, number), part, found)
    return found


def picked(node: Node, x: Expression, axis: int, index: Array) -> Expression:
    """Return the parts of a tensor at known places of an axis."""
    before = (slice(None),) * axis
    if index.ndim == 0:
        return x[(*before, int(index))]
    assert x.tensor is not None
    size = x.tensor.shape[axis]
    if isinstance(size, Dim):
        node.refuse("an axis of free size is not cut", got=size.name)
    runs = _runs(int(place) % size for place in index.reshape(-1))
    if index.ndim > 1 or len(runs) > _PARTS:
        node.refuse(
            "known places are in one axis, in few runs of places that follow each other",
            got=f"{index.size} places of shape {index.shape}, in {len(runs)} runs",
            expected=f"at most {_PARTS} runs",
        )
    return nn.concat([x[(*before, slice(*run))] for run in runs], axis)


def _runs(places: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first place of each run of places that follow each other, and its end."""
    found: list[tuple[int, int]] = []
    for place in places:
        if found and found[-1][1] == place:
            found[-1] = found[-1][0], place + 1
        else:
            found.append((place, place + 1))
    return found


#: Most parts into which a tensor is cut by a Gather.
_PARTS = 64


@operator("Pad")
def _pad(node: Node) -> Result:
    mode = node.attribute("mode", "constant")
    if mode != "constant":
        node.refuse("tensors are padded by a constant", got=mode, expected="constant")
    count = len(node.value(0).shape)
    widths = node.constants(1, "pads")
    assert widths is not None
    value = float(node.constant(2, "a value").reshape(())) if node.given(2) else 0.0
    axes = node.constants(3, "axes") if node.given(3) else range(count)
    assert axes is not None
    sides, kept = [(0, 0)] * count, [slice(None)] * count
    for number, axis in enumerate(axes):
        before, after = widths[number], widths[number + len(axes)]
        at = node.counted(axis, count)
        sides[at] = max(before, 0), max(after, 0)
        if min(before, after) < 0:  # negative widths remove elements
            kept[at] = slice(max(-before, 0), min(after, 0) or None)
    x = cast(node.tensor(0), "f32")[tuple(kept)]
    return node.result(nn.pad(x, sides, value), node.type)


@operator("DepthToSpace", "SpaceToDepth")
def _blocks(node: Node) -> Result:
    x, (n, c, h, w) = node.tensor(0), node.value(0).shape
    size = int(node.attribute("blocksize"))
    if any(isinstance(each, Dim) for each in (c, h, w)):
        node.refuse("an axis of free size is cut", got=(n, c, h, w))
    assert isinstance(c, int) and isinstance(h, int) and isinstance(w, int)
    if node.operator == "SpaceToDepth":
        order = (0, 3, 5, 1, 2, 4) if node.attribute("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
        parts = x.reshape(n, c, h // size, size, w // size, size).transpose(*order)
        made = parts.reshape(n, c * size * size, h // size, w // size)
        return node.result(made, node.type)
    if node.attribute("mode", "DCR") == "DCR":
        parts = x.reshape(n, size, size, c // size**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(n, c // size**2, size, size, h, w).transpose(0, 1, 4, 2, 5, 3)
    return node.result(parts.reshape(n, c // size**2, h * size, w * size), node.type)


@operator("Trilu")
def _trilu(node: Node) -> Result:
    *_, rows, cols = node.value(0).shape
    k = int(node.constant(1, "a diagonal").reshape(())) if node.given(1) else 0
    if isinstance(rows, Dim) or isinstance(cols, Dim):
        node.refuse("a triangle has a fixed size", got=node.value(0).shape)
    upper = bool(node.attribute("upper", 1))
    mask = np.ones((rows, cols), np.float32)
    held = Known(np.triu(mask, k) if upper else np.tril(mask, k), node.proto.output[0])
    return node.result(where(node.expression(held), node.tensor(0), 0), node.type)


def _given(node: Node) -> Value:
    found = node.inputs[0]
    assert found is not None
    return found


def _reshaped(node: Node, value: Value, shape: tuple[Size, ...]) -> Value:
    """Return a tensor with another shape and its elements in the same order."""
    if isinstance(value, Known):
        return value
    return node.traced(value.expression.reshape(*shape), value.type)
