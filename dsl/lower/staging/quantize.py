"""Quantize A before the loops: divide rows, or blocks of rows, by their scale and round to
integers.

If A has integers already, they are copied into rows of whole blocks, and their blocks are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from sympy import Expr, Integer

from tilewright.elementwise.builder import Argument as Lanes
from tilewright.elementwise.builder import Builder
from tilewright.ir.access import load
from tilewright.ir.dataflow import pointers_used, sizes_used
from tilewright.ir.emitter import Emitter
from tilewright.ir.interleaving import fold_registers
from tilewright.ir.nest import Argument, BlockLoop, Call, Name, Program
from tilewright.ir.nodes import walk
from tilewright.ir.ops import (
    Advance,
    Apply,
    Loop,
    Op,
    Parameter,
    Point,
    Store,
    TileProgram,
    Zero,
)
from tilewright.ir.values import Address, Register
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector
from tilewright.plan.formats.quantized_a import QuantizeRowsPlan
from tilewright.plan.operands import Operand
from tilewright.plan.problem import Staging
from tilewright.spec.quantized import Quantize
from tilewright.spec.scalars import Quantity
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ONE, ZERO, symbol

#: ``TOP`` is the greatest magnitude of a quantized element. A block becomes all zeros if its
#: greatest magnitude is less than ``LEAST``.
TOP, LEAST = 127.0, 2.0**-119
#: With zero points, ``LOWEST`` is the least quantized element, and ``HALF`` is half of the range.
HALF, LOWEST = 127.5, -128
#: All bits of an f32 except the sign.
_MAGNITUDE = 0x7FFFFFFF
#: The bits of infinity and of a NaN in f32.
_INFINITY, _NAN = 0x7F800000, 0x7FC00000
#: The comment in C on the computation of a scale.
_OF_SCALE = "What a unit stands for: NaN beside Inf or NaN."
#: The parameters of the tile for A's elements, scales, zero points, and the two kinds of sums.
_NAMES = {"a": "out", "a_scales": "scales", "a_zeros": "zeros", "a_starts": "starts",
          "a_totals": "totals"}  # fmt: skip
#: The parameter for zero points that are arguments of the call.
_ZERO = "given_zero"
#: The parameter for the zeros that fill the end of a packed row.
_GAP = "gap"
#: The results that need the sum of a block's elements. A product may need none or one of them.
_OF_SUMS = ("a_starts", "a_totals")
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
    ops = (*_row(q), *_filling(q))
    used = pointers_used(walk(ops))
    program = TileProgram(
        name=prefix
        + "_".join(("quantize_row", *(_NAMES[name] for name in _OF_SUMS if name in q.made))),
        element="f32",
        parameters=(
            *((Parameter("x", "in", q.source.type),) if "x" in used else ()),
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
    places = [Argument(q.source.buffer, row * q.source.strides["m"])] if "x" in used else []
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


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a block: ``trips`` trips of ``vectors`` vectors. ``active`` lanes of the last
    exist.
    """

    vectors: int
    trips: int
    active: int | None
    lanes: int

    def repeated(self, ops: Sequence[Op], *pointers: str) -> Iterator[Op]:
        """Yield ``ops`` in a loop over the trips, which moves ``pointers``."""
        step = Integer(self.vectors * self.lanes)
        body = (*ops, *(Advance(name, step) for name in pointers))
        yield from body if self.trips == 1 else (Loop("kv", Integer(self.trips), body),)

    def elements(self, source: Operand, emitter: Emitter, pointer: str) -> Iterator[Lanes]:
        """Yield the vectors of a trip, loaded from ``pointer`` as f32."""
        for place in range(self.vectors):
            active = self.active if place == self.vectors - 1 else None
            address = Address(pointer, place * self.lanes * ONE)
            yield load(emitter, address, active, source.type, f"x{place}")


def pieces(existing: int, lanes: int) -> Iterator[Piece]:
    """Yield the pieces of a block with ``existing`` elements: a loop, single vectors, and a
    tail.
    """
    whole, rest = divmod(existing, lanes)
    trips, few = divmod(whole, VECTORS)
    if trips:
        yield Piece(VECTORS, trips, None, lanes)
    if few:
        yield Piece(few, 1, None, lanes)
    if rest:
        yield Piece(1, 1, rest, lanes)


