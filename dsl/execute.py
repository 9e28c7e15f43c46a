"""Tile programs run on numpy: every operation a closure over the tile's registers and pointers.

A register is a vector of float64 that hold values of the element type, or a Python float when it
has one lane. A multiply-add is taken for a fused one, also where a target's is not: f32 products
are exact in float64, the sum is rounded to float64 and then to f32 (twice, which differs from once
in about one case of 2**29); f64 products and sums are rounded apart. The lanes of a register are
summed in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .dtypes import DTYPES
from .errors import PlanError
from .memory import Buffer, Memory, Segment
from .program import (
    Active,
    Add,
    Address,
    Advance,
    Broadcast,
    Interleave,
    Load,
    Loop,
    MakeMask,
    MaskRegister,
    Multiply,
    MultiplyAdd,
    Op,
    Parameter,
    Point,
    PointBatch,
    Register,
    Room,
    Splat,
    Store,
    SumLanes,
    TileProgram,
    Zero,
)
from .symbolic import evaluate
from .types import ITEMSIZE

Run = Callable[[], None]
Pointer = tuple[Segment, int]


@dataclass(slots=True)
class Counts:
    """What was executed. A multiply-add with an operand in memory counts as a broadcast too.

    Bytes are those of elements touched: the active lanes of an access.
    """

    loads: int = 0
    broadcasts: int = 0
    multiply_adds: int = 0
    stores: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all tiles of one run share: operands, run-time sizes and numbers, and the counts."""

    memory: Memory
    sizes: Mapping[str, int]
    scalars: Mapping[str, float]
    counts: Counts


def pointer_to(operand: Any) -> Pointer:
    """A whole operand's first element; a pointer as it is."""
    return (operand, operand.base) if isinstance(operand, Segment) else operand


def room(name: str, element: str, count: int) -> Segment:
    """A fresh buffer: what is read of it must have been written."""
    values = np.full(count, np.nan, DTYPES[element])
    return Segment(name, Buffer(values, 0), [0], 1, count, max(count, 1), role="out")


def _room_of(op: Room) -> Segment:
    return room(op.name, op.element, op.elements)


def entry(table: Any, index: int, name: str) -> Any:
    """Entry ``index`` of a batch's table; PlanError if it has none."""
    if not 0 <= index < len(table):
        raise PlanError(f"entry {index} of {name} is read", expected=f"0 to {len(table) - 1}")
    return table[index]


#: Operations that change no value.
_HINTS = ("prefetch", "keep")
_SINGLE = np.float32


def _round_f32(values: Any) -> Any:
    if isinstance(values, float):
        return float(_SINGLE(values))
    return values.astype(_SINGLE).astype(np.float64)


def _exact(values: Any) -> Any:
    return values


#: float64 results to the values of the element type.
_ROUND: dict[str, Callable[[Any], Any]] = {"f32": _round_f32, "f64": _exact}


