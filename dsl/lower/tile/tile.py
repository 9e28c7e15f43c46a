"""One region's register tile as a program: K loop, batch loop, update of C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from sympy import Expr

from tilewright.ir.ops import (
    Active,
    Add,
    Address,
    Advance,
    Hide,
    Keep,
    Loop,
    MakeMask,
    MaskRegister,
    MultiplyAdd,
    Note,
    Op,
    Point,
    PointBatch,
    Register,
    Zero,
)
from tilewright.isa.vector import MulAdd, Vector
from tilewright.plan.contraction import Product
from tilewright.plan.cost_model import unroll
from tilewright.plan.operands import Operand
from tilewright.plan.partition import Region
from tilewright.plan.plan import Plan
from tilewright.symbolic import ONE, ZERO, linear, mod, value

Stage = Literal["whole", "sum", "finish"]
#: Rows that share one pointer when their distance is known only at the call.
ROW_GROUP = 4


@dataclass(frozen=True, slots=True)
class Tile:
    """What lowering one register tile needs to know.

    ``steps`` are groups of K as deep as the multiply-add; ``rest`` elements of one more are read
    one by one. ``stage``: a tile may only sum up into the buffer of partial sums, or only finish
    what stands there.
    """

    plan: Plan
    region: Region
    steps: Expr
    accumulate: bool
    rest: Expr = ZERO
    stage: Stage = "whole"

    @property
    def vector(self) -> Vector:
        """The vectors of the tile."""
        return self.region.shape.vector

    @property
    def along(self) -> Operand:
        """The input whose elements lie along the vectors."""
        return self.plan.feeder(self.plan.along)

    @property
    def across(self) -> Operand:
        """The input whose elements are spread over the lanes."""
        return self.plan.feeder(self.plan.across)

    @property
    def product(self) -> Product:
        """What is multiplied."""
        return self.plan.product

    @property
    def written(self) -> Operand:
        """Where the tile's elements go."""
        return self.plan.operands["sums"] if self.stage == "sum" else self.plan.output

    @property
    def empty(self) -> bool:
        """Whether there is nothing to sum."""
        return bool(self.steps == 0 and self.rest == 0)

    @property
    def unroll(self) -> int:
        """K steps per trip of the K loop."""
        shape = self.region.shape
        group = max(shape.k_split, shape.group)
        asked = self.plan.schedule.k_unroll
        if asked is not None:
            return -(-asked // group) * group
        return unroll(shape, self.plan.target, value(self.steps), group)

    def register(self, name: str, vector: Vector | None = None) -> Register:
        """A register of the tile's vector, or another."""
        return Register(name, vector or self.vector)

    def accumulator(self, across: int, along: int, split: int = 0) -> Register:
        """Named by row and column of C in units of the tile."""
        row, col = (along, across) if self.plan.along == "m" else (across, along)
        return self.register(f"c{row}_{col}" + (f"_s{split}" if split else ""))

    def square(self, band: int, column: int, split: int = 0) -> Register:
        """The block of C in that row and column of blocks, where multiply-adds sum such."""
        return self.register(f"s{band}_{column}" + (f"_s{split}" if split else ""))

    def summed(self, split: int) -> Iterator[Register]:
        """What the multiply-adds of one set sum into."""
        shape = self.region.shape
        if self.product.rows > 1:
            places = product(range(shape.bands), range(shape.columns))
            yield from (self.square(band, column, split) for band, column in places)
            return
        places = product(range(shape.rows), range(shape.vectors))
        yield from (self.accumulator(across, along, split) for across, along in places)

    def position(self, along: int) -> int:
        """Where vector ``along`` starts in the tile, in elements."""
        size = value(self.region.along.size)
        if self.region.overlapped and along == self.region.shape.vectors - 1:
            assert size is not None
            return size - self.vector.lanes
        return along * self.vector.lanes

    def active(self, along: int) -> Active:
        """What of vector ``along`` exists: all, a constant number of lanes, or a mask."""
        if self.region.active is None or along < self.region.shape.vectors - 1:
            return None
        lanes = value(self.region.active)
        if self.vector.mask is not None:
            return MaskRegister("mask", self.vector, self.region.active)
        assert lanes is not None
        return lanes

    def loaded(self, along: int) -> Active:
        """What of vector ``along`` is loaded: a packed line has room for whole ones.

        A line of the caller's packed B has it for those that begin where its own do. Where
        multiply-adds sum groups, the elements of these are counted.
        """
        room = self.plan.padded and (self.along.packed or self._begins_whole)
        active = None if room else self.active(along)
        if active is None or self.product.depth == 1:
            return active
        columns = value(self.region.active or ZERO)
        assert columns is not None, "a packed line of groups has a fixed length"
        return columns * self.product.depth

    @property
    def _begins_whole(self) -> bool:
        """Whether vectors begin at multiples of their lanes."""
        part, block = self.region.along, self.plan.blocks.get(self.plan.along, 0)
        steps = [part.start, block * ONE, *([] if part.count == 1 else [part.size])]
        return all(mod(step, self.vector.lanes) == 0 for step in steps)


def masks(tile: Tile) -> Iterator[Op]:
    """The masks of a tile, made once."""
    active = tile.active(tile.region.shape.vectors - 1)
    if isinstance(active, MaskRegister):
        yield MakeMask(active)


def zeros(tile: Tile) -> Iterator[Op]:
    """All accumulators at zero."""
    yield Note("Accumulators, named by their row and column of vectors in this tile of C.")
    for split in range(tile.region.shape.k_split):
        yield from (Zero(acc) for acc in tile.summed(split))


def sum_splits(tile: Tile) -> Iterator[Op]:
    """Add the accumulator sets pairwise into the first."""
    shape = tile.region.shape
    places = product(range(shape.rows), range(shape.vectors))
    yield Note("Add the sets of accumulators that K was split over.")
    yield from add_sets(
        [[tile.accumulator(*place, split) for split in range(shape.k_split)] for place in places]
    )


def step_note(step: int, count: int) -> Note:
    """What one of the steps along K is, which stand one behind the other."""
    return Note("Load, multiply-add" + (f": step {step + 1} of {count}." if count > 1 else "."))


def add_sets(sums: Sequence[Sequence[Register]]) -> Iterator[Op]:
    """Add what each of ``sums`` has in several sets pairwise into its first."""
    left = len(sums[0])
    while left > 1:
        distance = (left + 1) // 2
        for sets in sums:
            for low in range(left - distance):
                yield Add(sets[low], sets[low], sets[low + distance])
        left = distance


def reduction(tile: Tile, pointers: list[PointerPlan], k_loops: tuple[Op, ...]) -> Iterator[Op]:
    """The batch loop, if it stands inside, around pointers and K loops."""
    plan = tile.plan
    if plan.batch is None or "b" not in plan.inner:
        yield from (p.point for p in pointers)
        yield from _hidden(plan, *(p.point.pointer for p in pointers))
        yield from k_loops
    else:
        points = tuple(
            PointBatch(
                pointer=p.point.pointer,
                operand=p.point.base,
                index="i",
                offset=p.point.offset,
                element=p.point.element,
                batch=plan.batch_kind(p.operand),
                stride=plan.batch_stride(p.operand),
            )
            for p in pointers
        )
        yield Loop("i", plan.batch.count, points + k_loops, "batch")
    yield from _hidden(plan, tile.written.name)


def _hidden(plan: Plan, *pointers: str) -> Iterator[Op]:
    """Addresses are computed where they are needed, on targets whose compilers must be told."""
    if plan.target.hold is not None and plan.target.hold.pointers:
        yield from map(Hide, pointers)


@dataclass(frozen=True, slots=True)
class PointerPlan:
    """A pointer of the K loop: rows from ``row`` on of an operand, and its step along K."""

    operand: Operand
    point: Point
    row: int
    k_stride: Expr
    row_stride: Expr

    def address(self, row: int, k: int, lane: int = 0) -> Address:
        """Element ``lane`` behind (row, k); a run-time K stride is walked, not multiplied."""
        walked = ZERO if value(self.k_stride) is None else self.k_stride
        offset = linear(((row - self.row, self.row_stride), (k, walked), (lane, ONE)))
        return Address(self.point.pointer, offset)


def pointer_plans(operand: Operand, dimension: str, rows: int, depth: int = 1) -> list[PointerPlan]:
    """The pointers that cover ``rows`` lines of an operand, and what a step of ``depth`` moves."""
    row_stride, k_stride = operand.strides[dimension], depth * operand.strides["k"]
    group = rows if value(row_stride) is not None else ROW_GROUP
    plans = []
    for row in range(0, rows, group):
        name = f"p{operand.name}{row}" if row else f"p{operand.name}"
        point = Point(name, operand.name, row * row_stride, operand.type)
        plans.append(PointerPlan(operand, point, row, k_stride, row_stride))
    return plans


def advance(pointers: list[PointerPlan], steps: int, runtime: bool) -> Iterator[Op]:
    """Move the pointers by ``steps`` along K: those of fixed, or of run-time, K stride."""
    for p in pointers:
        if (value(p.k_stride) is None) == runtime:
            yield Advance(p.point.pointer, steps * p.k_stride)


def multiplied(
    tile: Tile,
    op: MulAdd,
    acc: Register,
    x: Register,
    y: Register | Address,
    lane: int | None = None,
    *,
    whole: bool = True,
) -> Iterator[Op]:
    """``acc += x * y``, and its registers kept where they are.

    A vector used by one row only may be read from memory by the multiply-add itself, if it is
    ``whole``; where vectors lie along K, so may either side's. Parts take an instruction of their
    own: without order, all of a step may be loaded first.
    """
    hold, shape = tile.plan.target.hold, tile.region.shape
    uses = min(shape.bands, shape.vectors) if tile.plan.dot else shape.bands
    if hold is None or (hold.operands and uses == 1 and whole):
        yield MultiplyAdd(op, acc, x, y, lane)
        return
    factors = tuple(factor for factor in (x, y) if isinstance(factor, Register))
    product = None
    if not hold.operands:
        spread = hold.lanes and op.fused and op.form in ("lane", "scalar")
        factors = factors[1:] if spread and shape.vectors > 1 and tile.vector.lanes > 1 else ()
    elif op.product and shape.budget.total < tile.plan.target.registers:
        product = replace(acc, name=f"{acc.name}_{x.name}")
        factors = (*factors, product)
    yield MultiplyAdd(op, acc, x, y, lane, product)
    yield Keep(acc, factors)
