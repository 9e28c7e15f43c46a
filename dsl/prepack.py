"""Operands converted before anything else: into groups along K, of the types that are multiplied.

A word is the bits of one group in an s32 lane. What is contiguous along lines (columns of B, rows
of A) is read a vector of lines at a time; what is contiguous along K a group, or a row, at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sympy import Expr

from .access import bits_of, load, store
from .builder import Argument, Value
from .convert import narrow, widen
from .dataflow import prune, sizes_used, without_idle_masks
from .emitter import Emitter
from .feed import Operand, row_elements, widening
from .isa import Target
from .nesting import Argument as Passed
from .nesting import BlockLoop, Call, NestNode, When
from .program import (
    Active,
    Address,
    Interleave,
    Load,
    MakeMask,
    MaskRegister,
    Op,
    Parameter,
    Register,
    Store,
    TileProgram,
)
from .symbolic import ONE, div, linear, mod, symbol, value
from .transposition import Part, parts
from .types import ITEMSIZE, is_integer

#: Vectors that one call converts.
VECTORS = 4


@dataclass(frozen=True, slots=True)
class Conversion:
    """One operand's way from ``source`` to ``packed``: ``line`` is its dimension beside K.

    ``shift`` is added to each element, ``depth`` elements of K are a group. ``type``, if not ""
    for the source's own, is what elements are rounded to on the way. ``clean``: lines that are
    padding become zeros, else anything.
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
    type: str = ""
    clean: bool = False

    @property
    def kind(self) -> str:
        """The type of the elements' values."""
        return self.type or self.source.type

    @property
    def rows(self) -> bool:
        """Whether it stays in rows along K."""
        return value(self.packed.strides["k"]) == 1 and value(self.packed.strides[self.line]) != 1

    @property
    def moves(self) -> bool:
        """Whether elements keep their size: then whole groups can be moved as they are."""
        source, packed = self.source.type, self.packed.type
        kept = self.kind == source and (source == packed or is_integer(source))
        return kept and ITEMSIZE[source] == ITEMSIZE[packed]

    def emitter(self, lanes: int) -> Emitter:
        """What writes the operations on vectors of ``lanes``."""
        return Emitter(self.target, lanes, "w", "f64" if self.source.type == "f64" else "f32")

    def element(self, emitter: Emitter, address: Address, active: Active, name: str) -> Argument:
        """One element per lane: in s32 lanes, its value if an integer, else its bits; or real."""
        b, source, kind = emitter.builder, self.source.type, self.kind
        if source == kind == self.packed.type and not is_integer(kind) and ITEMSIZE[kind] < 4:
            register = emitter.fresh(name, "s32")
            emitter.add(Load(register, address, active, bits_of(source)))
            return emitter.take(register)
        found = load(emitter, address, active, source, name)
        if source == kind:
            return found
        found = narrow(b, found, kind)
        return found if is_integer(kind) or kind == self.packed.type else widen(b, found, kind)

    @property
    def word_elements(self) -> int:
        """Elements of a group that one word holds."""
        return min(self.depth, 4 // ITEMSIZE[self.packed.type])

    def words(self, emitter: Emitter, elements: list[Argument]) -> list[Argument]:
        """The elements of a group in words, the first in the lowest bits."""
        most = self.word_elements
        starts = range(0, self.depth, most)
        return [self._word(emitter, elements[first : first + most]) for first in starts]

    def _word(self, emitter: Emitter, elements: list[Argument]) -> Argument:
        b, bits = emitter.builder, 8 * ITEMSIZE[self.packed.type]
        word: Argument = 0
        for place, element in enumerate(elements):
            if is_real(element):
                element = narrow(b, element, self.packed.type)
            if self.kind == "s8" and place + 1 < self.word_elements:
                element = b("and", element, (1 << bits) - 1)  # the sign would fill what follows
            moved = b("shl", element, bits * place) if place else element
            word = b("or", word, moved) if place else moved
        return self.shifted(emitter, word, len(elements))

    def shifted(self, emitter: Emitter, word: Argument, elements: int) -> Argument:
        """128 added to each byte of a word, the same as subtracted: its top bit is flipped."""
        if not self.shift or not elements:
            return word
        return emitter.builder("xor", word, sum(0x80 << (8 * i) for i in range(elements)))


def is_real(value: Argument) -> bool:
    """Whether a value is of floating point."""
    return isinstance(value, float) or (isinstance(value, Value) and value.element != "s32")


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
    emitter = c.emitter(c.lanes)
    wide = widening(c.target, c.source.type, c.packed.type)
    each = step // c.lanes
    for index in range(vectors):
        read, write = (Address(name, index * step * ONE) for name in ("x", "out"))
        if wide is not None:
            register = Register(f"wx{index}", wide)
            emitter.add(Load(register, read, _elements(tail), c.source.type))
            emitter.add(Store(write, register))
            continue
        if each > 1:
            word = emitter.fresh(f"x{index}", "s32")
            emitter.add(Load(word, read, _elements(tail), c.source.type, each))
            found = c.shifted(emitter, emitter.take(word), each)
            emitter.add(Store(write, emitter.register(found), None, c.packed.type, each))
            continue
        active: Active = None
        if tail is not None:
            active, makes = _lanes_of(c, tail, emitter)
            emitter.add(*makes)
        _put(c, emitter, c.element(emitter, read, active, f"x{index}"), write)
    size = f"{vectors * step}" if tail is None else "tail"
    return _program(c, f"row_{size}", list(emitter.emit()), f"{size} elements of a row")


def _put(c: Conversion, emitter: Emitter, found: Argument, write: Address) -> None:
    """One element per lane, as the packed type."""
    stored = c.packed.type
    if is_real(found):
        store(emitter, found, emitter.builder.real, write, None, stored)
        return
    found = emitter.builder("add", found, c.shift) if c.shift else found
    register = emitter.register(found)
    if register.vector.element == stored:
        emitter.add(Store(write, register))
    else:
        group = 0 if stored in register.vector.stores else 1
        emitter.add(Store(write, register, None, stored, group))


def _elements(tail: Expr | None) -> Active:
    known = None if tail is None else value(tail)
    return known if known is not None or tail is None else tail


def _lanes_of(c: Conversion, tail: Expr, emitter: Emitter) -> tuple[Active, list[Op]]:
    """What is active of a vector of which ``tail`` lanes exist."""
    element = "s32" if is_integer(c.source.type) else emitter.builder.real
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
    emitter = c.emitter(lanes)
    active: Active = None
    if tail is not None:
        active, makes = _lanes_of(c, tail, emitter)
        emitter.add(*makes)
    moved = lanes == 1 and c.moves and value(c.source.strides["k"]) == 1 and c.depth > 1
    lines = value(tail) if tail is not None and c.clean and c.shift else None
    for index in range(vectors):
        write = Address("out", linear(((index * lanes, c.packed.strides[c.line]),)))
        start = linear(((index * lanes, c.source.strides[c.line]),))
        if moved:
            words = list(_moved(c, emitter, (index, start), existing))
            _store_words(c, emitter, words, write, lines)
            continue
        found = _group(c, emitter, (index, start), active, existing)
        if c.depth == 1:
            _put(c, emitter, found[0], write)
        else:
            _store_words(c, emitter, c.words(emitter, found), write, lines)
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
        yield c.shifted(emitter, emitter.take(word), count)


def _store_words(
    c: Conversion, emitter: Emitter, words: list[Argument], write: Address, lines: int | None
) -> None:
    """The words of a group in each lane, or of two words those of half the lanes each time.

    ``lines``: how many exist, None for all.
    """
    registers = [emitter.register(word) for word in words]
    step = emitter.lanes * c.word_elements
    if lines is not None:
        existing = [min(step, lines * c.depth - i * step) for i in range(len(words))]
    else:
        existing = [step] * len(words)
    if len(registers) > 1 and emitter.lanes > 1:
        registers = _zipped(emitter, registers, sum(count > 0 for count in existing))
    for index, (register, count) in enumerate(zip(registers, existing, strict=False)):
        place = Address(write.pointer, write.offset + index * step)
        active = None if count == step else count
        emitter.add(Store(place, register, active, c.packed.type, c.word_elements))


def _zipped(emitter: Emitter, pair: list[Register], count: int) -> list[Register]:
    """The lanes of two registers in turn: blocks are interleaved, twice as large each time.

    Of the two that result, the first ``count``.
    """
    block, x, y = 1, *pair
    steps: list[Op] = []
    while block < emitter.lanes:
        even, odd = (emitter.fresh(f"{x.name}_{side}{block}", "s32") for side in "eo")
        steps.append(Interleave(even, x, y, block, odd=False))
        steps.append(Interleave(odd, x, y, block, odd=True))
        block, x, y = 2 * block, even, odd
    found = [x, y][:count]
    emitter.add(*prune(steps, found))
    return found


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
        body=(),
        end=without_idle_masks(ops),  # as in the update of C, constants may be spilled
        summary=summary,
    )
