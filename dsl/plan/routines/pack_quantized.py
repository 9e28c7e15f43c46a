"""The plan of packing a B of few bits: its format, and how the numbers of blocks are stored."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tilewright.isa.target import Target
from tilewright.spec.pack import PackQuantized
from tilewright.spec.quantized import SCALES
from tilewright.spec.schedule import Schedule
from tilewright.spec.types import FORMATS, ITEMSIZE, FloatFormat, is_integer

from ..formats.lookup import format_of
from ..formats.quantized_b import QuantizedFormat
from ..loops import Decided, Decision, check_unscheduled

#: The exponent of f32 of e8m0's byte 0, and the byte that is no number.
_LEAST, _NONE = -127, 255


@dataclass(frozen=True, slots=True)
class OfBlocks:
    """What blocks have beside their elements: how it is given, and how it is packed.

    ``name`` is that of the array, ``numbers`` is what it holds in elements of type ``given``;
    ``begin`` is the byte at which the packed ones begin. Each is multiplied by ``unit``, and
    ``added`` is added. For those of 8 bits a ``table`` has the results, as the bits of the packed
    type, that of the number ``least`` first.
    """

    name: str
    numbers: str
    given: str
    packed: str
    begin: int
    unit: float = 1.0
    added: int = 0
    table: tuple[int, ...] = ()
    least: int = 0

    @property
    def form(self) -> FloatFormat | None:
        """The bits of what is given, where it is a small type of floating point."""
        return FORMATS.get(self.given)

    @property
    def widened(self) -> bool:
        """Whether it is made f32 before it is multiplied."""
        return not self.table and self.unit != 1 and self.form is not None


class Part(NamedTuple):
    """Some bits of each element: ``bits`` of them from bit ``up`` on, as fields of a plane's bytes.

    ``before`` are the lines of each plane before it in a whole unit, ``earlier`` their bits.
    """

    bits: int
    up: int
    before: tuple[int, ...]
    earlier: tuple[int, ...]

    @property
    def fields(self) -> int:
        """The elements in a byte."""
        return 8 // self.bits


class Sums(NamedTuple):
    """The sums of blocks, of ``type`` from the byte ``begin`` on.

    They start at ``start``, and each element adds its number, that of its code among ``values``
    where it is one, and ``each``.
    """

    type: str
    begin: int
    values: tuple[int, ...]
    start: int
    each: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class QuantizedPackPlan(Decided):
    """A packing of elements of few bits. Plain loops do it, of which no choice is open.

    ``shift`` is what is added to an element before it is put into its field; ``numbers`` are the
    scales, and the zero points where blocks have such. There is no batch.
    """

    spec: PackQuantized
    target: Target
    format: QuantizedFormat
    shift: int
    numbers: tuple[OfBlocks, ...]
    decisions: tuple[Decision, ...]
    batch: None = None

    @property
    def groups(self) -> int:
        """The K groups of a block."""
        return self.format.block // self.format.group

    @property
    def whole(self) -> bool:
        """Whether the K groups of a block fill whole bytes of all planes."""
        return self.groups % self.format.fields == 0

    @property
    def parts(self) -> tuple[Part, ...]:
        """What becomes of an element in each plane."""
        fields, planes = self.format.fields, self.format.planes
        return tuple(
            Part(plane.bits, plane.up, tuple(fields * each.bits // 8 for each in planes[:index]),
                 tuple(each.bits for each in planes[:index]))
            for index, plane in enumerate(planes)
        )  # fmt: skip

    @property
    def lines(self) -> int:
        """The lines of a block of K, each as many bytes as ``line``."""
        return self.format.lines(self.groups)

    @property
    def line(self) -> int:
        """The bytes of one group of all columns of a panel."""
        return self.format.nb * self.format.group

    @property
    def unit(self) -> int:
        """The lines of as many groups as share bytes."""
        return self.format.lines(self.format.fields)

    @property
    def sums(self) -> Sums | None:
        """The sums of blocks, where they are packed too."""
        form, stored = self.format, self.spec.type.stored
        if not form.sums:
            return None
        if stored.values:
            return Sums(
                form.sums, form.sums_at, stored.integers, (form.shift - form.bias) * form.block
            )
        return Sums(form.sums, form.sums_at, (), -form.bias * form.block, form.shift)

    @property
    def blocks(self) -> tuple[int, int]:
        """The blocks along K and across that are given."""
        return self.spec.type.blocks(self.spec.k, self.spec.n)


def plan_quantized_packing(
    spec: PackQuantized, schedule: Schedule, target: Target
) -> QuantizedPackPlan:
    """The plan; ScheduleError if the schedule asks for anything: the target decides the format."""
    check_unscheduled(schedule)
    form = format_of(spec, target)
    return QuantizedPackPlan(
        spec=spec,
        target=target,
        format=form,
        shift=0 if spec.type.stored.floating else form.shift,
        numbers=tuple(_numbers(spec, form)),
        decisions=tuple(_decisions(form)),
    )


def _decisions(form: QuantizedFormat) -> Iterator[Decision]:
    yield Decision("format", form.text, f"{form.group} of K in a lane, {form.fields} in a byte")
    if form.shift:
        yield Decision("shift", f"{form.shift:+d}", "so that fields have the sign they multiply")


def _numbers(spec: PackQuantized, form: QuantizedFormat) -> Iterator[OfBlocks]:
    """The scales, and the zero points or minima where blocks have such."""
    quantized, stored = spec.type, spec.type.stored
    given, unit = SCALES[quantized.scale].given, stored.unit
    table: tuple[int, ...] = ()
    if ITEMSIZE[given] == 1:
        table = tuple(_bits(value * unit, form.scale) for value in _values(quantized.scale))
    yield OfBlocks(
        "scales", quantized.scale, given, form.scale, form.scales_at, unit=unit, table=table
    )
    if quantized.zeros == "minima":
        type_ = str(quantized.zero)
        yield OfBlocks("zeros", type_, type_, form.zeros, form.zeros_at)
    elif quantized.zeros:
        numbers = range(stored.low, stored.high + 1)
        table = tuple(_bits(float(number + form.shift), form.zeros) for number in numbers)
        yield OfBlocks(
            "zeros", quantized.type, stored.unpacked, form.zeros, form.zeros_at,
            added=form.shift, table=table, least=stored.low,
        )  # fmt: skip


# --- numbers of few bits -----------------------------------------------------------------------


def _values(type_: str) -> Iterator[float]:
    """What each byte of a type of 8 bits stands for."""
    form = FORMATS.get(type_)
    for byte in range(256):
        if form is not None:
            yield _value(byte, form)
        else:
            yield math.nan if byte == _NONE else math.ldexp(1.0, byte + _LEAST)


def _value(code: int, form: FloatFormat) -> float:
    """The number that ``code`` is in a type of floating point."""
    magnitude = code & (form.sign - 1)
    exponent, fraction = divmod(magnitude, 1 << form.mantissa)
    if magnitude >= form.above:
        return math.nan
    whole = fraction + (1 << form.mantissa if exponent else 0)
    value = math.ldexp(whole, max(exponent, 1) - form.bias - form.mantissa)
    return -value if code & form.sign else value


def _bits(value: float, type_: str) -> int:
    """The bits of a number in a packed type, which has it exactly."""
    assert not is_integer(type_)
    if math.isnan(value) and type_ in FORMATS:
        return FORMATS[type_].nan
    if type_ == "f16":
        return int.from_bytes(struct.pack("<e", value), "little")
    bits = int.from_bytes(struct.pack("<f", value), "little")
    return bits >> 16 if type_ == "bf16" else bits
