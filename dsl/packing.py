"""Packing: a block of A or B copied, transposed where needed, so that vectors lie along it.

A packed operand is stored as ``[K][extent]``: its vectors are contiguous and follow each other
along K. What is contiguous along K in memory is transposed in registers on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sympy import Expr

from .dataflow import sizes_used
from .errors import ScheduleError
from .feed import Operand
from .isa import Vector
from .nesting import Argument, BlockLoop, Call, NestNode
from .padding import pad, spare_elements
from .plan import STACK_BYTES, Plan
from .program import (
    Active,
    Address,
    Load,
    MakeMask,
    MaskRegister,
    Op,
    Parameter,
    Register,
    Store,
    TileProgram,
)
from .symbolic import ONE, div, linear, symbol, value
from .transposed import grid_nest
from .transposition import Part, move_plan, parts
from .types import ITEMSIZE

#: Lines that one call copies.
COPY_LINES = 4
#: Vectors of each line that one call copies.
COPY_VECTORS = 4


@dataclass(frozen=True, slots=True)
class Packed:
    """The operand as the tiles see it, and the nodes and tiles that fill it."""

    operand: Operand
    elements: Expr
    nodes: tuple[NestNode, ...]
    tiles: tuple[TileProgram, ...]


def pack(plan: Plan, name: str, extents: dict[str, Expr], at: Expr, prefix: str) -> Packed:
    """Pack the block of operand ``name`` that starts ``at`` elements behind its first."""
    source = plan.operands[name]
    line = "m" if name == "a" else "n"
    extent, depth = extents[line], extents["k"]
    lanes = plan.lanes
    leading = extent if value(extent) is None else div(extent + lanes - 1, lanes) * lanes
    spare = spare_elements(plan, name)
    buffer = replace(source, strides={line: ONE, "k": leading}, buffer=f"{name}_packed")
    sizes = tuple(slot for slot, _ in plan.spec.runtime_sizes())
    if value(source.strides[line]) == 1:
        nodes, tiles = _copy(plan, source, buffer, (line, extent, depth), at, prefix)
    else:
        strides = (source.strides[line], leading)
        moves = move_plan(plan.target, source.type, (extent, depth), strides, sizes)
        nodes, tiles = grid_nest(moves, (source.buffer, buffer.buffer), at, prefix)
    zeros, pads = pad(plan, buffer, (extent, depth), spare, prefix)
    return Packed(buffer, leading * depth + spare, zeros + nodes, pads + tiles)


def stack_bytes(operand: Operand, elements: Expr) -> int | None:
    """The bytes of a buffer that fits on the stack, else None."""
    known = value(elements)
    size = None if known is None else known * ITEMSIZE[operand.type]
    return size if size is not None and size <= STACK_BYTES else None


def beyond_stack(plan: Plan, packed: Packed) -> ScheduleError:
    """The error for a block that a parallel loop cannot keep on its thread's stack."""
    known = value(packed.elements)
    size = None if known is None else known * ITEMSIZE[packed.operand.type]
    outer = plan.outer.lower()
    return ScheduleError(
        f"packing {packed.operand.name} inside of a parallel loop needs its thread's stack",
        got="a size known only at the call" if size is None else f"{size} bytes",
        expected=f"{STACK_BYTES} bytes or fewer",
        hint=f"a smaller block, or loops={outer[:-1] + outer[-1].upper() + plan.inner!r}",
    )


def _copy(
    plan: Plan,
    source: Operand,
    buffer: Operand,
    block: tuple[str, Expr, Expr],
    at: Expr,
    prefix: str,
) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """Lines that are contiguous already."""
    line, extent, depth = block
    width = COPY_VECTORS * plan.lanes
    tiles: dict[str, TileProgram] = {}
    nodes: list[NestNode] = []
    for over in parts(extent, width):
        for down in parts(depth, COPY_LINES):
            program = _copy_tile(plan, source, buffer, (down.size, over.size), prefix)
            tiles.setdefault(program.name, program)
            row, col = _position(down, "kp"), _position(over, "vp")
            places = tuple(
                Argument(o.buffer, first + row * o.strides["k"] + col * o.strides[line])
                for o, first in ((source, at), (buffer, 0 * ONE))
            )
            nodes += _loop("vp", over, _loop("kp", down, (Call(program.name, places),)))
    return tuple(nodes), tuple(tiles.values())


def _position(part: Part, counter: str) -> Expr:
    return part.start if part.count == 1 else part.start + part.size * symbol(counter)


def _loop(counter: str, part: Part, body: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
    return body if part.count == 1 else (BlockLoop(counter, part.count, body, note="pack"),)


def _copy_tile(
    plan: Plan, source: Operand, buffer: Operand, size: tuple[int, int], prefix: str
) -> TileProgram:
    """``size`` is in lines and elements of a line."""
    ops: list[Op] = []
    masks: set[str] = set()
    for row in range(size[0]):
        for vector, col, active in _cover(plan, size[1]):
            register = Register(f"x{row}_{col}", vector)
            how = _active(vector, active)
            if isinstance(how, MaskRegister) and how.name not in masks:
                masks.add(how.name)
                ops.append(MakeMask(how))
            read, write = (
                Address(pointer, linear(((row, o.strides["k"]), (col, ONE))))
                for pointer, o in (("x", source), ("out", buffer))
            )
            ops += [Load(register, read, how), Store(write, register, how)]
    slots = [slot for slot, _ in plan.spec.runtime_sizes()]
    return TileProgram(
        name=f"{prefix}copy_{size[0]}x{size[1]}",
        element=plan.element,
        parameters=(
            Parameter("x", "in"),
            Parameter("out", "out"),
            *(Parameter(slot, "size") for slot in sizes_used(ops, slots)),
        ),
        body=tuple(ops),
        end=(),
        summary=f"{size[0]} lines of {size[1]} elements",
    )


def _cover(plan: Plan, width: int) -> Iterator[tuple[Vector, int, int]]:
    """(vector, first element, active lanes) that together cover a line."""
    at = 0
    for vector in plan.target.of(plan.element):
        while width - at >= vector.lanes:
            yield vector, at, vector.lanes
            at += vector.lanes
        if at < width and vector.cuts(width - at):
            yield vector, at, width - at
            return


def _active(vector: Vector, active: int) -> Active:
    if active == vector.lanes:
        return None
    return MaskRegister(f"{vector.name}_{active}", vector, active * ONE) if vector.mask else active
