"""Shared parts of all conversions of an operand: load elements, join them to words, build calls.

A *word* is an s32 lane with the bits of one K group of a row or column, or of a part of the group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
from tilewright.lower.vectors import known
from tilewright.plan.operands import Operand
from tilewright.plan.routines.copy import Layout, Move
from tilewright.spec.types import ITEMSIZE, is_integer, is_signed
from tilewright.symbolic import ONE, ZERO, value

#: For 4 or 2 elements in an s32 lane: the vector type that holds them unconverted.
_MOVED = {4: "u8", 2: "s16"}
#: The number of vectors that one call converts.
VECTORS = 4


@dataclass(frozen=True, slots=True)
class Conversion:
    """The conversion of an operand from ``source``, the caller's array, to ``packed``, a buffer.

    A *line* is a row of A or a column of B, and ``line`` is its dimension, m or n. A K group is
    ``k_group`` elements of a line. ``zero_groups`` groups of zeros follow the last group. ``shift``
    is added to each element. ``type`` is the type to which elements are rounded before they are
    stored, "" for the source's type. If ``zero_lines`` is True, the lines that pad a vector are
    stored as zeros; otherwise their values are arbitrary. If ``zero_row_tails`` is True, lines
    contiguous along K are padded with zeros to whole vectors. If ``exact`` is True, nothing is
    written past the last line when the number of lines is known. If ``spills`` is True, elements
    past the last line may be overwritten. If ``shared`` is True, threads share the loops over
    lines. ``lanes`` are those of the vectors that convert. ``slots`` are the run-time sizes that
    tiles may use. ``prefix`` begins the tiles' names.
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
        """The type of the elements' values after rounding."""
        return self.type or self.source.type

    def over(
        self, counter: str, trips: Expr, body: tuple[NestNode, ...], work: Expr, note: str = ""
    ) -> BlockLoop:
        """Return a loop over lines or K groups; a trip takes ``work`` vector operations."""
        shared = work if self.shared else None
        return BlockLoop(counter, trips, body, note=note, parallel=self.shared, work=shared)

    @property
    def move(self) -> Move:
        """The move of the matrix, or of a part of it."""
        source = _layout(self.source, self.line)
        along, group = self.rows, 1 if self.rows else self.k_group
        made = replace(_layout(self.packed, self.line, along=along), group=group, shift=self.shift)
        return Move(
            self.target, source, made, self.source.type, self.kind, ONE, ONE, self.lanes, (1, 1),
            self.slots, spills=self.spills,
        )  # fmt: skip

    @property
    def rows(self) -> bool:
        """True if each line is contiguous along K in the packed form, rather than cut into K
        groups.
        """
        along = value(self.packed.strides.get("k", ONE)) == 1
        return along and value(self.packed.strides[self.line]) != 1

    @property
    def moves(self) -> bool:
        """True if elements keep their size and value, so that whole K groups are copied."""
        source, packed = self.source.type, self.packed.type
        integers = is_integer(source) and is_integer(packed)
        kept = self.kind == source and (source == packed or integers)
        return kept and ITEMSIZE[source] == ITEMSIZE[packed]

    @property
    def mixed(self) -> bool:
        """True if integers are stored as floating point."""
        return is_integer(self.kind) and not is_integer(self.packed.type)

    @property
    def bits(self) -> bool:
        """True if 16-bit or 8-bit floats are copied without conversion."""
        kept = self.source.type == self.kind == self.packed.type
        return kept and not is_integer(self.kind) and ITEMSIZE[self.kind] < 4

    def emitter(self, lanes: int) -> Emitter:
        """Return an emitter for operations on vectors of ``lanes`` lanes."""
        return Emitter(self.target, lanes, "w", "f64" if self.source.type == "f64" else "f32")

    def element(self, emitter: Emitter, address: Address, active: Active, name: str) -> Argument:
        """Load one element into each lane and return it, rounded.

        Integers are s32 values, unless they are stored as floating point. Copied small floats are
        bits in s32. All others are floating point.
        """
        source = self.source.type
        if self.bits:
            register = emitter.fresh(name, "s32")
            emitter.add(Load(register, address, active, bits_of(source)))
            return emitter.take(register)
        return self.rounded(emitter, load(emitter, address, active, source, name))

    def rounded(self, emitter: Emitter, found: Argument) -> Argument:
        """Return a loaded element, rounded to the type of ``kind``."""
        b, kind = emitter.builder, self.kind
        if kind != self.source.type:
            found = narrow(b, found, kind)
            if not is_integer(kind):
                return found if kind == self.packed.type else widen(b, found, kind)
        return widen(b, found, kind) if self.mixed else found

    @property
    def word_elements(self) -> int:
        """The number of elements of a K group in one word."""
        return min(self.k_group, 4 // ITEMSIZE[self.packed.type])

    def words(self, emitter: Emitter, elements: list[Argument]) -> list[Argument]:
        """Return the elements of a K group as words, with the first element in the lowest bits."""
        most = self.word_elements
        starts = range(0, self.k_group, most)
        return [self._word(emitter, elements[first : first + most]) for first in starts]

    def _word(self, emitter: Emitter, elements: list[Argument]) -> Argument:
        b, bits = emitter.builder, 8 * ITEMSIZE[self.packed.type]
        word: Argument = 0
        for place, element in enumerate(elements):
            if is_real(element):
                element = narrow(b, element, self.packed.type)
            if is_signed(self.kind) and not self.mixed and place + 1 < self.word_elements:
                # clear sign bits, which would overlap the next elements
                element = b("and", element, (1 << bits) - 1)
            moved = b("shl", element, bits * place) if place else element
            word = b("or", word, moved) if place else moved
        return self.shifted(emitter, word, len(elements))

    def shifted(self, emitter: Emitter, word: Argument, elements: int) -> Argument:
        """Return a word with half the range added to each of its ``elements`` elements.

        This flips their top bits. Modulo the range, it equals subtracting half the range.
        """
        if not self.shift or not elements:
            return word
        bits = 8 * ITEMSIZE[self.packed.type]
        tops = sum(1 << (bits * (place + 1) - 1) for place in range(elements))
        return emitter.builder("xor", word, tops)


def _layout(operand: Operand, line: str, *, along: bool | None = None) -> Layout:
    """Return the layout of an operand whose lines are along dimension ``line``."""
    line_step, step = operand.strides[line], _step(operand)
    if along is None:
        along = value(step) == 1 and value(line_step) != 1
    apart = not along and value(line_step) != 1
    return Layout(
        operand.buffer, operand.type, line_step if along else step, along,
        across=line_step if apart else None,
    )  # fmt: skip


def is_real(value: Argument) -> bool:
    """True if a value has a floating-point type."""
    return isinstance(value, float) or (isinstance(value, Value) and value.element != "s32")


def put(
    c: Conversion, emitter: Emitter, found: Argument, write: Address, active: int | None = None
) -> None:
    """Store one element from each lane, or from the first ``active`` lanes, as the packed type."""
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
    """Store the words of each lane's K group one after the other.

    If a group has two words, the first store has the groups of the lower half of the lanes and the
    second store the others. ``lines`` is the number of lanes to store, None for all.
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


def lanes_of(c: Conversion, tail: Expr, emitter: Emitter) -> tuple[Active, list[Op]]:
    """Return the first ``tail`` lanes as a mask with the operations that make it, or as a
    number.
    """
    element = "s32" if is_integer(c.source.type) else emitter.builder.real
    vector = emitter.vector(element)
    if c.source.type == element and vector.mask is not None:
        mask = MaskRegister("tail", vector, tail)
        return mask, [MakeMask(mask)]
    return known(tail), []


def groups_of(c: Conversion, tail: Expr | None, each: int) -> tuple[Active, list[Op]]:
    """Return the first ``tail`` elements, ``each`` of them in an s32 lane, as a mask or a
    number.
    """
    words = next(v.mask for v in c.target.of("s32") if v.lanes == c.lanes)
    if tail is None or words is None or each not in words.groups:
        return known(tail), []
    vector = next(v for v in c.target.of(_MOVED[each]) if v.lanes == c.lanes * each)
    mask = MaskRegister("tail", vector, tail)
    return mask, [MakeMask(mask)]


def call_of(
    c: Conversion, program: TileProgram, at: tuple[Expr, Expr], line: Expr, k: Expr
) -> Call:
    """Return a call of ``program`` that begins at ``line`` and at element ``k`` of K."""
    places = {
        name: Passed(operand.buffer, first + line * operand.strides[c.line] + k * _step(operand))
        for name, operand, first in zip(("x", "out"), (c.source, c.packed), at, strict=True)
    }
    return Call(program.name, tuple(places[p.name] for p in program.parameters if p.name in places))


def _step(operand: Operand) -> Expr:
    """Return the stride along K; 0 for a copied tail, which has no such stride."""
    return operand.strides.get("k", ZERO)


def program_of(c: Conversion, name: str, ops: list[Op], summary: str) -> TileProgram:
    """Return a tile program of the conversion, with the operands and run-time sizes that ``ops``
    use.
    """
    return TileProgram(
        name=c.prefix + name,
        element=c.packed.type,
        parameters=(
            *((Parameter("x", "in", c.source.type),) if "x" in pointers_used(ops) else ()),
            Parameter("out", "out", c.packed.type),
            *(Parameter(slot, "size") for slot in sizes_used(ops, c.slots)),
        ),
        body=(),
        end=without_idle_masks(ops),  # constants may be spilled here
        summary=summary,
    )
