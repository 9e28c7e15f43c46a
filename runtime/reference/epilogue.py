"""Evaluate epilogues in float64, with bounds on the error that a kernel in f32 may make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.errors import SpecError
from tilewright.runtime.arrays.elements import decode, epsilon
from tilewright.runtime.call.bound_sizes import Array
from tilewright.spec.expression import (
    Arithmetic,
    Call,
    Compared,
    Composed,
    Expression,
    Leaf,
    Monotone,
    Number,
    Operand,
    Within,
    walk,
)
from tilewright.spec.types import is_integer

from .interval import Interval, add, choose, div, hull, less, monotone, mul, smooth, sub


def evaluate(
    expression: Expression, sums: Mapping[str, Interval], operands: Mapping[str, Any]
) -> Interval:
    """Return the value of an epilogue, with the bounds between which a kernel's result must be.

    ``sums`` holds the intervals of the leaves "acc" and "acc2". ``operands`` holds the arrays of
    named operands, and D's old value, decoded, as "d".
    """
    acc = sums["acc"]

    def leaf(node: Expression) -> Interval:
        if isinstance(node, Leaf) and node.name in sums:
            return sums[node.name]
        return _leaf(node, acc, operands)

    return Evaluation(acc.element, acc.value.dtype, leaf).of(expression)


class Evaluation:
    """The evaluation of expressions: the values of nodes that are known so far.

    ``element`` is the type of the kernel's arithmetic, ``dtype`` numpy's type for exact values.
    ``leaf`` returns the value of a node that is no number and no call of a function.
    """

    def __init__(self, element: str, dtype: Any, leaf: Callable[[Expression], Interval]) -> None:
        self.element, self.dtype, self.leaf = element, dtype, leaf
        self.values: dict[int, Interval] = {}
        # These expressions are kept alive, because a node is identified by its address.
        self.meanings: list[Expression] = []

    def of(self, expression: Expression) -> Interval:
        """Return the value of an expression. A value is kept only while another node needs it."""
        nodes = list(walk(expression, self.values))
        uses = Counter(id(arg) for node in nodes if isinstance(node, Composed) for arg in node.args)
        made: set[int] = set()
        for node in nodes:
            self.values[id(node)] = self._node(node)
            made.add(id(node))
            for arg in node.args if isinstance(node, Composed) else ():
                uses[id(arg)] -= 1
                if not uses[id(arg)] and id(arg) in made:
                    del self.values[id(arg)]
        return self.values[id(expression)]

    def _node(self, node: Expression) -> Interval:
        match node:
            case Number(value):
                return self._constant(value)
            case Call():
                return self._call(node)
            case _:
                return self.leaf(node)

    def number(self, node: Expression) -> Interval:
        """Return the known value of a node as arithmetic reads it."""
        return self.values[id(node)]

    def _held(self, number: float) -> Any:
        """Return a number rounded to the type in which the kernel computes."""
        return np.float32(number) if self.element == "f32" else number

    def _constant(self, number: float) -> Interval:
        return Interval.exactly(np.array(self._held(number), self.dtype), self.element)

    def _call(self, node: Call) -> Interval:
        """Return the value of a post-op, from its reference or else from its definition."""
        found = {id(arg): self.number(arg) for arg in node.operands}
        args = [found[id(arg)] for arg in node.operands]
        numbers = [float(self._held(number)) for number in node.parameters]
        match node.entry.reference:
            case Within(function, ulps, absolute, slope):
                known = _checked(function, node) if node.own else function
                return smooth(lambda v: known(v, *numbers), args[0], ulps, absolute, slope)
            case Monotone(function, rounded):
                made = monotone(lambda *ends: function(*ends, *numbers), *args)
                return made.rounded() if rounded else made
            case Compared(function):
                return less(args[0], args[1], function)
            case Arithmetic("mul") if args[0] is args[1]:
                return RULES["square"](args[0])
            case Arithmetic(rule):
                return RULES[rule](*args)
        meaning = node.meaning()
        assert meaning is not None
        self.meanings.append(meaning)
        return self.of(meaning)


def _checked(function: Callable[..., Any], node: Call) -> Callable[..., Array]:
    """Return a user's reference function, checked to return one number for each element."""

    def checked(values: Array, *numbers: float) -> Array:
        found = np.asarray(function(values, *numbers))
        if found.shape != values.shape or found.dtype.kind not in "fiub":
            raise SpecError(
                f"the reference of {node.fn} does not give a number for each element",
                got=f"shape {found.shape} of {found.dtype} for shape {values.shape}",
                hint="it is called with an array of float64 and the parameters",
            )
        return found.astype(values.dtype)

    return checked


