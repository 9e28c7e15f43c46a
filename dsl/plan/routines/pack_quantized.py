"""The plan of packing a quantized B: its format, and how the values of blocks are stored."""

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

#: In e8m0, byte b is 2 to the power ``b + _LEAST``. Byte ``_NONE`` is NaN.
_LEAST, _NONE = -127, 255


@dataclass(frozen=True, slots=True)
class OfBlocks:
    """Values of blocks besides their elements, for example scales: their given and packed forms.

    ``name`` is that of the array. ``numbers`` is the kind of its values, in elements of type
    ``given``. ``begin`` is the first byte of the packed values. Each value is multiplied by
    ``unit``, and ``added`` is added. For 8-bit values, ``table`` has the results as bits of the
    packed type, beginning with that of the number ``least``.
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
        """The bit format of the given values if they are small floats, else None."""
        return FORMATS.get(self.given)

    @property
    def widened(self) -> bool:
        """True if a value is converted to f32 before it is multiplied."""
        return not self.table and self.unit != 1 and self.form is not None


class Part(NamedTuple):
    """A part of each element: ``bits`` bits from bit ``up`` on, stored as fields of a plane's
    bytes.

    ``before`` has the number of rows of bytes that each earlier plane takes in a whole unit.
    ``earlier`` has the number of bits of each earlier plane.
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
    """The sums of blocks, of type ``type``, from byte ``begin`` on.

    A sum starts at ``start``. Each element adds its number, or its entry in ``values`` if this is a
    table, plus ``each``.
    """

    type: str
    begin: int
    values: tuple[int, ...]
    start: int
    each: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class QuantizedPackPlan(Decided):
    """A packing of low-bit elements by plain loops, without further choices.

    ``shift`` is added to an element before it is put into its field. ``numbers`` are the scales,
    and the zero points if blocks have them. There is no batch.
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
        """The K groups in a block."""
        return self.format.block // self.format.group

    @property
    def whole(self) -> bool:
        """True if the K groups of a block fill whole bytes of all planes."""
        return self.groups % self.format.fields == 0

    @property
    def parts(self) -> tuple[Part, ...]:
        """The part of an element in each plane."""
        fields, planes = self.format.fields, self.format.planes
        return tuple(
            Part(plane.bits, plane.up, tuple(fields * each.bits // 8 for each in planes[:index]),
                 tuple(each.bits for each in planes[:index]))
            for index, plane in enumerate(planes)
        )  # fmt: skip

    @property
    def lines(self) -> int:
        """The rows of bytes in a block of K; a row has ``line`` bytes."""
        return self.format.lines(self.groups)

    @property
    def line(self) -> int:
        """The bytes of one K group in all columns of a panel."""
        return self.format.nb * self.format.group

    @property
    def unit(self) -> int:
        """The number of rows of bytes that the K groups with shared bytes take together."""
        return self.format.lines(self.format.fields)

    @property
    def sums(self) -> Sums | None:
        """The sums of blocks if they are packed, else None."""
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
        """The numbers of blocks along K and across in the given matrix."""
        return self.spec.type.blocks(self.spec.k, self.spec.n)


def plan_quantized_packing(
    spec: PackQuantized, schedule: Schedule, target: Target
) -> QuantizedPackPlan:
    """Return the plan; raise ScheduleError for any schedule, because the target decides
    the format.
    """
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
    """Yield the scales, and the zero points or minima if blocks have them."""
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
    """Yield the value of each byte of an 8-bit type."""
    form = FORMATS.get(type_)
    for byte in range(256):
        if form is not None:
            yield _value(byte, form)
        else:
            yield math.nan if byte == _NONE else math.ldexp(1.0, byte + _LEAST)


def _value(code: int, form: FloatFormat) -> float:
    """Return the value of ``code`` in a floating-point format."""
    magnitude = code & (form.sign - 1)
    exponent, fraction = divmod(magnitude, 1 << form.mantissa)
    if magnitude >= form.above:
        return math.nan
    whole = fraction + (1 << form.mantissa if exponent else 0)
    value = math.ldexp(whole, max(exponent, 1) - form.bias - form.mantissa)
    return -value if code & form.sign else value


def _bits(value: float, type_: str) -> int:
    """Return the bits of a number in a packed type that represents it exactly."""
    assert not is_integer(type_)
    if math.isnan(value) and type_ in FORMATS:
        return FORMATS[type_].nan
    if type_ == "f16":
        return int.from_bytes(struct.pack("<e", value), "little")
    bits = int.from_bytes(struct.pack("<f", value), "little")
    return bits >> 16 if type_ == "bf16" else bits
