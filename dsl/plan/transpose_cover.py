"""Covering a tile of a transposition with square blocks of registers, and what that costs.

A block of ``rows`` x ``cols`` elements, neither above the vector's lanes, is loaded row by row,
transposed by interleaving its registers, and stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.ir.dataflow import prune
from tilewright.ir.networks import transpose
from tilewright.ir.ops import Register
from tilewright.isa.machine import Core
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector


@dataclass(frozen=True, slots=True)
class Block:
    """``rows`` x ``cols`` elements at (``row``, ``col``) of a tile, one register a row."""

    vector: Vector
    row: int
    col: int
    rows: int
    cols: int

    def moved(self, row: int, col: int) -> Block:
        """The same block that much further down and to the right."""
        return replace(self, row=self.row + row, col=self.col + col)

    @property
    def flipped(self) -> Block:
        """Where the block's transpose lies in the transposed tile."""
        return Block(self.vector, self.col, self.row, self.cols, self.rows)


@dataclass(frozen=True, slots=True)
class Cover:
    """The blocks of one tile and what they cost. Accesses of part of a vector count twice."""

    blocks: tuple[Block, ...]
    loads: int
    stores: int
    interleaves: int

    def cycles(self, core: Core) -> float:
        """Cycles of the tile: the tightest of load, store and shuffle units and of the issue."""
        return max(
            self.loads / core.loads,
            self.stores / core.stores,
            self.interleaves / core.shuffles,
            self.operations / core.issue,
        )

    @property
    def operations(self) -> int:
        """Loads, stores and interleaves together."""
        return self.loads + self.stores + self.interleaves

    def __add__(self, other: Cover) -> Cover:
        return Cover(
            self.blocks + other.blocks,
            self.loads + other.loads,
            self.stores + other.stores,
            self.interleaves + other.interleaves,
        )


_NOTHING = Cover((), 0, 0, 0)


@lru_cache(maxsize=4096)
def interleaves(vector: Vector, rows: int, cols: int) -> int:
    """Interleaves that transpose ``rows`` registers of which ``cols`` lanes matter."""
    ops, result = transpose([Register(f"r{i}", vector) for i in range(rows)], vector.lanes, "t")
    return len(prune(ops, result[:cols]))


def _of_block(vector: Vector, rows: int, cols: int) -> Cover:
    lanes = vector.lanes
    return Cover(
        blocks=(Block(vector, 0, 0, rows, cols),),
        loads=rows * (1 if cols == lanes else 2),
        stores=cols * (1 if rows == lanes else 2),
        interleaves=interleaves(vector, rows, cols),
    )


@lru_cache(maxsize=4096)
def cover(target: Target, element: str, rows: int, cols: int, widest: int | None = None) -> Cover:
    """The cheapest cover of a tile by blocks of vectors of ``widest`` lanes or fewer."""
    if not rows or not cols:
        return _NOTHING
    usable = (
        v
        for v in target.of(element)
        if v.transposes and (widest is None or v.lanes <= widest) and v.lanes < 2 * max(rows, cols)
    )
    found = [c for vector in usable for c in _covers(target, vector, rows, cols)]
    return min(found, key=lambda c: _order(c, target.core))


def _order(covered: Cover, core: Core) -> tuple[float, int]:
    return covered.cycles(core), covered.operations


def _covers(target: Target, vector: Vector, rows: int, cols: int) -> Iterator[Cover]:
    """Whole blocks of ``vector``; at either edge cut ones, or narrower vectors."""
    lanes = vector.lanes
    for height in _heights(vector, rows):
        for width in _heights(vector, cols):
            blocks = _NOTHING
            for row in range(0, height, lanes):
                for col in range(0, width, lanes):
                    size = min(lanes, height - row), min(lanes, width - col)
                    blocks += _moved(_of_block(vector, *size), row, col)
            narrower = lanes // 2
            below = cover(target, vector.element, rows - height, cols, narrower)
            beside = cover(target, vector.element, height, cols - width, narrower)
            yield blocks + _moved(below, height, 0) + _moved(beside, 0, width)


def _heights(vector: Vector, extent: int) -> Iterator[int]:
    """How much of an extent blocks of ``vector`` may cover: all of it, or the whole blocks."""
    tail = extent % vector.lanes
    if not tail or vector.mask or (tail in vector.partial_load and tail in vector.partial_store):
        yield extent
    if tail and extent > vector.lanes:
        yield extent - tail


def _moved(covered: Cover, row: int, col: int) -> Cover:
    return replace(covered, blocks=tuple(block.moved(row, col) for block in covered.blocks))


@dataclass(frozen=True, slots=True)
class SquareCover:
    """A square tile's blocks on the diagonal, and those above it, whose mirrors are as good."""

    diagonal: Cover
    above: Cover

    @property
    def whole(self) -> Cover:
        """All that is done in place."""
        return self.diagonal + self.above + self.above


@lru_cache(maxsize=1024)
def square_cover(
    target: Target, element: str, extent: int, widest: int | None = None
) -> SquareCover:
    """The cheapest symmetric cover of ``extent`` x ``extent`` elements."""
    if not extent:
        return SquareCover(_NOTHING, _NOTHING)
    found = []
    for vector in target.of(element):
        if not vector.transposes or (widest is not None and vector.lanes > widest):
            continue
        found += [_symmetric(target, vector, extent, whole) for whole in _heights(vector, extent)]
    return min(found, key=lambda c: _order(c.whole, target.core))


def _symmetric(target: Target, vector: Vector, extent: int, whole: int) -> SquareCover:
    """Blocks of ``vector`` in the first ``whole`` rows and columns, narrower ones in the others."""
    element, narrower = vector.element, vector.lanes // 2
    corner = square_cover(target, element, extent - whole, narrower)
    diagonal = _moved(corner.diagonal, whole, whole)
    above = _moved(corner.above, whole, whole)
    above += _moved(cover(target, element, whole, extent - whole, narrower), 0, whole)
    for row in range(0, whole, vector.lanes):
        for col in range(row, whole, vector.lanes):
            sizes = (min(vector.lanes, whole - at) for at in (row, col))
            block = _moved(_of_block(vector, *sizes), row, col)
            if row == col:
                diagonal += block
            else:
                above += block
    return SquareCover(diagonal, above)
