"""Convert operands before the loops into K groups of the types that are multiplied.

A *line* is a row of A or a column of B. If adjacent lines are contiguous, a vector of lines is
loaded at a time. If each line is contiguous along K, one K group, a block of lines
(``convert_blocks``) or a row (``convert_rows``) is loaded at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

from sympy import Expr

from tilewright.elementwise.builder import Argument
from tilewright.ir.emitter import Emitter
from tilewright.ir.nest import BlockLoop, Call, NestNode, When
from tilewright.ir.ops import Load, TileProgram
from tilewright.ir.values import Active, Address
from tilewright.lower.vectors import over_vectors
from tilewright.spec.types import is_integer
from tilewright.symbolic import div, linear, mod, symbol, value

from .conversion import (
    VECTORS,
    Conversion,
    call_of,
    lanes_of,
    program_of,
    put,
    store_words,
)
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
    emitter = c.emitter(lanes)
    active: Active = None
    if tail is not None:
        active, makes = lanes_of(c, tail, emitter)
        emitter.add(*makes)
    moved = lanes == 1 and c.moves and value(c.source.strides["k"]) == 1 and c.k_group > 1
    parts = c.exact or (c.zero_lines and c.shift)
    lines = value(tail) if tail is not None and parts else None
    for index in range(vectors):
        write = Address("out", linear(((index * lanes, c.packed.strides[c.line]),)))
        start = linear(((index * lanes, c.source.strides[c.line]),))
        if moved:
            words = list(_moved(c, emitter, (index, start), existing))
            store_words(c, emitter, words, write, lines)
            continue
        found = _group(c, emitter, (index, start), active, existing)
        if not existing and c.k_group == 1:
            found = [0 if is_integer(c.kind) and not c.mixed else 0.0]
        if c.k_group == 1:
            put(c, emitter, found[0], write, lines if c.exact else None)
        else:
            store_words(c, emitter, c.words(emitter, found), write, lines)
    size = f"{vectors * lanes}" if tail is None else str(lines) if c.exact else "tail"
    name = f"group_{size}" + (f"_{existing}" if existing < c.k_group else "")
    return program_of(c, name, list(emitter.emit()), f"{size} lines, {existing} elements of each")


def _moved(
    c: Conversion, emitter: Emitter, start: tuple[int, Expr], existing: int
) -> Iterator[Argument]:
    """Yield the words of a K group that is copied; ``start`` is its vector's index and its
    address.
    """
    most = c.word_elements
    for first in range(0, c.k_group, most):
        count = min(most, existing - first)
        if count <= 0:
            yield 0
            continue
        word = emitter.fresh(f"x{start[0]}_{first}", "s32")
        part = None if count == most else count
        emitter.add(Load(word, Address("x", start[1] + first), part, c.source.type, most))
        yield c.shifted(emitter, emitter.take(word), count)


def _group(
    c: Conversion, emitter: Emitter, start: tuple[int, Expr], active: Active, existing: int
) -> list[Argument]:
    """Return the elements of a K group of each lane, one register for each element."""
    found = []
    for k in range(existing):
        address = Address("x", start[1] + linear(((k, c.source.strides["k"]),)))
        found.append(c.element(emitter, address, active, f"x{start[0]}_{k}"))
    return found
