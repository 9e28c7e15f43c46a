"""The K loop of a tile whose sums lie in the registers of a matrix unit.

Matrices of the side that is held are loaded first, those of the other side pass by in turns. What
of K does not fill a step is read from a copy, which zeros follow.
"""

from __future__ import annotations

from collections.abc import Iterator

from sympy import Expr, Integer

from tilewright.ir.ops import (
    Address,
    LoadMatrix,
    Loop,
    MatrixRegister,
    MultiplyMatrices,
    Op,
    Point,
    StoreMatrix,
    ZeroMatrix,
)
from tilewright.isa.matrix_unit import MatrixUnit
from tilewright.plan.operands import Operand
from tilewright.symbolic import ZERO, div, linear, mod, value

from .tile import PointerPlan, Tile, advance, pointer_plans


def matrix_loops(tile: Tile) -> tuple[list[PointerPlan], tuple[Op, ...]]:
    """The K loop, and the pointers it walks."""
    body = _Body(tile)
    steps, count = tile.steps, tile.chosen.unroll.count
    ops: list[Op] = []
    straight = value(steps)
    if tile.chosen.unroll.loop:
        ops.append(body.loop(div(steps, count), count))
        straight = value(mod(steps, count))
    if straight is None:
        ops.append(body.loop(mod(steps, count), 1, "K tail"))
        straight = 0
    ops += body.steps(straight)
    if tile.rest != 0:
        moved = min(straight, 1)  # the pointers stand at the last of the steps
        last = (*advance([body.along], moved, runtime=True), *body.step(straight, body.tail))
        whole = value(tile.rest) is not None
        depth = tile.product.depth
        trips = div(tile.rest + (depth - 1), depth)
        ops += last if whole else (Loop("kt", trips, last, "K rest"),)
    return body.pointers, tuple(ops)


def accumulator(tile: Tile, band: int, column: int, split: int = 0) -> MatrixRegister:
    """The sums of one band of rows and one vector of columns, in one of the sets."""
    name = tile.accumulator(band, column, split).name
    rows, lanes = band_rows(tile, band), column_lanes(tile, column)
    return MatrixRegister(name, unit_of(tile), tile.plan.element, rows, lanes)


def unit_of(tile: Tile) -> MatrixUnit:
    """The matrix unit of the tile."""
    unit = tile.shape.unit
    assert unit is not None
    return unit


def band_rows(tile: Tile, band: int) -> Expr:
    """How many rows of a band there are."""
    height, shape = tile.shape.height, tile.shape
    if value(tile.across_size) is None:
        assert shape.bands == 1, "rows known only at the call are one band"
        return tile.across_size
    return Integer(min(height, shape.rows - band * height))


def column_lanes(tile: Tile, column: int) -> int:
    """How many columns of C a register has: where sums are stored as they are, those there are.

    Elsewhere all that its loads may read: more than there are where lines end in room for them.
    """
    active, shape, lanes = tile.chosen.active, tile.shape, tile.vector.lanes
    known = None if active is None else value(active)
    if known is None or column < shape.columns - 1:
        return lanes
    cut = direct(tile) or tile.loaded(shape.vectors - 1) is not None
    return known if cut else lanes


def places(tile: Tile) -> Iterator[tuple[int, int]]:
    """The band and the column of every accumulator."""
    shape = tile.shape
    yield from ((band, column) for band in range(shape.bands) for column in range(shape.columns))


def begin(tile: Tile) -> Iterator[Op]:
    """Accumulators at zero, or at the sums that what is written holds already."""
    if begins_from_memory(tile):
        for place in places(tile):
            store = stored(tile, *place, tile.written)
            yield LoadMatrix(store.src, store.address, store.stride)
        return
    for split in range(tile.shape.k_split):
        yield from (ZeroMatrix(accumulator(tile, *place, split)) for place in places(tile))


def begins_from_memory(tile: Tile) -> bool:
    """Whether the accumulators take over sums."""
    adds = tile.accumulate or (tile.stage == "whole" and tile.plan.spec.beta == 1)
    return adds and direct(tile)


def direct(tile: Tile) -> bool:
    """Whether sums are stored as they are, where they are written.

    Partial sums have a buffer whose rows end with whole vectors. Sets of sums are added in vectors.
    """
    plan = tile.plan
    if tile.shape.k_split > 1:
        return False
    if tile.stage == "sum":
        return True
    plain = plan.spec.alpha == 1 and (tile.accumulate or plan.spec.beta in (0, 1))
    whole = tile.chosen.active is None or value(tile.chosen.active) is not None
    return plain and whole and not (plan.finishes or plan.transposed)