def evaluate_whole(
    expression: Expression, sums: Mapping[str, Array], operands: Mapping[str, Any]
) -> Array:
    """Return the value of an epilogue of integer additions, modulo 2**64."""
    values: dict[int, Array] = {}
    for node in walk(expression):
        match node:
            case Number(value):
                found = np.array(int(value), np.int64)
            case Call(fn, args):
                apply: Any = {"add": np.add, "sub": np.subtract, "neg": np.negative}[fn]
                found = apply(*(values[id(arg)] for arg in args))
            case Leaf(name) if name in sums:
                found = sums[name]
            case _:
                found = elements(node, operands)
        values[id(node)] = found
    return values[id(expression)]


def elements(leaf: Expression, operands: Mapping[str, Any]) -> Array:
    """Return the decoded values of an operand, or of D's old value, in a shape that broadcasts to
    D's.
    """
    if not isinstance(leaf, Operand):
        old: Array = operands["d"]
        return old
    array = decode(np.atleast_1d(np.asarray(operands[leaf.name])), leaf.type)
    return array[:, None] if leaf.per == "row" else array


def _leaf(leaf: Expression, acc: Interval, operands: Mapping[str, Any]) -> Interval:
    value = elements(leaf, operands)
    found = Interval.exactly(value.astype(acc.value.dtype), acc.element)
    whole = isinstance(leaf, Operand) and is_integer(leaf.type)
    return found.rounded() if whole or value.dtype.kind == "i" else found


# --- operators ---------------------------------------------------------------------------------


def _square(x: Interval) -> Interval:
    low, high = np.abs(x.low), np.abs(x.high)
    crosses = (x.low < 0) & (x.high > 0)
    least = np.where(crosses, 0, np.minimum(low, high))
    most = np.maximum(low, high)
    return Interval(x.value**2, least**2, most**2, x.element).rounded()


def _abs(x: Interval) -> Interval:
    low, high = np.abs(x.low), np.abs(x.high)
    crosses = (x.low < 0) & (x.high > 0)
    least = np.where(crosses, 0, np.minimum(low, high))
    return Interval(np.abs(x.value), least, np.maximum(low, high), x.element)


def _neg(x: Interval) -> Interval:
    return Interval(-x.value, -x.high, -x.low, x.element)


def _copysign(x: Interval, y: Interval) -> Interval:
    """Return the magnitude of ``x`` with the sign of ``y``, which is unknown if ``y`` may be 0."""
    size, nan = _abs(x), np.isnan(y.value)
    sign = np.where(np.signbit(y.value) & ~nan, -1, 1)
    other = np.where((y.low > 0) | (y.high < 0) | nan, sign, -sign)
    ends = [way * end for way in (sign, other) for end in (size.low, size.high)]
    return hull(sign * size.value, ends, x, y)


#: Functions that apply each operator to intervals.
RULES: dict[str, Callable[..., Interval]] = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "div": div,
    "neg": _neg,
    "abs": _abs,
    "copysign": _copysign,
    "square": _square,
    "where": choose,
}


# --- reductions of rows ------------------------------------------------------------------------


def _row_sum(x: Interval) -> Interval:
    """Return the sum of each row, with bounds for any order of summation.

    Sums of whole numbers are exact while their magnitudes are exact.
    """
    value, low, high = (part.sum(axis=1) for part in (x.value, x.low, x.high))
    size = np.maximum(np.abs(x.low), np.abs(x.high)).sum(axis=1)
    eps = epsilon(x.element)
    whole = np.all(x.exact & (x.value == np.rint(x.value)), axis=1) & (size * eps <= 2)
    error = np.where(whole, 0, x.value.shape[1] * eps * size)
    return _row(x, value, [low - error, high + error])


def _largest(x: Interval, initial: float) -> Interval:
    ends = [np.max(end, axis=1, initial=initial) for end in (x.low, x.high)]
    return _row(x, np.max(x.value, axis=1, initial=initial), ends)


def _row(x: Interval, value: Array, ends: list[Array]) -> Interval:
    """Return an interval for each row. It is unsure if an element of the row is unsure."""
    unsure = np.any(x.unsure, axis=1)
    whole = np.where(unsure, np.nan, 0.0)
    return hull(value, ends, Interval(np.zeros(value.shape), whole, whole, x.element))


REDUCTIONS: dict[str, Callable[[Interval], Interval]] = {
    "row_max": lambda x: _largest(x, -np.inf),
    "row_sum": _row_sum,
    "row_absmax": lambda x: _largest(_abs(x), 0.0),
}
