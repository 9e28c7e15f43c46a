"""Sum A's rows or B's columns over K; zero points multiply these sums.

A *line* is a row of A or a column of B.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sympy import Expr, Integer

from tilewright.elementwise.conversions import narrow, widen
from tilewright.ir.access import load, read
from tilewright.ir.dataflow import sizes_used
from tilewright.ir.emitter import Emitter
from tilewright.ir.nest import Argument, BlockLoop, Call, Name, NestNode
from tilewright.ir.nodes import walk
from tilewright.ir.ops import (
    Advance,
    Apply,
    Load,
    Loop,
    Op,
    Parameter,
    Point,
    Store,
    SumLanes,
    TileProgram,
    Zero,
)
from tilewright.ir.values import Active, Address, Register
from tilewright.isa.target import Target
from tilewright.lower.move import MoveNest
from tilewright.lower.vectors import known, over_vectors
from tilewright.plan.operands import Operand, whole_vectors
from tilewright.plan.routines.copy import filling
from tilewright.spec.types import ITEMSIZE, is_integer
from tilewright.symbolic import ONE, ZERO, div, mod, symbol, value

#: The number of vectors that one call sums.
VECTORS = 4
#: The elements of K that one call sums if adjacent lines are contiguous: hardware prefetchers
#: follow about as many rows.
DOWN = 16
Nodes = tuple[NestNode, ...]


@dataclass(frozen=True, slots=True)
class LineSums:
    """The lines to sum (``line`` is their dimension), and the buffer for their sums.

    Sums of integers are s32, others f32. If the operand was packed together with its sums,
    ``stored`` is the element of ``source`` at which they begin.
    """

    target: Target
    source: Operand
    line: str
    buffer: Name
    lanes: int
    slots: tuple[str, ...]
    prefix: str
    stored: Expr | None = None

    @property
    def element(self) -> str:
        """The type of the sums."""
        return "s32" if is_integer(self.source.type) else "f32"

    def vector(self, index: int, name: str, lanes: int | None = None) -> Register:
        """Return a register of ``lanes`` sums."""
        return Register(f"{name}{index}", self.target.holding(self.element, lanes or self.lanes))

    def read(self, dst: Register, address: Address, active: Active = None) -> Iterator[Op]:
        """Load elements for the sums, rounded like those that are multiplied."""
        kind = self.source.rounded
        if not kind:
            yield from read(self.target, dst, address, active, self.source.type)
            return
        emitter = Emitter(self.target, dst.vector.lanes, f"{dst.name}_given_", self.element)
        found = load(emitter, address, active, self.source.type, "x")
        widen(emitter.builder, narrow(emitter.builder, found, kind), kind)
        *ops, last = emitter.emit()
        assert isinstance(last, Apply)
        yield from (*ops, replace(last, dst=dst))


def sums_nest(
    sums: LineSums, extent: Expr, depth: Expr
) -> tuple[Nodes, Nodes, dict[str, TileProgram]]:
    """Return the nodes that set all sums to 0, those that add one matrix to them, and the tiles."""
    move = filling(sums.target, sums.buffer, sums.element, sums.slots)
    nest = MoveNest(move, prefix=sums.prefix)
    zeros = tuple(nest.fill(nest.out(ZERO), whole_vectors(extent, sums.lanes)))
    tiles = nest.tiles
    if sums.stored is not None:
        add = _from_stored(sums, extent, tiles)
    elif value(sums.source.strides[sums.line]) == 1:
        add = _down(sums, extent, depth, tiles)
    else:
        add = _over(sums, extent, depth, tiles)
    return zeros, tuple(add), tiles


def _called(
    sums: LineSums,
    tiles: dict[str, TileProgram],
    program: TileProgram,
    at: Expr,
    *given: Argument,
) -> Call:
    """Return a call of ``program``, which updates the sums from line ``at`` on."""
    tiles[program.name] = program
    return Call(program.name, (*given, Argument(sums.buffer, at)))


def _from_stored(sums: LineSums, extent: Expr, tiles: dict[str, TileProgram]) -> Iterator[NestNode]:
    """Yield nodes that read the sums stored after a packed matrix, in whole vectors."""
    stored, each = sums.stored, 4 // ITEMSIZE[sums.source.type]
    assert stored is not None

    def called(first: Expr, vectors: int, tail: Expr | None) -> Call:
        ops: list[Op] = []
        for index in range(vectors):
            at = index * sums.lanes * ONE
            acc = sums.vector(index, "s")
            ops += [Load(acc, Address("x", at)), *_update(acc, at)]
        program = _program(sums, f"stored_{vectors}", tuple(ops), "s32")
        place = Argument(sums.source.buffer, stored + each * first, cast=True)
        return _called(sums, tiles, program, first, place)

    yield from over_vectors(whole_vectors(extent, sums.lanes), sums.lanes, VECTORS, called)


def _down(
    sums: LineSums, extent: Expr, depth: Expr, tiles: dict[str, TileProgram]
) -> Iterator[NestNode]:
    """Yield the sums of contiguous adjacent lines: a vector of lines at a time, over a part of K.

    A part of K is summed for all lines before the next part, so that memory is read in order.
    """
    if (value(depth) or 3 * DOWN) <= 2 * DOWN:
        yield from _stripe(sums, extent, (ZERO, depth), "", tiles)
        return
    whole, left = div(depth, DOWN), mod(depth, DOWN)
    first = DOWN * symbol("kp")
    body = tuple(_stripe(sums, extent, (first, Integer(DOWN)), "", tiles))
    yield BlockLoop("kp", whole, body)
    if left != 0:
        yield from _stripe(sums, extent, (DOWN * whole, left), "_left", tiles)


def _stripe(
    sums: LineSums,
    extent: Expr,
    part: tuple[Expr, Expr],
    suffix: str,
    tiles: dict[str, TileProgram],
) -> Iterator[NestNode]:
    """Yield nodes that add a part of K (first element, number) to the sums of all lines."""
    first, depth = part
    above = first * sums.source.strides["k"]

    def called(at: Expr, vectors: int, tail: Expr | None) -> Call:
        ops = tuple(_down_tile(sums, vectors, tail, depth))
        name = f"down_{vectors if tail is None else 'tail'}{suffix}"
        program = _program(sums, name, ops, sums.source.type)
        return _called(sums, tiles, program, at, Argument(sums.source.buffer, above + at))

    yield from over_vectors(extent, sums.lanes, VECTORS, called)


def _down_tile(sums: LineSums, vectors: int, tail: Expr | None, depth: Expr) -> Iterator[Op]:
    accumulators = [sums.vector(index, "s") for index in range(vectors)]
    active = known(tail)
    yield from (Zero(acc) for acc in accumulators)
    yield Point("px", "x", ZERO, sums.source.type)
    body: list[Op] = []
    for index, acc in enumerate(accumulators):
        element = sums.vector(index, "x")
        address = Address("px", index * sums.lanes * ONE)
        body += [*sums.read(element, address, active), Apply(acc, "add", (acc, element))]
    yield Loop("kt", depth, (*body, Advance("px", sums.source.strides["k"])))
    for index, acc in enumerate(accumulators):
        yield from _update(acc, index * sums.lanes * ONE)


def _over(
    sums: LineSums, extent: Expr, depth: Expr, tiles: dict[str, TileProgram]
) -> Iterator[NestNode]:
    """Yield the sums of lines along K: one line after another, a vector of elements at a time."""
    program = _program(sums, "over", tuple(_over_tile(sums, depth)), sums.source.type)
    tiles[program.name] = program
    line = symbol("lp")
    at = Argument(sums.source.buffer, line * sums.source.strides[sums.line])
    yield BlockLoop("lp", extent, (Call(program.name, (at, Argument(sums.buffer, line))),))


def _over_tile(sums: LineSums, depth: Expr) -> Iterator[Op]:
    acc, element, last = (sums.vector(0, name) for name in ("s", "x", "r"))
    type_, step = sums.source.type, sums.source.strides["k"]
    lanes = sums.lanes if value(step) == 1 else 1
    if lanes == 1:
        acc, element = (sums.vector(0, name, 1) for name in ("s", "x"))
    yield Zero(acc)
    yield Point("px", "x", ZERO, type_)
    body = (*sums.read(element, Address("px", ZERO)), Apply(acc, "add", (acc, element)))
    whole, tail = div(depth, lanes), mod(depth, lanes)
    if whole != 0:
        yield Loop("kt", whole, (*body, Advance("px", lanes * step)))
    if tail != 0:
        yield from (
            *sums.read(last, Address("px", ZERO), known(tail)),
            Apply(acc, "add", (acc, last)),
        )
    total = acc
    if lanes > 1:
        total = sums.vector(0, "total", 1)
        yield SumLanes(total, acc)
    yield from _update(total, ZERO)


def _update(acc: Register, at: Expr) -> Iterator[Op]:
    """Add a register to the sums in the buffer, which holds whole vectors."""
    old = Register(f"old_{acc.name}", acc.vector)
    yield from (
        Load(old, Address("out", at)),
        Apply(acc, "add", (acc, old)),
        Store(Address("out", at), acc),
    )


def _program(sums: LineSums, name: str, ops: tuple[Op, ...], source: str) -> TileProgram:
    used = sizes_used(walk(ops), sums.slots)
    return TileProgram(
        name=sums.prefix + name,
        element=sums.element,
        parameters=(
            Parameter("x", "in", source),
            Parameter("out", "out", sums.element),
            *(Parameter(slot, "size") for slot in used),
        ),
        body=ops,
        end=(),
        summary="sums of lines",
    )
