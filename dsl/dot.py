"""Tiles whose vectors lie along K: products summed lane by lane, the lanes added at the end."""

from __future__ import annotations

from collections.abc import Iterator

from sympy import Integer

from .feed import Operand
from .finish import Output
from .lower import PointerPlan, Tile, advance, multiplied, pointer_plans
from .program import (
    Active,
    Add,
    Interleave,
    Load,
    Loop,
    MakeMask,
    MaskRegister,
    Op,
    Register,
    SumLanes,
    Zero,
)
from .symbolic import div, mod, value
from .update import from_sums, write


def dot_loops(tile: Tile) -> tuple[list[PointerPlan], tuple[Op, ...]]:
    """The K loops, a vector of K at a time, and the pointers they walk."""
    shape, lanes = tile.region.shape, tile.vector.lanes
    body = _DotBody(tile)
    whole, tail = div(tile.steps, lanes), mod(tile.steps, lanes)
    count = max(1, -(-tile.unroll // lanes)) if tile.plan.schedule.k_unroll else _unroll(tile)
    count = -(-count // shape.k_split) * shape.k_split
    trips, rest = div(whole, count), mod(whole, count)
    ops: list[Op] = []
    straight = value(whole)
    if straight is not None and straight < 2 * count:
        ops += body.steps(straight, None) if straight else ()
    else:
        ops.append(Loop("kt", trips, body.steps(count, None)))
        if (known := value(rest)) is None:
            ops.append(Loop("kt", rest, body.steps(1, None), "K vectors left"))
        elif known:
            ops += body.steps(known, None)
    ops += body.tail(tail)
    return body.pointers, tuple(ops)


def _unroll(tile: Tile) -> int:
    work = tile.region.shape.multiply_adds
    return max(1, -(-2 * tile.plan.target.core.fma_latency // work))


class _DotBody:
    """Emits steps of one vector of K each."""

    def __init__(self, tile: Tile) -> None:
        self.tile, self.shape = tile, tile.region.shape
        self.along = pointer_plans(tile.along, tile.plan.along, self.shape.vectors)
        self.across = pointer_plans(tile.across, tile.plan.across, self.shape.rows)
        self.pointers = self.along + self.across

    def steps(self, count: int, active: Active) -> tuple[Op, ...]:
        ops: list[Op] = []
        for k in range(count):
            ops += self._step(k, active)
        lanes = self.tile.vector.lanes
        return (*ops, *advance(self.pointers, count * lanes, runtime=False))

    def tail(self, tail: object) -> Iterator[Op]:
        """The elements of K that do not fill a vector."""
        known = value(tail)
        if known == 0:
            return
        vector = self.tile.vector
        if vector.mask is not None:
            mask = MaskRegister("k_mask", vector, tail)
            yield MakeMask(mask)
            yield from self._step(0, mask, "t")
        elif known is not None:
            yield from self._step(0, known, "t")
        else:
            for size in sorted((s for s in vector.partial_load if not s & (s - 1)), reverse=True):
                trips, tail = div(tail, size), mod(tail, size)
                step = tuple(self._step(0, size, "t"))
                bump = advance(self.pointers, size, runtime=False)
                yield Loop("kt", trips, (*step, *bump), f"{size} elements of K")

    def _step(self, k: int, active: Active, suffix: str = "") -> Iterator[Op]:
        held, streamed = (self.along, self.across)
        if self.shape.hold == "across":
            held, streamed = streamed, held
        for index in range(self._lines(held)):
            yield self._load(held, index, k, active, suffix)
        for index in range(self._lines(streamed)):
            yield self._load(streamed, index, k, active, suffix)
            for other in range(self._lines(held)):
                along, across = (other, index) if held is self.along else (index, other)
                yield from self._multiply(along, across, k, suffix, whole=active is None)

    def _lines(self, side: list[PointerPlan]) -> int:
        return self.shape.vectors if side is self.along else self.shape.rows

    def _operand(self, side: list[PointerPlan]) -> Operand:
        return self.tile.along if side is self.along else self.tile.across

    def _register(self, side: list[PointerPlan], index: int, k: int, suffix: str) -> Register:
        name = f"{self._operand(side).name}{index}" + (f"_k{k}" if k else "") + suffix
        return self.tile.register(name)

    def _load(self, side: list[PointerPlan], index: int, k: int, active: Active, suffix: str) -> Op:
        pointer = next(p for p in reversed(side) if p.row <= index)
        address = pointer.address(index, 0, k * self.tile.vector.lanes)
        return Load(self._register(side, index, k, suffix), address, active)

    def _multiply(
        self, along: int, across: int, k: int, suffix: str, *, whole: bool
    ) -> Iterator[Op]:
        op = self.tile.vector.form("broadcast", "scalar")
        assert op is not None
        acc = self.tile.accumulator(across, along, k % self.shape.k_split)
        x = self._register(self.along, along, k, suffix)
        y = self._register(self.across, across, k, suffix)
        yield from multiplied(self.tile, op, acc, x, y, whole=whole)


def store_dots(tile: Tile) -> Iterator[Op]:
    """Sum the lanes of every accumulator and update C, a vector of sums at a time if possible."""
    plan, shape = tile.plan, tile.region.shape
    if plan.sum_along is None:
        yield from _store_scalars(tile)
        return
    line = plan.sum_along
    lines, length = shape.rows, shape.vectors
    if line == plan.across:
        lines, length = length, lines
    for index in range(lines):
        for first in range(0, length, tile.vector.lanes):
            count = min(tile.vector.lanes, length - first)
            yield from _store_line(tile, line, index, range(first, first + count))


def _store_line(tile: Tile, line: str, index: int, run: range) -> Iterator[Op]:
    """Sums of accumulators that lie side by side in C, as one vector."""
    vector = tile.vector
    accumulators = [
        tile.accumulator(index, i) if line == tile.plan.along else tile.accumulator(i, index)
        for i in run
    ]
    ops, total = sum_tree(accumulators, f"sum{index}_{run.start}")
    yield from ops if tile.stage != "finish" else ()
    active: Active = None
    if len(run) < vector.lanes:
        active = len(run)
        if vector.mask is not None:
            active = MaskRegister(f"mask{index}_{run.start}", vector, Integer(len(run)))
            yield MakeMask(active)
    output = Output.of(total, line, run.start, index, active)
    yield from from_sums(tile, output)
    yield from write(tile, [output])


def sum_tree(registers: list[Register], name: str) -> tuple[list[Op], Register]:
    """The lane sums of up to ``lanes`` registers, in the lanes of one register.

    A transposition whose pairs are added as soon as they are interleaved: with P registers,
    P - 1 additions, then the remaining groups of lanes are folded onto themselves.
    """
    vector = registers[0].vector
    ops: list[Op] = []
    full = 1 << (len(registers) - 1).bit_length()
    rows = list(registers)
    for index in range(len(registers), full):
        rows.append(Register(f"{name}_pad{index}", vector))
        ops.append(Zero(rows[-1]))
    block = 1
    while block < vector.lanes:
        if len(rows) > 1:
            pairs = [(rows[i], rows[i + 1]) for i in range(0, len(rows), 2)]
        else:
            pairs = [(rows[0], rows[0])]
        rows = []
        for i, (x, y) in enumerate(pairs):
            even, odd = (Register(f"{name}_{side}{block}_{i}", vector) for side in "eo")
            total = Register(f"{name}_{block}_{i}", vector)
            ops.append(Interleave(even, x, y, block, odd=False))
            ops.append(Interleave(odd, x, y, block, odd=True))
            ops.append(Add(total, even, odd))
            rows.append(total)
        block *= 2
    return ops, rows[0]


def _store_scalars(tile: Tile) -> Iterator[Op]:
    plan, shape = tile.plan, tile.region.shape
    scalar = plan.target.of(plan.element)[-1]
    outputs = []
    for row in range(shape.vectors):
        for column in range(shape.rows):
            total = Register(f"sum{row}_{column}", scalar)
            outputs.append(Output(total, "n", row, column, None))
            if tile.stage != "finish":
                yield SumLanes(total, tile.accumulator(column, row))
            yield from from_sums(tile, outputs[-1])
    yield from write(tile, outputs)
