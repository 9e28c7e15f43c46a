"""Run the operations of a matrix unit on numpy, where a register is a matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from sympy import Expr

from tilewright.elementwise.operations import NUMPY
from tilewright.ir.ops import (
    LoadMatrix,
    MultiplyBlock,
    MultiplyMatrices,
    ReadRows,
    StoreMatrix,
    TileProgram,
    WriteRow,
    ZeroMatrix,
)
from tilewright.isa.vector import MulAdd
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.types import ITEMSIZE, is_integer

from .lanes import Lanes, exact, product
from .memory import Segment

Run = Callable[[], None]
MatrixOp = (
    ZeroMatrix | LoadMatrix | StoreMatrix | MultiplyMatrices | MultiplyBlock | ReadRows | WriteRow
)
#: The smallest positive normal number of f32. Smaller numbers are flushed to zero.
_NORMAL = np.float32(2.0**-126)


class State(Protocol):
    """Interface of ``Tile`` for the operations of a matrix unit."""

    program: TileProgram
    registers: dict[str, Lanes]
    pointers: dict[str, tuple[Segment, int]]
    numbers: dict[str, int]

    @property
    def around(self) -> Any:
        """The ``Surroundings`` of the tile: data that all tiles of a run share."""

    def value(self, expr: Expr) -> int:
        """Return the value of ``expr`` for the sizes of this run."""


def compiled(tile: State, op: MatrixOp) -> Run:
    """Return a closure that runs ``op`` on the registers and memory of ``tile``."""
    match op:
        case ZeroMatrix():
            name, shape = _name(op.dst.name), (tile.value(op.dst.rows), op.dst.columns)
            return lambda: tile.registers.__setitem__(name, np.zeros(shape, DTYPES[op.dst.element]))
        case MultiplyMatrices():
            return _multiply(tile, op)
        case MultiplyBlock():
            return _multiply_block(tile, op)
        case WriteRow():
            return _write(tile, op)
        case ReadRows():
            return _read(tile, op)
        case _:
            return _move(tile, op)


def _name(register: str) -> str:
    """Return the key by which a tile's ``registers`` hold a matrix register."""
    return f"matrix {register}"


def _move(tile: State, op: LoadMatrix | StoreMatrix) -> Run:
    """Return a closure that loads or stores the rows of a matrix register, one by one."""
    register = op.src if isinstance(op, StoreMatrix) else op.dst
    matrices, name, element = tile.registers, _name(register.name), register.element
    rows, columns = tile.value(register.rows), register.columns
    pointers, counts, size = tile.pointers, tile.around.counts, rows * columns * ITEMSIZE[element]
    pointer, stride = op.address.pointer, tile.value(op.stride)
    starts = [tile.value(op.address.offset) + row * stride for row in range(rows)]
    who = f"{tile.program.name}: {register.name}"

    def load() -> None:
        counts.loads += 1
        counts.bytes_read += size
        segment, at = pointers[pointer]
        found = [segment.read(at + start, columns, element, who) for start in starts]
        matrices[name] = np.array(found).reshape(rows, columns)

    def store() -> None:
        counts.stores += 1
        counts.bytes_written += size
        segment, at = pointers[pointer]
        for row, start in zip(matrices[name], starts, strict=True):
            segment.write(at + start, row, element, who)

    return store if isinstance(op, StoreMatrix) else load


def _multiply(tile: State, op: MultiplyMatrices) -> Run:
    registers, counts = tile.registers, tile.around.counts
    acc, x, y = (_name(register.name) for register in (op.acc, op.x, op.y))
    add = _integers if is_integer(op.acc.element) else _floats

    def run() -> None:
        counts.multiply_adds += 1
        registers[acc] = add(op.op, registers[acc], registers[x], registers[y])

    return run


def _multiply_block(tile: State, op: MultiplyBlock) -> Run:
    registers, counts = tile.registers, tile.around.counts
    acc, x, y = _name(op.acc.name), op.x.name, op.y.name
    add = product(op.op, op.acc.element)

    def run() -> None:
        counts.multiply_adds += 1
        sums = registers[acc]
        registers[acc] = add(sums.reshape(-1), registers[x], registers[y]).reshape(sums.shape)

    return run


def _read(tile: State, op: ReadRows) -> Run:
    """Return a closure that copies rows to vectors. A loop's counter may give the first row."""
    registers, src, first = tile.registers, _name(op.src.name), op.first
    numbers, counter = tile.numbers, str(first)

    def run() -> None:
        begin = numbers[counter] if counter in numbers else tile.value(first)
        lines = registers[src].T if op.columns else registers[src]
        for line, dst in enumerate(op.dst, begin):
            registers[dst.name] = lines[line].copy()

    return run


def _write(tile: State, op: WriteRow) -> Run:
    """Return a closure that writes a row. Unwritten rows hold NaN, or the smallest integer."""
    registers, dst, src = tile.registers, _name(op.dst.name), op.src.name
    shape, type_ = (int(op.dst.rows), op.dst.columns), DTYPES[op.dst.element]
    nothing = np.iinfo(type_).min if is_integer(op.dst.element) else np.nan

    def run() -> None:
        before = registers.get(dst)
        found = np.full(shape, nothing, type_) if before is None else before.copy()
        found[op.row] = registers[src]
        registers[dst] = found

    return run


def _grouped(op: MulAdd, x: Lanes, y: Lanes) -> tuple[Lanes, Lanes]:
    """Return both factors with three indices: x[group, column, place], y[row, group, place]."""
    return x.reshape(len(x), -1, op.group), y.reshape(len(y), -1, op.group)


def _integers(op: MulAdd, acc: Lanes, x: Lanes, y: Lanes) -> Lanes:
    along, across = _grouped(op, x, y)
    sums = np.einsum("gcp,rgp->rc", along.astype(np.int64), across.astype(np.int64))
    total: Lanes = (acc + sums).astype(np.int32)
    return total


def _floats(op: MulAdd, acc: Lanes, x: Lanes, y: Lanes) -> Lanes:
    """Return ``acc + y x``, with additions in the order of instruction TDPBF16PS (Intel SDM).

    Even and odd products are summed separately, each rounded once with its sum. Then both sums are
    added, and the result is added to the accumulator. Denormal factors and sums count as zero.
    """
    along, across = _grouped(op, flushed(exact(x, op.x)), flushed(exact(y, op.y)))
    parts = np.zeros((op.group, *acc.shape), np.float32)
    for group in range(len(x)):
        for place in range(op.group):
            factors = across[:, group, place, None], along[None, group, :, place]
            parts[place] = flushed(NUMPY["fma"](*np.broadcast_arrays(*factors), parts[place]))
    total = parts[0]
    for part in parts[1:]:
        total = flushed(total + part)
    return flushed(flushed(acc) + total)


def flushed(found: Lanes) -> Lanes:
    """Return the numbers ``found`` with denormals replaced by zeros of the same sign."""
    return np.where(np.abs(found) < _NORMAL, np.copysign(np.float32(0), found), found)
