"""The conversion of one operand: how its elements, groups and words are made, and how tiles do it.

A word is the bits of one group, or part of it, in an s32 lane.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr

from tilewright.elementwise.builder import Argument, Value
from tilewright.elementwise.conversions import narrow, widen
from tilewright.ir.access import bits_of, load, store
from tilewright.ir.dataflow import pointers_used, sizes_used, without_idle_masks
from tilewright.ir.emitter import Emitter
from tilewright.ir.nest import Argument as Passed
from tilewright.ir.nest import BlockLoop, Call, NestNode
from tilewright.ir.networks import _zipped
from tilewright.ir.ops import (
    Active,
    Address,
    Load,
    MakeMask,
    MaskRegister,
    Op,
    Parameter,
    Store,
    TileProgram,
)
from tilewright.isa.target import Target
from tilewright.plan.operands import Operand
from tilewright.plan.parts import Part
from tilewright.spec.types import ITEMSIZE, is_integer
from tilewright.symbolic import ONE, ZERO, value

#: Vectors that one call converts.
VECTORS = 4


@dataclass(frozen=True, slots=True)
class Conversion:
    """One operand's way from ``source`` to ``packed``: ``line`` is its dimension beside K.

    ``shift`` is added to each element, ``depth`` elements of K are a group; ``spare`` groups of
    zeros follow. ``type``, if not "" for the source's own, is what elements are rounded to on the
    way. ``clean``: lines that are padding become zeros, else anything; ``ends``: so does what
    follows a row of K up to whole vectors.
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
    ends: bool = True
    spare: Expr = ZERO

    @property
    def kind(self) -> str:
        """The type of the elements' values."""
        return self.type or self.source.type

    @property
    def rows(self) -> bool:
        """Whether it stays in rows along K."""
        along = value(self.packed.strides.get("k", ONE)) == 1
        return along and value(self.packed.strides[self.line]) != 1

    @property
    def moves(self) -> bool:
        """Whether elements keep their size: then whole groups can be moved as they are."""
        source, packed = self.source.type, self.packed.type
        kept = self.kind == source and (source == packed or is_integer(source))
        return kept and ITEMSIZE[source] == ITEMSIZE[packed]

    @property
    def bits(self) -> bool:
        """Whether elements are small floating point, whose bits are kept."""
        kept = self.source.type == self.kind == self.packed.type
        return kept and not is_integer(self.kind) and ITEMSIZE[self.kind] < 4

    def emitter(self, lanes: int) -> Emitter:
        """What writes the operations on vectors of ``lanes``."""
        return Emitter(self.target, lanes, "w", "f64" if self.source.type == "f64" else "f32")

    def element(self, emitter: Emitter, address: Address, active: Active, name: str) -> Argument:
        """One element per lane: in s32 lanes, its value if an integer, else its bits; or real."""
        source = self.source.type
        if self.bits:
            register = emitter.fresh(name, "s32")
            emitter.add(Load(register, address, active, bits_of(source)))
            return emitter.take(register)
        return self.rounded(emitter, load(emitter, address, active, source, name))

    def rounded(self, emitter: Emitter, found: Argument) -> Argument:
        """An element as it was loaded, of the type that it is rounded to on the way."""
        b, kind = emitter.builder, self.kind
        if kind == self.source.type:
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


def put(
    c: Conversion, emitter: Emitter, found: Argument, write: Address, active: int | None = None
) -> None:
    """One element per lane, of all lanes or of the first ``active``, as the packed type."""
    stored = c.packed.type
    if is_real(found):
        store(emitter, found, emitter.builder.real, write, active, stored)
        return
    found = emitter.builder("add", found, c.shift) if c.shift else found
    register = emitter.register(found)
    if register.vector.element == stored:
        emitter.add(Store(write, register, active))
    else:
        group = 0 if stored in register.vector.stores else 1
        emitter.add(Store(write, register, active, stored, group))


def store_words(
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


def elements_of(tail: Expr | None) -> Active:
    """How many elements an access touches, of which ``tail`` are left; None: all."""
    known = None if tail is None else value(tail)
    return known if known is not None or tail is None else tail


def lanes_of(c: Conversion, tail: Expr, emitter: Emitter) -> tuple[Active, list[Op]]:
    """What is active of a vector of which ``tail`` lanes exist."""
    element = "s32" if is_integer(c.source.type) else emitter.builder.real
    vector = emitter.vector(element)
    if c.source.type == element and vector.mask is not None:
        mask = MaskRegister("tail", vector, tail)
        return mask, [MakeMask(mask)]
    return elements_of(tail), []


def call_of(
    c: Conversion, program: TileProgram, at: tuple[Expr, Expr], line: Expr, k: Expr
) -> Call:
    """A call of ``program`` from that line and that element of K on."""
    places = {
        name: Passed(operand.buffer, first + line * operand.strides[c.line] + k * _step(operand))
        for name, operand, first in zip(("x", "out"), (c.source, c.packed), at, strict=True)
    }
    return Call(program.name, tuple(places[p.name] for p in program.parameters if p.name in places))


def _step(operand: Operand) -> Expr:
    """Along K; a tail begins where it lies."""
    return operand.strides.get("k", ZERO)


def looped(counter: str, part: Part, body: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
    """``body`` for each trip of a part."""
    return body if part.count == 1 else (BlockLoop(counter, part.count, body),)


def program_of(c: Conversion, name: str, ops: list[Op], summary: str) -> TileProgram:
    """A tile of the conversion: its parameters are those of the operands that it uses."""
    return TileProgram(
        name=c.prefix + name,
        element=c.packed.type,
        parameters=(
            *((Parameter("x", "in", c.source.type),) if "x" in pointers_used(ops) else ()),
            Parameter("out", "out", c.packed.type),
            *(Parameter(slot, "size") for slot in sizes_used(ops, c.slots)),
        ),
        body=(),
        end=without_idle_masks(ops),  # as in the update of C, constants may be spilled
        summary=summary,
    )
