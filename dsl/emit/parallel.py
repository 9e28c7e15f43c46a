"""Parallel loops as functions: what a thread is given to run some of a loop's trips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sympy import Expr, Integer

from tilewright.ir.count import tile_formulas
from tilewright.ir.nest import (
    BlockLoop,
    Call,
    Configure,
    NestNode,
    Pack,
    Program,
    SelectBatch,
    When,
    WhenSame,
)
from tilewright.spec.signature import Signature
from tilewright.symbolic import ONE, slots

#: Vector multiply-adds for which one more thread pays: a few microseconds of them.
WORTH = 1 << 15
#: Operands of which a batch has many.
_BATCHED = ("a", "b", "b2")

CaptureRole = Literal["array", "scalar", "size", "input", "buffer", "static", "scratch"]


@dataclass(frozen=True, slots=True)
class Capture:
    """A name that the body takes from around it.

    ``role``: an ``array``, ``scalar`` or ``size`` of the call (or a counter); the ``input`` of a
    batch element or a ``buffer``, with elements of type ``element``; ``static`` offsets; the
    ``scratch`` memory.
    """

    name: str
    role: CaptureRole
    element: str = ""


@dataclass(frozen=True, slots=True)
class Fork:
    """A parallel loop, with the parallel loops that are all of its body: a trip is one of each.

    ``work`` is what a trip does, in vector multiply-adds; WORTH where that is not one tile.
    ``batched``: within a batch element.
    """

    name: str
    loops: tuple[BlockLoop, ...]
    captures: tuple[Capture, ...]
    work: Expr
    batched: bool

    @property
    def body(self) -> tuple[NestNode, ...]:
        """What a trip runs."""
        return self.loops[-1].body

    @property
    def trips(self) -> Expr:
        """How many trips all loops have together."""
        trips = ONE
        for loop in self.loops:
            trips = trips * loop.trips
        return trips


def forks(program: Program, signature: Signature, prefix: str) -> tuple[Fork, ...]:
    """Every parallel loop once, those inside of others before them; names begin with ``prefix``."""
    finder = _Finder(program, signature, prefix)
    finder.visit(program.nest, batched=False)
    return tuple(finder.found)


class _Finder:
    """One walk over the nest; ``elements`` are the types of what is defined inside of it."""

    def __init__(self, program: Program, signature: Signature, prefix: str) -> None:
        self.program, self.prefix = program, prefix
        self.roles: dict[str, CaptureRole] = {"scratch": "scratch"}
        self.roles |= {array.symbol: "array" for array in signature.arrays}
        self.roles |= {scalar.name: "scalar" for scalar in signature.scalars}
        self.elements: dict[str, str] = {}
        self.found: list[Fork] = []

    def visit(self, nodes: Sequence[NestNode], batched: bool) -> None:
        for node in nodes:
            match node:
                case BlockLoop() if node.parallel:
                    self._fork(node, batched)
                case BlockLoop():
                    self.visit(node.body, batched)
                case SelectBatch():
                    self._define({s.chosen: s.element for s in node.selected}, "input")
                    self.visit(node.body, True)
                case Pack():
                    self._define({node.buffer: node.element}, "buffer")
                    self.visit(node.fill + node.body, batched)
                case When() | WhenSame():
                    self.visit(node.body + node.otherwise, batched)

    def _define(self, elements: dict[str, str], role: CaptureRole) -> None:
        self.elements |= elements
        self.roles |= dict.fromkeys(elements, role)

    def _fork(self, loop: BlockLoop, batched: bool) -> None:
        if any(f.loops[0] == loop and f.batched == batched for f in self.found):
            return
        loops = collapsed(loop)
        self.visit(loops[-1].body, batched)
        names = {name for inner in loops[1:] for name in slots(inner.trips)}
        names |= set(self._free(loops[-1].body, batched)) - {inner.counter for inner in loops}
        captures = tuple(self._capture(name) for name in sorted(names))
        name = f"{self.prefix}fork{len(self.found)}"
        self.found.append(Fork(name, loops, captures, self._work(loops), batched))

    def _work(self, loops: tuple[BlockLoop, ...]) -> Expr:
        match loops[-1].body:
            case (Call() as call,):
                return tile_formulas(self.program.tile(call.program)).multiply_adds
        return Integer(WORTH)

    def _capture(self, name: str) -> Capture:
        offsets: CaptureRole = "static" if name.endswith("_offsets") else "size"
        return Capture(name, self.roles.get(name, offsets), self.elements.get(name, ""))

    def _free(self, nodes: Sequence[NestNode], batched: bool) -> Iterator[str]:
        """The names that ``nodes`` use and do not define."""
        for node in nodes:
            match node:
                case Call():
                    yield from self._of_call(node, batched)
                case BlockLoop():
                    yield from slots(node.trips)
                    if node.parallel:
                        yield from slots(self._work(collapsed(node)))
                    inside = self._free(node.body, batched)
                    yield from (name for name in inside if name != node.counter)
                case SelectBatch():
                    yield from self._of_batch(node)
                case Pack():
                    yield from slots(node.elements)
                    if node.scratch is not None:
                        yield from ("scratch", *slots(node.scratch))
                    inside = self._free(node.fill + node.body, batched)
                    yield from (name for name in inside if name != node.buffer)
                case Configure():
                    yield from (s for rows, _ in node.configuration.shapes for s in slots(rows))
                case When():
                    yield from slots(node.count)
                    yield from self._free(node.body + node.otherwise, batched)
                case WhenSame():
                    yield from (node.one, node.other)
                    yield from self._free(node.body + node.otherwise, batched)

    def _of_call(self, call: Call, batched: bool) -> Iterator[str]:
        for argument in call.arguments:
            if argument.operand is not None:
                chosen = batched and argument.operand in _BATCHED
                yield f"{argument.operand}_i" if chosen else argument.operand
            yield from slots(argument.offset)
        parameters = self.program.tile(call.program).parameters
        yield from (p.name for p in parameters if p.role in ("size", "scalar"))

    def _of_batch(self, node: SelectBatch) -> Iterator[str]:
        yield from slots(node.index)
        for selected in node.selected:
            yield selected.name
            if selected.batch == "strided":
                yield from slots(selected.stride)
            if selected.batch == "offsets":
                yield selected.offsets
        defined = {selected.chosen for selected in node.selected}
        yield from (name for name in self._free(node.body, True) if name not in defined)


def collapsed(loop: BlockLoop) -> tuple[BlockLoop, ...]:
    """``loop`` and the parallel loops that are all of its body."""
    match loop.body:
        case (BlockLoop(parallel=True) as inner,) if loop.counter not in slots(inner.trips):
            return (loop, *collapsed(inner))
    return (loop,)
