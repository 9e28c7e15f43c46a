"""Find the expressions of weights alone, which ``pack`` computes once: they become weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import prod

from ..expression.nodes import Composed, Expression, Number, every_node
from ..expression.products import Product, Weight
from ..expression.tensors import Count, Full, View
from ..types import ITEMSIZE, is_integer

#: A constant is folded if it has at most this many times the bytes of its weights.
_LARGER = 4


@dataclass
class Folding:
    """Results with weights in place of constants, and the constants by these weights.

    ``taken`` are the names that no new weight may have.
    """

    results: tuple[Expression, ...]
    taken: Collection[str]
    constants: dict[Weight, Expression] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._weights: dict[int, frozenset[Weight]] = {}
        self._known: dict[tuple[Expression, str], Weight] = {}
        ends = set(map(id, self.results))
        made: dict[int, Expression] = {}
        for node in every_node(self.results):
            made[id(node)] = node
            if id(node) not in ends and (found := self._weights_of(node)) is not None:
                self._weights[id(node)] = found
            elif isinstance(node, Composed):
                pairs = [(arg, self._replaced(node, arg, made)) for arg in node.args]
                if any(new is not old for old, new in pairs):
                    made[id(node)] = node.of(node.shell, tuple(new for _, new in pairs))
        self.results = tuple(made[id(result)] for result in self.results)

    def _weights_of(self, node: Expression) -> frozenset[Weight] | None:
        """Return the weights that a constant is computed from; None for other nodes."""
        if isinstance(node, Weight):
            return None if node.quantized is not None else frozenset((node,))
        if isinstance(node, Number):
            return frozenset()
        if isinstance(node, Full | Count):
            return frozenset() if all(isinstance(size, int) for size in node.shape) else None
        if not isinstance(node, Composed) or not all(id(arg) in self._weights for arg in node.args):
            return None
        return frozenset[Weight]().union(*(self._weights[id(arg)] for arg in node.args))

    def _replaced(self, user: Composed, arg: Expression, made: dict[int, Expression]) -> Expression:
        """Return an argument of ``user``. If the argument is constant, return a weight for it."""
        if not self._weights.get(id(arg)):
            return made[id(arg)]
        if (kind := _packed_for(user, arg)) and isinstance(arg, Composed):
            return self._weight(arg, kind)
        views: list[View] = []
        while isinstance(arg, View) and arg.fn != "transpose":  # a view needs no copy
            views.append(arg)
            arg = arg.args[0]
        if isinstance(arg, Composed) and self._is_small(arg):
            arg = self._weight(arg, "")
        for view in reversed(views):
            arg = view.of(view.shell, (arg,))
        return arg

    def _is_small(self, node: Expression) -> bool:
        """Return True if a constant is an array that takes little more memory than its weights."""
        assert node.tensor is not None
        if not node.tensor.shape:
            return False
        return _nbytes(node) <= _LARGER * sum(map(_nbytes, self._weights[id(node)]))

    def _weight(self, node: Composed, kind: str) -> Weight:
        """Return the weight that replaces a constant."""
        if (node, kind) not in self._known:
            assert node.tensor is not None
            first = min(self._weights[id(node)], key=lambda each: each.name)
            turned = isinstance(node, View) and node.args[0] == first
            key = f"{first.key}_{'T' if turned else 'folded'}"
            names = {*self.taken, *(each.name for each in self.constants)}
            while f"{first.space}_{key}" in names:
                key += "x"
            shape = tuple(size for size in node.tensor.shape if isinstance(size, int))
            made = Weight(first.space, key, node.tensor.type, shape)
            self._known[node, kind] = made
            self.constants[made] = node
        return self._known[node, kind]


def _packed_for(user: Composed, arg: Expression) -> str:
    """Return the type of the left operand if ``user`` is a product that packs ``arg``, else ""."""
    if not isinstance(user, Product) or user.args[1] is not arg or user.args[0] is arg:
        return ""
    x, w = user.args[0].tensor, arg.tensor
    assert x is not None and w is not None
    alike = x.type == w.type or (is_integer(x.type) and is_integer(w.type))
    return x.type if len(w.shape) == 2 and alike else ""


def _nbytes(node: Expression) -> int:
    assert node.tensor is not None
    sizes: Iterator[int] = (size for size in node.tensor.shape if isinstance(size, int))
    return prod(sizes) * ITEMSIZE[node.tensor.type]
