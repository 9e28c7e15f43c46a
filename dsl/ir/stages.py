"""Join the stages of a routine into one program: they run in order, with buffers between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sympy import Expr

from tilewright.errors import PlanError
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ONE, ZERO, Least, div, slots, symbol, value

from .nest import (
    Bind,
    BlockLoop,
    Bound,
    Call,
    Name,
    NestNode,
    Pack,
    Program,
    Stamp,
    names_used,
    renamed,
)
from .nodes import rewritten, walk
from .ops import TileProgram

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


def in_order(stages: Sequence[Stage], *, stamped: bool = False) -> Program:
    """Return one program that runs ``stages`` one after another.

    The scratch memory that stages use internally, of the call and of each thread, is shared by all
    stages. The buffers between stages come after that of the call. Buffers that are not needed at
    the same time share memory. Two stages may contain the same tile program. Different tile
    programs must have different names (see ``embedded``); those that are equal but for their names
    become one. Parallel loops of two stages are never one region: a stage reads what earlier stages
    write. If ``stamped``, the program notes the time before each stage, and after the last one.
    """
    if len(stages) == 1 and not stages[0].fills and not stamped:
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
    views, scratch = _placed(stages, alone)
    nests = list(_numbered([stage.program.nest for stage in stages]))
    if stamped:
        nests = [(Stamp(number), *own) for number, own in enumerate(nests)]
        nests[-1] = (*nests[-1], Stamp(len(nests)))
    names = {buffer: view.name for view in views for buffer in view.buffers}
    nest: tuple[NestNode, ...] = ()
    for number, own in reversed(list(enumerate(nests))):
        own = tuple(renamed(own, lambda name: names.get(name, name)))
        nest = _before([view for view in views if view.first == number], own, nest)
    tiles = {tile.name: tile for stage in stages for tile in stage.program.tiles}
    return _sharing(Program(nest, tuple(tiles.values()), scratch, worker_scratch=worker))


def _numbered(nests: Sequence[tuple[NestNode, ...]]) -> Iterator[tuple[NestNode, ...]]:
    """Yield the nests of stages with different numbers of groups of parallel loops."""
    taken = 0
    for nest in nests:
        loops = [node.beside for node in walk(nest) if isinstance(node, BlockLoop) and node.beside]

        def moved(node: NestNode, by: int = taken) -> NestNode:
            if isinstance(node, BlockLoop) and node.beside:
                return replace(node, beside=node.beside + by)
            return node

        yield tuple(rewritten(nest, moved)) if loops and taken else nest
        taken += max(loops, default=0)


def _sharing(program: Program) -> Program:
    """Return ``program`` with one tile program in place of several that do the same."""
    first: dict[TileProgram, TileProgram] = {}
    names: dict[str, str] = {}
    for tile in program.tiles:
        content = replace(tile, name="", planned=None)
        names[tile.name] = first.setdefault(content, tile).name
    if len(first) == len(program.tiles):
        return program
    return replace(program, nest=_calling(program.nest, names), tiles=tuple(first.values()))


def _calling(nest: tuple[NestNode, ...], names: Mapping[str, str]) -> tuple[NestNode, ...]:
    """Return ``nest`` with other names of the tile programs that it calls."""

    def called(node: NestNode) -> NestNode:
        return replace(node, program=names[node.program]) if isinstance(node, Call) else node

    return tuple(rewritten(nest, called))


@dataclass(frozen=True, slots=True, eq=False)
class _Life:
    """A buffer, the stage that fills it, and the last one that reads it."""

    buffer: Buffer
    first: int
    last: int

    def meets(self, other: _Life) -> bool:
        """Return True if both buffers are needed at the same time."""
        return self.first <= other.last and other.first <= self.last


class _Room:
    """A part of scratch memory, or of the stack: its size, and the last stage that reads it."""

    def __init__(self, on_stack: bool) -> None:
        self.on_stack = on_stack
        self.nbytes: Expr = ZERO
        self.last = -1


class _View:
    """An array in a room: buffers of one element type that follow each other in it.

    It has the name of the first one, which stage ``first`` fills, and space for the largest one.
    """

    def __init__(self, room: _Room, buffer: Buffer, first: int) -> None:
        self.room, self.name, self.element, self.first = room, buffer.name, buffer.element, first
        self.elements: Expr = ZERO
        self.buffers: list[Name] = []
        self.scratch: Expr | None = None

    def around(self, fill: tuple[NestNode, ...], body: tuple[NestNode, ...]) -> Pack:
        """Return the nodes ``fill`` and ``body``, within which the array exists."""
        # C has no arrays of length 0.
        elements = self.elements if value(self.elements) != 0 else ONE
        return Pack(self.name, self.element, elements, self.scratch, fill, body)


def _placed(stages: Sequence[Stage], start: Expr) -> tuple[list[_View], Expr]:
    """Return the arrays for all buffers, and the end of those in scratch memory.

    The arrays begin at byte ``start`` of the scratch memory. Several buffers use the same room one
    after another. If that needs less memory, each large buffer has a place of its own instead.
    """
    readers = {name: number for number, each in enumerate(stages) for name in each.program.named}
    lives = [
        _Life(buffer, number, max(number, readers.get(str(buffer.name), number)))
        for number, stage in enumerate(stages)
        for buffer in stage.fills
    ]
    views = _in_rooms(lives)
    rooms = list({id(view.room): view.room for view in views if not view.room.on_stack}.values())
    large = [life for life in lives if not life.buffer.on_stack]
    if (found := _shared_out(large, [room.nbytes for room in rooms])) is not None:
        offsets, end = found
        views = _in_rooms(life for life in lives if life.buffer.on_stack)
        for life, offset in zip(large, offsets, strict=True):
            (view,) = _in_rooms([life])
            view.scratch = start + offset
            views.append(view)
        return sorted(views, key=lambda view: view.first), start + end
    for room in rooms:
        for view in views:
            if view.room is room:
                view.scratch = start
        start += _aligned(room.nbytes)
    return views, start


def _in_rooms(lives: Iterable[_Life]) -> list[_View]:
    """Return arrays for buffers: each takes the first room that is free, or a new one."""
    rooms: list[_Room] = []
    views: list[_View] = []
    for life in lives:
        buffer = life.buffer
        fits = (r for r in rooms if r.last < life.first and r.on_stack == buffer.on_stack)
        room = next((r for r in fits if _is_short(_larger(r.nbytes, buffer.nbytes))), None)
        if room is None:
            rooms.append(room := _Room(buffer.on_stack))
        view = next((each for each in reversed(views) if each.room is room), None)
        if view is None or view.element != buffer.element:
            views.append(view := _View(room, buffer, life.first))
        room.nbytes = _larger(room.nbytes, buffer.nbytes)
        room.last = life.last
        view.elements = _larger(view.elements, buffer.elements)
        view.buffers.append(buffer.name)
    return views


def _shared_out(
    lives: Sequence[_Life], rooms: Sequence[Expr]
) -> tuple[Sequence[Expr], Expr] | None:
    """Return the offsets of buffers in bytes, and the end of the last one.

    The result is None if ``rooms`` need no more memory, or if the sizes of the buffers are not all
    multiples of one formula.
    """
    sizes = [life.buffer.nbytes.as_coeff_Mul() for life in lives]
    units = {unit for _, unit in sizes}
    if len(units) != 1 or not all(each.is_Integer for each, _ in sizes):
        return None
    (unit,) = units
    known = [_cached(int(size)) for size, _ in sizes]
    orders = range(len(lives)), sorted(range(len(lives)), key=lambda number: -known[number])
    offsets, end = min((_lowest(lives, known, order) for order in orders), key=lambda each: each[1])
    if end >= sum(_cached(int(room.as_coeff_Mul()[0])) for room in rooms):
        return None
    return [offset * unit for offset in offsets], end * unit


def _lowest(
    lives: Sequence[_Life], sizes: Sequence[int], order: Iterable[int]
) -> tuple[list[int], int]:
    """Return offsets of buffers, and their end.

    Each in turn has the lowest offset that is free as long as the buffer is needed.
    """
    taken: dict[int, int] = {}
    for number in order:
        low = 0
        for other in sorted(taken, key=lambda other: taken[other]):
            if lives[number].meets(lives[other]):
                if low + sizes[number] <= taken[other]:
                    break
                low = max(low, taken[other] + sizes[other])
        taken[number] = low
    ends = (taken[number] + sizes[number] for number in taken)
    return [taken[number] for number in range(len(lives))], max(ends)


def _cached(nbytes: int) -> int:
    """Return a size rounded up, so that a multiple of it keeps the alignment of buffers."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _before(
    views: Sequence[_View], own: tuple[NestNode, ...], later: tuple[NestNode, ...]
) -> tuple[NestNode, ...]:
    """Return the nodes ``own``, followed by the nodes ``later``; ``views`` exist within both."""
    if not views:
        return (*own, *later)
    first, *others = views
    nodes: tuple[NestNode, ...] = (first.around(own, later),)
    for view in others:
        nodes = (view.around((), nodes),)
    return nodes


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

    names = {tile.name: prefix + tile.name for tile in program.tiles}
    nest = _calling(renamed(program.nest, place), names)
    tiles = tuple(replace(tile, name=prefix + tile.name) for tile in program.tiles)
    nest = binding([Bound(*each) for each in bound.items()], nest, tiles)
    known = {symbol(name): expr for name, expr in bound.items()}
    scratch, worker = (x.xreplace(known) for x in (program.scratch, program.worker_scratch))
    return replace(program, nest=nest, tiles=tiles, scratch=scratch, worker_scratch=worker)


