"""What tile programs read and write: definitions, uses, and registers alive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count

from sympy import Expr

from tilewright.symbolic import slots, value

from .ops import (
    Add,
    Address,
    Advance,
    Apply,
    Broadcast,
    Hide,
    Interleave,
    Keep,
    Load,
    LoadMatrix,
    Loop,
    MakeMask,
    MaskRegister,
    MatrixRegister,
    Multiply,
    MultiplyAdd,
    MultiplyMatrices,
    Note,
    Op,
    Pick,
    Point,
    PointBatch,
    Prefetch,
    Register,
    Room,
    Splat,
    Store,
    StoreMatrix,
    SumLanes,
    Zero,
    ZeroMatrix,
)

#: What stands beside computations, and makes no values.
_ASIDE = (Advance, Hide, Keep, Loop, MakeMask, Note, Point, PointBatch, Prefetch, Room)


def walk(ops: tuple[Op, ...]) -> Iterator[Op]:
    """Every operation, loops before their bodies."""
    for op in ops:
        yield op
        if isinstance(op, Loop):
            yield from walk(op.body)


def reads(op: Op) -> tuple[Register, ...]:
    """The registers an operation reads."""
    match op:
        case MultiplyAdd():
            return (op.acc, op.x) + ((op.y,) if isinstance(op.y, Register) else ())
        case Add() | Multiply() | Interleave():
            return (op.x, op.y)
        case Apply():
            return tuple(arg for arg in op.args if isinstance(arg, Register))
        case Splat():
            return (op.source,) if isinstance(op.source, Register) else ()
        case SumLanes() | Store() | Pick():
            return (op.src,)
        case Keep():
            return (op.acc, *op.operands)
        case _:
            return ()


def writes(op: Op) -> tuple[Register, ...]:
    """The registers an operation writes."""
    match op:
        case MultiplyAdd():
            return (op.acc,) if op.product is None else (op.acc, op.product)
        case (
            Zero()
            | Load()
            | Broadcast()
            | Pick()
            | Splat()
            | Add()
            | Multiply()
            | Apply()
            | Interleave()
            | SumLanes()
        ):
            return (op.dst,)
        case _:
            return ()


def matrices_of(op: Op) -> tuple[MatrixRegister, ...]:
    """The matrix registers of an operation, the one that it writes first."""
    match op:
        case ZeroMatrix() | LoadMatrix():
            return (op.dst,)
        case StoreMatrix():
            return (op.src,)
        case MultiplyMatrices():
            return op.acc, op.x, op.y
        case _:
            return ()


def mask_of(op: Op) -> MaskRegister | None:
    """The mask an access uses; one that converts copies the lanes that there are."""
    if isinstance(op, (Load, Store)) and isinstance(op.active, MaskRegister) and not op.memory:
        return op.active
    return None


def without_idle_masks(ops: Sequence[Op], others: Sequence[Op] = ()) -> tuple[Op, ...]:
    """``ops`` without the masks that neither they nor ``others`` use."""
    used = {mask.name for op in (*walk((*ops, *others)),) if (mask := mask_of(op))}
    return tuple(op for op in ops if not isinstance(op, MakeMask) or op.mask.name in used)


def stored_in_parts(ops: Iterable[Op]) -> Iterator[Op]:
    """``ops`` where a constant number of lanes is stored without a mask, if the vector can."""
    for op in ops:
        if isinstance(op, Loop):
            yield replace(op, body=tuple(stored_in_parts(op.body)))
        elif isinstance(op, Store) and (mask := mask_of(op)) is not None:
            lanes = value(mask.active)
            yield replace(op, active=lanes) if lanes in op.src.vector.partial_store else op
        else:
            yield op


def with_rooms_apart(ops: Iterable[Op], taken: set[str]) -> Iterator[Op]:
    """``ops`` in which a register that is stored in part again goes by way of another room.

    ``taken`` are the rooms of what came before, to which those of ``ops`` are added.
    """
    for op in ops:
        if isinstance(op, Loop):
            yield replace(op, body=tuple(with_rooms_apart(op.body, taken)))
            continue
        if isinstance(op, Store) and op.active is not None:
            names = chain((op.part,), (f"{op.part}{again}" for again in count(2)))
            part = next(part for part in names if f"{op.src.name}_{part}" not in taken)
            taken.add(f"{op.src.name}_{part}")
            yield op if part == op.part else replace(op, part=part)
            continue
        if isinstance(op, Load) and op.active is not None:
            taken.add(f"{op.dst.name}_part")
        yield op


def without_idle_notes(ops: Sequence[Op]) -> tuple[Op, ...]:
    """``ops`` without the notes behind which nothing stands that they could speak of."""
    kept: list[Op] = []
    for op in reversed(ops):
        if isinstance(op, Note) and (not kept or isinstance(kept[-1], Note)):
            continue
        kept.append(replace(op, body=without_idle_notes(op.body)) if isinstance(op, Loop) else op)
    return tuple(kept[::-1])


def prune(ops: Sequence[Op], needed: Iterable[Register]) -> list[Op]:
    """``ops`` (straight-line) without those whose result nobody needs."""
    wanted = {register.name for register in needed}
    kept: list[Op] = []
    for op in reversed(ops):
        if any(register.name in wanted for register in writes(op)):
            wanted |= {register.name for register in reads(op)}
            kept.append(op)
    return kept[::-1]


def without_unread(*parts: tuple[Op, ...]) -> tuple[tuple[Op, ...], ...]:
    """A tile's ``parts`` without what reaches no result: neither memory of the caller nor a matrix.

    Values that nothing reads go, what they are made of, loops of nothing else, and the pointers
    and rooms on the stack that are then left. What updates a register in place does not read it.
    """
    reached = _Reached([op for part in parts for op in walk(part)])
    kept = tuple(tuple(reached.kept(part)) for part in parts)
    left = [op for part in kept for op in walk(part)]
    used = {address.pointer for op in left for address in addresses(op)}
    for op in reversed(left):
        if isinstance(op, Point) and op.pointer in used:
            used.add(op.base)
    return tuple(tuple(_pointing(part, used)) for part in kept)


class _Reached:
    """The operations from whose values results are made."""

    def __init__(self, every: Sequence[Op]) -> None:
        rooms = {op.name for op in every if isinstance(op, Room)}
        bases = {op.pointer: op.base for op in every if isinstance(op, Point)}
        self._rooms = {name: name for name in rooms}
        for pointer, base in bases.items():
            while base in bases:
                base = bases[base]
            if base in rooms:
                self._rooms[pointer] = base
        makers: dict[str, list[Op]] = {}
        for op in every:
            for name in self._made(op):
                makers.setdefault(name, []).append(op)
        left: list[Op] = [op for op in every if not self._made(op) and not isinstance(op, _ASIDE)]
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
        """What ``op`` makes that is no result: registers, and what a room holds."""
        if isinstance(op, Store):
            room = self._rooms.get(op.address.pointer)
            return [] if room is None else [room]
        return [register.name for register in writes(op)]

    def _taken(self, op: Op) -> list[str]:
        rooms = [self._rooms.get(address.pointer, "") for address in addresses(op)]
        return [*(register.name for register in reads(op)), *rooms]

    def kept(self, ops: Iterable[Op]) -> Iterator[Op]:
        """Those of ``ops`` that are needed, and what stands beside them."""
        for op in ops:
            if isinstance(op, Loop):
                body = tuple(self.kept(op.body))
                if any(id(inner) in self._ids for inner in walk(body)):
                    yield op if body == op.body else replace(op, body=body)
            elif isinstance(op, Keep):
                if op.acc.name in self._names:
                    yield op
            elif isinstance(op, _ASIDE) or id(op) in self._ids:
                yield op


def _pointing(ops: Iterable[Op], used: set[str]) -> Iterator[Op]:
    """``ops`` without pointers and rooms that are not among ``used``."""
    for op in ops:
        if isinstance(op, Loop):
            body = tuple(_pointing(op.body, used))
            yield op if body == op.body else replace(op, body=body)
        elif isinstance(op, (Point, PointBatch, Advance, Hide)):
            if op.pointer in used:
                yield op
        elif not isinstance(op, Room) or op.name in used:
            yield op


def addresses(op: Op) -> tuple[Address, ...]:
    """Where an operation reads or writes memory."""
    if isinstance(op, (Load, Store, Prefetch, Broadcast, LoadMatrix, StoreMatrix)):
        return (op.address,)
    if isinstance(op, MultiplyAdd) and isinstance(op.y, Address):
        return (op.y,)
    return ()


def pointers_used(ops: Iterable[Op]) -> set[str]:
    """The pointers through which memory is accessed, and what they are made of."""
    found = set()
    for op in ops:
        found |= {address.pointer for address in addresses(op)}
        if isinstance(op, Point):
            found.add(op.base)
        elif isinstance(op, PointBatch):
            found.add(op.operand)
    return found


def sizes_used(ops: Iterable[Op], order: Iterable[str]) -> list[str]:
    """The run-time sizes that operations depend on, in ``order``."""
    used = frozenset[str]().union(*(_sizes_in(op) for op in ops))
    return [slot for slot in order if slot in used]


def _sizes_in(op: Op) -> frozenset[str]:
    exprs: list[Expr] = [address.offset for address in addresses(op)]
    if isinstance(op, (LoadMatrix, StoreMatrix)):
        exprs.append(op.stride)
    if isinstance(op, Loop):
        exprs.append(op.trips)
    for attribute in ("offset", "step", "stride", "existing", "active", "source"):
        if isinstance(found := getattr(op, attribute, None), Expr):
            exprs.append(found)
    if isinstance(op, MakeMask):
        exprs.append(op.mask.active)
    if isinstance(op, (Load, Store)) and isinstance(op.active, MaskRegister) and op.memory:
        exprs.append(op.active.active)
    return frozenset[str]().union(*(slots(expr) for expr in exprs if not expr.is_Integer))
