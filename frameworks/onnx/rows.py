"""Operators along an axis: reductions, softmax, norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import nn
from tilewright.spec.expression import arithmetic, exponential, logarithm
from tilewright.spec.expression.comparisons import eq, where
from tilewright.spec.expression.nodes import Expression, Number

from .node import Node, operator
from .values import WHOLE, Known, Value

Result = Sequence[Value | None]

_REDUCTIONS: dict[str, tuple[Callable[..., Expression], Any, Any]] = {
    # the reduction, what it is taken of, and what is made of it
    "ReduceSum": (nn.sum, None, None),
    "ReduceMean": (nn.mean, None, None),
    "ReduceMax": (nn.max, None, None),
    "ReduceMin": (nn.min, None, None),
    "ReduceSumSquare": (nn.sum, arithmetic.square, None),
    "ReduceL1": (nn.sum, abs, None),
    "ReduceL2": (nn.sum, arithmetic.square, arithmetic.sqrt),
    "ReduceLogSum": (nn.sum, None, logarithm.log),
}


@operator(*_REDUCTIONS)
def _reduced(node: Node) -> Result:
    reduction, before, after = _REDUCTIONS[node.operator]
    x, type_ = node.tensor(0), node.type
    if type_ not in ("bool", *WHOLE) or after is not None:
        type_ = node.floating()
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
    total = nn.sum(exponential.exp(x - top), axis=axis, keepdims=_kept(node))
    return node.result(logarithm.log(total) + nn.max(x, axis=axis, keepdims=_kept(node)), type_)


def _kept(node: Node) -> bool:
    return bool(node.attribute("keepdims", 1))


def _axes(node: Node, of: int) -> list[int] | None:
    """Return the axes that are reduced, the last first; None if the tensor stays as it is."""
    found = node.constants(1, "axes")
    if not found:
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
    """Norms of several axes are norms of one axis that these become."""
    x, shape = node.tensor(0), node.value(0).shape
    type_, axis = node.floating(), node.axis(default=-1, of=len(shape))
    eps = float(node.attribute("epsilon", 1e-5))
    norms = shape[axis:]
    scale, bias = node.tensor(1), node.tensor(2) if node.given(2) else None
    if len(norms) > 1:
        x = x.reshape(*shape[:axis], -1)
        if isinstance(scale, Number) or node.value(1).shape != norms:
            node.refuse("a scale has the shape of the norm", got=node.value(1).shape)
        scale = scale.reshape(-1)
        bias = None if bias is None or isinstance(bias, Number) else bias.reshape(-1)
    if node.operator == "RMSNormalization":
        found = nn.rms_norm(x, scale, eps)
    else:
        found = nn.layer_norm(x, scale, bias, eps)
    results = node.result(found.reshape(*shape) if len(norms) > 1 else found, type_)
    if not any(node.proto.output[1:]):
        return results
    mean = nn.mean(x, keepdims=True)
    centred = x - mean
    inverse = 1 / arithmetic.sqrt(nn.mean(centred * centred, keepdims=True) + eps)
    kept = (*shape[:axis], *[1] * len(norms))
    return (*results, *(node.traced(each.reshape(*kept), "f32") for each in (mean, inverse)))


@operator("InstanceNormalization", "GroupNormalization")
def _groups(node: Node) -> Result:
    """Norms of all axes but the first two: of each channel, or of groups of channels."""
    x, (batch, channels, *rest) = node.tensor(0), node.value(0).shape
    type_, eps = node.floating(), float(node.attribute("epsilon", 1e-5))
    groups = int(node.attribute("num_groups", 0)) or channels
    normed = nn.layer_norm(x.reshape(batch, groups, -1), eps=eps)
    found = normed.reshape(batch, channels, *rest)
    scale, bias = (_by_channel(node, index, len(rest)) for index in (1, 2))
    return node.result(found * scale + bias, type_)


def _by_channel(node: Node, index: int, rest: int) -> Expression:
    """Return a number for each channel, to be broadcast along the axes after the channels."""
    return node.whole(index).reshape(-1, *[1] * rest)


@operator("LpNormalization")
def _lp(node: Node) -> Result:
    x, type_ = node.tensor(0), node.floating()
    axis, p = node.axis(default=-1, of=len(node.value(0).shape)), int(node.attribute("p", 2))
    if p not in (1, 2):
        node.refuse("a norm is of order 1 or 2", got=p)
    size = nn.sum(abs(x) if p == 1 else arithmetic.square(x), axis=axis, keepdims=True)
    size = size if p == 1 else arithmetic.sqrt(size)
    return node.result(where(eq(size, 0), 0, x / size), type_)


@operator("GlobalAveragePool", "GlobalMaxPool")
def _pooled(node: Node) -> Result:
    x, shape = node.tensor(0), node.value(0).shape
    function = nn.mean if node.operator == "GlobalAveragePool" else nn.max
    found = function(x.reshape(*shape[:2], -1), axis=-1)
    return node.result(found.reshape(*shape[:2], *[1] * (len(shape) - 2)), node.floating())


@operator("BatchNormalization")
def _batch_norm(node: Node) -> Result:
    if node.attribute("training_mode", 0):
        node.refuse("networks are not trained", got="training_mode=1", expected="0")
    rest = len(node.value(0).shape) - 2
    eps = float(node.attribute("epsilon", 1e-5))
    parts = [node.value(index) for index in range(1, 5)]
    if not all(isinstance(each, Known) for each in parts):
        factor, shift, centre, spread = (_by_channel(node, index, rest) for index in range(1, 5))
        found = (node.tensor(0) - centre) / arithmetic.sqrt(spread + eps) * factor + shift
        return node.result(found, node.floating())
    scale, bias, mean, variance = (
        node.constant(index, "a norm").astype(np.float64) for index in range(1, 5)
    )
    both = scale / np.sqrt(variance + eps), bias - mean * scale / np.sqrt(variance + eps)
    shape = (-1, *[1] * max(rest, 0))
    held = [
        node.expression(Known(each.astype(np.float32).reshape(shape), f"{name}_{what}"))
        for each, what in zip(both, ("scale", "shift"), strict=True)
        for name in node.proto.output[:1]
    ]
    return node.result(node.tensor(0) * held[0] + held[1], node.floating())
