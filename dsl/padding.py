"""The padding of packed lines: zeros, so that vectors may be loaded whole up to a line's end."""

from __future__ import annotations

from sympy import Expr

from .feed import Operand
from .isa import Vector
from .nesting import Argument, BlockLoop, Call, NestNode
from .plan import Plan
from .program import Address, Op, Parameter, Register, Store, TileProgram, Zero
from .symbolic import linear, symbol, value
from .transposition import parts

#: Lines that one call pads.
PAD_LINES = 4


def spare_elements(plan: Plan, name: str) -> int:
    """What tiles may read behind the last line of packed operand ``name``: less than a vector.

    A tile that begins within a vector ends within one, beyond what a line is padded to.
    """
    if not plan.bounces or plan.feeder(plan.along).name != name:
        return 0
    lanes = plan.lanes
    tile = plan.schedule.tile
    steps = [tile["mn".index(plan.along)]] if tile else []
    steps += [plan.blocks[plan.along]] if plan.along in plan.blocks else []
    return lanes if any(step % lanes for step in steps) else 0


def pad(
    plan: Plan, buffer: Operand, size: tuple[Expr, Expr], spare: int, prefix: str
) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """Zero the last vector of every line, before the line is filled, and what is spare.

    ``size`` is a line's elements, without the padding, and the number of lines.
    """
    extent, depth = size
    if not plan.bounces or plan.feeder(plan.along).name != buffer.name:
        return (), ()
    leading, vector = buffer.strides["k"], plan.target.of(plan.element)[0]
    tiles: dict[str, TileProgram] = {}
    nodes: list[NestNode] = []
    if value(leading - extent) != 0:
        for part in parts(depth, PAD_LINES):
            program = _pad_tile(plan, vector, part.size, leading, prefix)
            tiles.setdefault(program.name, program)
            row = part.start if part.count == 1 else part.start + part.size * symbol("kp")
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
