"""Call tiles for all vectors of a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sympy import Expr

from tilewright.ir.nest import Call, NestNode, repeated, when
from tilewright.ir.values import Active
from tilewright.plan.tiling.parts import cut
from tilewright.symbolic import div, mod, value

#: A function that returns the call of a tile. Its arguments are the first element, the number of
#: vectors, and the number of elements if there is a single incomplete vector, else None.
Called = Callable[[Expr, int, Expr | None], Call]


def over_vectors(
    total: Expr, lanes: int, most: int, called: Called, counter: str = "lp", by: int = 2
) -> Iterator[NestNode]:
    """Yield calls for ``total`` elements: tiles of up to ``most`` vectors, then the last elements.

    If only the call knows whether there are last elements, their tile is in a ``When``.
    """
    whole, tail = div(total, lanes), mod(total, lanes)
    for part in cut(whole, most, by=by):
        call = called(lanes * part.at(counter), part.units, None)
        yield from repeated(counter, part.count, (call,))
    if tail != 0:
        yield from when(tail, (called(lanes * whole, 1, tail),))


def known(tail: Expr | None) -> Active:
    """Return the active lanes of an access: a number or an expression, or None for all."""
    return tail if tail is None or value(tail) is None else value(tail)
