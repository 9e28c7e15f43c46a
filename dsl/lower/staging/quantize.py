"""A made integers before the loops: each block of a row divided by its scale, and rounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from sympy import Expr, Integer

from tilewright.elementwise.builder import Argument as Lanes
from tilewright.ir.access import load
from tilewright.ir.dataflow import pointers_used, sizes_used
from tilewright.ir.emitter import Emitter
from tilewright.ir.nest import Argument, BlockLoop, Call, NestNode
from tilewright.ir.nodes import walk
from tilewright.ir.ops import (
    Advance,
    Apply,
    Interleave,
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
from tilewright.plan.operands import Operand
from tilewright.plan.plan import Plan
from tilewright.symbolic import ONE, ZERO, symbol

#: The greatest magnitude of an element, and the least one of a block that is not taken as zeros.
TOP, LEAST = 127.0, 2.0**-119
#: The bits of f32: of infinity, and of a NaN.
_INFINITY, _NAN = 0x7F800000, 0x7FC00000
#: What is called what in the tile: the elements, their scales, where sums of blocks begin.
_NAMES = {"a": "out", "a_scales": "scales", "a_starts": "starts", "a_totals": "totals"}
#: Vectors of a block that are read in one trip of a loop.
VECTORS = 4


@dataclass(frozen=True, slots=True)
class Quantization:
    """``source``, rows of ``k`` elements of floating point, as ``made``: elements, scales, sums.

    Each block's sum begins at ``-bias`` times the sum of its elements, where B's have such a bias.
    Where B has zero points for each block, its own sum is kept: negative, or for ``minima`` scaled.
    """

    target: Target
    source: Operand
    made: dict[str, Operand]
    k: int
    block: int
    bias: int
    zeros: bool
    minima: bool
    slots: tuple[str, ...]

    @property
    def summed(self) -> bool:
        """Whether the elements of a block are summed."""
        return bool(self.bias or self.zeros)

    @property
    def vector(self) -> Vector:
        """The widest vector of f32 that a block is whole ones of, and that exchanges its lanes."""
        every = self.target.of("f32")
        fitting = (v for v in every if self.block % v.lanes == 0)
        return next(v for v in fitting if v.lanes == 1 or _folds(self.target, v))


def quantization_of(plan: Plan) -> Quantization:
    """How A is made integers."""
    form = plan.quantized
    return Quantization(
        target=plan.target,
        source=plan.sources["a"],
        made={name: plan.operands[name] for name in _NAMES if name in plan.operands},
        k=form.k,
        block=form.block,
        bias=form.bias,
        zeros=bool(form.zeros),
        minima=form.minima,
        slots=tuple(slot for slot, _ in plan.spec.runtime_sizes()),
    )


def quantize_rows(
    q: Quantization, rows: Expr, matrix: Expr
) -> tuple[tuple[NestNode, ...], TileProgram]:
    """The nodes that quantize the rows of matrix number ``matrix`` of a batch, and their tile."""
    ops = tuple(_row(q))
    used = pointers_used(walk(ops))
    program = TileProgram(
        name="quantize_row",
        element="f32",
        parameters=(
            *((Parameter("x", "in", q.source.type),) if "x" in used else ()),
            *(Parameter(_NAMES[name], "out", made.type) for name, made in q.made.items()),
            *(Parameter(slot, "size") for slot in sizes_used(walk(ops), q.slots)),
        ),
        body=(),
        end=ops,
        summary="a row quantized block by block of K",
    )
    row = symbol("lp")
    places = [Argument(q.source.buffer, row * q.source.strides["m"])] if "x" in used else []
    places += [
        Argument(made.buffer, matrix * made.strides["b"] + row * made.strides["m"])
        for made in q.made.values()
    ]
    loop = BlockLoop("lp", rows, (Call(program.name, tuple(places)),), note="quantize A")
    return (loop,), program


@dataclass(frozen=True, slots=True)
class _Piece:
    """``trips`` times so many ``vectors`` of a block, the last of them with ``active`` lanes."""

    vectors: int
    trips: int
    active: int | None
    lanes: int

    def repeated(self, ops: Sequence[Op], *pointers: str) -> Iterator[Op]:
        """``ops`` in each trip, which then move ``pointers`` to the next."""
        step = Integer(self.vectors * self.lanes)
        body = (*ops, *(Advance(name, step) for name in pointers))
        yield from body if self.trips == 1 else (Loop("kv", Integer(self.trips), body),)

    def elements(self, q: Quantization, emitter: Emitter, pointer: str) -> Iterator[Lanes]:
        """Its vectors, as f32, from ``pointer`` on."""
        for place in range(self.vectors):
            active = self.active if place == self.vectors - 1 else None
            address = Address(pointer, place * self.lanes * ONE)
            yield load(emitter, address, active, q.source.type, f"x{place}")


def _pieces(existing: int, lanes: int) -> Iterator[_Piece]:
    """All elements of a block that exist: many vectors a trip, then one by one."""
    whole, rest = divmod(existing, lanes)
    trips, few = divmod(whole, VECTORS)
    if trips:
        yield _Piece(VECTORS, trips, None, lanes)
    if few:
        yield _Piece(few, 1, None, lanes)
    if rest:
        yield _Piece(1, 1, rest, lanes)


def _row(q: Quantization) -> Iterator[Op]:
    """Whole blocks in a loop, then the one that is not whole, filled up with zeros."""
    whole, tail = divmod(q.k, q.block)
    if whole:
        yield Loop("kt", Integer(whole), tuple(_block(q, q.block)), "blocks of K")
    if tail:
        yield from _block(q, tail)


def _block(q: Quantization, existing: int) -> Iterator[Op]:
    """A block, of which so many elements exist: its scale, its elements, their sum."""
    prefix = "" if existing == q.block else "last_"
    emitter = Emitter(q.target, q.vector.lanes, prefix, "f32")
    b = emitter.builder
    bits = _folded(emitter, _greatest(q, emitter, existing), "max")
    top = b("float", bits)
    emitter.stage("scale", note="What a unit stands for: NaN beside Inf or NaN.")
    there = b("le", LEAST, top)
    finite = b("lt", bits, _INFINITY)
    scale = b("select", there, b("div", top, TOP), 0.0)
    scale = b("float", b("select", finite, b("bits", scale), _NAN))
    _put_one(emitter, scale, Address("scales", ZERO))
    emitter.stage("units", note="How many units 1 is.")
    units = b("select", there, b("div", TOP, top), 0.0)
    kept = emitter.register(scale)
    total = _rounded(q, emitter, existing, emitter.register(units))
    if q.summed:
        _put_sums(q, emitter, _folded(emitter, total, "add"), emitter.take(kept))
    yield from emitter.emit()
    yield from (Advance(_NAMES[name], ONE) for name in q.made if name != "a")


def _put_sums(q: Quantization, emitter: Emitter, total: Lanes, scale: Lanes) -> None:
    """What B's zero points need of the sum of a block's elements."""
    b = emitter.builder
    if q.bias:
        emitter.stage("start", note="What B's zero point takes from the sums of this block.")
        _put_one(emitter, b("mul", total, -q.bias), Address("starts", ZERO))
    if q.zeros:
        emitter.stage("sum", note="The sum of this block's elements, for B's zero points.")
        real = b("to_f32", total)
        kept = b("mul", real, scale) if q.minima else b("neg", real)
        _put_one(emitter, kept, Address("totals", ZERO))


def _greatest(q: Quantization, emitter: Emitter, existing: int) -> Register:
    """The greatest magnitude of each lane's elements, as its bits: a NaN is above all."""
    top, pointer = emitter.fresh("tops", "s32"), f"{emitter.prefix}px"
    emitter.stage("greatest", note="The greatest magnitude of a block, as its bits.")
    emitter.add(Zero(top), Point(pointer, "x", ZERO, q.source.type))
    for number, piece in enumerate(_pieces(existing, emitter.lanes)):
        inner = Emitter(q.target, emitter.lanes, f"{emitter.prefix}part{number}_", "f32")
        inner.stage("magnitude")
        b = inner.builder
        magnitudes = [b("bits", b("abs", x)) for x in piece.elements(q, inner, pointer)]
        most = inner.register(reduce(partial(b, "max"), magnitudes))
        ops = (*inner.emit(), Apply(top, "max", (top, most), top.vector))
        emitter.add(*piece.repeated(ops, pointer))
    return top


