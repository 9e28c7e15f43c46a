"""Find which registers, addresses and sizes operations use; remove operations without effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from sympy import Expr

from tilewright.symbolic import slots, value

from .nodes import (
    EVERY_ROLE,
    READING,
    WRITING,
    Role,
    Space,
    contains,
    finder,
    inside,
    rewritten,
    walk,
)
from .ops import (
    Keep,
    Loop,
    MakeMask,
    Note,
    Op,
    Point,
    StackBuffer,
    Store,
)
from .values import Address, MatrixRegister, Register

# --- one operation -----------------------------------------------------------------------------

#: ``reads`` returns the registers that an operation reads, ``writes`` those that it writes.
reads, writes = finder(Register, READING), finder(Register, WRITING)
#: Function that returns the matrix registers of an operation, the written one first.
matrices_of = finder(MatrixRegister, EVERY_ROLE)
#: Function that returns the addresses an operation reads, writes or prefetches.
addresses = finder(Address, EVERY_ROLE)
_written = finder(Address, WRITING)
_expressions: Callable[[Op], tuple[Expr, ...]] = finder(Expr, frozenset((Role.SIZES,)))
#: ``_placed`` returns the pointers that an operation defines or changes. ``_pointed`` returns the
#: pointers that an operation uses without changing them.
_placed = finder(Space.POINTER, WRITING)
_pointed = finder(Space.POINTER, frozenset((Role.READS,)))


def _computes(op: Op) -> bool:
    """Return True if ``op`` computes or stores a value; hints and comments, for example, do not."""
    return bool(writes(op) or _written(op) or matrices_of(op))


def pointers_used(ops: Iterable[Op]) -> set[str]:
    """Return the pointers that ``ops`` use to access memory or to define other pointers."""
    return {pointer for op in ops for pointer in _pointed(op)}


def sizes_used(ops: Iterable[Op], order: Iterable[str]) -> list[str]:
    """Return the names of run-time sizes on which ``ops`` depend, sorted as in ``order``."""
    found = (expr for op in ops for expr in _expressions(op) if not expr.is_Integer)
    used = frozenset[str]().union(*map(slots, found))
    return [slot for slot in order if slot in used]


# --- operations that are not needed ------------------------------------------------------------


def without_idle_masks(ops: Sequence[Op], others: Sequence[Op] = ()) -> tuple[Op, ...]:
    """Return ``ops`` without the masks that neither ``ops`` nor ``others`` use."""
    used = {mask.name for op in (*walk((*ops, *others)),) if (mask := op.masked_by)}

    def needed(op: Op) -> Op | None:
        return op if not isinstance(op, MakeMask) or op.mask.name in used else None

    return tuple(rewritten(ops, needed))


def masks_once(ops: Sequence[Op], made: frozenset[str] = frozenset()) -> tuple[Op, ...]:
    """Return ``ops`` without operations that make a mask again; masks in ``made`` exist before."""
    kept: list[Op] = []
    for op in ops:
        if isinstance(op, MakeMask):
            if op.mask.name in made:
                continue
            made |= {op.mask.name}
        kept.append(replace(op, body=masks_once(op.body, made)) if isinstance(op, Loop) else op)
    return tuple(kept)


def without_idle_notes(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Return ``ops`` without the notes (comments) that no operation follows."""
    kept: list[Op] = []
    for op in reversed(ops):
        if isinstance(op, Note) and (not kept or isinstance(kept[-1], Note)):
            continue
        kept.append(replace(op, body=without_idle_notes(op.body)) if isinstance(op, Loop) else op)
    return tuple(kept[::-1])


def prune(ops: Sequence[Op], needed: Iterable[Register]) -> list[Op]:
    """Return ``ops`` without the operations that do not contribute to the ``needed`` registers.

    Operations that fill a matrix register are kept. ``ops`` must not contain loops.
    """
    wanted = {register.name for register in needed}
    kept: list[Op] = []
    for op in reversed(ops):
        fills = matrices_of(op) and not writes(op)
        if fills or any(register.name in wanted for register in writes(op)):
            wanted |= {register.name for register in reads(op)}
            kept.append(op)
    return kept[::-1]