def stored(tile: Tile, band: int, column: int, operand: Operand) -> StoreMatrix:
    """An accumulator stored at its place in an operand."""
    strides, shape = operand.strides, tile.shape
    plan = tile.plan
    row, first = band * shape.height, column * tile.vector.lanes
    offset = linear(((row, strides[plan.across]), (first, strides[plan.along])))
    place = Address(operand.name, offset)
    return StoreMatrix(place, accumulator(tile, band, column), strides[plan.across])


class _Body:
    """Emits steps of K of one tile."""

    def __init__(self, tile: Tile) -> None:
        self.tile, self.shape, self.product = tile, tile.shape, tile.product
        depth = self.product.depth
        self.along = pointer_plans(tile.along, tile.plan.along, 1, depth)[0]
        self.across = pointer_plans(tile.across, tile.plan.across, 1, depth)[0]
        self.tail = self._tail()
        both = [self.across, self.along]
        used = both if tile.along.name == "b" else both[::-1]
        walked = used if tile.steps != 0 else [self.along]
        self.pointers = [*walked, self.tail] if tile.rest != 0 else walked

    def _tail(self) -> PointerPlan:
        """Where the last, cut step of what lies across is read."""
        operand = self.tile.plan.operands.get(f"{self.tile.across.name}_tail", self.tile.across)
        point = Point(f"p{operand.name}", operand.name, ZERO, operand.type)
        return PointerPlan(operand, point, 0, ZERO, operand.strides[self.tile.plan.across])

    def loop(self, trips: Expr, count: int, note: str = "") -> Loop:
        """``count`` steps a trip."""
        walked = [self.along, self.across]
        moves = (*advance(walked, 1, runtime=True), *advance(walked, count, runtime=False))
        return Loop("kt", trips, (*self.steps(count), *moves), note)

    def steps(self, count: int) -> Iterator[Op]:
        """``count`` steps from the pointers on; between them those of run-time strides move."""
        for k in range(count):
            yield from advance([self.along, self.across], 1, runtime=True) if k else ()
            yield from self.step(k, self.across)

    def step(self, k: int, across: PointerPlan) -> Iterator[Op]:
        """Step ``k`` from the pointers on."""
        counts = {"along": self.shape.columns, "across": self.shape.bands}
        split = k % self.shape.k_split
        kept = self.shape.hold
        passing = "across" if kept == "along" else "along"

        def load_of(side: str, index: int, slot: int) -> LoadMatrix:
            if side == "along":
                return self._x(k, index, slot)
            return self._y(across, k, index, slot)

        stay = [load_of(kept, index, index) for index in range(counts[kept])]
        yield from stay
        for index in range(counts[passing]):
            load = load_of(passing, index, self._slot(index, counts[passing]))
            yield load
            for other, held in enumerate(stay):
                place = {kept: other, passing: index}
                factors = {kept: held.dst, passing: load.dst}
                acc = accumulator(self.tile, place["across"], place["along"], split)
                yield MultiplyMatrices(self.shape.op, acc, factors["along"], factors["across"])

    def _slot(self, index: int, count: int) -> int:
        """The register that a matrix passes through; the last, which may be cut, has its own."""
        shape = self.shape
        taken = shape.budget.accumulators + min(shape.bands, shape.columns)
        slots = min(count, unit_of(self.tile).registers - taken)
        return slots - 1 if index == count - 1 else index % max(1, slots - 1)

    def _x(self, k: int, column: int, slot: int) -> LoadMatrix:
        """A matrix of what lies along the vectors: a row for each group of K."""
        group, depth = self.product.group, self.product.depth
        operand, lanes = self.tile.along, column_lanes(self.tile, column)
        name = f"{operand.name}{slot}"
        rows = Integer(depth // group)
        register = MatrixRegister(name, unit_of(self.tile), operand.type, rows, lanes * group)
        address = self.along.address(0, k, column * self.tile.vector.lanes * group)
        return LoadMatrix(register, address, group * operand.strides["k"])

    def _y(self, pointer: PointerPlan, k: int, band: int, slot: int) -> LoadMatrix:
        """A matrix of what lies across: a row for each row of the sums."""
        rows, depth = band_rows(self.tile, band), self.product.depth
        name = f"{self.tile.across.name}{slot}"
        register = MatrixRegister(name, unit_of(self.tile), self.tile.across.type, rows, depth)
        k = k if pointer is self.across else 0
        return LoadMatrix(
            register, pointer.address(band * self.shape.height, k), pointer.row_stride
        )
