"""Why tiles, accumulator sets and unrolling are what they are: what the cost model compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sympy import Expr, Integer

from tilewright.ir.nest import Program
from tilewright.ir.nodes import walk
from tilewright.ir.ops import Loop, MultiplyAdd, MultiplyMatrices, TileProgram
from tilewright.isa.machine import Core
from tilewright.isa.target import Target
from tilewright.lower.tile.store import LONG
from tilewright.plan.cost_model import LOOP_OVERHEAD, SHORT, Choice, need, shape_of, tile_cycles
from tilewright.plan.partition import compared
from tilewright.plan.plan import Plan
from tilewright.plan.tile_facts import TileFacts
from tilewright.plan.tile_request import Work
from tilewright.plan.tile_shape import TileShape, bounds, chains_wanted, step_cycles
from tilewright.symbolic import c_text, simplify, value

#: Sizes of tiles named side by side; of more, how many there are.
NAMED = 4

Row = tuple[str, str, str]


def decisions(plan: Plan, program: Program) -> Iterator[Row]:
    """What, choice and reason of the register tile, the sets of accumulators and the unrolling."""
    tiles = [tile for tile in program.tiles if tile.facts and tile.facts.steps != 0]
    facts = [tile.facts for tile in tiles if tile.facts]
    if not facts:
        return
    yield "tile", tile_size(facts[0]), _why_tile(plan, facts[0])
    splits = [(each, str(each.shape.k_split)) for each in facts]
    yield "k_split", _numbers(splits), _told(splits, why_split(plan, facts[0]))
    unrolls = [
        (each, str(steps_per_trip(plan, tile, each) or "all"))
        for tile, each in zip(tiles, facts, strict=True)
    ]
    yield "k_unroll", _numbers(unrolls), _told(unrolls, why_unroll(plan, tiles[0], facts[0]))


def tile_size(facts: TileFacts) -> str:
    """Rows by columns of C."""
    return "x".join(
        text if text.isalnum() else f"({text})" for text in map(_text, (facts.rows, facts.cols))
    )


def _text(expr: Expr) -> str:
    return c_text(simplify(expr))


def _numbers(numbered: Sequence[tuple[TileFacts, str]]) -> str:
    """Every number once; that of the first tile first."""
    return ", ".join(dict.fromkeys(number for _, number in numbered))


def _told(numbered: Sequence[tuple[TileFacts, str]], first: str) -> str:
    """The first tile's reason, and the tiles that have other numbers."""
    groups: dict[str, dict[str, None]] = {}
    for facts, number in numbered:
        groups.setdefault(number, {})[tile_size(facts)] = None
    if len(groups) == 1:
        return first
    others = "; ".join(f"{number} for {_names([*sizes])}" for number, sizes in groups.items())
    return f"{others}. {tile_size(numbered[0][0])}: {first}"


def _names(sizes: Sequence[str]) -> str:
    more = len(sizes) - NAMED
    return ", ".join(sizes[:NAMED]) + (f" and {more} more" if more > 0 else "")


# --- the register tile ---------------------------------------------------------------------------


def _why_tile(plan: Plan, facts: TileFacts) -> str:
    bound = f"bound by {bound_text(plan, facts.shape)}"
    if plan.schedule.tile:
        return f"asked for; {bound}; what it leaves over has tiles of its own"
    extents = {d: _extent(plan, d) for d in (plan.across, plan.along)}
    ranked = compared(plan, extents[plan.across], extents[plan.along], facts.work)
    (own, best), *others = ((_cut(plan, choice, extents), choice) for choice in ranked)
    cut = f"{own}: " if " of " in own else ""
    reason = f"{cut}{_estimate(extents, best, facts.work)}, {bound}"
    other = next((pair for pair in others if pair[0] != own), None)
    return f"{reason}; {_next_best(plan.target, other, facts.work)}"


def _next_best(target: Target, other: tuple[str, Choice] | None, work: Work) -> str:
    if other is None:
        return "no other cut fits"
    named, choice = other
    found = _shape(target, choice, work)
    bound = f", bound by {_tightest(bounds(found, target.core))}" if found else ""
    return f"next best {named}: {_cycles(choice)}{bound}"


