"""Read a node of a graph of ``torch.compile`` as calls of PyTorch's operators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from tilewright.errors import SpecError
from tilewright.spec.sizes import Dim, joined_size
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

from ..elements import tensors_of
from .recipe import GET, TO, Ref, Step, products_of

#: In place of a number that a network cannot have.
UNKNOWN = "a number that only a call knows"


#: Types of the values that a node is traced with; it is traced for the other values as they are.
_PASSED = torch.Tensor | torch.SymInt | torch.SymFloat


class Traced(NamedTuple):
    """A node as steps. ``values`` has the ``Ref`` or number of each leaf of the node's value.

    ``writes`` if a step writes into a tensor that it is given.
    """

    steps: tuple[Step, ...]
    values: tuple[Any, ...]
    writes: bool


def value_of(node: torch.fx.Node) -> Any:
    """Return the example of a node's value that ``torch.compile`` has, None if it has none."""
    return node.meta.get("example_value")


def leaves(node: torch.fx.Node) -> list[tuple[str, Any]]:
    """Return the parts of a node's value, which may be a tuple, each with a name."""
    found = tree_leaves(value_of(node))
    single = len(found) == 1 and found[0] is value_of(node)
    return [(node.name if single else f"{node.name}#{at}", x) for at, x in enumerate(found)]


def number_of(value: Any) -> Any:
    """Return a number or size as a network has it, UNKNOWN if networks have no such number."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return UNKNOWN if isinstance(value, torch.Tensor) else value
    expression: Any = value.node.expr
    if isinstance(value, torch.SymInt) and (expression.is_Symbol or expression.is_Mul):
        parts = expression.args if expression.is_Mul else (expression,)
        if all(part.is_Symbol or part.is_Integer for part in parts):
            return joined_size(Dim(str(x)) if x.is_Symbol else int(x) for x in parts)
    if not expression.is_number:
        return UNKNOWN
    return int(expression) if isinstance(value, torch.SymInt) else float(expression)


def traced(node: torch.fx.Node) -> Traced | None:
    """Return a node as steps, None if PyTorch cannot trace it alone."""
    given = [pair for each in node.all_input_nodes for pair in leaves(each)]
    passed = [(name, x) for name, x in given if isinstance(x, _PASSED)]
    mode = next((x.fake_mode for _, x in passed if isinstance(x, FakeTensor)), None)
    if mode is None:
        return None

    def call(*values: Any) -> Any:
        held = dict(zip((name for name, _ in passed), values, strict=True))
        args, options = torch.fx.node.map_arg((node.args, node.kwargs), _rebuilt(held))
        if node.op == "call_method":
            found = getattr(args[0], str(node.target))(*args[1:], **options)
        else:
            found = node.target(*args, **options)
        return tuple(tree_leaves(found))

    symbols: Any = mode.shape_env
    fresh = symbols.ignore_fresh_unbacked_symbols() if symbols else contextlib.nullcontext()
    # Tracing raises errors of many classes. Such a node is left as it is.
    with contextlib.suppress(Exception), mode, fresh, _uncached():
        graph = make_fx(call, pre_dispatch=True)(*(x for _, x in passed)).graph
        return _read(node.name, passed, graph)
    return None


@contextlib.contextmanager
def _uncached() -> Iterator[None]:
    """Keep autocast from reusing a converted weight, because it belongs to a single trace."""
    usual = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(usual)


def _rebuilt(held: dict[str, Any]) -> Callable[[torch.fx.Node], Any]:
    """Return a function from a node to its value, with the leaves in ``held`` in their places."""

    def rebuilt(node: torch.fx.Node) -> Any:
        pairs = [held.get(name, x) for name, x in leaves(node)]
        return tree_unflatten(pairs, tree_structure(value_of(node)))

    return rebuilt


def _read(name: str, passed: list[tuple[str, Any]], graph: torch.fx.Graph) -> Traced | None:
    names = iter(passed)
    values: dict[torch.fx.Node, Any] = {}
    steps, writes = list[Step](), False

    for each in graph.nodes:
        if each.op == "placeholder":
            source, value = next(names)
            values[each] = Ref(source) if isinstance(value, torch.Tensor) else number_of(value)
        elif each.op == "output":
            return Traced(tuple(steps), tuple(_found(each.args[0], values)), writes)
        elif each.op != "call_function":
            return None
        elif not tensors_of(each.meta.get("val")):
            values[each] = number_of(each.meta.get("val"))
        else:
            values[each] = Ref(f"{name}.{each.name}")
            types = tuple(x.dtype for x in tensors_of(each.meta.get("val")))
            target, own = str(each.target), values[each].name
            cast = _cast(each, types[0], values, own) if products_of(target) else {}
            steps += cast.values()
            read = values | {x: Ref(step.name) for x, step in cast.items()}
            given = _found([each.args, [*each.kwargs.values()]], read)
            options = tuple(zip(each.kwargs, given[1], strict=True))
            steps.append(Step(own, target, tuple(given[0]), options, types))
            schema = getattr(each.target, "_schema", None)
            writes = writes or (target != GET and (schema is None or schema.is_mutable))
    raise AssertionError("a graph has an output")


def _found(argument: Any, values: Mapping[torch.fx.Node, Any]) -> Any:
    if isinstance(argument, torch.fx.Node):
        return values[argument]
    if isinstance(argument, list | tuple):
        return [_found(each, values) for each in argument]
    return number_of(argument)


def _cast(
    product: torch.fx.Node, wanted: torch.dtype, values: Mapping[torch.fx.Node, Any], name: str
) -> dict[torch.fx.Node, Step]:
    """Return the conversions to ``wanted``, the type of a product, that autocast makes.

    They are not in the graph: PyTorch traces before autocast converts.
    """
    read = [(each, each.meta.get("val")) for each in product.all_input_nodes]
    return {
        each: Step(f"{name}.{at}", TO, (values[each], wanted), (), (wanted,))
        for at, (each, x) in enumerate(read)
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != wanted
    }


def check_numbers(step: Step) -> None:
    """Raise SpecError if a step has a number that a network cannot have."""
    if UNKNOWN in _flat((step.args, [value for _, value in step.options])):
        raise SpecError(f"node {step.target}: it has {UNKNOWN}", expected="sizes, and constants")


def _flat(given: Any) -> Iterator[Any]:
    if isinstance(given, list | tuple) and not isinstance(given, Ref):
        for each in given:
            yield from _flat(each)
    else:
        yield given
