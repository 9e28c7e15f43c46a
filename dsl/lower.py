"""One region's register tile as a program: K loop, batch loop, update of C."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sympy import Expr

from .access import read
from .feed import Operand
from .isa import Form, MulAdd, Vector
from .model import unroll
from .plan import Plan
from .product import Product
from .program import (
    Active,
    Add,
    Address,
    Advance,
    Broadcast,
    Keep,
    Load,
    Loop,
    MakeMask,
    MaskRegister,
    MultiplyAdd,
    Op,
    Point,
    PointBatch,
    Prefetch,
    Register,
    Zero,
)
from .regions import Region
from .symbolic import ONE, ZERO, div, linear, mod, value

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
        group = max(shape.k_split, self.vector.lanes if shape.feed == "lane_k" else 1)
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
        """What of vector ``along`` is loaded: a packed line has room for whole ones."""
        return None if self.plan.padded else self.active(along)


def masks(tile: Tile) -> Iterator[Op]:
    """The masks of a tile, made once."""
    active = tile.active(tile.region.shape.vectors - 1)
    if isinstance(active, MaskRegister):
        yield MakeMask(active)


def zeros(tile: Tile) -> Iterator[Op]:
    """All accumulators at zero."""
    shape = tile.region.shape
    for split in range(shape.k_split):
        for across in range(shape.rows):
            for along in range(shape.vectors):
                yield Zero(tile.accumulator(across, along, split))


def sum_splits(tile: Tile) -> Iterator[Op]:
    """Add the accumulator sets pairwise into the first."""
    shape = tile.region.shape
    left = shape.k_split
    while left > 1:
        distance = (left + 1) // 2
        for across in range(shape.rows):
            for along in range(shape.vectors):
                for low in range(left - distance):
                    acc = tile.accumulator(across, along, low)
                    yield Add(acc, acc, tile.accumulator(across, along, low + distance))
        left = distance


def reduction(tile: Tile, pointers: list[PointerPlan], k_loops: tuple[Op, ...]) -> Iterator[Op]:
    """The batch loop, if it stands inside, around pointers and K loops."""
    plan = tile.plan
    if plan.batch is None or "b" not in plan.inner:
        yield from (p.point for p in pointers)
        yield from k_loops
        return
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


def k_loops(tile: Tile) -> tuple[list[PointerPlan], tuple[Op, ...]]:
    """The K loops of a tile whose vectors lie along m or n, and the pointers they walk."""
    body = _Body(tile)
    steps, count = tile.steps, tile.unroll
    trips, rest = div(steps, count), mod(steps, count)
    ops: list[Op] = []
    whole = value(steps)
    if whole is not None and whole < 2 * count:
        return body.pointers, (*body.steps(whole), *body.part(whole))
    if trips != 0:
        ops.append(Loop("kt", trips, (*body.steps(count), *advance(body.pointers, count, False))))
    if (known := value(rest)) is not None:
        ops += body.steps(known) if known else ()
    else:
        ops.append(Loop("kt", rest, (*body.steps(1), *advance(body.pointers, 1, False)), "K tail"))
    return body.pointers, (*ops, *body.part(known or 0))


class _Body:
    """Emits K steps of one tile."""

    def __init__(self, tile: Tile) -> None:
        shape = tile.region.shape
        self.tile, self.shape = tile, shape
        depth = tile.product.depth
        self.along = pointer_plans(tile.along, tile.plan.along, 1, depth)
        self.across = pointer_plans(tile.across, tile.plan.across, shape.rows, depth)
        self.pointers = (
            self.across + self.along if tile.along.name == "b" else self.along + self.across
        )

    def steps(self, count: int) -> list[Op]:
        ops: list[Op] = []
        for k in range(count):
            if k == 0 and self._prefetches:
                ops.append(self._prefetch(self.tile.plan.schedule.prefetch or 0))
            ops += self._step(k, count)
            ops += advance(self.pointers, 1, runtime=True)
        return ops

    def part(self, k: int) -> Iterator[Op]:
        """A group of which only some elements exist: those are read, the others 0."""
        rest, depth = self.tile.rest, self.tile.product.depth
        if rest == 0:
            return
        step = tuple(self._step(k, k + 1, rest))
        known = value(rest) is not None
        yield from step if known else (Loop("kt", div(rest + (depth - 1), depth), step, "K rest"),)

    @property
    def _prefetches(self) -> bool:
        """What was just packed is in the cache, and may lie at the end of the stack's frame."""
        packed = self.tile.along.buffer != self.tile.along.name
        return self.tile.plan.schedule.prefetch is not None and not packed

    def _prefetch(self, distance: int) -> Op:
        pointer = self.along[0]
        return Prefetch(Address(pointer.point.pointer, distance * pointer.k_stride))

    def _step(self, k: int, count: int, existing: Expr | None = None) -> Iterator[Op]:
        feed, lanes = self.shape.feed, self.tile.vector.lanes
        whole = k // lanes * lanes + lanes <= count and existing is None
        if feed == "lane_k" and k % lanes == 0 and whole:
            yield from self._load_lanes_k(k)
        in_lanes = feed == "lane_s" or (feed == "lane_k" and whole)
        if feed == "lane_s":
            yield from self._load_lanes_s(k)
        if self.shape.hold == "across":
            for row in range(self.shape.rows):
                yield self._spread(row, k, existing)
            for column in range(self.shape.vectors):
                yield from self._load(column, k)
                for row in range(self.shape.rows):
                    yield from self._multiply(row, column, k, in_lanes)
            return
        for column in range(self.shape.vectors):
            yield from self._load(column, k)
        for row in range(self.shape.rows):
            if not in_lanes and feed != "memory":
                yield self._spread(row, k, existing)
            for column in range(self.shape.vectors):
                yield from self._multiply(row, column, k, in_lanes)

    def _name(self, operand: Operand, index: int, k: int) -> str:
        return f"{operand.name}{index}" + (f"_k{k}" if k else "")

    def _pointer(self, row: int) -> PointerPlan:
        return next(p for p in reversed(self.across) if p.row <= row)

    def _load(self, column: int, k: int) -> Iterator[Op]:
        first = self.tile.position(column) * self.tile.product.depth
        address = self.along[0].address(0, k, first)
        source = self.tile.along.type
        target = self.tile.plan.target
        yield from read(target, self._vector(column, k), address, self.tile.loaded(column), source)

    def _vector(self, column: int, k: int) -> Register:
        held = self.tile.product.held(self.tile.plan.target, self.tile.vector, "along")
        return self.tile.register(self._name(self.tile.along, column, k), held)

    def _plain(self) -> MulAdd:
        return self._form("scalar", "broadcast")

    def _spread_register(self, row: int, k: int) -> Register:
        name, target = self._name(self.tile.across, row, k), self.tile.plan.target
        if self._plain().form == "scalar":
            return self.tile.register(name, target.of(self.tile.plan.element)[-1])
        return self.tile.register(name, self.tile.product.held(target, self.tile.vector, "across"))

    def _spread(self, row: int, k: int, existing: Expr | None = None) -> Op:
        address = self._pointer(row).address(row, k)
        register, depth = self._spread_register(row, k), self.tile.product.depth
        if register.vector.lanes == 1:
            return Load(register, address)
        return Broadcast(register, address, depth, existing, self.tile.across.type)

    def _load_lanes_k(self, k: int) -> Iterator[Op]:
        for row in range(self.shape.rows):
            yield Load(self._lanes_register(row, k), self._pointer(row).address(row, k))

    def _load_lanes_s(self, k: int) -> Iterator[Op]:
        lanes = self.tile.vector.lanes
        for first in range(0, self.shape.rows, lanes):
            left = self.shape.rows - first
            active = None if left >= lanes else left
            address = self._pointer(first).address(first, k)
            yield Load(self._lanes_register(first // lanes, k), address, active)

    def _lanes_register(self, index: int, k: int) -> Register:
        held = self.tile.product.held(self.tile.plan.target, self.tile.vector, "across")
        return self.tile.register(self._name(self.tile.across, index, k) + "v", held)

    def _multiply(self, row: int, column: int, k: int, in_lanes: bool) -> Iterator[Op]:
        acc = self.tile.accumulator(row, column, k % self.shape.k_split)
        x, lanes = self._vector(column, k), self.tile.vector.lanes
        if self.shape.feed == "memory":
            address = self._pointer(row).address(row, k)
            yield MultiplyAdd(self._form("memory"), acc, x, address)
            yield from self._hold(acc, (x,))
            return
        lane = None
        if in_lanes and self.shape.feed == "lane_k":
            y, lane = self._lanes_register(row, k // lanes * lanes), k % lanes
        elif in_lanes:
            y, lane = self._lanes_register(row // lanes, k), row % lanes
        else:
            y = self._spread_register(row, k)
        op = self._plain() if lane is None else self._form("lane")
        yield MultiplyAdd(op, acc, x, y, lane)
        yield from self._hold(acc, (x, y))

    def _hold(self, acc: Register, operands: tuple[Register, ...]) -> Iterator[Op]:
        """A vector used by one row only may be read from memory by the multiply-add itself."""
        hold = self.tile.plan.target.hold
        if hold is None or (hold.operands and self.shape.rows == 1):
            return
        yield Keep(acc, operands if hold.operands else ())

    def _form(self, *forms: Form) -> MulAdd:
        op = self.tile.product.form(self.tile.vector, *forms)
        assert op is not None
        return op