def _extent(plan: Plan, dimension: str) -> Expr:
    """The size of the block that tiles divide."""
    size, block = plan.sizes[dimension], plan.blocks.get(dimension)
    known = value(size)
    return size if block is None or (known is not None and known < block) else Integer(block)


def _cut(plan: Plan, choice: Choice, extents: dict[str, Expr]) -> str:
    """How a block is cut, C's rows first: ``m 32 of 3 and 2 of 2, n 3 of 24``."""
    lanes = 1 if plan.dot else choice.vector.lanes
    along = tuple((units * lanes, count) for units, count in choice.along)
    parts = {plan.across: choice.across, plan.along: along}
    if any(value(extent) is None for extent in extents.values()):
        return "x".join(str(parts[d][0][0]) for d in "mn")
    return ", ".join(f"{d} {_sum(parts[d], value(extents[d]) or 0)}" for d in "mn")


def _sum(parts: Sequence[tuple[int, int]], total: int) -> str:
    text = " and ".join(f"{count} of {size}" for size, count in parts)
    missing = total - sum(size * count for size, count in parts)
    if missing > 0:
        return f"{text} and {missing} left"
    return f"{text} less {-missing}" if missing else text


def _estimate(extents: dict[str, Expr], choice: Choice, work: Work) -> str:
    depth = "" if work.depth is not None else f", for K of {work.steps}"
    if any(value(extent) is None for extent in extents.values()):
        return f"estimated at {_cycles(choice)} cycles per element of a large C{depth}"
    return f"estimated at {_cycles(choice)} cycles{depth}"


def _cycles(choice: Choice) -> str:
    return f"{choice.cycles:.0f}" if choice.cycles >= 100 else f"{choice.cycles:.3g}"


def _shape(target: Target, choice: Choice, work: Work) -> TileShape | None:
    """The largest tile of a cut."""
    return shape_of(target, choice.vector, choice.across[0][0], choice.along[0][0], False, work)


def bound_text(plan: Plan, shape: TileShape) -> str:
    """What bounds the K loop, the share of the peak, and all that was compared."""
    each = bounds(shape, plan.target.core)
    share = each["multiply-add units"] / max(each.values())
    cycles = ", ".join(f"{name} {count:.3g}" for name, count in each.items())
    step = steps_text(plan, 1)
    return f"{_tightest(each)}: {share:.0%} of peak in the K loop (cycles per {step}: {cycles})"


def steps_text(plan: Plan, count: int) -> str:
    """What the K loop counts: steps, or groups of as many as the multiply-add sums."""
    if plan.product.unit is not None:
        return f"step{'s' if count > 1 else ''} of {plan.product.depth} K"
    what = f"group of {plan.product.depth} K" if plan.product.depth > 1 else "K step"
    return what if count == 1 else what.replace("group", "groups").replace("step", "steps")


def _tightest(each: dict[str, float]) -> str:
    return max(each, key=lambda name: each[name])


# --- accumulator sets ----------------------------------------------------------------------------


def why_split(plan: Plan, facts: TileFacts) -> str:
    """Chains of multiply-adds beside the latency, and what another number of sets would take."""
    shape = facts.shape
    chains, wanted = shape.multiply_adds, chains_wanted(shape, plan.target.core)
    if plan.schedule.k_split:
        return f"asked for: {chains * shape.k_split} chains; {wanted} hide the latency"
    why = f"{chains} chain{'s' if chains > 1 else ''} of multiply-adds, "
    if shape.k_split > 1:
        why += f"too few to hide the latency, which takes {wanted}"
    elif chains >= wanted:
        why += f"enough to hide the latency, which takes {wanted}"
    else:
        why += f"though {wanted} hide the latency: adding up more sets would cost more"
    return f"{why}; {_other_split(plan.target, facts)}"


