"""Along which dimension vectors may lie, and which operands must be packed for it."""

from __future__ import annotations

from typing import Literal

from tilewright.errors import ScheduleError
from tilewright.isa.target import Target
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Addresses, Packed
from tilewright.spec.schedule import FEW_ALONG_K, FEW_IN_MATRICES, LARGE, Schedule
from tilewright.spec.sizes import most_of
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import value

from .estimate.caches import places
from .formats.lookup import format_of
from .formats.quantized_b import sums_numbers, unpacks_numbers
from .loops import outer_length
from .operands import Operand, operand_of
from .staging import (
    fits_across,
    has_few_along_k,
    is_plain,
    packs_beside_a,
    product_of,
    reads_along_k,
)

Dimension = Literal["m", "n", "k"]
#: The dimension the vectors lie along, and the operands to pack, or to convert before all else
#: though the tiles could convert them, of "ab".
Layout = tuple[Dimension, str]
#: Which operands must be contiguous along a dimension for vectors to lie along it.
_NEEDS: tuple[tuple[Dimension, str], ...] = (("n", "b"), ("m", "a"), ("k", "ab"))


def legal_dimensions(spec: Gemm, target: Target) -> tuple[Dimension, ...]:
    """The dimensions along which vectors may lie without packing, C's contiguous one first."""
    return tuple(dimension for dimension, packs in layouts(spec, Schedule(), target) if not packs)


def layouts(spec: Gemm, schedule: Schedule, target: Target) -> tuple[Layout, ...]:
    """(dimension of the vectors, operands to pack) to choose from: unpacked ones first."""
    strides = {name: operand_of(spec, name).strides for name in "ab"}
    written = operand_of(spec, spec.output).strides
    may_pack = schedule.pack is None and schedule.tile is None and _packable(spec, schedule)
    found: list[Layout] = []
    if not is_plain(spec, target):
        return _converted_layouts(spec, schedule, target)
    for dimension, needs in _NEEDS:
        if schedule.vectorize not in (None, dimension):
            continue
        packs: str = schedule.pack or ""
        if schedule.tails == "bounce":
            if dimension == "k" or not isinstance(getattr(spec, dimension), int):
                continue
            packs = "".join(sorted({*packs, *needs}))
        missing = [x for x in needs if value(strides[x][dimension]) != 1 and x not in packs]
        if dimension == "k" and not _turns(spec, schedule, target, missing, packs):
            continue
        if not missing:
            found.append((dimension, packs))
        elif may_pack or (schedule.vectorize and _packable(spec, schedule)):
            found.append((dimension, "".join(sorted({*packs, *missing}))))
    if not found:
        raise _no_layout(spec, schedule)

    def last(layout: Layout) -> tuple[bool, bool, bool]:
        """What needs packing, and is not contiguous in the output; a line alone fills no vector."""
        along, packs = layout
        alone = along != "k" and getattr(spec, along) == 1
        return alone, packs != "", along == "k" or value(written[along]) != 1

    found.sort(key=last)
    return tuple(found[:1] if schedule.tile is not None else found)


def _turns(spec: Gemm, schedule: Schedule, target: Target, missing: list[str], packs: str) -> bool:
    """Whether vectors may lie along K: both operands do, or one that lies across is turned first.

    Unasked that is looked at where lines of C are so short that no vector along them is filled, and
    those along K are so long that turning them is little beside the product.
    """
    turned = packs + "".join(missing)
    if len(turned) != 1:
        return not turned
    if value(operand_of(spec, turned).strides["k"]) == 1:
        return False
    length = spec.n if turned == "b" else spec.m
    short = isinstance(length, int) and length < target.of(spec.type)[0].lanes
    deep = not isinstance(spec.k, int) or spec.k >= LARGE[2]
    return (short and deep) or schedule.vectorize == "k"


