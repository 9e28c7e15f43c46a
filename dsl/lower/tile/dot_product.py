"""Tiles whose vectors lie along K: products summed lane by lane, the lanes added at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sympy import Expr, Integer

from tilewright.ir.access import read
from tilewright.ir.networks import sum_tree
from tilewright.ir.ops import (
    Active,
    Loop,
    MakeMask,
    MaskRegister,
    Op,
    Register,
    SumLanes,
)
from tilewright.isa.vector import Vector
from tilewright.plan.operands import Operand
from tilewright.symbolic import div, mod, value

from .epilogue import Output
from .store import from_sums, write
from .tile import PointerPlan, Tile, advance, multiplied, pointer_plans

#: What is loaded of a vector of factors; all of those that are not named.
Cuts = Mapping[Vector, Active]


def dot_loops(tile: Tile) -> tuple[list[PointerPlan], tuple[Op, ...]]:
    """The K loops, a vector of K at a time, and the pointers they walk."""
    lanes, depth = tile.vector.lanes, tile.product.depth
    body = _DotBody(tile)
    whole, tail = div(tile.steps, lanes), mod(tile.steps, lanes)
    count = tile.chosen.unroll.count
    trips, rest = div(whole, count), mod(whole, count)
    ops: list[Op] = []
    if not tile.chosen.unroll.loop:
        straight = value(whole)
        ops += body.steps(straight) if straight else ()
    else:
        ops.append(Loop("kt", trips, body.steps(count)))
        if (known := value(rest)) is None:
            ops.append(Loop("kt", rest, body.steps(1), "K vectors left"))
        elif known:
            ops += body.steps(known)
    ops += body.tail(tail * depth + tile.rest)
    return body.pointers, tuple(ops)


class _DotBody:
    """Emits steps of one vector of K each: in each lane as many as the multiply-add sums there."""

    def __init__(self, tile: Tile) -> None:
        self.tile, self.shape = tile, tile.shape
        self.along = pointer_plans(tile.along, tile.plan.along, self.shape.vectors)
        self.across = pointer_plans(tile.across, tile.plan.across, self.shape.rows)
        self.pointers = self.along + self.across
        self.elements = tile.vector.lanes * tile.product.depth

    def steps(self, count: int) -> tuple[Op, ...]:
        ops: list[Op] = []
        for k in range(count):
            ops += self._step(k, {})
        return (*ops, *advance(self.pointers, count * self.elements, runtime=False))

    def tail(self, tail: Expr) -> Iterator[Op]:
        """The elements of K that do not fill a vector."""
        known = value(tail)
        if known == 0:
            return
        sides = (side for side in (self.along, self.across) if not self._has_room(side))
        held = dict.fromkeys(map(self._held, sides))
        if all(vector.mask is not None for vector in held):
            cuts = {v: MaskRegister(f"k_mask{i or ''}", v, tail) for i, v in enumerate(held)}
            yield from map(MakeMask, cuts.values())
            yield from self._step(0, cuts, "t")
        elif known is not None:
            yield from self._step(0, dict.fromkeys(held, known), "t")
        else:
            (vector,) = held
            for size in sorted((s for s in vector.partial_load if not s & (s - 1)), reverse=True):
                trips, tail = div(tail, size), mod(tail, size)
                step = tuple(self._step(0, {vector: size}, "t"))
                bump = advance(self.pointers, size, runtime=False)
                yield Loop("kt", trips, (*step, *bump), f"{size} elements of K")

    def _step(self, k: int, cuts: Cuts, suffix: str = "") -> Iterator[Op]:
        held, streamed = (self.along, self.across)
        if self.shape.hold == "across":
            held, streamed = streamed, held
        for index in range(self._lines(held)):
            yield from self._load(held, index, k, cuts, suffix)
        for index in range(self._lines(streamed)):
            yield from self._load(streamed, index, k, cuts, suffix)
            for other in range(self._lines(held)):
                along, across = (other, index) if held is self.along else (index, other)
                yield from self._multiply(along, across, k, suffix, whole=not cuts)

    def _lines(self, side: list[PointerPlan]) -> int:
        return self.shape.vectors if side is self.along else self.shape.rows

    def _operand(self, side: list[PointerPlan]) -> Operand:
        return self.tile.along if side is self.along else self.tile.across

    def _held(self, side: list[PointerPlan]) -> Vector:
        """What holds the factors of that side: B's are those that products know along vectors."""
        factor = "across" if self._operand(side).name == "a" else "along"
        return self.tile.product.held(self.tile.plan.target, self.tile.vector, factor)

    def _has_room(self, side: list[PointerPlan]) -> bool:
        """Whether lines are the kernel's own, which end in whole vectors of finite elements.

        Beside them the other operand, which is cut, is 0.
        """
        whole = "k" not in self.tile.plan.outer.lower()
        return whole and self._operand(side).packed

    def _register(self, side: list[PointerPlan], index: int, k: int, suffix: str) -> Register:
        name = f"{self._operand(side).name}{index}" + (f"_k{k}" if k else "") + suffix
        return self.tile.register(name, self._held(side))

    def _load(
        self, side: list[PointerPlan], index: int, k: int, cuts: Cuts, suffix: str
    ) -> Iterator[Op]:
        pointer = next(p for p in reversed(side) if p.row <= index)
        address = pointer.address(index, 0, k * self.elements)
        register, memory = self._register(side, index, k, suffix), self._operand(side).type
        active = None if self._has_room(side) else cuts.get(register.vector)
        yield from read(self.tile.plan.target, register, address, active, memory)

    def _multiply(
        self, along: int, across: int, k: int, suffix: str, *, whole: bool
    ) -> Iterator[Op]:
        acc = self.tile.accumulator(across, along, k % self.shape.k_split)
        a = self._register(self.along, along, k, suffix)
        b = self._register(self.across, across, k, suffix)
        yield from multiplied(self.tile, self.shape.op, acc, b, a, whole=whole)


def store_dots(tile: Tile) -> Iterator[Op]:
    """Sum the lanes of every accumulator and update C, a vector of sums at a time if possible."""
    plan, shape = tile.plan, tile.shape
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


def _store_scalars(tile: Tile) -> Iterator[Op]:
    plan, shape = tile.plan, tile.shape
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
