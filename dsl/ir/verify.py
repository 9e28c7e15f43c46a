"""The rules of tile programs, checked where they are made: an illegal program dies here."""

from __future__ import annotations

from collections.abc import Iterator

from sympy import Expr

from tilewright.errors import PlanError
from tilewright.isa.target import Target
from tilewright.symbolic import slots, value

from .dataflow import addresses, mask_of, matrices_of, reads, walk, writes
from .nest import BlockLoop, Call, NestNode, Pack, Program, SelectBatch, When, WhenSame
from .ops import (
    Advance,
    Load,
    LoadMatrix,
    Loop,
    MakeMask,
    MatrixRegister,
    MultiplyMatrices,
    Op,
    Point,
    PointBatch,
    Room,
    Store,
    TileProgram,
    ZeroMatrix,
)


def verify_program(program: Program, target: Target) -> None:
    """PlanError if a tile breaks a rule, or the nest calls a tile that does not exist."""
    for tile in program.tiles:
        verify_tile(tile, target)
    _verify_nests(program.nest, program)


def verify_tile(tile: TileProgram, target: Target) -> None:
    """Defined before use, defined once, pointers known, fits the registers."""
    pointers = {p.name for p in tile.parameters if p.role in ("in", "out")}
    tables = {p.name for p in tile.parameters if p.role in ("in", "table")}
    _Check(tile.name, pointers | tables, pointers).ops(tile.body + tile.end)
    _verify_matrices(tile, target)
    live = live_registers(tile)
    if live > target.registers:
        raise PlanError(
            f"{tile.name} keeps {live} vector registers alive on {target.name}",
            expected=f"{target.registers} or fewer",
        )


def _verify_matrices(tile: TileProgram, target: Target) -> None:
    """What a matrix unit faults on: too many registers, shapes that differ, one used twice."""
    shapes: dict[str, MatrixRegister] = {}
    for op in walk(tile.body + tile.end):
        found = matrices_of(op)
        for register in found:
            if shapes.setdefault(register.name, register) != register:
                raise PlanError(f"{tile.name}: {register.name} has two shapes", got=str(op))
        if isinstance(op, MultiplyMatrices):
            acc, x, y = found
            legal = acc.rows == y.rows and x.rows * op.op.group == y.columns
            if not legal or acc.columns * op.op.group != x.columns or len({*found}) < 3:
                raise PlanError(f"{tile.name}: matrices whose shapes do not match", got=str(op))
    most = target.matrix.registers if target.matrix else 0
    if len(shapes) > most:
        raise PlanError(
            f"{tile.name} uses {len(shapes)} matrix registers on {target.name}",
            expected=f"{most} or fewer",
        )


class _Check:
    """One walk over a tile program, remembering what is defined."""

    def __init__(self, tile: str, bases: set[str], pointers: set[str]) -> None:
        self.tile, self.bases = tile, bases
        self.pointers, self.registers, self.masks = set(pointers), set[str](), set[str]()
        self.rooms: dict[str, int] = {}

    def ops(self, ops: tuple[Op, ...]) -> None:
        for op in ops:
            if isinstance(op, Loop):
                self._loop(op)
            else:
                self._op(op)

    def _loop(self, loop: Loop) -> None:
        before = self.registers, self.masks, self.pointers
        self.registers, self.masks, self.pointers = (set(known) for known in before)
        self.ops(loop.body)
        self.registers, self.masks, self.pointers = before

    def _op(self, op: Op) -> None:
        for register in reads(op):
            self._need(register.name in self.registers, op, f"reads {register.name} undefined")
        accumulates = {r.name for r in reads(op)}
        for register in writes(op):
            again = register.name in self.registers and register.name not in accumulates
            self._need(not again, op, f"defines {register.name} twice")
            self.registers.add(register.name)
        self._matrices(op)
        mask = mask_of(op)
        self._need(mask is None or mask.name in self.masks, op, "uses a mask never made")
        for address in addresses(op):
            self._need(address.pointer in self.pointers, op, f"{address.pointer} is no pointer")
        if isinstance(op, MakeMask):
            self.masks.add(op.mask.name)
        if isinstance(op, (Point, PointBatch)):
            base = op.base if isinstance(op, Point) else op.operand
            self._need(base in self.bases | set(self.rooms), op, f"{base} is no operand")
            self.pointers.add(op.pointer)
        if isinstance(op, Room):
            self._need(op.name not in self.pointers, op, f"defines {op.name} twice")
            self.pointers.add(op.name)
            self.rooms[op.name] = op.elements
        if isinstance(op, Advance):
            self._need(op.pointer in self.pointers, op, f"{op.pointer} is no pointer")
        if isinstance(op, (Load, Store)):
            self._access(op)

    def _matrices(self, op: Op) -> None:
        """Those that are read were written; loads may write them again."""
        found = matrices_of(op)
        if isinstance(op, (ZeroMatrix, LoadMatrix)):
            self.registers.add(f"matrix {found[0].name}")
        for register in found:
            known = f"matrix {register.name}" in self.registers
            self._need(known, op, f"reads {register.name} undefined")

    def _access(self, op: Load | Store) -> None:
        vector = op.dst.vector if isinstance(op, Load) else op.src.vector
        if isinstance(op.active, int):
            most = vector.lanes * max(op.group, 1)
            self._need(0 < op.active <= most, op, f"touches {op.active} of {most} elements")
        if (room := self.rooms.get(op.address.pointer)) is not None:
            first = value(op.address.offset)
            inside = first is not None and 0 <= first <= room - vector.lanes
            self._need(inside, op, f"is not inside of the {room} elements there are")

    def _need(self, holds: bool, op: Op, problem: str) -> None:
        if not holds:
            raise PlanError(f"{self.tile}: {op.kind} {problem}", got=str(op))


