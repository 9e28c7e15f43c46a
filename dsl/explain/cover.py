"""Find which part of C each grid of register tiles covers, by following the loops over blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from sympy import Expr

from tilewright.plan.plan import Plan
from tilewright.plan.problem import NOMINAL
from tilewright.plan.tiling.parts import Part
from tilewright.plan.tiling.tiles import (
    Cell,
    Either,
    FirstOrLater,
    Grid,
    Grids,
    InOrder,
    OneBlock,
    OverBatch,
    OverBlocks,
    OverEqual,
    PackedBlock,
    PackedRows,
    RegisterTile,
    Step,
    SummedBlock,
)
from tilewright.symbolic import symbol


class Covered(NamedTuple):
    """A grid of register tiles: ``down`` rows and ``right`` columns of tiles of ``mr`` x ``nr``.

    Its upper left corner is at (``row``, ``column``) of C.
    """

    row: int
    column: int
    mr: int
    nr: int
    down: int
    right: int
    tile: RegisterTile


def number(expr: Expr, known: Mapping[Expr, int] | None = None) -> int:
    """Return the value of ``expr``; sizes that are not in ``known`` are taken as ``NOMINAL``."""
    given = dict.fromkeys(expr.free_symbols, NOMINAL) | dict(known or {})
    return int(expr.subs(given))


def cover(plan: Plan) -> Iterator[Covered]:
    """Yield the grids of tiles that together cover C once."""
    if plan.tiling.passes:
        yield from _walk(_Place(plan), next(iter(plan.tiling.passes.values())))


@dataclass(frozen=True, slots=True)
class _Place:
    """The state while loops are followed: the current row and column of C, and block sizes."""

    plan: Plan
    at: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys("mnk", 0))
    known: Mapping[Expr, int] = field(default_factory=dict)

    def number(self, expr: Expr) -> int:
        return number(expr, self.known)

    def moved(self, dimension: str, by: int) -> _Place:
        return replace(self, at={**self.at, dimension: self.at[dimension] + by})


def _walk(place: _Place, step: Step | None) -> Iterator[Covered]:
    match step:
        case Grids():
            for cell in step.cells:
                for down in _each(place, "m", cell.m):
                    for inside in _each(down, "n", cell.n):
                        place_of = _given(inside, cell)
                        yield from (_covered(place_of, grid) for grid in cell.grids)
        case PackedBlock() | PackedRows():
            yield from _walk(place, step.body)
        case SummedBlock():
            yield from _walk(place, step.fill)
        case InOrder():
            parts = (list(_walk(place, part)) for part in step.parts)
            # Each block of K covers all of C: the first one that exists is enough.
            yield from next(filter(None, parts), ()) if step.letter == "k" else chain(*parts)
        case Either():
            yield from _walk(place, step.body if place.number(step.count) else step.otherwise)
        case OneBlock():
            yield from _walk(place.moved(step.letter, place.number(step.start)), step.body)
        case OverBatch() | FirstOrLater():
            yield from _walk(place, step.first)
        case OverBlocks():
            for i in range(step.first, place.number(step.trips)):
                yield from _walk(place.moved(step.letter, i * step.size), step.body)
        case OverEqual():
            yield from _over_equal(place, step)


def _each(place: _Place, dimension: str, part: Part | None) -> Iterator[_Place]:
    """Yield the places where equal parts of a dimension begin; ``place`` if there are no parts."""
    if part is None:
        yield place
        return
    start, size = place.number(part.start), place.number(part.size)
    for i in range(place.number(part.count)):
        yield place.moved(dimension, start + i * size)


def _over_equal(place: _Place, step: OverEqual) -> Iterator[Covered]:
    """Yield the grids in a loop over blocks whose size is computed during the call."""
    letter, trips = step.letter, place.number(step.trips)
    known = {**place.known, symbol(step.count): trips}
    size = number(step.size, known)
    for i in range(1 if letter == "k" else trips):
        known = {**known, symbol(step.counter): i, symbol(step.step): size}
        here = {symbol(step.here): number(step.elements, known)}
        inside = replace(place, known={**known, **here})
        yield from _walk(inside if letter == "k" else inside.moved(letter, i * size), step.body)


def _given(place: _Place, cell: Cell) -> _Place:
    """Return ``place``, with values for the block sizes that a call computes for ``cell``."""
    for name, size in cell.given:
        place = replace(place, known={**place.known, symbol(name): place.number(size)})
    return place


def _covered(place: _Place, grid: Grid) -> Covered:
    parts = {place.plan.problem.along: grid.along, place.plan.problem.across: grid.across}
    begin = {d: place.at[d] + place.number(parts[d].start) for d in "mn"}
    size = {d: place.number(parts[d].size) for d in "mn"}
    count = {d: place.number(parts[d].count) for d in "mn"}
    return Covered(begin["m"], begin["n"], size["m"], size["n"], count["m"], count["n"], grid.tile)
