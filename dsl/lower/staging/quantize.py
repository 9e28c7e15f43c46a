"""Quantize A before the loops: divide rows, or blocks of rows, by their scale and round to
integers.

If A has integers already, they are copied into rows of whole blocks, and their blocks are summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from sympy import Expr, Integer

from tilewright.elementwise.builder import Argument as Lanes
from tilewright.elementwise.builder import Builder
from tilewright.elementwise.functions import Computed
from tilewright.ir.dataflow import pointers_used, sizes_used, without_idle_masks
from tilewright.ir.emitter import Emitter
from tilewright.ir.nest import Argument, BlockLoop, Call, Name, Program
from tilewright.ir.nodes import walk
from tilewright.ir.ops import (
    Advance,
    Loop,
    Op,
    Parameter,
    Store,
    TileProgram,
)
from tilewright.ir.values import Address
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector
from tilewright.lower.rows.row import Row
from tilewright.plan.formats.quantized_a import QuantizeRowsPlan
from tilewright.plan.operands import Operand
from tilewright.plan.problem import Staging
from tilewright.plan.rows.passes import Known, cut
from tilewright.plan.rows.plan import RowPasses
from tilewright.spec.expression.nodes import Expression, Number
from tilewright.spec.expression.tensors import Input, Reduce
from tilewright.spec.quantized import Quantize
from tilewright.spec.scalars import Quantity
from tilewright.spec.sizes import Dim
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ONE, ZERO, symbol

#: ``TOP`` is the greatest magnitude of a quantized element. A block becomes all zeros if its
#: greatest magnitude is less than ``LEAST``.
TOP, LEAST = 127.0, 2.0**-119
#: With zero points, ``LOWEST`` is the least quantized element, and ``HALF`` is half of the range.
HALF, LOWEST = 127.5, -128
#: The bits of infinity and of a NaN in f32.
_INFINITY, _NAN = 0x7F800000, 0x7FC00000
#: The parameters of the tile for A's elements, scales, zero points, and the two kinds of sums.
_NAMES = {"a": "out", "a_scales": "scales", "a_zeros": "zeros", "a_starts": "starts",
          "a_totals": "totals"}  # fmt: skip
#: The parameter for zero points that are arguments of the call, and the value of a row.
_ZERO, _GIVEN = "given_zero_rows", Known(0, "given_zero", None)
#: The parameter for the zeros that fill the end of a packed row.
_GAP = "gap"
#: The results that need the sum of a block's elements. A product may need none or one of them.
_OF_SUMS = ("a_starts", "a_totals")
#: The axes of a matrix of which a row is quantized.
SHAPE = (Dim("m"), Dim("k"))
#: The number of vectors of a block that one loop trip reads.
VECTORS = 4


@dataclass(frozen=True, slots=True)
class Quantization:
    """The quantization of ``source``, rows of ``k`` elements, to the operands in ``made``.

    ``how`` is None if the elements are integers already. ``zero`` is then their zero point: a
    number, or an argument of the call for all rows or for each row. If B has a fixed zero point
    ``bias``, each block's sum of products starts at ``-bias`` times the sum of the block's
    elements. If B has zero points for each block, the negated sum of the block's elements is
    stored; with ``minima``, the sum times A's scale. A row of a packed A ends with ``fills`` zeros
    of 32 bits in ``gap``.
    """

    target: Target
    source: Operand
    made: dict[str, Operand]
    how: Quantize | None
    k: int
    block: int
    bias: int
    zeros: bool
    minima: bool
    slots: tuple[str, ...]
    zero: Quantity = None
    gap: Operand | None = None
    fills: int = 0

    @property
    def summed(self) -> bool:
        """True if the elements of a block are summed."""
        return bool(self.bias or self.zeros)

    @property
    def of_rows(self) -> bool:
        """True if all blocks of a row share a scale."""
        return self.how is not None and self.how.block is None and self.k > self.block

    @property
    def vector(self) -> Vector:
        """The f32 vector type in which elements are quantized."""
        return fitting(self.target, self.block)


def quantization_of(staging: Staging) -> Quantization:
    """Return the quantization of A."""
    form, how = staging.quantized, staging.problem.spec.quantize
    return Quantization(
        target=staging.problem.target,
        source=staging.sources["a"],
        made={
            name: staging.operands[name]
            for name in _NAMES
            if name in staging.operands and (how is not None or name != "a_scales")
        },
        how=how,
        k=form.k,
        block=form.block,
        bias=form.bias if "a_starts" in staging.operands else 0,
        zeros=bool(form.zeros),
        minima=form.minima,
        slots=tuple(slot for slot, _ in staging.problem.spec.runtime_sizes()),
        zero=staging.problem.spec.a_zero if "a_zeros" in staging.operands else None,
    )


def quantize_rows(
    q: Quantization, rows: Expr, matrix: Expr, first: Expr = ZERO, prefix: str = ""
) -> tuple[tuple[BlockLoop, ...], TileProgram]:
    """Return the nodes that quantize the rows of matrix ``matrix`` of a batch, and their tile.

    They become row ``first`` and the next ones. ``prefix`` begins the tile's name.
    """
    ops = (*without_idle_masks(tuple(_row(q))), *_filling(q))
    used = pointers_used(walk(ops))
    program = TileProgram(
        name=prefix
        + "_".join(("quantize_row", *(_NAMES[name] for name in _OF_SUMS if name in q.made))),
        element="f32",
        parameters=(
            *((Parameter("x_", "in", q.source.type),) if "x_" in used else ()),
            *((Parameter(_ZERO, "in", "s32"),) if _ZERO in used else ()),
            *(Parameter(_NAMES[name], "out", made.type) for name, made in q.made.items()),
            *((Parameter(_GAP, "out", "s32"),) if q.gap is not None else ()),
            *(Parameter(slot, "size") for slot in sizes_used(walk(ops), q.slots)),
        ),
        body=(),
        end=ops,
        summary="a row quantized block by block of K",
    )
    row = symbol("lp")
    places = [Argument(q.source.buffer, row * q.source.strides["m"])] if "x_" in used else []
    if _ZERO in used:
        places.append(Argument(Name("a_zero"), row if q.zero == "row" else ZERO))
    places += [
        _argument(made, matrix * made.strides["b"] + (first + row) * made.strides["m"])
        for made in q.made.values()
    ]
    places += [] if q.gap is None else [_argument(q.gap, (first + row) * q.gap.strides["m"])]
    loop = BlockLoop("lp", rows, (Call(program.name, tuple(places)),), note="quantize A")
    return (loop,), program


def rows_program(plan: QuantizeRowsPlan) -> Program:
    """Return the program that quantizes all rows of an A into its packed format."""
    nodes, tile = packed_rows(plan, plan.rows)
    return Program(nodes, (tile,))


def packed_rows(
    plan: QuantizeRowsPlan, rows: Expr, first: Expr = ZERO, prefix: str = ""
) -> tuple[tuple[BlockLoop, ...], TileProgram]:
    """Return the nodes that quantize ``rows`` rows into the packed format, and their tile.

    They become row ``first`` and the next ones. ``prefix`` begins the tile's name.
    """
    form, gap = plan.format, None
    fills = (form.row_bytes - form.used) // 4
    if fills:
        steps = {"m": Integer(form.row_bytes // 4)}
        gap = Operand(_GAP, "s32", steps, plan.operands["a"].buffer, form.used)
    quantization = Quantization(
        target=plan.target,
        source=plan.operands["x"],
        made={name: part for name, part in plan.operands.items() if name != "x"},
        how=plan.how,
        k=form.k,
        block=form.block,
        bias=form.bias,
        zeros=bool(form.sums),
        minima=form.sums == "scaled",
        slots=plan.slots,
        gap=gap,
        fills=fills,
    )
    return quantize_rows(quantization, rows, ZERO, first, prefix)


def _argument(made: Operand, place: Expr) -> Argument:
    """Return the argument for element ``place`` of ``made``, which may be a part of a packed A."""
    if made.at is None:
        return Argument(made.buffer, place)
    return Argument(made.buffer, made.at + ITEMSIZE[made.type] * place, cast=True)


def _filling(q: Quantization) -> Iterator[Op]:
    """Yield the stores of the zeros at the end of a packed row."""
    if q.fills:
        emitter = Emitter(q.target, 1, "gap_", "f32")
        zero = emitter.register(0)
        yield from emitter.emit()
        stores = (Store(Address(_GAP, ZERO), zero), Advance(_GAP, ONE))
        yield Loop("kg", Integer(q.fills), stores, "zeros at the end of the row")


def _row(q: Quantization) -> Iterator[Op]:
    """Quantize whole blocks in a loop, then the last block, padded with zeros."""
    passes = passes_of(q)
    row = Row(replace(passes, cols=Integer(q.k), padded=0), prefix="row_")
    numbers = range(len(passes.passes))
    if q.of_rows:
        yield from row.ops([0])
        numbers = range(1, len(passes.passes))
    elif q.zero is not None:
        if passes.fill == _GIVEN:
            row.keep(_GIVEN)
        row.end("zeros", Computed(_negative, (passes.fill,)))
        yield from row.emitter.emit()
    whole, tail = divmod(q.k, q.block)
    if whole:
        block = [*Row(passes, known=row.known).ops(numbers), *_advanced(q)]
        yield Loop("kt", Integer(whole), tuple(block), "blocks of K")
    if tail:
        last = replace(passes, cols=Integer(tail))
        yield from Row(last, known=row.known, prefix="last_").ops(numbers)


def _advanced(q: Quantization) -> Iterator[Op]:
    """Yield the operations that move all pointers to the next block."""
    yield Advance("x_", Integer(q.block))
    yield Advance("out", Integer(q.block))
    moved = (name for name, made in q.made.items() if name != "a" and made.strides["k"] != 0)
    yield from (Advance(_NAMES[name], ONE) for name in moved)


# --- the passes over a row -----------------------------------------------------------------------


class Results(NamedTuple):
    """The results of passes over a row, with their names."""

    names: tuple[str, ...]
    results: tuple[Expression, ...]


def passes_of(q: Quantization) -> RowPasses:
    """Return the passes over a block of K, or over a row and then over its blocks."""
    zero = Number(0) if q.zero is None else _GIVEN
    return RowPasses(
        target=q.target,
        cut=cut(_results(q)),
        real="s32" if q.how is None else "f32",
        cols=Integer(q.block),
        operands={"x_": q.source} | {_NAMES[name]: made for name, made in q.made.items()},
        vector=q.vector,
        tile=(1, VECTORS * q.vector.lanes),
        any_order=True,
        padded=q.block,
        fill=Number(q.zero) if isinstance(q.zero, int) else zero,
    )


def reduction(fn: str, x: Expression) -> Reduce:
    """Return the reduction ``fn`` of each row."""
    return Reduce(fn, -1, True, (x,))


def _results(q: Quantization) -> Results:
    """Return what is stored for each row, or block of a row, as expressions of its elements."""
    x = Input("x", q.source.type, SHAPE)
    found: dict[str, Expression] = {}
    integers, scale, zero = x, None, None
    if q.how is not None:
        integers, scale, zero = (_in_range if q.how.zero else _on_both_sides)(x)
        found["scales"] = scale
        if zero is not None:
            found["zeros"] = Computed(_negative, (zero,))
    elif q.zero is not None:
        zero = Number(q.zero) if isinstance(q.zero, int) else _GIVEN
    found["out"] = integers
    if q.summed:
        found |= _sums(q, reduction("total", integers), scale, zero)
    return Results(tuple(found), tuple(found.values()))


def _on_both_sides(x: Expression) -> tuple[Expression, Expression, None]:
    """Return integers and scale of symmetric quantization, from the greatest magnitude."""
    top = reduction("absmax", x)
    units = Computed(_units, (top, Number(TOP)))
    return Computed(_rounded, (x, units)), Computed(_scale, (top, Number(TOP), top)), None


def _in_range(x: Expression) -> tuple[Expression, Expression, Expression]:
    """Return integers, scale and zero point, from the least and the greatest element."""
    high, low = reduction("greatest", x), reduction("least", x)
    half = Computed(_half, (high, low))
    units = Computed(_units, (half, Number(HALF)))
    scale = Computed(_scale, (half, Number(HALF), Computed(_farthest, (high, low))))
    zero = Computed(_zero, (low, units))
    return Computed(_shifted, (x, units, zero)), scale, zero


def _sums(
    q: Quantization, total: Expression, scale: Expression | None, zero: Expression | None
) -> Iterator[tuple[str, Expression]]:
    """Yield the sum of a block's elements in the forms that B's zero points need."""
    if q.bias:
        yield "starts", Computed(_times, (total, Number(-q.bias)))
    if q.zeros:
        if zero is not None:
            total = Computed(_less, (total, zero, Number(q.block)))
        if not q.minima:
            yield "totals", Computed(_negated, (total,))
        elif scale is None:
            yield "totals", Computed(_converted, (total,))
        else:
            yield "totals", Computed(_scaled, (total, scale))


def _scale(b: Builder, most: Lanes, count: Lanes, magnitude: Lanes) -> Lanes:
    """Return ``most / count``; 0 if ``most`` is too small.

    The result is NaN if ``magnitude``, the greatest one, is infinite or NaN.
    """
    finite = b("lt", b("bits", magnitude), _INFINITY)
    scale = b("select", b("le", LEAST, most), b("div", most, count), 0.0)
    return b("float", b("select", finite, b("bits", scale), _NAN))


def _units(b: Builder, most: Lanes, count: Lanes) -> Lanes:
    """Return the inverse scale ``count / most``; 0 if ``most`` is too small."""
    return b("select", b("le", LEAST, most), b("div", count, most), 0.0)


def _half(b: Builder, high: Lanes, low: Lanes) -> Lanes:
    """Return half of the range."""
    return b("sub", b("mul", high, 0.5), b("mul", low, 0.5))


def _farthest(b: Builder, high: Lanes, low: Lanes) -> Lanes:
    """Return the greater magnitude; NaN if one is NaN. ``high`` is not negative."""
    return b("float", b("max", b("bits", high), b("bits", b("abs", low))))


def _zero(b: Builder, low: Lanes, units: Lanes) -> Lanes:
    """Return the integer that stands for 0."""
    return _within(b, b("to_s32", b("sub", float(LOWEST), b("mul", low, units))))


def _rounded(b: Builder, x: Lanes, units: Lanes) -> Lanes:
    """Return elements divided by the scale, rounded half to even."""
    return b("to_s32", b("min", b("max", b("mul", x, units), -TOP), TOP))


def _shifted(b: Builder, x: Lanes, units: Lanes, zero: Lanes) -> Lanes:
    """Return elements divided by the scale, rounded half to even, plus the zero point."""
    return _within(b, b("add", b("to_s32", b("mul", x, units)), zero))


def _within(b: Builder, integer: Lanes) -> Lanes:
    """Clamp an integer to the range of s8."""
    return b("max", b("min", integer, int(TOP)), LOWEST)


def _negative(b: Builder, integer: Lanes) -> Lanes:
    return b("sub", 0, integer)


def _times(b: Builder, total: Lanes, count: float) -> Lanes:
    return b("mul", total, int(count))


def _less(b: Builder, total: Lanes, zero: Lanes, count: float) -> Lanes:
    return b("sub", total, b("mul", zero, int(count)))


def _converted(b: Builder, total: Lanes) -> Lanes:
    return b("to_f32", total)


def _negated(b: Builder, total: Lanes) -> Lanes:
    return b("neg", b("to_f32", total))


def _scaled(b: Builder, total: Lanes, scale: Lanes) -> Lanes:
    return b("mul", b("to_f32", total), scale)


def fitting(target: Target, block: int) -> Vector:
    """Return the widest f32 vector type that divides ``block`` and can exchange its lanes."""
    whole = (v for v in target.of("f32") if block % v.lanes == 0)
    return next(v for v in whole if v.lanes == 1 or _folds(target, v))


def _folds(target: Target, vector: Vector) -> bool:
    """True if the target exchanges lanes of s32 vectors with as many lanes as ``vector``."""
    whole = next((v for v in target.of("s32") if v.lanes == vector.lanes), None)
    blocks = {1 << i for i in range(vector.lanes.bit_length() - 1)}
    return whole is not None and blocks <= set(whole.transpose)
