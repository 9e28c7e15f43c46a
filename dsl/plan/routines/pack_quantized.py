"""The plan of packing a B of few bits: its format, and how the numbers of blocks are stored."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields

from tilewright.errors import ScheduleError
from tilewright.isa.target import Target
from tilewright.spec.pack import PackQuantized
from tilewright.spec.quantized import SCALES
from tilewright.spec.schedule import Schedule
from tilewright.spec.types import FORMATS, ITEMSIZE, FloatFormat, is_integer

from ..formats.lookup import format_of
from ..formats.quantized_b import QuantizedFormat
from ..loops import Decided, Decision

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


@dataclass(frozen=True, slots=True)
class PackedPlane:
    """The ``bits`` of elements from bit ``up`` on, which ``fields`` K groups share a byte of.

    They stand ``before`` lines behind the beginning of a unit, ``before_last`` in a block's last.
    """

    bits: int
    up: int
    before: int
    before_last: int

    @property
    def fields(self) -> int:
        """The elements in a byte."""
        return 8 // self.bits


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
    def in_one_plane(self) -> bool:
        """Whether a byte has whole elements, and a block whole bytes."""
        return len(self.format.planes) == 1 and self.groups % self.format.fields == 0

    @property
    def lines(self) -> tuple[int, int]:
        """The lines of bytes of a whole unit, and of a block."""
        return self.format.lines(self.format.fields), self.format.lines(self.groups)

    @property
    def planes(self) -> tuple[PackedPlane, ...]:
        """What elements are taken apart into, and where it stands in the units of a block."""
        form, last = self.format, (self.groups - 1) // self.format.fields
        unit, _ = self.lines
        return tuple(
            PackedPlane(
                plane.bits,
                plane.up,
                form.place(0, number)[0],
                form.place(last * form.fields, number)[0] - last * unit,
            )
            for number, plane in enumerate(form.planes)
        )

    @property
    def summed(self) -> tuple[int, int]:
        """What is added to a number where it is summed; what an element that B has not adds."""
        form, values = self.format, self.spec.type.stored.values
        return form.shift - form.bias, 0 if values else -form.bias

    @property
    def panel(self) -> int:
        """The bytes of the elements of one block of columns."""
        return self.format.block_elements

    @property
    def blocks(self) -> tuple[int, int]:
        """The blocks along K and across that are given."""
        return self.spec.type.blocks(self.spec.k, self.spec.n)


def plan_quantized_packing(
    spec: PackQuantized, schedule: Schedule, target: Target
) -> QuantizedPackPlan:
    """The plan; ScheduleError if the schedule asks for anything: the target decides the format."""
    for name in (f.name for f in fields(Schedule)):
        if getattr(schedule, name) != getattr(Schedule(), name):
            raise ScheduleError(
                "a packing has nothing to schedule", got=f"{name}={getattr(schedule, name)!r}"
            )
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
