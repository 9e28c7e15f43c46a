"""The end of a register tile: store its sums to C, which is contiguous along or across the
vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from sympy import Expr

from tilewright.elementwise.operations import MASKS
from tilewright.ir.access import read
from tilewright.ir.dataflow import pointers_used, prune
from tilewright.ir.interleaving import transpose
from tilewright.ir.nodes import walk
from tilewright.ir.ops import (
    Advance,
    Apply,
    Load,
    Loop,
    MakeMask,
    MultiplyAdd,
    Note,
    Op,
    Point,
    Splat,
    StackBuffer,
    Store,
    Zero,
)
from tilewright.ir.values import Active, Address, MaskRegister, Register
from tilewright.isa.vector import Vector
from tilewright.spec.scalars import Factor
from tilewright.spec.types import is_integer
from tilewright.symbolic import ONE, ZERO, Least, value

from .epilogue import Output, Reads, finished
from .tile import Tile, add_sets


def store_along(tile: Tile) -> Iterator[Op]:
    """Store sums if C is contiguous along the vectors."""
    shape, line = tile.shape, tile.here.problem.along
    vectors = tuple((tile.position(i), tile.active(i)) for i in range(shape.vectors))
    places = [(row, column) for row in range(shape.rows) for column in range(shape.vectors)]
    stack, lines = _lines(tile, line, shape.rows, vectors)
    if lines.long:
        if stack is not None:
            yield Note("The sums go to the stack, from where a loop takes them line by line.")
            yield stack.buffer()
            yield from (stack.put(*place, tile.accumulator(*place)) for place in places)
            yield stack.begin()
        yield lines.loop()
        return
    outputs = []
    for row, column in places:
        place, active = vectors[column]
        outputs.append(Output.of(tile.accumulator(row, column), line, place, row, active))
        yield from from_sums(tile, outputs[-1])
    yield from write(tile, outputs)


def store_across(tile: Tile) -> Iterator[Op]:
    """Store sums if C is contiguous across the vectors: square blocks are transposed first."""
    plan, shape, lanes = tile.plan, tile.shape, tile.vector.lanes
    if lanes == 1:
        yield from _store_scalars(tile)
        return
    starts = range(0, shape.rows, lanes)
    actives = [_rows_active(tile, min(lanes, shape.rows - start)) for start in starts]
    yield from actives[-1][1]
    vectors = tuple((start, active) for start, (active, _) in zip(starts, actives, strict=True))
    count = tile.position(shape.vectors - 1) + _existing(tile, shape.vectors - 1)
    stack, lines = _lines(tile, plan.problem.across, count, vectors)
    if lines.long:
        if stack is not None:
            yield Note("The sums go to the stack, transposed; a loop takes them from there.")
            yield stack.buffer()
            for band, place, steps, result in _blocks(tile):
                yield from steps
                yield from (stack.put(place + i, band, r) for i, r in enumerate(result))
            yield stack.begin()
        yield lines.loop()
        return
    for band, place, steps, result in _blocks(tile):
        start, active = vectors[band]
        if steps:
            yield Note("Transpose a block of sums: what C is contiguous along becomes vectors.")
        yield from steps
        outputs = [Output.of(r, plan.problem.across, start, place + i, active)
                   for i, r in enumerate(result)]  # fmt: skip
        for output in outputs:
            yield from from_sums(tile, output)
        yield from write(tile, outputs)


def _lines(
    tile: Tile, line: str, count: int, vectors: tuple[tuple[int, Active], ...]
) -> tuple[Stack | None, Lines]:
    """Return the lines of a tile's sums, and the stack buffer for them unless they are in
    memory.
    """
    if tile.phase == "finish":
        return None, Lines(tile, line, vectors, count * ONE)
    stack = Stack(tile, count, len(vectors))
    return stack, Lines(tile, line, vectors, count * ONE, stack.sums)


def _blocks(tile: Tile) -> Iterator[tuple[int, int, list[Op], list[Register]]]:
    """Yield each square block: first row and column, the transposition, and its results.

    If the sums are in memory there is no transposition. The results are then the registers to load
    lines into.
    """
    shape, lanes = tile.shape, tile.vector.lanes
    for band, start in enumerate(range(0, shape.rows, lanes)):
        for column in range(shape.vectors):
            rows = range(start, min(start + lanes, shape.rows))
            block = [tile.accumulator(row, column) for row in rows]
            steps, result = transpose(tile.plan.target, block, lanes, f"t{column}_{start}_")
            result = result[: _existing(tile, column)]
            if tile.phase == "finish":
                steps = []
                result = [replace(r, name=f"sum_{r.name}_{i}") for i, r in enumerate(result)]
            yield band, tile.position(column), prune(steps, result), result


def _existing(tile: Tile, column: int) -> int:
    """Return the number of lanes of vector ``column`` that are elements of C."""
    if tile.chosen.active is None or column < tile.shape.vectors - 1:
        return tile.vector.lanes
    known = value(tile.chosen.active)
    assert known is not None, "a run-time tail along the vectors is cut narrower before"
    return known


def _rows_active(tile: Tile, rows: int) -> tuple[Active, list[Op]]:
    if rows == tile.vector.lanes:
        return None, []
    if tile.vector.mask is None:
        return rows, []
    mask = MaskRegister("mask_across", tile.vector, rows * ONE)
    return mask, [MakeMask(mask)]


def _store_scalars(tile: Tile) -> Iterator[Op]:
    outputs = []
    for row in range(tile.shape.rows):
        for column in range(tile.shape.vectors):
            acc = tile.accumulator(row, column)
            outputs.append(Output.of(acc, tile.here.problem.across, row, column, None))
            yield from from_sums(tile, outputs[-1])
    yield from write(tile, outputs)


def factors(tile: Tile) -> Iterator[Op]:
    """Put alpha and beta into registers unless they are 1 or 0, and compare a run-time
    beta with 0.
    """
    spec = tile.plan.spec
    if tile.finishes:
        return
    alpha = "alpha" if spec.alpha == "scalar" else spec.alpha
    beta = "beta" if spec.beta == "scalar" else spec.beta
    for vector in _updated(tile):
        if alpha != 1:
            yield Splat(_factor(tile, "alpha", vector), alpha)
        if not tile.accumulate and beta not in (0, 1):
            yield Splat(_factor(tile, "beta", vector), beta)
            if _may_leave_out(tile):
                yield from _compared(tile, vector)


def _updated(tile: Tile) -> Iterator[Vector]:
    """Yield the vector types in which C is updated: whole vectors, and single elements for
    tails.
    """
    plan, shape = tile.plan, tile.shape
    single = plan.target.of(plan.staging.element)[-1]
    if plan.problem.dot:
        yield single if tile.sum_along is None else tile.vector
        return
    if not plan.problem.bounces:
        yield tile.vector
        return
    if plan.staging.transposed:
        whole, tail = divmod(shape.rows, tile.vector.lanes)
    else:
        tail = int(tile.chosen.active is not None)
        whole = shape.vectors - tail
    yield from (tile.vector,) if whole else ()
    yield from (single,) if tail else ()


def _factor(tile: Tile, name: str, vector: Vector) -> Register:
    single = tile.here.problem.bounces and vector.lanes < tile.vector.lanes
    return Register(f"{name}_s" if single else f"{name}_v", vector)


def _may_leave_out(tile: Tile) -> bool:
    """True if beta may be 0 at the call. C's NaN and infinities must then not reach the result."""
    return tile.plan.spec.beta == "scalar" and not is_integer(tile.here.element)


