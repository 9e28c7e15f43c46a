"""Pack a block of A or B, transposed if necessary, so that vectors are contiguous along it.

A packed operand has the layout ``[K][extent]``; if vectors run along K, ``[extent][K]``. Or it
consists of panels as wide as a register tile, each ``[K][width]``: the vectors of a panel follow
each other along K. If the source is contiguous in the other direction, it is transposed in
registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from sympy import Expr

from tilewright.ir.nest import Argument, BlockLoop, NestNode, When, repeated, when
from tilewright.ir.ops import (
    TileProgram,
)
from tilewright.ir.stages import STACK_BYTES
from tilewright.lower.move import MoveNest
from tilewright.lower.transpose import grid_nest
from tilewright.plan.operands import LINE, Operand, whole_groups
from tilewright.plan.plan import Plan
from tilewright.plan.problem import Staging
from tilewright.plan.routines.copy import BLOCK_DEPTH, block_move, filling, operand_layout
from tilewright.plan.routines.transpose import move_plan
from tilewright.plan.tiling.parts import Part, cut, panel_parts
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ONE, ZERO, div, value

from .buffers import Filled, conversion_of, margin, zero_groups
from .convert import ConversionNest

#: The time to pack a vector from L3 or memory, in multiply-adds.
WORK = 16


def pack(
    plan: Plan, buffer: Operand, extents: dict[str, Expr], at: Expr, prefix: str, *, alone: bool
) -> Filled:
    """Pack the block of an operand that starts at element ``at`` into ``buffer``.

    ``alone`` is True if one thread packs the block, because other threads pack other blocks.
    """
    name = buffer.name
    line = LINE[name]
    extent, depth = extents[line], extents["k"]
    width = plan.panel(name)
    shared = plan.shared and not alone
    if width is not None:
        return _panels(plan, buffer, (line, extent, depth), width, (at, prefix), shared=shared)
    if plan.staging.product.unit is not None:
        return _converted(plan, buffer, extents, (at, prefix), shared=shared)
    if plan.problem.dot:
        nodes, tiles = _turned(plan, buffer, (depth, extent), (at, ZERO), prefix)
        return Filled(buffer, buffer.strides[line] * extent, nodes, tiles)
    leading, spare = buffer.strides["k"], spare_elements(plan, name)
    nodes, tiles = _moved(plan, buffer, (line, extent, depth), (at, ZERO), prefix)
    fills = MoveNest(filling(plan.target, buffer.buffer, buffer.type, plan.slots), prefix=prefix)
    zeros = tuple(_pad(plan.staging, buffer, (extent, depth), spare, fills))
    tiles = (*fills.tiles.values(), *tiles)
    return Filled(buffer, leading * depth + spare, zeros + nodes, tiles)


def _converted(
    plan: Plan,
    buffer: Operand,
    extents: dict[str, Expr],
    place: tuple[Expr, str],
    *,
    shared: bool,
) -> Filled:
    """Pack a block for a matrix unit: as rows along K, or as K groups of adjacent rows or
    columns.
    """
    nest = _conversion(plan, buffer, extents, (place[0], ZERO), place[1])
    nest.zero_groups, nest.shared = zero_groups(plan.staging, extents["k"]), shared
    elements, nodes = buffer.strides["b"] + margin(plan.staging), tuple(nest.moves())
    return Filled(buffer, elements, nodes, tuple(nest.tiles.values()))


def _moved(
    plan: Plan, buffer: Operand, block: tuple[str, Expr, Expr], at: tuple[Expr, Expr], prefix: str
) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """Return the nodes and tiles that pack ``block``: its dimension, its extent, and its depth in
    K.

    ``at`` has the first element in the operand and in the buffer.
    """
    (line, extent, depth), source = block, plan.staging.operands[buffer.name]
    width = plan.panel(buffer.name)
    if width is not None and not plan.staging.plain:
        extents = {line: extent, "k": depth}
        padded = (
            plan.staging.input_of(plan.problem.along).name == buffer.name
            or plan.staging.product.blocks
        )
        nest = _conversion(plan, buffer, extents, at, prefix)
        return tuple(nest.panel(width, padded=padded)), tuple(nest.tiles.values())
    if value(source.strides[line]) == 1:
        return _copy(plan, buffer, block, at, prefix)
    return _turned(plan, buffer, (extent, depth), at, prefix)


def _turned(
    plan: Plan, buffer: Operand, size: tuple[Expr, Expr], at: tuple[Expr, Expr], prefix: str
) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """Return the nodes and tiles that transpose a block.

    ``size`` is the number of contiguous runs in the source, and their length.
    """
    source, line = plan.staging.operands[buffer.name], LINE[buffer.name]
    read, written = ("k", line) if plan.problem.dot else (line, "k")
    strides = (source.strides[read], buffer.strides[written])
    by = 2 if plan.nest.panel_tile is None else 4
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
) -> Filled:
    """Pack into ``[panel][K][width]``: whole panels, then an incomplete one.

    If ``shared`` is True, threads share the whole panels. This is impossible if a panel writes past
    its end, because the next panel must then be written later.
    """
    (line, extent, depth), (at, prefix) = block, place
    step = plan.staging.operands[buffer.name].strides[line]
    along = value(step) == 1
    whole = whole_groups(depth, plan.staging.product) * plan.staging.product.group
    nodes: tuple[NestNode, ...] = ()
    tiles: dict[str, TileProgram] = {}
    for part in panel_parts(extent, width):
        first = part.at("pp")
        panel = (line, part.size, depth)
        found, programs = _moved(plan, buffer, panel, (at + first * step, first * whole), prefix)
        tiles |= {program.name: program for program in programs}
        # If a row of the source belongs to several panels, it is read once for all of them.
        through = along and part.count != 1
        nodes += tuple(_through(part, found)) if through else in_panels("pp", part, found)
    beyond = 0
    if not plan.staging.plain:
        beyond = _conversion(plan, buffer, {line: extent, "k": depth}, (at, ZERO)).spilled(width)
    if shared and not beyond and isinstance(nodes[0], BlockLoop):
        size = BLOCK_DEPTH * extent if along else width * depth
        work = div(WORK * size, plan.staging.lanes)
        nodes = replace(nodes[0], parallel=True, work=work), *nodes[1:]
    elements = div(extent + (width - 1), width) * width * whole + beyond
    return Filled(buffer, elements, nodes, tuple(tiles.values()))


def _conversion(
    plan: Plan, buffer: Operand, extents: dict[str, Expr], at: tuple[Expr, Expr], prefix: str = ""
) -> ConversionNest:
    """Return the loops that convert a block of size ``extents``, and pack it into ``buffer``."""
    source = plan.staging.operands[buffer.name]
    nest = conversion_of(plan.staging, source, buffer, extents, at)
    return replace(nest, prefix=prefix, move=replace(nest.move, slots=plan.slots))


def _through(part: Part, nodes: tuple[NestNode, ...]) -> Iterator[NestNode]:
    """Yield ``nodes`` for every panel of ``part``: the loop over panels is innermost."""
    for node in nodes:
        if isinstance(node, BlockLoop):
            yield replace(node, body=tuple(_through(part, node.body)))
        else:
            yield from in_panels("pp", part, (node,))


def in_panels(
    counter: str, part: Part, nodes: tuple[NestNode, ...], *, parallel: bool = False
) -> tuple[NestNode, ...]:
    """Return ``nodes`` in a loop over the panels of ``part``, or for an incomplete panel if it
    exists.
    """
    if part.count != 1:
        note = f"panels of {part.units}"
        return (BlockLoop(counter, part.count, nodes, note=note, parallel=parallel),)
    return when(part.size, tuple(_there(nodes, part)))


def _there(nodes: Iterable[NestNode], part: Part) -> Iterator[NestNode]:
    """Yield ``nodes`` for a part that has elements, without tests of whether it has."""
    for node in nodes:
        if isinstance(node, When) and node.count == part.size and not node.otherwise:
            yield from node.body
        else:
            yield node


def stack_bytes(operand: Operand, elements: Expr) -> int | None:
    """Return the bytes of a buffer that fits on the stack, else None."""
    known = value(elements)
    size = None if known is None else known * ITEMSIZE[operand.type]
    return size if size is not None and size <= STACK_BYTES else None


def _copy(
    plan: Plan, buffer: Operand, block: tuple[str, Expr, Expr], at: tuple[Expr, Expr], prefix: str
) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """Return the nodes and tiles that copy a block that needs no transposition."""
    _, extent, depth = block
    operands = plan.staging.operands[buffer.name], buffer
    source, made = (operand_layout(operand, block[0]) for operand in operands)
    width = plan.panel(buffer.name)
    # If the size of a panel is known only at the call, the panel is not full.
    most = None if width is None else width - (value(extent) is None)
    move = block_move(plan.target, source, made, (extent, depth), plan.slots, most)
    by = 2 if plan.nest.panel_tile is None else 4
    nest = MoveNest(move, prefix=prefix, first=at, by=by)
    return tuple(nest.rows()), tuple(nest.tiles.values())


def spare_elements(plan: Plan, name: str) -> int:
    """Return the elements that tiles may read past the last row of packed operand ``name``.

    A tile that starts between multiples of a vector's lanes may read up to a vector past a row's
    padding.
    """
    if not plan.problem.bounces or plan.staging.input_of(plan.problem.along).name != name:
        return 0
    lanes = plan.staging.lanes
    steps = [plan.asked_tile[1]] if plan.asked_tile else []
    steps += (
        [plan.nest.blocks[plan.problem.along]] if plan.problem.along in plan.nest.blocks else []
    )
    return lanes if any(step % lanes for step in steps) else 0


def _pad(
    staging: Staging, buffer: Operand, size: tuple[Expr, Expr], spare: int, fills: MoveNest
) -> Iterator[NestNode]:
    """Yield nodes that set the last vector of every row, and the ``spare`` elements, to 0.

    They run before the rows are filled. ``size`` is the elements of a row, without padding, and the
    number of rows.
    """
    extent, depth = size
    if not staging.problem.bounces or staging.input_of(staging.problem.along).name != buffer.name:
        return
    leading, lanes = buffer.strides["k"], ONE * fills.move.filling[0].lanes
    if value(leading - extent) != 0:
        (row,) = cut(depth, 1)
        last = Argument(buffer.buffer, row.at("kp") * leading + (leading - lanes))
        yield from repeated("kp", depth, fills.fill(last, lanes), "pad")
    if spare:
        yield from fills.fill(Argument(buffer.buffer, depth * leading), lanes)
