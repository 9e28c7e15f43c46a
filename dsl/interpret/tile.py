"""Run tile programs on numpy: each operation is a closure over the tile's registers and pointers.

A register is an array of its lanes, of the type of its elements. Elementary operations and sums of
products have the same bits as compiled ones. The exception is sums of bf16 or f16 products, which
each instruction rounds in its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sympy import Expr

from tilewright.elementwise.operations import NUMPY
from tilewright.errors import PlanError
from tilewright.ir.ops import (
    Advance,
    Apply,
    Broadcast,
    Copy,
    FillLanes,
    Interleave,
    Join,
    Load,
    LoadMatrix,
    LoadSeveral,
    Loop,
    MakeMask,
    MultiplyAdd,
    MultiplyBlock,
    MultiplyMatrices,
    Op,
    Parameter,
    Pick,
    Point,
    PointBatch,
    ReadRows,
    Splat,
    StackBuffer,
    Store,
    StoreMatrix,
    SumLanes,
    Table,
    TakeLanes,
    TileProgram,
    Unpack,
    Unzip,
    WriteRow,
    Zero,
    ZeroMatrix,
)
from tilewright.ir.values import Active, Address, MaskRegister, Register
from tilewright.spec.dtypes import DTYPES, held
from tilewright.spec.quantized import STORED
from tilewright.spec.types import ITEMSIZE, is_integer
from tilewright.symbolic import evaluate

from . import matrices as execute_matrices
from .lanes import Lanes, anything, product, reader, spreader, summed, writer
from .memory import Memory, Segment, fresh_buffer

Run = Callable[[], None]
Fetch = Callable[[], Lanes]
Put = Callable[[Lanes], None]
Pointer = tuple[Segment, int]


@dataclass(slots=True)
class Counts:
    """The work that a run of the interpreter has done: operations by kind, and bytes.

    A multiply-add with an operand in memory counts as a broadcast too. Bytes are those of the
    active lanes of accesses.
    """

    loads: int = 0
    broadcasts: int = 0
    multiply_adds: int = 0
    elementary_operations: int = 0
    stores: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Data that all tiles of one run share: operands, run-time sizes and numbers, counts."""

    memory: Memory
    sizes: Mapping[str, int]
    scalars: Mapping[str, float]
    counts: Counts


def pointer_to(operand: Any) -> Pointer:
    """Return a pointer to an operand's first element; a pointer is returned unchanged."""
    return (operand, operand.base) if isinstance(operand, Segment) else operand


def entry(table: Any, index: int, name: str) -> Any:
    """Return entry ``index`` of a batch's table; PlanError if it has none."""
    if not 0 <= index < len(table):
        raise PlanError(f"entry {index} of {name} is read", expected=f"0 to {len(table) - 1}")
    return table[index]


#: Kinds of operations that the interpreter skips, because they change no value.
_HINTS = ("prefetch", "keep", "hide", "note")


