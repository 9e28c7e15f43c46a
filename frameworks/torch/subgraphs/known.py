"""Find the nodes of a graph that a network computes, and why it does not compute the others."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tilewright.errors import SpecError, TilewrightError
from tilewright.runtime.imported import Constants
from tilewright.spec.expression.nodes import Expression
from tilewright.spec.expression.tensors import Input
from tilewright.spec.sizes import Dim, Size

from ..elements import Known, Truth
from ..packed import INPUT_TYPES
from .recipe import Step, evaluate, read
from .traced import Traced, check_numbers, leaves, number_of, traced, value_of


@dataclass
class Findings:
    """What is known of a graph.

    ``steps`` has the nodes that a network computes. ``weights`` has the tensors of the nodes that
    are weights. ``why`` has a reason for each other node that computes a tensor. A node that may
    write into a tensor begins a new segment: no network has nodes of two segments.
    """

    weights: dict[torch.fx.Node, torch.Tensor]
    steps: dict[torch.fx.Node, Traced] = field(default_factory=dict)
    why: dict[torch.fx.Node, str] = field(default_factory=dict)
    segments: dict[torch.fx.Node, int] = field(default_factory=dict)
    #: The nodes whose value has the memory of an argument, for example a transposed one, or is a
    #: number, for example a size.
    views: set[torch.fx.Node] = field(default_factory=set)


def findings(graph: torch.fx.GraphModule, given: Sequence[Any]) -> Findings:
    """Return what a network can compute of ``graph``. ``given`` are the examples of its inputs."""
    found = Findings(dict(_weights(graph, given)))
    _Search(found).run(graph.graph)
    return found


def _weights(
    graph: torch.fx.GraphModule, given: Sequence[Any]
) -> Iterator[tuple[torch.fx.Node, torch.Tensor]]:
    """Yield the parameters and buffers with one or two axes, and more than one element."""
    examples = iter(given)
    for node in graph.graph.nodes:
        tensor: Any = None
        if node.op == "placeholder":
            tensor = next(examples, None)
            if getattr(tensor, "_dynamo_static_input_type", None) is None:
                tensor = None
        elif node.op == "get_attr":
            tensor = getattr(graph, str(node.target), None)
        usual = isinstance(tensor, torch.Tensor) and is_served(tensor)
        if usual and tensor.dim() in (1, 2) and tensor.numel() > 1:
            yield node, tensor


def is_served(tensor: torch.Tensor) -> bool:
    """Return True if networks take such a tensor: strided, of a type they have, on the CPU."""
    usual: bool = tensor.dtype in INPUT_TYPES and tensor.layout == torch.strided
    return usual and tensor.device.type == "cpu"


def shape_of(tensor: torch.Tensor) -> tuple[Size, ...] | None:
    """Return a tensor's shape, with a dim for each size that a call chooses.

    A product of such sizes, for example ``2 * s0``, is joined of dims. Return None if a size is
    computed otherwise.
    """
    sizes = tuple(number_of(size) for size in tensor.shape)
    return sizes if all(isinstance(size, int | Dim) for size in sizes) else None


class _Search:
    """The search through one graph, in the order of its nodes."""

    def __init__(self, found: Findings) -> None:
        self.found = found
        self.values: dict[str, Any] = {}
        self.segment = 0
        #: The nodes whose tensors have one memory, by that memory.
        self.sharing: dict[int, set[torch.fx.Node]] = {}

    def run(self, graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node.op in ("call_function", "call_method"):
                self.call(node)
            elif node.op != "output":
                self.given(node)
            for memory in _memories(node):
                self.sharing.setdefault(memory, set()).add(node)
            self.found.segments[node] = self.segment

    def given(self, node: torch.fx.Node) -> None:
        weight = self.found.weights.get(node)
        if weight is None:
            self.outside(node)
        else:
            self.values[node.name] = Known(weight.detach(), node.name)

    def outside(self, node: torch.fx.Node) -> None:
        """Note the values of a node that no network computes: a network may read them."""
        example = value_of(node)
        usual = isinstance(example, torch.Tensor) and is_served(example)
        if usual and (shape := shape_of(example)) is not None and not any(map(_is_joined, shape)):
            self.values[node.name] = Input("x", INPUT_TYPES[example.dtype], shape)

    def call(self, node: torch.fx.Node) -> None:
        parts = leaves(node)
        touched = [x for each in (node, *node.all_input_nodes) for _, x in leaves(each)]
        if not any(isinstance(x, torch.Tensor) for x in touched):
            # A computation of numbers, or a change of a mode, such as that of gradients.
            self.segment += not parts or parts[0][1] is None
            return
        steps = traced(node)
        if steps is not None and steps.writes and self.is_private(node):
            steps = _pure(steps)
        elif self.is_view(node):
            self.found.views.add(node)
        if steps is None or steps.writes:
            self.segment += 1
            self.found.why[node] = (
                "PyTorch cannot trace it" if steps is None else "it writes into a tensor"
            )
            self.outside(node)
            return
        try:
            self.take(node, parts, steps)
        except TilewrightError as error:
            self.found.why[node] = error.problem.removeprefix("node ")
            self.outside(node)
        else:
            self.found.steps[node] = steps

    def is_private(self, node: torch.fx.Node) -> bool:
        """Return True if nothing else reads what a node writes into: its first argument."""
        written = node.args[0] if node.args else None
        return (
            isinstance(written, torch.fx.Node)
            and written.op in ("call_function", "call_method")
            and set(written.users) == {node}
            and all(self.sharing[memory] == {written} for memory in _memories(written))
        )

    def is_view(self, node: torch.fx.Node) -> bool:
        """Return True if a node's value has the memory of an argument, or is a number."""
        given = node.all_input_nodes
        if node.target is operator.getitem and not isinstance(value_of(given[0]), torch.Tensor):
            return given[0] in self.found.views
        shared = {memory for each in given for memory in _memories(each)}
        return not _memories(node) or bool(_memories(node) & shared)

    def take(self, node: torch.fx.Node, parts: list[tuple[str, Any]], steps: Traced) -> None:
        """Note the values of a node; SpecError if no network computes it."""
        constants, values = Constants(), _Missing(self.values)
        for step in steps.steps:
            check_numbers(step)
            values[step.name] = evaluate(step, values, constants)
        for (name, example), ref in zip(parts, steps.values, strict=True):
            if isinstance(example, torch.Tensor):
                self.values[name] = _checked(node, example, read(ref, values))


