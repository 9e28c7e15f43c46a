"""How fast the operations of a row program can be at most, from the units of the plan's core.

The loops of a row follow each other, because each pass needs a reduction of the pass before. A loop
takes at least as long as its busiest unit: the multiplying units, all units for vectors, or those
for loads or for stores. What happens once for a row, for example the fold of a reduction, is left
out. So are conversions to and from the types in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.generate import program_for
from tilewright.ir.count import tile_formulas
from tilewright.ir.ops import Loop, TileProgram
from tilewright.plan.estimate.rows import FREE, MULTIPLIED, OTHERS, applied
from tilewright.plan.rows.plan import RowsPlan
from tilewright.symbolic import value


@dataclass(frozen=True, slots=True)
class Bound:
    """Times of all rows in multiply-adds of one vector: of multiplications alone, and of loops."""

    multiplications: float
    loops: float


def bound(plan: RowsPlan) -> Bound:
    """Return the bounds of a row program of fixed sizes."""
    rows, units = value(plan.rows), plan.target.core.fma_units
    assert rows is not None, "sizes are fixed"
    tiles = program_for(plan).tiles
    multiplied = sum(applied(tile.end, MULTIPLIED, {}) for tile in tiles)
    cycles = sum(_busiest(plan, loop) for tile in tiles for loop in _loops(tile))
    return Bound(rows * multiplied, rows * cycles * units)


def _loops(tile: TileProgram) -> Iterator[TileProgram]:
    """Yield each loop over columns as a tile of its own."""
    return (replace(tile, body=(), end=(op,)) for op in tile.end if isinstance(op, Loop))


def _busiest(plan: RowsPlan, loop: TileProgram) -> float:
    """Return the cycles that the busiest unit of the core needs for a loop."""
    core, done = plan.target.core, tile_formulas(loop)
    operations, loads, stores = (
        value(each) or 0 for each in (done.elementary_operations, done.loads, done.stores)
    )
    return max(
        applied(loop.end, MULTIPLIED, {}) / core.fma_units,
        (operations - applied(loop.end, FREE, {})) / (OTHERS * core.fma_units),
        loads / core.loads,
        stores / core.stores,
    )
