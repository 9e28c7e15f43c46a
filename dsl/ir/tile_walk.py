"""Visit the operations of a tile program in order, and check each with what is known before it.

The walk checks the rules that hold for all operations. A register is defined once, before its use,
and belongs to one vector of the target. Sizes are parameters. Memory belongs to an operand or a
stack buffer. ``tile_rules.py`` has the rules for each class of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NoReturn, TypeAlias

from sympy import Expr

from tilewright.errors import PlanError
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector
from tilewright.spec.types import ELEMENTS
from tilewright.symbolic import slots

from .access import bits_of
from .alive import Step, from_before, step
from .dataflow import reads, writes
from .extents import Pointer, Reach, advances, behind, between
from .ops import (
    Apply,
    Loop,
    Op,
    Parameter,
    StackBuffer,
    TileProgram,
)
from .values import Active, Address, MaskRegister, MatrixRegister, Register

#: A function that checks operations of one class.
Rule: TypeAlias = Callable[["Walk", Any], None]


class Walk:
    """A visit to all operations of a tile program, with what is known before each operation."""

    def __init__(self, tile: TileProgram, target: Target, rules: Mapping[type[Any], Rule]) -> None:
        self.tile, self.target, self.rules = tile, target, rules
        self.vectors = _vectors(target)
        self.seen: set[Vector] = set()
        self.registers: dict[str, Vector] = {}
        self.constants: set[str] = set()
        self.matrices: set[str] = set()
        self.shapes: dict[str, MatrixRegister] = {}
        self.masks: set[str] = set()
        self.pointers: dict[str, Pointer] = {}
        self.trips: dict[str, int | None] = {}
        self.buffers: dict[str, StackBuffer] = {}
        self.roles: dict[str, str] = {p.name: p.role for p in tile.parameters}
        self.reach: Reach = {}
        self.written: dict[str, set[tuple[int, int]]] = {}
        self.idle = False
        for parameter in tile.parameters:
            self._parameter(parameter)

    def _parameter(self, parameter: Parameter) -> None:
        if parameter.role in ("in", "out", "table"):
            element = parameter.element or self.tile.element
            if element not in ELEMENTS:
                raise PlanError(
                    f"{self.tile.name}: {parameter.name} has no element type", got=element
                )
            self.pointers[parameter.name] = Pointer(
                parameter.name,
                element,
                written=parameter.role == "out",
                table=parameter.role == "table",
            )

    def ops(self, ops: tuple[Op, ...]) -> list[Step]:
        """Check operations in order; return the registers that each reads and writes."""
        return [self._loop(op) if isinstance(op, Loop) else self._op(op) for op in ops]

    def _op(self, op: Op) -> Step:
        rule = self.rules.get(type(op))
        if rule is None:
            self.refuse(op, "has no rule", "an entry of RULES in tile_rules.py")
        known, read, written = self.registers, reads(op), writes(op)
        if isinstance(op, Apply) and op.again:
            read = (*read, op.dst)  # only a register with a value gets another one
        for register in read:
            found = known.get(register.name)
            if found is None:
                self.refuse(op, f"reads {register.name} undefined", "a register that was written")
            if found is not register.vector and key_of(found) != key_of(register.vector):
                self.refuse(op, f"reads {register.name}, which is {found!r}", "the same vector")
        done = step(op, read, written)
        for register in written:
            if register.name in self.constants:
                self.refuse(op, f"changes {register.name}", "a register that is no constant in C")
            if register.name in done.reads:
                continue
            if register.name in self.roles:
                self.refuse(op, f"defines {register.name}, a parameter", "a name of its own")
            if register.name in known:
                self.refuse(op, f"defines {register.name} twice", "one definition of each name")
            if register.vector not in self.seen:
                self.held(op, register.vector)
            known[register.name] = register.vector
            if op.constant:
                self.constants.add(register.name)
        mask = op.masked_by
        if mask is not None and mask.name not in self.masks:
            self.refuse(op, "uses a mask never made", "make_mask before it")
        rule(self, op)
        return done

    def _loop(self, loop: Loop) -> Step:
        """Check a loop's body once, for the pointer positions of every iteration."""
        if loop.counter in self.trips:
            self.refuse(loop, f"counts {loop.counter} again", "a counter of its own")
        trips = self.size(loop, loop.trips)
        if trips is not None and trips < 0:
            self.refuse(loop, f"has {trips} trips", "0 or more")
        before = self.registers, self.masks, self.pointers, self.trips, self.matrices, self.idle
        around = dict(self.pointers)
        steps = {name: step for name, step in advances(loop.body).items() if name in around}
        last = None if trips is None else max(trips - 1, 0)
        inside = around | {n: between(around[n], step, last) for n, step in steps.items()}
        self.registers, self.masks, self.pointers = dict(before[0]), set(before[1]), inside
        self.trips, self.matrices = {**before[3], loop.counter: trips}, set(before[4])
        self.idle, constants = self.idle or trips == 0, set(self.constants)
        body = self.ops(loop.body)
        self.constants = constants
        self.registers, self.masks, _, self.trips, self.matrices, self.idle = before
        self.pointers = around | {n: behind(around[n], step, trips) for n, step in steps.items()}
        return Step(from_before(body), (), body)

    # --- checks that rules use -----------------------------------------------------------------

    def refuse(self, op: Op, problem: str, expected: str) -> NoReturn:
        """Raise PlanError: ``op`` has this ``problem``; ``expected`` says what is legal."""
        raise PlanError(f"{self.tile.name}: {op.kind} {problem}", got=shown(op), expected=expected)

    def held(self, op: Op, vector: Vector) -> Vector:
        """Return the target's vector type with the name, element and lanes of ``vector``."""
        found = self.vectors.get(key_of(vector))
        if found is None:
            self.refuse(op, f"uses {vector!r}", f"a vector of {self.target.name}")
        self.seen.add(vector)
        return found

    def size(self, op: Op, expr: Expr) -> int | None:
        """Return the value of ``expr`` if it is constant, else None.

        PlanError if ``expr`` depends on a size that is not a parameter of the tile.
        """
        if expr.is_Integer:
            return int(expr)
        for name in sorted(slots(expr)):
            if self.roles.get(name) != "size":
                self.refuse(op, f"depends on {name}", "sizes that are parameters of the tile")
        return None

    def same(self, op: Op, *registers: Register) -> None:
        """Raise PlanError unless all registers have the same vector type."""
        first, *others = (register.vector for register in registers)
        for other in others:
            if other is not first and key_of(other) != key_of(first):
                self.refuse(op, f"mixes {first!r} and {other!r}", "registers of one vector")

    def spelled(self, op: Op, spelling: str, vector: Vector) -> None:
        """Raise PlanError if ``spelling`` is empty: the target has no such instruction."""
        if not has(vector, spelling):
            self.refuse(op, f"has no instruction on {vector!r}", "one of the vector's")

    def pointer(self, op: Op, name: str) -> Pointer:
        """Return the pointer called ``name``, which must point to elements."""
        found = self.pointers.get(name)
        if found is None or found.table:
            expected = "a parameter, a stack buffer, or what was pointed"
            self.refuse(op, f"{name} is no pointer", expected)
        return found

    def access(
        self, op: Op, address: Address, memory: str, count: int | None, *, write: bool = False
    ) -> None:
        """Check that ``count`` elements of type ``memory`` may be accessed; None if unknown.

        A stack buffer must contain these elements. Only outputs and stack buffers may be written.
        The elements reached through parameters are recorded; each call is checked against them.
        """
        pointer = self.pointer(op, address.pointer)
        if memory != pointer.element and memory != bits_of(pointer.element):
            self.refuse(op, f"takes {pointer.element} of {pointer.base} for {memory}", "its type")
        if write and not pointer.written:
            self.refuse(op, f"writes {address.pointer}, an input", "a parameter that is an output")
        offset = self.size(op, address.offset)
        buffer = self.buffers.get(pointer.base)
        if buffer is not None and offset is None and address.pointer == buffer.name:
            self._outside(op, buffer)
        at = pointer.moved(offset, offset)
        if self.idle or count is None or at.low is None or at.high is None:
            return
        if buffer is not None:
            if at.low < 0 or at.high + count > buffer.elements:
                self._outside(op, buffer)
            return
        key = pointer.base, pointer.each
        low, high = self.reach.get(key, (at.low, at.high))
        self.reach[key] = min(low, at.low), max(high, at.high + count)
        if write and count and at.low == at.high:
            self.written.setdefault(pointer.base, set()).add((at.low, at.low + count))

    def _outside(self, op: Op, buffer: StackBuffer) -> NoReturn:
        inside = f"is not inside of the {buffer.elements} elements there are"
        self.refuse(op, inside, f"offsets that are constant, and lead into {buffer.name}")

    def touched(self, op: Op, active: Active, most: int) -> int | None:
        """Return the number of elements that an access touches, None if unknown.

        ``most`` is their number if all lanes are active.
        """
        if active is None:
            return most
        if isinstance(active, int):
            if not 0 < active <= most:
                self.refuse(op, f"touches {active} of {most} elements", f"1 to {most}")
            return active
        count = self.size(op, active.active if isinstance(active, MaskRegister) else active)
        if count is not None and not 0 <= count <= most:
            self.refuse(op, f"touches {count} of {most} elements", f"0 to {most}")
        return count


