"""The end of a tile whose sums are in matrix registers: store them to memory, then finish each row.

Sums that need no further arithmetic are stored directly to C. If K is split, the sums of all sets
are stored to the stack, and added when rows are loaded. If C is contiguous across the vectors, a
copy on the stack is transposed first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from sympy import Expr

from tilewright.ir.interleaving import transpose
from tilewright.ir.ops import (
    MakeMask,
    Note,
    Op,
    StoreMatrix,
)
from tilewright.ir.values import Active, Address, MaskRegister, Register
from tilewright.symbolic import ONE, ZERO, div, linear, value

from .matrix_product import accumulator, direct, places, stored
from .scaled_matrices import sums_beside
from .store import Lines, Stack, Sums
from .tile import Tile


def store_matrices(tile: Tile) -> Iterator[Op]:
    """Store all sums: directly, or through the stack and row by row."""
    if direct(tile):
        yield Note("Store the accumulators.")
        for band, column in places(tile):
            yield stored(tile, band, column, tile.written)
        return
    rows = _Rows(tile)
    yield from rows.spill()
    yield from rows.turn() if rows.turned else ()
    yield from rows.finish()


class _Rows:
    """The rows of sums in memory, and whether they are transposed first."""

    def __init__(self, tile: Tile) -> None:
        self.tile, self.shape, self.lanes = tile, tile.shape, tile.vector.lanes
        self.turned = tile.here.transposed and tile.phase != "sum"
        self.sums = Sums("sums", tile.operands["sums"].strides[tile.here.problem.across])

    def spill(self) -> Iterator[Op]:
        """Store the sums on the stack, set after set, unless they are in memory already."""
        if self.tile.phase == "finish":
            return
        if self.tile.product.block:
            stack = sums_beside(self.tile)
            yield stack.begin()
            self.sums = stack.sums
            return
        sets, lines = self.shape.k_split, self.shape.bands * self.lanes
        stack = Stack(self.tile, sets * lines, self.shape.columns)
        yield Note("The sums go to the stack, from where their rows are taken.")
        yield stack.buffer()
        for split, (band, column) in product(range(sets), places(self.tile)):
            first = split * lines + band * self.lanes
            offset = linear(((first, stack.step * ONE), (column * self.lanes, ONE)))
            acc = accumulator(self.tile, band, column, split)
            yield StoreMatrix(Address(stack.name, offset), acc, stack.step * ONE)
        yield stack.begin()
        self.sums = replace(stack.sums, sets=sets, apart=lines * stack.step * ONE)

    def turn(self) -> Iterator[Op]:
        """Transpose the sums block by block, so that the new rows run in C's contiguous
        direction.
        """
        bands, columns = self.shape.bands, self.shape.columns
        stack = Stack(self.tile, columns * self.lanes, bands, "turned_room", "turned")
        yield Note("Transpose the sums, block by block: rows become what C is contiguous along.")
        yield stack.buffer()
        for band in range(bands):
            for column in range(columns):
                yield from self._turn_block(stack, band, column)
        yield stack.begin()
        self.sums = stack.sums

    def _turn_block(self, stack: Stack, band: int, column: int) -> Iterator[Op]:
        block = []
        for row in range(self.lanes):
            there = self._exists(band * self.lanes + row)
            if there == 0:
                break
            register = Register(f"s{band}_{column}_{row}", self.tile.vector)
            place = (band * self.lanes + row, self.sums.step), (column * self.lanes, ONE)
            active = None if there == 1 else self.lanes * there
            yield from self.sums.read(register, linear(place), active)
            block.append(register)
        ops, turned = transpose(self.tile.plan.target, block, self.lanes, f"t{band}_{column}_")
        yield from ops
        for line, register in enumerate(turned):
            yield stack.put(column * self.lanes + line, band, register)

    def _exists(self, row: int) -> Expr:
        """Return 1 if the tile has row ``row``, else 0."""
        size = self.tile.across_size
        known = value(size)
        if known is not None:
            return ONE if row < known else ZERO
        return div(size + (self.lanes - 1 - row), self.lanes)

    def finish(self) -> Iterator[Op]:
        """Compute C from the rows of sums, one row after the other."""
        tile, plan = self.tile, self.tile.plan
        line, other = plan.problem.along, plan.problem.across
        sizes = {plan.problem.along: tile.along_size, plan.problem.across: tile.across_size}
        if self.turned:
            line, other = other, line
        vectors = tuple(
            (index * self.lanes, active) for index, active in enumerate(self._active(sizes[line]))
        )
        if plan.staging.transposed:
            yield from (MakeMask(v) for _, v in vectors if isinstance(v, MaskRegister))
        yield Note(f"Each {'row' if line == 'n' else 'column'} of sums becomes one of C.")
        yield Lines(tile, line, vectors, sizes[other], self.sums).loop()

    def _active(self, size: Expr) -> Iterator[Active]:
        """Yield the active lanes of each vector of a row."""
        count = self.shape.bands if self.turned else self.shape.columns
        tail = size - (count - 1) * self.lanes
        for index in range(count):
            if index < count - 1 or tail == self.lanes:
                yield None
            else:
                yield MaskRegister("mask", self.tile.vector, tail)
