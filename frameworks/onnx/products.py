"""Products: Gemm and MatMul with constant weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.spec.expression.nodes import Expression
from tilewright.spec.expression.tensors import cast

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
        return Known(value.array.T, f"{value.name}_T")
    return Traced(value.expression.T, value.type)


def _product(
    node: Node, a: Known | Traced, b: Known | Traced, *, transposed: bool = False
) -> Expression:
    return _operand(node, a, "A") @ _operand(node, b, "B", transposed=transposed)


def _operand(
    node: Node, value: Known | Traced, use: str, *, transposed: bool = False
) -> Expression:
    """Return an operand of a product: a tensor, or the weight that holds a constant."""
    if isinstance(value, Traced):
        found = value.expression
        if value.type in ("f16", "bf16"):
            found = cast(found, "f32")
        return found.T if transposed else found
    if value.array.dtype not in (np.float32, np.float16):
        node.refuse("weights of products have type f32", got=value.type, expected="f32")
    array = value.array.T if transposed else value.array
    return node.weight(value, f"{use}{'T' * transposed}", array.astype(np.float32))
