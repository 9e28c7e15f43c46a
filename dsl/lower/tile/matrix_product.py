"""K steps of a tile whose accumulators are matrix registers of a matrix unit.

Elements of K that fill no step are read from a zero-padded copy of the operand across.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sympy import Expr, Integer

from tilewright.ir.ops import (
    LoadMatrix,
    MultiplyMatrices,
    Note,
    Op,
    Point,
    StoreMatrix,
    ZeroMatrix,
)
from tilewright.ir.values import Address, MatrixRegister
from tilewright.isa.matrix_unit import MatrixUnit
from tilewright.plan.operands import Operand
from tilewright.symbolic import ZERO, linear, value

from .k_loop import KStep, PointerPlan, Side, k_group_tail, order
from .tile import Tile


@dataclass(frozen=True, slots=True)
class MatrixProduct(KStep):
    """The steps of a matrix unit: each takes as many K groups as a row of a matrix
    register holds.
    """

    @property
    def pointers(self) -> tuple[PointerPlan, ...]:
        """The pointers to whole steps, and the pointer to the copy of the tail."""
        whole = self.inputs if self.tile.steps != 0 else self.along
        return whole if self.tile.k_tail == 0 else (*whole, self._copied_tail())

    @property
    def moved(self) -> tuple[PointerPlan, ...]:
        """The pointers along the vectors, then those across, regardless of which is A."""
        return self.along + self.across

    def emit(self, index: int, run: int) -> Iterator[Op]:
        """Multiply the matrix of each band of rows of A by that of each vector of columns of B."""
        yield from self._step(index, self.across[0], index)

    def leave(self, run: int) -> Iterator[Op]:
        """Emit nothing: pointers stay at the last step, and the tail moves the pointer that it
        needs.
        """
        yield from ()

    def tail(self, index: int) -> Iterator[Op]:
        """Emit a step of the remaining K groups; the last group is padded with zeros in a copy."""
        if self.tile.k_tail == 0:
            return
        moves = (p.advance(min(index, 1)) for p in self.along if p.walked)
        step = self._step(index, self._copied_tail(), 0)
        yield from k_group_tail(self.tile, (*moves, *step))

    def _copied_tail(self) -> PointerPlan:
        """Return the pointer to the operand's tail: to its zero-padded copy, if there is one."""
        operand = self.tile.operands.get(f"{self.tile.across.name}_tail", self.tile.across)
        point = Point(f"p{operand.name}", operand.name, ZERO, operand.type)
        return PointerPlan(operand, point, 0, ZERO, operand.strides[self.tile.here.problem.across])

    def _step(self, k: int, across: PointerPlan, across_k: int) -> Iterator[Op]:
        """Emit step ``k``; the operand across is read at step ``across_k`` of the pointer
        ``across``.
        """
        group, strides = self.tile.product.group, self.tile.along.strides

        def along_at(column: int) -> Place:
            address = self.along[0].address(0, k, column * self.tile.vector.lanes * group)
            return address, group * strides["k"]

        def across_at(band: int) -> Place:
            return across.address(band * self.shape.height, across_k), across.row_stride

        yield from multiplied(self.tile, self.accumulator_set(k), along_at, across_at)


#: The address of a matrix's first row in memory, and the distance of two rows in elements.
Place = tuple[Address, Expr]


def multiplied(
    tile: Tile, split: int, along_at: Callable[[int], Place], across_at: Callable[[int], Place]
) -> Iterator[Op]:
    """Load and multiply the matrices of each column along and each band across."""
    for _, ops in products(tile, split, along_at, across_at):
        yield from ops


def products(
    tile: Tile, split: int, along_at: Callable[[int], Place], across_at: Callable[[int], Place]
) -> Iterator[tuple[tuple[int, int], tuple[Op, ...]]]:
    """Yield each (band, column) with the operations of its product, loads included."""
    shape, loads = tile.shape, list[Op]()
    for side, index, multiplies in order(tile, shape.columns, shape.bands):
        if side == "along":
            loads.append(LoadMatrix(_along(tile, index), *along_at(index)))
        else:
            loads.append(LoadMatrix(_across(tile, index), *across_at(index)))
        for column, band in multiplies:
            acc = accumulator(tile, band, column, split)
            factors = _along(tile, column), _across(tile, band)
            yield (band, column), (*loads, MultiplyMatrices(shape.op, acc, *factors))
            loads.clear()