def _converted_layouts(spec: Gemm, schedule: Schedule, target: Target) -> tuple[Layout, ...]:
    """Where operands may be converted first they are packed on the way: along m or n, any."""
    strides = operand_of(spec, spec.output).strides
    packed = isinstance(spec.b, Packed)
    along = _legal_converted(spec, target)
    asked, panels = schedule.vectorize, packs_in_panels(spec, schedule, target)
    legal = [d for d in along if asked == d or (asked is None and (d != "k" or packed))]
    blocks = converts_in_blocks(spec, schedule, target)
    if blocks:  # what meets one line alone is summed by vectors
        products = ((d, product_of(spec, target, "a" if d == "m" else "b")) for d in legal)
        legal = [d for d, product in products if product.unit is not None]
    packs = panels or blocks or unpacks_in_panels(spec, schedule, target)
    packs = packs or (packs_beside_a(spec) and schedule.pack == "b")
    reads = asked is None and not (packed or packs) and "k" in along
    if not legal or (schedule.pack and not packs) or schedule.tails == "bounce":
        raise ScheduleError(
            "these operands are converted, and packed, before anything else",
            got=f"vectorize={asked!r}, pack={schedule.pack!r}, tails={schedule.tails!r}",
            expected=f"vectorize one of {', '.join(along)}, no pack, no bounce",
            hint="leave them out, or pack='ab' with loops='nkmmnk' and no sizes of blocks",
        )
    turned = {"n": operand_of(spec, "a"), "m": None if packed else operand_of(spec, "b")}
    matrices = product_of(spec, target, "b").unit is not None

    def last(dimension: str) -> tuple[bool, bool, bool]:
        """Matrices are read in rows along K: those that must be turned come last.

        Of two that are not the one of few lines is converted, and the other one read where it lies.
        """
        if dimension == "k":
            return False, False, False
        rows = turned[dimension]
        turns = matrices and rows is not None and value(rows.strides["k"]) != 1
        many = matrices and most_of(getattr(spec, dimension)) > FEW_IN_MATRICES
        return turns, many, value(strides[dimension]) != 1

    best = min(legal, key=last)
    if panels or blocks:
        return ((best, schedule.pack or ""),)
    found = tuple((best, first) for first in _converted_first(spec, target, best, packs))
    return _or_along_k(spec, target, found) if reads and schedule.tile is None else found


def _or_along_k(spec: Gemm, target: Target, found: tuple[Layout, ...]) -> tuple[Layout, ...]:
    """``found``, or vectors along K, for which nothing of B is converted.

    Both are compared where all sizes are known, but beside matrices, which wait for memory as
    vectors do. Else it is along K where rows, or columns, are few at most.
    """
    along: tuple[Layout, ...] = tuple(("k", x) for x in _converted_first(spec, target, "k", False))
    if product_of(spec, target, "b").unit is not None:
        return along if has_few_along_k(spec, target) else found
    if all(isinstance(size, int) for size in (spec.m, spec.n, spec.k)):
        return (*found, *along)
    return along if has_few_along_k(spec, target) else found


#: Columns of a quantized B from which on A is read from a copy of its rows, by matrices, and by
#: vectors where at most so many rows lie in the first cache at once.
COPIED, CROWDED = 256, 16


def packs_in_panels(spec: Gemm, schedule: Schedule, target: Target) -> bool:
    """Whether blocks of both operands are converted as they are packed in panels.

    A matrix unit reads rows along K, which no panels have.
    """
    return asks_for_panels(spec, schedule, target) and product_of(spec, target, "b").unit is None


def converts_in_blocks(spec: Gemm, schedule: Schedule, target: Target) -> bool:
    """Whether what a schedule packs is converted block by block, in the loops, for a matrix unit.

    What the caller packed is in blocks already.
    """
    if schedule.pack is None or spec.quantized is not None or schedule.tails == "bounce":
        return False
    alone = spec.batch is None and spec.b2 is None
    mine = not spec.is_packed or (schedule.pack == "a" and not isinstance(spec.a, Packed))
    return alone and mine and product_of(spec, target, "b").unit is not None


def unpacks_in_panels(spec: Gemm, schedule: Schedule, target: Target) -> bool:
    """Whether blocks of a quantized B are unpacked before tiles read them, for many rows.

    That is for an A of floating point: they are made f32, or numbers of A's type, of which sums of
    blocks are scaled. Matrices found by their addresses are summed one by one, with few rows as
    with many, which panels are not.
    """
    if spec.quantized is None or spec.sums_blocks:
        return False
    if sums_numbers(spec, target) and not unpacks_numbers(spec, target):
        return False
    loops = (schedule.loops or "").lower()
    if schedule.pack != "b" or schedule.block or any(loops.count(d) < 2 for d in "mnk"):
        return False
    return schedule.tails != "bounce" and not isinstance(spec.batch, Addresses)


