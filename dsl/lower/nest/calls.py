"""The current block of a nest, and the calls of register tiles in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sympy import Expr

from tilewright.ir.nest import Argument, BlockLoop, Call, Name, NestNode, when
from tilewright.ir.ops import TileProgram
from tilewright.ir.stages import ALIGNMENT
from tilewright.lower.staging.pack import stack_bytes
from tilewright.lower.tile.assemble import lower_tile
from tilewright.lower.tile.tile import Tile
from tilewright.plan.operands import Operand
from tilewright.plan.plan import Plan
from tilewright.plan.problem import Problem, Staging
from tilewright.plan.tiling.parts import Part
from tilewright.plan.tiling.tiles import RegisterTile
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ZERO, c_text, div, simplify, value


@dataclass(frozen=True, slots=True)
class Block:
    """The current block of a nest: extents and origin in elements.

    ``here`` has the operands as they are packed at this point; ``bases`` has the origins of packed
    blocks. The origins ``pm`` and ``pn`` are those of the panels of A and B. The origin ``bn`` is
    that of the block of columns in the caller's packed B. ``parallel`` is True inside a parallel
    loop.
    """

    plan: Plan
    here: Staging
    extents: dict[str, Expr]
    origin: dict[str, Expr]
    bases: dict[str, dict[str, Expr]] = field(default_factory=dict)
    parallel: bool = False

    def inside(self, letter: str, extent: Expr, origin: Expr) -> Block:
        """Return the block with ``extent`` along a dimension, ``origin`` elements after this
        block's origin.
        """
        origins = self.origin | {letter: self.origin[letter] + origin}
        return replace(self, extents=self.extents | {letter: extent}, origin=origins)


def called(tiles: TileSet, block: Block, tile: RegisterTile, along: Part, across: Part) -> Call:
    """Return the call of a tile at its place in a part of the grid."""
    plan, program = block.plan, tiles.get(block.here, tile)
    parts = {plan.problem.along: along, plan.problem.across: across}
    origin = dict(block.origin)
    for dim in "mn":
        origin[dim] = origin[dim] + parts[dim].at(f"{dim}t")
    if plan.staging.unpacks:
        origin["bn"] = div(origin["n"], plan.staging.quantized.nb) * plan.staging.quantized.nb
    return Call(program.name, tuple(_arguments(block, program, origin)))


def looped(
    dim: str, part: Part, body: tuple[NestNode, ...], parallel: set[str], first: int = 0
) -> tuple[NestNode, ...]:
    """Return ``body`` in a loop over the tiles of a part, from tile ``first`` on.

    If the part has at most one tile, there is no loop, only a test if needed.
    """
    if part.single:
        return when(part.count, body) if part.once else body
    note = f"{dim} by {c_text(part.size)}"
    return (BlockLoop(f"{dim}t", part.count, body, first, note, dim in parallel),)


def _arguments(block: Block, program: TileProgram, origin: dict[str, Expr]) -> Iterator[Argument]:
    operands = block.here.operands
    for parameter in program.parameters:
        name = parameter.name
        if parameter.role in ("in", "out"):
            base = block.bases.get(name, {})
            moved = {dim: at - base.get(dim, ZERO) for dim, at in origin.items()}
            operand, place = operands[name], offset_of(operands[name], moved)
            if operand.at is None:
                yield Argument(operand.buffer, place, block.here.recast(name))
            else:
                there = operand.at + ITEMSIZE[operand.type] * place
                yield Argument(operand.buffer, there, cast=True)
        elif parameter.role in ("table", "offsets"):
            yield Argument(Name(name), ZERO)
        elif parameter.role == "at":
            yield Argument(None, offset_of(operands[name.removesuffix("_at")], origin))


def offset_of(operand: Operand, origin: dict[str, Expr]) -> Expr:
    """Return the offset of the element at ``origin`` from the operand's first element, in
    elements.
    """
    dims = {dim: at for dim, at in origin.items() if dim != "b" or operand.packed}
    terms = (at * operand.strides.get(dim, ZERO) for dim, at in dims.items())
    return simplify(sum(terms, ZERO))


@dataclass(slots=True)
class TileSet:
    """The tile programs and scratch buffers made so far. ``prefix`` begins the tiles' names.

    ``scratch`` and ``worker_scratch`` have the bytes of each buffer in the scratch memory of the
    call and in that of a thread.
    """

    plan: Plan
    prefix: str = ""
    programs: dict[object, TileProgram] = field(default_factory=dict)
    scratch: dict[tuple[Name, Expr], Expr] = field(default_factory=dict)
    worker_scratch: dict[tuple[Name, Expr], Expr] = field(default_factory=dict)
    groups: int = 0

    def next_group(self) -> int:
        """Return a new group number for the loops that cover one block of C; 0 if they overlap.

        Loops of one group may run at the same time (``BlockLoop.beside``).
        """
        if self.plan.spec.outputs or self.plan.problem.schedule.tails == "overlap":
            return 0
        self.groups += 1
        return self.groups

    def get(self, here: Staging, tile: RegisterTile) -> TileProgram:
        """Return the program of ``tile``; ``here`` has its operands as they are packed there."""
        key = "tile", tile.number
        if key not in self.programs:
            name = f"{self.prefix}tile{len(self.programs)}_{_size(self.plan.problem, tile)}"
            self.programs[key] = lower_tile(Tile(self.plan, here, tile), name)
        return self.programs[key]

    def place(
        self, operand: Operand, elements: Expr, *, parallel: bool = False
    ) -> tuple[Expr | None, bool]:
        """Return the fields ``scratch`` and ``of_worker`` of a ``Pack``: where its buffer is.

        A buffer of known size up to STACK_BYTES is on the stack. A larger one is in scratch memory:
        in that of the thread if it is in a ``parallel`` loop, else in that of the call. Buffers of
        the same operand and size share a place.
        """
        if stack_bytes(operand, elements) is not None:
            return None, False
        scratch = self.worker_scratch if parallel else self.scratch
        size = elements * ITEMSIZE[operand.type]
        place = (operand.buffer, size)
        scratch.setdefault(place, div(size + ALIGNMENT - 1, ALIGNMENT) * ALIGNMENT)
        before = list(scratch)[: list(scratch).index(place)]
        return sum((scratch[other] for other in before), ZERO), parallel


def _size(problem: Problem, tile: RegisterTile) -> str:
    known = {"m": value(tile.mr), "n": value(tile.nr)}
    sizes = {dim: "tail" if size is None else str(size) for dim, size in known.items()}
    sizes[problem.across] = str(tile.shape.rows)
    return f"{sizes['m']}x{sizes['n']}"
