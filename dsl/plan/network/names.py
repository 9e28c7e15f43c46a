"""Name the stages of a network, so that users can choose how they run."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from tilewright.spec.expression.nodes import Call, Expression
from tilewright.spec.expression.products import Product
from tilewright.spec.expression.tensors import Cast, Count, Join, Reduce, Scatter, Take, View

from .composites import Composite
from .rebuilt import arguments
from .step import Step

#: Names of stages that are no function of elements, by the class of what they compute.
_KINDS = {Join: "join", Take: "take", Count: "arange", Product: "product"}


#: The number of a node, and how many stages before compute the same node.
Key = tuple[int, int]
#: The second number of the ``Key`` of a function of ``tilewright.nn``.
_COMPOSITE = -1


class Namer:
    """Gives each stage a name of its own, in the order in which the stages run.

    ``known`` are the names that an earlier cut of the same network gave. Its keys are the number of
    the node that a stage computes last, and how many stages before it compute the same node.
    """

    def __init__(self, known: Mapping[Key, str]) -> None:
        self.known = known
        self.taken: set[str] = set(known.values())
        self.made: dict[Key, str] = {}
        self.nodes: dict[str, Set[int]] = {}

    def named(self, number: int, node: Expression) -> str:
        """Return the name of a stage, given its product or its last node, and the node's number."""
        key = number, sum(each == number for each, _ in self.made)
        found = self.known.get(key)
        if found is None:
            found = self.of_product(node) if isinstance(node, Product) else self.of(node)
        self.made[key] = found
        return found

    def inside(self, number: int, node: Expression) -> str:
        """Return the name of a function of elements that a stage computes before its last node."""
        if (number, 0) not in self.made:
            return self.named(number, node)
        return self.made[number, 0]

    def of_composite(self, composite: Composite) -> str:
        """Return the name of a function of ``tilewright.nn``."""
        key = composite.root, _COMPOSITE
        found = self.known.get(key) or self._numbered(composite.fn)
        self.made[key], self.nodes[found] = found, composite.nodes
        return found

    def moved(self, numbers: Container[int]) -> dict[int, str]:
        """Return the names that an earlier cut gave to operators, by their numbers."""
        known = self.known.items()
        return {i: name for (i, kind), name in known if i in numbers and kind != _COMPOSITE}

    def of_product(self, product: Product) -> str:
        """Return the name of a product: that of its weight, with a number if that is taken."""
        weight = product.weight
        if weight is None:
            return self._numbered("product")
        if weight.key in self.taken:
            return self._numbered(weight.key, 1)
        self.taken.add(weight.key)
        return weight.key

    def numbers(self, names: Container[str]) -> set[int]:
        """Return the numbers of the nodes that have one of these names."""
        found = {number for (number, _), name in self.made.items() if name in names}
        return found.union(*(nodes for name, nodes in self.nodes.items() if name in names))

    def of_copy(self) -> str:
        """Return the name of a stage that only copies."""
        return self._numbered("copy")

    def of(self, node: Expression) -> str:
        """Return the name of another stage, or of a function: the last function, and a number."""
        if isinstance(node, Call | Reduce | Scatter):
            return self._numbered(node.fn)
        return self._numbered(_KINDS.get(type(node), type(node).__name__.lower()))

    def _numbered(self, base: str, first: int = 0) -> str:
        while f"{base}{first}" in self.taken:
            first += 1
        self.taken.add(f"{base}{first}")
        return f"{base}{first}"


@dataclass(frozen=True, slots=True)
class Computed:
    """A stage, and the nodes that it computes, its result last; none if it only copies.

    If the stage is a product, ``after`` are the element-wise functions among the nodes.
    """

    step: Step
    nodes: tuple[Expression, ...] = ()
    after: tuple[Expression, ...] = ()