def has(vector: Vector, spelling: str) -> bool:
    """Return True if ``spelling`` names an instruction, or if the target is only interpreted."""
    return bool(spelling) or not vector.load


def key_of(vector: Vector) -> tuple[str, str, int]:
    """Return name, element type and lanes of ``vector``, by which ``Walk`` finds vector types."""
    return vector.name, vector.element, vector.lanes


def _vectors(target: Target) -> dict[tuple[str, str, int], Vector]:
    return {key_of(vector): vector for vector in target.every_vector}


# --- operations in words -----------------------------------------------------------------------


def shown(node: Any) -> str:
    """Return an operation or a node of a nest as a line of text, without empty fields."""
    said = ((f.name, getattr(node, f.name)) for f in fields(node) if f.name != "body")
    given = (f"{name}={text(found)}" for name, found in said if found not in (None, "", ()))
    return f"{type(node).__name__}({', '.join(given)})"


def text(found: Any) -> str:
    """Return a field of an operation, for example a register or an address, as text."""
    match found:
        case Register():
            return f"{found.name}:{found.vector!r}"
        case MatrixRegister():
            return f"{found.name}:<{found.rows} rows of {found.columns} {found.element}>"
        case MaskRegister():
            return f"{found.name}:<first {found.active} of {found.vector!r}>"
        case Address():
            return f"[{found.pointer} + {found.offset}]"
        case tuple():
            return f"({', '.join(map(text, found))})"
        case Expr():
            return str(found)
        case _:
            return repr(found)