def asks_for_panels(spec: Gemm, schedule: Schedule, target: Target) -> bool:
    """Whether blocks of operands that are converted are to be packed, of sizes left to the call."""
    loops, blocks = (schedule.loops or "").lower(), dict(schedule.block)
    fixed = any(isinstance(size, int) for size in (spec.m, spec.n, spec.k))
    if schedule.pack != "ab" or any(loops.count(d) < 2 for d in "mnk") or (blocks and fixed):
        return False
    alone = spec.batch is None and spec.b2 is None and schedule.tails != "bounce"
    return alone and not is_plain(spec, target) and not spec.is_packed


def _converted_first(
    spec: Gemm, target: Target, dimension: Dimension, packed: bool
) -> tuple[str, ...]:
    """What to convert before all else: nothing more than must be, or the operand across, too.

    Where vectors lie along K nothing is spread: A is converted first for more than a few columns,
    unless a load flips its signs, at no cost. ``packed``: blocks of B are unpacked in panels.
    """
    across, along = ("b", "a") if dimension == "m" else ("a", "b")
    vectors = "k" if dimension == "k" else along
    operand, product = operand_of(spec, across), product_of(spec, target, vectors)
    if isinstance(spec.a, Packed):
        return ("",)
    if product.block and not spec.sums_blocks and operand.type == product.across:
        # For matrices rows that begin with a line are loaded twice as fast, once for each matrix of
        # columns; for vectors those in few sets of the first cache would drive out each other.
        copied = isinstance(spec.n, int) and spec.n >= COPIED
        apart = product.unit is not None or (not packed and _crowded(operand, target))
        return (across,) if copied and apart else ("",)
    if operand.type == product.across or product.unit is not None:
        return ("",)
    if not fits_across(operand, product, target, "n" if across == "b" else "m"):
        return ("",)
    if dimension == "k":
        few = most_of(spec.n) <= FEW_ALONG_K
        return ("",) if few or product.shifts[across] else (across,)
    return (across, "")


def _crowded(operand: Operand, target: Target) -> bool:
    """Whether rows of A lie so far apart that tiles find few of them in the first cache at once."""
    step = value(operand.strides["m"])
    if step is None:
        return False
    return places(max(1, step * ITEMSIZE[operand.type]), target.core.line) <= CROWDED


def _legal_converted(spec: Gemm, target: Target) -> tuple[Dimension, ...]:
    """The dimensions along which vectors may lie, the most usual first.

    A packed B decides: along K where it is a column and A has rows, else along its columns.
    """
    if isinstance(spec.a, Packed):
        return ("n",)
    if not isinstance(spec.b, Packed):
        return ("n", "m", "k") if reads_along_k(spec, target) else ("n", "m")
    in_rows = value(operand_of(spec, "a").strides["k"]) == 1
    return ("k", "n") if format_of(spec, target).column and in_rows else ("n",)


def _packable(spec: Gemm, schedule: Schedule) -> bool:
    """Whether the batch does not stand inside the accumulators' loops."""
    loops = schedule.loops
    return spec.batch is None or loops is None or "b" in loops[: outer_length(loops)]


def _no_layout(spec: Gemm, schedule: Schedule) -> ScheduleError:
    if schedule.tails == "bounce":
        return ScheduleError(
            "tails='bounce' needs vectors along m or n, of a size known when it is compiled",
            got=f"vectorize={schedule.vectorize!r}, m={spec.m!r}, n={spec.n!r}",
            hint="tails='auto', or vectorize along a size that is an int",
        )
    return ScheduleError(
        f"with vectorize={schedule.vectorize!r} and pack={schedule.pack!r} no vector is contiguous",
        got=f"A in {spec.a.order} order, B in {spec.b.order} order, loops={schedule.loops!r}",
        expected="'n' needs B contiguous along n, 'm' A along m, 'k' both along k, or packing",
        hint="leave vectorize out, or put b left of m and n so that operands can be packed",
    )
