"""Convert operands before the loops into K groups of the types that are multiplied.

A *line* is a row of A or a column of B. If adjacent lines are contiguous, a vector of lines is
loaded at a time. If each line is contiguous along K, one K group, a block of lines
(``convert_blocks``) or a row (``convert_rows``) is loaded at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sympy import Expr

from tilewright.ir.nest import BlockLoop, Call, NestNode, When
from tilewright.ir.ops import TileProgram
from tilewright.lower.move_tile import MoveTile
from tilewright.lower.vectors import over_vectors
from tilewright.symbolic import div, mod, symbol, value

from .conversion import VECTORS, Conversion, call_of
from .convert_blocks import blocks, turnable
from .convert_rows import rows


def conversion_nest(
    c: Conversion, extents: dict[str, Expr], at: tuple[Expr, Expr]
) -> tuple[tuple[NestNode, ...], dict[str, TileProgram]]:
    """Return the nodes and tiles that convert a matrix of size ``extents``.

    ``at`` has its first element in the source and in the packed buffer.
    """
    tiles: dict[str, TileProgram] = {}
    write = rows if c.rows else _blocks if turnable(c) else groups
    return tuple(write(c, extents, at, tiles)), tiles


def groups(
    c: Conversion, extents: dict[str, Expr], at: tuple[Expr, Expr], tiles: dict[str, TileProgram]
) -> Iterator[NestNode]:
    """Yield the nodes that convert a matrix K group by K group; their tiles are added to
    ``tiles``.
    """
    depth, lines = extents["k"], extents[c.line]
    whole, tail = div(depth, c.k_group), mod(depth, c.k_group)
    group = symbol("gp")
    if whole != 0:
        body = tuple(_group_lines(c, lines, at, c.k_group * group, c.k_group, tiles))
        work = div(lines, c.lanes) + 1
        yield c.over("gp", whole, body, work, f"convert {c.source.name}")
    first = c.k_group * whole
    known = value(tail)
    if known:
        yield from _group_lines(c, lines, at, first, known, tiles)
    elif known is None:
        nodes: tuple[NestNode, ...] = ()
        for existing in range(1, c.k_group):
            body = tuple(_group_lines(c, lines, at, first, existing, tiles))
            nodes = (When(tail - (existing - 1), body, nodes),)
        yield from nodes
    yield from _zero_groups(c, lines, at, depth, tiles)


def _blocks(
    c: Conversion, extents: dict[str, Expr], at: tuple[Expr, Expr], tiles: dict[str, TileProgram]
) -> Iterator[NestNode]:
    yield from blocks(c, extents, at, tiles)
    yield from _zero_groups(c, extents[c.line], at, extents["k"], tiles)


def _zero_groups(
    c: Conversion,
    lines: Expr,
    at: tuple[Expr, Expr],
    depth: Expr,
    tiles: dict[str, TileProgram],
) -> Iterator[NestNode]:
    """Yield the K groups of zeros that complete the last step of K."""
    if c.zero_groups != 0:
        group = symbol("gp")
        after = c.k_group * (div(depth + (c.k_group - 1), c.k_group) + group)
        body = tuple(_group_lines(c, lines, at, after, 0, tiles))
        yield BlockLoop("gp", c.zero_groups, body, note="whole steps")


def zero_groups(
    c: Conversion,
    lines: Expr,
    at: tuple[Expr, Expr],
    depth: Expr,
    tiles: dict[str, TileProgram],
) -> Iterator[NestNode]:
    """Yield nodes that set all K groups of ``lines`` lines to 0 before the lines are converted."""
    body = tuple(_group_lines(c, lines, at, c.k_group * symbol("gp"), 0, tiles))
    count = div(depth + (c.k_group - 1), c.k_group)
    yield BlockLoop("gp", count, body, note="lines that pad a vector")


def _group_lines(
    c: Conversion,
    lines: Expr,
    at: tuple[Expr, Expr],
    k: Expr,
    existing: int,
    tiles: dict[str, TileProgram],
) -> Iterator[NestNode]:
    """Yield one K group of every line: ``existing`` elements are read, the others are 0."""
    lanes = c.lanes if value(c.source.strides[c.line]) == 1 else 1
    if not existing:
        lanes = c.lanes
    if not existing and not c.exact:
        lines = div(lines + (lanes - 1), lanes) * lanes

    def called(first: Expr, vectors: int, tail: Expr | None, lanes: int = lanes) -> Call:
        program = _group_tile(c, vectors, tail, lanes, existing)
        tiles.setdefault(program.name, program)
        return call_of(c, program, at, first, k)

    whole = div(lines, lanes) * lanes
    if value(lines) is None and whole != lines and c.zero_lines and c.shift:
        # A vector would also add the shift to lanes after the last line, which must stay 0.
        # Therefore the lines of the tail are converted one by one.
        yield from over_vectors(whole, lanes, VECTORS, called)
        rest = called(whole + symbol("lt"), 1, None, lanes=1)
        yield BlockLoop("lt", mod(lines, lanes), (rest,))
    else:
        yield from over_vectors(lines, lanes, VECTORS, called)


def _group_tile(
    c: Conversion, vectors: int, tail: Expr | None, lanes: int, existing: int
) -> TileProgram:
    """Return the tile for one K group of ``vectors`` vectors of lines, or of the ``tail`` of the
    lines.
    """
    some = c.exact or (c.zero_lines and c.shift and c.k_group > 1)
    lines = value(tail) if tail is not None and some else None
    tile = MoveTile(replace(c.move, lanes=lanes, spills=lines is None))
    tile.block(vectors * lanes if tail is None else tail, existing)
    size = f"{vectors * lanes}" if tail is None else str(lines) if c.exact else "tail"
    name = f"{c.prefix}group_{size}" + (f"_{existing}" if existing < c.k_group else "")
    return tile.program(name, f"{size} lines, {existing} elements of each")
