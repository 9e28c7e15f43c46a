"""K steps of quantized operands on a matrix unit: each block of K is summed in matrix registers.

Parts of a block of B are unpacked into a buffer, from which matrices are loaded. The sums of a
block are stored to a second buffer. Vector code scales them row by row and adds them to f32 sums in
a third buffer, with the same operations as in ``ScaledProduct``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    Prefetch,
    StackBuffer,
    Store,
    StoreMatrix,
    ZeroMatrix,
)
from tilewright.ir.values import Address, Register
from tilewright.symbolic import ONE, linear

from .k_loop import PointerPlan, held, order
from .matrix_product import Place, accumulator, band_rows, products
from .outer_product import vector
from .scaled_product import BlockSums
from .store import LINE, Stack
from .tile import Tile

#: Names of two buffers, for an unpacked part of B and for the sums of one block. Then names of two
#: pointers, to a row of the block's sums and to a row of the tile's f32 sums.
_UNPACKED, _SUMMED = "b_room", "block_room"
_BLOCK_ROW, _ROW = "block_row", "sums_row"


def sums_beside(tile: Tile) -> Stack:
    """Return the buffer of the f32 sums of ``tile``."""
    shape = tile.shape
    return Stack(tile, shape.bands * tile.shape.height, shape.columns)


def begin_beside(tile: Tile) -> Iterator[Op]:
    """Declare the buffers of a tile, with its f32 sums at 0."""
    shape, product, lanes = tile.shape, tile.product, tile.vector.lanes
    stack, columns = sums_beside(tile), shape.columns * lanes
    yield Note("The sums of this tile of C, and those of one block of K, by way of memory.")
    yield stack.buffer(zeros=True)
    yield StackBuffer(_SUMMED, product.summed, stack.lines * columns)
    if _unpacks(tile):
        yield StackBuffer(_UNPACKED, product.along, product.depth * columns)


def _unpacks(tile: Tile) -> bool:
    """True if B is unpacked or converted into a buffer. Otherwise matrices are loaded from B
    itself.
    """
    form = tile.here.quantized
    return form.fields > 1 or form.stored != tile.product.along


@dataclass(frozen=True, slots=True)
class ScaledMatrices(BlockSums):
    """Blocks that the matrix unit sums in equal parts.

    A matrix store completes only after the preceding multiplications, and vector loads of its
    result wait for it. To hide this, the sums of one accumulator are stored while the next
    accumulator is multiplied, and the sums of a band are scaled while the next band is multiplied.
    The last band of a block is scaled during the next block.
    """

    def emit(self, index: int, run: int, left: int = 0) -> Iterator[Op]:
        """Multiply one block. In between, store and scale the sums of accumulators that are
        complete.
        """
        assert not left, f"block {index} is not whole"
        if self.meets_numbers:
            yield from self.looked_up(index).table()
        first, parts = index * self.blocks.groups, self.blocks.groups // self.blocks.part
        before = self._left(index - 1) if index else ()
        if parts == 1:
            yield from self._part(first, before, self._own(index), zeros=True)
        else:
            second = first + self.blocks.part
            yield from self._part(first, before, zeros=True)
            if parts > 2:
                between = (*self._part(second), *self.blocks.moves(self.blocks.part))
                yield Loop("kg", Integer(parts - 2), between, "a block of K")
            yield from self._part(second, own=self._own(index))
            yield from self.blocks.moves(2 * self.blocks.part)
        if index == run - 1:
            yield from (op for ops in self._left(index) for op in ops)

    def _part(
        self,
        first: int,
        left: Iterable[tuple[Op, ...]] = (),
        own: Iterable[tuple[Op, ...]] = (),
        *,
        zeros: bool = False,
    ) -> Iterator[Op]:
        """Multiply one part of a block from K group ``first`` on, interleaved with vector work.

        After each product one item of ``left`` (work on the previous block's sums) and one of
        ``own`` (work on this block's sums) is emitted.
        """
        unpacks, width = _unpacks(self.tile), held(self.tile, "along").lanes
        before, after = iter(left), iter(own)
        yield from self._unpacked(first) if unpacks else self._asked_for(first)

        def along_at(column: int) -> Place:
            if unpacks:
                return Address(_UNPACKED, column * self.blocks.part * width * ONE), width * ONE
            form = self.tile.here.quantized
            return self.blocks.plane_at(column, first, 0), form.nb * form.group * ONE

        def across_at(band: int) -> Place:
            stride = self.tile.across.strides[self.tile.here.problem.across]
            return self.blocks.across_at(band * self.tile.shape.height, first), stride

        yield Note(f"Multiply: {self.tile.product.depth} of K.")
        for place, ops in products(self.tile, 0, along_at, across_at):
            yield from (ZeroMatrix(accumulator(self.tile, *place)),) if zeros else ()
            yield from ops
            yield from next(before, ())
            yield from next(after, ())
        yield from (op for ops in before for op in ops)

    def _unpacked(self, first: int) -> Iterator[Op]:
        """Unpack a part of a block of B into the buffer, with a vector's K groups next to each
        other.
        """
        width = held(self.tile, "along").lanes
        yield Note("What matrices hold of B is unpacked.")
        for column in range(self.tile.shape.columns):
            for k in range(first, first + self.blocks.part):
                yield from self.load(column, k)
                place = Address(_UNPACKED, (column * self.blocks.part + k - first) * width * ONE)
                yield Store(place, vector(self.tile, column, k))

    def _asked_for(self, first: int) -> Iterator[Op]:
        """Prefetch the cache lines of B that matrices are loaded from a few blocks later."""
        for column in range(self.tile.shape.columns):
            if (ahead := self.blocks.ahead(column)) != 0:
                for k in range(first, first + self.blocks.part):
                    at = self.blocks.plane_at(column, k, 0)
                    yield Prefetch(replace(at, offset=at.offset + ahead))

    # --- what follows products -------------------------------------------------------------------

    @property
    def _order(self) -> list[tuple[int, int]]:
        """The accumulators as pairs (band, column), in the order in which they are multiplied."""
        sides = order(self.tile, self.tile.shape.columns, self.tile.shape.bands)
        return [(band, column) for *_, multiplies in sides for column, band in multiplies]

    def _own(self, index: int) -> Iterator[tuple[Op, ...]]:
        """Yield the work on block ``index``'s sums that follows each of its own products."""
        yield from (self._behind(number, index) for number in range(len(self._order)))

    def _left(self, index: int) -> Iterator[tuple[Op, ...]]:
        """Yield the work on block ``index``'s sums that is done while the next block is
        multiplied.
        """
        count = len(self._order)
        yield from (self._behind(number, index) for number in (count, count + 1))

    def _behind(self, number: int, index: int) -> tuple[Op, ...]:
        """Return the vector work after product ``number``, counted from the start of block
        ``index``.

        The sums of the previous product are stored. A band whose last sums were stored one product
        earlier is scaled. If the tile has one accumulator, its sums are stored at once, because the
        next block starts in the same register.
        """
        order, late = self._order, min(1, len(self._order) - 1)
        ended = {band: place for place, (band, _) in enumerate(order)}
        ops: list[Op] = []
        for band, place in ended.items():
            if place + late + 1 == number:
                ops += self._scaled(band, index)
        if 0 <= number - late < len(order):
            ops += self._spill(order[number - late])
        return tuple(ops)

    def _spill(self, place: tuple[int, int]) -> Iterator[Op]:
        """Store the sums of one accumulator to the buffer of the block."""
        acc = accumulator(self.tile, *place)
        yield StoreMatrix(Address(_SUMMED, self._at(*place)), acc, self._step)

    def _at(self, band: int, column: int) -> Expr:
        """Return where an accumulator's sums begin, in the block's buffer and in the tile's."""
        first = (band * self.tile.shape.height, self._step), (column * self.tile.vector.lanes, ONE)
        return linear(first)

    @property
    def _step(self) -> Expr:
        """The distance of two rows of sums, in elements."""
        return sums_beside(self.tile).step * ONE

    # --- scaled, row by row ----------------------------------------------------------------------

    def _scaled(self, band: int, index: int) -> Iterator[Op]:
        """Scale the sums of one band of a block and add them to the tile's f32 sums, in a loop over
        rows.
        """
        tile, room = self.tile, sums_beside(self.tile)
        rows, own = band_rows(tile, band), self._own_scales
        yield Note(f"The sums of block {index + 1}, rows of band {band + 1}: scaled and added.")
        if band == self._order[0][0]:
            yield from self.blocks.of_columns(index)
            yield from self.totals(index)
        of_block, sums = (f"{what}{band}_k{index}" for what in (_BLOCK_ROW, _ROW))
        yield Point(of_block, _SUMMED, self._at(band, 0), tile.product.summed)
        yield Point(sums, room.name, self._at(band, 0), tile.here.element, written=True)
        ends = [Advance(p.point.pointer, p.row_stride) for p in own]
        ends += [Advance(pointer, self._step) for pointer in (of_block, sums)]
        yield Loop(LINE, rows, (*self._row(band, index, of_block, sums), *ends))
        yield from (Advance(p.point.pointer, -rows * p.row_stride) for p in own)

    @property
    def _own_scales(self) -> list[PointerPlan]:
        """The pointers to values that differ between rows of A."""
        return [
            p for p in self.blocks.scales if p.operand.name.startswith("a_") and p.row_stride != 0
        ]

    def _row(self, band: int, index: int, of_block: str, sums: str) -> Iterator[Op]:
        """Process one row: load A's values, then scale and add each vector of columns."""
        row = band * self.tile.shape.height
        yield from self.zero_of(row, index)
        starts = list(self._starts(row, index))
        yield from starts
        yield from self.of_row(row, index)
        for column in range(self.tile.shape.columns):
            at = column * self.tile.vector.lanes * ONE
            partial = self.sum_of(row, column, index * self.blocks.groups)
            raw = replace(partial, name=f"{partial.name}_raw") if starts else partial
            yield Load(raw, Address(of_block, at))
            yield from self.less_zeros(raw, row, column, index)
            for start in starts:
                yield Apply(partial, "add", (raw, start.dst))
            acc = Register(f"r{column}", self.tile.vector)
            yield Load(acc, Address(sums, at))
            yield from self.add_one(acc, row, column, index)
            yield Store(Address(sums, at), acc)

    def _starts(self, row: int, index: int) -> Iterator[Broadcast]:
        """Load the correction of a row's sums for B's zero points, if there are any."""
        if "a_starts" in self.tile.operands:
            starts = replace(self.blocks.of_block("a_starts", row, index), vector=self.summing)
            yield Broadcast(starts, self.blocks.scale_at("a_starts", row, index))
