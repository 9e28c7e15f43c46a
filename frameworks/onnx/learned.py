"""Operators of the domain ai.onnx.ml, in which scikit-learn's networks are exported."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright import nn
from tilewright.spec.expression import arithmetic
from tilewright.spec.expression.comparisons import eq, gt, where
from tilewright.spec.expression.nodes import Expression, Number

from .moves import chosen, picked
from .node import Node, operator
from .values import Known, Traced, Value

Result = Sequence[Value | None]


@operator("ai.onnx.ml.Scaler")
def _scaler(node: Node) -> Result:
    x = node.tensor(0)
    offset, scale = (_numbers(node, name) for name in ("offset", "scale"))
    return node.result((x - offset) * scale, "f32")


def _numbers(node: Node, name: str) -> Expression:
    """Return an attribute with a number for each column, or for all."""
    values = np.asarray(node.attribute(name, [0.0 if name == "offset" else 1.0]), np.float32)
    return node.expression(Known(values, f"{node.proto.output[0]}_{name}"))


@operator("ai.onnx.ml.Normalizer")
def _normalizer(node: Node) -> Result:
    x, kind = node.tensor(0), node.attribute("norm", "MAX")
    if kind == "MAX":
        size = nn.max(abs(x), keepdims=True)
    elif kind == "L1":
        size = nn.sum(abs(x), keepdims=True)
    else:
        size = arithmetic.sqrt(nn.sum(arithmetic.square(x), keepdims=True))
    return node.result(where(eq(size, 0), x, x / size), "f32")


@operator("ai.onnx.ml.Binarizer")
def _binarizer(node: Node) -> Result:
    limit = float(node.attribute("threshold", 0.0))
    return node.result(gt(node.tensor(0), limit), node.floating())


@operator("ai.onnx.ml.ArrayFeatureExtractor")
def _extractor(node: Node) -> Result:
    """Return the columns of a tensor, or of constants, at the places of the second input."""
    table, index = node.value(0), node.value(1)
    if isinstance(table, Traced) and isinstance(index, Known):
        found = picked(node, table.expression, len(table.shape) - 1, index.array.reshape(-1))
        return node.result(found, table.type)
    if not isinstance(table, Known) or table.array.ndim > 2 or table.array.shape[:-1] not in (
        (), (1,)
    ):  # fmt: skip
        node.refuse("places are in one row of constants", got=table.shape, expected="(1, n)")
    classes = table.array.reshape(-1)
    if classes.dtype.kind not in "fi":
        node.refuse(
            "texts are not computed with", got=classes[:3], expected="numbers as classes",
            hint="load(path, results=[...]) with the name of the probabilities",
        )  # fmt: skip
    found = node.tensor(1)
    if not np.array_equal(classes, np.arange(classes.size)):
        found = chosen([Number(float(each)) for each in classes], found)
    size = index.shape
    flat = found.reshape(1, *size[-1:]) if len(size) == 1 else found
    return node.result(flat, "s32" if classes.dtype.kind == "i" else "f32")


@operator("ai.onnx.ml.ZipMap")
def _zip_map(node: Node) -> Result:
    """Return the tensor itself, which has a column for each class, in place of a list of dicts."""
    return (node.value(0),)
