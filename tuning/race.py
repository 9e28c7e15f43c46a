"""Measure variants in turns, drop slow ones early, and rank the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from tilewright.errors import TuningError
from tilewright.runtime.bench.timing import Timing
from tilewright.runtime.tuned import KEPT, MEASURED, Result
from tilewright.spec.schedule import Schedule

from .child import Child, Failure

#: A variant is dropped after the first round if it takes more than this many times as long as the
#: fastest variant.
HOPELESS = 1.5
#: Number of rounds in each step after the first round. After each step, only the faster half of the
#: variants is measured again.
STEPS = (2, 4)
#: Two constants of the normal distribution, as multiples of its standard deviation. The first is
#: the interquartile range. The second is the standard error of the median of n samples, times
#: sqrt(n).
_QUARTILES, _OF_MEDIAN = 1.349, 1.2533


@dataclass(slots=True)
class Samples:
    """Measurements of one variant, the latest last.

    ``hot`` and ``cold`` are described at ``Result`` in ``runtime/tuned.py``.
    """

    hot: list[tuple[float, float]] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)

    def last(self, count: int) -> Samples:
        """Return the latest ``count`` measurements in ``hot``, and the latest in ``cold``."""
        return Samples(self.hot[-count:], self.cold[-count:])


@dataclass(frozen=True, slots=True)
class Ranking:
    """The figures of one variant.

    Attributes
    ----------
    schedule : Schedule
        The variant.
    ratio : float
        How many times as fast as the default schedule the variant is: the geometric mean of
        ``in_cache`` and ``in_memory`` if both were measured.
    uncertainty : float
        Standard error of ``ratio``.
    in_cache, in_memory : float or None
        The same ratio, measured only on data in cache, and only on data in memory.
    hot, cold : Timing or None
        Times of a call on data in cache, and on data in memory.
    rounds : int
        Number of rounds in which the variant was measured.
    cycles : float or None
        The cost model's estimate of a call's cycles. None if the model did not rank the schedule.
    """

    schedule: Schedule
    ratio: float
    uncertainty: float
    in_cache: float
    in_memory: float | None
    hot: Timing
    cold: Timing | None
    rounds: int
    cycles: float | None = None

    @property
    def gains(self) -> bool:
        """True if the variant is faster than the default by more than the uncertainty.

        It must also not be slower by more than the uncertainty, neither on data in cache nor on
        data in memory.
        """
        parts = [self.in_cache] if self.in_memory is None else [self.in_cache, self.in_memory]
        return self.ratio - self.uncertainty > 1 and min(parts) + self.uncertainty > 1


def ranking(
    schedule: Schedule,
    samples: Samples,
    default: Samples,
    flops: int,
    cycles: float | None,
    moved: int = 0,
) -> Ranking:
    """Return the figures of a variant, compared with the default schedule's ``default``.

    A call has ``flops`` operations. It reads and writes ``moved`` bytes, 0 if it multiplies.
    """
    factors = [(_relative(default.hot), _relative(samples.hot))]
    if samples.cold and default.cold:
        factors.append((np.array(default.cold), np.array(samples.cold)))
    ratios = [float(np.median(of_default) / np.median(own)) for of_default, own in factors]
    errors = [_error(one) ** 2 for pair in factors for one in pair]
    ratio = float(np.exp(np.mean(np.log(ratios))))
    of_peak = float(np.median(1 / _relative(samples.hot))) if flops else None
    return Ranking(
        schedule=schedule,
        ratio=ratio,
        uncertainty=ratio * sqrt(sum(errors)) / len(factors),
        in_cache=ratios[0],
        in_memory=ratios[1] if len(ratios) > 1 else None,
        hot=Timing.of(np.array([taken for taken, _ in samples.hot]), flops, moved, of_peak),
        cold=Timing.of(np.array(samples.cold), flops, moved) if samples.cold else None,
        rounds=len(samples.hot),
        cycles=cycles,
    )


def rankings(results: Iterable[Result], default: Schedule, moved: int = 0) -> list[Ranking]:
    """Return the figures of each variant in one spec's stored results, fastest first.

    ``moved`` is that of ``ranking``.
    Without a result of the default schedule the list is empty: the figures are relative to it.
    """
    measured = [one for one in results if one.status == MEASURED and one.hot]
    held = {one.schedule: Samples([*one.hot], [*one.cold]) for one in measured}
    if default not in held:
        return []
    found = [
        ranking(one.schedule, held[one.schedule], held[default], one.flops, one.cycles, moved)
        for one in measured
    ]
    return sorted(found, key=lambda one: -one.ratio)


def _relative(hot: Sequence[tuple[float, float]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return each time of a call divided by its time at the core's peak.

    A change of the clock rate changes both times equally, so it does not change the ratio.
    """
    return np.array([taken / at_peak for taken, at_peak in hot])


