"""Blocks packed in panels as wide as the register tile, of sizes that the call computes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import lcm

from sympy import Integer

from tilewright.errors import ScheduleError
from tilewright.ir.nest import Name
from tilewright.isa.machine import Core
from tilewright.isa.target import on_core
from tilewright.spec.schedule import MANY_ROWS, Schedule
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ONE, symbol, value

from .contraction import Product
from .estimate.caches import WAYS
from .formats.quantized_b import COLUMNS
from .loops import Decision
from .operands import LINE
from .plan import NOMINAL, STACK_BYTES, Plan
from .tiling.cost_model import steady
from .tiling.requests import tile_request

#: Rows and columns for which panels of f32 are unpacked: their sums fit on the stack.
_UNPACKED = (MANY_ROWS, 64)
#: The same of numbers whose sums are scaled: as many columns as the caller's blocks have, which are
#: fewer, for more rows.
_NUMBERS = (STACK_BYTES // (ITEMSIZE["f32"] * COLUMNS), COLUMNS)
#: What a tile of more rows than ``_MANY`` is charged unless they are a multiple of 8, in which
#: panels are turned and C's rows mostly are: 24x16 is 1.02 times as fast as 29x16 (Emerald Rapids).
_MANY, _UNEVEN = 16, 1.02


def in_panels(plan: Plan) -> Plan:
    """``plan`` with blocks packed in panels as wide as its tile, where the call computes sizes.

    It does where sizes are of the call, or the schedule leaves it to the caches how large blocks
    are. Blocks of m and n have whole panels then, at most as many elements as were asked for, and
    about as many as a cache holds.
    """
    lines = [LINE[name] for name in plan.packs]
    unknown = all(value(plan.sizes[d]) is None for d in plan.blocks) or not plan.schedule.block
    if not lines or not unknown or not plan.blocks.keys() >= {"k", *lines}:
        return plan
    if plan.bounces or plan.dot or plan.product.unit is not None:
        return plan
    tile = plan.schedule.tile or _panel_tile(plan)
    if plan.unpacks and _spans_blocks(plan, tile[1]):
        raise ScheduleError(
            "a tile of numbers that are unpacked lies within one block of columns of B",
            got=f"tile={tile}, and blocks of {plan.quantized.nb} columns",
            expected=f"a tile whose columns divide {plan.quantized.nb}",
            hint="leave tile out",
        )
    widths = dict(zip("mn", tile, strict=True))
    blocks = dict(plan.blocks)
    for d in widths.keys() & blocks.keys():
        width = widths[d]
        spilled = not plan.plain and width < plan.lanes  # room behind the last panel
        # What a cache holds is not so exact; what lies on a stack is.
        near = d == plan.along and not (plan.unpacks or plan.partial)
        more = width // 2 if near and d not in dict(plan.schedule.block) else 0
        if _is_shared(plan, d):
            blocks[d], more = width, 0
        blocks[d] = max(1, (blocks[d] - spilled + more) // width) * width
    text = " and ".join(
        f"{name.upper()} of {widths[d]}" for name, d in zip(plan.packs, lines, strict=True)
    )
    panels = Decision("panels", text, f"as wide as the tile, {tile[0]}x{tile[1]}")
    decisions = *plan.decisions, panels
    if plan.unpacks:
        blocks["k"] = _unpacked_depth(plan, blocks["n"])
        decisions = *decisions, *why_blocks(plan.schedule, blocks)
    found = replace(plan, panel_tile=tile, blocks=blocks, decisions=decisions)
    return _with_sums(found) if found.partial else found


def _is_shared(plan: Plan, d: str) -> bool:
    """Return True if threads share a loop over blocks of ``d``, which then have one panel each.

    ``d`` must be the dimension across the vectors.
    """
    asked = d in dict(plan.schedule.block) or plan.unpacks or plan.partial
    return d == plan.across and d.upper() in plan.outer and not asked


def _unpacked_depth(plan: Plan, columns: int) -> int:
    """How much of K of a panel is unpacked at once: what the first cache holds, in equal blocks."""
    room, unit = plan.target.core.caches[0].size * 3 // 4, lcm(plan.k_unit, plan.product.step)
    k, most = value(plan.sizes["k"]) or 1, min(room, STACK_BYTES * 3 // 4) // columns
    blocks = -(-k // max(unit, most // ITEMSIZE[plan.factor("b")]))
    return -(-k // (blocks * unit)) * unit


def _with_sums(plan: Plan) -> Plan:
    """``plan`` with parts of C whose sums lie in a buffer until all of K is there.

    They fill half of the last cache: the more rows, the less often columns are packed anew.
    """
    assert plan.panel_tile is not None
    behind = plan.outer.lower().split("k", 1)[1]
    open_, tile = [d for d in "mn" if behind.count(d) == 2], plan.panel_tile
    products = 1 if plan.spec.b2 is None else 2
    room = plan.target.core.caches[-1].size // (2 * products * ITEMSIZE[plan.element])
    summed = {}
    for d, other, width in (("m", "n", tile[0]), ("n", "m", tile[1])):
        most = plan.blocks[d] if len(open_) == 2 and d == "n" else room // plan.blocks[other]
        if d in open_:
            summed[d] = max(1, most // width) * width
    text = ", ".join(f"{d}={most}" for d, most in summed.items())
    sums = Decision(
        "sums of",
        f"at most {text}" if text else "a block",
        "all of K is summed in a buffer, then finished",
    )
    return replace(plan, summed=summed, decisions=(*plan.decisions, sums))


def _panel_tile(plan: Plan) -> tuple[int, int]:
    """The tile, (mr, nr), that computes a large C fastest from packed panels.

    The panel across the vectors fits on the stack. Where it is not packed its rows may lie in one
    set of the first cache, as those of a K that is a power of two do: no more than have places.
    Some of the time counts as beside a busy neighbour: what loses little there is never far behind.
    """
    operands = dict(plan.operands)
    for name in plan.packs:
        strides = {LINE[name]: plan.product.group * ONE, "k": symbol("width")}
        panel = Name(f"{name}_panel")
        operands[name] = replace(
            operands[name], type=plan.factor(name), strides=strides, buffer=panel
        )
    steps = Integer(plan.blocks["k"] // plan.product.step)
    request = tile_request(replace(plan, operands=operands), steps, accumulate=True)
    most = STACK_BYTES // (plan.blocks["k"] * ITEMSIZE[plan.product.across])
    cycles: Counter[tuple[int, int]] = Counter()
    for share, core in plan.target.states:
        least: dict[tuple[int, int], float] = {}
        arriving = _arriving(plan, core)
        for each in steady(on_core(plan.target, core), request, (0, 1), plan.few_across):
            size = each.across[0][0], each.along[0][0] * each.vector.lanes
            if size not in least:
                uneven = _UNEVEN if size[0] > _MANY and size[0] % 8 else 1.0
                streamed = _streamed(each.cycles, arriving / size[0], core)
                least[size] = share * uneven * (streamed * _filled_up(plan, size[1]))
        cycles.update(least)
    sizes = sorted(cycles, key=lambda size: cycles[size])
    if plan.unpacks:
        sizes = [size for size in sizes if _is_panel(plan, size[1])] or sizes
        most = min(most, WAYS)
    fits = (size for size in sizes if size[0] <= most)
    across, along = next(fits, sizes[0])
    return (across, along) if plan.across == "m" else (along, across)


def unpacked_block(product: Product) -> tuple[int, int]:
    """The rows and columns of C, at most, for which a block of a quantized B is unpacked once."""
    return _NUMBERS if product.partial else _UNPACKED


def _is_panel(plan: Plan, columns: int) -> bool:
    """Whether a panel of what is unpacked may be so wide; scales of its columns lie together."""
    return columns <= plan.blocks[plan.along] and not _spans_blocks(plan, columns)


def _spans_blocks(plan: Plan, columns: int) -> bool:
    """Whether scales of a tile's columns lie in several blocks, where tiles scale sums."""
    apart = plan.product.partial != "" and plan.quantized.blocks > 1
    return apart and plan.quantized.nb % columns != 0


