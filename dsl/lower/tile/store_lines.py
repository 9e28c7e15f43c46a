"""The end of a tile whose sums a matrix unit gives by lines: loops over their rows or columns.

A line is what C is contiguous along: a row of accumulators side by side, or a column of those below
each other. No more of the sums is in vectors at once than a line of C.
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
    """All lines become C, those of one band or column of accumulators after those before."""
    plan, shape = tile.plan, tile.shape
    line = plan.across if plan.transposed else plan.along
    vectors = tuple(_rows(tile) if plan.transposed else _columns(tile))
    if plan.transposed:
        yield from (MakeMask(active) for _, active in vectors if isinstance(active, MaskRegister))
    yield Note(f"Each {'row' if line == 'n' else 'column'} of sums becomes one of C.")
    if tile.phase == "finish":
        lines = tile.along_size if plan.transposed else tile.across_size
        yield Lines(tile, line, vectors, lines).loop()
        return
    for place in range(shape.columns if plan.transposed else shape.bands):
        yield Lines(tile, line, vectors, _trips(tile, place), _Blocks(tile, place)).loop()


def _columns(tile: Tile) -> Iterator[tuple[int, Active]]:
    """The vectors of a row: where each begins, and what of it exists."""
    yield from ((tile.position(i), tile.active(i)) for i in range(tile.shape.vectors))


def _rows(tile: Tile) -> Iterator[tuple[int, Active]]:
    """The vectors of a column."""
    rows, height = tile.shape.rows, tile.shape.height
    for first in range(0, rows, height):
        left = rows - first
        mask = MaskRegister("mask_across", tile.vector, left * ONE)
        yield first, None if left >= height else mask


def _trips(tile: Tile, place: int) -> Expr:
    """How many lines there are of the accumulators at a place."""
    shape = tile.shape
    if not tile.plan.transposed:
        return min(shape.height, shape.rows - place * shape.height) * ONE
    existing = tile.chosen.active
    whole = existing is None or place < shape.columns - 1
    return tile.vector.lanes * ONE if whole else existing


@dataclass(frozen=True)
class _Blocks:
    """The lines of the accumulators at one place: of a band their rows, of a column theirs."""

    tile: Tile
    place: int

    @property
    def pointer(self) -> str:
        """They do not lie in memory."""
        return ""

    def advance(self) -> Iterator[Op]:
        """The line is counted."""
        yield from ()

    def line(self, dst: Register, index: int, active: Active = None) -> Iterator[Op]:
        """The part of a line that one accumulator has, that of all sets added."""
        turned, sets = self.tile.plan.transposed, range(self.tile.shape.k_split)
        band, column = (index, self.place) if turned else (self.place, index)
        parts = [dst, *(Register(f"{dst.name}_s{split}", dst.vector) for split in sets[1:])]
        for split, part in zip(sets, parts, strict=True):
            block = block_of(self.tile, band, column, split)
            yield ReadRows((part,), block, symbol(LINE), turned)
        yield from add_sets([parts])
