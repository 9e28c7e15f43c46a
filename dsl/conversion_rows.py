"""Operands converted into rows along K."""

from __future__ import annotations

from collections.abc import Iterator

from sympy import Expr

from .conversion import (
    VECTORS,
    Conversion,
    call_of,
    elements_of,
    lanes_of,
    looped,
    position,
    program_of,
    put,
)
from .feed import row_elements, widening
from .nesting import BlockLoop, NestNode, When
from .program import Active, Address, Load, Register, Store, TileProgram
from .store import transpose
from .symbolic import ONE, ZERO, div, linear, mod, symbol, value
from .transposition import parts


def rows(
    c: Conversion, extents: dict[str, Expr], at: tuple[Expr, Expr], tiles: dict[str, TileProgram]
) -> Iterator[NestNode]:
    """The nodes that convert a matrix into rows along K, and their tiles."""
    if value(c.source.strides["k"]) != 1:
        yield from _turned(c, extents, at, tiles)
        return
    step = row_elements(c.target, c.source.type, c.packed.type, c.lanes)
    depth = extents["k"]
    line = symbol("lp")
    whole, tail = div(depth, step), mod(depth, step)
    inner: list[NestNode] = []
    for part in parts(whole, VECTORS):
        program = _row_tile(c, part.size, step, None)
        tiles.setdefault(program.name, program)
        column = step * position(part, "kp")
        inner += looped("kp", part, (call_of(c, program, at, line, column),))
    if tail != 0 and c.depth == 1 and value(whole):  # what lies between rows is nobody's
        program = _row_tile(c, 1, step, None)
        tiles.setdefault(program.name, program)
        inner.append(call_of(c, program, at, line, depth - step))
    elif tail != 0:
        known = value(tail)
        program = _row_tile(c, 1, step, tail)
        tiles.setdefault(program.name, program)
        call = call_of(c, program, at, line, step * whole)
        inner.append(call if known else When(tail, (call,)))
    yield BlockLoop("lp", extents[c.line], tuple(inner), note=f"convert {c.source.name}")


def _row_tile(c: Conversion, vectors: int, step: int, tail: Expr | None) -> TileProgram:
    """``vectors`` times ``step`` elements of a row, or the ``tail`` elements that are left."""
    emitter = c.emitter(c.lanes)
    wide = widening(c.target, c.source.type, c.packed.type)
    each = step // c.lanes
    for index in range(vectors):
        read, write = (Address(name, index * step * ONE) for name in ("x", "out"))
        if wide is not None:
            register = Register(f"wx{index}", wide)
            emitter.add(Load(register, read, elements_of(tail), c.source.type))
            emitter.add(Store(write, register))
            continue
        if each > 1:
            word = emitter.fresh(f"x{index}", "s32")
            emitter.add(Load(word, read, elements_of(tail), c.source.type, each))
            found = c.shifted(emitter, emitter.take(word), each)
            emitter.add(Store(write, emitter.register(found), None, c.packed.type, each))
            continue
        active: Active = None
        if tail is not None:
            active, makes = lanes_of(c, tail, emitter)
            emitter.add(*makes)
        put(c, emitter, c.element(emitter, read, active, f"x{index}"), write)
    size = f"{vectors * step}" if tail is None else "tail"
    return program_of(c, f"row_{size}", list(emitter.emit()), f"{size} elements of a row")


# --- what is contiguous along lines --------------------------------------------------------------


def _turned(
    c: Conversion, extents: dict[str, Expr], at: tuple[Expr, Expr], tiles: dict[str, TileProgram]
) -> Iterator[NestNode]:
    """Blocks of as many lines, and groups of K, as a vector has lanes: turned in registers."""
    step = c.lanes * c.depth
    whole, rest = div(extents["k"], step), mod(extents["k"], step)
    lines, left = div(extents[c.line], c.lanes), mod(extents[c.line], c.lanes)
    for count, existing in ((whole, step * ONE), (ONE if rest != 0 else ZERO, rest)):
        if count == 0:
            continue
        k = step * (symbol("kp") if existing == step else whole)
        calls: list[NestNode] = []
        for many, tail in ((lines, None), (ONE if left != 0 else ZERO, left)):
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
            yield BlockLoop("kp", count, tuple(calls), note=f"turn {c.source.name}")
        else:
            yield from calls if value(rest) else (When(rest, tuple(calls)),)


def _turn_tile(c: Conversion, tail: Expr | None, existing: Expr) -> TileProgram:
    """One block: of its lines ``tail`` exist, None for all; of its elements of K ``existing``."""
    emitter, most = c.emitter(c.lanes), c.lanes * c.depth
    words = []
    for first in range(0, most, c.depth):
        elements = []
        for k in range(first, first + c.depth):
            there = div(existing + (most - 1 - k), most)  # 1, or 0 where K ends before
            if there == 0:
                break
            active = elements_of((c.lanes * ONE if tail is None else tail) * there)
            active = None if active == c.lanes else active
            address = Address("x", linear(((k, c.source.strides["k"]),)))
            elements.append(c.element(emitter, address, active, f"x{k}"))
        words.append(emitter.register(c.words(emitter, elements)[0]))
    steps, turned = transpose(words, c.lanes, "t")
    emitter.add(*steps)
    for line, register in enumerate(turned):
        place = Address("out", linear(((line, c.packed.strides[c.line]),)))
        emitter.add(Store(place, register, None, c.packed.type, c.depth))
    name = "turn" + ("_part" if existing != most else "") + ("_tail" if tail is not None else "")
    return program_of(c, name, list(emitter.emit()), "a block of lines as rows along K")
