"""The backend of ``torch.compile``: tilewright's kernels for products, Inductor for the rest.

``torch.compile(model, backend="tilewright")`` replaces sub-graphs by networks, and other products
that kernels serve by operators of tilewright. Inductor compiles the rest of the graph around them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from .packed import weight_format
from .products import LAYER_TYPES
from .served import Left, Served, record
from .subgraphs.replace import Replaced, is_whole, replace

#: The reason why a node is left to Inductor, and what the user can try instead.
Why = tuple[str, str]
#: Python code that converts a model to each type, for messages.
_CASTS = {torch.float32: "model.float()", torch.bfloat16: "model.bfloat16()"}

_LINEAR = (functional.linear, torch._C._nn.linear)
_MATMUL = (torch.matmul, torch.mm, torch.bmm, operator.matmul, "matmul", "mm", "bmm")
_ADDED = (torch.addmm, torch.baddbmm, "addmm", "baddbmm")
#: Names of the activations that a layer's kernel can compute, by PyTorch's function or method.
_ACTIVATIONS: dict[Any, str] = {
    functional.relu: "relu", torch.relu: "relu", "relu": "relu",
    functional.silu: "silu", torch._C._nn.silu: "silu",
    torch.sigmoid: "sigmoid", "sigmoid": "sigmoid",
    torch.tanh: "tanh", "tanh": "tanh",
    functional.hardswish: "hardswish",
}  # fmt: skip
_GELU = (functional.gelu, torch._C._nn.gelu)


#: Operators that contain products and are left to Inductor. For each name: the reason, and what the
#: user can try instead.
_WHOLE: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("_transformer_encoder_layer_fwd", "_native_multi_head_attention"),
        (
            "PyTorch's fast path is one operator, which holds all products of the layer",
            "torch.backends.mha.set_fastpath_enabled(False) before torch.compile",
        ),
    ),
    **dict.fromkeys(
        ("multi_head_attention_forward", "scaled_dot_product_attention"),
        (
            "attention is one operator, which holds its products",
            "torch.softmax(q @ k.mT * scale, -1) @ v has two products that are served",
        ),
    ),
    **dict.fromkeys(
        ("einsum", "tensordot", "bilinear", "chain_matmul"),
        ("the operator is not taken apart into products", "torch.matmul"),
    ),
    **dict.fromkeys(
        (f"conv{more}{axes}d" for more in ("", "_transpose") for axes in (1, 2, 3)),
        ("convolutions are not served", ""),
    ),
}


def backend(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    **more: Any,
) -> Callable[..., Any]:
    """Compile a graph for ``torch.compile``.

    Networks replace the sub-graphs that they can compute, and kernels replace other products.
    Inductor compiles the rest.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        The graph, which is modified.
    inputs : sequence
        Example inputs.
    mode, options : optional
        Arguments of ``torch.compile`` for Inductor. The option ``"networks"``, which Inductor does
        not see, is False if no networks shall be made.
    **more
        Further arguments of Inductor's ``compile_fx``.

    Returns
    -------
    callable
        The compiled graph.

    Notes
    -----
    A network computes a sub-graph in f32, bf16 or f16 that has two products or more, if no
    gradients are recorded and each weight is used for 24 rows or more. Its weights are packed at
    the first call. Each call reads the bytes of all weights, and compares a number of 64 bits that
    depends on them with that of the packed weights. So any change of a weight is seen: PyTorch's
    operators compute the call after it, and the next call packs again.

    If ``torch._inductor.config.freezing`` is set, weights are constants of the graph: changes are
    not seen. Networks pack them at the first call, and layers when the graph is compiled.

    ``history`` records what networks and kernels compute. If they compute no product of a graph, a
    RuntimeWarning says why.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    own = {"networks": True} | (options or {})
    joins = bool(own.pop("networks"))
    patches = torch._TorchCompileInductorWrapper(mode, own or None, None).config
    freezes = patches.get("freezing", config.freezing) and not torch.is_grad_enabled()
    whole = replace(graph, inputs, freezes=freezes) if joins else Replaced()
    served = serve(graph, freezes=freezes)
    record(served._replace(networks=whole.networks, apart=whole.apart))
    if is_whole(graph):
        forward: Callable[..., Any] = graph.forward
        return forward
    return compile_fx(  # type: ignore[no-any-return]
        graph, list(inputs), config_patches=patches or None, **more
    )


