"""Convert operands that are contiguous along K into K groups: transpose square blocks in registers.

A *line* is a row of A or a column of B. A tile reads and writes whole cache lines. If rows are a
power of two apart, they share a set of the cache, so a cache line would be evicted before a second
visit. Elements of fewer than 32 bits are transposed as 32-bit words, and extracted afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sympy import Expr, Integer

from tilewright.elementwise.conversions import is_upper_half
from tilewright.ir.nest import NestNode, When, repeated
from tilewright.ir.ops import Prefetch, TileProgram
from tilewright.ir.values import Address
from tilewright.lower.move_tile import MoveTile
from tilewright.plan.tiling.parts import Part, cut
from tilewright.spec.types import FORMATS, ITEMSIZE
from tilewright.symbolic import ONE, div, linear, mod, value

from .conversion import (
    Conversion,
    call_of,
)

#: The factor by which parts shrink when a run-time size is cut: less code than 2, but more steps.
BY = 4


def turnable(c: Conversion) -> bool:
    """True if an operand is contiguous along K and its vectors can be transposed."""
    along = value(c.source.strides["k"]) == 1 and value(c.source.strides[c.line]) != 1
    if not along or c.lanes == 1:
        return False
    element = "s32" if _together(c) > 1 else c.real
    return c.target.holding(element, c.lanes).transposes


def blocks(
    c: Conversion, extents: dict[str, Expr], at: tuple[Expr, Expr], tiles: dict[str, TileProgram]
) -> Iterator[NestNode]:
    """Yield the nodes that convert a matrix block by block; their tiles are added to ``tiles``."""
    known = value(extents[c.line]) is not None
    for wide in cut(extents[c.line], across(c), by=2 if known else BY):
        body = tuple(along_k(c, wide, extents["k"], at, tiles))
        if wide.count != 1 and (known or wide.units == across(c)):
            yield c.over("lp", wide.count, body, div(extents["k"], c.k_group) + 1)
        else:
            yield from repeated("lp", wide.count, body)


def along_k(
    c: Conversion, wide: Part, depth: Expr, at: tuple[Expr, Expr], tiles: dict[str, TileProgram]
) -> Iterator[NestNode]:
    """Yield the nodes that convert a part of the lines along all of K."""
    if value(depth) is not None:
        for deep in cut(depth, reach(c)):
            yield from repeated("kp", deep.count, _call(c, (wide, deep), at, tiles))
        return
    for deep in _whole_groups(c, depth):
        yield from repeated("kp", deep.count, _call(c, (wide, deep), at, tiles))
    tail = mod(depth, c.k_group)
    nodes: tuple[NestNode, ...] = ()
    for existing in range(1, c.k_group):
        deep = Part(depth - tail, Integer(existing), existing, ONE)
        nodes = (When(tail - (existing - 1), _call(c, (wide, deep), at, tiles), nodes),)
    yield from nodes


def _whole_groups(c: Conversion, depth: Expr) -> Iterator[Part]:
    """Yield parts of K that consist of whole K groups."""
    most = max(1, reach(c) // c.k_group)
    for part in cut(div(depth, c.k_group), most, by=BY):
        units, start, size = (x * c.k_group for x in (part.units, part.start, part.size))
        yield replace(part, units=int(units), start=start, size=size)


def _call(
    c: Conversion,
    parts: tuple[Part, Part],
    at: tuple[Expr, Expr],
    tiles: dict[str, TileProgram],
) -> tuple[NestNode, ...]:
    wide, deep = parts
    program = turned_tile(c, wide.units, deep.units)
    tiles.setdefault(program.name, program)
    return (call_of(c, program, at, wide.at("lp"), deep.at("kp")),)


def reach(c: Conversion) -> int:
    """Return the elements of K in a tile: those of a cache line, or of a vector if that is
    longer.
    """
    vector = c.lanes * _together(c)
    line = c.target.core.line // ITEMSIZE[c.source.type]
    return vector if _many_instructions(c) else max(vector, line)


def across(c: Conversion) -> int:
    """Return the lines in a tile: enough to fill a cache line of the packed form, or a vector.

    For single bytes only half a cache line is filled, because more words would not fit in
    registers.
    """
    written = max(c.k_group * ITEMSIZE[c.packed.type], 2)
    return c.lanes if _many_instructions(c) else max(c.lanes, c.target.core.line // written)


def _many_instructions(c: Conversion) -> bool:
    """Return True if converting one element needs many instructions.

    One block for each tile is then enough code.
    """
    real = c.target.holding(c.real, c.lanes)
    moved = c.move.bits or (c.kind == c.source.type and c.kind in real.loads)
    return c.kind in FORMATS and not is_upper_half(c.kind) and not moved


def _together(c: Conversion) -> int:
    """Return the elements transposed in one lane: those of a word if they are easy to extract, else
    1.
    """
    return c.move.together if c.move.easy else 1


def turned_tile(c: Conversion, lines: int, depth: int) -> TileProgram:
    """Return the tile of ``lines`` lines and ``depth`` elements of K.

    A K group of adjacent blocks is written at once, so that each cache line is written once.
    """
    tile = MoveTile(c.move)
    tile.block(lines, depth)
    if c.spills:
        for line in range(lines):
            at = linear(((lines + line, c.source.strides[c.line]),))
            tile.emitter.add(Prefetch(Address("x", at)))
    summary = f"{lines} lines, {depth} elements of each, turned"
    return tile.program(f"{c.prefix}turn_{lines}x{depth}", summary)
