"""Explain why a plan has its tiles, accumulator sets and unrolling, by the reasons in the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.ir.nest import Program
from tilewright.ir.ops import Loop, TileProgram
from tilewright.lower.tile.store import LONG, length
from tilewright.plan.plan import Plan
from tilewright.plan.problem import Staging
from tilewright.plan.routine import Row
from tilewright.plan.tiling.tiles import RegisterTile

from .decisions import text_of

#: Maximum number of tile sizes that a reason lists; further sizes are only counted.
NAMED = 4


def decisions(nests: Sequence[Plan], program: Program) -> Iterator[Row]:
    """Yield subject, choice and reason for the register tile, accumulator sets and unrolling."""
    called = filter(None, (planned_of(nests, tile) for tile in program.tiles))
    tiles = [tile for _, tile in called if tile.steps != 0]
    if not tiles:
        return
    first = tiles[0]
    yield "tile", tile_size(first), _why_tile(first)
    splits = [(tile, str(tile.shape.k_split)) for tile in tiles]
    yield "k_split", _numbers(splits), _told(splits, first.why_split)
    unrolls = [(tile, str(tile.unroll.steps or "all")) for tile in tiles]
    yield "k_unroll", _numbers(unrolls), _told(unrolls, first.unroll.reason)


def planned_of(nests: Sequence[Plan], tile: TileProgram) -> tuple[Plan, RegisterTile] | None:
    """Return the tile that a tile program computes, and the plan that has this tile.

    None if the program computes no part of C.
    """
    every = ((plan, each) for plan in nests for each in plan.tiling.tiles)
    return next((pair for pair in every if pair[1].number == tile.planned), None)


def tile_size(tile: RegisterTile) -> str:
    """Return the size of a tile as rows by columns of C, for example ``8x48``."""
    sizes = map(text_of, (tile.mr, tile.nr))
    return "x".join(text if text.isalnum() else f"({text})" for text in sizes)


def _why_tile(tile: RegisterTile) -> str:
    bound, search = f"bound by {tile.bound}", tile.search
    if search is None:
        return f"asked for; {bound}; what it leaves over has tiles of its own"
    return f"{search.estimate}, {bound}; {search.runner_up}"


def _numbers(numbered: Sequence[tuple[RegisterTile, str]]) -> str:
    """Return the different numbers that tiles have, for example of sets, as text: ``2, 1``."""
    return ", ".join(dict.fromkeys(number for _, number in numbered))


def _told(numbered: Sequence[tuple[RegisterTile, str]], first: str) -> str:
    """Return the first tile's reason. If tiles have different numbers, list these before it."""
    groups: dict[str, dict[str, None]] = {}
    for tile, number in numbered:
        groups.setdefault(number, {})[tile_size(tile)] = None
    if len(groups) == 1:
        return first
    others = "; ".join(f"{number} for {_names([*sizes])}" for number, sizes in groups.items())
    return f"{others}. {tile_size(numbered[0][0])}: {first}"


def _names(sizes: Sequence[str]) -> str:
    more = len(sizes) - NAMED
    return ", ".join(sizes[:NAMED]) + (f" and {more} more" if more > 0 else "")


def why_lines(staging: Staging, tile: TileProgram) -> Iterator[str]:
    """Yield the reason why a tile updates C in a loop over rows of sums, not in straight code."""
    for loop in (op for op in tile.end if isinstance(op, Loop)):
        count, trips = length(loop.body), text_of(loop.trips)
        begin = f"a loop over {trips} lines of sums, {count} operations each"
        if staging.product.unit is not None:
            yield f"{begin}: vectors take the sums of a matrix unit from memory"
        else:
            yield f"{begin}: straight code of more than {LONG} would crowd the instruction cache"