def _compared(tile: Tile, vector: Vector) -> Iterator[Op]:
    """Fill a register with ones if beta is 0."""
    beta, zero = _factor(tile, "beta", vector), _factor(tile, "zero", vector)
    yield Zero(zero)
    yield Apply(_leaves_out(tile, vector), "eq", (beta, zero))


def _leaves_out(tile: Tile, vector: Vector) -> Register:
    mask = MASKS[vector.element]
    held = vector if mask == "m64" else tile.plan.target.holding(mask, vector.lanes)
    return Register(_factor(tile, "no_c", vector).name, held)


def write(tile: Tile, outputs: Sequence[Output]) -> Iterator[Op]:
    """Emit ``C = alpha * acc + beta * C``: read all vectors of C before the first is written.

    A masked store cannot be forwarded to a load that overlaps its full width. Rows of a narrow C
    overlap in this way, so each row's load would wait for the previous row's store. Single elements
    do not overlap. They can be hundreds, so each is written before the next is read.
    """
    reads: Reads = {}
    summed = tile.operands["sums"].type
    if tile.here.narrow and (tile.finishes if tile.phase != "sum" else summed != tile.here.element):
        wide = Widened(tile)
        yield from wide.taken(outputs)
        outputs, reads = list(wide.reads), wide.reads
    if tile.phase == "sum":
        yield from _add_to_sums(tile, outputs, reads)
        return
    if tile.finishes:
        yield from finished(tile, outputs, reads)
        return
    spec = tile.plan.spec
    yield Note(update_said(spec.alpha, 1 if tile.accumulate else spec.beta))
    tails: list[Output] = []
    if tile.here.problem.bounces:
        tails = [output for output in outputs if output.active is not None]
        outputs = [output for output in outputs if output.active is None]
    stores = []
    for output in outputs:
        yield from updated(tile, output)
        stores.append(_stored(tile, output))
    yield from stores
    yield from _bounced(tile, tails) if tails else ()