def _verify_nest(node: NestNode, program: Program) -> None:
    match node:
        case Call():
            tile = program.tile(node.program)
            wanted = [p for p in tile.parameters if p.role not in ("size", "scalar")]
            if len(wanted) != len(node.arguments):
                raise PlanError(f"the call of {tile.name} passes {len(node.arguments)} arguments")
        case BlockLoop():
            if node.parallel:
                _verify_parallel(node, program)
            _verify_nests(node.body, program)
        case SelectBatch():
            _verify_nests(node.body, program)
        case Pack():
            _verify_nests(node.fill + node.body, program)
        case When() | WhenSame():
            _verify_nests(node.body + node.otherwise, program)


def _verify_parallel(loop: BlockLoop, program: Program) -> None:
    """PlanError unless each trip writes elements, and fills buffers, that are its own."""
    if loop.first != 0:
        raise PlanError("a parallel loop must begin at 0", got=loop.counter)
    for operand, offset in _written(loop.body, program):
        if loop.counter not in slots(offset):
            raise PlanError(
                f"all trips of the parallel loop {loop.counter} write the same place of {operand}",
                got=str(offset),
            )


def _written(nodes: tuple[NestNode, ...], program: Program) -> Iterator[tuple[str, Expr]]:
    """What is written outside of buffers on the stack: the operand, and where it begins."""
    for node in nodes:
        match node:
            case Call():
                tile = program.tile(node.program)
                wanted = (p for p in tile.parameters if p.role not in ("size", "scalar"))
                for parameter, argument in zip(wanted, node.arguments, strict=False):
                    if parameter.role == "out":
                        yield str(argument.operand), argument.offset
            case BlockLoop() | SelectBatch():
                yield from _written(node.body, program)
            case Pack():
                inside = _written(node.fill + node.body, program)
                yield from (w for w in inside if w[0] != node.buffer or node.scratch is not None)
            case When() | WhenSame():
                yield from _written(node.body + node.otherwise, program)


def _verify_nests(nodes: tuple[NestNode, ...], program: Program) -> None:
    for node in nodes:
        _verify_nest(node, program)


def live_registers(tile: TileProgram) -> int:
    """The most vector registers alive while products are summed, masks in registers included.

    Transposing and updating C may need more for a moment; there a spill costs a few cycles in all.
    """
    live: set[str] = set()
    _live(tile.end, live)
    return _live(tile.body, live)


def _live(ops: tuple[Op, ...], live: set[str]) -> int:
    """Walk backwards; ``live`` is changed from the set after ``ops`` to the set before."""
    most = 0
    for op in reversed(ops):
        if isinstance(op, Loop):
            around = set(live)
            _live(op.body, around)  # what the body reads from before, or from its last round
            live |= around
            most = max(most, _live(op.body, set(live)))
            continue
        written = {r.name for r in writes(op)}
        most = max(most, len(live | written))
        live -= written
        live |= {r.name for r in reads(op)}
        mask = mask_of(op)
        if mask and mask.vector.mask and mask.vector.mask.registers:
            live.add(mask.name)
        if isinstance(op, MakeMask):
            live.discard(op.mask.name)
        most = max(most, len(live))
    return most
