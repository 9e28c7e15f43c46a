"""Turn spec, schedule and target into a plan: compare the possible layouts and take the
cheapest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf, lcm

from tilewright.errors import ScheduleError
from tilewright.ir.stages import STACK_BYTES
from tilewright.isa.target import Target, uncut, without_blocks
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Packed
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import most_of
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import size_expr, value

from .contraction import Product, check_math
from .defaults import asking_ahead, default_schedule
from .estimate.work import convert_cycles, move_cycles
from .formats.lookup import format_of_a, height_of_d
from .loops import Decision, read_loops, threads_decision
from .operands import batch_of
from .panels import in_panels, unpacked_block, why_blocks
from .plan import Nest, Plan
from .problem import NOMINAL, Problem, Staging, same_types
from .staging import by_panels, is_plain, product_of, stage_operands
from .streaming import with_streams
from .tiling.blocking import with_tiles
from .tiling.cost_model import choose
from .tiling.requests import request_at
from .tiling.tile_costs import tile_table
from .vector_axis import (
    Layout,
    asks_for_panels,
    converts_in_blocks,
    layouts,
    packs_in_panels,
    unpacks_in_panels,
)

#: If the schedule does not ask for packing, an operand or a block of it is packed only if it has at
#: most this number of bytes. L2 then also has space for the other operand.
PACKED_BYTES = 256 * 1024
#: A panel has at most this number of rows, so that L1 also holds cache lines of the other operand
#: and of C.
PANEL_ROWS = 16
#: ``SPARE`` is the number of registers that a tile of two vectors needs besides its sums. ``MORE``:
#: blocks stay in the last cache only if it is this many times as fast as tiles need, because other
#: cores use it too. For example, on Emerald Rapids 2048x2048x2048 in f32 reaches 135 GFLOPS with
#: blocks in L2, and 110 GFLOPS with blocks in the last cache, which a factor of 1.3 would choose.
SPARE, MORE = 4, 2
#: If half of L2 has at least this number of bytes, blocks stay in L2. A block then has this size,
#: or a quarter of L2 if that is larger. For example, Zen 5 has 1 MiB of L2. There 256x2048x2048 in
#: f32 reaches 218 GFLOPS with blocks of 512 KiB, 205 with 256 KiB, and 179 with blocks in the last
#: cache. If C has many rows, blocks in the last cache are as fast.
LEAST_NEAR = 512 * 1024
#: Rows of a packed D are computed in blocks that take the share ``ROWS_OF_D`` of L2, but have at
#: least and at most ``ROWS_IN_BLOCK`` rows, because each block reads all of B. If the call alone
#: knows the number of columns, it counts as ``UNKNOWN_COLUMNS``.
ROWS_OF_D, ROWS_IN_BLOCK, UNKNOWN_COLUMNS = 1 / 4, (128, 256), 1024
#: A row of a block has a multiple of this number of vectors. Tiles of 1, 2, 3 and 4 vectors divide
#: it without a tail. Shorter rows would read the other operand too often.
LINE_VECTORS = 12


def make_plan(spec: Gemm, schedule: Schedule, target: Target) -> Plan:
    """Return the plan of a product whose B is not quantized in blocks.

    ``plan_product`` (by_rows.py) plans any product. Raises ScheduleError or SpecError if schedule
    and spec contradict each other.
    """
    assert spec.quantized is None, "plan_product plans a quantized B"
    check_math(spec, target)
    target = _able(spec, schedule, target)
    given, why = default_schedule(spec, schedule, target)
    return cheapest(spec, given, target, why)


def cheapest(spec: Gemm, schedule: Schedule, target: Target, why: Mapping[str, str]) -> Plan:
    """Return the plan of the layout with the fewest cycles; ``why`` has reasons for the
    schedule.
    """
    ways = layouts(spec, schedule, target)
    plans = [_plan_along(layout, spec, schedule, target) for layout in ways]
    # If one of the plans transposes an operand for vectors along K, unknown sizes count as
    # ``NOMINAL`` in all plans, because such plans exist only for rows that are known to be short.
    turns = any(plan.problem.dot and plan.staging.packs for plan in plans)
    unknown = NOMINAL if turns or len({plan.problem.vectorize for plan in plans}) == 1 else 0
    unpacked = {plan.problem.vectorize for plan in plans if not plan.staging.packs}
    most = PACKED_BYTES if unpacked <= {"k"} else STACK_BYTES // 2
    costs = [layout_cycles(plan, unknown, most) if len(plans) > 1 else 0.0 for plan in plans]
    best = min(zip(costs, range(len(plans)), strict=True))[1]
    decisions = (*_why(plans, costs, best), *plans[best].decisions)
    decisions = tuple(replace(d, reason=why.get(d.what, d.reason)) for d in decisions)
    return with_tiles(with_streams(in_panels(replace(plans[best], decisions=decisions))))


def _able(spec: Gemm, schedule: Schedule, target: Target) -> Target:
    """Return ``target``, without instructions for blocks of C if vectors serve better.

    Blocks need both operands in K groups, so they are excluded if the schedule packs one operand or
    has vectors along K. They are also excluded if C has so few rows or columns that a vector
    multiply-add for each of them takes no longer.
    """
    product = product_of(spec, target, "b")
    if not (same_types(spec) and product.blocks):
        return target
    few = min((size for size in (spec.m, spec.n) if isinstance(size, int)), default=product.rows)
    panels = asks_for_panels(spec, schedule, target)
    asks = schedule.vectorize == "k" or schedule.tails == "bounce" or (schedule.pack and not panels)
    return without_blocks(target) if asks or few <= _few(target, product) else target


def _few(target: Target, product: Product) -> float:
    """Return how many vector multiply-adds take as long as one block multiply-add.

    Each of them computes one row of C. The result is at least 1.
    """
    vector = target.of(product.accumulator)[0]
    core = target.core.at(vector.nbytes)
    line = core.between(vector.fma.mnemonic, vector.fma.instructions)
    return max(1, core.between(product.op.mnemonic, product.op.instructions) / line)


def _why(plans: list[Plan], costs: list[float], best: int) -> tuple[Decision, ...]:
    plan = plans[best]
    if len(plans) == 1:
        reason = (
            "asked for" if plan.problem.schedule.vectorize else "the only way the operands allow"
        )
    else:
        others = ", ".join(
            f"{p.problem.vectorize}{_ahead(p.staging)} {cost:.0f}"
            if cost
            else f"{p.problem.vectorize}{_ahead(p.staging)}"
            for p, cost in zip(plans, costs, strict=True)
            if p is not plan
        )
        reason = f"estimated at {costs[best]:.0f} cycles; {others}"
        if not costs[best]:
            reason = f"estimated as fast as {others}: a size is 0, or known only at the call"
    along = Decision("vectorize", plan.problem.vectorize, reason)
    if not plan.staging.packs:
        return (along,)
    how = "padded to whole vectors, for tails='bounce'" if plan.problem.bounces else "contiguous"
    why = (
        "asked for"
        if plan.problem.schedule.pack == plan.staging.packs
        else f"so that the vectors are {how}"
    )
    return (along, Decision("pack", plan.staging.packs, why))


def _ahead(staging: Staging) -> str:
    """Return a text that says which operands a plan packs or converts before its tiles."""
    packed = f" with {' and '.join(staging.packs.upper())} packed" if staging.packs else ""
    converted = " and ".join(name.upper() for name in sorted(staging.sources))
    return f"{packed} with {converted} converted first" if converted else packed


def _in_blocks(layout: Layout, spec: Gemm, schedule: Schedule, target: Target) -> Schedule:
    """Return ``schedule`` with blocks for an operand that is too large to be packed as a whole.

    This is done only for an operand whose packing the schedule does not ask for.
    """
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


def _in_rows_of_d(spec: Gemm, schedule: Schedule, target: Target, along: str) -> Schedule:
    """Return ``schedule`` with a loop over blocks of rows, after each of which D's rows are packed.

    A block has whole panels of D and of a packed A. The schedule stays as it is if it has loops, or
    if C has no more rows.
    """
    if schedule.loops is not None or schedule.block or spec.batch is not None:
        return schedule
    ahead = format_of_a(spec, target).nb if isinstance(spec.a, Packed) and not spec.quantize else 1
    height = lcm(height_of_d(spec, target) or 1, ahead)
    n = spec.n if isinstance(spec.n, int) else UNKNOWN_COLUMNS
    assert spec.d is not None
    held = int(ROWS_OF_D * target.core.second.size) // (max(n, 1) * ITEMSIZE[spec.d.type])
    least, most = ROWS_IN_BLOCK
    rows = max(1, max(least, min(held, most)) // height) * height
    if most_of(spec.m) <= rows:
        return schedule
    first = "M" if (schedule.threads or 1) > 1 else "m"
    return replace(
        schedule, loops=f"{first}{'nm' if along == 'n' else 'mn'}k", block=(("m", rows),)
    )


def _blocks(problem: Problem, loops: str, element: str) -> dict[str, int]:
    """Return the block sizes: those of the schedule, and for the others what the caches hold.

    The panel across the vectors stays in L1 while a block along the vectors is read. That block is
    in the farthest cache that is fast enough for the tiles. The size across the vectors is limited
    by the stack.
    """
    schedule, caches = problem.schedule, problem.target.core.caches
    item, passing = ITEMSIZE[element], _passing(problem.target)
    # A block that stays in L2 has half the K of one that stays in the last cache, and twice as many
    # rows.
    rows = PANEL_ROWS if passing == caches[-1].size else 2 * PANEL_ROWS
    k = dict(schedule.block).get("k", min(caches[0].size, STACK_BYTES) // (rows * item))
    across, along = STACK_BYTES // (k * item), passing // (k * item)
    sizes = {"k": k, problem.across: across, problem.along: along}
    twice = {d: max(1, size) for d, size in sizes.items() if loops.lower().count(d) == 2}
    return twice | dict(schedule.block)


def _passing(target: Target) -> int:
    """Return the size in bytes of a block of the operand along the vectors.

    The block fills the last cache if this delivers vectors ``MORE`` times as fast as the tallest
    tiles of two vectors multiply them, and L2 is small. Otherwise the block takes a quarter to half
    of L2: A's panels and C need the rest, and the sets of L2 are not used evenly.
    """
    core, vector = target.core, target.of("f32")[0]
    rows = (target.registers - SPARE) // 2
    needed = vector.nbytes * core.at(vector.nbytes).fma_units / rows
    last, near = core.caches[-1], core.second.size
    if near // 2 < LEAST_NEAR and last.rate >= needed * MORE:
        return last.size
    return max(near // 4, min(near // 2, LEAST_NEAR))


def _prefetch_decision(spec: Gemm, schedule: Schedule, why: str) -> tuple[Decision, ...]:
    """Return the decision on the prefetch distance, if there is one."""
    if schedule.prefetch is None:
        return ()
    steps = "blocks of K" if spec.quantized is not None else "K steps"
    return (Decision("prefetch", f"{schedule.prefetch} {steps} ahead", why),)


def _check_product(schedule: Schedule, product: Product, target: Target) -> None:
    """Raise ScheduleError if the schedule asks for what this kind of product does not support."""
    if schedule.prefetch is not None and product.unit is not None and not product.block:
        raise ScheduleError(
            "prefetch counts steps of a K loop over vectors; this product is a matrix unit's, "
            "which reads whole matrices",
            got=f"prefetch={schedule.prefetch}, and {product.mnemonic} on {target.name}",
            hint="leave prefetch out, or choose a target without the matrix unit",
        )
    if product.block and schedule.k_split not in (None, 1):
        raise ScheduleError(
            "blocks of K with scales of their own are added in order",
            got=f"k_split={schedule.k_split}",
            expected="one set of accumulators",
            hint="leave k_split out",
        )


def _in_whole_steps(
    blocks: dict[str, int], product: Product
) -> tuple[dict[str, int], tuple[Decision, ...]]:
    """Return ``blocks`` with K rounded up to whole steps, and a decision if that changes it."""
    tail = blocks.get("k", 0) % product.step
    if not tail:
        return blocks, ()
    longer = blocks["k"] + product.step - tail
    one = "scale serves" if product.block else "multiply-add sums"
    why = f"whole groups of {product.step}, which one {one}"
    return {**blocks, "k": longer}, (Decision("block k", str(longer), why),)


def _plan_along(layout: Layout, spec: Gemm, given: Schedule, target: Target) -> Plan:
    vectorize, packs = layout
    schedule = _in_blocks(layout, spec, given, target)
    target = uncut(target) if schedule.tails == "bounce" else target
    sizes = {slot: size_expr(slot, getattr(spec, slot)) for slot in "mnk"}
    panels = packs_in_panels(spec, schedule, target)
    unpacks = unpacks_in_panels(spec, schedule, target)
    blocks = packs if converts_in_blocks(spec, schedule, target) else ""
    problem = Problem(spec, schedule, target, vectorize, sizes, batch_of(spec))
    staging = stage_operands(problem, packs, panels=panels, unpacks=unpacks, blocks=blocks)
    product, packs = staging.product, staging.packs
    _check_product(schedule, product, target)
    in_rows = vectorize == "n" and by_panels(staging)
    rows_of_d = isinstance(spec.d, Packed) and not packs
    if rows_of_d and not in_rows:
        schedule = _in_rows_of_d(spec, schedule, target, problem.along)
    outer, inner, loop_reason = read_loops(spec, schedule, problem.along, packs, in_rows)
    if schedule is not given and rows_of_d:
        loop_reason = "rows of D stay in a cache until they are packed"
    elif schedule is not given:
        loop_reason = f"{packs.upper()} is packed in blocks that stay in the cache"
    schedule, why_ahead = asking_ahead(spec, schedule, target, vectorize, packs)
    problem = replace(problem, schedule=schedule)
    steps = _blocks(problem, outer + inner, product.across)
    if unpacks:
        rows, columns = unpacked_block(product)
        steps |= {"m": rows, "n": min(columns, value(sizes["n"]) or NOMINAL)}
    chosen, (steps, more) = steps, _in_whole_steps(steps, product)
    return Plan(
        staging=replace(staging, problem=problem),
        nest=Nest(outer.lower() if schedule.threads == 1 else outer, inner, steps),
        decisions=(
            Decision("product", product.mnemonic or "multiply, add", staging.reason),
            Decision("loops", outer + inner, loop_reason),
            *threads_decision(schedule, outer),
            *_prefetch_decision(spec, schedule, why_ahead),
            *(() if unpacks else why_blocks(schedule, chosen)),
            *more,
        ),
    )


def layout_cycles(plan: Plan, unknown: int, most: int) -> float:
    """Return the cycles of a layout by the cost model; 0 if a size is 0 or unknown.

    ``unknown`` is assumed for sizes known only at the call. The result is infinite if an operand
    that nobody asked to pack, or its block, has more than ``most`` bytes, or an unknown number of
    rows or columns. ``most`` is large if vectors would otherwise run along K, and small if another
    layout needs no packing.
    """
    known = {d: value(plan.problem.sizes[d]) for d in "mnk"}
    extents = {d: unknown if size is None else size for d, size in known.items()}
    across, along, depth = extents[plan.problem.across], extents[plan.problem.along], extents["k"]
    if not across or not along or not depth:
        return 0.0
    product = product_cycles(plan, across, along)
    lines = {"a": extents["m"], "b": extents["n"]}
    unasked = (
        plan.staging.packs
        if not (plan.problem.schedule.pack or plan.problem.schedule.vectorize)
        else ""
    )
    held = {"a": plan.nest.blocks.get("m", known["m"]), "b": plan.nest.blocks.get("n", known["n"])}
    if any(depth * (held[x] or inf) * ITEMSIZE[plan.staging.element] > most for x in unasked):
        return inf
    packing = sum(
        depth * lines[name] * move_cycles(plan.staging, name) for name in plan.staging.packs
    )
    converting = sum(depth * lines[name] * convert_cycles(plan) for name in plan.staging.sources)
    count = value(plan.problem.matrices) or 1
    return (count if "b" in plan.nest.outer else 1) * (product + packing) + count * converting


def product_cycles(plan: Plan, across: int, along: int) -> float:
    """Return the cycles of the product, with the schedule's tile or the cheapest tiles."""
    steps = plan.staging.counted(*plan.staging.steps(plan.problem.sizes["k"]))
    request, tile = request_at(plan.staging, plan.nest, steps, False), plan.asked_tile
    if tile is None:
        return choose(plan.target, across, along, True, request).cycles
    rows, columns = tile
    vector = next((v for v in request.vectors if v.lanes <= columns), request.vectors[-1])
    width = -(-columns // vector.lanes)
    found = tile_table(plan.target, request).best(vector, rows, width, False)
    if found is None:
        return inf
    return -(-across // rows) * -(-along // columns) * found.cycles