def update_said(alpha: Factor, beta: Factor) -> str:
    """Return the sentence for the generated C that says how C is computed from the sums."""
    times = "" if alpha == 1 else " times alpha"
    plus = "" if beta == 0 else ", plus C" if beta == 1 else ", plus C times beta"
    return f"Store the sums{times}{plus}."


def _stored(tile: Tile, output: Output) -> Op:
    return Store(output.at(tile.written), output.acc, output.active)


def _add_to_sums(tile: Tile, outputs: Sequence[Output], reads: Reads) -> Iterator[Op]:
    """Add registers to the partial sums in memory, or store the first partial sums."""
    adds = tile.accumulate and not tile.resumes
    does = "Add to" if adds else "Store" if tile.accumulate else "Begin"
    yield Note(f"{does} the partial sums.")
    for output in outputs:
        yield from reads.get(output, ())
        acc, address = output.acc, output.at(tile.written)
        if adds:
            old = Register(f"old_{acc.name}", acc.vector)
            yield Load(old, address, output.active)
            total = Register(f"sum_{acc.name}", acc.vector) if output in reads else acc
            yield Apply(total, "add", (acc, old), begins=True)
            acc = total
        yield Store(address, acc, output.active)


def from_sums(tile: Tile, output: Output) -> Iterator[Op]:
    """Load an output's sums from the buffer of partial sums, if they are complete there.

    Only active lanes are loaded, because the last row may be at the end of the buffer.
    """
    if tile.phase == "finish" and tile.operands["sums"].type == tile.here.element:
        yield Load(output.acc, output.at(tile.operands["sums"]), output.active)


class Widened:
    """Sums of a small type, converted to the larger type of the epilogue's arithmetic.

    One register becomes several wider ones, through the stack or from the buffer of partial sums.
    ``reads`` has the new registers, each with the operations that load it.
    """

    def __init__(self, tile: Tile) -> None:
        self.tile, self.reads = tile, dict[Output, tuple[Op, ...]]()
        sums = tile.operands["sums"]
        self._stored = tile.phase == "finish" and sums.type != tile.here.element

    def taken(self, narrow: Sequence[Output]) -> Iterator[Op]:
        """Store ``narrow`` to the stack, from where ``reads`` loads it."""
        plan = self.tile.plan
        elements = sum(output.acc.vector.lanes for output in narrow)
        buffer = StackBuffer(f"narrow_{narrow[0].acc.name}", plan.staging.element, elements)
        if not self._stored:
            yield Note(f"The sums become {plan.spec.type} by way of the stack.")
            yield buffer
        first = 0
        for output in narrow:
            place = Address(buffer.name, first * ONE)
            if not self._stored:
                yield Store(place, output.acc)
            self.reads |= self._parts(output, place)
            first += output.acc.vector.lanes

    def _parts(self, output: Output, place: Address) -> Iterator[tuple[Output, tuple[Op, ...]]]:
        """Yield the wide registers of one narrow register, with the operations that load them."""
        plan, lanes = self.tile.plan, output.acc.vector.lanes
        held = min(lanes, plan.target.of(plan.spec.type)[0].lanes)
        vector = plan.target.holding(plan.spec.type, held)
        for first in range(0, lanes, held):
            name = f"{output.acc.name}_{plan.spec.type}" + (f"_{first}" if first else "")
            active, mask = _part(output.active, first, vector)
            if active == 0:
                return
            part = replace(output.lane(first, Register(name, vector)), active=active)
            there = replace(place, offset=place.offset + first)
            loads = read(plan.target, part.acc, there, None, plan.staging.element)
            if self._stored:
                loads = iter([Load(part.acc, part.at(self.tile.operands["sums"]), active)])
            yield part, (*mask, *loads)


