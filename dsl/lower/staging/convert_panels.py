"""Blocks of an operand converted as they are packed in panels: ``[K / group][width][group]`` each.

What lies along K is transposed in registers, in blocks of lines; of what lies along lines a vector
is read at a time. The extents are those that only the call knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sympy import Expr, Integer

from tilewright.ir.nest import NestNode, repeated
from tilewright.ir.ops import TileProgram
from tilewright.plan.tiling.parts import cut
from tilewright.symbolic import value

from .conversion import Conversion
from .convert_blocks import BY, across, along_k, turnable
from .convert_groups import groups, zero_groups


def panel_nest(
    c: Conversion,
    extents: dict[str, Expr],
    at: tuple[Expr, Expr],
    width: int,
    *,
    padded: bool,
) -> tuple[tuple[NestNode, ...], dict[str, TileProgram]]:
    """The nodes and tiles that convert a panel of ``width`` lines, or what is left of one.

    ``at`` is where it begins in its source, and where in the packed buffer, in elements. Behind the
    panel ``spilled`` elements may be written, of a panel that comes later, or of none. With
    ``padded`` tiles read lines that do not exist: those of a panel that is turned are zeros.
    """
    tiles: dict[str, TileProgram] = {}
    exact = replace(c, exact=True)
    turned = turnable(c)
    if not turned and width % c.lanes == 0:
        return tuple(groups(c, extents, at, tiles)), tiles
    nodes: list[NestNode] = []
    if padded and extents[c.line] != width:
        nodes += zero_groups(exact, Integer(width), at, extents["k"], tiles)
    if turned:
        spills = replace(c, spills=extents[c.line] == width < c.lanes)
        return (*nodes, *_turned(spills, extents, at, width, tiles)), tiles
    for part in cut(extents[c.line], width, by=BY):
        first = part.at("sp")
        places = tuple(
            begin + first * operand.strides[c.line]
            for begin, operand in zip(at, (c.source, c.packed), strict=True)
        )
        within = extents | {c.line: Integer(part.units)}
        body = groups(exact, within, (places[0], places[1]), tiles)
        nodes += repeated("sp", part.count, body)
    return tuple(nodes), tiles


def spilled(c: Conversion, width: int) -> int:
    """How many elements may be written behind the last panel: a panel's are stored as a vector."""
    return max(0, c.lanes - width) * c.k_group if turnable(c) else 0


def _turned(
    c: Conversion,
    extents: dict[str, Expr],
    at: tuple[Expr, Expr],
    width: int,
    tiles: dict[str, TileProgram],
) -> Iterator[NestNode]:
    """Blocks of lines, each of them along all of K, transposed."""
    most, lines = min(width, across(c)), extents[c.line]
    if value(lines) is None and most == width > 1:  # what is left is less
        most = 1 << ((width - 1).bit_length() - 1) // 2 * 2
    for wide in cut(lines, most, by=BY):
        body = tuple(along_k(c, wide, extents["k"], at, tiles))
        yield from repeated("lp", wide.count, body)
