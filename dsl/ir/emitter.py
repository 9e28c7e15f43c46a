"""Turn programs of elementary operations into operations on vector registers with clear names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from sympy import Expr

from tilewright.elementwise.builder import Argument, Builder, Step, Value
from tilewright.elementwise.operations import OPTIONAL
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector

from .ops import (
    Apply,
    Note,
    Op,
    Splat,
)
from .values import Register

#: Elementary operations whose second argument must be a constant in the instruction.
_SHIFTS = ("shl", "shr", "ushr")


class Emitter:
    """A builder whose values are registers of ``lanes`` lanes.

    Operations given to ``add`` and steps that were built are emitted in the order of these calls. A
    value that is used again is computed once.

    Registers are named after the stage in which a value is built, and the part of that stage. The
    last value of a stage or part has its plain name; earlier ones are numbered. Literals are named
    after their first use. If several emitters write one tile, ``prefix`` begins the names of values
    that belong to several results. ``real`` and ``whole`` are those of the builder.
    """

    def __init__(
        self, target: Target, lanes: int, prefix: str, real: str, whole: str = "s32"
    ) -> None:
        self.target, self.lanes, self.prefix = target, lanes, prefix
        vector = next((v for v in target.of(real) if v.lanes == lanes), None)
        self.builder = Builder(real, whole, OPTIONAL & vector.ops.keys() if vector else ())
        self._registers: dict[Value, Register] = {}
        self._literals: dict[object, Register] = {}
        self._emitted = self._unnamed = 0
        self._stage, self._family, self._note = prefix.rstrip("_"), "", ""
        self._taken: set[str] = set()
        self._given: set[str] = set()
        self._numbers: dict[str, count[int]] = {}
        self._constants: dict[str, count[int]] = {}
        self._ops: list[Op] = []
        self._vectors: dict[str, Vector] = {}

    def stage(self, name: str, subject: str = "", note: str = "", family: str = "") -> None:
        """Begin a stage, whose values are called ``subject_name`` and literals ``family_const0``.

        ``subject`` is the result to which the values belong, "" for several results. ``note`` is
        the comment before the first operation, "" for none. ``family`` is ``name`` by default.
        """
        self._flush(end=True)
        self._stage = f"{subject}_{name}" if subject else f"{self.prefix}{name}"
        self._family, self._note = family or name, note

    @contextmanager
    def aside(self, name: str, family: str) -> Iterator[None]:
        """Name values after ``name`` and literals after ``family`` within the ``with`` block."""
        self._flush()
        before = self._stage, self._family
        self._stage, self._family = f"{self.prefix}{name}", family
        yield
        self._flush(end=True)
        self._stage, self._family = before

    def vector(self, element: str) -> Vector:
        """Return the vector type for values of ``element``; masks of f64 (m64) use that of f64."""
        if element not in self._vectors:
            held = "f64" if element == "m64" else element
            self._vectors[element] = self.target.holding(held, self.lanes)
        return self._vectors[element]

    def fresh(self, name: str, element: str) -> Register:
        """Return a new register for a value that no step computes, for example a loaded one.

        A name that a step's value has already gets a suffix.
        """
        full = f"{self.prefix}{name}"
        while full in self._taken:
            full += "_"
        self._given.add(full)
        return Register(full, self.vector(element))

    def unnamed(self, element: str) -> Register:
        """Return a new register with a generated, unique name."""
        self._unnamed += 1
        return self.fresh(f"x{self._unnamed}", element)

    def take(self, register: Register) -> Value:
        """Return a value for ``register``, which an operation outside this emitter fills."""
        value = self.builder.input(register.vector.element)
        self._registers[value] = register
        return value

    def add(self, *ops: Op) -> None:
        """Add finished operations; steps that are built later come after them."""
        self._flush()
        if ops:
            self._say()
            self._ops += ops

    def splat(self, source: str | Expr, element: str, name: str) -> Value:
        """Return a vector whose lanes all hold ``source``, a number known only at the call."""
        register = self.fresh(name, element)
        self.add(Splat(register, source))
        return self.take(register)

    def spread(self, single: Register, name: str) -> Value:
        """Return a vector whose lanes all hold the element in the scalar register ``single``."""
        if self.lanes == 1:
            return self.take(single)
        register = self.fresh(name, single.vector.element)
        self.add(Splat(register, single))
        return self.take(register)

    def register(self, value: Argument) -> Register:
        """Return the register that holds ``value``; all steps built so far are written first."""
        steps = self.builder.steps
        self._flush(end=bool(steps) and steps[-1].dst == value)
        return self._argument(value)

    def emit(self) -> Iterator[Op]:
        """Yield all operations that were added and built since the last call."""
        self._flush(end=True)
        ops, self._ops = self._ops, []
        yield from ops

    def _flush(self, *, end: bool = False) -> None:
        """Write the steps that were built since the last call as operations on registers.

        If ``end`` is True, the last step gets the plain name of the stage.
        """
        steps = self.builder.steps[self._emitted :]
        self._emitted = len(self.builder.steps)
        ends = {step.part: step.dst for step in steps if step.part}
        for index, step in enumerate(steps):
            if end and index == len(steps) - 1:
                name = self._name("", last=True)
            else:
                name = self._name(step.part, last=ends.get(step.part) == step.dst)
            self._step(step, name)

    def _say(self) -> None:
        """Write the comment of the current stage, unless it is already written."""
        if self._note:
            self._ops.append(Note(self._note))
        self._note = ""

    def _name(self, part: str, *, last: bool) -> str:
        """Return the name for the next value of the current stage, or of ``part`` of the stage."""
        whole = f"{self._stage}_{part}" if part else self._stage
        numbers = self._numbers.setdefault(whole, count(1))
        free = whole not in self._taken and whole not in self._given
        name = whole if last and self._family and free else f"{whole}_{next(numbers)}"
        self._taken.add(name)
        return name

    def _step(self, step: Step, name: str) -> None:
        self._say()
        args: list[Register | int] = []
        for place, arg in enumerate(step.args):
            if isinstance(arg, int) and place == 1 and step.fn in _SHIFTS:
                args.append(arg)
            else:
                args.append(self._argument(arg, step.part))
        register = Register(name, self.vector(step.dst.element))
        self._registers[step.dst] = register
        self._ops.append(Apply(register, step.fn, tuple(args)))

    def _argument(self, value: Argument, part: str = "") -> Register:
        if isinstance(value, Value):
            return self._registers[value]
        b = self.builder
        return self._literal(value, b.whole if isinstance(value, int) else b.real, part)

    def _literal(self, literal: float, element: str, part: str) -> Register:
        key = (repr(literal), element, self._family)
        if key not in self._literals:
            named = "_".join(filter(None, (self._family, part, "const")))
            label = f"{named}{next(self._constants.setdefault(named, count()))}"
            register = self.fresh(label, element)
            self._literals[key] = register
            self._ops.append(Splat(register, literal, label=label))
        return self._literals[key]