def serve(graph: torch.fx.GraphModule, *, freezes: bool = False) -> Served:
    """Replace the products of ``graph`` that kernels can compute by kernels, in place.

    If ``freezes``, Inductor treats weights as constants, and the graph packs them.
    """
    layers = activations = products = 0
    left = []
    for node in list(graph.graph.nodes):
        if (why := _why_left(node)) is not None:
            left.append(Left(_name(node), *why))
            continue
        called = _called(node)
        if called in _LINEAR:
            activations += _as_layer(graph.graph, node, freezes)
            layers += 1
        elif called in _MATMUL:
            _replace(graph.graph, node, node.args[:2])
            products += 1
        elif called in _ADDED:
            added = node.args[0]
            _add(graph.graph, added, _replace(graph.graph, node, node.args[1:3]))
            products += 1
    graph.graph.lint()
    graph.recompile()
    return Served(layers, activations, products, tuple(left))


def _why_left(node: torch.fx.Node) -> Why | None:
    """Return why a node with a product is left to Inductor.

    Return None if kernels compute the node, or if it has no product.
    """
    called = _called(node)
    if called in _LINEAR:
        return _why_no_layer(node)
    if called in _MATMUL:
        return _why_no_product(node, node.args)
    if called in _ADDED:
        return _why_no_product(node, node.args[1:]) or _why_no_term(node)
    return None if called is None else _WHOLE.get(_name(node))


def _name(node: torch.fx.Node) -> str:
    """Return the name of the function or method that a node calls, for example ``relu``."""
    called = _called(node)
    return called if isinstance(called, str) else getattr(called, "__name__", str(called))


def _called(node: torch.fx.Node) -> Any:
    """Return the function or method that a node calls, None for other nodes."""
    return node.target if node.op in ("call_function", "call_method") else None


def _value(node: Any) -> torch.Tensor | None:
    """Return a tensor with the type and shape of a node's result, None if they are unknown."""
    found = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    return found if isinstance(found, torch.Tensor) else None


# --- layers ------------------------------------------------------------------------------------


def _parts(node: torch.fx.Node) -> tuple[Any, Any, Any]:
    """Return the arguments x, weight and bias of a call of ``linear``."""
    given = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | node.kwargs
    return given.get("input"), given.get("weight"), given.get("bias")


def _why_no_layer(node: torch.fx.Node) -> Why | None:
    """Return why kernels cannot compute a call of ``linear``, None if they can."""
    x, weight, bias = _parts(node)
    values = [_value(part) for part in (x, weight, bias, node) if part is not None]
    if (why := _why_no_tensors(values, tuple(LAYER_TYPES))) is not None:
        return why
    if torch.is_grad_enabled() and any(v is not None and v.requires_grad for v in values):
        return (
            "gradients are recorded",
            "call it in `with torch.no_grad():`, or model.requires_grad_(False)",
        )
    columns = None if values[1] is None else tuple(values[1].shape)
    if columns is None or len(columns) != 2:
        return f"the weight has the shape {columns}", "a weight of two dimensions"
    if bias is not None and values[2] is not None and tuple(values[2].shape) != columns[:1]:
        return (
            f"the bias has the shape {tuple(values[2].shape)}",
            "a bias with one element for each output",
        )
    return None