def _part(active: Active, first: int, vector: Vector) -> tuple[Active, list[Op]]:
    """Return the active lanes of ``vector``, which begins at lane ``first``, and their mask."""
    if active is None:
        return None, []
    count = active.active if isinstance(active, MaskRegister) else active * ONE
    known = value(count)
    if known is not None and not 0 < known - first < vector.lanes:
        return (None if known > first else 0), []
    left = count - first
    if known is None:
        rest = count - Least(count, first * ONE) if first else count
        left = Least(rest, vector.lanes * ONE)
    if vector.mask is None:
        return int(left), []
    name = active.name if isinstance(active, MaskRegister) else f"mask_{active}"
    mask = MaskRegister(f"{name}_{vector.element}_{vector.lanes}_{first}", vector, left)
    return mask, [MakeMask(mask)]


def _bounced(tile: Tile, tails: Sequence[Output]) -> Iterator[Op]:
    """Store partial vectors element by element, loaded from a stack buffer that holds them
    whole.
    """
    single, lanes = tile.plan.target.of(tile.here.element)[-1], tile.vector.lanes
    buffer = StackBuffer(f"bounce_{tails[0].acc.name}", tile.here.element, len(tails) * lanes)
    yield Note("What lies partly behind C's edge goes by way of the stack.")
    yield buffer
    for index, output in enumerate(tails):
        yield Store(Address(buffer.name, index * lanes * ONE), output.acc)
    for index, output in enumerate(tails):
        assert isinstance(output.active, int)
        for lane in range(output.active):
            element = output.lane(lane, Register(f"{output.acc.name}_lane{lane}", single))
            yield Load(element.acc, Address(buffer.name, (index * lanes + lane) * ONE))
            yield from updated(tile, element)
            yield _stored(tile, element)


def updated(tile: Tile, output: Output) -> Iterator[Op]:
    """Compute one register of C. A later partial sum is added without alpha and beta."""
    spec, acc, vector = tile.plan.spec, output.acc, output.acc.vector
    if spec.alpha != 1:
        yield Apply(acc, "mul", (acc, _factor(tile, "alpha", vector)))
    if not tile.accumulate and spec.beta == 0:
        return
    old = Register(f"old_{acc.name}", vector)
    yield Load(old, output.at(tile.written), output.active)
    if tile.accumulate or spec.beta == 1:
        yield Apply(acc, "add", (acc, old))
        return
    if _may_leave_out(tile):  # if beta is 0, use 0 in place of C
        read, old = old, Register(f"kept_{acc.name}", vector)
        beta = _factor(tile, "beta", vector)
        yield Apply(old, "select", (_leaves_out(tile, vector), beta, read))
    yield MultiplyAdd(vector.fma, acc, old, _factor(tile, "beta", vector))


#: The most operations in straight code, about 4 KiB. More of them evict the K loops from the
#: instruction cache and take seconds to compile.
LONG = 512


#: The name of the loop counter over lines.
LINE = "row"


class Source(Protocol):
    """A place from which lines of sums are loaded. ``pointer`` is its pointer, or "" for
    registers.
    """

    @property
    def pointer(self) -> str:
        """The name of the pointer to the sums."""

    def advance(self) -> Iterator[Op]:
        """Move from one line to the next."""

    def line(self, dst: Register, index: int, active: Active = None) -> Iterator[Op]:
        """Load vector ``index`` of the current line."""


