"""The K loop of a tile whose vectors lie along m or n: loads and multiply-adds, step by step."""

from __future__ import annotations

from collections.abc import Iterator

from sympy import Expr

from tilewright.ir.access import read
from tilewright.ir.ops import Address, Broadcast, Load, Loop, Op, Pick, Prefetch, Register
from tilewright.plan.operands import Operand
from tilewright.symbolic import div, mod, value

from .block_product import Squares
from .tile import PointerPlan, Tile, advance, multiplied, pointer_plans


def k_loops(tile: Tile) -> tuple[list[PointerPlan], tuple[Op, ...]]:
    """The K loops of a tile whose vectors lie along m or n, and the pointers they walk."""
    body = Squares(tile) if tile.product.rows > 1 else _Body(tile)
    steps, count = tile.steps, tile.chosen.unroll.count
    trips, rest = div(steps, count), mod(steps, count)
    ops: list[Op] = []
    if not tile.chosen.unroll.loop:
        whole = value(steps) or 0
        return body.pointers, (*body.steps(whole), *body.part(whole))
    if trips != 0:
        ops.append(Loop("kt", trips, (*body.steps(count), *advance(body.pointers, count, False))))
    if (known := value(rest)) is not None:
        ops += body.steps(known) if known else ()
    else:
        ops.append(Loop("kt", rest, (*body.steps(1), *advance(body.pointers, 1, False)), "K tail"))
    return body.pointers, (*ops, *body.part(known or 0))


