"""Name the stages of a network, so that users can choose how they run."""

from __future__ import annotations

from tilewright.spec.expression.nodes import Call, Expression
from tilewright.spec.expression.products import Product
from tilewright.spec.expression.tensors import Count, Join, Reduce, Take

#: Names of stages that are no function of elements, by the class of what they compute.
_KINDS = {Join: "join", Take: "take", Count: "arange", Product: "product"}


class Namer:
    """Gives each stage a name of its own, in the order in which the stages run."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def of_product(self, product: Product) -> str:
        """Return the name of a product: that of its weight, with a number if that is taken."""
        weight = product.weight
        if weight is None:
            return self._numbered("product")
        if weight.key in self.taken:
            return self._numbered(weight.key, 1)
        self.taken.add(weight.key)
        return weight.key

    def of(self, node: Expression, *, copied: bool = False) -> str:
        """Return the name of another stage: its last function, and a number."""
        if copied:
            return self._numbered("copy")
        if isinstance(node, Call | Reduce):
            return self._numbered(node.fn)
        return self._numbered(_KINDS.get(type(node), type(node).__name__.lower()))

    def _numbered(self, base: str, first: int = 0) -> str:
        while f"{base}{first}" in self.taken:
            first += 1
        self.taken.add(f"{base}{first}")
        return f"{base}{first}"
