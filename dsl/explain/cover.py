"""Where in C each grid of register tiles lies, whatever loops over blocks stand around."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sympy import Expr

from tilewright.plan.plan import Plan
from tilewright.plan.tiles import (
    Grid,
    Grids,
    OverBatch,
    OverBlocks,
    PackedBlock,
    RegisterTile,
    Step,
)

#: What a size known only at the call is drawn as.
NOMINAL = 64


class Covered(NamedTuple):
    """A grid of tiles of ``mr`` x ``nr``, ``down`` x ``right`` of them, from (row, column) on."""

    row: int
    column: int
    mr: int
    nr: int
    down: int
    right: int
    tile: RegisterTile


def number(expr: Expr) -> int:
    """The value of an expression; sizes of the call count as ``NOMINAL``."""
    return int(expr.subs(dict.fromkeys(expr.free_symbols, NOMINAL)))


def cover(plan: Plan) -> Iterator[Covered]:
    """The grids that cover C in one pass of K."""
    if plan.passes:
        step = next(iter(plan.passes.values())).step
        yield from _walk(plan, step, {"m": 0, "n": 0})


def _walk(plan: Plan, step: Step | None, at: dict[str, int]) -> Iterator[Covered]:
    match step:
        case Grids():
            for part, grids in step.columns:
                count = 1 if part is None else number(part.count)
                for i in range(count):
                    begin = 0 if part is None else number(part.start) + i * number(part.size)
                    for grid in grids:
                        yield _covered(plan, grid, {**at, "n": at["n"] + begin})
        case PackedBlock():
            yield from _walk(plan, step.body, at)
        case OverBatch():
            yield from _walk(plan, step.first, at)
        case OverBlocks() if step.letter == "k":
            once = step.head or step.only or step.tail
            yield from _walk(plan, once, at)
        case OverBlocks():
            letter, trips = step.letter, number(step.trips)
            for i in range(trips):
                yield from _walk(plan, step.body, {**at, letter: at[letter] + i * step.size})
            if number(step.tail_size):
                yield from _walk(plan, step.tail, {**at, letter: at[letter] + trips * step.size})


def _covered(plan: Plan, grid: Grid, at: dict[str, int]) -> Covered:
    parts = {plan.along: grid.along, plan.across: grid.across}
    begin = {d: at[d] + number(parts[d].start) for d in "mn"}
    size = {d: number(parts[d].size) for d in "mn"}
    count = {d: number(parts[d].count) for d in "mn"}
    return Covered(begin["m"], begin["n"], size["m"], size["n"], count["m"], count["n"], grid.tile)
