"""K steps of quantized operands on a matrix unit: a block of K is summed in matrices.

Parts of a block of B are unpacked into a buffer, from which matrices are loaded. The sums of a
block go to another one: from there they are scaled row by row, and added to f32 sums that lie
beside them, in the same operations as where vectors sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sympy import Expr, Integer

from tilewright.ir.ops import (
    Advance,
    Apply,
    Broadcast,
    Load,
    Loop,
    Note,
    Op,
    Point,
    StackBuffer,
    Store,
    StoreMatrix,
    ZeroMatrix,
)
from tilewright.ir.values import Address, Register
from tilewright.symbolic import ONE, ZERO, linear

from .matrix_product import Place, accumulator, multiplied, places
from .scaled_product import ScaledProduct
from .store import LINE, Stack
from .tile import Tile

#: The buffers of a part of B, unpacked, and of the sums of a block; the pointers to rows of sums.
_UNPACKED, _SUMMED = "b_room", "block_room"
_BLOCK_ROW, _ROW = "block_row", "sums_row"


def sums_beside(tile: Tile) -> Stack:
    """Where the f32 sums of ``tile`` lie."""
    shape = tile.shape
    return Stack(tile, shape.bands * tile.shape.height, shape.columns)


def begin_beside(tile: Tile) -> Iterator[Op]:
    """The buffers of a tile; its sums at 0."""
    shape, product, lanes = tile.shape, tile.product, tile.vector.lanes
    stack, columns = sums_beside(tile), shape.columns * lanes
    yield Note("The sums of this tile of C, and those of one block of K, by way of memory.")
    yield stack.buffer(zeros=True)
    yield StackBuffer(_SUMMED, product.summed, stack.lines * columns)
    if _unpacks(tile):
        yield StackBuffer(_UNPACKED, product.along, product.depth * columns)


def _unpacks(tile: Tile) -> bool:
    """Whether elements of B change on the way; else matrices are read where the caller's lie."""
    form = tile.plan.quantized
    return form.fields > 1 or form.stored != tile.product.along


@dataclass(frozen=True, slots=True)
class ScaledMatrices(ScaledProduct):
    """Steps of one block of K, which the unit sums from equal parts of it."""

    @property
    def part(self) -> int:
        """The K groups of a part."""
        return self.tile.product.depth // self.tile.product.group

    @property
    def looped(self) -> bool:
        """Whether a block has several parts."""
        return self.groups > self.part

    def emit(self, index: int, run: int) -> Iterator[Op]:
        """The sums of a block, then scaled and added."""
        if not self.tile.plan.spec.sums_blocks:
            yield from self.looked_up(index).table()
        for place in places(self.tile):
            yield ZeroMatrix(accumulator(self.tile, *place))
        first, parts = index * self.groups, self.groups // self.part
        if self.looped:
            body = (*self._part(first), *self._moves(self.part))
            yield Loop("kg", Integer(parts), body, "a block of K")
        else:
            yield from self._part(first)
        yield from self._spill()
        yield from self._rows(index)

    def _part(self, first: int) -> Iterator[Op]:
        """A part of a block, from K group ``first`` on."""
        unpacks, width = _unpacks(self.tile), self.held("along").lanes
        yield from self._unpacked(first) if unpacks else ()

        def along_at(column: int) -> Place:
            if unpacks:
                return Address(_UNPACKED, column * self.part * width * ONE), width * ONE
            form = self.tile.plan.quantized
            return self.plane_at(column, first, 0), form.nb * form.group * ONE

        def across_at(band: int) -> Place:
            stride = self.tile.across.strides[self.tile.plan.across]
            return self.across_at(band * self.shape.height, first), stride

        yield Note(f"Multiply: {self.tile.product.depth} of K.")
        yield from multiplied(self, 0, along_at, across_at)

    def _unpacked(self, first: int) -> Iterator[Op]:
        """A part of a block of B in the buffer, the K groups of a vector of columns together."""
        width = self.held("along").lanes
        yield Note("What matrices hold of B is unpacked.")
        for column in range(self.shape.columns):
            for k in range(first, first + self.part):
                yield from self.load(column, k)
                place = Address(_UNPACKED, (column * self.part + k - first) * width * ONE)
                yield Store(place, self.vector(column, k))

    def _spill(self) -> Iterator[Op]:
        """The sums of a block to their buffer."""
        lanes, step = self.tile.vector.lanes, self._step
        for band, column in places(self.tile):
            first = (band * self.shape.height, step), (column * lanes, ONE)
            acc = accumulator(self.tile, band, column)
            yield StoreMatrix(Address(_SUMMED, linear(first)), acc, step)

    @property
    def _step(self) -> Expr:
        """Elements from row to row of sums."""
        return sums_beside(self.tile).step * ONE

    # --- scaled, row by row ----------------------------------------------------------------------

    def _rows(self, index: int) -> Iterator[Op]:
        """The sums of a block scaled, and added to the tile's."""
        tile, rows = self.tile, self.tile.across_size
        room = sums_beside(tile)
        yield Note("The sums of this block of K, row by row: scaled and added.")
        yield from self.of_columns(index)
        yield from self.totals(index)
        yield Point(_BLOCK_ROW, _SUMMED, ZERO, tile.product.summed)
        yield Point(_ROW, room.name, ZERO, tile.plan.element, written=True)
        own = [p for p in self.scales if p.operand.name.startswith("a_")]
        ends = [Advance(p.point.pointer, p.row_stride) for p in own if p.row_stride != 0]
        ends += [Advance(pointer, self._step) for pointer in (_BLOCK_ROW, _ROW)]
        yield Loop(LINE, rows, (*self._row(index), *ends))
        yield from (
            Advance(p.point.pointer, -rows * p.row_stride) for p in own if p.row_stride != 0
        )

    def _row(self, index: int) -> Iterator[Op]:
        """One row: what belongs to it of A, then each vector of columns."""
        yield from self.zero_of(0, index)
        starts = list(self._starts(index))
        yield from starts
        yield from self.of_row(0, index)
        for column in range(self.shape.columns):
            place = column * self.tile.vector.lanes * ONE
            partial = self.sum_of(0, column, index * self.groups)
            raw = replace(partial, name=f"{partial.name}_raw") if starts else partial
            yield Load(raw, Address(_BLOCK_ROW, place))
            yield from self.less_zeros(raw, 0, column, index)
            for start in starts:
                yield Apply(partial, "add", (raw, start.dst), self.summing)
            acc = Register(f"r{column}", self.tile.vector)
            yield Load(acc, Address(_ROW, place))
            yield from self.add_one(acc, 0, column, index)
            yield Store(Address(_ROW, place), acc)

    def _starts(self, index: int) -> Iterator[Broadcast]:
        """What zero points of B take from a row's sums, where they do."""
        if "a_starts" in self.tile.plan.operands:
            starts = replace(self.of_block("a_starts", 0, index), vector=self.summing)
            yield Broadcast(starts, self.scale_at("a_starts", 0, index))
