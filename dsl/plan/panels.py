"""Choose the sizes of packed blocks, in panels as wide as the register tile.

A call computes the final sizes of its blocks from these maximum sizes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import lcm

from sympy import Integer

from tilewright.errors import ScheduleError
from tilewright.ir.nest import Name
from tilewright.ir.stages import STACK_BYTES
from tilewright.isa.machine import Core
from tilewright.isa.target import on_core
from tilewright.spec.schedule import MANY_ROWS, Schedule
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ONE, symbol, value

from .contraction import Product
from .estimate.caches import WAYS
from .formats.quantized_b import COLUMNS
from .loops import Decision
from .operands import LINE, Operand
from .plan import Plan
from .problem import NOMINAL, Staging
from .tiling.cost_model import steady
from .tiling.requests import request_at

#: ``_UNPACKED`` is the maximum number of rows and columns of C for which a block of B is unpacked
#: once to f32. The sums of such a block fit on the stack.
_UNPACKED = (MANY_ROWS, 64)
#: ``_NUMBERS`` is the same maximum if B is unpacked to its numbers without scales. It has the
#: columns of one block of the caller's B. These are fewer than 64, so that more rows fit.
_NUMBERS = (STACK_BYTES // (ITEMSIZE["f32"] * COLUMNS), COLUMNS)
#: If a tile has more than ``_MANY`` rows and they are no multiple of 8, its cost is multiplied by
#: ``_UNEVEN``. The reason is that packing transposes 8 rows at a time, and that C mostly has a
#: multiple of 8 rows. For example, tiles of 24x16 are 1.02 times as fast as tiles of 29x16 on
#: Emerald Rapids.
_MANY, _UNEVEN = 16, 1.02


def in_panels(plan: Plan) -> Plan:
    """Return ``plan`` with blocks that are packed in panels as wide as its tile.

    This is done if sizes are known only at the call, or the schedule gives no sizes of blocks.
    Blocks of m and n then have whole panels. They have at most the size that the schedule gives,
    else about the size that fits a cache.
    """
    lines = [LINE[name] for name in plan.staging.packs]
    unknown = (
        all(value(plan.problem.sizes[d]) is None for d in plan.nest.blocks)
        or not plan.problem.schedule.block
    )
    if not lines or not unknown or not plan.nest.blocks.keys() >= {"k", *lines}:
        return plan
    if plan.problem.bounces or plan.problem.dot or plan.staging.product.unit is not None:
        return plan
    tile = plan.problem.schedule.tile or _panel_tile(plan)
    if plan.staging.unpacks and _spans_blocks(plan.staging, tile[1]):
        raise ScheduleError(
            "a tile of numbers that are unpacked lies within one block of columns of B",
            got=f"tile={tile}, and blocks of {plan.staging.quantized.nb} columns",
            expected=f"a tile whose columns divide {plan.staging.quantized.nb}",
            hint="leave tile out",
        )
    widths = dict(zip("mn", tile, strict=True))
    blocks = dict(plan.nest.blocks)
    for d in widths.keys() & blocks.keys():
        width = widths[d]
        # A conversion stores whole vectors, so a panel narrower than that needs space after it.
        spilled = not plan.staging.plain and width < plan.staging.lanes
        # A block is rounded to whole panels: up or down if its size is a share of a cache, and only
        # down if it is on the stack, which it must not exceed.
        near = d == plan.problem.along and not (plan.staging.unpacks or plan.partial)
        more = width // 2 if near and d not in dict(plan.problem.schedule.block) else 0
        if _is_shared(plan, d):
            blocks[d], more = width, 0
        blocks[d] = max(1, (blocks[d] - spilled + more) // width) * width
    text = " and ".join(
        f"{name.upper()} of {widths[d]}" for name, d in zip(plan.staging.packs, lines, strict=True)
    )
    panels = Decision("panels", text, f"as wide as the tile, {tile[0]}x{tile[1]}")
    decisions = *plan.decisions, panels
    if plan.staging.unpacks:
        blocks["k"] = _unpacked_depth(plan.staging, blocks["n"])
        decisions = *decisions, *why_blocks(plan.problem.schedule, blocks)
    found = replace(
        plan, nest=replace(plan.nest, panel_tile=tile, blocks=blocks), decisions=decisions
    )
    return _with_sums(found) if found.partial else found


def _is_shared(plan: Plan, d: str) -> bool:
    """Return True if threads share the loop over blocks of ``d``, the dimension across the vectors.

    Each block then has a single panel.
    """
    asked = d in dict(plan.problem.schedule.block) or plan.staging.unpacks or plan.partial
    return d == plan.problem.across and d.upper() in plan.nest.outer and not asked


def _unpacked_depth(staging: Staging, columns: int) -> int:
    """Return the number of K steps in a block that is unpacked at once.

    The blocks are equal, and each fits in L1.
    """
    room, unit = (
        staging.problem.target.core.caches[0].size * 3 // 4,
        lcm(staging.k_unit, staging.product.step),
    )
    k, most = value(staging.problem.sizes["k"]) or 1, min(room, STACK_BYTES * 3 // 4) // columns
    blocks = -(-k // max(unit, most // ITEMSIZE[staging.factor("b")]))
    return -(-k // (blocks * unit)) * unit


def _with_sums(plan: Plan) -> Plan:
    """Return ``plan`` with C cut into parts, each of which is summed over all of K in a buffer.

    The buffer fills half of the last cache. The more rows a part has, the fewer times columns are
    packed. Rows or columns that have no loop over blocks after the one over K are not cut.
    """
    assert plan.nest.panel_tile is not None
    behind = plan.nest.outer.lower().split("k", 1)[1]
    open_, tile = [d for d in "mn" if behind.count(d) == 2], plan.nest.panel_tile
    products = 1 if plan.spec.b2 is None else 2
    room = plan.target.core.caches[-1].size // (2 * products * ITEMSIZE[plan.staging.element])
    summed = {}
    for d, other, width in (("m", "n", tile[0]), ("n", "m", tile[1])):
        if d in open_:
            most = (
                plan.nest.blocks[d]
                if len(open_) == 2 and d == "n"
                else room // plan.nest.blocks[other]
            )
            summed[d] = max(1, most // width) * width
    text = ", ".join(f"{d}={most}" for d, most in summed.items())
    sums = Decision(
        "sums of",
        f"at most {text}" if text else "a block",
        "all of K is summed in a buffer, then finished",
    )
    nest = replace(plan.nest, summed=summed)
    return replace(plan, nest=nest, decisions=(*plan.decisions, sums))


def _panel_tile(plan: Plan) -> tuple[int, int]:
    """Return the tile (mr, nr) that computes a large C fastest from packed panels.

    The panel across the vectors must fit on the stack. If it is not packed, all its rows may belong
    to one set of L1, for example if K is a power of two. The set must then hold them all.

    Tiles are compared by their mean cost over the target's ``states``. In some of these states
    another thread keeps the core busy.
    """
    panels = (
        Operand(
            name=name,
            type=plan.staging.factor(name),
            strides={LINE[name]: plan.staging.product.group * ONE, "k": symbol("width")},
            buffer=Name(f"{name}_panel"),
        )
        for name in plan.staging.packs
    )
    steps = Integer(plan.nest.blocks["k"] // plan.staging.product.step)
    request = request_at(plan.staging.holding(*panels), plan.nest, steps, accumulate=True)
    most = STACK_BYTES // (plan.nest.blocks["k"] * ITEMSIZE[plan.staging.product.across])
    cycles: Counter[tuple[int, int]] = Counter()
    for share, core in plan.target.states:
        least: dict[tuple[int, int], float] = {}
        arriving = _arriving(plan, core)
        for each in steady(on_core(plan.target, core), request, (0, 1), plan.staging.few_across):
            size = each.across[0][0], each.along[0][0] * each.vector.lanes
            if size not in least:
                uneven = _UNEVEN if size[0] > _MANY and size[0] % 8 else 1.0
                streamed = _streamed(each.cycles, arriving / size[0], core)
                least[size] = share * uneven * (streamed * _filled_up(plan.staging, size[1]))
        cycles.update(least)
    sizes = sorted(cycles, key=lambda size: cycles[size])
    if plan.staging.unpacks:
        # A panel may not extend over two blocks of columns with different scales.
        narrow = [size for size in sizes if size[1] <= plan.nest.blocks[plan.problem.along]]
        sizes = [size for size in narrow if not _spans_blocks(plan.staging, size[1])] or sizes
        most = min(most, WAYS)
    fits = (size for size in sizes if size[0] <= most)
    across, along = next(fits, sizes[0])
    return (across, along) if plan.problem.across == "m" else (along, across)


def unpacked_block(product: Product) -> tuple[int, int]:
    """Return the maximum rows and columns of C for which a block of B is unpacked once."""
    return _NUMBERS if product.partial else _UNPACKED


def _spans_blocks(staging: Staging, columns: int) -> bool:
    """Return True if tiles scale sums and a tile of ``columns`` would span several blocks of B."""
    apart = staging.product.partial != "" and staging.quantized.blocks > 1
    return apart and staging.quantized.nb % columns != 0


def _streamed(cycles: float, arriving: float, core: Core) -> float:
    """Return the cycles for an element of C if the panel along the vectors is in a far cache.

    These are the larger of ``cycles``, of the K steps, and ``arriving``, of the transfer, plus a
    share of the smaller one.
    """
    less, more = sorted((cycles, arriving))
    return more + core.overlap * less


def _arriving(plan: Plan, core: Core) -> float:
    """Return the cycles in which a cache delivers one row or column of the panel."""
    item = ITEMSIZE[plan.staging.product.along]
    name, d = ("b", "n") if plan.problem.along == "n" else ("a", "m")
    lines = plan.nest.blocks.get(d, NOMINAL)
    lines = min(lines, value(plan.problem.sizes[d]) or lines)
    block = lines * plan.nest.blocks["k"] * item if name in plan.staging.packs else 0
    rate = next((c.rate for c in core.caches if c.size >= block), core.memory)
    return plan.nest.blocks["k"] * item / rate


def _filled_up(staging: Staging, width: int) -> float:
    """Return the columns of whole tiles divided by those of C; 1 if B is not unpacked."""
    columns = value(staging.problem.sizes[staging.problem.along])
    return -(-columns // width) * width / columns if staging.unpacks and columns else 1.0


def why_blocks(schedule: Schedule, blocks: dict[str, int]) -> tuple[Decision, ...]:
    """Return the decision that ``explain`` prints for the block sizes that the schedule lacks."""
    chosen = {d: size for d, size in blocks.items() if d not in dict(schedule.block)}
    text = ", ".join(f"{d}={size}" for d, size in sorted(chosen.items()))
    return (Decision("block", text, "at most: what the caches hold"),) if chosen else ()
