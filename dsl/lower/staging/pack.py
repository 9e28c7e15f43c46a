"""Packing a block of A or B, transposed where needed, so that vectors lie along it.

A packed operand is stored as ``[K][extent]``, as ``[extent][K]`` where vectors lie along K, or in
panels as wide as a register tile, each of them ``[K][width]``: its vectors are contiguous and
follow each other along K. What is contiguous the other way in memory is transposed in registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sympy import Expr

from tilewright.errors import ScheduleError
from tilewright.ir.dataflow import sizes_used
from tilewright.ir.nest import Argument, BlockLoop, Call, NestNode, When, repeated
from tilewright.ir.ops import (
    Load,
    MakeMask,
    Op,
    Parameter,
    Store,
    TileProgram,
    Zero,
)
from tilewright.ir.stages import STACK_BYTES
from tilewright.ir.values import Active, Address, MaskRegister, Register
from tilewright.isa.vector import Vector
from tilewright.lower.transpose import grid_nest
from tilewright.plan.operands import LINE, Operand, whole_groups
from tilewright.plan.plan import Plan
from tilewright.plan.routines.transpose import move_plan
from tilewright.plan.tiling.parts import Part, cut, panel_parts
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ONE, ZERO, div, linear, value

from .buffers import conversion_of, margin, whole_steps
from .conversion import Conversion
from .convert_groups import conversion_nest
from .convert_panels import panel_nest, spilled

#: Lines that one call copies.
COPY_LINES = 4
#: Vectors of each line that one call copies.
COPY_VECTORS = 4
#: In how many multiply-adds a vector is packed that comes from beyond the near caches.
WORK = 16


@dataclass(frozen=True, slots=True)
class Packed:
    """The operand as the tiles see it, and the nodes and tiles that fill it."""

    operand: Operand
    elements: Expr
    nodes: tuple[NestNode, ...]
    tiles: tuple[TileProgram, ...]


def pack(
    plan: Plan, buffer: Operand, extents: dict[str, Expr], at: Expr, prefix: str, *, alone: bool
) -> Packed:
    """Pack into ``buffer`` the block of its operand that starts ``at`` elements in.

    ``alone``: one thread does, as others pack other blocks.
    """
    name = buffer.name
    line = LINE[name]
    extent, depth = extents[line], extents["k"]
    width = plan.panel(name)
    shared = plan.shared and not alone
    if width is not None:
        return _panels(plan, buffer, (line, extent, depth), width, (at, prefix), shared=shared)
    if plan.product.unit is not None:
        return _converted(plan, buffer, extents, (at, prefix), shared=shared)
    if plan.dot:
        nodes, tiles = _turned(plan, buffer, (depth, extent), (at, ZERO), prefix)
        return Packed(buffer, buffer.strides[line] * extent, nodes, tiles)
    leading, spare = buffer.strides["k"], spare_elements(plan, name)
    nodes, tiles = _moved(plan, buffer, (line, extent, depth), (at, ZERO), prefix)
    zeros, pads = pad(plan, buffer, (extent, depth), spare, prefix)
    return Packed(buffer, leading * depth + spare, zeros + nodes, pads + tiles)


def _converted(
    plan: Plan,
    buffer: Operand,
    extents: dict[str, Expr],
    place: tuple[Expr, str],
    *,
    shared: bool,
) -> Packed:
    """A block as a matrix unit reads it: rows along K, or groups of K side by side."""
    at, prefix = place
    c = replace(_conversion(plan, buffer, prefix), shared=shared)
    c = whole_steps(plan, c, extents["k"])
    nodes, tiles = conversion_nest(c, extents, (at, ZERO))
    elements = buffer.strides["b"] + margin(plan)
    return Packed(buffer, elements, nodes, tuple(tiles.values()))


def _moved(
    plan: Plan, buffer: Operand, block: tuple[str, Expr, Expr], at: tuple[Expr, Expr], prefix: str
) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """The nodes and tiles that pack a block: its lines, their length and number.

    ``at`` are the elements before the first of the operand's, and of the buffer's.
    """
    (line, extent, depth), source = block, plan.operands[buffer.name]
    width = plan.panel(buffer.name)
    if width is not None and not plan.plain:
        extents = {line: extent, "k": depth}
        padded = plan.input_of(plan.along).name == buffer.name or plan.product.blocks
        c = _conversion(plan, buffer, prefix)
        nodes, tiles = panel_nest(c, extents, at, width, padded=padded)
        return nodes, tuple(tiles.values())
    if value(source.strides[line]) == 1:
        return _copy(plan, source, buffer, block, at, prefix)
    return _turned(plan, buffer, (extent, depth), at, prefix)


def _turned(
    plan: Plan, buffer: Operand, size: tuple[Expr, Expr], at: tuple[Expr, Expr], prefix: str
) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """The nodes and tiles that transpose a block: the number of its lines, and their length."""
    source, line = plan.operands[buffer.name], LINE[buffer.name]
    read, written = ("k", line) if plan.dot else (line, "k")
    strides = (source.strides[read], buffer.strides[written])
    by = 2 if plan.panel_tile is None else 4
    moves = move_plan(plan.target, source.type, size, strides, plan.slots, by)
    return grid_nest(moves, (source.buffer, buffer.buffer), at, prefix)


def _panels(
    plan: Plan,
    buffer: Operand,
    block: tuple[str, Expr, Expr],
    width: int,
    place: tuple[Expr, str],
    *,
    shared: bool,
) -> Packed:
    """Pack into ``[panel][K][width]``: whole panels, then one of what is left.

    ``shared``: threads share the whole ones, unless one is written beyond its end, where the next
    one must come later.
    """
    (line, extent, depth), (at, prefix) = block, place
    step = plan.operands[buffer.name].strides[line]
    along = value(step) == 1
    whole = whole_groups(depth, plan.product) * plan.product.group
    nodes: tuple[NestNode, ...] = ()
    tiles: dict[str, TileProgram] = {}
    for part in panel_parts(extent, width):
        first = part.at("pp")
        panel = (line, part.size, depth)
        found, programs = _moved(plan, buffer, panel, (at + first * step, first * whole), prefix)
        tiles |= {program.name: program for program in programs}
        # Lines that lie along panels are read through all of them, as they follow each other.
        through = along and part.count != 1
        nodes += tuple(_through(part, found)) if through else in_panels("pp", part, found)
    beyond = 0 if plan.plain else spilled(_conversion(plan, buffer, prefix), width)
    if shared and not beyond and isinstance(nodes[0], BlockLoop):
        size = COPY_LINES * extent if along else width * depth
        work = div(WORK * size, plan.lanes)
        nodes = replace(nodes[0], parallel=True, work=work), *nodes[1:]
    elements = div(extent + (width - 1), width) * width * whole + beyond
    return Packed(buffer, elements, nodes, tuple(tiles.values()))


def _conversion(plan: Plan, buffer: Operand, prefix: str) -> Conversion:
    """How elements get into ``buffer``."""
    c = conversion_of(plan, buffer.name, plan.operands[buffer.name], buffer)
    return replace(c, prefix=prefix, slots=plan.slots)


def _through(part: Part, nodes: tuple[NestNode, ...]) -> Iterator[NestNode]:
    """``nodes`` for every panel of ``part``, inside of the loops that they are."""
    for node in nodes:
        if isinstance(node, BlockLoop):
            yield replace(node, body=tuple(_through(part, node.body)))
        else:
            yield from in_panels("pp", part, (node,))


def in_panels(
    counter: str, part: Part, nodes: tuple[NestNode, ...], *, parallel: bool = False
) -> tuple[NestNode, ...]:
    """``nodes`` for every panel of ``part``, or for the last one, if there is one."""
    if part.count != 1:
        note = f"panels of {part.units}"
        return (BlockLoop(counter, part.count, nodes, note=note, parallel=parallel),)
    return nodes if value(part.size) is not None else (When(part.size, tuple(_there(nodes, part))),)


def _there(nodes: Iterable[NestNode], part: Part) -> Iterator[NestNode]:
    """``nodes`` where the part has elements: those that ask just that need not ask again."""
    for node in nodes:
        if isinstance(node, When) and node.count == part.size and not node.otherwise:
            yield from node.body
        else:
            yield node


def stack_bytes(operand: Operand, elements: Expr) -> int | None:
    """The bytes of a buffer that fits on the stack, else None."""
    known = value(elements)
    size = None if known is None else known * ITEMSIZE[operand.type]
    return size if size is not None and size <= STACK_BYTES else None


def beyond_stack(plan: Plan, what: str, operand: Operand, elements: Expr) -> ScheduleError:
    """The error for a block that a parallel loop cannot keep on its thread's stack."""
    known = value(elements)
    size = None if known is None else known * ITEMSIZE[operand.type]
    outer = plan.outer.lower()
    return ScheduleError(
        f"{what} inside of a parallel loop needs its thread's stack",
        got="a size known only at the call" if size is None else f"{size} bytes",
        expected=f"{STACK_BYTES} bytes or fewer",
        hint=f"a smaller block, or loops={outer[:-1] + outer[-1].upper() + plan.inner!r}",
    )


