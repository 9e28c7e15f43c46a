"""The K loop of every register tile: unrolled trips, the remaining steps, and the tail of K.

Each kind of product (outer, dot, block, matrix) provides a ``KStep``: the loads and multiply-adds
of one step along K, and how the tail is read. This module decides the rest: the number of trips,
straight code in place of a loop, where pointers move, and the batch loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from sympy import Expr

from tilewright.ir.ops import (
    Advance,
    Hide,
    Keep,
    Loop,
    MultiplyAdd,
    Note,
    Op,
    Point,
    PointBatch,
    Prefetch,
)
from tilewright.ir.values import Address, Register
from tilewright.isa.vector import MulAdd, Vector
from tilewright.plan.operands import Operand
from tilewright.plan.problem import Problem, Staging
from tilewright.plan.tiling.tile_shape import TileShape
from tilewright.symbolic import ONE, ZERO, div, linear, mod, value

from .tile import Tile

Side = Literal["along", "across"]
#: The number of rows that share one pointer if the row stride is known only at the call.
ROWS_PER_POINTER = 4


@dataclass(frozen=True, slots=True)
class PointerPlan:
    """A pointer of the K loop to an operand's rows, the first of which is ``row``.

    A step along K moves it by ``k_stride`` elements. Rows are ``row_stride`` elements apart.
    """

    operand: Operand
    point: Point
    row: int
    k_stride: Expr
    row_stride: Expr

    @property
    def walked(self) -> bool:
        """True if the pointer moves after each step, because its K stride is known only at the
        call.
        """
        return value(self.k_stride) is None

    def address(self, row: int, step: int, element: int = 0) -> Address:
        """Return the address of an element of a row in ``step``; ``element`` counts from the step's
        first.
        """
        k_stride = ZERO if self.walked else self.k_stride
        offset = linear(((row - self.row, self.row_stride), (step, k_stride), (element, ONE)))
        return Address(self.point.pointer, offset)

    def advance(self, steps: int) -> Op:
        """Move the pointer by ``steps`` steps along K."""
        return Advance(self.point.pointer, steps * self.k_stride)

    def advance_by(self, elements: int) -> Op:
        """Move the pointer by ``elements`` elements of K."""
        return Advance(self.point.pointer, elements * self.operand.strides["k"])


def pointer_plans(
    operand: Operand, dimension: str, rows: int, k_elements: int
) -> tuple[PointerPlan, ...]:
    """Return the pointers to ``rows`` rows of an operand along dimension m or n.

    A step reads ``k_elements`` elements of K from each row.
    """
    row_stride, k_stride = operand.strides[dimension], k_elements * operand.strides["k"]
    shared = rows if value(row_stride) is not None else ROWS_PER_POINTER
    plans = []
    for row in range(0, rows, shared):
        name = f"p{operand.name}{row}" if row else f"p{operand.name}"
        point = Point(name, operand.name, row * row_stride, operand.type)
        plans.append(PointerPlan(operand, point, row, k_stride, row_stride))
    return tuple(plans)


def pointer_to(row: int, pointers: Sequence[PointerPlan]) -> PointerPlan:
    """Return the pointer through which row ``row`` is read."""
    return next(p for p in reversed(pointers) if p.row <= row)


@dataclass(frozen=True, slots=True)
class KStep(ABC):
    """The loads and multiply-adds of one step along K, for one kind of product.

    ``along`` are the pointers to the input whose elements fill vectors, ``across`` those to the
    other input.
    """

    tile: Tile
    along: tuple[PointerPlan, ...]
    across: tuple[PointerPlan, ...]

    #: The comment in C on the loop over the steps that fill no unrolled trip.
    note: ClassVar[str] = "K tail"

    @classmethod
    def of(cls, tile: Tile) -> Self:
        """Return the steps of ``tile`` and the pointers that they need."""
        elements, (along, across) = cls.k_elements(tile), cls.lines(tile)
        return cls(
            tile,
            pointer_plans(tile.along, tile.here.problem.along, along, elements),
            pointer_plans(tile.across, tile.here.problem.across, across, elements),
        )

    @staticmethod
    def k_elements(tile: Tile) -> int:
        """Return the elements of K that a step takes from each row of A and column of B."""
        return tile.product.depth

    @staticmethod
    def lines(tile: Tile) -> tuple[int, int]:
        """Return the numbers of rows that need pointers, along and across the vectors.

        1 if the other rows' elements are adjacent to the first row's, as in a panel.
        """
        return 1, 1

    @property
    def count(self) -> Expr:
        """The number of steps, without the tail."""
        return self.tile.steps

    @property
    def unroll(self) -> int:
        """The number of steps in one trip of the K loop, a multiple of the number of accumulator
        sets.
        """
        return self.tile.chosen.unroll.count

    @property
    def straight(self) -> bool:
        """True if all steps are straight code, because there are fewer than in two trips."""
        return not self.tile.chosen.unroll.loop

    @property
    def inputs(self) -> tuple[PointerPlan, ...]:
        """The pointers to A, then those to B."""
        return inputs(self.tile, self.along, self.across)

    @property
    def pointers(self) -> tuple[PointerPlan, ...]:
        """The pointers that are set before the K loop."""
        return self.inputs

    @property
    def moved(self) -> tuple[PointerPlan, ...]:
        """The pointers that move along K, in the order in which they move."""
        return self.inputs

    @property
    def prefetched(self) -> PointerPlan | None:
        """The pointer whose data is prefetched once a trip, at the schedule's ``prefetch``
        distance.

        None for packed operands: they are in cache already, and may be at the end of the stack
        frame.
        """
        return None if self.tile.along.packed else self.along[0]

    @abstractmethod
    def emit(self, index: int, run: int) -> Iterator[Op]:
        """Emit step ``index`` of ``run`` steps in straight code."""

    @abstractmethod
    def tail(self, index: int) -> Iterator[Op]:
        """Emit the elements of K that fill no step, as step ``index`` from the pointers on."""

    def leave(self, run: int) -> Iterator[Op]:
        """Move the pointers to the tail, after ``run`` steps of straight code."""
        if run:
            yield from (p.advance(1) for p in self.moved if p.walked)

    @property
    def shape(self) -> TileShape:
        """The register tile's shape."""
        return self.tile.shape

    def accumulator_set(self, index: int) -> int:
        """Return the accumulator set that step ``index`` sums into."""
        return index % self.shape.k_split


