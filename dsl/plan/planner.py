"""Resolve spec, schedule and target into a plan: of the ways to lay it out, the cheapest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from operator import lt
from typing import Literal

from sympy import Integer

from tilewright.errors import ScheduleError
from tilewright.isa.target import Target, uncut, vectors_alone, without_blocks
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Packed
from tilewright.spec.schedule import LARGE, LARGE_CONVERTED, MANY_ROWS, Schedule, large_work
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ONE, size_expr, symbol, value

from .blocking import with_tiles
from .contraction import Product
from .cost_model import Choice, choose, shape_of, steady, tile_cycles
from .estimate.caches import WAYS
from .estimate.work import convert_cycles, move_cycles
from .formats.lookup import format_of
from .formats.packed_b import MATRIX_COLUMNS, packed_product
from .formats.quantized_b import COLUMNS, quantized_format, quantized_product
from .loops import Decision, outer_length, read_loops, threads_decision
from .operands import LINE, batch_of
from .plan import STACK_BYTES, ManyRows, Plan
from .staging import is_plain, product_of, same_types, stage_operands
from .streaming import with_streams
from .vector_axis import Layout, asks_for_panels, layouts, packs_in_panels, unpacks_in_panels

#: What sizes of the call count as, where plans differ in nothing but conversions.
NOMINAL = 64
#: Bytes to which an operand, or a block of it, is packed though nobody asked for it: what a second
#: cache holds beside the other operand.
PACKED_BYTES = 256 * 1024
#: Rows of a panel that the first cache holds, beside lines of the other operand and of C.
PANEL_ROWS = 16
#: Bytes of A's and B's rows that a tile of a matrix unit reads: the first cache holds them beside
#: what passes by. On a core with the caches of Sapphire Rapids bf16 64x64x512 reaches 82 % of peak
#: so, and 71 % without.
UNIT_PANELS = 32 * 1024
#: Bytes of a quantized B that are asked for before they are read: more than a page. On Zen 4 one
#: row of four bits is 1.15 times as fast so where B comes from the second cache, as from memory.
AHEAD_BYTES = 6144
#: Columns of a panel that is unpacked at most: with so many rows their sums fit on the stack.
UNPACKED_COLUMNS = 64
#: A block has a multiple of these vectors in a line: tiles of 1, 2, 3 and 4 of them fill it. With
#: fewer, the other operand is read too often.
LINE_VECTORS = 12


def make_plan(spec: Gemm, schedule: Schedule, target: Target) -> Plan:
    """The plan; ScheduleError or SpecError if schedule and spec contradict each other."""
    target = _able(spec, schedule, target)
    few = target if spec.quantized is None else vectors_alone(target)
    given, why = _default(spec, schedule, few)
    plan = replace(_cheapest(spec, given, few, why), target=target)
    return plan if spec.quantized is None else _with_many_rows(plan, schedule)


def _cheapest(spec: Gemm, schedule: Schedule, target: Target, why: Mapping[str, str]) -> Plan:
    """The plan of the layout that takes the fewest cycles; ``why`` has reasons of the schedule."""
    ways = layouts(spec, schedule, target)
    plans = [_plan_along(layout, spec, schedule, target) for layout in ways]
    unknown = NOMINAL if len({plan.vectorize for plan in plans}) == 1 else 0
    unpacked = {plan.vectorize for plan in plans if not plan.packs}
    most = PACKED_BYTES if unpacked <= {"k"} else STACK_BYTES // 2
    costs = [layout_cycles(plan, unknown, most) if len(plans) > 1 else 0.0 for plan in plans]
    best = min(zip(costs, range(len(plans)), strict=True))[1]
    decisions = (*_why(plans, costs, best), *plans[best].decisions)
    decisions = tuple(replace(d, reason=why.get(d.what, d.reason)) for d in decisions)
    return with_tiles(with_streams(_in_panels(replace(plans[best], decisions=decisions))))


def _able(spec: Gemm, schedule: Schedule, target: Target) -> Target:
    """``target``, or it without blocks of C where single elements serve better.

    Blocks need both operands in groups: a schedule that packs one, or has vectors along K, asks for
    something else. Nor are they worth that where the lines of C that there are take no longer on
    vectors, one multiply-add for each, or where there is one line, for which nothing is turned.
    """
    product = product_of(spec, target, "b")
    if not (same_types(spec) and product.blocks):
        return target
    few = min((size for size in (spec.m, spec.n) if isinstance(size, int)), default=product.rows)
    panels = asks_for_panels(spec, schedule, target)
    asks = schedule.vectorize == "k" or schedule.tails == "bounce" or (schedule.pack and not panels)
    return without_blocks(target) if asks or few <= _few(target, product) else target


def _few(target: Target, product: Product) -> float:
    """How many lines of C vectors sum in the time in which a block is multiplied; one at least."""
    vector = target.of(product.accumulator)[0]
    core = target.core.at(vector.nbytes)
    line = core.between(vector.fma.mnemonic, vector.fma.instructions)
    return max(1, core.between(product.op.mnemonic, product.op.instructions) / line)


_WHOLE = "a matrix unit reads rows along K: A and B are converted whole, and not in blocks"
_LARGE = "operands are large: blocks that the caches hold are packed"
_PARTS = "so much of K is summed in f16, and added in f32"
_SHORT = "what a tile reads of K stays in the first cache"


def _default(spec: Gemm, schedule: Schedule, target: Target) -> tuple[Schedule, dict[str, str]]:
    """``schedule``, or one in blocks where it leaves that open; the reasons of what was chosen."""
    if spec.quantized is not None and schedule.prefetch is None:
        return _asking_ahead(spec, schedule, target)
    parts = _in_parts(spec, schedule, target)
    if parts is not schedule:
        return parts, {"loops": _PARTS}
    large = _for_size(spec, schedule, target)
    if large is not schedule:
        why = {"loops": _LARGE, "pack": _LARGE, "vectorize": "C is contiguous along it"}
        return large, why
    whole = _of_whole(spec, schedule, target)
    if whole is not schedule:
        return whole, {"loops": _WHOLE}
    short = _with_short_panels(spec, schedule, target)
    return short, {} if short is schedule else {"loops": _SHORT}


def _asking_ahead(
    spec: Gemm, schedule: Schedule, target: Target
) -> tuple[Schedule, dict[str, str]]:
    """``schedule`` with lines of a quantized B asked for ahead, where the nearest cache lacks room.

    Of one row the loads are what a core waits for, and streams end with pages.
    """
    form, nearest = quantized_format(spec, target), target.core.caches[0].size
    if schedule.pack is not None or form.nbytes <= nearest:
        return schedule, {}
    block = form.lines(form.block // form.group) * min(form.nb, COLUMNS) * form.group
    distance = max(1, round(AHEAD_BYTES / block))
    why = f"B has {form.nbytes >> 10} KiB, the nearest cache {nearest >> 10}"
    return replace(schedule, prefetch=distance), {"prefetch": why}


def _with_many_rows(plan: Plan, given: Schedule) -> Plan:
    """``plan`` with another one for many rows, of which B is unpacked first, or that in its place.

    A panel of it for an A of floating point: that costs as much as one row of tiles costs this
    plan, so from the third on it pays. Where blocks are integers, what matrices hold of it.
    """
    spec, asked = plan.spec, given.unpack_rows
    able, open_ = _unpacking(plan, given), replace(given, tile=None, k_unroll=None)
    open_ = replace(open_, k_split=None, stores=None, threads=None)
    if asked is not None and able is None:
        raise ScheduleError(
            "there is no quantized B that is unpacked beforehand",
            got=f"unpack_rows={asked} for {spec!r} on {plan.target.name}",
            expected="b=tw.Packed(tw.Quantized(...)), and an A of floating point, no batch, no b2, "
            "or a matrix unit that takes the integers of both",
            hint="leave unpack_rows out",
        )
    if able is None or (asked is None and open_ != Schedule()) or not plan.tiles:
        return plan
    most = spec.m if isinstance(spec.m, int) else spec.m.max
    rows = asked or 2 * max(tile.shape.rows for tile in plan.tiles) + 1
    if most is not None and most < rows and (asked or not spec.sums_blocks):
        return plan
    found = _cheapest(spec, able, plan.target, _why_unpacked(able))
    if spec.sums_blocks and asked is None:
        rows = _rows_for_matrices(plan, found)
        if most is not None and most < rows:
            return plan
    return found if isinstance(spec.m, int) else _from(plan, rows, found)


def _unpacking(plan: Plan, given: Schedule) -> Schedule | None:
    """The schedule of a plan in which B is unpacked first; None if there is none."""
    spec = plan.spec
    if spec.sums_blocks:
        return _for_matrices(plan, given)
    loops = "Mnkmnk" if spec.outputs else "mNkmnk"
    loops = loops if (given.threads or 1) > 1 else loops.lower()
    many = Schedule(loops=loops, pack="b", threads=given.threads, stores=given.stores)
    return many if unpacks_in_panels(spec, many) else None


def _for_matrices(plan: Plan, given: Schedule) -> Schedule | None:
    """The schedule by which a matrix unit multiplies blocks of integers, if there is such a unit.

    Rows of A that the second cache holds stay there while all of B passes by.
    """
    spec = plan.spec
    if quantized_product(spec, plan.target).unit is None:
        return None
    asked = isinstance(spec.m, int) and given.unpack_rows is not None
    tile = given.tile if asked else None
    kept = replace(given, tile=tile, k_unroll=None, prefetch=None, unpack_rows=None)
    alone = spec.batch is None and spec.b2 is None and not spec.outputs
    most = spec.m if isinstance(spec.m, int) else spec.m.max
    few = most is not None and most <= MANY_ROWS
    if given.loops is not None or given.threads is not None or few or not alone:
        return kept
    return replace(kept, loops="mnmk", block=(("m", MANY_ROWS),))


def _why_unpacked(schedule: Schedule) -> dict[str, str]:
    """What is said of the loops of such a schedule."""
    if schedule.pack is None:
        return {"loops": "B passes by so many rows of A, which stay in a cache"} if schedule.block else {}
    return dict.fromkeys(("loops", "pack"), f"B is unpacked once for up to {MANY_ROWS} rows")


def _rows_for_matrices(plan: Plan, other: Plan) -> int:
    """The rows of C from which on ``other``, on a matrix unit, takes fewer cycles than ``plan``."""
    assert other.product.unit is not None
    most, columns = 2 * other.product.unit.rows, value(plan.sizes["n"]) or NOMINAL
    faster = (
        rows
        for rows in range(1, most)
        if _product_cycles(other, rows, columns) < _product_cycles(plan, rows, columns)
    )
    return next(faster, most)


def _from(plan: Plan, rows: int, found: Plan) -> Plan:
    """``plan``, and from so many ``rows`` of a call on ``found``."""
    found = with_tiles(found, len(plan.tiles))
    loops = next(d for d in found.decisions if d.what == "loops")
    how = f"{loops.reason}, in panels as wide as the tile" if found.packs else found.product.mnemonic
    said = Decision(
        "many rows", f"from {rows} on {loops.choice}", f"{how}, and not by each tile that loads it"
    )
    return replace(
        plan,
        tiles=plan.tiles + found.tiles,
        decisions=(*plan.decisions, said),
        many=ManyRows(rows, found),
    )


def _in_parts(spec: Gemm, schedule: Schedule, target: Target) -> Schedule:
    """``schedule``, or with blocks of K where the spec wants sums of so many elements added in f32.

    A schedule that asks for longer ones is refused; one that adds all in f32 is left as it is.
    """
    most, k = spec.sum_steps, spec.k
    if most is None or product_of(spec, target, "b").accumulator == spec.type:
        return schedule
    longest = k if isinstance(k, int) else k.max
    if longest is not None and longest <= most and spec.batch is None:
        return schedule
    batch, loops = "b" if spec.batch else "", schedule.loops
    if loops is None:
        grid = "NM" if (schedule.threads or 1) > 1 else "nm"
        grid = "Mn" if spec.outputs and grid == "NM" else grid
        given = dict(schedule.block)
        return replace(
            schedule,
            loops=f"{batch}k{grid}k",
            block=tuple({**given, "k": min(most, given.get("k", most))}.items()),
        )
    outer = loops.lower()[: outer_length(loops)]
    block = dict(schedule.block)
    short = longest is not None and longest <= most
    if batch in outer and (short or ("k" in outer and block.get("k", most + 1) <= most)):
        return schedule
    raise ScheduleError(
        f"sums of more than {most} elements of K would be held in {spec.sum_type}",
        got=f"loops={loops!r}, block={block}, with sums={spec.sums!r}",
        expected=f"blocks of at most {most} of K outside, and the batch too",
        hint=f"loops='{batch}knmk', block={{'k': {most}}}, or leave loops out",
    )


def _of_whole(spec: Gemm, schedule: Schedule, target: Target) -> Schedule:
    """``schedule``, or where a matrix unit multiplies one whose panels are not asked for.

    That is with one loop, in place of two, along each dimension.
    """
    if not asks_for_panels(spec, schedule, target) or product_of(spec, target, "b").unit is None:
        return schedule
    loops = schedule.loops or ""
    last = sorted("mnk", key=loops.lower().rfind)
    kept = "".join(d.upper() if d.upper() in loops else d for d in last)
    return replace(schedule, loops=kept, block=(), pack=None)


def _for_size(spec: Gemm, schedule: Schedule, target: Target) -> Schedule:
    """``schedule``, or where it leaves the nest open and C is large, one of blocks in the caches.

    What C cannot hold sums of a part of K for, as it is not of their type, has them in a buffer.
    """
    nest = (schedule.loops, schedule.pack, schedule.vectorize, schedule.prefetch)
    sizes = [size for size in (spec.m, spec.n, spec.k) if isinstance(size, int)]
    alone = spec.batch is None and spec.b2 is None and not spec.outputs
    if any(nest) or schedule.block or schedule.tails != "auto" or len(sizes) < 3:
        return schedule
    converted = not is_plain(spec, target)
    least, work = LARGE_CONVERTED if converted else LARGE, large_work(sizes[0], converted=converted)
    if not alone or isinstance(spec.b, Packed) or any(map(lt, sizes, least)) or prod(sizes) < work:
        return schedule
    if converted and product_of(spec, target, "b").unit is not None:
        return schedule
    by_rows = getattr(spec, spec.output).order == "C"
    loops = "nkMmnk" if by_rows else "mkNnmk"
    along: Literal["m", "n"] = "n" if by_rows else "m"
    parallel = (schedule.threads or 1) > 1
    loops = loops if parallel else loops.lower()
    return replace(schedule, loops=loops, pack="ab", vectorize=along)


def _with_short_panels(spec: Gemm, schedule: Schedule, target: Target) -> Schedule:
    """``schedule``, or K in blocks where the first cache would not hold what a unit's tile reads.

    B has to be packed ahead, and C able to hold sums of a part of K.
    """
    open_ = schedule == Schedule() and spec.batch is None and spec.b2 is None and not spec.outputs
    fixed = isinstance(spec.b, Packed) and isinstance(spec.k, int) and target.matrix is not None
    fixed = fixed and spec.quantized is None
    if not (open_ and fixed and spec.output == "c" and spec.c.type == spec.type):
        return schedule
    assert isinstance(spec.b, Packed) and isinstance(spec.k, int) and isinstance(spec.n, int)
    product = packed_product(target, spec.a.type, spec.b, spec.n)
    most = UNIT_PANELS // (2 * MATRIX_COLUMNS * ITEMSIZE[product.across])
    if product.unit is None or spec.k < 2 * most:
        return schedule
    return replace(schedule, loops="knmk", block=(("k", most),))


def _in_panels(plan: Plan) -> Plan:
    """``plan`` with blocks packed in panels as wide as its tile, where the call computes sizes.

    It does where sizes are of the call, or the schedule leaves it to the caches how large blocks
    are. Blocks of m and n have whole panels then, at most as many elements as were asked for.
    """
    lines = [LINE[name] for name in plan.packs]
    unknown = all(value(plan.sizes[d]) is None for d in plan.blocks) or not plan.schedule.block
    if not lines or not unknown or not plan.blocks.keys() >= {"k", *lines}:
        return plan
    if plan.bounces or plan.dot:
        return plan
    tile = plan.schedule.tile or _panel_tile(plan)
    widths = dict(zip("mn", tile, strict=True))
    blocks = dict(plan.blocks)
    for d in widths.keys() & blocks.keys():
        width = widths[d]
        spilled = not plan.plain and width < plan.lanes  # room behind the last panel
        blocks[d] = max(1, (blocks[d] - spilled) // width) * width
    text = " and ".join(
        f"{name.upper()} of {widths[d]}" for name, d in zip(plan.packs, lines, strict=True)
    )
    panels = Decision("panels", text, f"as wide as the tile, {tile[0]}x{tile[1]}")
    decisions = *plan.decisions, panels
    if plan.unpacks:
        blocks["k"] = _unpacked_depth(plan, blocks["n"])
        decisions = *decisions, *_why_blocks(plan.schedule, blocks)
    found = replace(plan, panel_tile=tile, blocks=blocks, decisions=decisions)
    return _with_sums(found) if found.partial else found


def _unpacked_depth(plan: Plan, columns: int) -> int:
    """How much of K of a panel is unpacked at once: what the first cache holds, in equal blocks."""
    room, unit = plan.target.core.caches[0].size * 3 // 4, plan.k_unit
    k, most = value(plan.sizes["k"]) or 1, min(room, STACK_BYTES * 3 // 4) // columns
    blocks = -(-k // max(unit, most // ITEMSIZE["f32"]))
    return -(-k // (blocks * unit)) * unit


def _with_sums(plan: Plan) -> Plan:
    """``plan`` with parts of C whose sums lie in a buffer until all of K is there.

    They fill half of the last cache: the more rows, the less often columns are packed anew.
    """
    assert plan.panel_tile is not None
    behind = plan.outer.lower().split("k", 1)[1]
    open_, tile = [d for d in "mn" if behind.count(d) == 2], plan.panel_tile
    room = plan.target.core.caches[-1].size // (2 * ITEMSIZE[plan.element])
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
    """
    operands = dict(plan.operands)
    for name in plan.packs:
        strides = {LINE[name]: plan.product.group * ONE, "k": symbol("width")}
        operands[name] = replace(operands[name], type=plan.factor(name), strides=strides)
    steps = Integer(plan.blocks["k"] // plan.product.step)
    request = replace(plan, operands=operands).tile_request(steps, accumulate=True)
    most = STACK_BYTES // (plan.blocks["k"] * ITEMSIZE[plan.product.across])
    ranked = sorted(steady(plan.target, request, (1, 1)), key=lambda each: _streamed(plan, each))
    sizes = [(each.across[0][0], each.along[0][0] * each.vector.lanes) for each in ranked]
    if plan.unpacks:
        sizes = [size for size in sizes if size[1] <= plan.blocks[plan.along]] or sizes
        most = min(most, WAYS)
    fits = (size for size in sizes if size[0] <= most)
    across, along = next(fits, sizes[0])
    return (across, along) if plan.across == "m" else (along, across)


def _streamed(plan: Plan, choice: Choice) -> float:
    """The cycles per element of C of a tile whose panel along the vectors comes from a far cache.

    Those of its K steps, or those in which the vectors arrive, whichever are more; the others
    count as what is not the bound does in a step.
    """
    core, item = plan.target.core, ITEMSIZE[plan.product.along]
    name, d = ("b", "n") if plan.along == "n" else ("a", "m")
    block = plan.blocks.get(d, NOMINAL) * plan.blocks["k"] * item if name in plan.packs else 0
    rate = next((c.rate for c in core.caches if c.size >= block), core.memory)
    arriving = plan.blocks["k"] * item / rate / choice.across[0][0]
    less, more = sorted((choice.cycles, arriving))
    return (more + core.overlap * less) * _filled_up(plan, choice)


def _filled_up(plan: Plan, choice: Choice) -> float:
    """How many times as many columns as there are whole tiles have, where a block is one wide."""
    columns, width = value(plan.sizes[plan.along]), choice.along[0][0] * choice.vector.lanes
    return -(-columns // width) * width / columns if plan.unpacks and columns else 1.0


def _why(plans: list[Plan], costs: list[float], best: int) -> tuple[Decision, ...]:
    plan = plans[best]
    if len(plans) == 1:
        reason = "asked for" if plan.schedule.vectorize else "the only way the operands allow"
    else:
        others = ", ".join(
            f"{p.vectorize}{_ahead(p)} {cost:.0f}"
            for p, cost in zip(plans, costs, strict=True)
            if p is not plan
        )
        reason = f"estimated at {costs[best]:.0f} cycles; {others}"
    along = Decision("vectorize", plan.vectorize, reason)
    if not plan.packs:
        return (along,)
    how = "padded to whole vectors, for tails='bounce'" if plan.bounces else "contiguous"
    why = "asked for" if plan.schedule.pack == plan.packs else f"so that the vectors are {how}"
    return (along, Decision("pack", plan.packs, why))


def _ahead(plan: Plan) -> str:
    """What is done before the tiles, for people."""
    packed = f" with packing {plan.packs}" if plan.packs else ""
    converted = " and ".join(name.upper() for name in sorted(plan.sources))
    return f"{packed} with {converted} converted first" if converted else packed


def _in_blocks(layout: Layout, spec: Gemm, schedule: Schedule, target: Target) -> Schedule:
    """``schedule`` with blocks of what is packed unasked, where all of it is too large to pack."""
    packs = layout[1]
    asked = schedule.pack or schedule.vectorize or schedule.loops or schedule.threads
    line = "n" if packs == "b" else "m"
    k, length = spec.k, getattr(spec, line)
    plain = is_plain(spec, target) and spec.batch is None and len(packs) == 1 and not asked
    if not plain or not isinstance(k, int) or not isinstance(length, int) or not k:
        return schedule
    lanes, most = target.of(spec.type)[0].lanes, PACKED_BYTES // (k * ITEMSIZE[spec.type])
    block = most // (LINE_VECTORS * lanes) * LINE_VECTORS * lanes
    if not 0 < block < length:
        return schedule
    return replace(schedule, loops="nmnk" if line == "n" else "mnmk", block=((line, block),))


def _blocks(
    schedule: Schedule, loops: str, element: str, target: Target, along: str
) -> dict[str, int]:
    """The steps of loops over blocks: those asked for, and what the caches hold for the others.

    A panel across the vectors stays in the first cache while a block along them, which the last one
    holds, passes by; a block across them is as large as the stack may hold.
    """
    caches, item = target.core.caches, ITEMSIZE[element]
    k = dict(schedule.block).get("k", min(caches[0].size, STACK_BYTES) // (PANEL_ROWS * item))
    across = "m" if along == "n" else "n"
    sizes = {"k": k, across: STACK_BYTES // (k * item), along: caches[-1].size // (k * item)}
    twice = {d: max(1, size) for d, size in sizes.items() if loops.lower().count(d) == 2}
    return twice | dict(schedule.block)


def _prefetch_decision(spec: Gemm, schedule: Schedule) -> tuple[Decision, ...]:
    """How far ahead lines are asked for, if they are."""
    if schedule.prefetch is None:
        return ()
    steps = "blocks of K" if spec.quantized is not None else "K steps"
    return (Decision("prefetch", f"{schedule.prefetch} {steps} ahead", "asked for"),)


def _why_blocks(schedule: Schedule, blocks: dict[str, int]) -> tuple[Decision, ...]:
    chosen = {d: size for d, size in blocks.items() if d not in dict(schedule.block)}
    text = ", ".join(f"{d}={size}" for d, size in sorted(chosen.items()))
    return (Decision("block", text, "at most: what the caches hold"),) if chosen else ()


def _plan_along(layout: Layout, spec: Gemm, given: Schedule, target: Target) -> Plan:
    vectorize, packs = layout
    schedule = _in_blocks(layout, spec, given, target)
    bounces = schedule.tails == "bounce"
    target = uncut(target) if bounces else target
    sizes = {slot: size_expr(slot, getattr(spec, slot)) for slot in "mnk"}
    panels = packs_in_panels(spec, schedule, target)
    unpacks = unpacks_in_panels(spec, schedule)
    staging = stage_operands(spec, target, vectorize, sizes, packs, panels=panels, unpacks=unpacks)
    if schedule.prefetch is not None and staging.product.unit is not None:
        raise ScheduleError(
            "prefetch counts steps of a K loop over vectors; this product is a matrix unit's, "
            "which reads whole matrices",
            got=f"prefetch={schedule.prefetch}, and {staging.product.mnemonic} on {target.name}",
            hint="leave prefetch out, or choose a target without the matrix unit",
        )
    if staging.product.block and schedule.k_split not in (None, 1):
        raise ScheduleError(
            "blocks of K with scales of their own are added in order",
            got=f"k_split={schedule.k_split}",
            expected="one set of accumulators",
            hint="leave k_split out",
        )
    if not (is_plain(spec, target) or panels):
        packs = "b" if unpacks else ""  # what is converted is packed on the way
    along = "m" if vectorize == "k" else vectorize
    by_rows = vectorize == "n" and staging.by_panels(sizes)
    outer, inner, loop_reason = read_loops(spec, schedule, along, packs, by_rows)
    if schedule is not given:
        loop_reason = f"{packs.upper()} is packed in blocks that stay in the cache"
    blocks = _blocks(schedule, outer + inner, staging.product.across, target, along)
    if unpacks:
        blocks |= {"m": MANY_ROWS, "n": min(UNPACKED_COLUMNS, value(sizes["n"]) or NOMINAL)}
    decisions = [
        Decision("product", staging.product.mnemonic or "multiply, add", staging.reason),
        Decision("loops", outer + inner, loop_reason),
        *threads_decision(schedule, outer),
        *_prefetch_decision(spec, schedule),
        *(() if unpacks else _why_blocks(schedule, blocks)),
    ]
    step = staging.product.step
    if tail := blocks.get("k", 0) % step:
        blocks["k"] += step - tail
        one = "scale serves" if staging.product.block else "multiply-add sums"
        why = f"whole groups of {step}, which one {one}"
        decisions.append(Decision("block k", str(blocks["k"]), why))
    return Plan(
        spec=spec,
        schedule=schedule,
        target=target,
        product=staging.product,
        vectorize=vectorize,
        across="n" if along == "m" else "m",
        transposed=vectorize != "k"
        and value(staging.operands[spec.output].strides[vectorize]) != 1,
        outer=outer.lower() if schedule.threads == 1 else outer,
        inner=inner,
        blocks=blocks,
        sizes=sizes,
        operands=staging.operands,
        sources=staging.sources,
        batch=batch_of(spec),
        packs=packs,
        padded=staging.padded or bounces,
        packed_format=format_of(spec, target) if isinstance(spec.b, Packed) else None,
        decisions=tuple(decisions),
    )


def layout_cycles(plan: Plan, unknown: int, most: int) -> float:
    """The cost model's cycles; equal for all when a size is 0, as one of the call may count.

    What nobody asked to pack has ``most`` bytes, as a whole or in blocks: as much as a cache holds
    where else vectors would lie along K, but what the stack holds well where they need no packing.
    """
    known = {d: value(plan.sizes[d]) for d in "mnk"}
    extents = {d: unknown if size is None else size for d, size in known.items()}
    across, along, depth = extents[plan.across], extents[plan.along], extents["k"]
    if not across or not along or not depth:
        return 0.0
    product = _product_cycles(plan, across, along)
    lines = {"a": extents["m"], "b": extents["n"]}
    unasked = plan.packs if not (plan.schedule.pack or plan.schedule.vectorize) else ""
    held = {"a": plan.blocks.get("m", lines["a"]), "b": plan.blocks.get("n", lines["b"])}
    if any(depth * held[x] * ITEMSIZE[plan.element] > most for x in unasked):
        return float("inf")
    packing = sum(depth * lines[name] * move_cycles(plan, name) for name in plan.packs)
    converting = sum(depth * lines[name] * convert_cycles(plan) for name in plan.sources)
    count = (value(plan.batch.count) or 1) if plan.batch else 1
    return (count if "b" in plan.outer else 1) * (product + packing) + count * converting


def _product_cycles(plan: Plan, across: int, along: int) -> float:
    """Of the tiles that the model would choose, or of those asked for."""
    request, tile = plan.tile_request(plan.sizes["k"], False), plan.asked_tile
    if tile is None:
        return choose(plan.target, across, along, True, request).cycles
    rows, columns = tile
    vector = next((v for v in request.vectors if v.lanes <= columns), request.vectors[-1])
    shape = shape_of(plan.target, vector, rows, -(-columns // vector.lanes), False, request)
    if shape is None:
        return float("inf")
    tiles = -(-across // rows) * -(-along // columns)
    return tiles * tile_cycles(shape, plan.target.core, request)
