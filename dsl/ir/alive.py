"""The vector registers of a tile program that are alive at once, and how many may be."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from tilewright.errors import PlanError
from tilewright.isa.target import Target

from .dataflow import pointers_used, reads, writes
from .nodes import walk
from .ops import (
    Loop,
    MakeMask,
    Op,
    Splat,
    TileProgram,
)
from .values import MaskRegister, Register

#: Values on their way through a tile's ``end`` that may wait in memory, beside those in registers.
SPILLED = 24


class Step(NamedTuple):
    """The vector registers that an operation reads and writes, masks among them; or a loop."""

    reads: Collection[str]
    writes: Collection[str]
    body: Sequence[Step] = ()


def steps_of(ops: Sequence[Op]) -> list[Step]:
    """What operations do to registers, unchecked."""
    return [step_of(op) for op in ops]


def step_of(op: Op) -> Step:
    """What one operation does to registers."""
    if isinstance(op, Loop):
        body = steps_of(op.body)
        return Step(from_before(body), (), body)
    return step(op, reads(op), writes(op))


def step(op: Op, taken: Sequence[Register], made: Sequence[Register]) -> Step:
    """What an operation does that reads registers ``taken``, and writes registers ``made``."""
    read = [register.name for register in taken]
    written = [register.name for register in made]
    if isinstance(op, MakeMask):
        written += _in_register(op.mask)
    elif (mask := op.masked_by) is not None:
        read += _in_register(mask)
    return Step(read, written)


def from_before(steps: Sequence[Step]) -> set[str]:
    """The registers that a loop's body reads and does not define: they live in all its trips."""
    needed, defined = set[str](), set[str]()
    for step in steps:
        needed.update(name for name in step.reads if name not in defined)
        defined.update(step.writes)
    return needed


def _in_register(mask: MaskRegister) -> list[str]:
    """The vector register that holds a mask, where it is one."""
    kind = mask.vector.mask
    return [f"mask {mask.name}"] if kind is not None and kind.registers else []


def verify_alive(
    tile: TileProgram, target: Target, body: Sequence[Step], end: Sequence[Step], aliased: int
) -> None:
    """PlanError if more vector registers are alive at once than there are, or may be spilled.

    ``aliased`` vectors are taken up by matrices while products are summed.
    """
    for kind, taken in _kinds(tile, target):
        live = set[str]()
        _alive(end, live, taken)
        beside = aliased if kind == "vector" else 0
        if (most := _alive(body, live, taken) + beside) > target.registers:
            raise PlanError(
                f"{tile.name} keeps {most} {kind} registers alive on {target.name}",
                expected=f"{target.registers} or fewer",
            )
        most, limit = _alive(end, set(), taken, _literals(tile)), _limit(tile, target)
        if most > limit:
            raise PlanError(
                f"{tile.name} keeps {most} {kind} registers alive in its end on {target.name}",
                expected=f"{limit} or fewer: {target.registers} and what may be spilled",
            )


def live_registers(tile: TileProgram, target: Target) -> int:
    """The most vector registers alive while products are summed, masks in registers included."""
    (_, taken), *_ = _kinds(tile, target)
    live = set[str]()
    _alive(steps_of(tile.end), live, taken)
    return _alive(steps_of(tile.body), live, taken)


#: How many registers values of these names take.
Taken = Callable[[Collection[str]], int]


def _kinds(tile: TileProgram, target: Target) -> Iterator[tuple[str, Taken]]:
    """The files of registers, those of vectors first, and what values take of each.

    It is one for each value but where vectors are groups of registers, or scalars lie apart.
    """
    if not target.scalars_apart and all(vector.registers == 1 for vector in target.vectors):
        yield "vector", len
        return
    vectors: dict[str, int] = {}
    scalars: dict[str, int] = {}
    for op in walk(tile.body + tile.end):
        for register in (*reads(op), *writes(op)):
            apart = target.scalars_apart and register.vector.lanes == 1
            vectors[register.name] = 0 if apart else register.vector.registers
            scalars[register.name] = int(apart)
    yield "vector", lambda live: sum(vectors.get(name, 1) for name in live)
    if target.scalars_apart:
        yield "scalar", lambda live: sum(scalars.get(name, 0) for name in live)


def _alive(
    steps: Sequence[Step], live: set[str], taken: Taken, literals: Collection[str] = ()
) -> int:
    """The most alive at once; ``live`` is changed from the set after ``steps`` to that before."""
    most = 0
    for step in reversed(steps):
        if step.body:
            live.update(step.reads)
            most = max(most, _alive(step.body, set(live), taken, literals))
            continue
        live.update(step.writes)
        most = max(most, taken(live))
        live.difference_update(step.writes)
        live.update(step.reads)
        if literals:
            live.difference_update(literals)
        most = max(most, taken(live))
    return most


def _literals(tile: TileProgram) -> set[str]:
    """Registers of constants, which compilers read from memory where they are used."""
    splats = (op for op in walk(tile.body + tile.end) if isinstance(op, Splat))
    return {op.dst.name for op in splats if isinstance(op.source, (int, float))}


def _limit(tile: TileProgram, target: Target) -> int:
    """How many may be alive in the end, where a spill costs a few cycles once for each tile.

    What an epilogue reads of an operand and rows or columns share may fill all registers, for
    each operand but the first.
    """
    used = pointers_used(walk(tile.end))
    inputs = sum(p.role == "in" and p.name in used for p in tile.parameters)
    return target.registers * max(inputs, 1) + SPILLED
