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
from ..plan import Nest
from ..problem import NOMINAL, Staging
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


def request_at(here: Staging, nest: Nest, steps: Expr, accumulate: bool) -> TileRequest:
    """Return what the cost model must know of a tile with ``steps`` K steps.

    A tile without K steps, for example one that finishes sums, reads neither A nor B: it converts
    nothing.
    """
    count = (value(here.problem.matrices) or 1) if "b" in nest.inner else 1
    schedule = here.problem.schedule
    known = value(steps)
    reads = known != 0
    return TileRequest(
        vectors=here.vectors,
        steps=(known if known is not None else max(64, nest.blocks.get("k", 0) // 2)) * count,
        reads_c=accumulate or here.problem.spec.beta != 0,
        lane_forms=_lane_forms(here, nest),
        splits=(schedule.k_split,) if schedule.k_split else _splits(here, known, count),
        dot=here.problem.dot,
        transposed=here.transposed,
        depth=known,
        overlaps=_overlaps(here, known, accumulate),
        padded=here.padded,
        product=here.product,
        source=_source(here) if reads else "",
        converts=reads and _converts(here),
        stride=_stride(here),
        lines=(_line(here, here.problem.along), _line(here, here.problem.across)),
        spare=_spare(here, reads=reads),
        unit=here.problem.target.matrix if here.product.op.form == "matrix" else None,
        sums=here.problem.target.matrix if here.product.op.form == "block" else None,
        scalars_apart=here.problem.target.scalars_apart,
        scaled=_scaled(here, nest),
        several=_several(here),
        row_limit=_row_limit(here),
        from_l2=_from_l2(here, nest, known),
        l1_rows=_l1_rows(here, nest),
        c_row=_c_row(here, nest),
        shifted=not here.problem.dot and _shifted(here, here.across),
        read_once=_read_once(here, known),
        unprefetched=_unprefetched(here, known),
        exceeds_l1=_exceeds_l1(here, nest),
        fixed_offsets=value(here.across.strides[here.problem.across]) is not None,
    )


def _exceeds_l1(here: Staging, nest: Nest) -> bool:
    """True if tiles read more along the vectors than L1 holds.

    The operand is read in place, or it is packed and each row of tiles reads a block of K of it. A
    length that is known only at the call counts as more.
    """
    operand, core = here.along, here.problem.target.core
    length, k = value(here.problem.sizes[here.problem.along]), value(here.problem.sizes["k"])
    if operand.name in here.packs and "k" in nest.blocks and nest.in_rows(here.problem.across):
        size = ITEMSIZE[here.product.along] * nest.blocks["k"] * (length or NOMINAL)
        return length is None or size > core.caches[0].size
    if operand.packed or operand.name in here.packs or length is None or k is None:
        return False
    return length * k * ITEMSIZE[operand.type] > core.caches[0].size


def _read_once(here: Staging, steps: int | None) -> bool:
    """True if a matrix is read once, for few rows or columns of the other matrix.

    With vectors along K, there is one row or column and the rows along K are long. Otherwise the
    schedule has blocks of at most ``LINES`` of K.
    """
    if not here.problem.dot:
        lines = dict(here.problem.schedule.block).get("k", LINES + 1)
        return lines <= LINES and not (here.packs or here.problem.spec.quantized)
    return 1 in (here.problem.spec.m, here.problem.spec.n) and _unprefetched(here, steps)


def _unprefetched(here: Staging, steps: int | None) -> bool:
    """True if vectors run along K and rows are too long for a core to prefetch the next row.

    Short rows that follow each other count as one long row for a prefetcher.
    """
    if not here.problem.dot:
        return False
    along = here.operands["b" if here.problem.spec.m == 1 else "a"]
    return steps is None or steps * ITEMSIZE[along.type] >= SHORT_LINE


def _l1_rows(here: Staging, nest: Nest) -> tuple[float, float]:
    """Return the rows along and across the vectors that L1 holds at once, if they are read in
    place.

    Rows that are a power of two apart share few sets of L1.
    """
    if here.product.unit is not None:
        return inf, FOLLOWED if _from_afar(here) else inf
    if here.product.block or here.problem.dot:
        return inf, inf
    sides = (here.along, "k"), (here.across, here.problem.across)
    line, found = here.problem.target.core.line, list[float]()
    for operand, letter in sides:
        step = 0 if operand.packed else value(operand.strides[letter])
        size = ITEMSIZE[operand.type] if step is None else abs(step) * ITEMSIZE[operand.type]
        held = places(size, line) if size else inf
        unknown = step is None and bool({letter, "k"} & nest.blocks.keys())
        found.append(KEPT if unknown else held)
    return found[0], found[1]


def _from_afar(here: Staging) -> bool:
    """True if the operand across the vectors is read in place and may exceed L2."""
    across = here.across
    if across.packed or across.name in here.packs:
        return False
    rows, k = value(here.problem.sizes[here.problem.across]), value(here.problem.sizes["k"])
    if rows is None or k is None:
        return True
    return rows * k * ITEMSIZE[across.type] > here.problem.target.core.second.size


def _c_row(here: Staging, nest: Nest) -> int:
    """Return the bytes of a row of C along the vectors if L2 cannot hold C; else 0."""
    along, across = (
        value(here.problem.sizes[d]) for d in (here.problem.along, here.problem.across)
    )
    inside = here.problem.along in nest.blocks or here.transposed or here.product.unit is not None
    if along is None or across is None or inside:
        return 0
    line = along * ITEMSIZE[here.output.type]
    return line if line * across > here.problem.target.core.second.size else 0


def _from_l2(here: Staging, nest: Nest, steps: int | None) -> bool:
    """True if L1 cannot hold what a matrix unit reads in ``steps`` K steps.

    If K is known only at the call, this is assumed for blocks, and for rows or columns known only
    at the call, which may be many. On Emerald Rapids, 196x96x576 in bf16 with all sizes known only
    at the call takes 62 us in tiles of 32x32, which read few matrices for each product, and 91 us
    in tiles of 80x16.
    """
    if here.product.op.form != "matrix" or here.product.block:
        return False
    if steps is None:
        return bool(nest.blocks) or any(value(here.problem.sizes[d]) is None for d in "mn")
    near, size = here.problem.target.core.caches[0].size, ITEMSIZE[here.product.across]
    extents = {d: NOMINAL if (n := value(here.problem.sizes[d])) is None else n for d in "mn"}
    lines = [min(extent, nest.blocks.get(d, extent)) for d, extent in extents.items()]
    return sum(lines) * here.product.step * steps * size > near


def _row_limit(here: Staging) -> int | None:
    """Return the number of rows that L1 holds at once in a block of K; None if there is no limit.

    Rows that are a power of two apart share few sets of L1.
    """
    across = here.across
    step = value(across.strides[here.problem.across])
    if not here.problem.dot and _read_once(here, None):
        return WAYS
    if not here.product.block or here.product.unit is not None or step is None:
        return None
    return places(max(1, step * ITEMSIZE[across.type]), here.problem.target.core.line)


def _several(here: Staging) -> tuple[int, ...]:
    """Return the numbers of factors that one load can read, largest first; none with
    conversions.
    """
    if here.product.op.form != "block":
        return ()
    sides = {"along": here.along, "across": here.across}
    counts: list[set[int]] = []
    for side, operand in sides.items():
        held = here.product.held(here.problem.target, here.vectors[0], side)
        as_it_is = operand.type == held.element
        counts.append({each.count for each in held.several} if as_it_is else set())
    return tuple(sorted(set.intersection(*counts), reverse=True))


def _scaled(here: Staging, nest: Nest) -> Scaled | None:
    """Return the description of a block of K with its own scales, or None."""
    if not here.product.block:
        return None
    form = here.read_format(nest.panel_tile)
    groups = here.product.block // here.product.group
    bits, planes = sum(plane.bits for plane in form.planes), len(form.planes)
    summed = bool(here.product.partial)
    converts = not here.problem.spec.sums_blocks and form.stored != here.product.along
    converting = UNPACKING if converts else 0
    chooses = is_chosen(form, here.vectors[0])
    runs = -(-groups // here.product.few) if here.product.few else 0
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
        scaling=SCALING if here.problem.spec.sums_blocks else ADDING,
    )


def _splits(here: Staging, steps: int | None, count: int) -> tuple[int, ...]:
    """Return the numbers of accumulator sets to compare; each set needs at least two steps."""
    if here.product.block or here.unpacks:
        # Blocks must be added in the order of K, so there is a single set.
        return (1,)
    if steps is None:
        return 1, 2, 4
    return tuple(s for s in (1, 2, 4) if s == 1 or (s <= steps and 2 * s <= steps * count))


def _spare(here: Staging, *, reads: bool) -> int:
    """Return the number of registers that tiles leave to the compiler.

    It includes registers for conversions if the tile reads A and B (``reads``).
    """
    if here.product.unit is not None:
        return 0
    along, element = here.along.type, here.product.along
    # Tiles of blocks count the registers for their bytes themselves, so none are added here.
    counted = here.unpacks or here.product.partial
    loaded = counted or not reads or loads_as(here.problem.target, along, element)
    converting = 0 if loaded else STEPS
    return converting if here.problem.schedule.tile else _spare_for_compilers(here) + converting


def _spare_for_compilers(here: Staging) -> int:
    """Return the registers that compilers need themselves.

    Without hints, a compiler moves some loads of the next step before the current step. This
    happens on vector types that are groups of registers.
    """
    if here.problem.target.hints is not None:
        return here.problem.target.hints.spare
    lifts = here.problem.target.scalars_apart and (here.problem.schedule.k_unroll or 1) > 1
    return max(vector.registers for vector in here.problem.target.vectors) if lifts else 0


def _overlaps(here: Staging, steps: int | None, accumulate: bool) -> bool:
    """True if a tile's last vector may overlap the previous one.

    A load that spans two overlapping stores must wait for both. If C is read, K must therefore be
    long enough to hide the wait of the next reader.
    """
    tails = here.problem.schedule.tails
    if here.problem.dot or here.transposed or here.finishes or tails not in ("auto", "overlap"):
        return False
    if here.product.unit is not None:
        return False
    reads = accumulate or here.problem.spec.beta != 0
    return not reads or steps is None or steps >= 4 * here.problem.target.core.fma_latency


def _converts(here: Staging) -> bool:
    """True if several operations convert a single element of A or B for a multiply-add."""
    product = here.product
    if product.unit is not None:
        return False
    ways = (
        (here.along, product.along),
        (here.across, product.across),
    )
    return any(
        operand.type not in (element, *here.problem.target.of(element)[-1].loads)
        for operand, element in ways
        if not (_shifted(here, operand) or (here.unpacks and operand.name == "b"))
    )


def _shifted(here: Staging, operand: Operand) -> bool:
    """True if tiles shift an operand's K groups when they broadcast them."""
    return not operand.packed and here.product.shifts.get(operand.name, 0) != 0


def _source(here: Staging) -> str:
    """Return the type of elements of the operand across that a broadcast must convert.

    The result is "" if no conversion is needed.
    """
    across = here.across
    same = takes_scalars(here.problem.target, across.type, here.product) or _shifted(here, across)
    same = same or across.type == here.product.across
    return "" if here.problem.dot or same else across.type


def _stride(here: Staging) -> int:
    """Return the bytes from the vectors of one K step to those of the next; 0 if unknown."""
    along = here.along
    if here.product.block:
        # The rows of a quantized B in a K step have whole bytes. They count as aligned.
        return 0
    step = value(along.strides["k"]) if not here.problem.dot else None
    return (step or 0) * here.product.depth * ITEMSIZE[along.type]


def _line(here: Staging, d: str) -> int:
    """Return the bytes between rows of an operand along K that are read in place and unconverted.

    The result is 0 if vectors do not run along K, there is one row, all rows are aligned, or the
    stride is unknown.
    """
    operand = here.input_of(d)
    packed = operand.packed or operand.name in here.packs
    if not here.problem.dot or packed or value(here.problem.sizes[d]) == 1:
        return 0
    held = here.product.along if d == here.problem.along else here.product.across
    stride = value(operand.strides[d])
    return stride * ITEMSIZE[operand.type] if stride and operand.type == held else 0


def _lane_forms(here: Staging, nest: Nest) -> tuple[str, ...]:
    if here.problem.dot:
        return ()
    across, one = here.across, here.product.depth == 1
    if (scaled := _scaled(here, nest)) and scaled.groups % LANES:
        return ()
    if value(across.strides["k"]) == 1:
        if across.type == here.product.across:
            return ("lane_k",)
        return ("repeat",) if one else ()
    if not one or across.type != here.product.across:
        return ()
    return ("lane_s",) if value(across.strides[here.problem.across]) == 1 else ()
