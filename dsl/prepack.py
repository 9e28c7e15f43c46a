"""Operands converted before anything else: into groups along K, of the types that are multiplied.

A word is the bits of one group in an s32 lane. What is contiguous along lines (columns of B, rows
of A) is read a vector of lines at a time; what is contiguous along K a group, or a row, at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sympy import Expr

from .access import bits_of, load
from .builder import Argument
from .convert import narrow
from .dataflow import sizes_used, without_idle_masks
from .emitter import Emitter
from .feed import Operand, row_elements, widening
from .isa import Target
from .program import (
    Active,
    Address,
    BlockLoop,
    Call,
    Interleave,
    Load,
    MakeMask,
    MaskRegister,
    NestNode,
    Op,
    Parameter,
    Register,
    Store,
    TileProgram,
    When,
)
from .program import Argument as Passed
from .symbolic import ONE, div, linear, mod, symbol, value
from .transposition import Part, parts
from .types import ITEMSIZE, is_integer

#: Vectors that one call converts.
VECTORS = 4


@dataclass(frozen=True, slots=True)
class Conversion:
    """One operand's way from ``source`` to ``packed``: ``line`` is its dimension beside K.

    ``shift`` is added to each element, ``depth`` elements of K are a group.
    """

    target: Target
    source: Operand
    packed: Operand
    line: str
    depth: int
    shift: int
    lanes: int
    slots: tuple[str, ...]
    prefix: str

    @property
    def rows(self) -> bool:
        """Whether it stays in rows along K."""
        return value(self.packed.strides["k"]) == 1 and value(self.packed.strides[self.line]) != 1

    @property
    def moves(self) -> bool:
        """Whether elements keep their size: then whole groups can be moved as they are."""
        kept = self.source.type == self.packed.type or is_integer(self.source.type)
        return kept and ITEMSIZE[self.source.type] == ITEMSIZE[self.packed.type]

    def element(self, emitter: Emitter, address: Address, active: Active, name: str) -> Argument:
        """One element per lane as it will be stored: s32 lanes that hold its bits, or f32."""
        b, source, stored = emitter.builder, self.source.type, self.packed.type
        if is_integer(source):
            found = load(emitter, address, active, source, name)
            return b("add", found, self.shift) if self.shift else found
        if source == stored and ITEMSIZE[stored] < 4:
            register = emitter.fresh(name, "s32")
            emitter.add(Load(register, address, active, bits_of(source)))
            return emitter.take(register)
        found = load(emitter, address, active, source, name)
        return narrow(b, found, stored) if stored != emitter.builder.real else found

    @property
    def word_elements(self) -> int:
        """Elements of a group that one word holds."""
        return min(self.depth, 4 // ITEMSIZE[self.packed.type])

    def words(self, emitter: Emitter, elements: list[Argument]) -> list[Argument]:
        """The elements of a group in words, the first in the lowest bits."""
        b, bits, most = emitter.builder, 8 * ITEMSIZE[self.packed.type], self.word_elements
        if self.depth == 1:
            return elements
        words: list[Argument] = []
        for first in range(0, self.depth, most):
            word: Argument = 0
            for place, element in enumerate(elements[first : first + most]):
                clean = b("and", element, (1 << bits) - 1)
                moved = b("shl", clean, bits * place) if place else clean
                word = b("or", word, moved) if place else moved
            words.append(word)
        return words


def conversion_nest(
    c: Conversion, extents: dict[str, Expr], at: tuple[Expr, Expr]
) -> tuple[tuple[NestNode, ...], dict[str, TileProgram]]:
    """The nodes and tiles that convert a matrix; it and its packed form begin ``at`` elements."""
    tiles: dict[str, TileProgram] = {}
    write = _rows if c.rows else _groups
    return tuple(write(c, extents, at, tiles)), tiles


# --- rows along K --------------------------------------------------------------------------------


def _rows(
    c: Conversion, extents: dict[str, Expr], at: tuple[Expr, Expr], tiles: dict[str, TileProgram]
) -> Iterator[NestNode]:
    step = row_elements(c.target, c.source.type, c.packed.type, c.lanes)
    depth = extents["k"]
    line = symbol("lp")
    whole, tail = div(depth, step), mod(depth, step)
    inner: list[NestNode] = []
    for part in parts(whole, VECTORS):
        program = _row_tile(c, part.size, step, None)
        tiles.setdefault(program.name, program)
        column = step * _position(part, "kp")
        inner += _loop("kp", part, (_call(c, program, at, line, column),))
    if tail != 0:
        known = value(tail)
        program = _row_tile(c, 1, step, tail)
        tiles.setdefault(program.name, program)
        call = _call(c, program, at, line, step * whole)
        inner.append(call if known else When(tail, (call,)))
    yield BlockLoop("lp", extents[c.line], tuple(inner), note=f"convert {c.source.name}")


def _row_tile(c: Conversion, vectors: int, step: int, tail: Expr | None) -> TileProgram:
    """``vectors`` times ``step`` elements of a row, or the ``tail`` elements that are left."""
    ops: list[Op] = []
    emitter = Emitter(c.target, c.lanes, "w", "f32")
    wide = widening(c.target, c.source.type, c.packed.type)
    for index in range(vectors):
        read, write = (Address(name, index * step * ONE) for name in ("x", "out"))
        if wide is not None:
            register = Register(f"wx{index}", wide)
            emitter.add(Load(register, read, _elements(tail), c.source.type))
            emitter.add(Store(write, register))
            continue
        if step > c.lanes:
            word = emitter.fresh(f"x{index}", "s32")
            emitter.add(Load(word, read, _elements(tail), c.source.type, step // c.lanes))
            found = _shifted(c, emitter, emitter.take(word), step // c.lanes)
            stored = Store(write, emitter.register(found), None, c.packed.type, step // c.lanes)
            emitter.add(stored)
            continue
        active: Active = None
        if tail is not None:
            active, makes = _lanes_of(c, tail, emitter)
            emitter.add(*makes)
        found = c.element(emitter, read, active, f"x{index}")
        emitter.add(_stored(c, emitter, found, write))
    ops += emitter.emit()
    size = f"{vectors * step}" if tail is None else "tail"
    return _program(c, f"row_{size}", ops, f"{size} elements of a row")


def _stored(c: Conversion, emitter: Emitter, found: Argument, write: Address) -> Store:
    """One element per lane, as the packed type."""
    register = emitter.register(found)
    if register.vector.element == c.packed.type:
        return Store(write, register)
    if c.packed.type in register.vector.stores:
        return Store(write, register, None, c.packed.type)
    return Store(write, register, None, c.packed.type, 1)


def _shifted(c: Conversion, emitter: Emitter, word: Argument, elements: int) -> Argument:
    """128 added to each byte of a word, which is the same as subtracted: the top bit flipped."""
    if not c.shift:
        return word
    mask = sum(0x80 << (8 * i) for i in range(elements))
    return emitter.builder("xor", word, mask)


def _elements(tail: Expr | None) -> Active:
    known = None if tail is None else value(tail)
    return known if known is not None or tail is None else tail


def _lanes_of(c: Conversion, tail: Expr, emitter: Emitter) -> tuple[Active, list[Op]]:
    """What is active of a vector of which ``tail`` lanes exist."""
    element = "s32" if is_integer(c.source.type) else "f32"
    vector = emitter.vector(element)
    if c.source.type == element and vector.mask is not None:
        mask = MaskRegister("tail", vector, tail)
        return mask, [MakeMask(mask)]
    return _elements(tail), []


# --- groups along K ------------------------------------------------------------------------------


def _groups(
    c: Conversion, extents: dict[str, Expr], at: tuple[Expr, Expr], tiles: dict[str, TileProgram]
) -> Iterator[NestNode]:
    depth, lines = extents["k"], extents[c.line]
    whole, rest = div(depth, c.depth), mod(depth, c.depth)
    group = symbol("gp")
    if whole != 0:
        body = tuple(_group_lines(c, lines, at, c.depth * group, c.depth, tiles))
        yield BlockLoop("gp", whole, body, note=f"convert {c.source.name}")
    first = c.depth * whole
    known = value(rest)
    if known:
        yield from _group_lines(c, lines, at, first, known, tiles)
    elif known is None:
        nodes: tuple[NestNode, ...] = ()
        for existing in range(1, c.depth):
            body = tuple(_group_lines(c, lines, at, first, existing, tiles))
            nodes = (When(rest - (existing - 1), body, nodes),)
        yield from nodes


def _group_lines(
    c: Conversion,
    lines: Expr,
    at: tuple[Expr, Expr],
    k: Expr,
    existing: int,
    tiles: dict[str, TileProgram],
) -> Iterator[NestNode]:
    """One group of every line, ``existing`` elements of which there are."""
    lanes = c.lanes if value(c.source.strides[c.line]) == 1 else 1
    whole, tail = div(lines, lanes), mod(lines, lanes)
    for part in parts(whole, VECTORS):
        program = _group_tile(c, part.size, None, lanes, existing)
        tiles.setdefault(program.name, program)
        position = lanes * _position(part, "lp")
        yield from _loop("lp", part, (_call(c, program, at, position, k),))
    if tail != 0:
        program = _group_tile(c, 1, tail, lanes, existing)
        tiles.setdefault(program.name, program)
        call = _call(c, program, at, lanes * whole, k)
        yield call if value(tail) else When(tail, (call,))


def _group_tile(
    c: Conversion, vectors: int, tail: Expr | None, lanes: int, existing: int
) -> TileProgram:
    """One group of as many lines as ``vectors`` have lanes, or of the ``tail`` that is left."""
    emitter = Emitter(c.target, lanes, "w", "f32")
    active: Active = None
    if tail is not None:
        active, makes = _lanes_of(c, tail, emitter)
        emitter.add(*makes)
    moved = lanes == 1 and c.moves and value(c.source.strides["k"]) == 1 and c.depth > 1
    for index in range(vectors):
        write = Address("out", linear(((index * lanes, c.packed.strides[c.line]),)))
        start = linear(((index * lanes, c.source.strides[c.line]),))
        if moved:
            words = list(_moved(c, emitter, (index, start), existing))
        else:
            words = c.words(emitter, _group(c, emitter, (index, start), active, existing))
        _store_words(c, emitter, words, write)
    size = f"{vectors * lanes}" if tail is None else "tail"
    name = f"group_{size}" + (f"_{existing}" if existing < c.depth else "")
    return _program(c, name, list(emitter.emit()), f"{size} lines, {existing} elements of each")


def _moved(
    c: Conversion, emitter: Emitter, start: tuple[int, Expr], existing: int
) -> Iterator[Argument]:
    """A group whose elements follow each other and keep their size, word by word."""
    most = c.word_elements
    for first in range(0, c.depth, most):
        count = min(most, existing - first)
        if count <= 0:
            yield 0
            continue
        word = emitter.fresh(f"x{start[0]}_{first}", "s32")
        part = None if count == most else count
        emitter.add(Load(word, Address("x", start[1] + first), part, c.source.type, most))
        yield _shifted(c, emitter, emitter.take(word), count)


def _store_words(c: Conversion, emitter: Emitter, words: list[Argument], write: Address) -> None:
    """The words of a group in each lane, or of two words those of half the lanes each time."""
    registers = [emitter.register(word) for word in words]
    if len(registers) > 1 and emitter.lanes > 1:
        registers = _zipped(emitter, registers)
    plain = registers[0].vector.element == c.packed.type
    step = emitter.lanes * c.word_elements
    for index, register in enumerate(registers):
        place = Address(write.pointer, write.offset + index * step)
        how = () if plain else (None, c.packed.type, c.word_elements)
        emitter.add(Store(place, register, *how))


def _zipped(emitter: Emitter, pair: list[Register]) -> list[Register]:
    """The lanes of two registers in turn: blocks are interleaved, twice as large each time."""
    block, x, y = 1, *pair
    while block < emitter.lanes:
        even, odd = (emitter.fresh(f"{x.name}_{side}{block}", "s32") for side in "eo")
        emitter.add(
            Interleave(even, x, y, block, odd=False), Interleave(odd, x, y, block, odd=True)
        )
        block, x, y = 2 * block, even, odd
    return [x, y]


def _group(
    c: Conversion, emitter: Emitter, start: tuple[int, Expr], active: Active, existing: int
) -> list[Argument]:
    """The elements of a group, each in a register of its own."""
    found = []
    for k in range(existing):
        address = Address("x", start[1] + linear(((k, c.source.strides["k"]),)))
        found.append(c.element(emitter, address, active, f"x{start[0]}_{k}"))
    return found


# --- both --------------------------------------------------------------------------------------


def _call(c: Conversion, program: TileProgram, at: tuple[Expr, Expr], line: Expr, k: Expr) -> Call:
    places = tuple(
        Passed(operand.buffer, first + line * operand.strides[c.line] + k * operand.strides["k"])
        for operand, first in zip((c.source, c.packed), at, strict=True)
    )
    return Call(program.name, places)


def _position(part: Part, counter: str) -> Expr:
    return part.start if part.count == 1 else part.start + part.size * symbol(counter)


def _loop(counter: str, part: Part, body: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
    return body if part.count == 1 else (BlockLoop(counter, part.count, body),)


def _program(c: Conversion, name: str, ops: list[Op], summary: str) -> TileProgram:
    return TileProgram(
        name=c.prefix + name,
        element=c.packed.type,
        parameters=(
            Parameter("x", "in", c.source.type),
            Parameter("out", "out", c.packed.type),
            *(Parameter(slot, "size") for slot in sizes_used(ops, c.slots)),
        ),
        body=without_idle_masks(ops),
        end=(),
        summary=summary,
    )