class _Missing(dict[str, Any]):
    """Values by name; SpecError for the name of a value that no network has."""

    def __missing__(self, name: str) -> Any:
        raise SpecError(
            "an argument is no float tensor on the CPU, or has a computed size", got=name
        )


def _checked(node: torch.fx.Node, example: torch.Tensor, value: Any) -> Any:
    """Return a node's value for the nodes after it; SpecError if it is not what PyTorch computes.

    A tensor of floats becomes a new input, so that expressions stay short.
    """
    if isinstance(value, Known):
        return value
    shape, found = shape_of(example), value.value if isinstance(value, Truth) else value
    if not isinstance(found, Expression) or found.tensor is None or found.tensor.shape != shape:
        raise SpecError(f"{node.name} has another shape in a network", got=found, expected=shape)
    if isinstance(value, Truth) and example.dtype == torch.bool:
        return value
    if not is_served(example) or found.tensor.type != INPUT_TYPES[example.dtype]:
        raise SpecError(f"its result is {str(example.dtype).removeprefix('torch.')}")
    return Input("x", found.tensor.type, found.tensor.shape)


def _is_joined(size: Size) -> bool:
    return isinstance(size, Dim) and size.parts != (size,)


def _pure(steps: Traced) -> Traced:
    """Return the steps without writes, for example ``relu`` in place of ``relu_``."""
    return Traced(tuple(map(_pure_step, steps.steps)), steps.values, False)


def _pure_step(step: Step) -> Step:
    name, dot, overload = step.target.removeprefix("aten.").partition(".")
    return step._replace(target=f"aten.{name.removesuffix('_')}{dot}{overload}")


def _memories(node: torch.fx.Node) -> set[int]:
    """Return numbers for the memory of a node's tensors: equal ones for views of one tensor."""
    return {
        x.untyped_storage()._cdata for _, x in leaves(node)
        if isinstance(x, torch.Tensor) and x.layout == torch.strided
    }  # fmt: skip
