"""Quantize A before the loops: divide rows, or blocks of rows, by their scale and round to
integers.

If A has integers already, they are copied into rows of whole blocks, u8 as s8, and their blocks are
summed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from sympy import Expr, Integer

from tilewright.elementwise.functions import elementary
from tilewright.ir.emitter import Emitter
from tilewright.ir.nest import Argument, BlockLoop, Call, Name, Program
from tilewright.ir.ops import Advance, Loop, Op, Store, TileProgram
from tilewright.ir.values import Address, Register
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector
from tilewright.lower.rows.program import tile_of
from tilewright.lower.rows.row import Row
from tilewright.plan.formats.quantized_a import QuantizeRowsPlan
from tilewright.plan.operands import Operand
from tilewright.plan.problem import Staging
from tilewright.plan.rows.passes import Cut, Known, cut
from tilewright.plan.rows.plan import ZEROS, RowPasses
from tilewright.spec.expression.nodes import Expression, Number, call
from tilewright.spec.expression.tensors import Input, Reduce
from tilewright.spec.quantized import SHIFTS, Quantize
from tilewright.spec.scalars import Quantity
from tilewright.spec.sizes import Dim
from tilewright.spec.types import ITEMSIZE, type_name
from tilewright.symbolic import ONE, ZERO, symbol

#: ``TOP`` is the greatest magnitude of a quantized element. A block becomes all zeros if its
#: greatest magnitude is less than ``LEAST``.
TOP, LEAST = 127.0, 2.0**-119
#: With zero points, ``LOWEST`` is the least quantized element, and ``HALF`` is half of the range.
HALF, LOWEST = 127.5, -128
#: The bits of a NaN in f32.
_NAN = 0x7FC00000
#: The parameters of the tile for A's elements, scales, zero points, the two kinds of sums, and the
#: zeros that fill the end of a packed row.
_NAMES = {"a": "out", "a_scales": "scales", "a_zeros": "zeros", "a_starts": "starts",
          "a_totals": "totals", "gap": "gap"}  # fmt: skip
#: ``_ZERO`` is the parameter for zero points that the caller gives. ``_GIVEN`` is the zero point of
#: a row in expressions.
_ZERO, _GIVEN = "given_zero_rows", Known(0, "given_zero", None)
#: The results that need the sum of a block's elements. A product may need none or one of them.
_OF_SUMS = ("a_starts", "a_totals")
#: The pointer to the elements of a row, and the axes of their matrix.
X, _SHAPE = "x_", (Dim("m"), Dim("k"))
#: The number of vectors of a block that one loop trip reads.
_VECTORS = 4


@dataclass(frozen=True, slots=True)
class Quantization:
    """The quantization of ``source``, rows of ``k`` elements, to the operands in ``made``.

    ``how`` is None if the elements are integers already. ``zero`` is then their zero point: a
    number, or an argument of the call for all rows or for each row. ``shift`` is subtracted from
    both: 128 makes numbers of u8 those of s8. If B has a fixed zero point
    ``bias``, each block's sum of products starts at ``-bias`` times the sum of the block's
    elements. If B has zero points for each block, the negated sum of the block's elements is
    stored; with ``minima``, the sum times A's scale. A row of a packed A ends with ``fills`` zeros
    of 32 bits.
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
    zero: Quantity = 0
    shift: int = 0
    fills: int = 0

    @property
    def summed(self) -> bool:
        """True if the elements of a block are summed."""
        return bool(self.bias or self.zeros)

    @property
    def of_rows(self) -> bool:
        """True if all blocks of a row share a scale."""
        return self.how is not None and self.how.block is None and self.k > self.block


def quantization_of(staging: Staging) -> Quantization:
    """Return the quantization of A."""
    form, spec = staging.quantized, staging.problem.spec
    how = spec.quantize
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
        zero=spec.a_zero or 0,
        shift=SHIFTS[spec.a.type] if how is None else 0,
    )


