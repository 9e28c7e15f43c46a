"""Convert operands into lines that are contiguous along K.

A *line* is a row of A or a column of B. If the source is contiguous along K, lines are converted
vector by vector. Otherwise square blocks are transposed in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from sympy import Expr

from tilewright.ir.interleaving import transpose
from tilewright.ir.nest import BlockLoop, Call, NestNode, When, repeated
from tilewright.ir.ops import Load, Store, TileProgram
from tilewright.ir.values import Active, Address, Register
from tilewright.lower.vectors import known
from tilewright.plan.staging import row_elements, widening
from tilewright.plan.tiling.parts import cut
from tilewright.symbolic import ONE, ZERO, div, linear, mod, symbol, value

from .conversion import (
    VECTORS,
    Conversion,
    call_of,
    groups_of,
    lanes_of,
    program_of,
    put,
)

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
    emitter = c.emitter(c.lanes)
    wide = widening(c.target, c.source.type, c.packed.type)
    each = step // c.lanes
    for index, (start, line) in enumerate(product(starts, range(lines))):
        read, write = (
            Address(name, start + linear(((line, operand.strides[c.line]),)))
            for name, operand in (("x", c.source), ("out", c.packed))
        )
        if wide is not None:
            register = Register(f"wx{index}", wide)
            emitter.add(Load(register, read, known(tail), c.source.type))
            emitter.add(Store(write, register))
            continue
        if each > 1:
            word = emitter.fresh(f"x{index}", "s32")
            existing, makes = groups_of(c, tail, each)
            emitter.add(*makes)
            emitter.add(Load(word, read, existing, c.source.type, each))
            found = c.shifted(emitter, emitter.take(word), each)
            emitter.add(Store(write, emitter.register(found), None, c.packed.type, each))
            continue
        active: Active = None
        if tail is not None:
            active, makes = lanes_of(c, tail, emitter)
            emitter.add(*makes)
        put(c, emitter, c.element(emitter, read, active, f"x{index}"), write)
    size = f"{len(starts) * step}" if tail is None else "tail"
    if lines == 1:
        return program_of(c, f"row_{size}", list(emitter.emit()), f"{size} elements of a row")
    what = f"{size} elements of each of {lines} rows"
    return program_of(c, f"rows_{lines}x{size}", list(emitter.emit()), what)


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
    emitter, most = c.emitter(c.lanes), c.lanes * c.k_group
    words = []
    for first in range(0, most, c.k_group):
        elements = []
        for k in range(first, first + c.k_group):
            there = div(existing + (most - 1 - k), most)  # 1, or 0 past the end of K
            if there == 0:
                break
            active = known((c.lanes * ONE if tail is None else tail) * there)
            active = None if active == c.lanes else active
            address = Address("x", linear(((k, c.source.strides["k"]),)))
            elements.append(c.element(emitter, address, active, f"x{k}"))
        words.append(emitter.register(c.words(emitter, elements)[0]))
    steps, turned = transpose(c.target, words, c.lanes, "t")
    emitter.add(*steps)
    for line, register in enumerate(turned):
        place = Address("out", linear(((line, c.packed.strides[c.line]),)))
        emitter.add(Store(place, register, None, c.packed.type, c.k_group))
    name = "turn" + ("_part" if existing != most else "") + ("_tail" if tail is not None else "")
    return program_of(c, name, list(emitter.emit()), "a block of lines as rows along K")
