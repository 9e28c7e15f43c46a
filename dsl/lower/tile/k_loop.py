"""The K loop of every register tile: unrolled trips, the steps left over, and the tail of K.

Outer, dot, block and matrix products give it a ``KStep``: what one step along K loads and
multiplies, and how elements of K that fill no step are read. All else stands here once: how often
the loop runs, when straight code takes its place, where pointers move, and the batch loop around.
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
from tilewright.plan.plan import Plan
from tilewright.plan.tiling.tile_shape import TileShape
from tilewright.symbolic import ONE, ZERO, div, linear, mod, value

from .tile import Tile

Side = Literal["along", "across"]
#: Rows that share one pointer when their distance is known only at the call.
ROWS_PER_POINTER = 4


@dataclass(frozen=True, slots=True)
class PointerPlan:
    """A pointer of the K loop, to an operand's rows from ``row`` on.

    ``k_stride`` is how many elements a step along K moves it; rows are ``row_stride`` elements
    apart.
    """

    operand: Operand
    point: Point
    row: int
    k_stride: Expr
    row_stride: Expr

    @property
    def walked(self) -> bool:
        """Whether each step moves it: its stride along K is known only at the call."""
        return value(self.k_stride) is None

    def address(self, row: int, step: int, element: int = 0) -> Address:
        """The element so far behind the first one that ``step`` reads of a row."""
        k_stride = ZERO if self.walked else self.k_stride
        offset = linear(((row - self.row, self.row_stride), (step, k_stride), (element, ONE)))
        return Address(self.point.pointer, offset)

    def advance(self, steps: int) -> Op:
        """Move it by so many steps along K."""
        return Advance(self.point.pointer, steps * self.k_stride)

    def advance_by(self, elements: int) -> Op:
        """Move it by so many elements of K."""
        return Advance(self.point.pointer, elements * self.operand.strides["k"])


def pointer_plans(
    operand: Operand, dimension: str, rows: int, k_elements: int
) -> tuple[PointerPlan, ...]:
    """The pointers to ``rows`` rows of an operand along a dimension of C.

    A step takes ``k_elements`` elements of K of each.
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
    """The one of ``pointers`` through which a row is read."""
    return next(p for p in reversed(pointers) if p.row <= row)


@dataclass(frozen=True, slots=True)
class KStep(ABC):
    """What one kind of product does in a step along K.

    ``along`` and ``across`` are the pointers to the input whose elements lie along the vectors,
    and to the other one.
    """

    tile: Tile
    along: tuple[PointerPlan, ...]
    across: tuple[PointerPlan, ...]

    #: Said in C beside the loop over the steps that fill no trip of the unrolled one.
    note: ClassVar[str] = "K tail"

    @classmethod
    def of(cls, tile: Tile) -> Self:
        """The steps of ``tile``, and the pointers that they need."""
        elements, (along, across) = cls.k_elements(tile), cls.lines(tile)
        return cls(
            tile,
            pointer_plans(tile.along, tile.plan.along, along, elements),
            pointer_plans(tile.across, tile.plan.across, across, elements),
        )

    @staticmethod
    def k_elements(tile: Tile) -> int:
        """The elements of K that a step takes of each row of A and column of B."""
        return tile.product.depth

    @staticmethod
    def lines(tile: Tile) -> tuple[int, int]:
        """How many lines along K pointers lead to, of the input along the vectors and the other.

        One where elements of other lines lie beside the first one's.
        """
        return 1, 1

    @property
    def count(self) -> Expr:
        """How many steps there are, without the tail."""
        return self.tile.steps

    @property
    def unroll(self) -> int:
        """Steps in one trip of the K loop: each accumulator set is summed into equally often."""
        return self.tile.chosen.unroll.count

    @property
    def straight(self) -> bool:
        """Whether all steps are straight code: there are fewer than two trips have."""
        return not self.tile.chosen.unroll.loop

    @property
    def inputs(self) -> tuple[PointerPlan, ...]:
        """The pointers to A, then those to B."""
        a_along = self.tile.along.name == "a"
        return self.along + self.across if a_along else self.across + self.along

    @property
    def pointers(self) -> tuple[PointerPlan, ...]:
        """The pointers that are set before the K loop."""
        return self.inputs

    @property
    def moved(self) -> tuple[PointerPlan, ...]:
        """The pointers that move from step to step, in the order in which they do."""
        return self.inputs

    @property
    def prefetched(self) -> PointerPlan | None:
        """The pointer behind which the schedule's ``prefetch`` reads ahead, once a trip.

        None: what was just packed is in the cache, and may lie at the end of the stack's frame.
        """
        return None if self.tile.along.packed else self.along[0]

    @abstractmethod
    def emit(self, index: int, run: int) -> Iterator[Op]:
        """Step ``index`` of ``run`` steps in straight code."""

    @abstractmethod
    def tail(self, index: int) -> Iterator[Op]:
        """The elements of K that fill no step, read as step ``index`` from the pointers on."""

    def leave(self, run: int) -> Iterator[Op]:
        """How pointers move behind straight code of ``run`` steps, which the tail follows."""
        if run:
            yield from (p.advance(1) for p in self.moved if p.walked)

    @property
    def shape(self) -> TileShape:
        """The register tile's shape."""
        return self.tile.shape

    def order(self, along: int, across: int) -> Iterator[tuple[Side, int, list[tuple[int, int]]]]:
        """What a step loads of either side, and the products (along, across) it then multiplies.

        There are so many factors along and across. The side that is held is loaded first, the
        other one passes by, a factor at a time.
        """
        if self.shape.hold == "across":
            yield from (("across", y, []) for y in range(across))
            yield from (("along", x, [(x, y) for y in range(across)]) for x in range(along))
        else:
            yield from (("along", x, []) for x in range(along))
            yield from (("across", y, [(x, y) for x in range(along)]) for y in range(across))

    def accumulator_set(self, index: int) -> int:
        """The accumulator set that step ``index`` sums into."""
        return index % self.shape.k_split

    def held(self, side: Side) -> Vector:
        """The vector that holds factors of the input on that side."""
        return self.tile.product.held(self.tile.plan.target, self.tile.vector, side)


