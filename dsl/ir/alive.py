"""Check that a tile's sums never need more vector registers at one time than the target has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from tilewright.errors import PlanError
from tilewright.isa.target import Target

from .dataflow import reads, writes
from .nodes import walk
from .ops import (
    Loop,
    MakeMask,
    Op,
    TileProgram,
)
from .values import MaskRegister, Register


class Step(NamedTuple):
    """The vector registers that an operation or a loop reads and writes, by name, with masks."""

    reads: Collection[str]
    writes: Collection[str]
    body: Sequence[Step] = ()


def steps_of(ops: Sequence[Op]) -> list[Step]:
    """Return, for each of ``ops``, the registers that it reads and writes; nothing is checked."""
    return [step_of(op) for op in ops]


def step_of(op: Op) -> Step:
    """Return the registers that ``op``, an operation or a loop, reads and writes."""
    if isinstance(op, Loop):
        body = steps_of(op.body)
        return Step(from_before(body), (), body)
    return step(op, reads(op), writes(op))


def step(op: Op, taken: Sequence[Register], made: Sequence[Register]) -> Step:
    """Return the ``Step`` of ``op``, which reads registers ``taken`` and writes ``made``.

    The operation's mask is added if a vector register holds it.
    """
    read = [register.name for register in taken]
    written = [register.name for register in made]
    if isinstance(op, MakeMask):
        written += _in_register(op.mask)
    elif (mask := op.masked_by) is not None:
        read += _in_register(mask)
    return Step(read, written)


def from_before(steps: Sequence[Step]) -> set[str]:
    """Return the registers that a loop's body reads but does not define.

    These registers are alive in all iterations of the loop.
    """
    needed, defined = set[str](), set[str]()
    for step in steps:
        needed.update(name for name in step.reads if name not in defined)
        defined.update(step.writes)
    return needed


def _in_register(mask: MaskRegister) -> list[str]:
    """Return a list with the vector register that holds ``mask``; empty if it occupies none."""
    kind = mask.vector.mask
    return [f"mask {mask.name}"] if kind is not None and kind.registers else []


def verify_alive(
    tile: TileProgram, target: Target, body: Sequence[Step], end: Sequence[Step], aliased: int
) -> None:
    """Raise PlanError if more registers are alive in a tile's ``body`` than the target has.

    ``aliased`` is the number of vectors that matrices occupy while products are summed. The tile's
    ``end`` has no limit: expressions of users need its registers, and a spill there costs a few
    cycles per tile.
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


#: The type of a function from names of values to the number of registers that the values occupy.
Taken = Callable[[Collection[str]], int]


def _kinds(tile: TileProgram, target: Target) -> Iterator[tuple[str, Taken]]:
    """Yield each register file, and a function that counts the registers of it that values occupy.

    Each value occupies one register, unless vectors are groups of registers or scalars have
    registers of their own.
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


def _alive(steps: Sequence[Step], live: set[str], taken: Taken) -> int:
    """Return the maximum number of registers that are in use at one time during ``steps``.

    ``live`` is the set of values that are alive after ``steps``. It is changed in place to the set
    that is alive before them.
    """
    most = 0
    for step in reversed(steps):
        if step.body:
            live.update(step.reads)
            most = max(most, _alive(step.body, set(live), taken))
            continue
        live.update(step.writes)
        most = max(most, taken(live))
        live.difference_update(step.writes)
        live.update(step.reads)
        most = max(most, taken(live))
    return most
