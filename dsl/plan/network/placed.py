"""Describe where the values of a network are in memory: an array, an offset, and strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import sympy
from sympy import Expr

from tilewright.ir.nest import Name
from tilewright.spec.expression.shapes import grouped
from tilewright.spec.expression.tensors import View
from tilewright.spec.network.value import slot
from tilewright.spec.sizes import Size, joined_size, terms_of
from tilewright.spec.types import TypeName
from tilewright.symbolic import ONE, ZERO, size_expr

#: Threads share the columns of a row if each has at least this number of them: those of a line of
#: the cache in f32.
SHORT = 16


def expr_of(size: Size) -> Expr:
    """Return a size of a network as a formula of the sizes of the call."""
    return size_expr(slot(size), size)


def exprs_of(shape: Sequence[Size]) -> tuple[Expr, ...]:
    """Return the sizes of a shape as formulas."""
    return tuple(map(expr_of, shape))


def same(one: Expr, other: Expr) -> bool:
    """Return True if two formulas are equal for all sizes."""
    return bool(one == other or sympy.expand(one - other) == 0)


def tight(sizes: Sequence[Expr], order: Sequence[int] | None = None) -> tuple[Expr, ...]:
    """Return the strides of an array without gaps. ``order`` has its axes, outermost first.

    Axes without elements count as one, as in numpy: no leading dimension is 0.
    """
    strides = [ONE] * len(sizes)
    step: Expr = ONE
    for axis in reversed(order if order is not None else range(len(sizes))):
        strides[axis] = step
        step = step if sizes[axis] == 0 else sympy.expand(step * sizes[axis])
    return tuple(strides)


@dataclass(frozen=True, slots=True)
class Placed:
    """A value in memory: its array, and the offset and strides of its elements."""

    name: Name
    type: TypeName
    shape: tuple[Size, ...]
    strides: tuple[Expr, ...]
    offset: Expr = ZERO

    @property
    def sizes(self) -> tuple[Expr, ...]:
        """The sizes as formulas."""
        return exprs_of(self.shape)

    def is_tight(self, first: int = 0) -> bool:
        """Return True if the elements along the axes from ``first`` on have no gaps."""
        strides = tight(self.sizes[first:])
        return all(same(*each) for each in zip(self.strides[first:], strides, strict=True))

    def row(self, number: Expr) -> Placed:
        """Return the value at one index of the first axis."""
        offset = self.offset + number * self.strides[0]
        return replace(self, shape=self.shape[1:], strides=self.strides[1:], offset=offset)

    def part(self, first: int, count: int, number: Expr) -> Placed | None:
        """Return part ``number`` of ``count`` equal parts of the elements along the last axes.

        Axis ``first`` and those after it become one. Return None if no such strides exist, or if
        the parts are short.
        """
        whole, dims = terms_of(joined_size(self.shape[first:]))
        lead, each = self.shape[:first], whole // count
        steps = None if dims or whole % count else self._reshaped((*lead, count, each))
        if steps is None or each < SHORT:
            return None
        *outer, part, step = steps
        offset = self.offset + number * part
        return replace(self, shape=(*lead, each), strides=(*outer, step), offset=offset)

    def viewed(self, view: View) -> Placed | None:
        """Return a view of this value; None if strides cannot describe the view."""
        shape = view.tensor.shape
        match view.fn:
            case "transpose":
                return replace(self, shape=shape, strides=tuple(self.strides[i] for i in view.how))
            case "expand":
                return replace(self, shape=shape, strides=self.spread(shape))
            case "slice":
                return self._sliced(view)
        strides = self._reshaped(shape)
        return None if strides is None else replace(self, shape=shape, strides=strides)

    def spread(self, shape: Sequence[Size]) -> tuple[Expr, ...]:
        """Return the strides of this value broadcast to a shape: 0 along repeated axes."""
        more = len(shape) - len(self.shape)
        pairs = zip(self.shape, self.strides, strict=True)
        return (ZERO,) * more + tuple(ZERO if size == 1 else step for size, step in pairs)

    def _sliced(self, view: View) -> Placed:
        offset, strides = self.offset, list[Expr]()
        for (first, _, step), stride in zip(view.how, self.strides, strict=True):
            offset += first * stride
            strides.append(step * stride)
        return replace(self, shape=view.tensor.shape, strides=tuple(strides), offset=offset)

    def _reshaped(self, shape: tuple[Size, ...]) -> tuple[Expr, ...] | None:
        found: list[Expr] = []
        if 0 in self.shape:
            return tight(exprs_of(shape))
        for ours, theirs in grouped(self.shape, shape):
            real = [axis for axis in ours if self.shape[axis] != 1]
            for outer, inner in pairwise(real):
                joined = self.strides[inner] * expr_of(self.shape[inner])
                if not same(self.strides[outer], joined):
                    return None
            step: Expr = self.strides[real[-1]] if real else ZERO
            steps: list[Expr] = []
            for axis in reversed(theirs):
                steps.append(step)
                step = sympy.expand(step * expr_of(shape[axis]))
            found += reversed(steps)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop over several arrays at once: its trip count, and the stride of each array."""

    size: Expr
    steps: tuple[Expr, ...]

    def holds(self, inner: Axis) -> bool:
        """Return True if this loop and the loop ``inner`` in it can become one loop."""
        pairs = zip(self.steps, inner.steps, strict=True)
        return all(same(step, inside * inner.size) for step, inside in pairs)


def axes_of(sizes: Sequence[Expr], steps: Sequence[Sequence[Expr]]) -> list[Axis]:
    """Return one loop for each axis, given the strides of each value."""
    return [Axis(size, tuple(each[axis] for each in steps)) for axis, size in enumerate(sizes)]


def merged(axes: Sequence[Axis]) -> list[Axis]:
    """Return the loops without those of size 1, and with loops merged where strides allow it."""
    found: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if found and found[-1].holds(axis):
            found[-1] = Axis(sympy.expand(found[-1].size * axis.size), axis.steps)
        else:
            found.append(axis)
    return found