def factor(operand: Operand, index: int, step: int, vector: Vector, suffix: str = "") -> Register:
    """The register of an operand's row or vector ``index`` in a step, named after all three."""
    return Register(f"{operand.name}{index}" + (f"_k{step}" if step else "") + suffix, vector)


def k_loop(step: KStep) -> Iterator[Op]:
    """All products of a tile added to its accumulators: pointers, and the steps along K.

    The batch loop is around them where it stands inside of the tile.
    """
    plan, loops = step.tile.plan, tuple(_k_loops(step))
    if plan.batch is None or "b" not in plan.inner:
        yield from (p.point for p in step.pointers)
        yield from _hidden(plan, *(p.point.pointer for p in step.pointers))
        yield from loops
    else:
        points = tuple(_point_of_batch(plan, p) for p in step.pointers)
        yield Loop("i", plan.batch.count, points + loops, "batch")
    yield from _hidden(plan, step.tile.written.name)


def _point_of_batch(plan: Plan, pointer: PointerPlan) -> PointBatch:
    """The pointer set to the batch's matrix of this trip."""
    return PointBatch(
        pointer=pointer.point.pointer,
        operand=pointer.point.base,
        index="i",
        offset=pointer.point.offset,
        element=pointer.point.element,
        batch=plan.batch_kind(pointer.operand),
        stride=plan.batch_stride(pointer.operand),
    )


def _hidden(plan: Plan, *pointers: str) -> Iterator[Op]:
    """Addresses are computed where they are needed, on targets whose compilers must be told."""
    if plan.target.hints is not None and plan.target.hints.pointers:
        yield from map(Hide, pointers)


def _k_loops(step: KStep) -> Iterator[Op]:
    """All of K: a loop of unrolled trips, the steps left over, and the tail.

    How many steps are left over may be known only at the call: they are then a loop of their own.
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
    """``count`` steps a trip. Pointers whose stride along K is fixed move once a trip."""
    last = [p.advance(1) for p in step.moved if p.walked]
    trip = [p.advance(count) for p in step.moved if not p.walked]
    return Loop("kt", trips, (*_run(step, count), *last, *trip), note)


def _run(step: KStep, count: int) -> Iterator[Op]:
    """``count`` steps in straight code; pointers whose stride is of the call move between them."""
    ahead, distance = step.prefetched, step.tile.plan.schedule.prefetch
    if ahead is not None and distance is not None and count:
        yield Prefetch(Address(ahead.point.pointer, distance * ahead.k_stride))
    for index in range(count):
        yield from (p.advance(1) for p in step.moved if p.walked and index)
        yield step_note(index, count)
        yield from step.emit(index, count)


def step_note(index: int, count: int) -> Note:
    """What one of ``count`` steps that stand one behind the other computes."""
    return Note("Load, multiply-add" + (f": step {index + 1} of {count}." if count > 1 else "."))


def k_group_tail(tile: Tile, ops: Iterable[Op]) -> Iterator[Op]:
    """The step of a K group that is not whole: a loop of one trip or none if K is of the call."""
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
    """``acc += x * y``, and its registers kept where they are.

    A vector used by one row only may be read from memory by the multiply-add itself, if it is
    ``whole``; where vectors lie along K, so may either side's. Parts take an instruction of their
    own: without order, all of a step may be loaded first.
    """
    hints, shape = tile.plan.target.hints, tile.shape
    uses = min(shape.bands, shape.vectors) if tile.plan.dot else shape.bands
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
