"""Products: Gemm and MatMul with constant weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.spec.expression.nodes import Expression

from .node import Node, operator
from .values import Known, Traced, Value

Result = Sequence[Value | None]


@operator("MatMul")
def _matmul(node: Node) -> Result:
    return node.result(_product(node, node.value(0), node.value(1)), node.floating())


@operator("Gemm")
def _gemm(node: Node) -> Result:
    alpha, beta = (float(node.attribute(name, 1.0)) for name in ("alpha", "beta"))
    a, b = node.value(0), node.value(1)
    if node.attribute("transA", 0):
        a = _transposed(node, a)
    found = _product(node, a, b, transposed=bool(node.attribute("transB", 0)))
    found = found if alpha == 1 else found * alpha
    if node.given(2) and beta != 0:
        c = node.tensor(2)
        found = found + (c if beta == 1 else c * beta)
    return node.result(found, node.floating())


def _transposed(node: Node, value: Known | Traced) -> Known | Traced:
    if isinstance(value, Known):
        return Known(value.array.T, f"{value.name}_transposed")
    return node.refuse("A is transposed", got="transA=1", expected="transA=0")


def _product(
    node: Node, a: Known | Traced, b: Known | Traced, *, transposed: bool = False
) -> Expression:
    if not isinstance(a, Traced) or not isinstance(b, Known):
        node.refuse(
            "a product is of a tensor and a constant",
            got=f"{_said(a)} and {_said(b)}",
            expected="a tensor (rows, k), then a constant (k, n)",
        )
    if len(a.shape) != 2 or b.array.ndim != 2:
        node.refuse(
            "a product is of matrices", got=f"{a.shape} and {b.shape}", expected="(rows, k), (k, n)"
        )
    if b.array.dtype != np.float32:
        node.refuse("weights have type f32", got=b.type, expected="f32")
    array = b.array.T if transposed else b.array
    return a.expression @ node.weights.weight(b, "_T" if transposed else "_B", array)


def _said(value: Known | Traced) -> str:
    return f"{'a constant' if isinstance(value, Known) else 'a tensor'} {value.shape}"
