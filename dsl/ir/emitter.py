"""Programs of elementary operations, written step by step as operations on registers."""

from __future__ import annotations

from collections.abc import Iterator

from sympy import Expr

from tilewright.elementwise.builder import Argument, Builder, Step, Value
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector

from .ops import Apply, Op, Register, Splat

#: Operations whose second argument is a constant of the instruction.
_SHIFTS = ("shl", "shr", "ushr")


class Emitter:
    """A builder whose values are registers of ``lanes`` lanes, named from ``prefix`` on.

    What is built is emitted in order: operations given as they are, and the steps that were
    built since; a value that is used again is computed once.
    """

    def __init__(self, target: Target, lanes: int, prefix: str, real: str) -> None:
        self.target, self.lanes, self.prefix = target, lanes, prefix
        self.builder = Builder(real)
        self._registers: dict[Value, Register] = {}
        self._literals: dict[object, Register] = {}
        self._emitted = self._unnamed = 0
        self._ops: list[Op] = []
        self._vectors: dict[str, Vector] = {}

    def vector(self, element: str) -> Vector:
        """The vector that holds a value of ``element``; a comparison's of f64 is f64's own."""
        if element not in self._vectors:
            held = "f64" if element == "s64" else element
            self._vectors[element] = self.target.holding(held, self.lanes)
        return self._vectors[element]

    def fresh(self, name: str, element: str) -> Register:
        """A register for something that is not computed."""
        return Register(f"{self.prefix}{name}", self.vector(element))

    def unnamed(self, element: str) -> Register:
        """A register with a name of its own."""
        self._unnamed += 1
        return self.fresh(f"x{self._unnamed}", element)

    def take(self, register: Register) -> Value:
        """A register that is defined elsewhere, as a value."""
        value = self.builder.input(register.vector.element)
        self._registers[value] = register
        return value

    def add(self, *ops: Op) -> None:
        """Operations that stand before what is built from now on."""
        self._flush()
        self._ops += ops

    def splat(self, source: str | Expr, element: str, name: str) -> Value:
        """A number known only at the call."""
        register = self.fresh(name, element)
        self.add(Splat(register, source))
        return self.take(register)

    def spread(self, single: Register, name: str) -> Value:
        """One element, known by its register, in all lanes."""
        if self.lanes == 1:
            return self.take(single)
        register = self.fresh(name, single.vector.element)
        self.add(Splat(register, single))
        return self.take(register)

    def register(self, value: Argument) -> Register:
        """Where ``value`` is."""
        self._flush()
        return self._argument(value)

    def emit(self) -> Iterator[Op]:
        """All that was added and built since the last time."""
        self._flush()
        ops, self._ops = self._ops, []
        yield from ops

    def _flush(self) -> None:
        steps = self.builder.steps[self._emitted :]
        self._emitted = len(self.builder.steps)
        for step in steps:
            self._step(step)

    def _step(self, step: Step) -> None:
        args: list[Register | int] = []
        for place, arg in enumerate(step.args):
            if isinstance(arg, int) and place == 1 and step.fn in _SHIFTS:
                args.append(arg)
            else:
                args.append(self._argument(arg))
        register = self.fresh(str(step.dst.index), step.dst.element)
        self._registers[step.dst] = register
        self._ops.append(Apply(register, step.fn, tuple(args), self.vector(step.element)))

    def _argument(self, value: Argument) -> Register:
        if isinstance(value, Value):
            return self._registers[value]
        return self._literal(value, "s32" if isinstance(value, int) else self.builder.real)

    def _literal(self, literal: float, element: str) -> Register:
        key = (repr(literal), element)
        if key not in self._literals:
            register = self.fresh(f"k{len(self._literals)}", element)
            self._literals[key] = register
            self._ops.append(Splat(register, literal))
        return self._literals[key]
