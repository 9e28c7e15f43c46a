"""What the cost model must know of a plan's register tiles: what they read, and from where."""

from __future__ import annotations

from math import inf

from sympy import Expr

from tilewright.spec.schedule import LINES
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import value

from ..contraction import loads_as
from ..estimate.caches import WAYS, places
from ..formats.quantized_b import is_chosen
from ..operands import Operand
from ..plan import NOMINAL, Environment, Plan
from ..staging import takes_scalars
from .scaled import ADDING, CHOOSING, SCALING, UNPACKING, Scaled
from .tile_shape import STEPS, TileRequest

#: K groups in a register of which multiply-adds take one.
LANES = 4
#: Rows of an operand in blocks of K that lie in the first cache at once, where only the call knows
#: how far apart they are: those that are 10 KiB apart, as many multiples of a large power of two.
KEPT = 16
#: Rows that a core asks for ahead by itself, where a matrix unit reads them side by side: on
#: Emerald Rapids 2048x2048 by 8 columns in bf16 takes 0.59 ms in tiles of 32 rows, 1.1 of 79.
FOLLOWED = 32
#: Bytes of a line up to which the next one is near enough for a core to ask for both ahead.
SHORT_LINE = 2048


def tile_request(plan: Plan, steps: Expr, accumulate: bool) -> TileRequest:
    """Return what the cost model must know of a tile of ``plan`` outside of all blocks."""
    return request_at(plan.outside, steps, accumulate)