@dataclass(slots=True)
class Tile:
    """One tile program: its state, and its operations as closures over that state."""

    around: Surroundings
    program: TileProgram
    registers: dict[str, Any] = field(default_factory=dict)
    masks: dict[str, int] = field(default_factory=dict)
    pointers: dict[str, Pointer] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)

    def bind(self, parameter: Parameter, operand: Any, offset: int) -> None:
        """Pass one argument of a call."""
        if parameter.role in ("in", "out"):
            segment, at = pointer_to(operand)
            self.pointers[parameter.name] = segment, at + offset
        elif parameter.role == "table":
            self.tables[parameter.name] = operand
        elif parameter.role == "offsets":
            self.tables[parameter.name] = self.around.memory.offsets[parameter.name]
        else:
            self.numbers[parameter.name] = offset

    def compiled(self) -> Run:
        """The whole program as one closure."""
        return _sequence([self._compile(op) for op in self.program.body + self.program.end])

    def _value(self, expr: Any) -> int:
        return evaluate(expr, self.around.sizes)

    def _compile(self, op: Op) -> Run:
        match op:
            case Loop():
                return self._loop(op)
            case Point() | PointBatch() | Advance():
                return self._move(op)
            case MakeMask():
                return self._make_mask(op)
            case Load():
                return self._load(op)
            case Broadcast():
                return self._broadcast(op)
            case Store():
                return self._store(op)
            case MultiplyAdd():
                return self._multiply_add(op)
            case Zero() | Splat():
                return self._constant(op)
            case Add() | Multiply():
                return self._arithmetic(op)
            case Interleave():
                return self._interleave(op)
            case SumLanes():
                return self._sum_lanes(op)
            case Room():
                return lambda: self.pointers.__setitem__(op.name, (_room_of(op), 0))
            case _:
                if op.kind not in _HINTS:
                    raise PlanError(
                        f"{self.program.name}: an operation with no meaning", got=op.kind
                    )
                return lambda: None

    def _loop(self, op: Loop) -> Run:
        trips, numbers, counter = self._value(op.trips), self.numbers, op.counter
        body = _sequence([self._compile(inner) for inner in op.body])

        def run() -> None:
            for trip in range(trips):
                numbers[counter] = trip
                body()

        return run

    def _move(self, op: Point | PointBatch | Advance) -> Run:
        pointers, name = self.pointers, op.pointer
        if isinstance(op, PointBatch):
            return self._point_batch(op)
        base = op.base if isinstance(op, Point) else name
        step = self._value(op.offset if isinstance(op, Point) else op.step)

        def run() -> None:
            segment, at = pointers[base]
            pointers[name] = segment, at + step

        return run

    def _point_batch(self, op: PointBatch) -> Run:
        offset, stride = self._value(op.offset), self._value(op.stride)
        pointers, tables, numbers = self.pointers, self.tables, self.numbers
        operand = op.operand

        def run() -> None:
            index = numbers[op.index]
            if op.batch == "addresses":
                segment, at = pointer_to(entry(tables[operand], index, operand))
                at += numbers[f"{operand}_at"]
            else:
                segment, at = pointers[operand]
                if op.batch == "offsets":
                    at += entry(tables[f"{operand}_offsets"], index, f"{operand}_offsets")
                else:
                    at += index * stride
            pointers[op.pointer] = segment, at + offset

        return run

    def _make_mask(self, op: MakeMask) -> Run:
        active, lanes = self._value(op.mask.active), op.mask.vector.lanes
        if not 0 <= active <= lanes:
            raise PlanError(
                f"{self.program.name} masks {active} lanes", expected=f"0 to {lanes} lanes"
            )
        return lambda: self.masks.__setitem__(op.mask.name, active)

    def _active(self, active: Active, lanes: int) -> Callable[[], int]:
        if isinstance(active, MaskRegister):
            masks, name = self.masks, active.name
            return lambda: masks[name]
        count = lanes if active is None else active
        return lambda: count

    def _load(self, op: Load) -> Run:
        registers, pointers, counts = self.registers, self.pointers, self.around.counts
        dst, lanes = op.dst.name, op.dst.vector.lanes
        pointer, offset = op.address.pointer, self._value(op.address.offset)
        size, active = ITEMSIZE[op.dst.vector.element], self._active(op.active, op.dst.vector.lanes)
        who = f"{self.program.name}: {dst}"

        def run() -> None:
            segment, at = pointers[pointer]
            at += offset
            count = active()
            counts.loads += 1
            counts.bytes_read += count * size
            if count:
                segment.check_read(at, count, who)
            if lanes == 1:
                registers[dst] = float(segment.values[at])
            else:
                loaded = np.zeros(lanes)
                loaded[:count] = segment.values[at : at + count] if count else ()
                registers[dst] = loaded

        return run

    def _element(self, address: Address, element: str, who: str) -> Callable[[], float]:
        """Read one element and count a broadcast."""
        pointers, counts = self.pointers, self.around.counts
        pointer, offset = address.pointer, self._value(address.offset)
        size = ITEMSIZE[element]

        def read() -> float:
            segment, at = pointers[pointer]
            at += offset
            segment.check_read(at, 1, who)
            counts.broadcasts += 1
            counts.bytes_read += size
            return float(segment.values[at])

        return read

    def _broadcast(self, op: Broadcast) -> Run:
        registers, dst, lanes = self.registers, op.dst.name, op.dst.vector.lanes
        read = self._element(op.address, op.dst.vector.element, f"{self.program.name}: {dst}")
        return lambda: registers.__setitem__(dst, np.full(lanes, read()) if lanes > 1 else read())

    def _store(self, op: Store) -> Run:
        registers, pointers, counts = self.registers, self.pointers, self.around.counts
        src, lanes = op.src.name, op.src.vector.lanes
        pointer, offset = op.address.pointer, self._value(op.address.offset)
        size, active = ITEMSIZE[op.src.vector.element], self._active(op.active, lanes)
        who = f"{self.program.name}: {src}"

        def run() -> None:
            segment, at = pointers[pointer]
            at += offset
            count = active()
            counts.stores += 1
            counts.bytes_written += count * size
            if count:
                segment.check_write(at, count, who)
                value = registers[src]
                segment.values[at : at + count] = value if lanes == 1 else value[:count]

        return run

    def _multiply_add(self, op: MultiplyAdd) -> Run:
        registers, counts = self.registers, self.around.counts
        acc, x, rounded = op.acc.name, op.x.name, _ROUND[op.acc.vector.element]
        other = self._other(op)

        def run() -> None:
            counts.multiply_adds += 1
            registers[acc] = rounded(registers[x] * other() + registers[acc])

        return run

    def _other(self, op: MultiplyAdd) -> Callable[[], Any]:
        """The second factor: a register, a lane of one, or an element in memory."""
        registers, lane = self.registers, op.lane
        if isinstance(op.y, Address):
            who = f"{self.program.name}: {op.acc.name}"
            return self._element(op.y, op.acc.vector.element, who)
        y = op.y.name
        if lane is not None:
            return lambda: registers[y][lane]
        return lambda: registers[y]

    def _constant(self, op: Zero | Splat) -> Run:
        registers, vector, value = self.registers, op.dst.vector, 0.0
        if isinstance(op, Splat):
            source = op.source
            number = self.around.scalars[source] if isinstance(source, str) else float(source)
            value = float(_ROUND[vector.element](number))
        name = op.dst.name
        filled: Any = np.full(vector.lanes, value) if vector.lanes > 1 else value
        return lambda: registers.__setitem__(name, filled)

    def _arithmetic(self, op: Add | Multiply) -> Run:
        registers, rounded = self.registers, _ROUND[op.dst.vector.element]
        dst, x, y = op.dst.name, op.x.name, op.y.name
        if isinstance(op, Add):
            return lambda: registers.__setitem__(dst, rounded(registers[x] + registers[y]))
        return lambda: registers.__setitem__(dst, rounded(registers[x] * registers[y]))

    def _interleave(self, op: Interleave) -> Run:
        registers, shape = self.registers, (-1, 2, op.block)

        def half(register: Register) -> Any:
            return registers[register.name].reshape(shape)[:, int(op.odd)]

        def run() -> None:
            registers[op.dst.name] = np.stack([half(op.x), half(op.y)], axis=1).ravel()

        return run

    def _sum_lanes(self, op: SumLanes) -> Run:
        registers, rounded = self.registers, _ROUND[op.dst.vector.element]
        dst, src = op.dst.name, op.src.name
        return lambda: registers.__setitem__(dst, rounded(float(np.sum(registers[src]))))


def _sequence(runs: Sequence[Run]) -> Run:
    def run() -> None:
        for step in runs:
            step()

    return run
