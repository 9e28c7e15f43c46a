"""Find the dimensions along which vectors can run, and the operands that must be packed
for each.
"""

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
#: A dimension along which vectors run, and the operands that are packed for this, for example "b".
#: Operands that are converted before the loops are included, even if tiles could convert them.
Layout = tuple[Dimension, str]
#: For each dimension, the operands that must be contiguous along it if vectors run along it.
_NEEDS: tuple[tuple[Dimension, str], ...] = (("n", "b"), ("m", "a"), ("k", "ab"))


def legal_dimensions(spec: Gemm, target: Target) -> tuple[Dimension, ...]:
    """Return the dimensions along which vectors can run without packing.

    The dimension along which the output is contiguous comes first.
    """
    return tuple(dimension for dimension, packs in layouts(spec, Schedule(), target) if not packs)


def layouts(spec: Gemm, schedule: Schedule, target: Target) -> tuple[Layout, ...]:
    """Return the possible layouts, those without packing first."""
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
        """Return a sort key that puts bad layouts last.

        These need packing, are not along the contiguous dimension of the output, or run along a
        dimension of size 1.
        """
        along, packs = layout
        alone = along != "k" and getattr(spec, along) == 1
        return alone, packs != "", along == "k" or value(written[along]) != 1

    found.sort(key=last)
    return tuple(found[:1] if schedule.tile is not None else found)


def _turns(spec: Gemm, schedule: Schedule, target: Target, missing: list[str], packs: str) -> bool:
    """True if vectors can run along K.

    Both operands must be contiguous along K, or one of them is transposed first. Unless the
    schedule asks for it, an operand is transposed only if rows of C do not fill a vector and K is
    so long that the transposition costs little.
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
    """Return layouts for operands that may need conversion, which packs them at the same time."""
    strides = operand_of(spec, spec.output).strides
    packed = isinstance(spec.b, Packed)
    along = _legal_converted(spec, target)
    asked, panels = schedule.vectorize, packs_in_panels(spec, schedule, target)
    legal = [d for d in along if asked == d or (asked is None and (d != "k" or packed))]
    blocks = converts_in_blocks(spec, schedule, target)
    if blocks:
        # Blocks are converted only for a matrix unit. It is not used for a single row or column.
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
        """Sort last a layout in which a matrix unit's rows along K need a transposition.

        Otherwise the operand with few rows or columns is converted and the other one is read in
        place.
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
    """Return ``found``, extended or replaced by vectors along K, which need no conversion of B.

    Both are compared by cost if all sizes are known and no matrix unit multiplies. Otherwise
    vectors run along K if C is certain to have few rows or columns.
    """
    along: tuple[Layout, ...] = tuple(("k", x) for x in _converted_first(spec, target, "k", False))
    if product_of(spec, target, "b").unit is not None:
        return along if has_few_along_k(spec, target) else found
    if all(isinstance(size, int) for size in (spec.m, spec.n, spec.k)):
        return (*found, *along)
    return along if has_few_along_k(spec, target) else found


#: Rows of A are copied before the loops only if a quantized B has at least ``COPIED`` columns. They
#: are copied for a matrix unit. For vectors they are copied only if L1 holds at most ``CROWDED`` of
#: the rows at once.
COPIED, CROWDED = 256, 16


def packs_in_panels(spec: Gemm, schedule: Schedule, target: Target) -> bool:
    """True if blocks of both operands are converted and packed in panels.

    A matrix unit reads rows along K, which panels do not have.
    """
    return asks_for_panels(spec, schedule, target) and product_of(spec, target, "b").unit is None


def converts_in_blocks(spec: Gemm, schedule: Schedule, target: Target) -> bool:
    """True if packed operands are converted block by block inside the loops, for a matrix unit.

    A B that the caller packed is in blocks already.
    """
    if schedule.pack is None or spec.quantized is not None or schedule.tails == "bounce":
        return False
    alone = spec.batch is None and spec.b2 is None
    mine = not spec.is_packed or (schedule.pack == "a" and not isinstance(spec.a, Packed))
    return alone and mine and product_of(spec, target, "b").unit is not None


def unpacks_in_panels(spec: Gemm, schedule: Schedule, target: Target) -> bool:
    """True if blocks of a quantized B are unpacked into panels first, because C has many rows.

    A has a floating-point type. B is unpacked to f32, or to numbers of A's type, whose block sums
    are scaled. Matrices given by addresses are excluded: their sum must not depend on the number of
    rows, and panels would add in another order.
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
    """True if converted operands are to be packed in blocks whose sizes the call decides."""
    loops, blocks = (schedule.loops or "").lower(), dict(schedule.block)
    fixed = any(isinstance(size, int) for size in (spec.m, spec.n, spec.k))
    if schedule.pack != "ab" or any(loops.count(d) < 2 for d in "mnk") or (blocks and fixed):
        return False
    alone = spec.batch is None and spec.b2 is None and schedule.tails != "bounce"
    return alone and not is_plain(spec, target) and not spec.is_packed


def _converted_first(
    spec: Gemm, target: Target, dimension: Dimension, packed: bool
) -> tuple[str, ...]:
    """Return the choices of operands to convert before the loops although tiles could convert them.

    A choice is "" for none, or the operand across the vectors. Vectors along K need no broadcasts,
    so A is converted first only if there are more than a few columns, and not if a load flips the
    signs at no cost. ``packed`` is True if blocks of B are unpacked in panels.
    """
    across, along = ("b", "a") if dimension == "m" else ("a", "b")
    vectors = "k" if dimension == "k" else along
    operand, product = operand_of(spec, across), product_of(spec, target, vectors)
    if isinstance(spec.a, Packed):
        return ("",)
    if product.block and not spec.sums_blocks and operand.type == product.across:
        # Rows of A are copied for a matrix unit, which loads aligned rows twice as fast and loads
        # them many times. They are copied for vectors if they share few sets of L1, because they
        # would evict each other.
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
    """True if rows of A share so few sets of L1 that it holds only ``CROWDED`` of them at once."""
    step = value(operand.strides["m"])
    if step is None:
        return False
    return places(max(1, step * ITEMSIZE[operand.type]), target.core.line) <= CROWDED


def _legal_converted(spec: Gemm, target: Target) -> tuple[Dimension, ...]:
    """Return the dimensions along which vectors can run, the usual one first.

    For a packed B the format decides: along K if B is one column and A has contiguous rows, else
    along n.
    """
    if isinstance(spec.a, Packed):
        return ("n",)
    if not isinstance(spec.b, Packed):
        return ("n", "m", "k") if reads_along_k(spec, target) else ("n", "m")
    in_rows = value(operand_of(spec, "a").strides["k"]) == 1
    return ("k", "n") if format_of(spec, target).column and in_rows else ("n",)


def _packable(spec: Gemm, schedule: Schedule) -> bool:
    """True if operands can be packed: there is no batch loop inside a tile."""
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
