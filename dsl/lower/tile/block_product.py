"""K steps of multiply-adds that compute square blocks of C, and the conversion of blocks to rows.

A register holds a block of ``height`` rows and lanes / height columns of C. Both factors are packed
in K groups: a register holds one group of each of its columns of B, or rows of A.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sympy import Integer

from tilewright.ir.access import read
from tilewright.ir.interleaving import row_of_blocks
from tilewright.ir.ops import (
    Broadcast,
    LoadSeveral,
    MultiplyBlock,
    Note,
    Op,
    ReadRows,
    ZeroMatrix,
)
from tilewright.ir.values import Active, Address, MaskRegister, MatrixRegister, Register
from tilewright.symbolic import ZERO

from .k_loop import KStep, Side, factor, held, multiply_add, order
from .tile import Tile


@dataclass(frozen=True, slots=True)
class BlockProduct(KStep):
    """The steps of one K group of both factors."""

    def emit(self, index: int, run: int) -> Iterator[Op]:
        """Multiply registers of both factors, and add the products to blocks of C."""
        for side, number, products in order(self.tile, self.shape.columns, self.shape.bands):
            yield from self._loaded(side, number, index)
            for column, band in products:
                x, y = self._factor("along", column, index), self._factor("across", band, index)
                yield from self._product((band, column, self.accumulator_set(index)), x, y)

    def _loaded(self, side: Side, number: int, index: int) -> Iterator[Op]:
        """Load a factor, and the next ones if one load reads several. Skip factors already
        loaded.
        """
        together = self._together(side, number)
        if not together:
            return
        first, active = self._elements(side, number)
        (pointer,) = self.along if side == "along" else self.across
        address = pointer.address(0, index, first)
        if together > 1:
            numbers = range(number, number + together)
            yield LoadSeveral(tuple(self._factor(side, n, index) for n in numbers), address)
        else:
            yield from self._filled(self._factor(side, number, index), side, address, active)

    def _together(self, side: Side, number: int) -> int:
        """Return the number of factors that one load reads from ``number`` on; 0 if loaded earlier.

        Only whole factors are loaded together. They are adjacent in memory.
        """
        count = self.shape.columns if side == "along" else self.shape.bands
        whole = sum(1 for n in range(count) if self._elements(side, n)[1] is None)
        alone = 0 if number < whole else 1
        return _loads(whole, self.shape.several).get(number, alone)

    def _product(self, place: tuple[int, int, int], x: Register, y: Register) -> Iterator[Op]:
        """Multiply two factors and add the product to a block of C, by a matrix unit or by
        vectors.
        """
        if self.shape.sums is not None:
            yield MultiplyBlock(self.shape.op, block_of(self.tile, *place), x, y)
        else:
            yield from multiply_add(self.tile, self.shape.op, self.tile.block(*place), x, y)

    def tail(self, index: int) -> Iterator[Op]:
        """Emit nothing: both factors are padded to whole K groups."""
        assert self.tile.k_tail == 0, f"the K group of step {index} is not whole"
        yield from ()

    def _filled(self, dst: Register, side: Side, address: Address, active: Active) -> Iterator[Op]:
        """Load one factor of a multiply-add.

        If the vector type has several segments, each of them gets a copy of the factor of the
        operand across the vectors.
        """
        op, element = self.shape.op, dst.vector.element
        if side == "across" and op.segments > 1:
            yield Broadcast(dst, address, op.rows * op.depth, None, element)
            return
        operand = self.tile.along if side == "along" else self.tile.across
        yield from read(self.tile.plan.target, dst, address, active, operand.type)

    def _factor(self, side: Side, number: int, k: int) -> Register:
        operand = self.tile.along if side == "along" else self.tile.across
        return factor(operand, number, k, held(self.tile, side))

    def _elements(self, side: Side, number: int) -> tuple[int, Active]:
        """Return the first element of a factor in a row of K groups, and how many are loaded.

        The second result is None if all elements of the factor are loaded.

        A block past the end of the tile is not loaded. The first block of its vector is used in its
        place, and the results are not stored.
        """
        group = self.tile.product.depth
        if side == "across":
            first = number * self.shape.height
            rows = min(self.shape.height, self.shape.rows - first)
            whole = self.tile.chosen.loads_bands or rows == self.shape.height
            return first * group, None if whole else rows * group
        vector, block = divmod(number, self.shape.parts)
        elements = self.tile.vector.lanes // self.shape.parts * group
        loaded = self.tile.loaded(vector)
        if isinstance(loaded, MaskRegister):
            return self.tile.position(vector) * group, loaded
        if isinstance(loaded, int) and loaded <= block * elements:
            block = 0
        existing = loaded - block * elements if isinstance(loaded, int) else elements
        first = self.tile.position(vector) * group + block * elements
        return first, existing if existing < elements else None


def _loads(count: int, several: tuple[int, ...]) -> dict[int, int]:
    """Map the first factor of each load to the number of factors that the load reads."""
    found: dict[int, int] = {}
    first = 0
    while first < count:
        found[first] = next((n for n in several if n <= count - first), 1)
        first += found[first]
    return found


def block_of(tile: Tile, band: int, column: int, split: int) -> MatrixRegister:
    """Return the accumulator of one block of C in a matrix unit."""
    unit, shape = tile.shape.sums, tile.shape
    assert unit is not None
    name = tile.block(band, column, split).name
    rows = Integer(shape.height)
    return MatrixRegister(name, unit, tile.here.element, rows, shape.vector.lanes // shape.parts)


def begin_blocks(tile: Tile) -> Iterator[Op]:
    """Set all accumulator blocks of a matrix unit to 0."""
    shape = tile.shape
    yield Note("Accumulators, named by their row and column of blocks in this tile of C.")
    for split in range(shape.k_split):
        for band in range(shape.bands):
            for column in range(shape.columns):
                yield ZeroMatrix(block_of(tile, band, column, split))


def _rows_of_blocks(tile: Tile) -> Iterator[Op]:
    """Read the rows of a matrix unit's blocks into vectors, one for each row of C and block."""
    shape = tile.shape
    yield Note("Rows of accumulators become vectors of C.")
    for split in range(shape.k_split):
        for band in range(shape.bands):
            for vector in range(shape.vectors):
                rows = range(band * shape.height, min(shape.rows, (band + 1) * shape.height))
                dst = tuple(tile.accumulator(row, vector, split) for row in rows)
                yield ReadRows(dst, block_of(tile, band, vector, split), ZERO)


def unfold(tile: Tile) -> Iterator[Op]:
    """Combine adjacent blocks into vectors of C's rows: half of each of two registers."""
    shape = tile.shape
    if shape.sums is not None:
        yield from _rows_of_blocks(tile)
        return
    yield Note("Blocks of accumulators become rows of C.")
    for split in range(shape.k_split):
        for row in range(shape.rows):
            band, odd = divmod(row, shape.height)
            for vector in range(shape.vectors):
                first, second = (
                    tile.block(band, shape.parts * vector + i, split) for i in range(shape.parts)
                )
                dst = tile.accumulator(row, vector, split)
                yield row_of_blocks(shape.op, dst, first, second, odd=bool(odd))
