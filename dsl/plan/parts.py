"""How sizes known only at the call are cut: whole tiles, then ever smaller ones for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sympy import Expr, Integer

from tilewright.isa.vector import MulAdd
from tilewright.symbolic import ONE, ZERO, div, mod, symbol, value


@dataclass(frozen=True, slots=True)
class Part:
    """``count`` equal parts of ``size`` elements from ``start`` on, one tile wide each.

    ``units`` is the tile's extent in registers (along) or rows (across). ``size`` of a masked
    run-time tail is an expression.
    """

    start: Expr
    size: Expr
    units: int
    count: Expr

    def at(self, counter: str) -> Expr:
        """Where the part of that number begins."""
        return self.start if self.count == 1 else self.nth(symbol(counter))

    def nth(self, index: Expr) -> Expr:
        """Where the part of that index begins."""
        return self.start + self.size * index


def cascade(start: Expr, total: Expr, most: int, lanes: int) -> Iterator[Part]:
    """As many tiles of ``most`` units as fit, then ever halved ones for the rest."""
    rest = total
    units = most
    while units >= 1:
        size = units * lanes
        count = div(rest, size)
        if count != 0:
            yield Part(start, Integer(size), units, count)
        start, rest = start + count * size, mod(rest, size)
        if rest == 0:
            return
        units = 1 << ((units - 1).bit_length() - 1) if units > 1 else 0


def across_parts(unit: MulAdd | None, total: Expr, most: int) -> Iterator[Part]:
    """Parts across a size known only at the call; a matrix has as many rows as are left."""
    if unit is None:
        yield from cascade(ZERO, total, most, 1)
        return
    start, rest, size = ZERO, total, most
    while size and rest != 0:
        count = div(rest, size)
        if count != 0:
            yield Part(start, Integer(size), size, count)
        start, rest = start + count * size, mod(rest, size)
        size = unit.rows * -(-size // unit.rows // 2) if size > unit.rows else 0
    known, height = value(rest), min(most, unit.rows)
    if known is None:
        yield Part(start, rest, height, positive_part(rest, height))
    elif known:
        yield Part(start, rest, known, ONE)


def positive_part(tail: Expr, lanes: int) -> Expr:
    """1 if ``tail`` (below ``lanes``) is positive, else 0, as a formula."""
    return div(tail + (lanes - 1), lanes)


def equals_part(tail: Expr, size: int, lanes: int) -> Expr:
    """1 if ``tail`` (below ``lanes``) is ``size``, else 0, as a formula."""
    return positive_part(tail - (size - 1), lanes) - positive_part(tail - size, lanes)
