"""The end of a tile whose sums lie in matrices: they go to memory, and from there row by row to C.

Sums that C takes as they are go there at once. Where C is contiguous across the vectors, a copy
on the stack is transposed before its rows are taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from sympy import Expr

from .lines import Lines, Stack
from .lower import Tile
from .matrices import accumulator, direct, places, stored
from .program import (
    Active,
    Address,
    Load,
    MakeMask,
    MaskRegister,
    Op,
    Register,
    StoreMatrix,
)
from .store import transpose
from .symbolic import ONE, ZERO, div, linear, value


def store_matrices(tile: Tile) -> Iterator[Op]:
    """All sums on their way out."""
    if direct(tile):
        for band, column in places(tile):
            yield stored(tile, band, column, tile.written)
        return
    rows = _Rows(tile)
    yield from rows.spill()
    yield from rows.turn() if tile.plan.transposed else ()
    yield from rows.finish()


class _Rows:
    """Where the rows of sums lie: a pointer, and the elements from row to row."""

    def __init__(self, tile: Tile) -> None:
        self.tile, self.shape, self.lanes = tile, tile.region.shape, tile.vector.lanes
        self.pointer = "sums"
        self.step: Expr = self.shape.columns * self.lanes * ONE
        if tile.stage == "finish":
            self.step = tile.plan.operands["sums"].strides[tile.plan.across]

    def spill(self) -> Iterator[Op]:
        """Sums on the stack, unless they stand in memory already."""
        if self.tile.stage == "finish":
            return
        stack = Stack(self.tile, self.shape.bands * self.lanes, self.shape.columns)
        yield stack.room()
        for band, column in places(self.tile):
            offset = linear(((band * self.lanes, self.step), (column * self.lanes, ONE)))
            acc = accumulator(self.tile, band, column)
            yield StoreMatrix(Address(stack.name, offset), acc, self.step)
        yield stack.begin()
        self.pointer = stack.pointer

    def turn(self) -> Iterator[Op]:
        """The sums transposed, block by block, so that rows are what C is contiguous along."""
        bands, columns = self.shape.bands, self.shape.columns
        stack = Stack(self.tile, columns * self.lanes, bands, "turned_room", "turned")
        yield stack.room()
        for band in range(bands):
            for column in range(columns):
                yield from self._turn_block(stack, band, column)
        yield stack.begin()
        self.pointer, self.step = stack.pointer, stack.step * ONE

    def _turn_block(self, stack: Stack, band: int, column: int) -> Iterator[Op]:
        block = []
        for row in range(self.lanes):
            there = self._exists(band * self.lanes + row)
            if there == 0:
                break
            register = Register(f"s{band}_{column}_{row}", self.tile.vector)
            offset = linear(((band * self.lanes + row, self.step), (column * self.lanes, ONE)))
            active = None if there == 1 else self.lanes * there
            yield Load(register, Address(self.pointer, offset), active)
            block.append(register)
        ops, turned = transpose(block, self.lanes, f"t{band}_{column}_")
        yield from ops
        for line, register in enumerate(turned):
            yield stack.put(column * self.lanes + line, band, register)

    def _exists(self, row: int) -> Expr:
        """1 if the tile has that row, else 0."""
        size = self.tile.region.across.size
        known = value(size)
        if known is not None:
            return ONE if row < known else ZERO
        return div(size + (self.lanes - 1 - row), self.lanes)

    def finish(self) -> Iterator[Op]:
        """Rows become C, one after the other."""
        tile, plan = self.tile, self.tile.plan
        line, other = plan.along, plan.across
        sizes = {plan.along: tile.region.along.size, plan.across: tile.region.across.size}
        if plan.transposed:
            line, other = other, line
        vectors = tuple(
            (index * self.lanes, active) for index, active in enumerate(self._active(sizes[line]))
        )
        if plan.transposed:
            yield from (MakeMask(v) for _, v in vectors if isinstance(v, MaskRegister))
        yield Lines(tile, line, vectors, sizes[other], self.pointer, self.step).loop()

    def _active(self, size: Expr) -> Iterator[Active]:
        """What exists of each vector of a row."""
        count = self.shape.bands if self.tile.plan.transposed else self.shape.columns
        left = size - (count - 1) * self.lanes
        for index in range(count):
            if index < count - 1 or left == self.lanes:
                yield None
            else:
                yield MaskRegister("mask", self.tile.vector, left)
