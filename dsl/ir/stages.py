"""Join the stages of a routine into one program: they run in order, with buffers between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sympy import Expr

from tilewright.errors import PlanError
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ONE, ZERO, Least, div, slots, symbol, value

from .nest import Bind, Bound, Call, Name, NestNode, Pack, Program, renamed
from .nodes import rewritten

#: Maximum bytes of a buffer on the stack. Larger ones are in scratch memory: in parallel loops in
#: that of the thread, else in that of the call.
STACK_BYTES = 32 * 1024
#: Alignment in bytes of buffers in scratch memory.
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Buffer:
    """An array of the kernel's own: one stage fills it, later stages read it."""

    name: Name
    element: str
    elements: Expr

    @property
    def nbytes(self) -> Expr:
        """The size in bytes."""
        return self.elements * ITEMSIZE[self.element]

    @property
    def on_stack(self) -> bool:
        """True if the size is known before the call, and small enough for the stack."""
        known = value(self.nbytes)
        return known is not None and known <= STACK_BYTES


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a routine as a program; it runs after the stages before it.

    ``fills`` are the buffers that the stage writes and later stages read.
    """

    program: Program
    fills: tuple[Buffer, ...] = ()


def in_order(stages: Sequence[Stage]) -> Program:
    """Return one program that runs ``stages`` one after another.

    The scratch memory that stages use internally, of the call and of each thread, is shared by all
    stages. The buffers between stages come after that of the call. A buffer takes over the memory
    of one that no later stage reads. Two stages may contain the same tile program. Different tile
    programs must have different names (see ``embedded``).
    """
    if len(stages) == 1 and not stages[0].fills:
        return stages[0].program
    used = {name for stage in stages for name in stage.program.named}
    stages = [
        replace(stage, fills=tuple(b for b in stage.fills if str(b.name) in used))
        for stage in stages
    ]
    alone = worker = ZERO
    for stage in stages:
        alone = _larger(alone, _aligned(stage.program.scratch))
        worker = _larger(worker, stage.program.worker_scratch)
    places, scratch = _placed(stages, alone)
    nest: tuple[NestNode, ...] = ()
    for stage in reversed(stages):
        nest = _before(stage, nest, places)
    tiles = {tile.name: tile for stage in stages for tile in stage.program.tiles}
    return Program(nest, tuple(tiles.values()), scratch, worker_scratch=worker)


class _Room:
    """A part of scratch memory: its size, the last stage that reads it, and who has it in turn."""

    def __init__(self) -> None:
        self.nbytes: Expr = ZERO
        self.last = -1
        self.buffers: list[Name] = []


def _placed(stages: Sequence[Stage], start: Expr) -> tuple[dict[Name, Expr | None], Expr]:
    """Return where each buffer is in scratch memory from ``start``, and the end of the last one."""
    rooms: list[_Room] = []
    places: dict[Name, Expr | None] = {}
    for number, stage in enumerate(stages):
        for buffer in stage.fills:
            places[buffer.name] = None
            if buffer.on_stack:
                continue
            room = next((each for each in rooms if each.last < number), None)
            if room is None:
                rooms.append(room := _Room())
            room.nbytes = _larger(room.nbytes, buffer.nbytes)
            room.last = _last_reader(stages, number, buffer)
            room.buffers.append(buffer.name)
    for room in rooms:
        places |= dict.fromkeys(room.buffers, start)
        start += _aligned(room.nbytes)
    return places, start


def _last_reader(stages: Sequence[Stage], number: int, buffer: Buffer) -> int:
    """Return the last stage that uses a buffer of stage ``number``."""
    later = range(number + 1, len(stages))
    return max((n for n in later if str(buffer.name) in stages[n].program.named), default=number)


def _before(
    stage: Stage, later: tuple[NestNode, ...], places: Mapping[Name, Expr | None]
) -> tuple[NestNode, ...]:
    """Return the nodes of ``stage``, followed by the nodes ``later``, which read its buffers."""
    if not stage.fills:
        return (*stage.program.nest, *later)
    first, *others = stage.fills
    nodes: tuple[NestNode, ...] = (_of(first, places, stage.program.nest, later),)
    for buffer in others:  # the inner buffers exist while the outer one is filled
        nodes = (_of(buffer, places, (), nodes),)
    return nodes


def _of(
    buffer: Buffer,
    places: Mapping[Name, Expr | None],
    fill: tuple[NestNode, ...],
    body: tuple[NestNode, ...],
) -> Pack:
    room = buffer.elements if value(buffer.elements) != 0 else ONE  # C has no arrays of length 0
    return Pack(buffer.name, buffer.element, room, places[buffer.name], fill, body)


def embedded(
    program: Program,
    prefix: str,
    operands: Mapping[str, Name] | None = None,
    sizes: Mapping[str, Expr] | None = None,
) -> Program:
    """Return ``program``, of another kind of routine, as a stage of a routine.

    ``operands`` maps its operands' names in C to the routine's names. ``sizes`` maps its run-time
    sizes to formulas of the routine's sizes. ``prefix`` begins the names of its tile programs.
    Raises PlanError if one of these sizes decides whether stores bypass the caches.
    """
    given, bound = operands or {}, sizes or {}
    if deciding := slots(program.past) & bound.keys():
        raise PlanError(
            "a stage cannot decide by a size of its own whether stores bypass the caches",
            got=", ".join(sorted(deciding)),
            expected='tw.Schedule(stores="cached") for the stage',
        )

    def place(name: Name) -> Name:
        found = given.get(str(replace(name, matrix=False)))
        return name if found is None else replace(found, matrix=name.matrix)

    def called(node: NestNode) -> NestNode:
        return replace(node, program=prefix + node.program) if isinstance(node, Call) else node

    nest = tuple(rewritten(renamed(program.nest, place), called))
    if bound:
        nest = (Bind(tuple(Bound(*each) for each in bound.items()), nest),)
    tiles = tuple(replace(tile, name=prefix + tile.name) for tile in program.tiles)
    known = {symbol(name): expr for name, expr in bound.items()}
    scratch, worker = (x.xreplace(known) for x in (program.scratch, program.worker_scratch))
    return replace(program, nest=nest, tiles=tiles, scratch=scratch, worker_scratch=worker)


def _aligned(nbytes: Expr) -> Expr:
    return div(nbytes + (ALIGNMENT - 1), ALIGNMENT) * ALIGNMENT


def _larger(one: Expr, other: Expr) -> Expr:
    """Return the larger of two sizes."""
    if ZERO in (one, other):
        return one + other
    for large, small in ((one, other), (other, one)):
        terms = (large - small).expand().as_coefficients_dict()
        if all(coefficient >= 0 for coefficient in terms.values()):  # sizes are 0 or more
            return large
    return one if one == other else one + other - Least(one, other)
