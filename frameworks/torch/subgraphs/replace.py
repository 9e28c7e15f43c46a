"""Replace the sub-graphs of a graph that networks compute, each by one call of an operator."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from tilewright.errors import SpecError, TilewrightError
from tilewright.spec.network.value import Network
from tilewright.spec.sizes import Dim, joined_size, terms_of
from torch.fx.experimental.symbolic_shapes import optimization_hint

from ..packed import INPUT_TYPES
from ..served import Joined, Left
from .call import join
from .known import Findings, findings, shape_of
from .pieces import Piece, pieces
from .recipe import Argument, Recipe, Ref, Step
from .traced import leaves, value_of

#: A network packs its weights once, and reads them at each call to see whether they changed. For
#: fewer rows than this, reading takes longer than the rest.
FEWEST = 24


class Replaced(NamedTuple):
    """The networks of a graph, and the operators that no network computes."""

    networks: tuple[Joined, ...] = ()
    apart: tuple[Left, ...] = ()


def replace(graph: torch.fx.GraphModule, given: Sequence[Any], *, freezes: bool) -> Replaced:
    """Replace the sub-graphs of ``graph`` that networks compute, in place.

    ``given`` are the examples of the graph's inputs. If ``freezes``, weights are constants.
    """
    if (none := _why_none(graph)) is not None:
        return Replaced(apart=(none,))
    found = findings(graph, given)
    # All are read before the first is replaced, because steps have the names of nodes.
    cut = [_Piece(each, found) for each in pieces(graph, found)]
    taken, left = [], [Left(_name(node), why, "") for node, why in found.why.items()]
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    for piece in cut:
        try:
            taken.append(piece.replace(graph.graph, made, freezes))
        except TilewrightError as error:
            why = error.problem.removeprefix("node ")
            left.append(Left(f"{piece.products} products", why, error.hint or ""))
    graph.graph.lint()
    graph.recompile()
    return Replaced(tuple(taken), tuple(left))


def is_whole(graph: torch.fx.GraphModule) -> bool:
    """Return True if networks and kernels compute all of ``graph``, without gradients."""
    ours = torch.ops.tilewright
    network = ours.network.default
    single = (ours.linear_of_constants.default, ours.matmul_of_constants.default)
    computed = [x for x in graph.graph.nodes if x.op not in ("placeholder", "get_attr", "output")]
    return bool(computed) and all(
        node.target is network
        or node.target in single
        or (node.target is operator.getitem and node.args[0].target is network)
        for node in computed
    )


def _why_none(graph: torch.fx.GraphModule) -> Left | None:
    """Return why no network computes any part of ``graph``, None if one may."""
    targets = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    if torch.amp.autocast_mode._enter_autocast in targets:
        cure = "call the compiled function in torch.autocast, not the reverse"
        return Left("graph", "it begins torch.autocast", cure)
    given = [node for node in graph.graph.nodes if node.op in ("placeholder", "get_attr")]
    trained = any(getattr(value_of(node), "requires_grad", False) for node in given)
    if trained and (torch.is_grad_enabled() or torch._C._set_grad_enabled in targets):
        return Left("graph", "gradients are recorded", "call it in `with torch.no_grad():`")
    return None


def _name(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


class _Piece:
    """One piece of a graph, as a recipe whose names do not depend on the rest of the graph.

    Layers that are equal, but for the values of their weights, have equal recipes.
    """

    def __init__(self, piece: Piece, found: Findings) -> None:
        self.piece, self.found, self.products = piece, found, piece.products
        inside = set(piece.nodes)
        read = [each for node in piece.nodes for each in node.all_input_nodes if each not in inside]
        self.outside = {node.name: node for node in read}
        self.values: dict[str, Any] = {}
        self.dims: dict[str, Dim] = {}
        self.inputs: dict[torch.fx.Node, Argument] = {}
        self.weights: dict[torch.fx.Node, Argument] = {}
        self.steps: list[Step] = []
        for node in piece.nodes:
            self.add(node)

    def add(self, node: torch.fx.Node) -> None:
        """Add the steps of a node."""
        found = self.found.steps[node]
        for step in found.steps:
            args, options = self.named(step.args), self.named([*map(list, step.options)])
            name = f"v{len(self.steps)}"
            pairs = tuple((key, value) for key, value in options)
            self.steps.append(step._replace(name=name, args=tuple(args), options=pairs))
            self.values[step.name] = Ref(name)
        for (name, _), value in zip(leaves(node), found.values, strict=True):
            self.values[name] = self.named(value)

    def named(self, value: Any) -> Any:
        """Return an argument with the names of the recipe."""
        if isinstance(value, Ref):
            return self.values[value.name] if value.name in self.values else self.read(value.name)
        if isinstance(value, list | tuple):
            return [self.named(each) for each in value]
        if isinstance(value, Dim):
            number, dims = terms_of(value)
            own = [self.dims.setdefault(x.name, Dim(f"d{len(self.dims)}")) for x in dims]
            return joined_size((number, *own))
        return value

    def read(self, name: str) -> Ref:
        """Return the name of a value from outside: a weight or an input."""
        node = self.outside[name]
        held, letter = (self.weights, "p") if node in self.found.weights else (self.inputs, "x")
        example = value_of(node)
        shape = shape_of(example)
        assert shape is not None, "the search has read the value"
        made = self.values[name] = Ref(f"{letter}{len(held)}")
        held[node] = Argument(made.name, tuple(self.named(shape)), INPUT_TYPES[example.dtype])
        return made

    def replace(
        self, graph: torch.fx.Graph, made: dict[torch.fx.Node, torch.fx.Node], freezes: bool
    ) -> Joined:
        """Replace the piece by one call; an error of tilewright if there is no network.

        ``made`` has the nodes in place of results of other pieces, and then of this one's.
        """
        results = tuple(self.values[node.name].name for node in self.piece.results)
        inputs, weights = tuple(self.inputs.values()), tuple(self.weights.values())
        recipe = Recipe(inputs, weights, tuple(self.steps), results)
        held = [self.found.weights[node] for node in self.weights]
        if not freezes:
            self.check_worth(recipe.model(held).network)
        joined = join(recipe, held)
        self.call(graph, made, recipe.key, freezes)
        return Joined(joined.kernel.name, self.piece.products, len(self.piece.nodes))

    def check_worth(self, network: Network) -> None:
        """Raise SpecError if the products are too few for each element of the weights."""
        examples = [(held.shape, value_of(node)) for node, held in self.inputs.items()]
        sizes = {
            size.name: int(optimization_hint(own, 2))
            for shape, tensor in examples
            for size, own in zip(shape, tensor.shape, strict=True)
            if isinstance(size, Dim)
        }
        elements = sum(self.found.weights[node].numel() for node in self.weights)
        if network.flops(sizes) < 2 * FEWEST * elements:
            raise SpecError(f"a weight is used for fewer than {FEWEST} rows")

    def call(
        self, graph: torch.fx.Graph, made: dict[torch.fx.Node, torch.fx.Node], key: str,
        freezes: bool,
    ) -> None:  # fmt: skip
        """Put the call after the last node of the piece, and what reads its results after it."""
        nodes, results = self.piece.nodes, self.piece.results
        first = nodes[0].prev
        given = [made.get(node, node) for node in self.inputs], [*self.weights]
        with graph.inserting_after(nodes[-1]):
            call = graph.call_function(torch.ops.tilewright.network.default, (*given, key, freezes))
        call.meta = {"example_value": [value_of(node) for node in results]}
        tail = call
        for at, node in enumerate(results):
            with graph.inserting_after(tail):
                tail = made[node] = graph.call_function(operator.getitem, (call, at))
            tail.meta = dict(node.meta)
            node.replace_all_uses_with(tail)
        for node in reversed(nodes):
            if not node.users:
                graph.erase_node(node)
        _move_readers(first, call, tail)


def _move_readers(first: torch.fx.Node, call: torch.fx.Node, tail: torch.fx.Node) -> None:
    """Move the nodes between ``first`` and ``call`` that need ``call`` behind ``tail``, in order.

    ``tail`` is the last of the nodes that ``call`` and its results are.
    """
    moved, node = set[torch.fx.Node](), call
    while node is not tail.next:
        moved.add(node)
        node = node.next
    node = first.next
    while node is not call:
        following = node.next
        if moved.intersection(node.all_input_nodes):
            tail.append(node)
            moved.add(node)
            tail = node
        node = following