@dataclass(slots=True)
class Tile:
    """One tile program: its state, and its operations as closures over that state."""

    around: Surroundings
    program: TileProgram
    registers: dict[str, Lanes] = field(default_factory=dict)
    pointers: dict[str, Pointer] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)

    def bind(self, parameter: Parameter, operand: Any, offset: int, cast: bool) -> None:
        """Set a parameter of the tile to an argument of a call.

        With ``cast``, the elements of ``operand`` are read as the parameter's type.
        """
        if parameter.role in ("in", "out"):
            segment, at = pointer_to(operand)
            if cast:
                element = parameter.element or self.program.element
                self.pointers[parameter.name] = segment.cast(at + offset, element)
            else:
                self.pointers[parameter.name] = segment, at + offset
        elif parameter.role == "table":
            self.tables[parameter.name] = operand
        elif parameter.role == "offsets":
            self.tables[parameter.name] = self.around.memory.offsets[parameter.name]
        else:
            self.numbers[parameter.name] = offset

    def compiled(self) -> Run:
        """Return a function that runs the whole tile program once."""
        return _sequence([self._compile(op) for op in self.program.body + self.program.end])

    def value(self, expr: Any) -> int:
        """Return the value of a formula of the run-time sizes."""
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
            case LoadSeveral():
                return self._load_several(op)
            case Broadcast():
                return self._broadcast(op)
            case Pick():
                return self._pick(op)
            case Store():
                return self._store(op)
            case Copy():
                return self._copy(op)
            case MultiplyAdd():
                return self._multiply_add(op)
            case Zero() | Splat():
                return self._constant(op)
            case Apply() | SumLanes():
                return self._arithmetic(op)
            case (
                ZeroMatrix()
                | LoadMatrix()
                | StoreMatrix()
                | MultiplyMatrices()
                | MultiplyBlock()
                | ReadRows()
                | WriteRow()
            ):
                return execute_matrices.compiled(self, op)
            case Interleave() | Unzip():
                return self._interleave(op)
            case Unpack():
                return self._unpack(op)
            case Join():
                return self._join(op)
            case FillLanes():
                return self._fill_lanes(op)
            case TakeLanes():
                return self._take_lanes(op)
            case Table():
                return self._table(op)
            case StackBuffer():
                return self._stack_buffer(op)
            case _:
                if op.kind not in _HINTS:
                    raise PlanError(
                        f"{self.program.name}: an operation with no meaning", got=op.kind
                    )
                return lambda: None

    def _loop(self, op: Loop) -> Run:
        trips, numbers, counter = self.value(op.trips), self.numbers, op.counter
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
        step = self.value(op.offset if isinstance(op, Point) else op.step)

        def run() -> None:
            segment, at = pointers[base]
            pointers[name] = segment, at + step

        return run

    def _point_batch(self, op: PointBatch) -> Run:
        offset, stride = self.value(op.offset), self.value(op.stride)
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
                    name = f"{operand[0]}_offsets"  # B2 has no offsets, and uses those of B
                    at += entry(tables[name], index, name) * stride
                else:
                    at += index * stride
            pointers[op.pointer] = segment, at + offset

        return run

    def _make_mask(self, op: MakeMask) -> Run:
        self._active(op.mask, op.mask.vector.lanes)
        return lambda: None

    def _active(self, active: Active, most: int) -> int:
        """Return the number of elements that an access touches: ``most`` if all are active."""
        given = active.active if isinstance(active, MaskRegister) else active
        count = most if given is None else given if isinstance(given, int) else self.value(given)
        if not 0 <= count <= most:
            masks = "masks" if isinstance(active, MaskRegister) else "touches"
            raise PlanError(
                f"{self.program.name} {masks} {count} lanes", expected=f"0 to {most} lanes"
            )
        return count

    # --- memory --------------------------------------------------------------------------------

    def _elements(self, address: Address, memory: str, count: int, most: int, who: str) -> Fetch:
        """Return a function that reads ``count`` elements, followed by zeros up to ``most``."""
        pointers, counts = self.pointers, self.around.counts
        pointer, offset = address.pointer, self.value(address.offset)
        size, dtype = count * ITEMSIZE[memory], DTYPES[memory]

        def fetch() -> Lanes:
            counts.bytes_read += size
            if count == 0:
                return np.zeros(most, dtype)
            segment, at = pointers[pointer]
            found = segment.read(at + offset, count, memory, who)
            if count == most:
                return found
            padded = np.zeros(most, dtype)
            padded[:count] = found
            return padded

        return fetch

    def _load(self, op: Load) -> Run:
        registers, counts, vector = self.registers, self.around.counts, op.dst.vector
        dst, most = op.dst.name, vector.lanes * max(op.group, 1)
        count = self._active(op.active, most)
        who = f"{self.program.name}: {dst}"
        fetch = self._elements(op.address, op.element, count, most, who)
        lanes = reader(vector, op.memory, op.group)

        def run() -> None:
            counts.loads += 1
            registers[dst] = lanes(fetch())

        def loose() -> None:
            run()
            registers[dst][count:] = anything(vector)

        return loose if op.loose else run

    def _load_several(self, op: LoadSeveral) -> Run:
        registers, counts, vector = self.registers, self.around.counts, op.dst[0].vector
        names, count = [register.name for register in op.dst], len(op.dst) * vector.lanes
        who = f"{self.program.name}: {names[0]}"
        fetch = self._elements(op.address, vector.element, count, count, who)

        def run() -> None:
            counts.loads += 1
            registers.update(zip(names, np.split(fetch(), len(names)), strict=True))

        return run

    def _group(self, address: Address, memory: str, count: int, group: int, who: str) -> Fetch:
        """Return a function that reads one element or one group of them, as a broadcast does."""
        counts, fetch = self.around.counts, self._elements(address, memory, count, group, who)

        def one() -> Lanes:
            counts.broadcasts += 1
            return fetch()

        return one

    def _broadcast(self, op: Broadcast) -> Run:
        registers, dst, vector = self.registers, op.dst.name, op.dst.vector
        memory, count = op.element, self._active(op.existing, op.group)
        fetch = self._group(op.address, memory, count, op.group, f"{self.program.name}: {dst}")
        places, lanes = np.arange(vector.lanes) % op.group, spreader(vector, memory)
        return lambda: registers.__setitem__(dst, lanes(fetch())[places])

    def _writing(self, address: Address, memory: str, count: int, who: str) -> Put:
        """Return a function that stores the first ``count`` elements of its argument."""
        pointers, counts = self.pointers, self.around.counts
        pointer, offset = address.pointer, self.value(address.offset)
        size = count * ITEMSIZE[memory]

        def put(elements: Lanes) -> None:
            counts.stores += 1
            counts.bytes_written += size
            if count:
                segment, at = pointers[pointer]
                segment.write(at + offset, elements[:count], memory, who)

        return put

    def _store(self, op: Store) -> Run:
        registers, src, vector = self.registers, op.src.name, op.src.vector
        count = self._active(op.active, vector.lanes * max(op.group, 1))
        elements = writer(vector, op.memory, op.group)
        put = self._writing(op.address, op.element, count, f"{self.program.name}: {src}")
        return lambda: put(elements(registers[src]))

    def _unpack(self, op: Unpack) -> Run:
        if op.table is not None:
            return self._found(op, op.table)
        registers, dst, src = self.registers, op.dst.name, op.src.name
        element = op.dst.vector.element
        values = STORED[op.type].values if op.type in STORED else ()
        bits = STORED[op.type].bits if values else int(op.type.removeprefix("u"))
        codes = np.arange(1 << bits)
        numbers = np.array(values) if values else codes << op.up
        if element.startswith("u"):
            numbers = numbers - min(0, *numbers)
        low, mask, numbers = bits * op.index, codes[-1], numbers.astype(DTYPES[element])
        counts = self.around.counts

        def run() -> None:
            counts.elementary_operations += 1
            registers[dst] = numbers[(registers[src].astype(np.int64) >> low) & mask]

        return run

    def _join(self, op: Join) -> Run:
        registers, dst, x, y = self.registers, op.dst.name, op.x.name, op.y.name
        counts = self.around.counts

        def run() -> None:
            counts.elementary_operations += 1
            registers[dst] = registers[x] | registers[y]

        return run

    def _table(self, op: Table) -> Run:
        registers, dst, vector = self.registers, op.dst.name, op.dst.vector
        numbers = np.resize(held(op.numbers, vector.element), max(vector.lanes, len(op.numbers)))
        return lambda: registers.update({dst: numbers})

    def _found(self, op: Unpack, table: Register) -> Run:
        registers, dst, src = self.registers, op.dst.name, op.src.name
        bits = int(op.type.removeprefix("u"))
        low, mask, counts = bits * op.index, (1 << bits) - 1, self.around.counts

        def run() -> None:
            counts.elementary_operations += 1
            registers[dst] = registers[table.name][(registers[src].astype(np.int64) >> low) & mask]

        return run

    def _copy(self, op: Copy) -> Run:
        counts, count, who = self.around.counts, self.value(op.count), f"{self.program.name}: copy"
        fetch = self._elements(op.source, op.element, count, count, who)
        put = self._writing(op.address, op.element, count, who)

        def run() -> None:
            counts.loads += 1
            put(fetch())

        return run

    def _stack_buffer(self, op: StackBuffer) -> Run:
        """Return a function that makes a new stack buffer, with undefined elements or zeros."""

        def run() -> None:
            made = fresh_buffer(op.name, op.element, op.elements, zeros=op.zeros)
            self.pointers[op.name] = made, 0

        return run

    # --- registers -----------------------------------------------------------------------------

    def _multiply_add(self, op: MultiplyAdd) -> Run:
        registers, counts = self.registers, self.around.counts
        acc, x = op.acc.name, op.x.name
        add, other = product(op.op, op.acc.vector.element), self._other(op)

        def run() -> None:
            counts.multiply_adds += 1
            registers[acc] = add(registers[acc], registers[x], other())

        return run

    def _other(self, op: MultiplyAdd) -> Fetch:
        """Return a function that gets factor y: a register, some lanes of one, or from memory."""
        registers, lane, depth = self.registers, op.lane, op.op.depth
        if isinstance(op.y, Address):
            who, memory = f"{self.program.name}: {op.acc.name}", op.op.y or op.acc.vector.element
            return self._group(op.y, memory, depth, depth, who)
        y = op.y.name
        if lane is not None:
            part = slice(lane * depth, (lane + 1) * depth)
            return lambda: registers[y][part]
        return lambda: registers[y]

    def _pick(self, op: Pick) -> Run:
        registers, dst, src, lanes = self.registers, op.dst.name, op.src.name, op.dst.vector.lanes
        return lambda: registers.__setitem__(dst, registers[src][op.lane].repeat(lanes))

    def _constant(self, op: Zero | Splat) -> Run:
        registers, name, vector = self.registers, op.dst.name, op.dst.vector
        lanes, dtype = vector.lanes, DTYPES[vector.element]
        source = op.source if isinstance(op, Splat) else 0
        if isinstance(source, Register):
            single = source.name
            return lambda: registers.__setitem__(name, registers[single].repeat(lanes))
        number: float = self._number(source)
        if isinstance(op, Splat) and op.group:
            bits = int(number).to_bytes(op.group * dtype.itemsize, "little")
            filled = np.frombuffer(bits, dtype)[np.arange(lanes) % op.group]
        else:
            whole = is_integer(vector.element)
            number = (int(number) + 2**31) % 2**32 - 2**31 if whole else number
            filled = np.full(lanes, number, dtype)
        return lambda: registers.__setitem__(name, filled)

    def _number(self, source: float | str | Expr) -> float:
        if isinstance(source, str):
            return self.around.scalars[source]
        return self.value(source) if isinstance(source, Expr) else source

    def _arithmetic(self, op: Apply | SumLanes) -> Run:
        registers, counts, dst = self.registers, self.around.counts, op.dst.name
        if isinstance(op, SumLanes):
            src = op.src.name
            return lambda: registers.__setitem__(dst, summed(registers[src]))
        compute = NUMPY[op.fn]
        constants = [np.int32(arg) if isinstance(arg, int) else None for arg in op.args]
        names = [arg.name if isinstance(arg, Register) else "" for arg in op.args]
        taken = list(zip(names, constants, strict=True))

        def run() -> None:
            counts.elementary_operations += 1
            registers[dst] = compute(*[registers[name] if name else c for name, c in taken])

        return run

    def _fill_lanes(self, op: FillLanes) -> Run:
        registers, dst, src, other = self.registers, op.dst.name, op.src.name, op.other.name
        chosen = np.arange(op.dst.vector.lanes) < self._active(op.active, op.dst.vector.lanes)
        return lambda: registers.update({dst: np.where(chosen, registers[src], registers[other])})

    def _take_lanes(self, op: TakeLanes) -> Run:
        registers, vector = self.registers, op.dst.vector
        count = op.first or 1

        def run() -> None:
            found = np.full(vector.lanes, anything(vector), DTYPES[vector.element])
            found[:count] = registers[op.src.name][op.first : op.first + count]
            registers[op.dst.name] = found

        return run

    def _interleave(self, op: Interleave | Unzip) -> Run:
        registers, dst, x, y = self.registers, op.dst.name, op.x.name, op.y.name
        lanes, block = op.x.vector.lanes, op.block
        part, once = np.dtype(DTYPES[op.x.vector.element]), op.dst.vector.lanes > lanes
        if isinstance(op, Interleave) and op.bits:
            part = np.dtype(f"u{op.bits // 8}")
            lanes *= 32 // op.bits
            half = np.arange(lanes).reshape(-1, 2, 64 // op.bits, 1)[:, int(op.odd)]
        else:
            half = np.arange(lanes).reshape(-1, 1 if once else 2, block)[:, int(op.odd)]
        # Interleave takes blocks of x and y alternately, Unzip takes all blocks of x first.
        turn = half.ndim - 1 if isinstance(op, Interleave) else 0
        places = np.stack([half, half + lanes], axis=turn).ravel()

        def run() -> None:
            both = np.concatenate((registers[x], registers[y]))
            registers[dst] = both.view(part)[places].view(both.dtype)

        return run


def _sequence(runs: Sequence[Run]) -> Run:
    def run() -> None:
        for step in runs:
            step()

    return run