def inputs(
    tile: Tile, along: tuple[PointerPlan, ...], across: tuple[PointerPlan, ...]
) -> tuple[PointerPlan, ...]:
    """Return the pointers to A, then those to B."""
    return along + across if tile.along.name == "a" else across + along


def order(tile: Tile, along: int, across: int) -> Iterator[tuple[Side, int, list[tuple[int, int]]]]:
    """Yield each load of a step, and the products (along, across) that can follow it.

    ``along`` and ``across`` are the numbers of factors. The side that is held in registers is
    loaded first, then the other side one factor at a time.
    """
    if tile.shape.hold == "across":
        yield from (("across", y, []) for y in range(across))
        yield from (("along", x, [(x, y) for y in range(across)]) for x in range(along))
    else:
        yield from (("along", x, []) for x in range(along))
        yield from (("across", y, [(x, y) for x in range(along)]) for y in range(across))


def held(tile: Tile, side: Side) -> Vector:
    """Return the vector type that holds factors of the input on ``side``."""
    return tile.product.held(tile.plan.target, tile.vector, side)


def factor(operand: Operand, index: int, step: int, vector: Vector, suffix: str = "") -> Register:
    """Return the register of an operand's row or vector ``index`` in a step, named after
    all three.
    """
    return Register(f"{operand.name}{index}" + (f"_k{step}" if step else "") + suffix, vector)


def k_loop(step: KStep) -> Iterator[Op]:
    """Emit the pointers and the loops that add all products to the accumulators.

    If the tile has the batch loop inside, that loop is around them.
    """
    plan, loops = step.tile.plan, tuple(_k_loops(step))
    if plan.problem.batch is None or "b" not in plan.nest.inner:
        yield from (p.point for p in step.pointers)
        yield from _hidden(plan.problem, *(p.point.pointer for p in step.pointers))
        yield from loops
    else:
        points = tuple(_point_of_batch(plan.staging, p) for p in step.pointers)
        yield Loop("i", plan.problem.batch.count, points + loops, "batch")
    yield from _hidden(plan.problem, step.tile.written.name)


