"""What tile programs read and write: definitions, uses, and registers alive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from sympy import Expr

from tilewright.symbolic import slots, value

from .ops import (
    Add,
    Address,
    Apply,
    Broadcast,
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
    Op,
    Pick,
    Point,
    PointBatch,
    Prefetch,
    Register,
    Splat,
    Store,
    StoreMatrix,
    SumLanes,
    Zero,
    ZeroMatrix,
)


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


def prune(ops: Sequence[Op], needed: Iterable[Register]) -> list[Op]:
    """``ops`` (straight-line) without those whose result nobody needs."""
    wanted = {register.name for register in needed}
    kept: list[Op] = []
    for op in reversed(ops):
        if any(register.name in wanted for register in writes(op)):
            wanted |= {register.name for register in reads(op)}
            kept.append(op)
    return kept[::-1]


def without_unread(ops: Sequence[Op]) -> tuple[Op, ...]:
    """``ops`` without loads and computations, outside of loops, whose result none of them reads."""
    read: set[str] = set()
    kept: list[Op] = []
    for op in reversed(ops):
        if not isinstance(op, (Load, Splat, Apply)) or op.dst.name in read:
            read |= {register.name for inner in walk((op,)) for register in reads(inner)}
            kept.append(op)
    return tuple(reversed(kept))


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
