"""The backend of ``torch.compile``: tilewright's kernels for products, Inductor for the rest.

``torch.compile(model, backend="tilewright")`` replaces the products of a graph that kernels serve
by operators of tilewright, and gives the graph to Inductor, which compiles all else around them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from .products import LAYER_TYPES

_LINEAR = (functional.linear, torch._C._nn.linear)
_MATMUL = (torch.matmul, torch.mm, torch.bmm, operator.matmul, "matmul", "mm", "bmm")
_ADDED = (torch.addmm, torch.baddbmm, "addmm", "baddbmm")
#: What follows a layer and is computed in its kernel: functions and methods by activation.
_ACTIVATIONS: dict[Any, str] = {
    functional.relu: "relu", torch.relu: "relu", "relu": "relu",
    functional.silu: "silu", torch._C._nn.silu: "silu",
    torch.sigmoid: "sigmoid", "sigmoid": "sigmoid",
    torch.tanh: "tanh", "tanh": "tanh",
    functional.hardswish: "hardswish",
}  # fmt: skip
_GELU = (functional.gelu, torch._C._nn.gelu)


class Served(NamedTuple):
    """How many nodes of a graph kernels compute: layers, activations in them, other products."""

    layers: int
    activations: int
    products: int


#: What was served of the graphs that were compiled, in order.
history: list[Served] = []


def backend(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any
) -> Callable[..., Any]:
    """What ``torch.compile`` calls for each graph: it is changed, and compiled by Inductor."""
    from torch._inductor.compile_fx import compile_fx

    history.append(serve(graph))
    return compile_fx(graph, list(inputs), **options)  # type: ignore[no-any-return]


def serve(graph: torch.fx.GraphModule) -> Served:
    """Have kernels compute the products of ``graph`` that they serve, in place."""
    layers = activations = products = 0
    for node in list(graph.graph.nodes):
        called = _called(node)
        if called in _LINEAR and _is_layer(node):
            activations += _as_layer(graph.graph, node)
            layers += 1
        elif called in _MATMUL and _is_product(node, node.args[:2]) and not node.kwargs:
            _replace(graph.graph, node, node.args[:2])
            products += 1
        elif called in _ADDED and _is_product(node, node.args[1:3]) and not node.kwargs:
            added = node.args[0]
            _add(graph.graph, added, _replace(graph.graph, node, node.args[1:3]))
            products += 1
    graph.graph.lint()
    graph.recompile()
    return Served(layers, activations, products)


def _called(node: torch.fx.Node) -> Any:
    """The function or the method that a node calls; None for all others."""
    return node.target if node.op in ("call_function", "call_method") else None


def _value(node: Any) -> torch.Tensor | None:
    """What is known of a node's result: a tensor without elements."""
    found = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    return found if isinstance(found, torch.Tensor) else None


# --- layers ------------------------------------------------------------------------------------


def _parts(node: torch.fx.Node) -> tuple[Any, Any, Any]:
    """x, weight and bias of a linear node."""
    given = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | node.kwargs
    return given.get("input"), given.get("weight"), given.get("bias")


def _is_layer(node: torch.fx.Node) -> bool:
    """Whether a linear node has a weight that stays, of a type that kernels have."""
    x, weight, bias = _parts(node)
    values = [_value(part) for part in (x, weight, bias, node) if part is not None]
    if any(value is None or value.device.type != "cpu" for value in values):
        return False
    types = {value.dtype for value in values if value is not None}
    trained = torch.is_grad_enabled() and any(v is not None and v.requires_grad for v in values)
    return len(types) == 1 and types <= LAYER_TYPES.keys() and not trained and _stays(weight)


def _stays(weight: torch.fx.Node) -> bool:
    """Whether a tensor is the same at each call: a parameter, or a buffer of a module."""
    if weight.op == "get_attr":
        return True
    value = weight.meta.get("example_value")
    marked = getattr(value, "_dynamo_static_input_type", None) is not None
    return weight.op == "placeholder" and (marked or isinstance(value, torch.nn.Parameter))


def _as_layer(graph: torch.fx.Graph, node: torch.fx.Node) -> int:
    """Put the operator in a linear node's place, and an activation's: how many of those."""
    last, activation = node, ""
    if len(node.users) == 1:
        (follower,) = node.users
        if found := _activation_of(follower):
            last, activation = follower, found
    with graph.inserting_before(node):
        made = graph.call_function(
            torch.ops.tilewright.linear_of_constants.default, (*_parts(node), activation)
        )
    made.meta = dict(last.meta)
    last.replace_all_uses_with(made)
    graph.erase_node(last)
    if last is not node:
        graph.erase_node(node)
    return int(bool(activation))


def _activation_of(node: torch.fx.Node) -> str:
    """The activation that a node is, "" for none that kernels have."""
    called = _called(node)
    if called in _GELU:
        approximate = node.kwargs.get("approximate", "none")
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(str(approximate), "")
    only_x = len(node.args) == 1 and not (set(node.kwargs) - {"inplace"})
    return _ACTIVATIONS.get(called, "") if only_x else ""


# --- products ----------------------------------------------------------------------------------


def _is_product(node: torch.fx.Node, given: Sequence[Any]) -> bool:
    """Whether both are matrices, or stacks of them, in float32 on the CPU, as the result is."""
    values = [_value(part) for part in (*given, node)]
    return len(given) == 2 and all(
        value is not None
        and value.device.type == "cpu"
        and value.dtype == torch.float32
        and value.dim() >= 2
        for value in values
    )


def _replace(graph: torch.fx.Graph, node: torch.fx.Node, given: Sequence[Any]) -> torch.fx.Node:
    with graph.inserting_before(node):
        operators = torch.ops.tilewright
        recorded = torch.is_grad_enabled()
        product = operators.matmul if recorded else operators.matmul_of_constants
        made = graph.call_function(product.default, tuple(given))
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return made


def _add(graph: torch.fx.Graph, term: Any, product: torch.fx.Node) -> None:
    """Add to a product what ``addmm`` and ``baddbmm`` add."""
    with graph.inserting_after(product):
        added = graph.call_function(torch.add, (term, product))
    added.meta = dict(product.meta)
    product.replace_all_uses_with(added, delete_user_cb=lambda user: user is not added)