@dataclass(frozen=True, slots=True)
class _Unit:
    """The factors that quantize a row or block: the inverse scale, the scale, and the zero point.

    If A has integers already, only the zero point is present.
    """

    units: Register | None
    scale: Register | None
    zero: Register | int | None

    def zero_in(self, emitter: Emitter) -> Lanes | None:
        """Return the zero point as a value of ``emitter``."""
        return emitter.take(self.zero) if isinstance(self.zero, Register) else self.zero


def _row(q: Quantization) -> Iterator[Op]:
    """Quantize whole blocks in a loop, then the last block, padded with zeros."""
    whole, tail = divmod(q.k, q.block)
    unit = None
    if q.of_rows or q.zero is not None:
        emitter = Emitter(q.target, q.vector.lanes, "row_", "f32")
        unit = _unit(q, emitter, q.k) if q.of_rows else _given(q, emitter)
        yield from emitter.emit()
    if whole:
        yield Loop("kt", Integer(whole), tuple(_block(q, q.block, unit)), "blocks of K")
    if tail:
        yield from _block(q, tail, unit)


def _block(q: Quantization, existing: int, unit: _Unit | None) -> Iterator[Op]:
    """Quantize a block with ``existing`` elements and sum it; without ``unit`` compute its
    scale.
    """
    prefix = "" if existing == q.block else "last_"
    emitter = Emitter(q.target, q.vector.lanes, prefix, "f32")
    if unit is None and q.how is not None:
        unit = _unit(q, emitter, existing)
    total = _rounded(q, emitter, existing, unit)
    if q.summed:
        summed = folded(emitter, total, "add")
        beside = -existing % emitter.lanes
        if q.how is None and unit is not None and beside:
            summed = emitter.builder(
                "add", summed, emitter.builder("mul", unit.zero_in(emitter) or 0, beside)
            )
        _put_sums(q, emitter, summed, unit)
    yield from emitter.emit()
    moved = (name for name, made in q.made.items() if name != "a" and made.strides["k"] != 0)
    yield from (Advance(_NAMES[name], ONE) for name in moved)


def _unit(q: Quantization, emitter: Emitter, existing: int) -> _Unit:
    """Compute and store the scale of ``existing`` elements, and their zero point."""
    assert q.how is not None
    scale, units, zero = (_of_range if q.how.zero else _of_magnitude)(q, emitter, existing)
    put_one(emitter, scale, Address("scales", ZERO))
    if zero is None:
        return _Unit(emitter.register(units), emitter.register(scale), None)
    put_one(emitter, emitter.builder("sub", 0, zero), Address("zeros", ZERO))
    return _Unit(emitter.register(units), emitter.register(scale), emitter.register(zero))


def _given(q: Quantization, emitter: Emitter) -> _Unit:
    """Broadcast the zero point of integers to all lanes, and store its negative."""
    emitter.stage("zero", note="The zero point of A, negative.")
    if isinstance(q.zero, int):
        put_one(emitter, -q.zero, Address("zeros", ZERO))
        return _Unit(None, None, q.zero)
    single = Emitter(q.target, 1, f"{emitter.prefix}zero_", "f32")
    one = single.register(load(single, Address(_ZERO, ZERO), None, "s32", "one"))
    emitter.add(*single.emit())
    zero = emitter.spread(one, "given")
    put_one(emitter, emitter.builder("sub", 0, zero), Address("zeros", ZERO))
    return _Unit(None, None, emitter.register(zero))


def _of_magnitude(
    q: Quantization, emitter: Emitter, existing: int
) -> tuple[Lanes, Lanes, Lanes | None]:
    """Return scale and inverse scale of symmetric quantization, from the greatest magnitude."""

    def magnitude(b: Builder, x: Lanes) -> Lanes:
        return b("bits", b("abs", x))

    note = "The greatest magnitude, as its bits."
    (greatest,) = _extremes(q, emitter, existing, ("max",), magnitude, note)
    bits = folded(emitter, greatest, "max")
    top = emitter.builder("float", bits)
    emitter.stage("scale", note=_OF_SCALE)
    return *_in_units(emitter, top, TOP, bits), None