def quantize_rows(
    q: Quantization, rows: Expr, matrix: Expr, first: Expr = ZERO, prefix: str = ""
) -> tuple[tuple[BlockLoop, ...], TileProgram]:
    """Return the nodes that quantize the rows of matrix ``matrix`` of a batch, and their tile.

    They become row ``first`` and the next ones. ``prefix`` begins the tile's name.
    """
    passes, outputs = passes_of(q), {_NAMES[name] for name in q.made}
    name = prefix + "_".join(("quantize_row", *(_NAMES[x] for x in _OF_SUMS if x in q.made)))
    ops = (*_row(q, passes), *_filling(q))
    said = "a row quantized block by block of K"
    tile = tile_of(passes, name, ops, said, {_ZERO: "s32"}, outputs)
    row = symbol("lp")
    places = {
        X: Argument(q.source.buffer, row * q.source.strides["m"]),
        _ZERO: Argument(Name("a_zero"), row if q.zero == "row" else ZERO),
    }
    for name, made in q.made.items():
        place = matrix * made.strides["b"] + (first + row) * made.strides["m"]
        places[_NAMES[name]] = _argument(made, place)
    return (over_rows(tile, rows, places, "quantize A"),), tile


def over_rows(
    tile: TileProgram, rows: Expr, places: Mapping[str, Argument], note: str
) -> BlockLoop:
    """Return the loop that calls ``tile`` for each row."""
    arguments = tuple(places[each.name] for each in tile.parameters if each.role != "size")
    return BlockLoop("lp", rows, (Call(tile.name, arguments),), note=note)


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
    form = plan.format
    made = {name: part for name, part in plan.operands.items() if name != "x"}
    fills = (form.row_bytes - form.used) // 4
    if fills:
        steps = {"m": Integer(form.row_bytes // 4), "k": ZERO, "b": ZERO}
        made["gap"] = Operand("gap", "s32", steps, made["a"].buffer, form.used)
    quantization = Quantization(
        target=plan.target,
        source=plan.operands["x"],
        made=made,
        how=plan.how,
        k=form.k,
        block=form.block,
        bias=form.bias,
        zeros=bool(form.sums),
        minima=form.sums == "scaled",
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
        stores = (Store(Address("gap", ZERO), zero), Advance("gap", ONE))
        yield Loop("kg", Integer(q.fills), stores, "zeros at the end of the row")


def _row(q: Quantization, passes: RowPasses) -> Iterator[Op]:
    """Quantize whole blocks in a loop, then the last block, padded with zeros."""
    row = Row(replace(passes, cols=Integer(q.k), padded=0), prefix="row_")
    numbers = tuple(range(len(passes.passes)))
    if q.of_rows:
        yield from row.ops(numbers[:1])
        numbers = numbers[1:]
    elif "a_zeros" in q.made and q.how is None:
        if passes.fill == _GIVEN:
            row.keep(_GIVEN)
        row.end("zeros", elementary("sub", q.shift, passes.fill))
        yield from row.emitter.emit()
    steps = {_NAMES[name]: ONE for name, made in q.made.items() if made.strides["k"] != 0}
    steps |= {X: Integer(q.block), "out": Integer(q.block)}
    yield from in_blocks(passes, q.k, steps, numbers, row.known)


def in_blocks(
    passes: RowPasses,
    k: int,
    steps: Mapping[str, Expr],
    numbers: Sequence[int] = (0,),
    known: Mapping[Expression, Register] | None = None,
) -> Iterator[Op]:
    """Yield the passes ``numbers`` over each block of a row of ``k`` elements.

    ``passes`` are over a whole block. ``steps`` are those of pointers from a block to the next.
    """
    whole, tail = divmod(k, int(passes.cols))
    if whole:
        moved = (Advance(name, step) for name, step in steps.items())
        block = (*Row(passes, known=known).ops(numbers), *moved)
        yield Loop("kt", Integer(whole), block, "blocks of K")
    if tail:
        last = replace(passes, cols=Integer(tail))
        yield from Row(last, known=known, prefix="last_").ops(numbers)


# --- the passes over a row -----------------------------------------------------------------------


def passes_of(q: Quantization) -> RowPasses:
    """Return the passes over a block of K, or over a row and then over its blocks."""
    return passes_over(
        cut(_results(q)),
        q.target,
        q.block,
        {X: q.source} | {_NAMES[name]: made for name, made in q.made.items()},
        real="s32" if q.how is None else "f32",
        padded=q.block,
        fill=_given(q.zero),
    )


def passes_over(
    found: Cut,
    target: Target,
    block: int,
    operands: Mapping[str, Operand],
    *,
    real: str = "f32",
    padded: int = 0,
    fill: Expression = ZEROS,
) -> RowPasses:
    """Return the passes ``found`` over ``block`` elements, whose reductions have any order."""
    vector = _fitting(target, block)
    return RowPasses(
        target=target, cut=found, real=real, cols=Integer(block), operands=operands, vector=vector,
        tile=(1, _VECTORS * vector.lanes), any_order=True, padded=padded, fill=fill,
    )  # fmt: skip


def elements(operand: Operand) -> Expression:
    """Return the elements of a row as a leaf of expressions."""
    return Input("x", type_name(operand.type), _SHAPE)


def reduction(fn: str, x: Expression) -> Expression:
    """Return the reduction ``fn`` of each row."""
    return Reduce(fn, -1, True, (x,))


def _given(zero: Quantity) -> Expression:
    """Return the zero point of integers: a number, or a value of the row."""
    return Number(zero) if isinstance(zero, int) else _GIVEN


def _results(q: Quantization) -> dict[str, Expression]:
    """Return what is stored for each row, or block of a row, as expressions of its elements."""
    x = elements(q.source)
    found: dict[str, Expression] = {}
    scale = zero = None
    if q.how is not None:
        x, scale, zero = (_in_range if q.how.zero else _on_both_sides)(x)
        found["scales"] = scale
        if zero is not None:
            found["zeros"] = elementary("sub", 0, zero)
    else:
        x = _signed(q, x)
        zero = _signed(q, _given(q.zero)) if "a_zeros" in q.made else None
    found["out"] = x
    if q.summed:
        found |= _sums(q, reduction("total", x), scale, zero)
    return found


def _signed(q: Quantization, x: Expression) -> Expression:
    """Return given integers, or their zero point, as numbers of s8."""
    return elementary("sub", x, q.shift) if q.shift else x


def _on_both_sides(x: Expression) -> tuple[Expression, Expression, None]:
    """Return integers and scale of symmetric quantization, from the greatest magnitude."""
    top = reduction("absmax", x)
    scale, units = _in_units(top, TOP)
    within = elementary("min", elementary("max", x * units, -TOP), TOP)
    return elementary("to_s32", within), _finite(scale, top), None


def _in_range(x: Expression) -> tuple[Expression, Expression, Expression]:
    """Return integers, scale and zero point, from the least and the greatest element."""
    high, low = reduction("greatest", x), reduction("least", x)
    scale, units = _in_units(high * 0.5 - low * 0.5, HALF)
    zero = _within(elementary("to_s32", LOWEST - low * units))
    integers = _within(elementary("add", elementary("to_s32", x * units), zero))
    return integers, _finite(scale, high, -low), zero


def _in_units(most: Expression, count: float) -> tuple[Expression, Expression]:
    """Return the scale ``most / count`` and its inverse; both are 0 if ``most`` is too small."""
    there = most >= LEAST
    return call("where", there, most / count, 0), call("where", there, count / most, 0)


def _finite(scale: Expression, *magnitudes: Expression) -> Expression:
    """Return ``scale``; NaN if a magnitude is infinite or NaN."""
    bits = elementary("bits", scale)
    for each in magnitudes:
        bits = elementary("select", elementary("lt", each, inf), bits, _NAN)
    return elementary("float", bits)


def _within(integer: Expression) -> Expression:
    """Clamp an integer to the range of s8."""
    return elementary("max", elementary("min", integer, TOP), LOWEST)


def _sums(
    q: Quantization, total: Expression, scale: Expression | None, zero: Expression | None
) -> Iterator[tuple[str, Expression]]:
    """Yield the sum of a block's elements in the forms that B's zero points need."""
    if q.bias:
        yield "starts", elementary("mul", total, -q.bias)
    if q.zeros:
        if zero is not None:
            total = elementary("sub", total, elementary("mul", zero, q.block))
        kept = elementary("to_f32", total)
        if not q.minima:
            kept = elementary("neg", kept)
        elif scale is not None:
            kept = elementary("mul", kept, scale)
        yield "totals", kept


def _fitting(target: Target, block: int) -> Vector:
    """Return the widest f32 vector type that divides ``block`` and can exchange its lanes."""
    whole = (v for v in target.of("f32") if block % v.lanes == 0)
    return next(v for v in whole if v.lanes == 1 or _folds(target, v))


def _folds(target: Target, vector: Vector) -> bool:
    """True if the target exchanges lanes of s32 vectors with as many lanes as ``vector``."""
    whole = next((v for v in target.of("s32") if v.lanes == vector.lanes), None)
    blocks = {1 << i for i in range(vector.lanes.bit_length() - 1)}
    return whole is not None and blocks <= set(whole.transpose)
