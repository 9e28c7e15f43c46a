"""One register tile as a program: K loop, batch loop, update of C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

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
    Op,
    Point,
    PointBatch,
    Register,
    Zero,
)
from tilewright.isa.vector import MulAdd, Vector
from tilewright.plan.contraction import Product
from tilewright.plan.operands import Operand
from tilewright.plan.plan import Plan
from tilewright.plan.tile_shape import TileShape
from tilewright.plan.tiles import RegisterTile, Stage
from tilewright.symbolic import ONE, ZERO, linear, value

#: Rows that share one pointer when their distance is known only at the call.
ROW_GROUP = 4


@dataclass(frozen=True, slots=True)
class Tile:
    """What lowering one register tile needs: its place in the plan, and the plan.

    ``plan`` has the operands as they are packed where the tile is called.
    """

    plan: Plan
    chosen: RegisterTile

    @property
    def shape(self) -> TileShape:
        """Its registers, and how they are fed."""
        return self.chosen.shape

    @property
    def steps(self) -> Expr:
        """Groups of K as deep as the multiply-add."""
        return self.chosen.steps

    @property
    def rest(self) -> Expr:
        """Elements of one group more, which are read one by one."""
        return self.chosen.rest

    @property
    def accumulate(self) -> bool:
        """Whether what is written already holds a part of the sum."""
        return self.chosen.accumulate

    @property
    def stage(self) -> Stage:
        """Whether it only sums up into the buffer of partial sums, or only finishes those."""
        return self.chosen.stage

    @property
    def across_size(self) -> Expr:
        """Elements of C across the vectors."""
        return self.chosen.mr if self.plan.across == "m" else self.chosen.nr

    @property
    def along_size(self) -> Expr:
        """Elements of C along the vectors."""
        return self.chosen.nr if self.plan.across == "m" else self.chosen.mr

    @property
    def vector(self) -> Vector:
        """The vectors of the tile."""
        return self.shape.vector

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
        shape = self.shape
        if self.product.rows > 1:
            places = product(range(shape.bands), range(shape.columns))
            yield from (self.square(band, column, split) for band, column in places)
            return
        places = product(range(shape.rows), range(shape.vectors))
        yield from (self.accumulator(across, along, split) for across, along in places)

    def position(self, along: int) -> int:
        """Where vector ``along`` starts in the tile, in elements."""
        size = value(self.along_size)
        if self.chosen.overlapped and along == self.shape.vectors - 1:
            assert size is not None
            return size - self.vector.lanes
        return along * self.vector.lanes

    def active(self, along: int) -> Active:
        """What of vector ``along`` exists: all, a constant number of lanes, or a mask."""
        if self.chosen.active is None or along < self.shape.vectors - 1:
            return None
        lanes = value(self.chosen.active)
        if self.vector.mask is not None:
            return MaskRegister("mask", self.vector, self.chosen.active)
        assert lanes is not None
        return lanes

    def loaded(self, along: int) -> Active:
        """What of vector ``along`` is loaded: all, where there is room for it.

        Where multiply-adds sum groups, the elements of these are counted.
        """
        active = None if self.chosen.loads_whole else self.active(along)
        if active is None or self.product.depth == 1:
            return active
        columns = value(self.chosen.active or ZERO)
        assert columns is not None, "a packed line of groups has a fixed length"
        return columns * self.product.depth


def masks(tile: Tile) -> Iterator[Op]:
    """The masks of a tile, made once."""
    active = tile.active(tile.shape.vectors - 1)
    if isinstance(active, MaskRegister):
        yield MakeMask(active)


def zeros(tile: Tile) -> Iterator[Op]:
    """All accumulators at zero."""
    for split in range(tile.shape.k_split):
        yield from (Zero(acc) for acc in tile.summed(split))


def sum_splits(tile: Tile) -> Iterator[Op]:
    """Add the accumulator sets pairwise into the first."""
    shape = tile.shape
    places = product(range(shape.rows), range(shape.vectors))
    yield from add_sets(
        [[tile.accumulator(*place, split) for split in range(shape.k_split)] for place in places]
    )


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
    hold, shape = tile.plan.target.hold, tile.shape
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
