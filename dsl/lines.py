"""Sums finished line by line: a loop reads them from memory where straight code would be long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from sympy import Expr

from .dataflow import pointers_used, walk
from .finish import Output
from .lower import Tile, add_sets
from .program import (
    Active,
    Address,
    Advance,
    Load,
    Loop,
    Op,
    Point,
    Register,
    Room,
    Store,
)
from .symbolic import ONE, ZERO
from .update import write

#: So many operations in straight code are about 4 KiB: more of them, for each of a kernel's tiles,
#: drive the K loops out of the instruction cache, and compile for seconds.
LONG = 512


@dataclass(frozen=True)
class Sums:
    """Sums behind ``pointer``: vectors follow each other, lines are ``step`` elements apart.

    Where K was split there are ``sets`` of them, ``apart`` elements from each other.
    """

    pointer: str
    step: Expr
    sets: int = 1
    apart: Expr = ZERO

    def read(self, dst: Register, offset: Expr, active: Active = None) -> Iterator[Op]:
        """A vector of the sums, those of all sets added."""
        others = (Register(f"{dst.name}_s{index}", dst.vector) for index in range(1, self.sets))
        parts = [dst, *others]
        for index, part in enumerate(parts):
            yield Load(part, Address(self.pointer, offset + index * self.apart), active)
        yield from add_sets([parts])


@dataclass(frozen=True)
class Lines:
    """``trips`` lines of sums that lie as C does, along ``line``.

    A vector of a line has its place in C's line, in elements, and what exists of it. Without
    ``sums`` of its own they lie in the buffer of partial sums as in C, and what does not exist is
    not read.
    """

    tile: Tile
    line: str
    vectors: tuple[tuple[int, Active], ...]
    trips: Expr
    sums: Sums | None = None

    @property
    def other(self) -> str:
        """The dimension from line to line."""
        return "n" if self.line == "m" else "m"

    @property
    def long(self) -> bool:
        """Whether straight code for all of them is longer than should be."""
        tile = self.tile
        if tile.stage == "sum" or not tile.plan.finishes or self.trips == 1:
            return False
        return bool(len(self._body) * self.trips > LONG)

    def loop(self) -> Op:
        """The lines become C, one after the other."""
        return Loop("row", self.trips, (*self._body, *self._advance()))

    @cached_property
    def _body(self) -> tuple[Op, ...]:
        """One line's operations."""
        tile, outputs, loads = self.tile, list[Output](), list[Op]()
        for index, (place, active) in enumerate(self.vectors):
            output = Output.of(Register(f"r{index}", tile.vector), self.line, place, 0, active)
            outputs.append(output)
            if self.sums is None:
                there = output.at(tile.plan.operands["sums"])
                loads.append(Load(output.acc, there, active))
            else:
                loads += self.sums.read(output.acc, index * tile.vector.lanes * ONE)
        return (*loads, *write(tile, outputs))

    def _advance(self) -> Iterator[Op]:
        """All pointers from one line to the next."""
        used = pointers_used(walk(self._body))
        operands = self.tile.plan.operands
        if self.sums is not None and self.sums.pointer not in operands:
            yield Advance(self.sums.pointer, self.sums.step)
        for operand in operands.values():
            step = operand.strides.get(self.other, ZERO)
            if operand.name in used and step != 0:
                yield Advance(operand.name, step)


@dataclass(frozen=True)
class Stack:
    """Room on the stack for ``lines`` lines of ``vectors`` vectors of sums, and a pointer to it."""

    tile: Tile
    lines: int
    vectors: int
    name: str = "sums_room"
    pointer: str = "rows"

    @property
    def step(self) -> int:
        """Elements from line to line."""
        return self.vectors * self.tile.vector.lanes

    def room(self) -> Op:
        """The room itself."""
        return Room(self.name, self.tile.plan.element, self.lines * self.step)

    def put(self, line: int, vector: int, register: Register) -> Op:
        """A register to its place."""
        offset = line * self.step + vector * self.tile.vector.lanes
        return Store(Address(self.name, offset * ONE), register)

    def begin(self) -> Op:
        """The pointer to the first line."""
        return Point(self.pointer, self.name, ZERO, self.tile.plan.element)

    @property
    def sums(self) -> Sums:
        """The sums that lie there."""
        return Sums(self.pointer, self.step * ONE)
