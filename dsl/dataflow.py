"""What tile programs read and write: definitions, uses, and registers alive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .program import (
    Add,
    Broadcast,
    Interleave,
    Keep,
    Load,
    Loop,
    MaskRegister,
    Multiply,
    MultiplyAdd,
    Op,
    Register,
    Splat,
    Store,
    SumLanes,
    Zero,
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
        case SumLanes() | Store():
            return (op.src,)
        case Keep():
            return (op.acc, *op.operands)
        case _:
            return ()


def writes(op: Op) -> tuple[Register, ...]:
    """The registers an operation writes."""
    match op:
        case MultiplyAdd():
            return (op.acc,)
        case (
            Zero() | Load() | Broadcast() | Splat() | Add() | Multiply() | Interleave() | SumLanes()
        ):
            return (op.dst,)
        case _:
            return ()


def mask_of(op: Op) -> MaskRegister | None:
    """The mask an access uses."""
    active = op.active if isinstance(op, (Load, Store)) else None
    return active if isinstance(active, MaskRegister) else None


def prune(ops: Sequence[Op], needed: Iterable[Register]) -> list[Op]:
    """``ops`` (straight-line) without those whose result nobody needs."""
    wanted = {register.name for register in needed}
    kept: list[Op] = []
    for op in reversed(ops):
        if any(register.name in wanted for register in writes(op)):
            wanted |= {register.name for register in reads(op)}
            kept.append(op)
    return kept[::-1]