def in_own_memory(program: Program) -> Program:
    """Return ``program`` for a result in the memory of an operand."""
    tiles = (
        replace(tile, parameters=tuple(replace(p, shared=p.role == "out") for p in tile.parameters))
        for tile in program.tiles
    )
    return replace(program, tiles=tuple(tiles))


def binding(
    bound: Sequence[Bound], nest: tuple[NestNode, ...], tiles: Sequence[TileProgram]
) -> tuple[NestNode, ...]:
    """Return ``nest`` with those sizes of ``bound`` computed before it that it uses.

    It uses the sizes that it names, and those that the ``tiles`` that it calls take.
    """
    called = {node.program for node in walk(nest) if isinstance(node, Call)}
    taken = (p for tile in tiles if tile.name in called for p in tile.parameters)
    used = {p.name for p in taken if p.role == "size"}
    used = used.union(*map(names_used, walk(nest)))
    wanted = tuple(each for each in bound if each.name in used)
    return (Bind(wanted, nest),) if wanted else nest


def _aligned(nbytes: Expr) -> Expr:
    return div(nbytes + (ALIGNMENT - 1), ALIGNMENT) * ALIGNMENT


def _is_short(size: Expr) -> bool:
    """Return True if a formula compares few sizes: each comparison doubles its length."""
    return int(size.count(Least)) <= _COMPARED


#: The largest number of comparisons in the formula of a size.
_COMPARED = 3


def _larger(one: Expr, other: Expr) -> Expr:
    """Return the larger of two sizes."""
    if ZERO in (one, other):
        return one + other
    for large, small in ((one, other), (other, one)):
        terms = (large - small).expand().as_coefficients_dict()
        if all(coefficient >= 0 for coefficient in terms.values()):  # sizes are 0 or more
            return large
    return one if one == other else one + other - Least(one, other)
