"""What all conversions of an operand share: how elements, words and calls are made.

A word is an s32 lane that holds the bits of one K group of a line, or of a part of one.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr

from tilewright.elementwise.builder import Argument, Value
from tilewright.elementwise.conversions import narrow, widen
from tilewright.ir.access import bits_of, load, store
from tilewright.ir.dataflow import pointers_used, sizes_used, without_idle_masks
from tilewright.ir.emitter import Emitter
from tilewright.ir.interleaving import zipped
from tilewright.ir.nest import Argument as Passed
from tilewright.ir.nest import BlockLoop, Call, NestNode
from tilewright.ir.ops import (
    Load,
    MakeMask,
    Op,
    Parameter,
    Store,
    TileProgram,
)
from tilewright.ir.values import Active, Address, MaskRegister
from tilewright.isa.target import Target
from tilewright.plan.operands import Operand
from tilewright.spec.types import ITEMSIZE, is_integer, is_signed
from tilewright.symbolic import ONE, ZERO, value

#: Elements of which so many fill a lane of s32, as vectors hold what is moved as it is.
_MOVED = {4: "u8", 2: "s16"}
#: Vectors that one call converts.
VECTORS = 4


@dataclass(frozen=True, slots=True)
class Conversion:
    """How an operand gets from ``source``, where it lies, to ``packed``, a buffer of the kernel's.

    ``line`` is its dimension beside K: a line is a row of A or a column of B. A K group is
    ``k_group`` elements of a line; behind the last there are ``zero_groups`` more, of zeros.
    ``shift`` is added to each element. ``type`` is what elements are rounded to before they are
    stored, "" for the source's own type. ``zero_lines``: the lines that pad a vector are stored as
    zeros, else as anything. ``zero_row_tails``: rows along K are filled up with zeros to whole
    vectors. ``exact``: nothing is written behind the last of a number of lines that is known.
    ``spills``: what is written behind the last line is written again, or belongs to nobody.
    ``shared``: threads share the loops over lines. ``lanes`` are those of the vectors that convert,
    ``slots`` the run-time sizes that tiles may take, and ``prefix`` begins the tiles' names.
    """

    target: Target
    source: Operand
    packed: Operand
    line: str
    k_group: int
    shift: int
    lanes: int
    slots: tuple[str, ...]
    prefix: str
    type: str = ""
    zero_lines: bool = False
    zero_row_tails: bool = True
    zero_groups: Expr = ZERO
    exact: bool = False
    spills: bool = False
    shared: bool = False

    @property
    def kind(self) -> str:
        """The type of the elements' values."""
        return self.type or self.source.type

    def over(
        self, counter: str, trips: Expr, body: tuple[NestNode, ...], work: Expr, note: str = ""
    ) -> BlockLoop:
        """A loop over lines, or groups of K, of which a trip takes ``work`` vector operations."""
        shared = work if self.shared else None
        return BlockLoop(counter, trips, body, note=note, parallel=self.shared, work=shared)

    @property
    def rows(self) -> bool:
        """Whether the packed form has each line contiguous along K, not groups of all lines."""
        along = value(self.packed.strides.get("k", ONE)) == 1
        return along and value(self.packed.strides[self.line]) != 1

    @property
    def moves(self) -> bool:
        """Whether elements keep their size and value: whole K groups are then moved as they are."""
        source, packed = self.source.type, self.packed.type
        kept = self.kind == source and (source == packed or is_integer(source))
        return kept and ITEMSIZE[source] == ITEMSIZE[packed]

    @property
    def bits(self) -> bool:
        """Whether elements are floating point of less than 32 bits, stored as they are."""
        kept = self.source.type == self.kind == self.packed.type
        return kept and not is_integer(self.kind) and ITEMSIZE[self.kind] < 4

    def emitter(self, lanes: int) -> Emitter:
        """What writes the operations on vectors of ``lanes``."""
        return Emitter(self.target, lanes, "w", "f64" if self.source.type == "f64" else "f32")

    def element(self, emitter: Emitter, address: Address, active: Active, name: str) -> Argument:
        """One element in each lane, as an s32 value, as bits in s32, or as floating point.

        Integers are values; floating point whose bits are kept is bits.
        """
        source = self.source.type
        if self.bits:
            register = emitter.fresh(name, "s32")
            emitter.add(Load(register, address, active, bits_of(source)))
            return emitter.take(register)
        return self.rounded(emitter, load(emitter, address, active, source, name))

    def rounded(self, emitter: Emitter, found: Argument) -> Argument:
        """An element that was loaded, rounded to the type that it has on the way."""
        b, kind = emitter.builder, self.kind
        if kind == self.source.type:
            return found
        found = narrow(b, found, kind)
        return found if is_integer(kind) or kind == self.packed.type else widen(b, found, kind)

    @property
    def word_elements(self) -> int:
        """Elements of a K group that one word holds."""
        return min(self.k_group, 4 // ITEMSIZE[self.packed.type])

    def words(self, emitter: Emitter, elements: list[Argument]) -> list[Argument]:
        """The elements of a K group as words, the first element in the lowest bits."""
        most = self.word_elements
        starts = range(0, self.k_group, most)
        return [self._word(emitter, elements[first : first + most]) for first in starts]

    def _word(self, emitter: Emitter, elements: list[Argument]) -> Argument:
        b, bits = emitter.builder, 8 * ITEMSIZE[self.packed.type]
        word: Argument = 0
        for place, element in enumerate(elements):
            if is_real(element):
                element = narrow(b, element, self.packed.type)
            if is_signed(self.kind) and place + 1 < self.word_elements:
                element = b("and", element, (1 << bits) - 1)  # the sign would fill what follows
            moved = b("shl", element, bits * place) if place else element
            word = b("or", word, moved) if place else moved
        return self.shifted(emitter, word, len(elements))

    def shifted(self, emitter: Emitter, word: Argument, elements: int) -> Argument:
        """A word of ``elements`` with half their range added to each: their top bits are flipped.

        Modulo their range this is the same as half of it subtracted.
        """
        if not self.shift or not elements:
            return word
        bits = 8 * ITEMSIZE[self.packed.type]
        tops = sum(1 << (bits * (place + 1) - 1) for place in range(elements))
        return emitter.builder("xor", word, tops)


def is_real(value: Argument) -> bool:
    """Whether a value is of floating point."""
    return isinstance(value, float) or (isinstance(value, Value) and value.element != "s32")


def put(
    c: Conversion, emitter: Emitter, found: Argument, write: Address, active: int | None = None
) -> None:
    """Store one element of each lane, or of the first ``active`` lanes, as the packed type."""
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
    """Store a K group of each lane: its words, one after the other.

    A group of two words takes two stores, each of the groups of half the lanes. ``lines`` is how
    many lanes are stored, None for all.
    """
    registers = [emitter.register(word) for word in words]
    step = emitter.lanes * c.word_elements
    if lines is not None:
        existing = [min(step, lines * c.k_group - i * step) for i in range(len(words))]
    else:
        existing = [step] * len(words)
    if len(set(registers)) > 1 and emitter.lanes > 1:
        registers = zipped(emitter, registers, sum(count > 0 for count in existing))
    for index, (register, count) in enumerate(zip(registers, existing, strict=False)):
        place = Address(write.pointer, write.offset + index * step)
        active = None if count == step else count
        emitter.add(Store(place, register, active, c.packed.type, c.word_elements))


def elements_of(tail: Expr | None) -> Active:
    """The elements that an access touches: ``tail``, a number if it is known, or None for all."""
    known = None if tail is None else value(tail)
    return known if known is not None or tail is None else tail


def lanes_of(c: Conversion, tail: Expr, emitter: Emitter) -> tuple[Active, list[Op]]:
    """The ``tail`` lanes of a vector that exist: as a mask, and how it is made, or counted."""
    element = "s32" if is_integer(c.source.type) else emitter.builder.real
    vector = emitter.vector(element)
    if c.source.type == element and vector.mask is not None:
        mask = MaskRegister("tail", vector, tail)
        return mask, [MakeMask(mask)]
    return elements_of(tail), []


def groups_of(c: Conversion, tail: Expr | None, each: int) -> tuple[Active, list[Op]]:
    """The ``tail`` elements, ``each`` to a lane of s32, that exist: by a mask, or counted."""
    words = next(v.mask for v in c.target.of("s32") if v.lanes == c.lanes)
    if tail is None or words is None or each not in words.groups:
        return elements_of(tail), []
    vector = next(v for v in c.target.of(_MOVED[each]) if v.lanes == c.lanes * each)
    mask = MaskRegister("tail", vector, tail)
    return mask, [MakeMask(mask)]


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
    """The stride along K; 0 for a copied tail, which has no place along K."""
    return operand.strides.get("k", ZERO)


def program_of(c: Conversion, name: str, ops: list[Op], summary: str) -> TileProgram:
    """A tile of the conversion, with the operands and run-time sizes that ``ops`` use."""
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