def _of_range(
    q: Quantization, emitter: Emitter, existing: int
) -> tuple[Lanes, Lanes, Lanes | None]:
    """Return scale, inverse scale and zero point, from the least and the greatest element."""
    b = emitter.builder
    note = "The greatest and the least element, 0 among them, as integers in their order."
    highest, lowest = _extremes(q, emitter, existing, ("max", "min"), _ordered, note)
    high, low = folded(emitter, highest, "max"), folded(emitter, lowest, "min")
    emitter.stage("scale", note=_OF_SCALE)
    least = b("float", _flipped(b, low))
    half = b("sub", b("mul", b("float", high), 0.5), b("mul", least, 0.5))
    scale, units = _in_units(emitter, half, HALF, b("max", high, b("xor", low, -1)))
    emitter.register(units)
    emitter.stage("zero", note="The integer that stands for 0.")
    zero = b("to_s32", b("sub", float(LOWEST), b("mul", least, units)))
    return scale, units, _within(b, zero)


def _in_units(emitter: Emitter, most: Lanes, count: float, bits: Lanes) -> tuple[Lanes, Lanes]:
    """Return the scale ``most / count`` and its inverse; both are 0 if ``most`` is too small.

    ``bits`` are those of the greatest magnitude. The scale is NaN if it is infinite or NaN.
    """
    b = emitter.builder
    there = b("le", LEAST, most)
    finite = b("lt", bits, _INFINITY)
    scale = b("select", there, b("div", most, count), 0.0)
    scale = b("float", b("select", finite, b("bits", scale), _NAN))
    emitter.register(scale)
    emitter.stage("units", note="How many units 1 is.")
    return scale, b("select", there, b("div", count, most), 0.0)


def _ordered(b: Builder, x: Lanes) -> Lanes:
    """Return an f32 as an integer of the same order; a NaN is beyond all numbers."""
    return _flipped(b, b("bits", x))


def _flipped(b: Builder, bits: Lanes) -> Lanes:
    """Return ``bits`` with all bits but the sign inverted if the sign is set; this is its own
    inverse.
    """
    return b("xor", bits, b("and", b("shr", bits, 31), _MAGNITUDE))


def _within(b: Builder, integer: Lanes) -> Lanes:
    """Clamp an integer to the range of s8."""
    return b("max", b("min", integer, int(TOP)), LOWEST)


def _put_sums(q: Quantization, emitter: Emitter, total: Lanes, unit: _Unit | None) -> None:
    """Store the sum of a block's elements in the forms that B's zero points need."""
    b = emitter.builder
    if q.bias:
        emitter.stage("start", note="What B's zero point takes from the sums of this block.")
        put_one(emitter, b("mul", total, -q.bias), Address("starts", ZERO))
    if q.zeros:
        emitter.stage("sum", note="The sum of this block's elements, for B's zero points.")
        if unit is not None and (zero := unit.zero_in(emitter)) is not None:
            total = b("sub", total, b("mul", zero, q.block))
        kept = b("to_f32", total)
        if not q.minima:
            kept = b("neg", kept)
        elif unit is not None and unit.scale is not None:
            kept = b("mul", kept, emitter.take(unit.scale))
        put_one(emitter, kept, Address("totals", ZERO))


def _extremes(
    q: Quantization,
    emitter: Emitter,
    existing: int,
    fns: Sequence[str],
    of: Callable[[Builder, Lanes], Lanes],
    note: str,
) -> tuple[Register, ...]:
    """Return, for each lane, the reductions ``fns`` of ``of(element)`` and 0, in s32."""
    names = {"max": "tops", "min": "lows"}
    found, pointer = {fn: emitter.fresh(names[fn], "s32") for fn in fns}, f"{emitter.prefix}px"
    emitter.stage("greatest", note=note)
    emitter.add(*map(Zero, found.values()), Point(pointer, "x", ZERO, q.source.type))
    for number, piece in enumerate(pieces(existing, emitter.lanes)):
        inner = Emitter(q.target, emitter.lanes, f"{emitter.prefix}part{number}_", "f32")
        inner.stage("magnitude")
        b = inner.builder
        lanes = [of(b, x) for x in piece.elements(q.source, inner, pointer)]
        most = [inner.register(reduce(partial(b, fn), lanes)) for fn in fns]
        ends = [Apply(r, fn, (r, own)) for (fn, r), own in zip(found.items(), most, strict=True)]
        emitter.add(*piece.repeated((*inner.emit(), *ends), pointer))
    return tuple(found.values())