def _along(tile: Tile, column: int) -> MatrixRegister:
    """Return the register for a matrix of the operand along the vectors, with a row for each K
    group.
    """
    group, depth, shape = tile.product.group, tile.product.depth, tile.shape
    name = f"{tile.along.name}{_slot(tile, 'along', column, shape.columns)}"
    rows, width = Integer(depth // group), column_lanes(tile, column) * group
    return MatrixRegister(name, unit_of(tile), tile.product.along, rows, width)


def _across(tile: Tile, band: int) -> MatrixRegister:
    """Return the register for a matrix of the operand across, with a row for each row of
    accumulators.
    """
    name = f"{tile.across.name}{_slot(tile, 'across', band, tile.shape.bands)}"
    rows, depth = band_rows(tile, band), tile.product.depth
    return MatrixRegister(name, unit_of(tile), tile.product.across, rows, depth)


def _slot(tile: Tile, side: Side, index: int, count: int) -> int:
    """Return the number of the register for matrix ``index`` of an operand, which has ``count``.

    Each matrix of the held side has its own register. The other side's matrices share the remaining
    registers. Its last matrix may have fewer rows or columns, so it has its own register.
    """
    shape = tile.shape
    if side == shape.hold:
        return index
    taken = shape.budget.accumulators + min(shape.bands, shape.columns)
    slots = min(count, unit_of(tile).registers[tile.product.summed] - taken)
    return slots - 1 if index == count - 1 else index % max(1, slots - 1)


def accumulator(tile: Tile, band: int, column: int, split: int = 0) -> MatrixRegister:
    """Return the accumulator of one band of rows and one vector of columns, in set ``split``."""
    name = tile.accumulator(band, column, split).name
    rows, lanes = band_rows(tile, band), column_lanes(tile, column)
    return MatrixRegister(name, unit_of(tile), tile.product.summed, rows, lanes)


def unit_of(tile: Tile) -> MatrixUnit:
    """Return the matrix unit of the tile."""
    unit = tile.shape.unit
    assert unit is not None
    return unit


def band_rows(tile: Tile, band: int) -> Expr:
    """Return the number of rows in a band."""
    height, shape = tile.shape.height, tile.shape
    if value(tile.across_size) is None:
        assert shape.bands == 1, "rows known only at the call are one band"
        return tile.across_size
    return Integer(min(height, shape.rows - band * height))


def column_lanes(tile: Tile, column: int) -> int:
    """Return the number of columns of C that an accumulator holds.

    Only existing columns if it is stored directly to C, otherwise also padding that may be read.
    """
    active, shape, lanes = tile.chosen.active, tile.shape, tile.vector.lanes
    if tile.product.block:
        return lanes  # sums of a block of K are stored to a buffer, not to C
    known = None if active is None else value(active)
    if known is None or column < shape.columns - 1:
        return lanes
    cut = direct(tile) or tile.loaded(shape.vectors - 1) is not None
    return known if cut else lanes


def places(tile: Tile) -> Iterator[tuple[int, int]]:
    """Yield the band and the column of every accumulator."""
    shape = tile.shape
    yield from ((band, column) for band in range(shape.bands) for column in range(shape.columns))


def begin(tile: Tile) -> Iterator[Op]:
    """Set accumulators to 0, or load the sums that the destination already holds."""
    yield Note("Accumulators, named by their band of rows and column of vectors in this tile of C.")
    if begins_from_memory(tile):
        for place in places(tile):
            store = stored(tile, *place, tile.written)
            yield LoadMatrix(store.src, store.address, store.stride)
        return
    for split in range(tile.shape.k_split):
        yield from (ZeroMatrix(accumulator(tile, *place, split)) for place in places(tile))


def begins_from_memory(tile: Tile) -> bool:
    """True if the accumulators start at sums in memory."""
    adds = tile.accumulate or (tile.phase == "whole" and tile.plan.spec.beta == 1)
    return adds and direct(tile)


def direct(tile: Tile) -> bool:
    """True if sums are stored to their destination without further arithmetic.

    This always holds for unsplit partial sums: rows of their buffer have whole vectors. Several
    sets are added in vector registers first.
    """
    plan = tile.plan
    if tile.shape.k_split > 1 or tile.product.block:
        return False
    if tile.phase == "sum":
        return True
    plain = plan.spec.alpha == 1 and (tile.accumulate or plan.spec.beta in (0, 1))
    whole = tile.chosen.active is None or value(tile.chosen.active) is not None
    return plain and whole and not (plan.staging.finishes or plan.staging.transposed)


def stored(tile: Tile, band: int, column: int, operand: Operand) -> StoreMatrix:
    """Return the store of an accumulator to its place in an operand."""
    strides, shape = operand.strides, tile.shape
    plan = tile.plan
    row, first = band * shape.height, column * tile.vector.lanes
    offset = linear(((row, strides[plan.problem.across]), (first, strides[plan.problem.along])))
    place = Address(operand.name, offset)
    return StoreMatrix(place, accumulator(tile, band, column), strides[plan.problem.across])
