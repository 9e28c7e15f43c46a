"""Name the stages of a network, so that users can choose how they run."""

from __future__ import annotations

from collections.abc import Container, Mapping

from tilewright.spec.expression.nodes import Call, Expression
from tilewright.spec.expression.products import Product
from tilewright.spec.expression.tensors import Count, Join, Reduce, Take

#: Names of stages that are no function of elements, by the class of what they compute.
_KINDS = {Join: "join", Take: "take", Count: "arange", Product: "product"}


#: The number of a node, and how many stages before compute the same node.
Key = tuple[int, int]


class Namer:
    """Gives each stage a name of its own, in the order in which the stages run.

    ``known`` are the names that an earlier cut of the same network gave. Its keys are the number of
    the node that a stage computes last, and how many stages before it compute the same node.
    """

    def __init__(self, known: Mapping[Key, str]) -> None:
        self.known = known
        self.taken: set[str] = set(known.values())
        self.made: dict[Key, str] = {}

    def named(self, number: int, node: Expression) -> str:
        """Return the name of a stage, given its product or its last node, and the node's number."""
        key = number, sum(each == number for each, _ in self.made)
        found = self.known.get(key)
        if found is None:
            found = self.of_product(node) if isinstance(node, Product) else self.of(node)
        self.made[key] = found
        return found

    def inside(self, number: int, node: Expression) -> str:
        """Return the name of a function that a stage computes before its last node."""
        if (number, 0) not in self.made:
            return self.named(number, node)
        return self.made[number, 0]

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
        return {number for (number, _), name in self.made.items() if name in names}

    def of_copy(self) -> str:
        """Return the name of a stage that only copies."""
        return self._numbered("copy")

    def of(self, node: Expression) -> str:
        """Return the name of another stage, or of a function: the last function, and a number."""
        if isinstance(node, Call | Reduce):
            return self._numbered(node.fn)
        return self._numbered(_KINDS.get(type(node), type(node).__name__.lower()))

    def _numbered(self, base: str, first: int = 0) -> str:
        while f"{base}{first}" in self.taken:
            first += 1
        self.taken.add(f"{base}{first}")
        return f"{base}{first}"
