"""A made integers before the loops: each block of a row divided by its scale, and rounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sympy import Expr, Integer

from tilewright.elementwise.builder import Argument as Lanes
from tilewright.ir.access import load
from tilewright.ir.dataflow import pointers_used, sizes_used
from tilewright.ir.emitter import Emitter
from tilewright.ir.nest import Argument, BlockLoop, Call, NestNode
from tilewright.ir.nodes import walk
from tilewright.ir.ops import (
    Active,
    Address,
    Advance,
    Interleave,
    Loop,
    Op,
    Parameter,
    Store,
    TileProgram,
)
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
_NAMES = {"a": "out", "a_scales": "scales", "a_starts": "starts"}


@dataclass(frozen=True, slots=True)
class Quantization:
    """``source``, rows of ``k`` elements of floating point, as ``made``: elements, scales, starts.

    Each block's sum begins at ``-bias`` times the sum of its elements, where B's have such a bias.
    """

    target: Target
    source: Operand
    made: dict[str, Operand]
    k: int
    block: int
    bias: int
    slots: tuple[str, ...]

    @property
    def vector(self) -> Vector:
        """The widest vector of f32 that a block is whole ones of, and that exchanges its lanes."""
        every = self.target.of("f32")
        return next(
            v for v in every if self.block % v.lanes == 0 and (v.lanes == 1 or _folds(self.target, v))
        )


def quantization_of(plan: Plan) -> Quantization:
    """How A is made integers."""
    form = plan.quantized
    assert plan.spec.quantized is not None
    return Quantization(
        target=plan.target,
        source=plan.sources["a"],
        made={name: plan.operands[name] for name in _NAMES if name in plan.operands},
        k=form.k,
        block=form.block,
        bias=form.bias(plan.spec.quantized.zero),
        slots=tuple(slot for slot, _ in plan.spec.runtime_sizes()),
    )


def quantize_rows(
    q: Quantization, rows: Expr, matrix: Expr
) -> tuple[tuple[NestNode, ...], TileProgram]:
    """The nodes that quantize all rows of a matrix, number ``matrix`` of its batch, and the tile."""
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


def _row(q: Quantization) -> Iterator[Op]:
    """Whole blocks in a loop, then the one that is not whole, filled up with zeros."""
    whole, tail = divmod(q.k, q.block)
    steps = {"x": q.block, "out": q.block, "scales": 1, "starts": 1}
    pointers = [("x", q.source.type), *((_NAMES[name], made.type) for name, made in q.made.items())]
    if whole:
        body = tuple(_block(q, q.block))
        moves = tuple(Advance(name, Integer(steps[name])) for name, _ in pointers)
        yield Loop("kt", Integer(whole), (*body, *moves))
    if tail:
        yield from _block(q, tail)


def _block(q: Quantization, existing: int) -> Iterator[Op]:
    """A block, of which so many elements exist: its scale, its elements, their sum."""
    vector = q.vector
    emitter = Emitter(q.target, vector.lanes, f"q{existing}_", "f32")
    b = emitter.builder
    elements = list(_elements(q, emitter, existing))
    emitter.stage("top", note="The greatest magnitude, as its bits: a NaN is above all.")
    bits: Lanes = 0
    for place, element in enumerate(elements):
        magnitude = b("bits", b("abs", element))
        bits = b("max", bits, magnitude) if place else magnitude
    bits = _folded(emitter, bits, "max")
    top = b("float", bits)
    emitter.stage("scale", note="What a unit stands for, and how many of them 1 is.")
    there = b("le", LEAST, top)
    scale = b("select", there, b("div", top, TOP), 0.0)
    finite = b("lt", bits, _INFINITY)
    scale = b("float", b("select", finite, b("bits", scale), _NAN))
    units = b("select", there, b("div", TOP, top), 0.0)
    _put_one(emitter, scale, Address("scales", ZERO))
    emitter.stage("element", note="Elements, rounded half to even.")
    total: Lanes = 0
    for place in range(q.block // vector.lanes):
        whole: Lanes = 0
        if place < len(elements):
            limited = b("min", b("max", b("mul", elements[place], units), -TOP), TOP)
            whole = b("to_s32", limited)
            total = b("add", total, whole) if place else whole
        register, stored = emitter.register(whole), q.made["a"].type
        group = 0 if stored in register.vector.stores else 1
        emitter.add(Store(Address("out", place * vector.lanes * ONE), register, None, stored, group))
    if q.bias:
        emitter.stage("start", note="What B's zero point takes from the sums of the block.")
        start = b("mul", _folded(emitter, total, "add"), -q.bias)
        _put_one(emitter, start, Address("starts", ZERO))
    yield from emitter.emit()


def _elements(q: Quantization, emitter: Emitter, existing: int) -> Iterator[Lanes]:
    """The elements of a block that exist, in vectors."""
    for first in range(0, existing, emitter.lanes):
        active: Active = min(emitter.lanes, existing - first)
        active = None if active == emitter.lanes else active
        address = Address("x", first * ONE)
        yield load(emitter, address, active, q.source.type, f"x{first}")


def _put_one(emitter: Emitter, value: Lanes, address: Address) -> None:
    """Store the first lane."""
    active = None if emitter.lanes == 1 else 1
    emitter.add(Store(address, emitter.register(value), active))


def _folded(emitter: Emitter, lanes: Lanes, fn: str) -> Lanes:
    """``fn`` of all lanes of an s32, in every lane: halves exchanged, pairs first."""
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
