"""Stored numbers of a quantized B taken out of their bytes, and made f32 by what their block has.

An element is a difference of integers, exact, times its scale; with minima it is one FMA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from sympy import Expr

from tilewright.elementwise.builder import Argument
from tilewright.ir.access import read
from tilewright.ir.emitter import Emitter
from tilewright.ir.ops import (
    Apply,
    Join,
    Op,
    Prefetch,
    Splat,
    Table,
    Unpack,
)
from tilewright.ir.values import Address, Register
from tilewright.isa.target import Target
from tilewright.isa.vector import TABLE, Vector
from tilewright.plan.formats.quantized_b import QuantizedFormat, is_chosen
from tilewright.spec.quantized import STORED, Plane
from tilewright.spec.types import is_integer
from tilewright.symbolic import ZERO

#: What makes the exponent of f4_e2m1, doubled, one of f32.
_BIAS = 127 << 23


class Part(NamedTuple):
    """``dst`` gets what ``field`` of the bytes in ``raw`` has of plane ``number``."""

    dst: Register
    raw: Register
    number: int
    plane: Plane
    field: int


@dataclass(frozen=True, slots=True)
class Bytes:
    """The bytes of K group ``index`` of a block, which it shares with others.

    ``at`` is where they begin that have its part of a plane; ``name`` is what a register with them
    is called, of the K group so many before it, and of that plane. With each load those are asked
    for that lie ``ahead`` of it, if that is not 0.
    """

    target: Target
    form: QuantizedFormat
    index: int
    at: Callable[[int], Address]
    name: Callable[[int, int], str]
    ahead: Expr = ZERO

    def numbers(
        self,
        dst: Register,
        unpacked: Callable[[Part], Iterator[Op]],
        joined: Callable[[Register, Register, Register], Op],
    ) -> Iterator[Op]:
        """``dst`` = the stored numbers.

        What each plane has of them is ``unpacked``, and ``joined`` with what the ones before have.
        """
        form = self.form
        if form.fields == 1:
            yield from self.read(dst, 0)
            return
        last, before = len(form.planes) - 1, list[Register]()
        for number, plane in enumerate(form.planes):
            _, field = form.place(self.index, number)
            raw = replace(dst, name=self.name(field, number))
            if field == 0:
                yield from self.read(raw, number)
            part = dst if last == 0 else replace(dst, name=f"{dst.name}_part{number}")
            yield from unpacked(Part(part, raw, number, plane, field))
            if before:
                whole = dst if number == last else replace(dst, name=f"{dst.name}_join{number}")
                yield joined(whole, before[-1], part)
                part = whole
            before.append(part)

    def read(self, dst: Register, plane: int) -> Iterator[Op]:
        """The bytes with a part of a plane."""
        place = self.at(plane)
        if self.ahead != 0:
            yield Prefetch(replace(place, offset=place.offset + self.ahead))
        yield from read(self.target, dst, place, None, self.form.stored)


@dataclass(frozen=True, slots=True)
class Dequantizer:
    """Makes numbers f32 in the lanes of ``vector``; the names of its constants end in ``suffix``.

    ``of_block`` are the registers with the scales, and the zero points or minima, by operand.
    """

    target: Target
    form: QuantizedFormat
    vector: Vector
    of_block: Mapping[str, Register]
    suffix: str = ""

    def constants(self) -> Iterator[Op]:
        """What conversions need: numbers in all lanes, or in a table."""
        if self._looks_up:
            yield from self._numbers.table()
        else:
            yield from (Splat(register, number) for register, number in self._constants())

    def element(self, dst: Register, stored: Bytes) -> Iterator[Op]:
        """``dst`` = the elements whose numbers lie in those bytes."""
        real = replace(dst, name=f"{dst.name}_f32")
        if not is_integer(self.form.stored):
            yield from stored.read(real, 0)
        elif self._looks_up:
            yield from self._numbers.element(real, stored)
        else:
            yield from self._converted(real, stored, dst.name)
        yield from self._scaled(dst, real)

    def _converted(self, real: Register, stored: Bytes, name: str) -> Iterator[Op]:
        """``real`` = the numbers in those bytes, converted; ``name`` begins names on the way."""
        form = self.form
        constants = {r.name.removesuffix(self.suffix): r for r, _ in self._constants()}
        whole = self._integers
        number = Register(f"{name}_{'field' if form.fields > 1 else 'bytes'}", whole)

        def unpacked(part: Part) -> Iterator[Op]:
            return _field(part, constants[f"b_mask{part.number or ''}"])

        def joined(dst: Register, x: Register, y: Register) -> Op:
            return Apply(dst, "or", (x, y))

        yield from stored.numbers(number, unpacked, joined)
        if "b_sign" in constants:
            yield from _small_float(real, number, constants)
        elif is_chosen(form.type, self.vector):
            yield from _chosen(self.target, real, number, STORED[form.type].values)
        else:
            if "b_bias" in constants:
                less = replace(number, name=f"{name}_less")
                yield Apply(less, "sub", (number, constants["b_bias"]))
                number = less
            yield Apply(real, "to_f32", (number,))

    def _constants(self) -> Iterator[tuple[Register, float]]:
        """Their registers, and what they hold."""
        form, whole = self.form, self._integers
        for number, plane in enumerate(form.planes if form.fields > 1 else ()):
            yield Register(f"b_mask{number or ''}{self.suffix}", whole), (1 << plane.bits) - 1
        if STORED[form.type].values == STORED["f4_e2m1"].values:
            yield Register(f"b_sign{self.suffix}", whole), 8
            yield Register(f"b_magnitude{self.suffix}", whole), 7
            yield Register(f"b_bias{self.suffix}", whole), _BIAS
            yield Register(f"b_one{self.suffix}", self.vector), 1
        elif form.bias:
            yield Register(f"b_bias{self.suffix}", whole), form.bias

    @property
    def _looks_up(self) -> bool:
        """Whether the vector looks up what bits of one plane stand for."""
        form, vector = self.form, self.vector
        table = vector.numbers is not None and form.fields > 1 and len(form.planes) == 1
        return table or self._numbers.spelled

    @property
    def _numbers(self) -> Numbers:
        return Numbers(self.target, self.form, self.vector, self.suffix)

    @property
    def _integers(self) -> Vector:
        """As many lanes of s32."""
        return self.target.holding("s32", self.vector.lanes)

    def _scaled(self, dst: Register, real: Register) -> Iterator[Op]:
        """An element from its number, by what belongs to its block."""
        scale = self.of_block["b_scales"]
        if not self.form.zeros:
            yield Apply(dst, "mul", (real, scale), begins=True)
            return
        zeros = self.of_block["b_zeros"]
        if self.form.minima:
            yield Apply(dst, "fma", (real, scale, zeros))
            return
        less = replace(real, name=f"{dst.name}_less")
        yield Apply(less, "sub", (real, zeros))
        yield Apply(dst, "mul", (less, scale), begins=True)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Makes the numbers of a format ones of floating point in the lanes of ``vector``: exactly.

    Bits look them up in a table, whose name ends in ``suffix``, or in what the vector spells of the
    format; a load converts what are bytes.
    """

    target: Target
    form: QuantizedFormat
    vector: Vector
    suffix: str = ""

    def table(self) -> Iterator[Op]:
        """The numbers that fields of bytes stand for, in order."""
        if self.form.fields > 1 and not self.spelled:
            stored = STORED[self.form.type]
            every = stored.values or tuple(q - self.form.bias for q in range(1 << stored.bits))
            yield Table(self._table, every * (TABLE // len(every)))

    @property
    def _table(self) -> Register:
        return Register(f"b_numbers{self.suffix}", self.vector)

    def element(self, dst: Register, stored: Bytes) -> Iterator[Op]:
        """``dst`` = the numbers of those bytes."""
        form, planes = self.form, self.form.planes
        if form.fields == 1:
            yield from stored.read(dst, 0)
            return
        code = Register(f"{dst.name}_code", self._codes)

        def unpacked(part: Part) -> Iterator[Op]:
            type_ = f"u{part.plane.bits}"
            if self.spelled:
                yield Unpack(dst, part.raw, form.type, part.field)
            elif len(planes) == 1:
                yield Unpack(dst, part.raw, type_, part.field, table=self._table)
            else:
                yield Unpack(part.dst, part.raw, type_, part.field, part.plane.up)

        yield from stored.numbers(code, unpacked, Join)
        if len(planes) > 1:
            yield Unpack(dst, code, "u4", 0, table=self._table)

    @property
    def spelled(self) -> bool:
        """Whether the vector has no table, and spells what the format's own fields stand for."""
        return self.vector.numbers is None and self.form.type in self.vector.fields

    @property
    def _codes(self) -> Vector:
        """What holds the bits that look numbers up."""
        if self.spelled:
            return self.target.holding("s32", self.vector.lanes)
        assert self.vector.numbers is not None, f"{self.vector!r} looks up no numbers"
        return self.target.holding(self.vector.numbers.codes, self.vector.lanes)


def _field(part: Part, mask: Register) -> Iterator[Op]:
    """One field of the bytes in the lanes of a register, where its plane has it in numbers."""
    dst, up = part.dst, part.plane.up
    low, moved = part.plane.bits * part.field, part.raw
    if low:
        last = low + part.plane.bits == 8 and not up
        moved = dst if last else replace(dst, name=f"{dst.name}_low")
        yield Apply(moved, "ushr", (part.raw, low))
    if moved == dst:
        return
    kept = replace(dst, name=f"{dst.name}_bits") if up else dst
    yield Apply(kept, "and", (moved, mask))
    if up:
        yield Apply(dst, "shl", (kept, up))


def _chosen(
    target: Target, dst: Register, code: Register, values: tuple[float, ...]
) -> Iterator[Op]:
    """``dst`` = the number of a table that each code stands for: chosen bit by bit of the code.

    Any vector can do so. Those that look numbers up in a table need one operation.
    """
    emitter = Emitter(target, dst.vector.lanes, f"{dst.name}_", dst.vector.element)
    b, number = emitter.builder, emitter.take(code)
    emitter.stage("of_table")

    def among(part: tuple[float, ...]) -> Argument:
        if len(part) == 1:
            return float(part[0])
        half = len(part) // 2
        low, high = among(part[:half]), among(part[half:])
        is_set = b("shr", b("shl", number, 32 - half.bit_length()), 31)
        return b("select", is_set, high, low)

    emitter.register(among(values))
    *ops, last = emitter.emit()
    assert isinstance(last, Apply)
    yield from (*ops, replace(last, dst=dst))


def _small_float(dst: Register, code: Register, constants: Mapping[str, Register]) -> Iterator[Op]:
    """f4_e2m1 as f32, in halves: its bits moved into f32's fields, and the bias made f32's.

    As in ``elementwise.conversions`` no factor is subnormal, for which some cores take long.
    """
    whole, vector = code.vector, dst.vector

    def integer(what: str) -> Register:
        return Register(f"{dst.name}_{what}", whole)

    def real(what: str) -> Register:
        return Register(f"{dst.name}_{what}", vector)

    yield Apply(integer("digits"), "and", (code, constants["b_magnitude"]))
    yield Apply(integer("moved"), "shl", (integer("digits"), 22))
    yield Apply(integer("biased"), "add", (integer("moved"), constants["b_bias"]))
    yield Apply(real("normal"), "float", (integer("biased"),))
    yield Apply(real("half"), "sub", (real("normal"), constants["b_one"]))
    yield Apply(real("small"), "add", (real("half"), real("half")))
    yield Apply(real("least"), "min", (real("normal"), real("small")))
    yield Apply(integer("bits"), "bits", (real("least"),))
    yield Apply(integer("sign"), "and", (code, constants["b_sign"]))
    yield Apply(integer("top"), "shl", (integer("sign"), 28))
    yield Apply(integer("signed"), "or", (integer("bits"), integer("top")))
    yield Apply(dst, "float", (integer("signed"),))
