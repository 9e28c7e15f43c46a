"""Operators that move elements or change shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.spec.expression.tensors import Input
from tilewright.spec.sizes import Dim, Size

from .node import Node, operator
from .values import Known, Traced, Unread, Value, sizes_of

Result = Sequence[Value | None]


@operator("Flatten")
def _flatten(node: Node) -> Result:
    value = _given(node)
    shape = value.shape
    axis = node.axis(default=1, of=len(shape), end=1) if shape else 0
    return (_reshaped(node, value, (_all(node, shape[:axis]), _all(node, shape[axis:]))),)


@operator("Reshape")
def _reshape(node: Node) -> Result:
    value = _given(node)
    if node.attributes.get("shape") is not None:
        wanted: tuple[Size, ...] = tuple(node.attributes["shape"])
    else:
        wanted = sizes_of(node.constant(1, "a shape"))
    return (_reshaped(node, value, _resolved(node, value.shape, wanted)),)


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


def _given(node: Node) -> Value:
    found = node.inputs[0]
    assert found is not None
    return found


def _all(node: Node, sizes: Sequence[Size]) -> Size:
    """Return the product of sizes, of which at most one may be free."""
    free = [size for size in sizes if isinstance(size, Dim)]
    fixed = math.prod(size for size in sizes if not isinstance(size, Dim))
    if not free:
        return fixed
    if len(free) == 1 and fixed == 1:
        return free[0]
    return node.refuse("two axes become one, and the size of one is free", got=tuple(sizes))


def _resolved(node: Node, given: Sequence[Size], wanted: Sequence[Size]) -> tuple[Size, ...]:
    """Return the new shape, with sizes in place of 0 and -1."""
    zero = not node.attribute("allowzero", 0)
    shape = [
        given[axis] if zero and size == 0 and axis < len(given) else size
        for axis, size in enumerate(wanted)
    ]
    if -1 not in shape:
        return tuple(shape)
    known = [size for size in shape if size != -1]
    left = list(given)
    for size in [size for size in known if isinstance(size, Dim)]:
        if size not in left:
            node.refuse("the shape has a size that the tensor lacks", got=size.name)
        left.remove(size)
        known.remove(size)
    fixed = math.prod(size for size in known if not isinstance(size, Dim))
    free = [size for size in left if isinstance(size, Dim)]
    whole = math.prod(size for size in left if not isinstance(size, Dim))
    if fixed == 0 or whole % fixed or len(free) > 1 or (free and whole != fixed):
        node.refuse("the elements do not fit the shape", got=f"{tuple(given)} to {tuple(wanted)}")
    rest: Size = free[0] if free else whole // fixed
    return tuple(rest if size == -1 else size for size in shape)


def _reshaped(node: Node, value: Value, shape: tuple[Size, ...]) -> Value:
    """Return a tensor with another shape and its elements in the same order."""
    if isinstance(value, Unread):
        return _read(node, value, shape)
    if value.shape == shape or isinstance(value, Known):
        return value
    return node.refuse(
        "tensors are not reshaped", got=f"{value.shape} to {shape}", expected="inputs alone"
    )


def _read(node: Node, value: Unread, shape: tuple[Size, ...]) -> Traced:
    """Return an input as the tensor of a call, which has the new shape."""
    tensor = Input(value.name, value.type, shape)  # type: ignore[arg-type]
    first = node.inputs_of_graph.setdefault(value.name, tensor)
    if first != tensor or len(shape) > 2:
        node.refuse(
            "an input becomes a matrix in one way",
            got=f"{value.shape} to {shape}",
            expected="at most two axes, and one shape for all uses",
        )
    return Traced(tensor, value.type)