def without_unread(*parts: tuple[Op, ...]) -> tuple[tuple[Op, ...], ...]:
    """Return the ``parts`` of a tile program without operations that contribute to no result.

    The results are the caller's memory and the matrix registers. Values that nothing reads are
    removed, and then the values, loops, pointers and stack buffers that only they used. An
    operation that updates a register in place does not count as reading this register.
    """
    reached = _Reached([op for part in parts for op in walk(part)])
    kept = tuple(tuple(reached.kept(part)) for part in parts)
    left = [op for part in kept for op in walk(part)]
    used = {address.pointer for op in left for address in addresses(op)}
    for op in reversed(left):
        if used.intersection(_placed(op)):
            used.update(_pointed(op))
    return tuple(tuple(_pointing(part, used)) for part in kept)


class _Reached:
    """Finds the operations that contribute to a result, directly or through other operations."""

    def __init__(self, every: Sequence[Op]) -> None:
        buffers = {op.name for op in every if isinstance(op, StackBuffer)}
        bases = {op.pointer: op.base for op in every if isinstance(op, Point)}
        self._buffers = {name: name for name in buffers}
        for pointer, base in bases.items():
            while base in bases:
                base = bases[base]
            if base in buffers:
                self._buffers[pointer] = base
        makers: dict[str, list[Op]] = {}
        for op in every:
            for name in self._made(op):
                makers.setdefault(name, []).append(op)
        left = [op for op in every if _computes(op) and not self._made(op)]
        self._ids: set[int] = set()
        self._names: set[str] = set()
        while left:
            op = left.pop()
            if id(op) in self._ids:
                continue
            self._ids.add(id(op))
            self._names.update(register.name for register in writes(op))
            for name in self._taken(op):
                left += makers.get(name, [])

    def _made(self, op: Op) -> list[str]:
        """Return the names of the registers and stack buffers that ``op`` fills."""
        if matrices_of(op) and not writes(op):
            return []
        buffers = [self._buffers.get(address.pointer) for address in _written(op)]
        return [*(register.name for register in writes(op)), *filter(None, buffers)]

    def _taken(self, op: Op) -> list[str]:
        buffers = [self._buffers.get(address.pointer, "") for address in addresses(op)]
        return [*(register.name for register in reads(op)), *buffers]

    def kept(self, ops: Iterable[Op]) -> Iterator[Op]:
        """Yield the operations of ``ops`` that contribute to a result, with hints and comments."""
        return rewritten(ops, self._if_needed)

    def _if_needed(self, op: Op) -> Op | None:
        if contains(op):
            needed = any(id(inner) in self._ids for inner in walk(inside(op)))
        elif isinstance(op, Keep):
            needed = op.acc.name in self._names
        else:
            needed = id(op) in self._ids or not _computes(op)
        return op if needed else None


def _pointing(ops: Iterable[Op], used: set[str]) -> Iterator[Op]:
    """Yield ``ops`` without the pointers and stack buffers that are not in ``used``."""

    def needed(op: Op) -> Op | None:
        placed = _placed(op)
        return op if not placed or not used.isdisjoint(placed) else None

    return rewritten(ops, needed)


def stored_in_parts(ops: Iterable[Op]) -> Iterator[Op]:
    """Yield ``ops`` with masked stores replaced by stores of part of a vector, where possible.

    The mask's number of lanes must be constant, and the target must have such a store.
    """

    def stored(op: Op) -> Op:
        if not isinstance(op, Store) or op.masked_by is None:
            return op
        alone = replace(op, active=value(op.masked_by.active))
        return alone if alone.active is not None and alone.spelling else op

    return rewritten(ops, stored)
