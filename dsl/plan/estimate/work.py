"""Estimate the cycles of register tiles and copies if all that they read is in L1."""

from __future__ import annotations

from dataclasses import replace

from tilewright.isa.machine import Core
from tilewright.plan.operands import LINE
from tilewright.plan.plan import Plan
from tilewright.plan.problem import Staging
from tilewright.plan.tiling.bounds import bounds, step_cycles, tightest, together
from tilewright.plan.tiling.cost_model import LOOP_OVERHEAD
from tilewright.plan.tiling.scaled import UNPACKING
from tilewright.plan.tiling.tile_costs import tile_cycles
from tilewright.plan.tiling.tile_shape import TileRequest, TileShape
from tilewright.plan.tiling.tiles import RegisterTile

from .caches import Cycles, Region, gone, places

#: Names of parts of an estimate. ``ENDS`` is the time between the K loops of two tiles, which
#: includes stores of C. ``LOOP`` is the part of a loop's own instructions that its steps do not
#: hide. ``PARTS`` is the time of partial vectors that pass through the stack.
ENDS, LOOP, PARTS = "tile ends", "loop instructions", "parts of vectors"
PACKING, CONVERTING = "packing", "conversions before"
#: In an estimate, the name of the cycles in which configurations of a matrix unit are loaded.
CONFIGURING = "configurations"
#: If a part of a vector was just stored, this number of cycles passes until the vector is loaded.
_NOT_FORWARDED = 25
#: While an instruction waits, a core can start later ones, if they are among this number of next
#: instructions. They may belong to the next tiles.
_WINDOW = 128


def tile_work(
    staging: Staging,
    tile: RegisterTile,
    request: TileRequest,
    begins: int,
    across: Region,
    waits: bool,
) -> Cycles:
    """Return the cycles of one tile by what limits them.

    ``begins`` divides the addresses of the tile's vectors; it is 0 if they are aligned. ``across``
    is the region of the operand across the vectors that a K step reads. ``waits`` is True if the
    next tile reads elements of C that this tile writes.
    """
    core, shape = staging.problem.target.core, replace(tile.shape, stride=begins)
    steps = -(-request.steps // shape.vector.lanes) if staging.problem.dot else request.steps
    ends = tile_cycles(shape, core, request) - steps * step_cycles(shape, core)
    each = bounds(shape, core)
    step = together(each, shape, core)
    if not waits:
        step *= _beside_the_next(each, shape, steps)
    found = {tightest(each): steps * step, ENDS: ends}
    if tile.unroll.loop and steps:
        issued = tile.unroll.count * shape.issued + LOOP_OVERHEAD
        longer = issued / core.at(shape.vector.nbytes).issue - tile.unroll.count * step
        if longer > 0:
            found[LOOP] = longer * steps / tile.unroll.count
    if _by_the_stack(staging, tile):
        found[PARTS] = float(_NOT_FORWARDED * steps)
    return Cycles(found, crowded=_crowded(across, core) * steps)


def _beside_the_next(each: dict[str, float], shape: TileShape, steps: int) -> float:
    """Return the share of a tile's K steps that the core cannot overlap with the next tiles."""
    if tightest(each) != "latency" or not steps:
        return 1.0
    tiles = max(1.0, _WINDOW / (shape.issued * steps))
    next_best = max(cycles for name, cycles in each.items() if name != "latency")
    return max(1 / tiles, next_best / each["latency"])


def _by_the_stack(staging: Staging, tile: RegisterTile) -> bool:
    """Return True if a partial vector of K groups passes through the stack.

    This is done if no load instruction reads only the lanes that exist.
    """
    grouped = staging.product.depth > 1 and staging.product.unit is None and not staging.problem.dot
    return grouped and tile.active is not None and not tile.loads_whole


def _crowded(across: Region, core: Core) -> float:
    """Return the bytes that a K step reads again, because its rows share few sets of L1."""
    if across.rows == 1 or across.stride % core.line:
        return 0.0
    held = places(int(across.stride), core.line)
    return gone(across.rows, held) * across.rows * core.line


def peak(plan: Plan) -> float:
    """Return the peak: the most multiply-adds of single elements in a cycle.

    It is that of the plan's types and of the best instruction of the target.
    """
    core, product = plan.target.core, plan.staging.product
    if product.unit is not None:
        shapes = [tile.shape for tile in plan.tiling.tiles]
        rates = [
            shape.rows * shape.vectors * shape.vector.lanes
            / bounds(shape, core)["multiply-add units"]
            for shape in shapes
        ]  # fmt: skip
    else:
        rates = [
            vector.lanes / core.at(vector.nbytes).between(form.mnemonic, form.instructions)
            for vector in plan.target.of(plan.staging.element)
            if (form := product.form(vector, "broadcast", "scalar")) is not None
        ]
    return max(rates) * (product.depth if product.unit is None else product.step)


# --- packing and converting ----------------------------------------------------------------------


def convert_cycles(plan: Plan) -> float:
    """Return the cycles to convert one element before the loops, which its vector store limits.

    If A is converted panel by panel, multiply-adds hide a part of this time.
    """
    core = plan.target.core
    return (core.beside if plan.by_panels else 1) / core.stores / plan.staging.vectors[0].lanes


def unpack_cycles(staging: Staging) -> float:
    """Return the cycles to unpack one element of a quantized B.

    Vector operations and stores overlap, so the result is the longer of the two times.
    """
    core = staging.problem.target.core
    return max(UNPACKING / core.fma_units, 1 / core.stores) / staging.vectors[0].lanes


def move_cycles(staging: Staging, name: str) -> float:
    """Return the cycles to pack one element of operand ``name``.

    Loads, stores and the shuffles that transpose overlap, so the result is the longest of the three
    times.
    """
    if staging.unpacks and name in LINE:
        return unpack_cycles(staging)
    line = "k" if staging.problem.dot and name in LINE else LINE.get(name, "m")
    core, vectors = staging.problem.target.core, staging.problem.target.of(staging.element)
    shuffles = 0
    if staging.operands[name].strides[line] != 1:
        vectors = tuple(v for v in vectors if v.transposes)
        shuffles = vectors[0].lanes.bit_length() - 1
    per_vector = max(1 / core.loads, 1 / core.stores, shuffles / core.shuffles)
    return per_vector / vectors[0].lanes
