"""Interval arithmetic: exact numbers, with bounds on the numbers that a kernel may compute instead.

A number is exact as long as its type can hold it, so that rounding does not change the number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.runtime.arrays.elements import epsilon, nearest
from tilewright.runtime.call.bound_sizes import Array

#: Number of points at which a function is evaluated in an interval.
_POINTS = 7
#: Share of a function's observed range that is added on each side, for values between the points.
_BESIDE = 0.25
#: Smallest positive number of each type. It is added to the bound of each relative rounding error.
LEAST: dict[str, Any] = {"f16": 2.0**-24, "f32": 2.0**-149, "f64": np.longdouble(2) ** -1074}


@dataclass(frozen=True, slots=True)
class Interval:
    """Exact values, and the ``low`` and ``high`` bounds of the numbers that a kernel may have
    instead.

    ``element`` is the type that the kernel computes in. A number is unsure, which means that it may
    be anything, if its bounds are NaN and its value is not.
    """

    value: Array
    low: Array
    high: Array
    element: str

    @staticmethod
    def exactly(value: Array, element: str) -> Interval:
        """Return the interval that contains only ``value``."""
        return Interval(value, value, value, element)

    @staticmethod
    def around(value: Array, bound: Array, element: str) -> Interval:
        """Return an interval of ``value`` plus or minus ``bound``; infinity and NaN stay exact."""
        finite = np.isfinite(value)
        low, high = (np.where(finite, value + way * bound, value) for way in (-1, 1))
        return Interval(value, low, high, element)

    @staticmethod
    def stacked(parts: Sequence[Interval]) -> Interval:
        """Return the intervals of several arrays of one shape, stacked along a new first axis."""
        value, low, high = (
            np.stack([getattr(part, name) for part in parts]) for name in ("value", "low", "high")
        )
        return Interval(value, low, high, parts[0].element)

    @property
    def exact(self) -> Array:
        """A mask of the numbers that are exact, or NaN."""
        exact: Array = (self.low == self.high) | np.isnan(self.value)
        return exact

    @property
    def unsure(self) -> Array:
        """A mask of the numbers that may be anything."""
        unsure: Array = np.isnan(self.low) & ~np.isnan(self.value)
        return unsure

    def rounded(self, roundings: int = 1) -> Interval:
        """Return the interval after one or several roundings to the type ``element``.

        Several roundings are those of intermediate results, which are not known.
        """
        unit = roundings * epsilon(self.element) / 2
        held = self.exact & (roundings == 1)
        ends = []
        for way, end in ((-1, self.low), (1, self.high)):
            beside = end + way * (unit * np.abs(end) + LEAST[self.element])
            fits = held & (nearest(end, self.element) == end)
            ends.append(np.where(fits | ~np.isfinite(end), end, beside))
        value, low, high = (_overflowed(part, self.element) for part in (self.value, *ends))
        return Interval(value, low, high, self.element)

    def widened(self, bound: Array) -> Interval:
        """Return the interval with its finite bounds moved apart by ``bound`` on each side."""
        low, high = (
            np.where(np.isfinite(end), end + way * bound, end)
            for way, end in ((-1, self.low), (1, self.high))
        )
        return Interval(self.value, low, high, self.element)

    def spread(self, shape: tuple[int, ...]) -> Interval:
        """Return the interval broadcast to ``shape``."""
        parts = (np.broadcast_to(part, shape) for part in (self.value, self.low, self.high))
        value, low, high = parts
        return Interval(value, low, high, self.element)

    def row(self, at: tuple[int, ...]) -> Interval:
        """Return the intervals at an index of the leading axes."""
        return Interval(self.value[at], self.low[at], self.high[at], self.element)

    def joined(self, other: Interval) -> Interval:
        """Return the interval that holds this interval and ``other``."""
        ends = [self.low, self.high, other.low, other.high]
        return hull(self.value, ends, self, other)

    def scaled(self, factor: Any) -> Interval:
        """Return the interval times a factor, which the kernel rounds too.

        A power of two is not rounded.
        """
        product = mul(self, Interval.exactly(factor, self.element), rounds=False)
        power = np.frexp(np.abs(factor))[0] == 0.5
        once, twice = product.rounded(), product.rounded(2)
        low, high = (
            np.where(power, getattr(once, end), getattr(twice, end)) for end in ("low", "high")
        )
        return Interval(once.value, low, high, self.element)


def _overflowed(value: Array, element: str) -> Array:
    return np.where(np.isinf(nearest(value, element)), np.copysign(np.inf, value), value)


def hull(value: Array, candidates: list[Array], *args: Interval) -> Interval:
    """Return the interval from the least to the greatest of ``candidates``, computed from ``args``.

    A number is unsure if it is in an argument, or if only some of the candidates are NaN.
    """
    candidates = list(np.broadcast_arrays(*candidates))
    low, high = np.minimum.reduce(candidates), np.maximum.reduce(candidates)
    surely = np.logical_and.reduce([np.isnan(candidate) for candidate in candidates])
    unsure = (np.isnan(value) | np.isnan(low)) & ~(np.isnan(value) & surely)
    for arg in args:
        unsure = unsure | arg.unsure
    low, high = (np.where(unsure, np.nan, end) for end in (low, high))
    return Interval(np.where(unsure, 0.0, value), low, high, args[0].element)


# --- arithmetic --------------------------------------------------------------------------------


def add(x: Interval, y: Interval) -> Interval:
    """Return ``x + y``, rounded."""
    ends = [x.low + y.low, x.high + y.high]
    return hull(x.value + y.value, ends, x, y).rounded()


def sub(x: Interval, y: Interval) -> Interval:
    """Return ``x - y``, rounded."""
    ends = [x.low - y.high, x.high - y.low]
    return hull(x.value - y.value, ends, x, y).rounded()


def mul(x: Interval, y: Interval, *, rounds: bool = True) -> Interval:
    """Return ``x * y``, which is unsure if one factor may be infinite and the other may be 0."""
    candidates = [a * b for a in (x.low, x.high) for b in (y.low, y.high)]
    lost = (_infinite(x) & _zero(y)) | (_infinite(y) & _zero(x))
    candidates.append(np.where(lost, np.nan, candidates[0]))
    product = hull(x.value * y.value, candidates, x, y)
    return product.rounded() if rounds else product


def _infinite(x: Interval) -> Array:
    """Return a mask of the numbers that may be infinite."""
    infinite: Array = np.isinf(x.low) | np.isinf(x.high)
    return infinite


def _zero(x: Interval) -> Array:
    """Return a mask of the numbers that may be 0."""
    zero: Array = (x.low <= 0) & (x.high >= 0)
    return zero


def div(x: Interval, y: Interval) -> Interval:
    """Return ``x / y``, rounded.

    A quotient is unsure if y may be 0 but is not exactly 0, or if both may be 0.
    """
    candidates = [a / b for a in (x.low, x.high) for b in (y.low, y.high)]
    found = hull(x.value / y.value, candidates, x, y)
    crosses = _zero(y) & ~(y.exact & (x.exact | (x.low > 0) | (x.high < 0)))
    low, high = (np.where(crosses, np.nan, end) for end in (found.low, found.high))
    return Interval(np.where(crosses, 0.0, found.value), low, high, x.element).rounded()


def less(x: Interval, y: Interval, holds: Callable[[Array, Array], Any]) -> Interval:
    """Return 1.0 for the numbers for which the comparison ``holds``, else 0.0."""
    pairs = [(x.low, y.low), (x.low, y.high), (x.high, y.low), (x.high, y.high)]
    found = [np.asarray(holds(a, b), x.value.dtype) for a, b in pairs]
    apart = (x.low > y.high) | (y.low > x.high) | np.isnan(x.value) | np.isnan(y.value)
    meets = ~apart & ~(x.exact & y.exact)
    found += [np.where(meets, other, found[0]) for other in (0.0, 1.0)]
    found = list(np.broadcast_arrays(*found))
    value = np.asarray(holds(x.value, y.value), x.value.dtype)
    return Interval(value, np.minimum.reduce(found), np.maximum.reduce(found), x.element)


def choose(condition: Interval, x: Interval, y: Interval) -> Interval:
    """Return ``x`` if the condition is not 0, else ``y``; the hull of both if the condition is
    unknown.
    """
    value = np.where(condition.value != 0, x.value, y.value)
    sure = condition.exact | (condition.low > 0) | (condition.high < 0)
    taken = condition.value != 0
    either = hull(value, [x.low, x.high, y.low, y.high], x, y)
    low = np.where(sure, np.where(taken, x.low, y.low), either.low)
    high = np.where(sure, np.where(taken, x.high, y.high), either.high)
    return Interval(np.where(sure, value, either.value), low, high, x.element)


def monotone(function: Callable[..., Array], *args: Interval) -> Interval:
    """Apply an exact function that decreases in no argument, such as maximum."""
    ends = [function(*(getattr(arg, end) for arg in args)) for end in ("low", "high")]
    return hull(function(*(arg.value for arg in args)), ends, *args)


def smooth(
    function: Callable[[Array], Array],
    x: Interval,
    ulps: float,
    absolute: float = 0.0,
    slope: float | None = None,
) -> Interval:
    """Apply a function that a kernel computes within ``ulps`` of its result plus an ``absolute``
    error.

    The function is evaluated at points of the interval. Its range between them is bounded by its
    largest ``slope``, or estimated if that is None.
    """
    value = function(x.value)
    steps = [x.low + (x.high - x.low) * (i / (_POINTS - 1)) for i in range(_POINTS)]
    found = [np.where(x.exact, value, function(step)) for step in steps]
    # The value is included, because both ends of a wide interval may be on one side of it.
    seen = hull(value, [value, *found], x)
    with np.errstate(invalid="ignore"):
        between = _BESIDE * (seen.high - seen.low)
        if slope is not None:  # every number is at most half a step from a point
            between = slope * (x.high - x.low) / (2 * (_POINTS - 1))
        beside = np.where(x.exact, 0, between)
        error = ulps * epsilon(x.element) * np.abs(value) + absolute + beside
        low, high = seen.low - error, seen.high + error
    finite = np.isfinite(value)
    ends = np.where(finite, low, seen.low), np.where(finite, high, seen.high)
    return Interval(seen.value, *ends, x.element).rounded()