@dataclass(frozen=True)
class Sums:
    """Sums at ``pointer``: a line's vectors are adjacent, and lines are ``step`` elements apart.

    If K was split, there are ``sets`` copies at distances of ``apart`` elements.
    """

    pointer: str
    step: Expr
    sets: int = 1
    apart: Expr = ZERO

    def advance(self) -> Iterator[Op]:
        """Move the pointer to the next line."""
        yield Advance(self.pointer, self.step)

    def line(self, dst: Register, index: int, active: Active = None) -> Iterator[Op]:
        """Load vector ``index`` of the current line."""
        return self.read(dst, index * dst.vector.lanes * ONE, active)

    def read(self, dst: Register, offset: Expr, active: Active = None) -> Iterator[Op]:
        """Load a vector of the sums, and add those of all sets."""
        others = (Register(f"{dst.name}_s{index}", dst.vector) for index in range(1, self.sets))
        parts = [dst, *others]
        for index, part in enumerate(parts):
            yield Load(part, Address(self.pointer, offset + index * self.apart), active)
        yield from add_sets([parts])


def length(ops: Sequence[Op]) -> int:
    """Return the number of operations that become instructions; equal constants count once."""
    literals = {
        (repr(op.source), op.dst.vector)
        for op in ops
        if isinstance(op, Splat) and isinstance(op.source, (int, float))
    }
    others = sum(
        not isinstance(op, Note)
        and not (isinstance(op, Splat) and isinstance(op.source, (int, float)))
        for op in ops
    )
    return others + len(literals)


@dataclass(frozen=True)
class Lines:
    """``trips`` lines of sums, to be stored along dimension ``line`` of C.

    ``vectors`` has the first element and the active lanes of each vector of a line. Without
    ``sums`` the lines are in the buffer of partial sums, in C's layout, and only active lanes are
    read.
    """

    tile: Tile
    line: str
    vectors: tuple[tuple[int, Active], ...]
    trips: Expr
    sums: Source | None = None

    @property
    def other(self) -> str:
        """The dimension in which one line follows another."""
        return "n" if self.line == "m" else "m"

    @property
    def long(self) -> bool:
        """True if straight code for all lines would exceed ``LONG`` operations."""
        tile = self.tile
        if tile.phase == "sum" or not tile.finishes or self.trips == 1:
            return False
        return bool(length(self._body) * self.trips > LONG)

    def loop(self) -> Op:
        """Return the loop that stores one line in each trip."""
        return Loop(LINE, self.trips, (*self._body, *self._advance()))

    @cached_property
    def _body(self) -> tuple[Op, ...]:
        """The operations of one line."""
        tile, outputs, loads = self.tile, list[Output](), list[Op]()
        operands = tile.operands
        for index, (place, active) in enumerate(self.vectors):
            output = Output.of(Register(f"r{index}", tile.vector), self.line, place, 0, active)
            outputs.append(output)
            if self.sums is None:
                there = output.at(tile.operands["sums"])
                loads.append(Load(output.acc, there, active))
            else:
                # In the buffer of partial sums, a line may have no space after the tile.
                part = active if self.sums.pointer in operands else None
                loads += self.sums.line(output.acc, index, part)
        return (*loads, *write(tile, outputs))

    def _advance(self) -> Iterator[Op]:
        """Move all pointers from one line to the next."""
        used = pointers_used(walk(self._body))
        operands = self.tile.operands
        if self.sums is not None and self.sums.pointer not in operands:
            yield from self.sums.advance()
        for operand in operands.values():
            step = operand.strides.get(self.other, ZERO)
            if operand.name in used and step != 0:
                yield Advance(operand.name, step)


@dataclass(frozen=True)
class Stack:
    """A stack buffer for ``lines`` lines of sums, each of ``vectors`` vectors, and a
    pointer to it.
    """

    tile: Tile
    lines: int
    vectors: int
    name: str = "sums_room"
    pointer: str = "rows"

    @property
    def step(self) -> int:
        """The distance of two lines, in elements."""
        return self.vectors * self.tile.vector.lanes

    def buffer(self, *, zeros: bool = False) -> Op:
        """Declare the buffer."""
        return StackBuffer(self.name, self.tile.here.element, self.lines * self.step, zeros)

    def put(self, line: int, vector: int, register: Register) -> Op:
        """Store a register as one vector of a line."""
        offset = line * self.step + vector * self.tile.vector.lanes
        return Store(Address(self.name, offset * ONE), register)

    def begin(self) -> Op:
        """Point to the first line."""
        return Point(self.pointer, self.name, ZERO, self.tile.here.element)

    @property
    def sums(self) -> Sums:
        """The sums in the buffer."""
        return Sums(self.pointer, self.step * ONE)