def with_names(
    stages: Sequence[Computed], found: Sequence[Composite], namer: Namer, order: Mapping[int, int]
) -> tuple[Step, ...]:
    """Return the stages with the names of all functions that they compute.

    ``found`` are the functions of ``tilewright.nn``. If a single stage computes a function, it is
    named like an operator in this stage. If several stages do, its name is a name of each of them.
    ``order`` has the number of each node.
    """
    operators = [_operators(each, namer, order) for each in stages]
    shared: list[list[str]] = [[] for _ in stages]
    single: list[dict[int, _Named]] = [{} for _ in stages]
    ends = [order[id(each.nodes[-1])] if each.nodes else None for each in stages]
    for holder, composite in _by_stage(stages, found, order):
        name = namer.of_composite(composite)
        own = {number for number, end in enumerate(ends) if end in composite.nodes} | {holder}
        if len(own) == 1:
            single[holder][composite.root] = _Named(name, composite.nodes)
        else:
            for number in own:
                shared[number].append(name)
    every = zip(stages, operators, single, shared, strict=True)
    return tuple(_with_names(*each, order) for each in every)


class _Named(NamedTuple):
    """A function that one stage computes: its name, and the numbers of its nodes."""

    name: str
    nodes: Container[int]


def _with_names(
    stage: Computed,
    operators: Mapping[int, str],
    functions: Mapping[int, _Named],
    shared: Sequence[str],
    order: Mapping[int, int],
) -> Step:
    """Return a stage with its names, given those of operators and functions by number."""
    inside, parts = list[str](), list[str]()
    numbers = [order[id(node)] for node in stage.nodes]
    for node in numbers:
        if node in operators:
            hidden = any(node in each.nodes for each in functions.values())
            (parts if hidden else inside).append(operators[node])
        if node in functions:
            inside.append(functions[node].name)
    step, also = stage.step, tuple(shared)
    name = step.name
    if step.product is None and numbers and numbers[-1] in functions:
        name, also = inside.pop(), (name, *also)
    alone = _alone(stage.nodes, functions, order)
    inner = tuple(inside), tuple(parts)
    return replace(step, name=name, also=also, inside=inner[0], parts=inner[1], alone=alone)


def _alone(
    nodes: Sequence[Expression], functions: Mapping[int, _Named], order: Mapping[int, int]
) -> tuple[Expression, ...]:
    """Return the tensors that the operators of a stage read and write if each runs alone.

    An operator reads its operands once, and writes its result once. A function of ``tilewright.nn``
    is one operator. A view is none, and a conversion belongs to the operator before it.
    """
    owner: dict[int, int] = {}
    read: dict[int, dict[int, Expression]] = {}
    last: dict[int, Expression] = {}
    for node in nodes:
        number = order[id(node)]
        own = next((root for root, each in functions.items() if number in each.nodes), number)
        sources = [_source(arg) for arg in arguments(node)]
        if isinstance(node, View) or not sources:
            continue
        if isinstance(node, Cast) and id(sources[0]) in owner:
            own = owner[id(sources[0])]
        owner[id(node)], last[own] = own, node
        others = (each for each in sources if owner.get(id(each)) != own)
        read.setdefault(own, {}).update({id(each): each for each in others})
    return (*(each for own in read.values() for each in own.values()), *last.values())


def _source(node: Expression) -> Expression:
    """Return the tensor whose elements a view that only repeats or reorders them shows."""
    while isinstance(node, View) and node.fn != "slice":
        (node,) = node.args
    return node


def _by_stage(
    stages: Sequence[Computed], found: Sequence[Composite], order: Mapping[int, int]
) -> list[tuple[int, Composite]]:
    """Return functions with the number of the first stage that computes their result, sorted."""
    first: dict[int, int] = {}
    for number, stage in enumerate(stages):
        for node in stage.nodes:
            first.setdefault(order[id(node)], number)
    pairs = [(first[each.root], each) for each in found if each.root in first]
    return sorted(pairs, key=lambda pair: pair[0])


def _operators(stage: Computed, namer: Namer, order: Mapping[int, int]) -> dict[int, str]:
    """Return the names of operators in a stage, by the numbers of their nodes."""
    numbers = {order[id(node)]: node for node in stage.after}
    if stage.step.product is not None:
        return {number: namer.inside(number, node) for number, node in numbers.items()}
    return namer.moved({order[id(node)] for node in stage.nodes[:-1]})
