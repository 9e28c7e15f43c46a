"""Turn parallel loops into functions that threads run, and find the variables that these need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from sympy import Expr, Integer

from tilewright.ir.count import tile_formulas
from tilewright.ir.nest import (
    WORKER,
    Beside,
    BlockLoop,
    Call,
    NestNode,
    Pack,
    Program,
    When,
    chosen_inputs,
    counters,
    defined,
    names_used,
)
from tilewright.ir.nodes import inside, rewritten, walk, within
from tilewright.spec.signature import Signature
from tilewright.symbolic import ONE, ZERO, slots

#: Assumed work of an iteration whose work is not known, in vector multiply-adds. Two iterations of
#: this size are worth a second thread.
WORTH = 1 << 16

CaptureRole = Literal["array", "scalar", "size", "input", "buffer", "static", "scratch"]


@dataclass(frozen=True, slots=True)
class Capture:
    """A variable of the surrounding C code that the body of a parallel loop uses.

    ``role`` is one of:

    - ``array``, ``scalar``: a parameter of the kernel. ``element`` is the type of a scalar.
    - ``size``: a run-time size, or the counter of a loop.
    - ``input``, ``buffer``: the chosen matrix of a batch, or a buffer, with elements of type
      ``element``.
    - ``static``: offsets that the file holds.
    - ``scratch``: the scratch memory.
    """

    name: str
    role: CaptureRole
    element: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A parallel loop whose iterations a C function runs, alone or with other parallel loops.

    - ``loops``: the loop, then the parallel loop that is its whole body, and so on inwards. The
      function runs them as a single loop.
    - ``conditions``: formulas. Unless all are positive, the loop has no iterations.
    - ``work``: the work of one iteration in vector multiply-adds; WORTH if it is not known.
    """

    loops: tuple[BlockLoop, ...]
    conditions: tuple[Expr, ...]
    work: Expr

    @property
    def split(self) -> BlockLoop | None:
        """The loop at the beginning of ``body`` that threads share too, if there is one."""
        first = self.loops[-1].body[0]
        return first if self.loops[-1].split and isinstance(first, BlockLoop) else None

    @property
    def body(self) -> tuple[NestNode, ...]:
        """The nodes of the nest that one iteration runs."""
        nodes = self.loops[-1].body
        return nodes if self.split is None else tuple(rewritten(nodes, _alone))

    @property
    def trips(self) -> Expr:
        """The number of iterations of all ``loops`` together, as a formula."""
        trips = ONE
        for loop in self.loops:
            trips = trips * loop.trips
        return trips


@dataclass(frozen=True, slots=True)
class Fork:
    """A C function that runs iterations of a parallel loop, or of several that are one region.

    If ``shared``, the C code divides the loops' work into shares (``kernel/loops.c.j2``).

    ``node`` is the node of the nest that the function replaces. The function gets a range of
    iterations, which are numbered through all ``parts`` in order, and the number of the thread that
    runs them. ``worker`` is True if it uses that number.
    """

    name: str
    node: NestNode
    parts: tuple[Part, ...]
    captures: tuple[Capture, ...]
    worker: bool

    @property
    def shared(self) -> bool:
        """True if threads take shares of the work, not iterations."""
        return len(self.parts) > 1 or self.parts[0].split is not None

    @property
    def nested(self) -> bool:
        """True if an iteration contains further parallel loops."""
        return any(_parallel(node) for part in self.parts for node in part.body)


def in_regions(program: Program) -> Program:
    """Return ``program`` with buffers in the scratch memory of threads at their place for C code.

    The memory of thread number WORKER begins after that of the call and of the threads before it.
    """

    def placed(node: NestNode) -> NestNode:
        if not (isinstance(node, Pack) and node.of_worker and node.scratch is not None):
            return node
        at = program.scratch + WORKER * program.worker_scratch + node.scratch
        return replace(node, scratch=at, of_worker=False)

    return replace(program, nest=tuple(rewritten(program.nest, placed)))


def forks(program: Program, signature: Signature, prefix: str) -> tuple[Fork, ...]:
    """Return a function for each parallel loop of ``program``, inner loops before outer ones.

    The functions' names begin with ``prefix``.
    """
    finder = _Finder(program, signature, prefix)
    finder.visit(program.nest)
    return tuple(finder.found)


def apart(program: Program) -> Program:
    """Return ``program`` with code outside parallel loops put into parallel loops of one iteration.

    This is for targets whose instructions need a mode of the processor. A function runs either in
    that mode or outside it, and threads cannot be started in the mode. The parts must therefore be
    functions of their own.
    """
    shares = any(map(_parallel, program.nest))
    return replace(program, nest=_apart(program.nest)) if shares else program


