"""Collect the facts about a plan on which the cost of its register tiles depends."""

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

#: If multiply-adds use single lanes of a register, it holds this number of K groups, one per lane.
LANES = 4
#: If operands are read in blocks of K and the row stride is known only at the call, L1 is assumed
#: to hold this number of rows at once. It can do so even if the stride is, for example, 10 KiB,
#: which contains a large power of two.
KEPT = 16
#: If a matrix unit reads several rows in parallel, a hardware prefetcher follows this number of
#: them. On Emerald Rapids, 2048x2048 times 8 columns in bf16 takes 0.59 ms in tiles of 32 rows, and
#: 1.1 ms in tiles of 79 rows.
FOLLOWED = 32
#: If a row has fewer bytes than this, a core also prefetches the row after it.
SHORT_LINE = 2048


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
    """True if tiles read more along the vectors than L1 holds.

    The operand is read in place, or it is packed and each row of tiles reads a block of K of it. A
    length that is known only at the call counts as more.
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
    """True if a matrix is read once, for few rows or columns of the other matrix.

    With vectors along K, there is one row or column and the rows along K are long. Otherwise the
    schedule has blocks of at most ``LINES`` of K.
    """
    plan = here.plan
    if not plan.dot:
        lines = dict(plan.schedule.block).get("k", LINES + 1)
        return lines <= LINES and not (plan.packs or plan.spec.quantized)
    return 1 in (plan.spec.m, plan.spec.n) and _long(here, steps)


def _long(here: Environment, steps: int | None) -> bool:
    """True if vectors run along K and rows are too long for a core to prefetch the next row.

    Short rows that follow each other count as one long row for a prefetcher.
    """
    plan = here.plan
    if not plan.dot:
        return False
    along = here.operands["b" if plan.spec.m == 1 else "a"]
    return steps is None or steps * ITEMSIZE[along.type] >= SHORT_LINE


def _kept(here: Environment) -> tuple[float, float]:
    """Return the rows along and across the vectors that L1 holds at once, if they are read in
    place.

    Rows that are a power of two apart share few sets of L1.
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
    """True if the operand across the vectors is read in place and may exceed L2."""
    plan = here.plan
    across = here.across
    if across.packed or across.name in plan.packs:
        return False
    rows, k = value(plan.sizes[plan.across]), value(plan.sizes["k"])
    if rows is None or k is None:
        return True
    return rows * k * ITEMSIZE[across.type] > plan.target.core.second.size


def _passing(plan: Plan) -> int:
    """Return the bytes of a row of C along the vectors if L2 cannot hold C; else 0."""
    along, across = (value(plan.sizes[d]) for d in (plan.along, plan.across))
    inside = plan.along in plan.blocks or plan.transposed or plan.product.unit is not None
    if along is None or across is None or inside:
        return 0
    line = along * ITEMSIZE[plan.output.type]
    return line if line * across > plan.target.core.second.size else 0


def _far(plan: Plan, steps: int | None) -> bool:
    """True if L1 cannot hold what a matrix unit reads in ``steps`` K steps.

    If K is known only at the call, this is assumed for blocks, and for rows or columns known only
    at the call, which may be many. On Emerald Rapids, 196x96x576 in bf16 with all sizes known only
    at the call takes 62 us in tiles of 32x32, which read few matrices for each product, and 91 us
    in tiles of 80x16.
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
    """Return the number of rows that L1 holds at once in a block of K; None if there is no limit.

    Rows that are a power of two apart share few sets of L1.
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
    """Return the numbers of factors that one load can read, largest first; none with
    conversions.
    """
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
    """Return the description of a block of K with its own scales, or None."""
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
    """Return the numbers of accumulator sets to compare; each set needs at least two steps."""
    if plan.product.block or plan.unpacks:
        # Blocks must be added in the order of K, so there is a single set.
        return (1,)
    if steps is None:
        return 1, 2, 4
    return tuple(s for s in (1, 2, 4) if s == 1 or (s <= steps and 2 * s <= steps * count))


def _spare(here: Environment, *, reads: bool) -> int:
    """Return the number of registers that tiles leave to the compiler.

    It includes registers for conversions if the tile reads A and B (``reads``).
    """
    plan = here.plan
    if plan.product.unit is not None:
        return 0
    along, element = here.along.type, plan.product.along
    # Tiles of blocks count the registers for their bytes themselves, so none are added here.
    counted = plan.unpacks or plan.product.partial
    loaded = counted or not reads or loads_as(plan.target, along, element)
    converting = 0 if loaded else STEPS
    return converting if plan.schedule.tile else _spare_for_compilers(plan) + converting


def _spare_for_compilers(plan: Plan) -> int:
    """Return the registers that compilers need themselves.

    Without hints, a compiler moves some loads of the next step before the current step. This
    happens on vector types that are groups of registers.
    """
    if plan.target.hints is not None:
        return plan.target.hints.spare
    lifts = plan.target.scalars_apart and (plan.schedule.k_unroll or 1) > 1
    return max(vector.registers for vector in plan.target.vectors) if lifts else 0


def _overlaps(plan: Plan, steps: int | None, accumulate: bool) -> bool:
    """True if a tile's last vector may overlap the previous one.

    A load that spans two overlapping stores must wait for both. If C is read, K must therefore be
    long enough to hide the wait of the next reader.
    """
    tails = plan.schedule.tails
    if plan.dot or plan.transposed or plan.finishes or tails not in ("auto", "overlap"):
        return False
    if plan.product.unit is not None:
        return False
    reads = accumulate or plan.spec.beta != 0
    return not reads or steps is None or steps >= 4 * plan.target.core.fma_latency


def _converts(here: Environment) -> bool:
    """True if several operations convert a single element of A or B for a multiply-add."""
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
    """True if tiles shift an operand's K groups when they broadcast them."""
    return not operand.packed and plan.product.shifts.get(operand.name, 0) != 0


def _source(here: Environment) -> str:
    """Return the type of elements of the operand across that a broadcast must convert.

    The result is "" if no conversion is needed.
    """
    plan = here.plan
    across = here.across
    same = takes_scalars(plan.target, across.type, plan.product) or _shifted(plan, across)
    same = same or across.type == plan.product.across
    return "" if plan.dot or same else across.type


def _stride(here: Environment) -> int:
    """Return the bytes from the vectors of one K step to those of the next; 0 if unknown."""
    plan = here.plan
    along = here.along
    if plan.product.block:
        # A K step of a quantized B has whole rows of bytes, which count as aligned.
        return 0
    step = value(along.strides["k"]) if not plan.dot else None
    return (step or 0) * plan.product.depth * ITEMSIZE[along.type]


def _line(here: Environment, d: str) -> int:
    """Return the bytes between rows of an operand along K that are read in place and unconverted.

    The result is 0 if vectors do not run along K, there is one row, all rows are aligned, or the
    stride is unknown.
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
