"""An extent cut into equal parts, and ever smaller ones for what those leave over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sympy import Expr, Integer

from tilewright.isa.vector import MulAdd
from tilewright.symbolic import ONE, ZERO, Least, div, mod, symbol, value


@dataclass(frozen=True, slots=True)
class Part:
    """``count`` equal parts of ``size`` elements side by side, from ``start`` on.

    ``units`` is the extent of one in what it is made of: registers along the vectors of a tile,
    else elements. ``size`` of a masked tail of a size known only at the call is an expression.
    ``once``: there is one at most, and the call knows whether. ``given`` are the sizes, each by its
    name, that the call computes before, of which other formulas of the part make use.
    """

    start: Expr
    size: Expr
    units: int
    count: Expr
    once: bool = False
    given: tuple[tuple[str, Expr], ...] = ()

    @property
    def single(self) -> bool:
        """Whether there is no second one."""
        return self.once or bool(self.count == 1)

    def at(self, counter: str) -> Expr:
        """Where the part of that number begins."""
        return self.start if self.single else self.nth(symbol(counter))

    def nth(self, index: Expr) -> Expr:
        """Where the part of that index begins."""
        return self.start + self.size * index


def cut(
    total: Expr, most: int, lanes: int = 1, *, tail: bool = True, by: int = 2
) -> Iterator[Part]:
    """``total`` elements in parts of ``most`` units of ``lanes`` elements, then in smaller ones.

    A tail of known size is one part with ``tail``; what is left else is cut in powers of ``by``,
    2 or 4, down to one unit: 4 takes less code, and more steps.
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
    """``total`` elements in parts of ``most``, then one of just what those leave over.

    Of a size known only at the call there is a part for each number that may be left, with a count
    of 1 where it is the one.
    """
    whole, left = div(total, most), mod(total, most)
    if whole != 0:
        yield Part(ZERO, Integer(most), most, whole)
    known = value(left)
    for units in range(1, most) if known is None else filter(None, [known]):
        exists = ONE if known else equals_part(left, units, most)
        yield perhaps(whole * most, Integer(units), units, exists)


def even_parts(total: Expr, most: int, dimension: str) -> Iterator[Part]:
    """``total`` elements, known only at the call, in parts of ``most``, the last two of them even.

    What whole parts leave is often little, and the last of these then shares with it. There is a
    part for each size that the two may have: with a count of 2 where they are equal, and with the
    whole ones where they are as large.
    """
    names = (f"{dimension}_{name}" for name in ("tiles", "whole", "left", "low", "tall"))
    tiles, whole, left, low, tall = names
    several = Least(div(symbol(tiles), 2), ONE)
    given = (
        (tiles, div(total + (most - 1), most)),
        (whole, symbol(tiles) - Least(symbol(tiles), Integer(2))),
        (left, total - most * symbol(whole)),  # by name, so that halves of it are not negative
        (low, several * div(symbol(left), 2)),
        (tall, symbol(left) - symbol(low)),
    )
    start = most * symbol(whole)

    def last(size: int) -> Expr:
        return sum((equals_part(symbol(each), size, most + 1) for each in (tall, low)), ZERO)

    yield Part(ZERO, Integer(most), most, symbol(whole) + last(most), given=given)
    for size in range(1, most):
        second = (symbol(tall) - size) * (size + 1)  # behind one that is taller by an element
        yield Part(start + second, Integer(size), size, last(size), given=given)


def panel_parts(total: Expr, width: int) -> Iterator[Part]:
    """``total`` elements in panels: all whole ones, then what is left, in one of its own.

    That one is there where its size is positive.
    """
    whole, left = div(total, width), mod(total, width)
    if whole != 0:
        yield Part(ZERO, Integer(width), width, whole)
    if left != 0:
        yield Part(whole * width, left, width, ONE)


def whole_and_rest(total: Expr, most: int) -> Iterator[Part]:
    """``total`` elements in parts of ``most``, then one of what is left."""
    yield from (cut if value(total) is not None else panel_parts)(total, most)


def across_parts(unit: MulAdd | None, total: Expr, most: int, by: int = 2) -> Iterator[Part]:
    """Parts across a size known only at the call; a matrix has as many rows as are left."""
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
    """One part where ``exists`` is 1, and none where it is 0, which only the call may know."""
    return Part(start, size, units, exists, once=value(exists) is None)


def positive_part(tail: Expr, lanes: int) -> Expr:
    """1 if ``tail`` (below ``lanes``) is positive, else 0, as a formula."""
    return div(tail + (lanes - 1), lanes)


def equals_part(tail: Expr, size: int, lanes: int) -> Expr:
    """1 if ``tail`` (below ``lanes``) is ``size``, else 0, as a formula."""
    return at_least_part(tail, size, lanes) - at_least_part(tail, size + 1, lanes)


def at_least_part(tail: Expr, size: int, lanes: int) -> Expr:
    """1 if ``tail`` (below ``lanes``) is ``size`` or more, which is positive, as a formula."""
    return ZERO if size >= lanes else positive_part(tail - (size - 1), lanes)
