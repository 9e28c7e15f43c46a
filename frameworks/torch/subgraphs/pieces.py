"""Cut a graph into pieces: sets of nodes, each of which one network can replace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from .known import Findings, is_served
from .recipe import products_of
from .traced import value_of

#: The largest number of products in a piece, if the graph can be cut between single values. The C
#: compiler needs about a second for two products, and layers that are equal share one network.
MOST = 8


class Piece(NamedTuple):
    """Nodes in the order of the graph, and those of them whose values other nodes read."""

    nodes: tuple[torch.fx.Node, ...]
    results: tuple[torch.fx.Node, ...]
    products: int


def pieces(graph: torch.fx.GraphModule, found: Findings) -> list[Piece]:
    """Return the pieces of ``graph`` with two products or more, in the order of their last nodes.

    A node whose value is not one tensor of floats without gaps is in a piece only together with all
    nodes that read it. Otherwise it loses its place in ``found.steps``.
    """
    order = {node: at for at, node in enumerate(graph.graph.nodes)}
    while True:
        parts = [part for each in _partitions(graph, found) for part in _cut(each, found, order)]
        made = [_piece(part, found) for part in parts]
        if not (odd := [node for each in made for node in each.results if not _is_plain(node)]):
            return [each for each in made if each.products > 1]
        for node in odd:
            del found.steps[node]
            found.why[node] = (
                "its result is no float tensor without gaps, and is read outside of networks"
            )


def _partitions(graph: torch.fx.GraphModule, found: Findings) -> Iterator[list[torch.fx.Node]]:
    """Yield sets of known nodes of one segment that no path leaves and enters again."""

    class Support(OperatorSupportBase):
        def is_node_supported(self, _: Mapping[str, Any], node: torch.fx.Node) -> bool:
            return node in found.steps

    partitioner = CapabilityBasedPartitioner(
        graph, Support(), allows_single_node_partition=True, skip_horizontal_fusion=True
    )
    for each in partitioner.propose_partitions():
        segments: dict[int, list[torch.fx.Node]] = {}
        for node in each.nodes:
            if node in found.steps:
                segments.setdefault(found.segments[node], []).append(node)
        yield from segments.values()


def _cut(
    nodes: list[torch.fx.Node], found: Findings, order: Mapping[torch.fx.Node, int]
) -> Iterator[list[torch.fx.Node]]:
    """Cut a set of nodes where one value passes on, into parts of at most ``MOST`` products."""
    nodes = sorted(nodes, key=order.__getitem__)
    inside = set(nodes)
    last = {node: max((order[u] for u in node.users if u in inside), default=-1) for node in nodes}
    held: list[torch.fx.Node] = []
    atom: list[torch.fx.Node] = []
    alive: list[torch.fx.Node] = []
    for node in nodes:
        atom.append(node)
        alive = [each for each in (*alive, node) if last[each] > order[node]]
        if len(alive) > 1:
            continue
        if held and _count(held, found) + _count(atom, found) > MOST:
            yield held
            held = []
        held, atom = [*held, *atom], []
    if held or atom:
        yield [*held, *atom]


def _count(nodes: Iterable[torch.fx.Node], found: Findings) -> int:
    return sum(products_of(step.target) for node in nodes for step in found.steps[node].steps)


def _piece(nodes: list[torch.fx.Node], found: Findings) -> Piece:
    """Return the piece of ``nodes``.

    A view that is read outside is computed a second time there, of a result: views of results, and
    of inputs, then share memory as PyTorch's do. Numbers, such as sizes, are treated the same.
    """
    inside, results = set(nodes), dict[torch.fx.Node, None]()
    found_outside = [node for node in nodes if set(node.users) - inside]
    seen = set(found_outside)
    while found_outside:
        node = found_outside.pop()
        if node not in found.views:
            results[node] = None
            continue
        for each in node.all_input_nodes:
            if each in inside and each not in seen:
                seen.add(each)
                found_outside.append(each)
    ordered = tuple(node for node in nodes if node in results)
    return Piece(tuple(nodes), ordered, _count(nodes, found))


def _is_plain(node: torch.fx.Node) -> bool:
    """Return True if a node's value is one tensor without gaps, of a type that networks return."""
    value = value_of(node)
    return isinstance(value, torch.Tensor) and is_served(value) and value.is_contiguous()
