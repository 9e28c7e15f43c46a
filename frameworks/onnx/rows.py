"""Operators along an axis: reductions, softmax, norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tilewright as tw
from tilewright import nn
from tilewright.spec.expression.nodes import Expression

from .node import Node, operator
from .values import Known, Value

Result = Sequence[Value | None]

_REDUCTIONS: dict[str, tuple[Callable[..., Expression], Any, Any]] = {
    # the reduction, what it is taken of, and what is made of it
    "ReduceSum": (nn.sum, None, None),
    "ReduceMean": (nn.mean, None, None),
    "ReduceMax": (nn.max, None, None),
    "ReduceMin": (nn.min, None, None),
    "ReduceSumSquare": (nn.sum, tw.square, None),
    "ReduceL1": (nn.sum, abs, None),
    "ReduceL2": (nn.sum, tw.square, tw.sqrt),
    "ReduceLogSum": (nn.sum, None, tw.log),
}


@operator(*_REDUCTIONS)
def _reduced(node: Node) -> Result:
    reduction, before, after = _REDUCTIONS[node.operator]
    x, type_ = node.tensor(0), node.floating()
    axes = _axes(node, len(node.value(0).shape))
    if axes is None:
        return (node.inputs[0],)
    x = x if before is None else before(x)
    for axis in axes:  # from the last to the first
        x = reduction(x, axis=axis, keepdims=_kept(node))
    return node.result(x if after is None else after(x), type_)


@operator("ReduceLogSumExp")
def _log_sum_exp(node: Node) -> Result:
    x, type_ = node.tensor(0), node.floating()
    axes = _axes(node, len(node.value(0).shape))
    if axes is None:
        return (node.inputs[0],)
    if len(axes) > 1:
        node.refuse("this reduction is along one axis", got=axes)
    (axis,) = axes
    top = nn.max(x, axis=axis, keepdims=True)
    total = nn.sum(tw.exp(x - top), axis=axis, keepdims=_kept(node))
    return node.result(tw.log(total) + nn.max(x, axis=axis, keepdims=_kept(node)), type_)


def _kept(node: Node) -> bool:
    return bool(node.attribute("keepdims", 1))


def _axes(node: Node, of: int) -> list[int] | None:
    """Return the axes that are reduced, the last first; None if the tensor stays as it is."""
    found = node.constants(1, "axes")
    if not found:
        if found is not None or node.given(1):
            return None if node.attribute("noop_with_empty_axes", 0) else [*range(of)][::-1]
        return None if node.attribute("noop_with_empty_axes", 0) else [*range(of)][::-1]
    return sorted({node.counted(axis, of) for axis in found}, reverse=True)


@operator("Softmax", "LogSoftmax")
def _softmax(node: Node) -> Result:
    of = len(node.value(0).shape)
    old = node.opset < 13
    axis = node.axis(default=1 if old else -1, of=of)
    if old and axis != of - 1:
        node.refuse(
            "before opset 13 softmax is of all axes from this one on",
            got=f"axis {axis} of {of}",
            expected=f"axis {of - 1}",
            hint="onnx.version_converter.convert_version(model, 13)",
        )
    function = nn.softmax if node.operator == "Softmax" else nn.log_softmax
    return node.result(function(node.tensor(0), axis=axis), node.floating())


@operator("LayerNormalization", "RMSNormalization")
def _norm(node: Node) -> Result:
    of = len(node.value(0).shape)
    type_, axis = node.floating(), node.axis(default=-1, of=of)
    if axis != of - 1:
        node.refuse("a norm is along the last axis", got=f"axis {axis} of {of}", expected="axis -1")
    eps = float(node.attribute("epsilon", 1e-5))
    x, scale = node.tensor(0), node.tensor(1)
    if node.operator == "RMSNormalization":
        return node.result(nn.rms_norm(x, scale, eps), type_)
    bias = node.tensor(2) if node.given(2) else None
    found = node.result(nn.layer_norm(x, scale, bias, eps), type_)
    if not any(node.proto.output[1:]):
        return found
    mean = nn.mean(x, keepdims=True)
    centred = x - mean
    inverse = 1 / tw.sqrt(nn.mean(centred * centred, keepdims=True) + eps)
    return (*found, node.traced(mean, "f32"), node.traced(inverse, "f32"))


@operator("BatchNormalization")
def _batch_norm(node: Node) -> Result:
    if node.attribute("training_mode", 0):
        node.refuse("networks are not trained", got="training_mode=1", expected="0")
    if len(node.value(0).shape) != 2:
        node.refuse("a batch norm is of a matrix", got=node.value(0).shape, expected="(rows, n)")
    scale, bias, mean, variance = (node.constant(index, "a norm") for index in range(1, 5))
    eps = float(node.attribute("epsilon", 1e-5))
    factor = scale / (variance.astype("f8") + eps) ** 0.5
    shift = bias - mean * factor
    name = node.proto.output[0]
    both = [
        node.expression(Known(each.astype("f4"), f"{name}_{what}"))
        for what, each in (("scale", factor), ("shift", shift))
    ]
    return node.result(node.tensor(0) * both[0] + both[1], node.floating())