def _streamed(cycles: float, arriving: float, core: Core) -> float:
    """The cycles per element of C of a tile whose panel along the vectors comes from a far cache.

    Those of its K steps, or those in which the vectors arrive, whichever are more; the others
    count as what is not the bound does in a step.
    """
    less, more = sorted((cycles, arriving))
    return more + core.overlap * less


def _arriving(plan: Plan, core: Core) -> float:
    """Return the cycles in which a cache delivers one row or column of the panel."""
    item = ITEMSIZE[plan.product.along]
    name, d = ("b", "n") if plan.along == "n" else ("a", "m")
    lines = plan.blocks.get(d, NOMINAL)
    lines = min(lines, value(plan.sizes[d]) or lines)
    block = lines * plan.blocks["k"] * item if name in plan.packs else 0
    rate = next((c.rate for c in core.caches if c.size >= block), core.memory)
    return plan.blocks["k"] * item / rate


def _filled_up(plan: Plan, width: int) -> float:
    """How many times as many columns as there are whole tiles have, where a block is one wide."""
    columns = value(plan.sizes[plan.along])
    return -(-columns // width) * width / columns if plan.unpacks and columns else 1.0


def why_blocks(schedule: Schedule, blocks: dict[str, int]) -> tuple[Decision, ...]:
    """What is said of sizes of blocks that nobody asked for."""
    chosen = {d: size for d, size in blocks.items() if d not in dict(schedule.block)}
    text = ", ".join(f"{d}={size}" for d, size in sorted(chosen.items()))
    return (Decision("block", text, "at most: what the caches hold"),) if chosen else ()