def _error(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Return the standard error of the median of ``values``, divided by the median."""
    low, middle, high = np.percentile(values, (25, 50, 75))
    return float(_OF_MEDIAN * (high - low) / _QUARTILES / sqrt(len(values)) / middle)


def not_measured(failure: Failure) -> TuningError:
    """Return the exception for a default schedule that cannot be measured."""
    return TuningError(
        "the default schedule, with which all are compared, cannot be measured",
        got=f"{failure.status}: {failure.said}",
    )


class Race:
    """All variants of one tuning, with their measurements or failures."""

    def __init__(self, child: Child, default: Schedule, rng: np.random.Generator) -> None:
        self.default, self._child, self._rng = default, child, rng
        self.samples: dict[Schedule, Samples] = {}
        self.failures: dict[Schedule, Failure] = {}

    @property
    def flops(self) -> int:
        """Number of floating-point operations in one call."""
        return self._child.flops

    def admit(self, schedules: Iterable[Schedule]) -> list[Schedule]:
        """Return the variants that compile and compute right results.

        The other variants are recorded in ``failures``.
        """
        wanted = [s for s in schedules if s not in self.failures]
        for schedule, failure in self._child.build(wanted).items():
            failure = failure or self._child.check(schedule)
            if failure is not None:
                self.failures[schedule] = failure
        return [s for s in wanted if s not in self.failures]

    def measure(self, schedules: Iterable[Schedule], *, cold: bool) -> list[Schedule]:
        """Measure the variants and the default schedule once each, in random order.

        Return the schedules that were measured without failure.
        """
        order = list(dict.fromkeys((self.default, *schedules)))
        for place in self._rng.permutation(len(order)):
            self._measure(order[place], cold)
        return [s for s in order if s not in self.failures]

    def _measure(self, schedule: Schedule, cold: bool) -> None:
        taken = self._child.hot(schedule)
        in_memory = self._child.cold(schedule) if cold and not isinstance(taken, Failure) else None
        for answer in (taken, in_memory):
            if isinstance(answer, Failure):
                if schedule == self.default:
                    raise not_measured(answer)
                self.failures[schedule] = answer
                self.samples.pop(schedule, None)
                return
        held = self.samples.setdefault(schedule, Samples())
        assert not isinstance(taken, Failure)
        held.hot.append(taken)
        if in_memory is not None and not isinstance(in_memory, Failure):
            held.cold.append(in_memory)
        del held.hot[:-KEPT], held.cold[:-KEPT]

    def halving(self, schedules: Sequence[Schedule]) -> Iterator[list[Schedule]]:
        """Measure variants in rounds, and drop the slower half after each step.

        After each round, yield the variants that were measured in it.
        """
        yield (left := self.measure(schedules, cold=False))
        best = min((self.pace(s, hot=True) for s in left), default=0.0)
        left = [s for s in left if self.pace(s, hot=True) <= HOPELESS * best]
        for rounds in STEPS:
            for _ in range(rounds):
                yield self.measure(left, cold=True)
                left = [s for s in left if s not in self.failures]
            left = sorted(left, key=self.pace)[: max(2, len(left) // 2)]

    def pace(self, schedule: Schedule, hot: bool = False) -> float:
        """Return a variant's time divided by the default schedule's time.

        The result is the geometric mean for data in cache and data in memory. With ``hot``, it is
        only for data in cache.
        """
        mine, default = self.samples[schedule], self.samples[self.default]
        taken = np.median(_relative(mine.hot)) / np.median(_relative(default.hot))
        if hot or not (mine.cold and default.cold):
            return float(taken)
        return float(np.sqrt(taken * np.median(mine.cold) / np.median(default.cold)))