def _rounded(q: Quantization, emitter: Emitter, existing: int, unit: _Unit | None) -> Register:
    """Store the quantized elements and return the sum of each lane. Padding represents 0."""
    total, stored = emitter.fresh("added", "s32"), q.made["a"].type
    emitter.stage("elements", note="Elements, rounded half to even." if q.how else "Elements.")
    emitter.add(*([Zero(total)] if q.summed else []))
    for number, piece in enumerate(pieces(existing, emitter.lanes)):
        inner = Emitter(q.target, emitter.lanes, f"{emitter.prefix}part{number}_of_", "f32")
        inner.stage("elements")
        whole = []
        for place, x in enumerate(piece.elements(q.source, inner, "x")):
            whole.append(x if unit is None or unit.units is None else _integer(inner, x, unit))
            active = piece.active if place == piece.vectors - 1 else None
            if active is not None and q.how is None and unit is not None:
                # The inactive lanes are 0, which does not represent the number 0 if there is a zero
                # point.
                filling = inner.register(unit.zero_in(inner) or 0)
                inner.add(_stored(filling, place * piece.lanes, stored))
                inner.add(_stored(inner.register(x), place * piece.lanes, stored, active))
                continue
            inner.add(_stored(inner.register(whole[-1]), place * piece.lanes, stored))
        if q.summed:
            sums = inner.register(reduce(partial(inner.builder, "add"), whole))
            inner.add(Apply(total, "add", (total, sums)))
        emitter.add(*piece.repeated((*inner.emit(),), "x", "out"))
    missing = (q.block - existing) // emitter.lanes
    if missing:
        zero = unit.zero_in(emitter) if unit is not None else None
        filling = emitter.register(0 if zero is None else zero)
        ops: list[Op] = [_stored(filling, 0, stored), Advance("out", Integer(emitter.lanes))]
        if zero is not None and q.summed:
            ops.append(Apply(total, "add", (total, filling)))
        emitter.add(Loop("kz", Integer(missing), tuple(ops), "zeros"))
    return total


def _integer(emitter: Emitter, x: Lanes, unit: _Unit) -> Lanes:
    """Return elements divided by the scale and rounded, plus the zero point if there is one."""
    assert unit.units is not None
    b = emitter.builder
    units = b("mul", x, emitter.take(unit.units))
    if (zero := unit.zero_in(emitter)) is None:
        return b("to_s32", b("min", b("max", units, -TOP), TOP))
    return _within(b, b("add", b("to_s32", units), zero))


def _stored(register: Register, at: int, type_: str, active: int | None = None) -> Store:
    """Store s32 lanes, or the first ``active`` ones, as elements of ``type_``."""
    group = 0 if type_ in register.vector.stores else 1
    return Store(Address("out", at * ONE), register, active, type_, group)


def put_one(emitter: Emitter, value: Lanes, address: Address) -> None:
    """Store the first lane."""
    active = None if emitter.lanes == 1 else 1
    emitter.add(Store(address, emitter.register(value), active))


def folded(emitter: Emitter, register: Register, fn: str) -> Lanes:
    """Return the reduction ``fn`` of all lanes, in every lane."""
    return fold_registers(emitter, [emitter.take(register)], partial(emitter.builder, fn))


def fitting(target: Target, block: int) -> Vector:
    """Return the widest f32 vector type that divides ``block`` and can exchange its lanes."""
    whole = (v for v in target.of("f32") if block % v.lanes == 0)
    return next(v for v in whole if v.lanes == 1 or _folds(target, v))


def _folds(target: Target, vector: Vector) -> bool:
    """True if the target exchanges lanes of s32 vectors with as many lanes as ``vector``."""
    whole = next((v for v in target.of("s32") if v.lanes == vector.lanes), None)
    blocks = {1 << i for i in range(vector.lanes.bit_length() - 1)}
    return whole is not None and blocks <= set(whole.transpose)