def request_at(here: Environment, steps: Expr, accumulate: bool) -> TileRequest:
    """Return what the cost model must know of a tile with ``steps`` K steps.

    A tile without K steps, for example one that finishes sums, reads neither A nor B: it converts
    nothing.
    """
    plan = here.plan
    count = (value(plan.batch.count) or 1) if plan.batch and "b" in plan.inner else 1
    schedule = plan.schedule
    known = value(steps)
    reads = known != 0
    return TileRequest(
        vectors=plan.vectors,
        steps=(known if known is not None else max(64, plan.blocks.get("k", 0) // 2)) * count,
        reads_c=accumulate or plan.spec.beta != 0,
        lane_forms=_lane_forms(here),
        splits=(schedule.k_split,) if schedule.k_split else _splits(plan, known, count),
        dot=plan.dot,
        transposed=plan.transposed,
        depth=known,
        overlaps=_overlaps(plan, known, accumulate),
        padded=plan.padded,
        product=plan.product,
        source=_source(here) if reads else "",
        converts=reads and _converts(here),
        stride=_stride(here),
        lines=(_line(here, plan.along), _line(here, plan.across)),
        spare=_spare(here, reads=reads),
        unit=plan.target.matrix if plan.product.op.form == "matrix" else None,
        sums=plan.target.matrix if plan.product.op.form == "block" else None,
        scalars_apart=plan.target.scalars_apart,
        scaled=_scaled(plan),
        several=_several(here),
        places=_places(here),
        far=_far(plan, known),
        kept=_kept(here),
        passing=_passing(plan),
        shifted=not plan.dot and _shifted(plan, here.across),
        streams=_streams(here, known),
        long=_long(here, known),
        beyond=_beyond(here),
        offsets=value(here.across.strides[plan.across]) is not None,
    )


def _beyond(here: Environment) -> bool:
    """Whether the operand along the vectors is read in place, and more than the first cache.

    Or it is packed, and a block of K of it passes for each row of tiles; one of a length that only
    the call knows is as much.
    """
    plan = here.plan
    operand, core = here.along, plan.target.core
    length, k = value(plan.sizes[plan.along]), value(plan.sizes["k"])
    if operand.name in plan.packs and "k" in plan.blocks and plan.in_rows:
        size = ITEMSIZE[plan.product.along] * plan.blocks["k"] * (length or NOMINAL)
        return length is None or size > core.caches[0].size
    if operand.packed or operand.name in plan.packs or length is None or k is None:
        return False
    return length * k * ITEMSIZE[operand.type] > core.caches[0].size


def _streams(here: Environment, steps: int | None) -> bool:
    """Whether the lines of a matrix are read once, by few rows or columns of the other one.

    Where vectors lie along K these are one, and lines long. Else few lines of K at a time say so.
    """
    plan = here.plan
    if not plan.dot:
        lines = dict(plan.schedule.block).get("k", LINES + 1)
        return lines <= LINES and not (plan.packs or plan.spec.quantized)
    return 1 in (plan.spec.m, plan.spec.n) and _long(here, steps)


def _long(here: Environment, steps: int | None) -> bool:
    """Whether vectors lie along lines of K so long that they do not follow each other.

    Short ones are one to a core that asks for them ahead.
    """
    plan = here.plan
    if not plan.dot:
        return False
    along = here.operands["b" if plan.spec.m == 1 else "a"]
    return steps is None or steps * ITEMSIZE[along.type] >= SHORT_LINE


def _kept(here: Environment) -> tuple[float, float]:
    """How many rows along the vectors, and across them, lie in the first cache at once.

    Of those that are read in place: where they lie a power of two apart they share few sets.
    """
    plan = here.plan
    if plan.product.unit is not None:
        return inf, FOLLOWED if _from_afar(here) else inf
    if plan.product.block or plan.dot:
        return inf, inf
    sides = (here.along, "k"), (here.across, plan.across)
    line, found = plan.target.core.line, list[float]()
    for operand, letter in sides:
        step = 0 if operand.packed else value(operand.strides[letter])
        size = ITEMSIZE[operand.type] if step is None else abs(step) * ITEMSIZE[operand.type]
        held = places(size, line) if size else inf
        unknown = step is None and bool({letter, "k"} & plan.blocks.keys())
        found.append(KEPT if unknown else held)
    return found[0], found[1]


def _from_afar(here: Environment) -> bool:
    """Whether the operand across is read in place and the second cache may not hold it."""
    plan = here.plan
    across = here.across
    if across.packed or across.name in plan.packs:
        return False
    rows, k = value(plan.sizes[plan.across]), value(plan.sizes["k"])
    if rows is None or k is None:
        return True
    return rows * k * ITEMSIZE[across.type] > plan.target.core.second.size


def _passing(plan: Plan) -> int:
    """The bytes of a line of C along the vectors, if no near cache holds all of C; else 0."""
    along, across = (value(plan.sizes[d]) for d in (plan.along, plan.across))
    inside = plan.along in plan.blocks or plan.transposed or plan.product.unit is not None
    if along is None or across is None or inside:
        return 0
    line = along * ITEMSIZE[plan.output.type]
    return line if line * across > plan.target.core.second.size else 0


def _far(plan: Plan, steps: int | None) -> bool:
    """Whether the first cache has no room for what a matrix unit reads of ``steps`` K steps.

    Of a K of the call nobody knows: it has none for blocks, nor for rows or columns of the call,
    which may be many. On Emerald Rapids 196x96x576 in bf16, with all sizes of the call, takes 62 us
    in tiles of 32x32, which read few matrices for each product, and 91 in those of 80x16.
    """
    if plan.product.op.form != "matrix" or plan.product.block:
        return False
    if steps is None:
        return bool(plan.blocks) or any(value(plan.sizes[d]) is None for d in "mn")
    near, size = plan.target.core.caches[0].size, ITEMSIZE[plan.product.across]
    extents = {d: NOMINAL if (n := value(plan.sizes[d])) is None else n for d in "mn"}
    lines = [min(extent, plan.blocks.get(d, extent)) for d, extent in extents.items()]
    return sum(lines) * plan.product.step * steps * size > near


def _places(here: Environment) -> int | None:
    """The rows that a block of K finds in the first cache at once; None where it matters not.

    Those that begin a power of two apart share few sets of it.
    """
    plan = here.plan
    across = here.across
    step = value(across.strides[plan.across])
    if not plan.dot and _streams(here, None):
        return WAYS
    if not plan.product.block or plan.product.unit is not None or step is None:
        return None
    return places(max(1, step * ITEMSIZE[across.type]), plan.target.core.line)


def _several(here: Environment) -> tuple[int, ...]:
    """How many factors of blocks one load reads, most first, where none is converted by it."""
    plan = here.plan
    if plan.product.op.form != "block":
        return ()
    sides = {"along": here.along, "across": here.across}
    counts: list[set[int]] = []
    for side, operand in sides.items():
        held = plan.product.held(plan.target, plan.vectors[0], side)
        as_it_is = operand.type == held.element
        counts.append({each.count for each in held.several} if as_it_is else set())
    return tuple(sorted(set.intersection(*counts), reverse=True))


def _scaled(plan: Plan) -> Scaled | None:
    """What a block of K is to a tile, where it has scales of its own."""
    if not plan.product.block:
        return None
    form = plan.read_format
    groups = plan.product.block // plan.product.group
    bits, planes = sum(plane.bits for plane in form.planes), len(form.planes)
    summed = bool(plan.product.partial)
    converts = not plan.spec.sums_blocks and form.stored != plan.product.along
    converting = UNPACKING if converts else 0
    chooses = is_chosen(form.type, plan.vectors[0])
    runs = -(-groups // plan.product.few) if plan.product.few else 0
    return Scaled(
        groups=groups,
        fields=form.fields,
        bits=bits,
        planes=planes,
        unpacking=CHOOSING if chooses else UNPACKING,
        zeros=bool(form.zeros),
        apart=summed,
        converting=converting,
        runs=runs,
        scaling=SCALING if plan.spec.sums_blocks else ADDING,
    )


def _splits(plan: Plan, steps: int | None, count: int) -> tuple[int, ...]:
    """Sets of accumulators worth trying: each gets two steps, of one matrix or of several."""
    if plan.product.block or plan.unpacks:
        return (1,)  # blocks are added in the order of K
    if steps is None:
        return 1, 2, 4
    return tuple(s for s in (1, 2, 4) if s == 1 or (s <= steps and 2 * s <= steps * count))


def _spare(here: Environment, *, reads: bool) -> int:
    """Return how many registers accumulators and operands must leave to the compiler, and to
    conversions where the tile ``reads`` A and B.
    """
    plan = here.plan
    if plan.product.unit is not None:
        return 0
    along, element = here.along.type, plan.product.along
    counted = plan.unpacks or plan.product.partial  # by the tile, as its blocks' bytes
    loaded = counted or not reads or loads_as(plan.target, along, element)
    converting = 0 if loaded else STEPS
    return converting if plan.schedule.tile else _spare_for_compilers(plan) + converting


def _spare_for_compilers(plan: Plan) -> int:
    """What they take themselves. Where no hints hold a step's loads behind the step before it,
    as on vectors that are groups of registers, some of the next step's are lifted.
    """
    if plan.target.hints is not None:
        return plan.target.hints.spare
    lifts = plan.target.scalars_apart and (plan.schedule.k_unroll or 1) > 1
    return max(vector.registers for vector in plan.target.vectors) if lifts else 0


def _overlaps(plan: Plan, steps: int | None, accumulate: bool) -> bool:
    """Whether a tile's last vector may overlap the one before.

    Two stores that overlap are not forwarded to a load that spans them: where C is read, K
    must be long enough to hide the wait of whoever reads it next.
    """
    tails = plan.schedule.tails
    if plan.dot or plan.transposed or plan.finishes or tails not in ("auto", "overlap"):
        return False
    if plan.product.unit is not None:
        return False
    reads = accumulate or plan.spec.beta != 0
    return not reads or steps is None or steps >= 4 * plan.target.core.fma_latency


def _converts(here: Environment) -> bool:
    """Whether one element alone takes steps to become what is multiplied."""
    plan = here.plan
    product = plan.product
    if product.unit is not None:
        return False
    ways = (
        (here.along, product.along),
        (here.across, product.across),
    )
    return any(
        operand.type not in (element, *plan.target.of(element)[-1].loads)
        for operand, element in ways
        if not (_shifted(plan, operand) or (plan.unpacks and operand.name == "b"))
    )


def _shifted(plan: Plan, operand: Operand) -> bool:
    """Whether tiles shift groups of an operand as they spread them."""
    return not operand.packed and plan.product.shifts.get(operand.name, 0) != 0


def _source(here: Environment) -> str:
    """What an element of the operand across is converted from as it is spread."""
    plan = here.plan
    across = here.across
    same = takes_scalars(plan.target, across.type, plan.product) or _shifted(plan, across)
    same = same or across.type == plan.product.across
    return "" if plan.dot or same else across.type


def _stride(here: Environment) -> int:
    """Bytes from the vectors of one step of K to those of the next, 0 if unknown."""
    plan = here.plan
    along = here.along
    if plan.product.block:
        return 0  # whole lines of bytes
    step = value(along.strides["k"]) if not plan.dot else None
    return (step or 0) * plan.product.depth * ITEMSIZE[along.type]


def _line(here: Environment, d: str) -> int:
    """Bytes from one line along K of an operand to the next, where they are read as they are.

    0 where vectors do not lie along K, there is one line, all begin in their place, or it is
    unknown.
    """
    plan = here.plan
    operand = here.input_of(d)
    packed = operand.packed or operand.name in plan.packs
    if not plan.dot or packed or value(plan.sizes[d]) == 1:
        return 0
    held = plan.product.along if d == plan.along else plan.product.across
    stride = value(operand.strides[d])
    return stride * ITEMSIZE[operand.type] if stride and operand.type == held else 0


def _lane_forms(here: Environment) -> tuple[str, ...]:
    plan = here.plan
    if plan.dot:
        return ()
    across, one = here.across, plan.product.depth == 1
    if (scaled := _scaled(plan)) and scaled.groups % LANES:
        return ()
    if value(across.strides["k"]) == 1:
        if across.type == plan.product.across:
            return ("lane_k",)
        return ("repeat",) if one else ()
    if not one or across.type != plan.product.across:
        return ()
    return ("lane_s",) if value(across.strides[plan.across]) == 1 else ()