def _apart(nodes: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
    found: list[NestNode] = []
    for shares, several in groupby(nodes, _parallel):
        if shares:
            found += (within(node, _trip if _is_loop(node) else _apart) for node in several)
        else:
            found.append(BlockLoop("once", ONE, tuple(several), parallel=True, work=ZERO))
    return tuple(found)


def _trip(body: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
    """Return the body of a parallel loop, changed only if it contains parallel loops itself."""
    return _apart(body) if any(map(_parallel, body)) else body


def _is_loop(node: NestNode) -> bool:
    return isinstance(node, BlockLoop) and node.parallel


def _parallel(node: NestNode) -> bool:
    """Return True if ``node`` is a parallel loop, or contains one."""
    return any(map(_is_loop, walk((node,))))


class _Finder:
    """Finds the parallel loops of a nest, and the variables that each of them uses.

    ``roles`` and ``elements`` are the roles and element types of the variables, by name.
    """

    def __init__(self, program: Program, signature: Signature, prefix: str) -> None:
        self.program, self.prefix = program, prefix
        self.roles: dict[str, CaptureRole] = {"scratch": "scratch"}
        self.roles |= {array.symbol: "array" for array in signature.arrays}
        self.roles |= {scalar.name: "scalar" for scalar in signature.scalars}
        self.elements: dict[str, str] = {s.name: s.type for s in signature.scalars}
        self.found: list[Fork] = []

    def visit(self, nodes: Iterable[NestNode]) -> None:
        for node in nodes:
            for name, element in defined(node).items():
                self.elements[name] = element
                self.roles[name] = "input" if name in chosen_inputs(node) else "buffer"
            if isinstance(node, Beside) or _is_loop(node):
                self._fork(node)
            else:
                self.visit(inside(node))

    def _fork(self, node: NestNode) -> None:
        if any(fork.node == node for fork in self.found):
            return
        several = isinstance(node, Beside)
        parts = tuple(_part(self.program, each) for each in (inside(node) if several else (node,)))
        names: set[str] = set()
        for part in parts:
            self.visit(part.body)
            names = names.union(*(slots(loop.trips) for loop in part.loops[1:]))
            names |= free(self.program, part.body) - {loop.counter for loop in part.loops}
        worker = WORKER.name in names or any(_parallel(x) for part in parts for x in part.body)
        names.discard(WORKER.name)
        captures = tuple(self._capture(name) for name in sorted(names))
        name = f"{self.prefix}fork{len(self.found)}"
        self.found.append(Fork(name, node, parts, captures, worker))

    def _capture(self, name: str) -> Capture:
        offsets: CaptureRole = "static" if name.endswith("_offsets") else "size"
        return Capture(name, self.roles.get(name, offsets), self.elements.get(name, ""))


def free(program: Program, nodes: Iterable[NestNode]) -> set[str]:
    """Return the names that the C code of ``nodes`` uses but does not define."""
    found: set[str] = set()
    for node in nodes:
        found |= names_used(node)
        if isinstance(node, Call):
            tile = program.tile(node.program)
            found |= {p.name for p in tile.parameters if p.role in ("size", "scalar")}
        if isinstance(node, BlockLoop) and node.parallel:
            found |= slots(_work(program, collapsed(node)))
        found |= free(program, inside(node)) - {*defined(node), *counters(node)}
    return found


def joined(program: Program) -> Program:
    """Return ``program`` in which parallel loops that may run at the same time are one node.

    A product is cut into whole tiles and smaller tiles at the edges, each kind in separate loops.
    If all these loops are one parallel region, threads are started only once, and share the
    iterations of all loops evenly.
    """
    return replace(program, nest=_joined(program.nest))


def _joined(nodes: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
    groups: dict[int, list[NestNode]] = {}
    for node in nodes:
        groups.setdefault(_number(node), []).append(node)
    found: list[NestNode] = []
    for node in nodes:
        group = groups[_number(node)]
        if not _number(node) or len(group) == 1:
            whole = isinstance(node, BlockLoop) and node.split
            found.append(node if whole else within(node, _joined))
        elif node is group[0]:
            found.append(Beside(tuple(group)))
    return tuple(found)


def _alone(node: NestNode) -> NestNode:
    """Return ``node`` as a loop of one thread, if it is a parallel one."""
    return replace(node, parallel=False) if isinstance(node, BlockLoop) else node


def _number(node: NestNode) -> int:
    """Return ``beside`` of a parallel loop, also if it is in a ``When``; 0 for other nodes."""
    match node:
        case BlockLoop(parallel=True):
            return node.beside
        case When(body=(inner,), otherwise=()):
            return _number(inner)
    return 0


def _part(program: Program, node: NestNode) -> Part:
    """Return a parallel loop, which may be in a ``When``, as a part of a function."""
    if isinstance(node, When):
        part = _part(program, node.body[0])
        return replace(part, conditions=(node.count, *part.conditions))
    assert isinstance(node, BlockLoop)
    loops = collapsed(node)
    return Part(loops, (), _work(program, loops))


def _work(program: Program, loops: tuple[BlockLoop, ...]) -> Expr:
    """Return the work of one iteration of parallel ``loops``, in vector multiply-adds."""
    if loops[-1].work is not None:
        return loops[-1].work
    match loops[-1].body:
        case (Call() as call,):
            return tile_formulas(program.tile(call.program)).multiply_adds
    return Integer(WORTH)


def collapsed(loop: BlockLoop) -> tuple[BlockLoop, ...]:
    """Return ``loop``, then the parallel loop that is its whole body, if any, and so on inwards."""
    match loop.body:
        case (BlockLoop(parallel=True) as inner,) if loop.counter not in slots(inner.trips):
            return (loop, *collapsed(inner))
    return (loop,)