def _point_of_batch(staging: Staging, pointer: PointerPlan) -> PointBatch:
    """Point to the current matrix of the batch."""
    return PointBatch(
        pointer=pointer.point.pointer,
        operand=pointer.point.base,
        index="i",
        offset=pointer.point.offset,
        element=pointer.point.element,
        batch=staging.batch_kind(pointer.operand),
        stride=staging.batch_stride(pointer.operand),
    )


def _hidden(problem: Problem, *pointers: str) -> Iterator[Op]:
    """Hide pointers from compilers that would otherwise precompute addresses and run out of
    registers.
    """
    if problem.target.hints is not None and problem.target.hints.pointers:
        yield from map(Hide, pointers)


def _k_loops(step: KStep) -> Iterator[Op]:
    """Emit all of K: a loop of unrolled trips, the remaining steps, and the tail.

    If the number of remaining steps is known only at the call, they get a loop.
    """
    trips, left = ZERO, step.count
    if not step.straight:
        trips, left = div(step.count, step.unroll), mod(step.count, step.unroll)
    if trips != 0:
        yield _loop(step, trips, step.unroll)
    run = value(left)
    if run is None:
        yield _loop(step, left, 1, step.note)
        run = 0
    yield from _run(step, run)
    yield from step.leave(run)
    yield from step.tail(run)


def _loop(step: KStep, trips: Expr, count: int, note: str = "") -> Loop:
    """Return a loop of ``count`` steps a trip. Pointers with a fixed K stride move once a trip."""
    last = [p.advance(1) for p in step.moved if p.walked]
    trip = [p.advance(count) for p in step.moved if not p.walked]
    return Loop("kt", trips, (*_run(step, count), *last, *trip), note)


def _run(step: KStep, count: int) -> Iterator[Op]:
    """Emit ``count`` steps in straight code; pointers with a run-time K stride move
    between them.
    """
    ahead, distance = step.prefetched, step.tile.here.problem.schedule.prefetch
    if ahead is not None and distance is not None and count:
        yield Prefetch(Address(ahead.point.pointer, distance * ahead.k_stride))
    for index in range(count):
        yield from (p.advance(1) for p in step.moved if p.walked and index)
        yield step_note(index, count)
        yield from step.emit(index, count)


def step_note(index: int, count: int) -> Note:
    """Return the comment in C on one of ``count`` steps in straight code."""
    return Note("Load, multiply-add" + (f": step {index + 1} of {count}." if count > 1 else "."))


def k_group_tail(tile: Tile, ops: Iterable[Op]) -> Iterator[Op]:
    """Emit the step of an incomplete K group, in a loop of 0 or 1 trips if K is known only at the
    call.
    """
    if value(tile.k_tail) is not None:
        yield from ops
        return
    depth = tile.product.depth
    yield Loop("kt", div(tile.k_tail + (depth - 1), depth), tuple(ops), "K rest")


def multiply_add(
    tile: Tile,
    op: MulAdd,
    acc: Register,
    x: Register,
    y: Register | Address,
    lane: int | None = None,
    *,
    whole: bool = True,
) -> Iterator[Op]:
    """Emit ``acc += x * y``, with compiler hints that keep its operands in registers.

    The compiler may fold a load into the multiply-add if a single row uses the vector and the load
    is ``whole``. For vectors along K this holds for both sides. A partial load stays an instruction
    of its own, because otherwise the compiler may load all vectors of a step first.
    """
    hints, shape = tile.plan.target.hints, tile.shape
    uses = min(shape.bands, shape.vectors) if tile.here.problem.dot else shape.bands
    apart = tile.plan.target.scalars_apart and tile.vector.lanes == 1
    if hints is None or apart or (hints.operands and uses == 1 and whole):
        yield MultiplyAdd(op, acc, x, y, lane)
        return
    factors = tuple(each for each in (x, y) if isinstance(each, Register))
    product = None
    if not hints.operands:
        again = shape.vectors > 1 or (hints.picked and op.form == "lane")
        spread = hints.lanes and op.fused and op.form in ("lane", "scalar")
        factors = factors[1:] if spread and again and tile.vector.lanes > 1 else ()
    elif op.product and shape.budget.total < tile.plan.target.registers:
        product = replace(acc, name=f"{acc.name}_{x.name}")
        factors = (*factors, product)
    yield MultiplyAdd(op, acc, x, y, lane, product)
    yield Keep(acc, factors)
