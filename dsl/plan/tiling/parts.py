"""Cut an extent into equal parts, and smaller parts for the remainder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sympy import Expr, Integer

from tilewright.isa.vector import MulAdd
from tilewright.symbolic import ONE, ZERO, Least, div, mod, symbol, value


@dataclass(frozen=True, slots=True)
class Part:
    """``count`` adjacent parts of ``size`` elements each, from element ``start`` on.

    ``units`` is the size of a part in registers along the vectors of a tile, otherwise in elements.
    If a masked tail is known only at the call, ``size`` is an expression. ``once`` is True if there
    is at most one part, and only the call knows whether. ``given`` are named sizes that the call
    computes first; other formulas of the part use them.
    """

    start: Expr
    size: Expr
    units: int
    count: Expr
    once: bool = False
    given: tuple[tuple[str, Expr], ...] = ()

    @property
    def single(self) -> bool:
        """True if there is at most one part."""
        return self.once or bool(self.count == 1)

    def at(self, counter: str) -> Expr:
        """Return where the part counted by ``counter`` begins."""
        return self.start if self.single else self.nth(symbol(counter))

    def nth(self, index: Expr) -> Expr:
        """Return where part ``index`` begins."""
        return self.start + self.size * index


def cut(
    total: Expr, most: int, lanes: int = 1, *, tail: bool = True, by: int = 2
) -> Iterator[Part]:
    """Cut ``total`` elements into parts of ``most`` units of ``lanes`` elements, then smaller ones.

    With ``tail``, a remainder of known size is one part. Otherwise it is cut into parts of powers
    of ``by`` units, down to one unit. ``by`` is 2, or 4 for less code but more steps.
    """
    start, left, units, above = ZERO, total, most, 0
    while units and left != 0:
        size = units * lanes
        count = div(left, size)
        if count != 0:
            once = value(count) is None and 0 < above <= 2 * units
            yield Part(start, Integer(size), units, count, once)
        start, left = start + count * size, mod(left, size)
        known = value(left) if tail else None
        bits = by.bit_length() - 1
        half = 1 << ((units - 1).bit_length() - 1) // bits * bits if units > 1 else 0
        above = units
        units = known // lanes if known else half


def exact_parts(total: Expr, most: int) -> Iterator[Part]:
    """Cut ``total`` elements into parts of ``most``, then one part for the exact remainder.

    If ``total`` is known only at the call, there is a part for each possible remainder. Its count
    is 1 if the remainder has this size, else 0.
    """
    whole, left = div(total, most), mod(total, most)
    if whole != 0:
        yield Part(ZERO, Integer(most), most, whole)
    known = value(left)
    for units in range(1, most) if known is None else filter(None, [known]):
        exists = ONE if known else equals_part(left, units, most)
        yield perhaps(whole * most, Integer(units), units, exists)


def even_parts(total: Expr, most: int, dimension: str) -> Iterator[Part]:
    """Cut ``total`` elements into parts of ``most``, where the last two parts are nearly equal.

    ``total`` is known only at the call. A remainder alone is often small, so it is joined with the
    last whole part, and the two are cut in half. One ``Part`` is yielded for each size that a half
    may have. Its count is 0, 1, or 2 if both halves have this size. A half of ``most`` elements is
    counted with the whole parts.
    """
    names = (f"{dimension}_{name}" for name in ("tiles", "whole", "left", "low", "tall"))
    tiles, whole, left, low, tall = names
    several = Least(div(symbol(tiles), 2), ONE)
    given = (
        (tiles, div(total + (most - 1), most)),
        (whole, symbol(tiles) - Least(symbol(tiles), Integer(2))),
        # ``left`` has a name because sympy then knows that it is not negative, and neither is the
        # half of it in the next line.
        (left, total - most * symbol(whole)),
        (low, several * div(symbol(left), 2)),
        (tall, symbol(left) - symbol(low)),
    )
    start = most * symbol(whole)

    def last(size: int) -> Expr:
        return sum((equals_part(symbol(each), size, most + 1) for each in (tall, low)), ZERO)

    yield Part(ZERO, Integer(most), most, symbol(whole) + last(most), given=given)
    for size in range(1, most):
        # If the taller part is one larger than ``size``, it comes first, so this part follows it.
        second = (symbol(tall) - size) * (size + 1)
        yield Part(start + second, Integer(size), size, last(size), given=given)


def panel_parts(total: Expr, width: int) -> Iterator[Part]:
    """Cut ``total`` elements into whole panels and one panel for the remainder.

    The last panel exists if its size is positive.
    """
    whole, left = div(total, width), mod(total, width)
    if whole != 0:
        yield Part(ZERO, Integer(width), width, whole)
    if left != 0:
        yield Part(whole * width, left, width, ONE)


def whole_and_rest(total: Expr, most: int) -> Iterator[Part]:
    """Cut ``total`` elements into parts of ``most``, then one part for the remainder."""
    yield from (cut if value(total) is not None else panel_parts)(total, most)


def across_parts(unit: MulAdd | None, total: Expr, most: int, by: int = 2) -> Iterator[Part]:
    """Yield the parts of a size known only at the call, in the dimension across the vectors.

    Without a matrix unit, each remainder has tiles of its own. A matrix register can have any
    number of rows up to its size, so one tile computes all remainders.
    """
    if unit is None:
        yield from cut(total, most, tail=False, by=by)
        return
    start, left, size = ZERO, total, most
    while size and left != 0:
        count = div(left, size)
        if count != 0:
            yield Part(start, Integer(size), size, count)
        start, left = start + count * size, mod(left, size)
        size = unit.rows * -(-size // unit.rows // 2) if size > unit.rows else 0
    known, height = value(left), min(most, unit.rows)
    if known is None:
        yield perhaps(start, left, height, positive_part(left, height))
    elif known:
        yield Part(start, left, known, ONE)


def perhaps(start: Expr, size: Expr, units: int, exists: Expr) -> Part:
    """Return one part if ``exists`` is 1, none if it is 0; only the call may know which."""
    return Part(start, size, units, exists, once=value(exists) is None)


def positive_part(tail: Expr, lanes: int) -> Expr:
    """Return a formula that is 1 if ``tail`` (less than ``lanes``) is positive, else 0."""
    return div(tail + (lanes - 1), lanes)


def equals_part(tail: Expr, size: int, lanes: int) -> Expr:
    """Return a formula that is 1 if ``tail`` (less than ``lanes``) equals ``size``, else 0."""
    return at_least_part(tail, size, lanes) - at_least_part(tail, size + 1, lanes)


def at_least_part(tail: Expr, size: int, lanes: int) -> Expr:
    """Return a formula that is 1 if ``tail`` (less than ``lanes``) is at least ``size``, else 0.

    ``size`` is positive.
    """
    return ZERO if size >= lanes else positive_part(tail - (size - 1), lanes)
