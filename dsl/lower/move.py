"""The loops that move a matrix, or a block of it, from one layout and element type to another.

The input is a ``Move``, which says where the elements are in both matrices. The nest calls a tile
for each block of lines and depth. The padding of a packed format is filled with zeros first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import gcd
from typing import Self

from sympy import Expr, Integer

from tilewright.ir.nest import Argument, Call, NestNode, repeated
from tilewright.ir.ops import TileProgram
from tilewright.lower.vectors import over_vectors
from tilewright.plan.routines.copy import Move
from tilewright.plan.tiling.parts import Part, cut
from tilewright.symbolic import ONE, ZERO, symbol, value

from .move_tile import MoveTile

#: The number of vectors that one call fills with a number.
FILLED = 8
#: A remainder of a size is cut into parts of powers of this number. 4 needs less code than 2, but
#: more calls.
BY = 4


@dataclass(slots=True)
class MoveNest:
    """The loops around the tiles, and the tiles made so far.

    ``prefix`` begins the tiles' names. ``first`` has the elements of both operands at which the
    matrix begins. Remainders of sizes are cut by powers of ``by``.
    """

    move: Move
    tiles: dict[str, TileProgram] = field(default_factory=dict)
    prefix: str = ""
    first: tuple[Expr, Expr] = (ZERO, ZERO)
    by: int = BY

    def beginning(self, line: Expr, depth: Expr) -> Self:
        """Return the loops of the part of the matrix that begins at ``line`` and ``depth``."""
        sides = zip(self.first, (self.move.source, self.move.made), strict=True)
        one, other = (first + side.at(line, depth) for first, side in sides)
        return replace(self, first=(one, other))

    def call(
        self, make: Callable[[MoveTile], str], line: Expr, depth: Expr, **others: Argument
    ) -> Call:
        """Return a call of the tile that ``make`` fills and names, for a block that begins there.

        Equal tiles are one. Different ones of a name get numbers. ``others`` are arguments other
        than the places of the block, by the names of parameters.
        """
        tile = MoveTile(self.move)
        base = name = self.prefix + make(tile)
        program, number = tile.program(name), 1
        while self.tiles.setdefault(name, program) != program:
            number += 1
            name = f"{base}_{number}"
            program = replace(program, name=name)
        places = {
            name: replace(place, offset=first + place.offset)
            for name, side, first in zip(
                ("x", "out"), (self.move.source, self.move.made), self.first, strict=True
            )
            for place in (side.place(line, depth),)
        } | others
        arguments = (places[p.name] for p in program.parameters if p.name in places)
        return Call(name, tuple(arguments))

    def moves(self) -> Iterator[NestNode]:
        """Yield the loops and calls that move the matrix, without its padding."""
        return self.rows() if self.move.copies else self.blocks()

    def rows(self) -> Iterator[NestNode]:
        """Copy vectors across lines, if lines are adjacent in both matrices."""
        move = self.move
        for block in self.strips():
            step = self._step(block.size)
            for deep in cut(move.depth, move.tile[1], by=self.by):
                place = block.at("pt"), deep.at("kp")
                called = partial(self._row, step, deep.units, place)
                most = move.tile[0] // step
                nodes = tuple(over_vectors(block.size, step, most, called, by=self.by))
                rows = repeated("kp", deep.count, nodes, "rows") if nodes else ()
                yield from repeated("pt", block.count, rows, "blocks of lines")

    def _row(
        self, step: int, rows: int, at: tuple[Expr, Expr], line: Expr, units: int, tail: Expr | None
    ) -> Call:
        size = Integer(units * step) if tail is None else tail
        return self.call(lambda tile: tile.row(size, rows), at[0] + line, at[1])

    def _step(self, size: Expr) -> int:
        """Return the elements of a vector; 1 if vectors of several widths copy a remainder."""
        move = self.move
        vector = move.target.of("s32" if move.together > 1 else move.source.type)[0]
        if move.same and move.together == 1 and (value(size) is not None or vector.mask is None):
            return 1
        return move.lanes * (move.together if move.same else 1)

    def blocks(self) -> Iterator[NestNode]:
        """Move blocks of lines and depth."""
        move = self.move
        for block in self.strips():
            for wide in self._parts(block.size, move.tile[0]):
                line = block.at("pt") + wide.at("lp")
                nodes: list[NestNode] = []
                for deep in self._parts(move.depth, move.tile[1]):
                    call = self.call(_block(wide.units, deep.units), line, deep.at("kp"))
                    nodes += repeated("kp", deep.count, (call,), f"{deep.units} of the depth")
                lines = repeated("lp", wide.count, nodes, f"{wide.units} lines") if nodes else ()
                yield from repeated("pt", block.count, lines, "blocks of lines")

    def _parts(self, size: Expr, most: int) -> Iterator[Part]:
        turned = self.move.words and self.move.turns
        return self.move.parts(size, most, BY) if turned else cut(size, most, by=BY)

    def strips(self) -> Iterator[Part]:
        """Yield the lines in parts, each of which is in one block of both matrices."""
        widths = [side.width for side in (self.move.source, self.move.made) if side.width]
        if widths:
            yield from cut(self.move.lines, gcd(*widths))
        else:
            yield Part(ZERO, self.move.lines, 0, ONE)

    def padding(self) -> Iterator[NestNode]:
        """Fill the padding of a packed format with zeros."""
        made = self.move.made
        lines, depth = value(self.move.lines), value(self.move.depth)
        if not made.width or lines is None or depth is None:
            return
        whole = lines // made.width
        filled = -(-depth // made.group) * made.group * made.width
        if filled < made.block and whole:
            first = made.block * (symbol("pt") if whole > 1 else ZERO) + filled
            zeros = tuple(self.fill(self.out(first), Integer(made.block - filled)))
            yield from repeated("pt", Integer(whole), zeros, "steps of K")
        first = Integer(whole * made.block)
        yield from self.fill(self.out(first), made.end - first)

    def out(self, first: Expr) -> Argument:
        """Return the argument of a call for element ``first`` of the output."""
        return replace(self.move.made.place(ZERO, ZERO), offset=first)

    def fill(
        self, first: Argument, count: Expr, start: Expr | float = 0, scale: int = 1
    ) -> Iterator[NestNode]:
        """Yield stores of the number ``start`` to ``count`` elements of the output, from ``first``
        on. In units of its offset, an element is ``scale`` long.
        """
        vector, each = self.move.filling

        def called(at: Expr, vectors: int, tail: Expr | None) -> Call:
            out = replace(first, offset=first.offset + scale * at)
            return self.call(lambda tile: tile.fill(vectors, tail, start), ZERO, ZERO, out=out)

        yield from over_vectors(count, vector.lanes * each, FILLED, called, "zp")


def _block(lines: int, depth: int) -> Callable[[MoveTile], str]:
    return lambda tile: tile.block(lines, depth)
