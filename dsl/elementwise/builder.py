"""Build straight-line programs of elementary operations, and run them on numpy.

A program is a list of steps. Each step computes one value, which no later step changes. If two
steps are equal, the second is not written.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import PlanError

from .operations import DTYPES, MASKS, OPERATIONS, OPTIONAL, compute
from .ranges import ANY, Range, range_of


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a program: an input, or the result of a step; its lanes have type ``element``."""

    index: int
    element: str


#: An operand of a step. A float is a literal of the program's floating-point type, an int a literal
#: of its integer type.
Argument = Value | float | int


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a program: ``dst = fn(*args)``.

    ``element`` is the type of the lanes that ``fn`` reads. ``part`` names the part of the program
    that the step belongs to, "" for none.
    """

    dst: Value
    fn: str
    args: tuple[Argument, ...]
    element: str
    part: str = ""


class Builder:
    """Writes a program step by step; a step equal to an earlier one is not repeated.

    Operations on literals are computed while the program is written. Steps are simplified where the
    result has the same bits for every value: ``x * 1``, ``x - 0.0``, ``x + -0.0``, two negations,
    division by a power of two, a limit that no value exceeds (see ``ranges.py`` and ``at_most``).

    ``real`` is the program's floating-point type, ``whole`` its integer type: s32 or s64. The
    operations in ``OPTIONAL`` can be used only if they are in ``extra``.
    """

    def __init__(self, real: str = "f32", whole: str = "s32", extra: Collection[str] = ()) -> None:
        self.real, self.whole, self.extra = real, whole, extra
        self.steps: list[Step] = []
        self._values = 0
        self._known: dict[object, Value] = {}
        self._makers: dict[Value, Step] = {}
        self._ranges: dict[Value, Range] = {}
        self._part = ""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Mark the steps that are written within the ``with`` block as part ``name``."""
        before, self._part = self._part, name
        yield
        self._part = before

    def input(self, element: str | None = None) -> Value:
        """Return a new input of the program."""
        self._values += 1
        return Value(self._values - 1, element or self.real)

    def at_most(self, value: Argument, most: float) -> None:
        """Tell that ``value`` is NaN or at most ``most``; a minimum may then be left out."""
        if isinstance(value, Value):
            low, high = self._range(value)
            self._ranges[value] = low, min(high, most)

    def has(self, fn: str) -> bool:
        """Return True if the program may use the operation ``fn``."""
        return fn in self.extra or (fn in OPERATIONS and fn not in OPTIONAL)

    def _range(self, arg: Argument) -> Range:
        """Return the least and the largest number that ``arg`` may be, unless it is NaN."""
        if isinstance(arg, Value):
            return self._ranges.get(arg, ANY)
        return ANY if math.isnan(arg) else (arg, arg)

    def __call__(self, fn: str, *args: Argument) -> Argument:
        """Return ``fn`` applied to ``args``: a value, or a literal if all ``args`` are literals."""
        args = tuple(map(self.literal, args))
        element = self._element(fn, args)
        if not any(isinstance(arg, Value) for arg in args):
            return self._fold(fn, args)
        shorter = self._shorter(fn, args)
        return self._step(fn, args, element) if shorter is None else shorter

    def literal(self, arg: Argument) -> Argument:
        """Return a number rounded or wrapped to its lane type; a value is returned unchanged."""
        if isinstance(arg, Value):
            return arg
        if isinstance(arg, int):
            half = 2**63 if self.whole == "s64" else 2**31
            return (arg + half) % (2 * half) - half
        with np.errstate(over="ignore"):
            return float(DTYPES[self.real](arg))

    def _type(self, arg: Argument) -> str:
        if isinstance(arg, Value):
            return arg.element
        return self.whole if isinstance(arg, int) else self.real

    def _element(self, fn: str, args: tuple[Argument, ...]) -> str:
        """Return the lane type of ``args``; PlanError if ``fn`` is not defined for it."""
        operation = OPERATIONS.get(fn)
        if operation is None or not self.has(fn):
            every = ", ".join(filter(self.has, OPERATIONS))
            raise PlanError("no elementary operation", got=fn, expected=every)
        types = [self._type(arg) for arg in args]
        lanes = types[1:] if fn == "select" else types
        legal = len(args) == operation.arity and len(set(lanes)) == 1
        if fn == "select" and legal and isinstance(args[0], Value):
            legal = types[0] == MASKS[lanes[0]]
        if not legal or lanes[0] not in operation.elements:
            raise PlanError(
                f"no operation {fn} on these lanes",
                got=", ".join(types),
                expected=f"{operation.arity} of {' or '.join(operation.elements)}",
            )
        return lanes[0]

    def _fold(self, fn: str, args: tuple[Argument, ...]) -> Argument:
        found = compute(fn, *(DTYPES[self._type(arg)](arg) for arg in args))
        return float(found) if found.dtype.kind == "f" else int(found)

    def _step(self, fn: str, args: tuple[Argument, ...], element: str) -> Value:
        key = fn, *(arg.hex() if isinstance(arg, float) else arg for arg in args)
        if key not in self._known:
            dst = self._known[key] = self.input(OPERATIONS[fn].result(element))
            self._makers[dst] = Step(dst, fn, args, element, self._part)
            self.steps.append(self._makers[dst])
            if dst.element == "f32":
                found = range_of(fn, args, tuple(map(self._range, args)))
                if found != ANY:
                    self._ranges[dst] = found
        return self._known[key]

    def _inside(self, fn: str, arg: Argument) -> Argument | None:
        """Return the argument of ``fn`` if ``arg`` is the result of a step ``fn(x)``, else None."""
        maker = self._makers.get(arg) if isinstance(arg, Value) else None
        return maker.args[0] if maker and maker.fn == fn else None

    def _shorter(self, fn: str, args: tuple[Argument, ...]) -> Argument | None:
        """Return the result of ``fn(*args)`` by fewer or cheaper steps; None if there are none."""
        match fn, args:
            case ("mul", (x, float(y))) | ("mul", (float(y), x)) if abs(y) == 1:
                return x if y == 1 else self("neg", x)
            case ("div", (x, float(y))) if _is_power_of_two(y):
                return self("mul", x, 1 / y)
            case ("add", (x, float(y))) | ("add", (float(y), x)) if _is_zero(y, -1):
                return x
            case ("sub", (x, float(y))) if _is_zero(y, 1):
                return x
            case ("sub", (float(x), y)) if _is_zero(x, -1):
                return self("neg", y)
            case ("add" | "sub", (x, y)) if (inner := self._inside("neg", y)) is not None:
                return self("sub" if fn == "add" else "add", x, inner)
            case ("neg", (x,)):
                return self._inside("neg", x)
            case ("abs", (x,)):
                inner = self._inside("neg", x)
                return x if self._inside("abs", x) is not None else inner and self("abs", inner)
            case ("fma", (x, float(y), z)) if abs(y) == 1:
                return self("add", x, z) if y == 1 else self("sub", z, x)
            case ("select", (int(mask), x, y)):
                return x if mask else y
            case ("min", (float(high), x)) if self._range(x)[1] <= high:
                return x
            case ("max", (float(low), x)) if self._range(x)[0] >= low:
                return x
            case ("zero_below", (float(low), x, y)) if self._range(x)[0] >= low:
                return y
            case ("select" | "min" | "max", (*_, x, y)) if x == y and isinstance(x, Value):
                return x
        return None


def _is_zero(number: float, sign: int) -> bool:
    return number == 0 and math.copysign(1, number) == sign


def _is_power_of_two(number: float) -> bool:
    """Return True if the number and its reciprocal are powers of two and normal in f32."""
    return abs(math.frexp(number)[0]) == 0.5 and 2.0**-126 <= abs(number) <= 2.0**126


def live(steps: Iterable[Step], results: Iterable[Argument]) -> tuple[Step, ...]:
    """Return the ``steps`` on which ``results`` depend, in the same order."""
    needed = set(results)
    kept = []
    for step in reversed(list(steps)):
        if step.dst in needed:
            needed.update(step.args)
            kept.append(step)
    return tuple(reversed(kept))


def run(steps: Iterable[Step], given: Mapping[Value, Any], real: str = "f32") -> dict[Value, Any]:
    """Compute a program on numpy arrays, and return the array of each value, inputs included."""
    values = dict(given)
    for step in steps:
        args = [
            values[arg]
            if isinstance(arg, Value)
            else DTYPES["s32" if isinstance(arg, int) else real](arg)
            for arg in step.args
        ]
        values[step.dst] = compute(step.fn, *args)
    return values