class _Body:
    """Emits K steps of one tile."""

    def __init__(self, tile: Tile) -> None:
        shape = tile.shape
        self.tile, self.shape = tile, shape
        depth = tile.product.depth
        self.along = pointer_plans(tile.along, tile.plan.along, 1, depth)
        self.across = pointer_plans(tile.across, tile.plan.across, shape.rows, depth)
        self.pointers = (
            self.across + self.along if tile.along.name == "b" else self.along + self.across
        )

    def steps(self, count: int) -> list[Op]:
        ops: list[Op] = []
        for k in range(count):
            if k == 0 and self._prefetches:
                ops.append(self._prefetch(self.tile.plan.schedule.prefetch or 0))
            ops += self._step(k, count)
            ops += advance(self.pointers, 1, runtime=True)
        return ops

    def part(self, k: int) -> Iterator[Op]:
        """A group of which only some elements exist: those are read, the others 0."""
        rest, depth = self.tile.rest, self.tile.product.depth
        if rest == 0:
            return
        step = tuple(self._step(k, k + 1, rest))
        known = value(rest) is not None
        yield from step if known else (Loop("kt", div(rest + (depth - 1), depth), step, "K rest"),)

    @property
    def _prefetches(self) -> bool:
        """What was just packed is in the cache, and may lie at the end of the stack's frame."""
        packed = self.tile.along.buffer != self.tile.along.name
        return self.tile.plan.schedule.prefetch is not None and not packed

    def _prefetch(self, distance: int) -> Op:
        pointer = self.along[0]
        return Prefetch(Address(pointer.point.pointer, distance * pointer.k_stride))

    def _step(self, k: int, count: int, existing: Expr | None = None) -> Iterator[Op]:
        feed, group = self.shape.feed, self.shape.group
        whole = k // group * group + group <= count and existing is None
        if feed == "lane_k" and k % group == 0 and whole:
            yield from self._load_lanes_k(k)
        in_lanes = feed == "lane_s" or (feed == "lane_k" and whole)
        if feed == "lane_s":
            yield from self._load_lanes_s(k)
        if self.shape.hold == "across":
            for row in range(self.shape.rows):
                yield from self._spread(row, k, existing)
            for column in range(self.shape.vectors):
                yield from self._load(column, k)
                for row in range(self.shape.rows):
                    yield from self._multiply(row, column, k, in_lanes)
            return
        for column in range(self.shape.vectors):
            yield from self._load(column, k)
        for row in range(self.shape.rows):
            if feed == "repeat" and whole:
                yield from self._pick(row, k)
            elif not in_lanes and feed != "memory":
                yield from self._spread(row, k, existing)
            for column in range(self.shape.vectors):
                yield from self._multiply(row, column, k, in_lanes)

    def _name(self, operand: Operand, index: int, k: int) -> str:
        return f"{operand.name}{index}" + (f"_k{k}" if k else "")

    def _pointer(self, row: int) -> PointerPlan:
        return next(p for p in reversed(self.across) if p.row <= row)

    def _load(self, column: int, k: int) -> Iterator[Op]:
        first = self.tile.position(column) * self.tile.product.depth
        address = self.along[0].address(0, k, first)
        source = self.tile.along.type
        target = self.tile.plan.target
        yield from read(target, self._vector(column, k), address, self.tile.loaded(column), source)

    def _vector(self, column: int, k: int) -> Register:
        held = self.tile.product.held(self.tile.plan.target, self.tile.vector, "along")
        return self.tile.register(self._name(self.tile.along, column, k), held)

    def _spread_register(self, row: int, k: int) -> Register:
        name, target = self._name(self.tile.across, row, k), self.tile.plan.target
        if self.shape.plain.form == "scalar":
            return self.tile.register(name, target.of(self.tile.plan.element)[-1])
        return self.tile.register(name, self.tile.product.held(target, self.tile.vector, "across"))

    def _spread(self, row: int, k: int, existing: Expr | None = None) -> Iterator[Op]:
        address, memory = self._pointer(row).address(row, k), self.tile.across.type
        register, depth = self._spread_register(row, k), self.tile.product.depth
        if register.vector.lanes == 1:
            yield from read(self.tile.plan.target, register, address, None, memory)
        else:
            yield Broadcast(register, address, depth, existing, memory)

    def _pick(self, row: int, k: int) -> Iterator[Op]:
        """One of the elements that a register repeats, which is filled before the first of them."""
        group, memory = self.shape.group, self.tile.across.type
        repeated = self._lanes_register(row, k // group * group)
        if k % group == 0:
            yield Broadcast(repeated, self._pointer(row).address(row, k), group, None, memory)
        yield Pick(self._spread_register(row, k), repeated, k % group, memory)

    def _load_lanes_k(self, k: int) -> Iterator[Op]:
        for row in range(self.shape.rows):
            yield Load(self._lanes_register(row, k), self._pointer(row).address(row, k))

    def _load_lanes_s(self, k: int) -> Iterator[Op]:
        lanes = self.tile.vector.lanes
        for first in range(0, self.shape.rows, lanes):
            left = self.shape.rows - first
            active = None if left >= lanes else left
            address = self._pointer(first).address(first, k)
            yield Load(self._lanes_register(first // lanes, k), address, active)

    def _lanes_register(self, index: int, k: int) -> Register:
        held = self.tile.product.held(self.tile.plan.target, self.tile.vector, "across")
        return self.tile.register(self._name(self.tile.across, index, k) + "v", held)

    def _multiply(self, row: int, column: int, k: int, in_lanes: bool) -> Iterator[Op]:
        acc = self.tile.accumulator(row, column, k % self.shape.k_split)
        x, lanes, group = self._vector(column, k), self.tile.vector.lanes, self.shape.group
        if self.shape.feed == "memory":
            address = self._pointer(row).address(row, k)
            yield from multiplied(self.tile, self.shape.op, acc, x, address)
            return
        lane = None
        if in_lanes and self.shape.feed == "lane_k":
            y, lane = self._lanes_register(row, k // group * group), k % group
        elif in_lanes:
            y, lane = self._lanes_register(row // lanes, k), row % lanes
        else:
            y = self._spread_register(row, k)
        op = self.shape.plain if lane is None else self.shape.op
        yield from multiplied(self.tile, op, acc, x, y, lane)
