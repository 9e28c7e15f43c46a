"""Unpack the stored numbers of a quantized B, and convert them to f32 with their block's scale.

An element is (number - zero point) * scale; the difference is exact. With minima it is number *
scale + minimum, in one FMA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from sympy import Expr

from tilewright.elementwise.conversions import look_up
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
from tilewright.plan.formats.low_bit import QuantizedFormat
from tilewright.plan.formats.quantized_b import has_table, is_chosen
from tilewright.spec.quantized import STORED, Plane
from tilewright.spec.types import is_integer
from tilewright.symbolic import ZERO

#: The exponent bias of f32, at the place of the exponent. If the bits of an f4_e2m1 are moved to
#: the places of f32's exponent and mantissa, and this is added, they represent twice the number.
_BIAS = 127 << 23


class Part(NamedTuple):
    """One field of packed bytes: ``dst`` gets field ``field`` of plane ``number`` from ``raw``."""

    dst: Register
    raw: Register
    number: int
    plane: Plane
    field: int


@dataclass(frozen=True, slots=True)
class Bytes:
    """The bytes of K group ``index`` of a block. Several K groups share the same bytes.

    ``at`` returns the address of a plane's bytes. ``name`` returns the name of their register, from
    the number of K groups since it was loaded and the plane. If ``ahead`` is not 0, each load
    prefetches the bytes that many elements later.
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
        """Set ``dst`` to the stored numbers.

        ``unpacked`` extracts the bits of each plane. ``joined`` combines them with those of earlier
        planes.
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
        """Load the bytes of one plane."""
        place = self.at(plane)
        if self.ahead != 0:
            yield Prefetch(replace(place, offset=place.offset + self.ahead))
        yield from read(self.target, dst, place, None, self.form.stored)


@dataclass(frozen=True, slots=True)
class Dequantizer:
    """Converts stored numbers to f32 in the lanes of ``vector``.

    ``of_block`` maps operand names to the registers with scales, and zero points or minima. The
    names of constants end in ``suffix``.
    """

    target: Target
    form: QuantizedFormat
    vector: Vector
    of_block: Mapping[str, Register]
    suffix: str = ""

    def constants(self) -> Iterator[Op]:
        """Load the constants of the conversion: numbers in all lanes, or a table."""
        if self._looks_up:
            yield from self._numbers.table()
        else:
            yield from (Splat(register, number) for register, number in self._constants())

    def element(self, dst: Register, stored: Bytes) -> Iterator[Op]:
        """Set ``dst`` to the elements whose bits are in ``stored``."""
        real = replace(dst, name=f"{dst.name}_f32")
        if not is_integer(self.form.stored):
            yield from stored.read(real, 0)
        elif self._looks_up:
            yield from self._numbers.element(real, stored)
        else:
            yield from self._converted(real, stored, dst.name)
        yield from self._scaled(dst, real)

    def _converted(self, real: Register, stored: Bytes, name: str) -> Iterator[Op]:
        """Set ``real`` to the numbers in ``stored``; ``name`` is the prefix of
        intermediate names.
        """
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
        elif is_chosen(form, self.vector):
            yield from _chosen(self.target, real, number, form.numbers.values)
        else:
            if "b_bias" in constants:
                less = replace(number, name=f"{name}_less")
                yield Apply(less, "sub", (number, constants["b_bias"]))
                number = less
            yield Apply(real, "to_f32", (number,))

    def _constants(self) -> Iterator[tuple[Register, float]]:
        """Yield the registers of the constants and their values."""
        form, whole = self.form, self._integers
        for number, plane in enumerate(form.planes if form.fields > 1 else ()):
            yield Register(f"b_mask{number or ''}{self.suffix}", whole), (1 << plane.bits) - 1
        if form.numbers.values == STORED["f4_e2m1"].values:
            yield Register(f"b_sign{self.suffix}", whole), 8
            yield Register(f"b_magnitude{self.suffix}", whole), 7
            yield Register(f"b_bias{self.suffix}", whole), _BIAS
            yield Register(f"b_one{self.suffix}", self.vector), 1
        elif form.bias:
            yield Register(f"b_bias{self.suffix}", whole), form.bias

    @property
    def _looks_up(self) -> bool:
        """True if the vector type looks up the values of a field's bits in a table."""
        form, vector = self.form, self.vector
        table = vector.numbers is not None and form.fields > 1 and len(form.planes) == 1
        if table and vector.numbers is not None and vector.numbers.several:
            table = has_table(form)
        return table or self._numbers.spelled

    @property
    def _numbers(self) -> Numbers:
        return Numbers(self.target, self.form, self.vector, self.suffix)

    @property
    def _integers(self) -> Vector:
        """The s32 vector type with as many lanes."""
        return self.target.holding("s32", self.vector.lanes)

    def _scaled(self, dst: Register, real: Register) -> Iterator[Op]:
        """Compute an element from its number and the scale and zero point or minimum of
        its block.
        """
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
    """Converts the numbers of a format to floating point in the lanes of ``vector``, exactly.

    Packed fields are looked up in a table, whose name ends in ``suffix``, or decoded by an
    instruction of the target. Numbers of whole bytes are converted as they are loaded.
    """

    target: Target
    form: QuantizedFormat
    vector: Vector
    suffix: str = ""

    def table(self) -> Iterator[Op]:
        """Load the table with the value of each field, in the order of their bits."""
        if self.form.fields > 1 and not self.spelled:
            stored = self.form.numbers
            every = stored.values or tuple(q - self.form.bias for q in range(1 << stored.bits))
            yield Table(self._table, every * (TABLE // len(every)))

    @property
    def _table(self) -> Register:
        return Register(f"b_numbers{self.suffix}", self.vector)

    def element(self, dst: Register, stored: Bytes) -> Iterator[Op]:
        """Set ``dst`` to the numbers in ``stored``."""
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
        """True if the vector type has no table, but decodes the format's fields by its own
        instructions.
        """
        numbers = self.vector.numbers
        return (numbers is None or numbers.several) and self.form.type in self.vector.fields

    @property
    def _codes(self) -> Vector:
        """The vector type that holds the bits for the look-up."""
        if self.spelled:
            return self.target.holding("s32", self.vector.lanes)
        assert self.vector.numbers is not None, f"{self.vector!r} looks up no numbers"
        return self.target.holding(self.vector.numbers.codes, self.vector.lanes)


def _field(part: Part, mask: Register) -> Iterator[Op]:
    """Extract one field of the bytes in each lane, shifted to its place in the number."""
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
    """Set ``dst`` to the value of each code, selected from ``values`` bit by bit of the code.

    Every vector type can do this. A vector type with look-up tables needs one operation.
    """
    emitter = Emitter(target, dst.vector.lanes, f"{dst.name}_", dst.vector.element)
    emitter.stage("of_table")
    emitter.register(look_up(emitter.builder, emitter.take(code), [*map(float, values)]))
    *ops, last = emitter.emit()
    assert isinstance(last, Apply)
    yield from (*ops, replace(last, dst=dst))


def _small_float(dst: Register, code: Register, constants: Mapping[str, Register]) -> Iterator[Op]:
    """Convert f4_e2m1 to f32, doubled: move its bits into f32's fields and adjust the bias.

    As in ``elementwise.conversions``, no intermediate is subnormal, because some cores are slow on
    these.
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