def _rounded(q: Quantization, emitter: Emitter, existing: int, units: Register) -> Register:
    """The elements stored, and the sum of those of each lane; what fills up the block are zeros."""
    total, stored = emitter.fresh("added", "s32"), q.made["a"].type
    emitter.stage("elements", note="Elements, rounded half to even.")
    emitter.add(*([Zero(total)] if q.summed else []))
    for number, piece in enumerate(_pieces(existing, emitter.lanes)):
        inner = Emitter(q.target, emitter.lanes, f"{emitter.prefix}part{number}_of_", "f32")
        inner.stage("elements")
        b, factor = inner.builder, inner.take(units)
        whole = []
        for place, x in enumerate(piece.elements(q, inner, "x")):
            whole.append(b("to_s32", b("min", b("max", b("mul", x, factor), -TOP), TOP)))
            inner.add(_stored(inner.register(whole[-1]), place * piece.lanes, stored))
        if q.summed:
            sums = inner.register(reduce(partial(b, "add"), whole))
            inner.add(Apply(total, "add", (total, sums), total.vector))
        emitter.add(*piece.repeated((*inner.emit(),), "x", "out"))
    missing = (q.block - existing) // emitter.lanes
    if missing:
        ops = (_stored(emitter.register(0), 0, stored), Advance("out", Integer(emitter.lanes)))
        emitter.add(Loop("kz", Integer(missing), ops, "zeros"))
    return total


def _stored(register: Register, at: int, type_: str) -> Store:
    """Lanes of s32 as elements of ``type_``, which holds their numbers."""
    group = 0 if type_ in register.vector.stores else 1
    return Store(Address("out", at * ONE), register, None, type_, group)


def _put_one(emitter: Emitter, value: Lanes, address: Address) -> None:
    """Store the first lane."""
    active = None if emitter.lanes == 1 else 1
    emitter.add(Store(address, emitter.register(value), active))


def _folded(emitter: Emitter, register: Register, fn: str) -> Lanes:
    """``fn`` of all lanes of an s32, in every lane: neighbours exchanged, then pairs of them."""
    lanes: Lanes = emitter.take(register)
    block = 1
    while block < emitter.lanes:
        register = emitter.register(lanes)
        even, odd = (emitter.fresh(f"{register.name}_{side}", "s32") for side in ("even", "odd"))
        emitter.add(Interleave(even, register, register, block, odd=False))
        emitter.add(Interleave(odd, register, register, block, odd=True))
        lanes = emitter.builder(fn, emitter.take(even), emitter.take(odd))
        block *= 2
    return lanes


def _folds(target: Target, vector: Vector) -> bool:
    """Whether lanes of s32 are exchanged in as many as ``vector`` has."""
    whole = next((v for v in target.of("s32") if v.lanes == vector.lanes), None)
    blocks = {1 << i for i in range(vector.lanes.bit_length() - 1)}
    return whole is not None and blocks <= set(whole.transpose)
