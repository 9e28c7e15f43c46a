"""The end of a tile whose sums a matrix unit delivers row by row or column by column.

A *line* is a row or column of sums, in the direction in which C is contiguous. A loop takes one
line at a time, so vector registers hold only one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sympy import Expr

from tilewright.ir.ops import (
    MakeMask,
    Note,
    Op,
    ReadRows,
)
from tilewright.ir.values import Active, MaskRegister, Register
from tilewright.symbolic import ONE, symbol

from .block_product import block_of
from .store import LINE, Lines
from .tile import Tile, add_sets


def store_lines(tile: Tile) -> Iterator[Op]:
    """Store all lines to C: band after band of accumulators, or column after column."""
    plan, shape = tile.plan, tile.shape
    line = plan.problem.across if plan.staging.transposed else plan.problem.along
    vectors = tuple(_rows(tile) if plan.staging.transposed else _columns(tile))
    if plan.staging.transposed:
        yield from (MakeMask(active) for _, active in vectors if isinstance(active, MaskRegister))
    yield Note(f"Each {'row' if line == 'n' else 'column'} of sums becomes one of C.")
    if tile.phase == "finish":
        lines = tile.along_size if plan.staging.transposed else tile.across_size
        yield Lines(tile, line, vectors, lines).loop()
        return
    for place in range(shape.columns if plan.staging.transposed else shape.bands):
        yield Lines(tile, line, vectors, _trips(tile, place), _Blocks(tile, place)).loop()


def _columns(tile: Tile) -> Iterator[tuple[int, Active]]:
    """Yield the first element and the active lanes of each vector in a row."""
    yield from ((tile.position(i), tile.active(i)) for i in range(tile.shape.vectors))


def _rows(tile: Tile) -> Iterator[tuple[int, Active]]:
    """Yield the first element and the active lanes of each vector in a column."""
    rows, height = tile.shape.rows, tile.shape.height
    for first in range(0, rows, height):
        left = rows - first
        mask = MaskRegister("mask_across", tile.vector, left * ONE)
        yield first, None if left >= height else mask


def _trips(tile: Tile, place: int) -> Expr:
    """Return the number of lines in the accumulators of band or column ``place``."""
    shape = tile.shape
    if not tile.here.transposed:
        return min(shape.height, shape.rows - place * shape.height) * ONE
    existing = tile.chosen.active
    whole = existing is None or place < shape.columns - 1
    return tile.vector.lanes * ONE if whole else existing


@dataclass(frozen=True)
class _Blocks:
    """The lines of one band of accumulators (their rows), or of one column (their columns)."""

    tile: Tile
    place: int

    @property
    def pointer(self) -> str:
        """An empty name: the sums are in registers, not in memory."""
        return ""

    def advance(self) -> Iterator[Op]:
        """Emit nothing: the loop counter selects the line."""
        yield from ()

    def line(self, dst: Register, index: int, active: Active = None) -> Iterator[Op]:
        """Read the part of a line that one accumulator holds, and add the parts of all sets."""
        turned, sets = self.tile.here.transposed, range(self.tile.shape.k_split)
        band, column = (index, self.place) if turned else (self.place, index)
        parts = [dst, *(Register(f"{dst.name}_s{split}", dst.vector) for split in sets[1:])]
        for split, part in zip(sets, parts, strict=True):
            block = block_of(self.tile, band, column, split)
            yield ReadRows((part,), block, symbol(LINE), turned)
        yield from add_sets([parts])