def _copy(
    plan: Plan,
    source: Operand,
    buffer: Operand,
    block: tuple[str, Expr, Expr],
    at: tuple[Expr, Expr],
    prefix: str,
) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """The nodes and tiles that pack lines which are contiguous already."""
    line, extent, depth = block
    width = COPY_VECTORS * plan.lanes
    tiles: dict[str, TileProgram] = {}
    nodes: list[NestNode] = []
    by = 2 if plan.panel_tile is None else 4
    for over in cut(extent, width, by=by):
        for down in cut(depth, COPY_LINES, by=by):
            program = _copy_tile(plan, source, buffer, (down.units, over.units), prefix)
            tiles.setdefault(program.name, program)
            row, col = down.at("kp"), over.at("vp")
            places = tuple(
                Argument(o.buffer, first + row * o.strides["k"] + col * o.strides[line])
                for o, first in zip((source, buffer), at, strict=True)
            )
            nodes += repeated(
                "vp",
                over.count,
                repeated("kp", down.count, (Call(program.name, places),), "pack"),
                "pack",
            )
    return tuple(nodes), tuple(tiles.values())


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
    return TileProgram(
        name=f"{prefix}copy_{size[0]}x{size[1]}",
        element=plan.element,
        parameters=(
            Parameter("x", "in"),
            Parameter("out", "out"),
            *(Parameter(slot, "size") for slot in sizes_used(ops, plan.slots)),
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


#: Lines that one call pads.
PAD_LINES = 4


def spare_elements(plan: Plan, name: str) -> int:
    """How many elements tiles may read behind the last line of packed operand ``name``.

    A tile that does not begin at a multiple of a vector's lanes may end up to a vector behind what
    its line is padded to.
    """
    if not plan.bounces or plan.input_of(plan.along).name != name:
        return 0
    lanes = plan.lanes
    steps = [plan.asked_tile[1]] if plan.asked_tile else []
    steps += [plan.blocks[plan.along]] if plan.along in plan.blocks else []
    return lanes if any(step % lanes for step in steps) else 0


def pad(
    plan: Plan, buffer: Operand, size: tuple[Expr, Expr], spare: int, prefix: str
) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """Zeros for the last vector of every line, before it is filled, and for the ``spare`` elements.

    ``size`` is the elements of a line, without its padding, and the number of lines.
    """
    extent, depth = size
    if not plan.bounces or plan.input_of(plan.along).name != buffer.name:
        return (), ()
    leading, vector = buffer.strides["k"], plan.target.of(plan.element)[0]
    tiles: dict[str, TileProgram] = {}
    nodes: list[NestNode] = []
    if value(leading - extent) != 0:
        for part in cut(depth, PAD_LINES):
            program = _pad_tile(plan, vector, part.units, leading, prefix)
            tiles.setdefault(program.name, program)
            row = part.at("kp")
            at = row * leading + (leading - vector.lanes)
            call = Call(program.name, (Argument(buffer.buffer, at),))
            looped = BlockLoop("kp", part.count, (call,), note="pad")
            nodes.append(call if part.count == 1 else looped)
    if spare:
        program = _pad_tile(plan, vector, 1, leading, prefix)
        tiles.setdefault(program.name, program)
        nodes.append(Call(program.name, (Argument(buffer.buffer, depth * leading),)))
    return tuple(nodes), tuple(tiles.values())


def _pad_tile(plan: Plan, vector: Vector, lines: int, leading: Expr, prefix: str) -> TileProgram:
    zero = Register("zero", vector)
    at = (Address("out", linear(((line, leading),))) for line in range(lines))
    ops: tuple[Op, ...] = (Zero(zero), *(Store(address, zero) for address in at))
    return TileProgram(
        name=f"{prefix}pad_{lines}",
        element=plan.element,
        parameters=(Parameter("out", "out"),),
        body=ops,
        end=(),
        summary=f"zeros where {lines} lines end",
    )
