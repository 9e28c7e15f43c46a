"""Find the complete schedule of a plan: the choices of the user, and those of the cost model."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.nest import Program
from tilewright.plan.plan import ByRows, Plan
from tilewright.plan.problem import Problem
from tilewright.plan.tiling.tiles import RegisterTile
from tilewright.spec.schedule import Schedule
from tilewright.symbolic import value

from .reasons import planned_of

#: Largest ``k_unroll`` that a schedule may have, in steps of K.
_STRAIGHT = 1024


def schedule_of(plan: Plan | ByRows, program: Program) -> Schedule | None:
    """Return a complete schedule that gives the tiles of ``plan`` for the same spec and target.

    It has the choices for the first tile, which is the largest. It is None if no tile sums
    products.
    """
    for tile in program.tiles:
        chosen = planned_of(plan.nests, tile)
        if chosen is not None and chosen[1].steps != 0:
            # The loops of a second nest follow from ``unpack_rows``.
            return replace(_schedule(plan.nests[0], chosen[1]), unpack_rows=plan.unpack_rows)
    return None


def _schedule(plan: Plan, tile: RegisterTile) -> Schedule:
    asked, shape = plan.problem.schedule, tile.shape
    steps = tile.unroll.steps or value(tile.steps) or 0
    steps = -(-steps // shape.k_split) * shape.k_split
    return Schedule(
        tile=asked.tile or _size(plan.problem, tile),
        loops=plan.nest.outer + plan.nest.inner,
        block=asked.block,
        k_unroll=steps if 0 < steps <= _STRAIGHT else None,
        k_split=shape.k_split,
        vectorize=plan.problem.vectorize,  # type: ignore[arg-type]
        pack=plan.staging.packs or None,  # type: ignore[arg-type]
        tails=asked.tails,
        prefetch=asked.prefetch,
        threads=asked.threads,
        stores="stream" if plan.nest.streams == 1 else asked.stores,
    )


def _size(problem: Problem, tile: RegisterTile) -> tuple[int, int]:
    """Return the rows and columns of a tile.

    A size that is known only at the call is replaced by that of whole vectors.
    """
    shape = tile.shape
    along = shape.vectors * (1 if problem.dot else shape.vector.lanes)
    whole = {problem.along: along, problem.across: shape.rows}
    sizes = {"m": value(tile.mr), "n": value(tile.nr)}
    rows, columns = (sizes[dim] or whole[dim] for dim in "mn")
    return rows, columns
