"""Convert blocks of an operand and pack them in panels ``[K / group][width][group]``.

A *line* is a row of A or a column of B. Operands contiguous along K are transposed in registers, in
blocks of lines. Of others, a vector of lines is loaded at a time. The extents are known only at the
call.
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
    """Return the nodes and tiles that convert a panel of ``width`` lines, or an incomplete panel.

    ``at`` has its first element in the source and in the packed buffer. Up to ``spilled`` elements
    may be written past the panel, where a later panel or padding is. ``padded`` is True if tiles
    read lines that do not exist; those of a transposed panel are set to 0.
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
    """Return the elements that may be written past the last panel, because whole vectors are
    stored.
    """
    return max(0, c.lanes - width) * c.k_group if turnable(c) else 0


def _turned(
    c: Conversion,
    extents: dict[str, Expr],
    at: tuple[Expr, Expr],
    width: int,
    tiles: dict[str, TileProgram],
) -> Iterator[NestNode]:
    """Yield blocks of lines, each transposed along all of K."""
    most, lines = min(width, across(c)), extents[c.line]
    if value(lines) is None and most == width > 1:  # the remainder is shorter
        most = 1 << ((width - 1).bit_length() - 1) // 2 * 2
    for wide in cut(lines, most, by=BY):
        body = tuple(along_k(c, wide, extents["k"], at, tiles))
        yield from repeated("lp", wide.count, body)
