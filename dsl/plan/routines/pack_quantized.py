"""The plan of packing a quantized B: its format, and how elements and scales are moved there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sympy import Expr, Integer

from tilewright.ir.access import bits_of
from tilewright.ir.nest import Name
from tilewright.isa.target import Target
from tilewright.spec.pack import PackQuantized
from tilewright.spec.quantized import SCALES
from tilewright.spec.schedule import Schedule
from tilewright.spec.types import is_integer
from tilewright.symbolic import ONE

from ..formats.lookup import format_of
from ..formats.low_bit import QuantizedFormat
from ..loops import Decided, Decision, check_unscheduled
from .copy import Layout, Move, tiled

#: One call packs about this number of elements of each column.
DEPTH = 16


@dataclass(frozen=True, slots=True, repr=False)
class QuantizedPackPlan(Decided):
    """A packing of low-bit elements, of their scales, and of the zero points if blocks have them.

    ``elements`` moves the elements, several of which may share a byte. ``blocks`` has the moves of
    the arrays with one value for each block, for example scales, by the arrays' names.
    """

    spec: PackQuantized
    target: Target
    format: QuantizedFormat
    elements: Move
    blocks: tuple[tuple[str, Move], ...]
    decisions: tuple[Decision, ...]
    batch: None = None

    @property
    def element(self) -> str:
        """The type of the elements that are written."""
        return self.elements.made.type

    @property
    def groups(self) -> int:
        """The K groups in a block."""
        return self.format.block // self.format.group

    @property
    def unit(self) -> int:
        """The elements along K that share bytes."""
        return self.format.fields * self.format.group

    @property
    def depth(self) -> int:
        """The elements along K that one call packs: whole units."""
        return max(1, DEPTH // self.unit) * self.unit

    @property
    def start(self) -> int:
        """The start value of each block's sum. It corrects for zero bytes after B's last element.

        A sum adds the indices of table entries, or the shifted integers.
        """
        form = self.format
        each = form.shift if self.spec.type.stored.values else 0
        return (each - form.bias) * form.block

    @property
    def sums(self) -> Layout:
        """The layout of the blocks' sums."""
        return _packed(self.format, self.format.sums, self.format.sums_at)


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
        elements=_elements(spec, form, target),
        blocks=tuple(_blocks(spec, form, target)),
        decisions=tuple(_decisions(form)),
    )


def _decisions(form: QuantizedFormat) -> Iterator[Decision]:
    yield Decision("format", form.text, f"{form.group} of K in a lane, {form.fields} in a byte")
    if form.shift:
        yield Decision("shift", f"{form.shift:+d}", "so that fields have the sign they multiply")


def _elements(spec: PackQuantized, form: QuantizedFormat, target: Target) -> Move:
    """Return the move of the elements; a float is moved as its bits."""
    stored = spec.type.stored
    held = form.stored if form.fields == 1 and is_integer(form.stored) else "u8"
    source = _given(spec, "q", bits_of(stored.unpacked), spec.k, spec.n)
    shift, first = (
        0 if stored.floating else -form.shift,
        None if source.type == stored.unpacked else 0,
    )
    source = replace(source, shift=shift, first=first)
    made = replace(
        _packed(form, held, 0), group=form.group, block=form.block_elements,
        first=None if held == form.stored else 0,
    )  # fmt: skip
    move = _move(spec, target, source, made, source.type)
    single = (v.lanes for v in target.of("s32") if v.registers == 1 and v.lanes <= move.lanes)
    return replace(move, lanes=next(single))


def _blocks(
    spec: PackQuantized, form: QuantizedFormat, target: Target
) -> Iterator[tuple[str, Move]]:
    """Yield the moves of scales, and of zero points or minima if blocks have them."""
    quantized, rows = spec.type, form.k_blocks
    _, cols = quantized.blocks(spec.k, spec.n)
    source = _given(spec, "scales", SCALES[quantized.scale].given, rows, cols)
    made = _packed(form, form.scale, form.scales_at)
    scales = _move(spec, target, source, made, "e8m0" if quantized.scale == "e8m0" else source.type)
    yield "scales", replace(scales, unit=quantized.stored.unit)
    if quantized.zeros:
        minima = quantized.zeros == "minima"
        type_ = str(quantized.zero) if minima else quantized.stored.unpacked
        source = _given(spec, "zeros", type_, rows, cols)
        source = replace(source, shift=0 if minima else -form.shift)
        made = _packed(form, form.zeros, form.zeros_at)
        yield "zeros", _move(spec, target, source, made, type_)


def _given(spec: PackQuantized, name: str, type_: str, rows: int, cols: int) -> Layout:
    """Return the layout of an array of which each of ``cols`` columns serves equally many of B."""
    along = spec.order == "F"
    step = Integer(rows if along else cols)
    if cols == spec.n:
        return Layout(Name(name), type_, step, along)
    next_ = rows if along else 1
    return Layout(Name(name), type_, step, along, width=spec.type.columns, block=next_, shared=True)


def _packed(form: QuantizedFormat, type_: str, first: int) -> Layout:
    """Return the layout of values of blocks in the packed bytes, from byte ``first`` on."""
    width, block = form.nb if form.blocks > 1 else 0, form.k_blocks * form.nb
    return Layout(Name("out"), type_, Integer(form.nb), width=width, block=block, first=first)


def _move(spec: PackQuantized, target: Target, source: Layout, made: Layout, value: str) -> Move:
    depth: Expr = ONE * (
        spec.k if source.name == Name("q") else spec.type.blocks(spec.k, spec.n)[0]
    )
    rounded, lines = made.type, ONE * spec.n
    return tiled(Move(target, source, made, value, rounded, lines, depth, 1, (1, 1), ()))[0]
