"""Convert operands into lines that are contiguous along K.

A *line* is a row of A or a column of B. If the source is contiguous along K, lines are converted
vector by vector. Otherwise square blocks are transposed in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sympy import Expr

from tilewright.ir.nest import BlockLoop, Call, NestNode, When, repeated
from tilewright.ir.ops import TileProgram
from tilewright.lower.move_tile import MoveTile
from tilewright.plan.staging import row_elements, widening
from tilewright.plan.tiling.parts import cut
from tilewright.symbolic import ONE, ZERO, div, mod, symbol, value

from .conversion import VECTORS, Conversion, call_of

#: The number of vectors that one call converts if the operand has few rows.
BLOCK = 16


def rows(
    c: Conversion, extents: dict[str, Expr], at: tuple[Expr, Expr], tiles: dict[str, TileProgram]
) -> Iterator[NestNode]:
    """Yield the nodes that convert a matrix into lines along K; their tiles are added to
    ``tiles``.
    """
    if value(c.source.strides["k"]) != 1:
        yield from _turned(c, extents, at, tiles)
        return
    lines = value(extents[c.line])
    few = lines if lines is not None and lines <= BLOCK and c.lanes > 1 else None
    whole, tail = _row_calls(c, extents["k"], few, at, tiles)
    if few:
        yield from whole
        whole = []
    if each := (*whole, *tail):
        work = div(extents["k"], c.lanes) + 1
        yield c.over("lp", extents[c.line], each, work, f"convert {c.source.name}")


def _row_calls(
    c: Conversion,
    depth: Expr,
    few: int | None,
    at: tuple[Expr, Expr],
    tiles: dict[str, TileProgram],
) -> tuple[list[NestNode], list[NestNode]]:
    """Return the calls that convert whole vectors of a line, and those that convert its tail.

    If ``few`` is given, a call converts whole vectors of all ``few`` lines.
    """
    step = row_elements(c.target, c.source.type, c.packed.type, c.lanes)
    count, tail = div(depth, step), mod(depth, step)
    whole: list[NestNode] = []

    def called(lines: int | None, starts: Sequence[int], k: Expr, tail: Expr | None = None) -> Call:
        program = _row_tile(c, lines or 1, starts, step, tail)
        tiles.setdefault(program.name, program)
        return call_of(c, program, at, ZERO if lines else symbol("lp"), k)

    for part in cut(count, BLOCK // few if few else VECTORS):
        call = called(few, range(0, part.units * step, step), step * part.at("kp"))
        whole += repeated("kp", part.count, (call,))
    if tail == 0:
        return whole, []
    # the last vector may overlap the previous one
    if value(count) and c.k_group == 1 and not c.zero_row_tails:
        return [*whole, called(few, [0], depth - step)], []
    call = called(None, [0], step * count, tail)
    return whole, [call if value(tail) else When(tail, (call,))]


def _row_tile(
    c: Conversion, lines: int, starts: Sequence[int], step: int, tail: Expr | None
) -> TileProgram:
    """Return the tile of ``step`` elements of each line at each of ``starts``, or of a line's
    ``tail``.
    """
    tile = MoveTile(c.move)
    wide = widening(c.target, c.source.type, c.packed.type)
    tile.along(lines, starts, step, tail, wide)
    size = f"{len(starts) * step}" if tail is None else "tail"
    if lines == 1:
        return tile.program(f"{c.prefix}row_{size}", f"{size} elements of a row")
    summary = f"{size} elements of each of {lines} rows"
    return tile.program(f"{c.prefix}rows_{lines}x{size}", summary)


# --- what is contiguous along lines --------------------------------------------------------------


def _turned(
    c: Conversion, extents: dict[str, Expr], at: tuple[Expr, Expr], tiles: dict[str, TileProgram]
) -> Iterator[NestNode]:
    """Yield transposed blocks with as many lines and K groups as a vector has lanes."""
    step = c.lanes * c.k_group
    whole, k_tail = div(extents["k"], step), mod(extents["k"], step)
    lines, line_tail = div(extents[c.line], c.lanes), mod(extents[c.line], c.lanes)
    for count, existing in ((whole, step * ONE), (ONE if k_tail != 0 else ZERO, k_tail)):
        if count == 0:
            continue
        k = step * (symbol("kp") if existing == step else whole)
        calls: list[NestNode] = []
        for many, tail in ((lines, None), (ONE if line_tail != 0 else ZERO, line_tail)):
            if many == 0:
                continue
            program = _turn_tile(c, tail, existing)
            tiles.setdefault(program.name, program)
            first = c.lanes * (symbol("lp") if tail is None else lines)
            call = call_of(c, program, at, first, k)
            if tail is None:
                calls.append(BlockLoop("lp", many, (call,)))
            else:
                calls.append(call if value(tail) else When(tail, (call,)))
        if existing == step:
            work = extents[c.line] + 1
            yield c.over("kp", count, tuple(calls), work, f"turn {c.source.name}")
        else:
            yield from calls if value(k_tail) else (When(k_tail, tuple(calls)),)


def _turn_tile(c: Conversion, tail: Expr | None, existing: Expr) -> TileProgram:
    """Return the tile of one block with ``tail`` lines, None for all, and ``existing`` elements of
    K.
    """
    tile = MoveTile(c.move)
    tile.lines(c.lanes * ONE if tail is None else tail, existing)
    part = "_part" if existing != c.lanes * c.k_group else ""
    name = f"{c.prefix}turn{part}" + ("_tail" if tail is not None else "")
    return tile.program(name, "a block of lines as rows along K")