def _why_no_tensors(values: Sequence[torch.Tensor | None], types: tuple[Any, ...]) -> Why | None:
    """Return why kernels cannot compute with these tensors, None if they can."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "an argument is no tensor", ""
    if devices := {value.device.type for value in known} - {"cpu"}:
        return f"tensors are on {', '.join(sorted(devices))}", 'model.to("cpu")'
    found = {value.dtype for value in known}
    if len(found) > 1:
        names = ", ".join(sorted(map(_type_name, found)))
        return f"types differ: {names}", "one type for all, without torch.autocast"
    (dtype,) = found
    if dtype not in types:
        cures = " or ".join(_CASTS[type_] for type_ in types)
        return f"{_type_name(dtype)} is not served", cures
    return None


def _type_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _as_layer(graph: torch.fx.Graph, node: torch.fx.Node, freezes: bool) -> int:
    """Replace a call of ``linear``, and an activation after it, by one operator.

    Return the number of activations that were replaced, 0 or 1. If ``freezes`` and the weight is a
    constant of the graph, another operator packs it; Inductor computes that operator once, when it
    compiles the graph.
    """
    last, activation = node, ""
    if len(node.users) == 1:
        (follower,) = node.users
        if found := _activation_of(follower):
            last, activation = follower, found
    operators = torch.ops.tilewright
    x, weight, bias = _parts(node)
    with graph.inserting_before(node):
        if freezes and weight.op == "get_attr":
            value = _value(weight)
            assert value is not None
            packed = graph.call_function(operators.pack_weight.default, (weight,))
            packed.meta = {"example_value": operators.pack_weight(value)}
            text, n = weight_format(value).text, int(value.shape[0])
            given = (x, packed, bias, text, n, "", "float", activation)
            made = graph.call_function(operators.linear_of_packed.default, given)
        else:
            made = graph.call_function(
                operators.linear_of_constants.default, (x, weight, bias, activation)
            )
    made.meta = dict(last.meta)
    last.replace_all_uses_with(made)
    graph.erase_node(last)
    if last is not node:
        graph.erase_node(node)
    return int(bool(activation))


def _activation_of(node: torch.fx.Node) -> str:
    """Return the activation that a node computes, "" if kernels do not have it."""
    called = _called(node)
    if called in _GELU:
        approximate = node.kwargs.get("approximate", "none")
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(str(approximate), "")
    only_x = len(node.args) == 1 and not (set(node.kwargs) - {"inplace"})
    return _ACTIVATIONS.get(called, "") if only_x else ""


# --- products ----------------------------------------------------------------------------------


def _why_no_product(node: torch.fx.Node, given: Sequence[Any]) -> Why | None:
    """Return why kernels cannot compute a product of matrices or stacks, None if they can."""
    if node.kwargs or len(given) != 2:
        return "it has arguments by name, such as alpha and beta", "operands by position alone"
    values = [_value(part) for part in (*given, node)]
    if (why := _why_no_tensors(values, (torch.float32,))) is not None:
        return why
    if any(value is not None and value.dim() < 2 for value in values):
        return "an operand has one dimension", "x[None] @ w, a matrix of one row"
    return None


def _why_no_term(node: torch.fx.Node) -> Why | None:
    """Return why the first argument of ``addmm`` or ``baddbmm`` cannot be added, None if it can."""
    values = [_value(part) for part in node.args[:3]]
    if (why := _why_no_tensors(values, (torch.float32,))) is not None:
        return why
    term, a, b = (tuple(value.shape) for value in values if value is not None)
    whole = (*a[:-1], b[-1])  # the product's shape, without the term
    fits = len(term) <= len(whole) and all(
        size in (1, own) for size, own in zip(reversed(term), reversed(whole), strict=False)
    )
    return None if fits else (f"a term of shape {term} is added to {whole}", "")


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
    """Add ``term``, the first argument of ``addmm`` or ``baddbmm``, to a product."""
    with graph.inserting_after(product):
        added = graph.call_function(torch.add, (term, product))
    added.meta = dict(product.meta)
    product.replace_all_uses_with(added, delete_user_cb=lambda user: user is not added)
