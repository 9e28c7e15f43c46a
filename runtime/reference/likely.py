"""Bounds on a network's results that stay useful in deep networks.

Bounds that hold for all roundings add the errors of all elements of a sum, as if each were the
worst, and all had the same sign. After a few layers they exclude no number. Here, a network is
evaluated several times. Each time, every operation is off by at least half of its largest error, up
or down at random. A kernel's result must be near these results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.runtime.call.bound_sizes import Array
from tilewright.spec.expression import Call, Compared, Composed, Expression, Monotone
from tilewright.spec.expression.tensors import Cast
from tilewright.spec.network.value import Network

from .interval import Interval
from .tensors import Tensors

#: The number of evaluations with random errors. In the first two, all errors are the largest ones
#: of one sign.
SAMPLES = 8
#: The largest distance of a right number from the exact one, in standard deviations of the samples.
#: Real errors are smaller than those that are drawn, for example a tenth of them in a sum.
DEVIATIONS = 8
#: A function jumps if the bounds of its result are this many times as far apart as its operands'.
_STEEP = 2
#: The number of evaluations in which all errors are the largest ones of one sign.
_ENDS = 2


@dataclass(frozen=True, slots=True)
class Drawn(Interval):
    """Numbers with likely bounds, and the same numbers in each evaluation with random errors."""

    samples: tuple[Array, ...]


class Likely(Tensors):
    """The evaluation of a network's expressions with likely bounds."""

    def __init__(
        self, spec: Network, arrays: Mapping[str, Array], sizes: Mapping[str, int]
    ) -> None:
        super().__init__(spec, arrays, sizes)
        self.spec = spec
        self.random = np.random.default_rng(0)

    def _node(self, node: Expression) -> Interval:
        found = super()._node(node)
        if isinstance(found, Drawn):
            return found
        if np.all(found.exact):
            return _drawn(found, (found.value,) * SAMPLES)
        jumps = self._jumps(node, found)
        samples, least = [], np.zeros(found.value.shape)
        for number in range(SAMPLES):
            own = self._of_sample(node, number) if isinstance(node, Composed) else found
            samples.append(self._sample(own, found, jumps, number))
            least = np.maximum(least, (own.high - own.low) / 2)
        return _drawn(_near(found, tuple(samples), jumps, least), tuple(samples))

    def _sample(self, own: Interval, found: Interval, jumps: Array, number: int) -> Array:
        """Return the value ``own`` of a node in an evaluation, with a random error of its own."""
        low: Array = np.where(jumps, found.low, own.low)
        high: Array = np.where(jumps, found.high, own.high)
        if number < _ENDS:
            return high if number else low
        # Errors of one size would often cancel, for example those of a difference and a quotient.
        near = self.random.random(low.shape) / 4
        up = self.random.integers(0, 2, low.shape)
        apart = np.isfinite(high - low) & (low != high)
        between = low + np.where(apart, high - low, 0) * np.where(up, 1 - near, near)
        drawn: Array = np.where(apart, between, np.where(up, high, low))
        return drawn

    def _of_sample(self, node: Composed, number: int) -> Interval:
        """Return the value of ``node``, computed from its arguments in one evaluation."""
        one = Tensors(self.spec, self.arrays, self.sizes)
        for arg in node.args:
            held = self.values[id(arg)]
            exact = held.samples[number] if isinstance(held, Drawn) else held.value
            one.values[id(arg)] = Interval.exactly(exact, self.element)
        return one._node(node)

    def _jumps(self, node: Expression, found: Interval) -> Array:
        """Return a mask of the numbers near which the function of ``node`` jumps."""
        if not isinstance(node, Cast) and not (
            isinstance(node, Call) and isinstance(node.entry.reference, Compared | Monotone)
        ):
            return np.zeros(found.value.shape, bool)
        given = [self.values[id(arg)] for arg in node.args]
        width = sum((arg.high - arg.low for arg in given), start=np.zeros(()))
        jumps: Array = ~(found.high - found.low <= _STEEP * width)
        return jumps


def _near(found: Interval, samples: tuple[Array, ...], jumps: Array, least: Array) -> Interval:
    """Return the numbers of ``found`` that are near the samples.

    ``least`` is the largest error of the last operation, whose numbers are always near.
    """
    off = [np.where(one == found.value, 0.0, one - found.value) for one in samples]
    most = np.maximum(least, DEVIATIONS * np.sqrt(np.mean(np.square(off), axis=0)))
    keeps = jumps | ~np.isfinite(most) | found.unsure
    low = np.where(keeps, found.low, np.maximum(found.low, found.value - most))
    high = np.where(keeps, found.high, np.minimum(found.high, found.value + most))
    return Interval(found.value, low, high, found.element)


def _drawn(found: Interval, samples: tuple[Array, ...]) -> Drawn:
    return Drawn(found.value, found.low, found.high, found.element, samples)
