"""Check that the iterations (trips) of a parallel loop write different elements.

The position of each write must depend on the loop's counter. In addition, the writes of one call
are computed for sizes that the kernel allows. The bytes written by the first two iterations and by
the last must not overlap. Matrices that are found by offsets or addresses are not checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, TypeAlias

from sympy import Expr

from tilewright.errors import PlanError
from tilewright.spec.signature import Signature
from tilewright.spec.sizes import Dim, Size
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ZERO, evaluate, slots, symbol

from .extents import Touched
from .nest import (
    Bind,
    BlockLoop,
    Call,
    Name,
    NestNode,
    Pack,
    Program,
    SelectBatch,
    When,
    defined,
    passed,
)
from .nodes import inside, walk

#: Writes to scratch buffers are collected under this name, because they share one memory.
_SCRATCH = "scratch"
#: A range of bytes of an operand: the first byte, and the one after the last.
Stretch: TypeAlias = tuple[int, int]


def verify_trips(program: Program, parameters: Signature, touched: Mapping[str, Touched]) -> None:
    """Raise PlanError unless the iterations of parallel loops write different elements and buffers.

    ``parameters`` is the kernel's signature. ``touched`` has the elements that each tile touches.
    """
    nodes = (node for node in walk(program.nest) if isinstance(node, BlockLoop))
    loops = [loop for loop in nodes if loop.parallel]
    for loop in loops:
        _verify_places(loop, program)
    if loops:
        elements = {array.symbol: array.element for array in parameters.arrays}
        _Around(program, touched, elements, _one_call(parameters)).written(program.nest)


# --- beginnings of writes ----------------------------------------------------------------------


def _verify_places(loop: BlockLoop, program: Program) -> None:
    """Raise PlanError unless the offset of each write depends on the counter of ``loop``."""
    if loop.first != 0:
        raise PlanError("a parallel loop must begin at 0", got=loop.counter)
    for operand, offset in _places(loop.body, program):
        if loop.counter not in slots(offset):
            raise PlanError(
                f"all trips of the parallel loop {loop.counter} write the same place of {operand}",
                got=str(offset),
            )


def _places(nodes: tuple[NestNode, ...], program: Program) -> Iterator[tuple[Name | None, Expr]]:
    """Yield the operand of each write and the offset where it begins; private buffers are left out.

    The offset of a scratch buffer is its position in scratch memory.
    """
    for node in nodes:
        if isinstance(node, Call):
            wanted = passed(program.tile(node.program))
            for parameter, argument in zip(wanted, node.arguments, strict=True):
                if parameter.role == "out":
                    yield argument.operand, argument.offset
        for name, offset in _places(inside(node), program):
            if name is None or name != _own(node):
                place = offset + _selected_at(node, name) + _scratch_at(node, name)
                yield name, _computed(node, place)


def _computed(node: NestNode, offset: Expr) -> Expr:
    """Return ``offset`` with the values of the sizes that ``node`` computes."""
    for bound in reversed(node.bound) if isinstance(node, Bind) else ():
        offset = offset.xreplace({symbol(bound.name): bound.value})
    return offset


def _own(node: NestNode) -> Name | None:
    """Return the buffer that ``node`` defines if each thread has its own, else None."""
    return node.buffer if isinstance(node, Pack) and node.private else None


def _scratch_at(node: NestNode, name: Name | None) -> Expr:
    """Return the offset of buffer ``name`` in scratch memory if ``node`` defines it, else 0."""
    if not isinstance(node, Pack) or node.buffer != name or node.scratch is None:
        return ZERO
    return node.scratch


def _selected_at(node: NestNode, name: Name | None) -> Expr:
    """Return the offset of matrix ``name`` in its batch if ``node`` selects the matrix, else 0."""
    if not isinstance(node, SelectBatch):
        return ZERO
    return next((node.index * s.stride for s in node.selected if s.chosen == name), ZERO)


# --- written stretches -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Around:
    """Finds the bytes that the nodes of a nest write, given the values of counters and sizes.

    ``elements`` has element types, ``known`` the values of counters and sizes, by name. ``shared``
    is true inside a parallel loop: more than the first iteration is then examined.
    """

    program: Program
    touched: Mapping[str, Touched]
    elements: Mapping[str, str]
    known: Mapping[str, int]
    shared: bool = False

    def value(self, expr: Expr) -> int | None:
        """Return the value of ``expr``; None if it depends on unknown sizes."""
        return evaluate(expr, self.known) if slots(expr) <= self.known.keys() else None

    def _knowing(self, name: str, number: int) -> _Around:
        """Return a copy in which the counter or size ``name`` has the value ``number``."""
        return replace(self, known={**self.known, name: number})

    def written(self, nodes: tuple[NestNode, ...]) -> dict[str, set[Stretch]]:
        """Return the bytes that ``nodes`` write to each operand or buffer that threads share."""
        return _united(self._by(node) for node in nodes)

    def _by(self, node: NestNode) -> dict[str, set[Stretch]]:
        match node:
            case Call():
                return self._called(node)
            case BlockLoop():
                return self._looped(node)
            case Bind():
                return self._bound(node).written(node.body)
            case When():
                count = self.value(node.count)
                taken = () if count is None else node.body if count > 0 else node.otherwise
                return self.written(taken)
        around = replace(self, elements={**self.elements, **defined(node)})
        found = around.written(inside(node))
        found.pop(str(_own(node)), None)
        if isinstance(node, Pack):
            return self._in_scratch(node, found)
        return self._in_batches(node, found) if isinstance(node, SelectBatch) else found

    def _in_scratch(self, node: Pack, found: dict[str, set[Stretch]]) -> dict[str, set[Stretch]]:
        """Return writes to a scratch buffer as writes to scratch memory, if its offset is known."""
        stretches = found.pop(str(node.buffer), set())
        at = None if node.scratch is None else self.value(node.scratch)
        if at is not None and stretches:
            found.setdefault(_SCRATCH, set()).update(_behind(at, stretches))
        return found

    def _called(self, call: Call) -> dict[str, set[Stretch]]:
        tile = self.program.tile(call.program)
        found: dict[str, set[Stretch]] = {}
        for parameter, argument in zip(passed(tile), call.arguments, strict=True):
            stretches = self.touched[tile.name].written.get(parameter.name, ())
            at = self.value(argument.offset)
            if at is not None and stretches:
                begin = at * ITEMSIZE[self.elements[argument.symbol]]
                size = ITEMSIZE[parameter.element or tile.element]
                found.setdefault(argument.symbol, set()).update(_behind(begin, stretches, size))
        return found

    def _looped(self, loop: BlockLoop) -> dict[str, set[Stretch]]:
        within = replace(self, shared=self.shared or loop.parallel)
        first, trips = loop.first, self.value(loop.trips) or 0
        # Examine the first two iterations and the last. Outside parallel loops, one is enough.
        several = {first, first + 1, trips - 1} if within.shared else {first}
        written = {
            trip: within._knowing(loop.counter, trip).written(loop.body)
            for trip in sorted(several)
            if first <= trip < trips
        }
        if loop.parallel:
            _verify_apart(f"trips {{}} and {{}} of the parallel loop {loop.counter}", written)
        if loop.split:
            once = within._knowing(loop.counter, first)
            parts = {"the first loop": loop.body[:1], "the rest": loop.body[1:]}
            halves = {part: once.written(nodes) for part, nodes in parts.items()}
            _verify_apart(f"{{}} and {{}} in the parallel loop {loop.counter}", halves)
        return _united(written.values())

    def _bound(self, node: Bind) -> _Around:
        around = self
        for bound in node.bound:
            if (at := around.value(bound.value)) is not None:
                around = around._knowing(bound.name, at)
        return around

    def _in_batches(
        self, node: SelectBatch, found: dict[str, set[Stretch]]
    ) -> dict[str, set[Stretch]]:
        """Return writes to matrices of a batch as writes to the batch, if their place is known."""
        for each in node.selected:
            stretches = found.pop(str(each.chosen), set())
            at = self.value(node.index * each.stride)
            if at is not None and each.batch == "strided":
                begin = at * ITEMSIZE[each.element]
                found.setdefault(str(each.name), set()).update(_behind(begin, stretches))
        return found


def _behind(begin: int, stretches: Iterable[Stretch], size: int = 1) -> Iterator[Stretch]:
    """Yield ranges of elements as ranges of bytes; the operand begins at byte ``begin``."""
    return ((begin + low * size, begin + high * size) for low, high in stretches)


def _united(parts: Iterable[Mapping[str, set[Stretch]]]) -> dict[str, set[Stretch]]:
    """Return, for each name, the union of the ranges of all ``parts``."""
    found: dict[str, set[Stretch]] = {}
    for part in parts:
        for name, stretches in part.items():
            found.setdefault(name, set()).update(stretches)
    return found


def _verify_apart(which: str, written: Mapping[Any, Mapping[str, set[Stretch]]]) -> None:
    """Raise PlanError if two of several parts, which ``which`` names, write the same bytes."""
    for (one, its), (other, others) in combinations(written.items(), 2):
        for name in its.keys() & others.keys():
            if (both := _overlap(its[name], others[name])) is not None:
                raise PlanError(
                    f"{which.format(one, other)} write the same elements of {name}",
                    got=f"bytes {both[0]} to {both[1]} by both",
                    expected="elements of its own for each of them",
                )


def _overlap(one: set[Stretch], other: set[Stretch]) -> Stretch | None:
    """Return bytes that a range in ``one`` shares with a range in ``other``, None if none does."""
    reached: dict[bool, int] = {True: -1, False: -1}
    marked = sorted([(*each, True) for each in one] + [(*each, False) for each in other])
    for low, high, mine in marked:
        if low < reached[not mine]:
            return low, min(high, reached[not mine])
        reached[mine] = max(reached[mine], high)
    return None


# --- values of one call ------------------------------------------------------------------------

#: A size that common sizes of tiles, panels and vectors divide: 1 to 16, and 64.
WHOLE = 2880 * 1001


def _one_call(parameters: Signature) -> dict[str, int]:
    """Return sizes of one legal call, by C parameter: matrices and batches without gaps."""
    known = {each.slot: _whole(each.dim) for each in parameters.sizes}
    names = {each.dim.name: each.slot for each in parameters.sizes}
    by_name = {name: known[slot] for name, slot in names.items()}
    for array in parameters.arrays:
        if array.is_bytes:
            continue  # a packed matrix has no leading dimension
        sizes = (s if isinstance(s, int) else s.at(by_name) for s in array.shape)
        rows, cols = (1, 1, *sizes)[-2:]
        lines, line = (rows, cols) if array.order == "C" else (cols, rows)
        leading = _at_least(line, array.leading, array.leading_symbol, known)
        stride = _at_least(lines * leading, array.batch_stride, array.stride_slot, known)
        if array.role != "in" and (leading < line or 0 < stride < lines * leading):
            return {}  # fixed strides of the spec are too small for the sizes that were chosen here
    return known


def _whole(dim: Dim) -> int:
    """Return a legal value for ``dim``: a multiple of ``WHOLE``, or the largest if that is less."""
    most = math.lcm(WHOLE, dim.multiple_of)
    return most if dim.max is None else min(most, dim.max // dim.multiple_of * dim.multiple_of)


def _at_least(least: int, size: Size | None, slot: str, known: dict[str, int]) -> int:
    """Return the smallest legal stride that is not below ``least``.

    If the stride is known only at the call, its value is added to ``known``.
    """
    if size is None:
        return least
    if isinstance(size, int):
        return size
    found = -(-least // size.multiple_of) * size.multiple_of
    known[slot] = found
    return found


__all__ = ["verify_trips"]
