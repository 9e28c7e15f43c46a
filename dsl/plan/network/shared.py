"""Find the values that are computed once because several stages need them and they are costly."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from tilewright.spec.expression import Arithmetic
from tilewright.spec.expression.nodes import Call, Expression
from tilewright.spec.expression.products import Product
from tilewright.spec.expression.tensors import Cast, Join, Reduce, Scatter, Take, View

from .rebuilt import arguments


def shared_nodes(
    nodes: Sequence[Expression], users: Mapping[int, Sequence[Expression]], results: Container[int]
) -> set[int]:
    """Return the ``id`` of each node that is computed once, for several stages.

    ``nodes`` are sorted: arguments come before the nodes that read them. ``users`` has for each
    node the nodes that read it.
    """
    heavy: dict[int, bool] = {}
    for node in nodes:
        inner = isinstance(node, Call | Cast | Reduce)
        heavy[id(node)] = inner and (
            isinstance(node, Reduce)
            or (isinstance(node, Call) and not _is_arithmetic(node))
            or any(heavy[id(arg)] for arg in arguments(node))
        )
    found: set[int] = set()
    stages: dict[int, set[int]] = {}
    for node in reversed(nodes):
        own: set[int] = set()
        placed = id(node) in results
        for user in users[id(node)]:
            if isinstance(user, View | Product | Join | Take | Scatter):
                placed = True
            else:
                own |= stages[id(user)]
        if placed:
            own = {id(node), *own}
        if len(own) > 1 and heavy[id(node)]:
            found.add(id(node))
            own = {id(node)}
        elif placed and isinstance(node, Call | Cast | Reduce):
            own = {id(node)}
        stages[id(node)] = own
    return found


def _is_arithmetic(node: Call) -> bool:
    """Return True if a function takes only one or two instructions."""
    return isinstance(node.entry.reference, Arithmetic)