def _other_split(target: Target, facts: TileFacts) -> str:
    """The tile's cycles, and those with the next best number of sets."""
    shape, work = facts.shape, facts.work
    size = shape.vector, shape.rows, shape.vectors, shape.masked
    others = [split for split in work.splits if split != shape.k_split]
    fitting = [
        other
        for split in others
        if (other := shape_of(target, *size, work.with_split(split))) is not None
    ]
    own = f"{tile_cycles(shape, target.core, work):.0f} cycles a tile"
    if fitting:
        best = min(fitting, key=lambda other: tile_cycles(other, target.core, work))
        return f"{own}, {tile_cycles(best, target.core, work):.0f} with {best.k_split}"
    if not others:
        return f"{own}; K is too short for more"
    needed = need(target, *size, work.with_split(others[0])).total
    return f"{own}; {others[0]} sets need {needed} of {work.room(target)} registers"


# --- unrolling -----------------------------------------------------------------------------------


def steps_per_trip(plan: Plan, tile: TileProgram, facts: TileFacts) -> int:
    """K steps in the first loop over K; 0 if there is none."""
    for op in walk(tile.body):
        if isinstance(op, Loop) and op.note != "batch":
            made = (MultiplyAdd, MultiplyMatrices)
            done = sum(isinstance(inner, made) for inner in walk(op.body))
            lanes = facts.shape.vector.lanes if plan.dot else 1
            return done // facts.shape.multiply_adds * lanes
    return 0


def why_unroll(plan: Plan, tile: TileProgram, facts: TileFacts) -> str:
    """What a trip must hide, or why there is no loop."""
    shape, core = facts.shape, plan.target.core
    steps = steps_per_trip(plan, tile, facts)
    if plan.schedule.k_unroll:
        return "asked for"
    if shape.unit is not None:
        return _why_steps(shape, steps)
    if not steps:
        return _short(plan, facts)
    if plan.dot:
        made = steps // shape.vector.lanes * shape.multiply_adds
        return f"{made} multiply-adds take at least twice the latency of {core.fma_latency}"
    group = max(shape.k_split, shape.group)
    taken, issue = _trip(shape, core, steps)
    loop = f"the loop's {LOOP_OVERHEAD}"
    why = f"a trip takes {taken} cycles, in which its operations and {loop} issue ({issue})"
    if steps == group:
        return f"{why}: more would hide nothing more"
    taken, issue = _trip(shape, core, steps - group)
    return f"{why}; {steps - group} take {taken}, and {issue} to issue"


def _why_steps(shape: TileShape, steps: int) -> str:
    """The steps of a matrix unit in a trip."""
    if shape.k_split == 1:
        return "a step keeps the matrix unit longer than the loop's own instructions take"
    trip = "a step for each set of accumulators"
    return f"a trip has {trip}" if steps else f"K is less than two trips, each of {trip}"


def why_lines(plan: Plan, tile: TileProgram) -> Iterator[str]:
    """Of an end that is a loop over lines of sums."""
    for loop in (op for op in tile.end if isinstance(op, Loop)):
        count, trips = len(loop.body), _text(loop.trips)
        begin = f"a loop over {trips} lines of sums, {count} operations each"
        if plan.product.unit is not None:
            yield f"{begin}: vectors take the sums of a matrix unit from memory"
        else:
            yield f"{begin}: straight code of more than {LONG} would crowd the instruction cache"


def _short(plan: Plan, facts: TileFacts) -> str:
    """Few operations in all, or fewer than two trips."""
    steps, lanes = value(facts.steps) or 1, facts.shape.vector.lanes if plan.dot else 1
    done = -(-steps // lanes) * (facts.shape.multiply_adds + facts.shape.loads)
    most = SHORT * plan.target.core.issue
    if plan.dot or done > most:
        return f"K is less than two trips of a loop, {done:.0f} operations"
    return f"K is short, {done:.0f} operations of at most {most}"


def _trip(shape: TileShape, core: Core, steps: int) -> tuple[str, str]:
    """The cycles of a trip, and those in which its operations and the loop's own are issued."""
    issued = steps * (shape.multiply_adds + shape.loads) + LOOP_OVERHEAD
    return f"{steps * step_cycles(shape, core):.3g}", f"{issued / core.issue:.3g}"
