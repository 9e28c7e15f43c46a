"""Convert A one panel at a time: the next panel in pieces, between the tiles of the current one.

A panel has the rows of one row of tiles. The buffer holds two panels. A core executes a short
conversion in parallel with the multiply-adds of neighbouring tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from sympy import Expr, Integer

from tilewright.ir.nest import NestNode, Pack, when
from tilewright.lower.staging.buffers import convert_lines, margin
from tilewright.plan.plan import Plan
from tilewright.plan.staging import row_elements
from tilewright.plan.tiling.parts import Part
from tilewright.plan.tiling.tiles import Grid
from tilewright.symbolic import ONE, ZERO, mod, symbol, value

from .calls import Block, TileSet, called, looped


@dataclass(frozen=True, slots=True)
class _Rows:
    """A panel: ``rows`` rows from row ``first`` on, with index ``number``; present if ``exists`` is
    1.
    """

    first: Expr
    rows: int
    number: Expr
    exists: Expr = ONE


def panels(tiles: TileSet, block: Block, grids: Sequence[Grid]) -> Pack:
    """Return the tile grids panel by panel, with the buffer of the panels.

    The panels with the fewest rows come first, because no tiles run beside the first conversion.
    """
    across = tuple(dict.fromkeys(grid.across for grid in grids))[::-1]
    writer = _Panels(tiles, block, tuple(grids), max(part.units for part in across))
    packed = tiles.plan.staging.operands["a"]
    count = 1 if sum((part.count for part in across), ZERO) == 1 else 2
    elements = count * writer.panel_elements + margin(tiles.plan.staging)
    scratch, of_worker = tiles.place(packed, elements, parallel=block.parallel)
    return Pack(
        buffer=packed.buffer,
        element=packed.type,
        elements=elements,
        scratch=scratch,
        of_worker=of_worker,
        fill=writer.converted(_begins(across, ZERO), ZERO, block.extents["k"]),
        body=tuple(writer.grids(across)),
    )


def _begins(parts: Sequence[Part], number: Expr) -> tuple[_Rows, ...]:
    """Return where panels may begin: at the first of these parts that is not empty.

    The list ends at the first part that is certain to have a panel. ``number`` panels come before.
    """
    found: list[_Rows] = []
    for part in parts:
        found.append(_Rows(part.start, part.units, number, part.count))
        if value(part.count):
            break
        number = number + part.count
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Panels:
    """Emits the panels of one block of C; the largest panel has ``tallest`` rows."""

    tiles: TileSet
    block: Block
    of_tiles: tuple[Grid, ...]
    tallest: int

    @property
    def plan(self) -> Plan:
        return self.tiles.plan

    @property
    def panel_elements(self) -> Expr:
        """The number of elements of a panel in the buffer."""
        return self.tallest * self.plan.staging.operands["a"].strides["m"]

    def grids(self, parts: Sequence[Part]) -> Iterator[NestNode]:
        """Yield the panels of each part. All but the last are followed by a panel of the
        same part.
        """
        before = ZERO
        for index, part in enumerate(parts):
            after = _begins(parts[index + 1 :], before + part.count)
            nodes = *self._alike(part, before), *self._panel(part, before, part.count - 1, after)
            yield from when(part.count, nodes)
            before = before + part.count

    def _alike(self, part: Part, before: Expr) -> Iterator[NestNode]:
        """Yield the tiles of all panels but the last.

        Trip ``mt`` runs the tiles of panel ``mt - 1``, and between them converts panel ``mt``.
        """
        if part.single:
            return
        trip = symbol("mt") if part.count != 2 else ONE
        after = _Rows(part.nth(trip), part.units, before + trip)
        nodes = tuple(self._panel(part, before, trip - 1, (after,)))
        yield from nodes if trip == 1 else looped("m", part, nodes, set(), first=1)

    def _panel(
        self, part: Part, before: Expr, index: Expr, after: Sequence[_Rows]
    ) -> Iterator[NestNode]:
        """Yield the tiles of one panel, and the conversion of the next panel in pieces between
        them.
        """
        first = part.nth(index)
        base = self.block.origin["m"] + first - self.tallest * mod(before + index, 2)
        inside = replace(self.block, bases=self.block.bases | {"a": {"m": base}})
        along = [grid for grid in self.of_tiles if grid.across == part]
        pieces = self._pieces(_tiles(along)) if after else []
        if not pieces:
            yield from self.converted(after, ZERO, self.block.extents["k"])
        here = replace(part, start=first, count=ONE)
        for grid, columns, number, depth in _cut(along, pieces):
            call = called(self.tiles, inside, grid.tile, columns, here)
            beside = self.converted(after, pieces[0] * number, Integer(depth)) if depth else ()
            yield from looped("n", columns, (call, *beside), set())

    def _pieces(self, tiles: int | None) -> list[int]:
        """Return how much of K is converted beside each tile; empty if K or the tiles are unknown.

        The unit is elements.
        """
        depth = value(self.block.extents["k"])
        if depth is None or tiles is None:
            return []
        source, packed = self.plan.staging.sources["a"].type, self.plan.staging.operands["a"].type
        step = row_elements(self.plan.target, source, packed, self.plan.staging.lanes)
        piece = step * -(-depth // (step * tiles))
        pieces = [min(piece, max(0, depth - piece * tile)) for tile in range(tiles)]
        last = (depth - 1) // piece
        # Less than a whole vector takes less time as a part of the piece before it.
        if last and pieces[last] < step:
            pieces[last - 1 : last + 1] = pieces[last - 1] + pieces[last], 0
        return pieces

    def converted(self, panels: Sequence[_Rows], first: Expr, depth: Expr) -> tuple[NestNode, ...]:
        """Return the conversion of a part of a panel: the first one of ``panels`` that exists.

        The part has ``depth`` elements of K, from element ``first`` on.
        """
        nodes: tuple[NestNode, ...] = ()
        for panel in reversed(panels) if depth != 0 else ():
            nodes = when(panel.exists, self._rows(panel, first, depth), nodes)
        return nodes

    def _rows(self, panel: _Rows, first: Expr, depth: Expr) -> tuple[NestNode, ...]:
        rows = self.block.origin["m"] + panel.first, panel.rows
        place = self.panel_elements * mod(panel.number, 2)
        nodes, programs = convert_lines(self.plan.staging, "a", rows, (first, depth), place)
        self.tiles.programs |= {("fill", tile.name): tile for tile in programs}
        return nodes


def _tiles(along: Sequence[Grid]) -> int | None:
    """Return the number of tiles in a row of tiles, or None if it is unknown."""
    counts = [value(grid.along.count) for grid in along]
    return None if None in counts else sum(filter(None, counts))


def _cut(along: Sequence[Grid], pieces: Sequence[int]) -> Iterator[tuple[Grid, Part, Expr, int]]:
    """Yield parts of grids whose tiles have equal pieces: grid, part, tile number,
    elements of K.
    """
    if not pieces:
        yield from ((grid, grid.along, ZERO, 0) for grid in along)
        return
    begin = 0
    for grid in along:
        part, at = grid.along, 0
        for depth, equal in groupby(pieces[begin : begin + int(part.count)]):
            count = len(list(equal))
            columns = replace(part, start=part.start + part.size * at, count=Integer(count))
            number = begin + at + (symbol("nt") if count > 1 else ZERO)
            yield grid, columns, number, depth
            at += count
        begin += at
