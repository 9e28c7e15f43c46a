"""Time functions in turns, in cycles: each is timed right after a chain of additions.

The clock frequency of a core changes. At any frequency, a chain of dependent additions takes one
cycle for each addition. So a function's time divided by the chain's time gives the function's
cycles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np

#: Approximate time for which each round calls one function, in seconds. Reading the clock takes
#: much less.
_SLICE = 25e-6
#: Number of calls of the chain of additions that are timed before and after each function. This
#: many calls take much longer than reading the clock.
_TICKS = 4
#: Minimum number of rounds in one measurement.
ROUNDS = 9


class Timed(Protocol):
    """A function that can be timed: called repeatedly on the same arguments."""

    def seconds(self, calls: int) -> float:
        """Return the seconds of a call, averaged over ``calls``."""


@dataclass(frozen=True, slots=True)
class Cycles:
    """Cycles per call of each function, and their spread.

    ``cycles`` are the tenth percentile of the rounds, since disturbances only make a core slower.
    ``spread`` is the interquartile range of a function's rounds divided by their median.
    """

    cycles: Mapping[str, float]
    spread: Mapping[str, float]
    rounds: int


def in_cycles(
    functions: Mapping[str, Timed],
    clock: Timed,
    ticks: int,
    seconds: float,
    now: Callable[[], float] = perf_counter,
) -> Cycles:
    """Time ``functions`` for about ``seconds`` in all; a call of ``clock`` takes ``ticks`` cycles.

    Each round calls the functions in another order.
    """
    names = list(functions)
    calls = {name: _calls(function) for name, function in functions.items()}
    rng = np.random.default_rng(0)
    found: dict[str, list[float]] = {name: [] for name in names}
    begin, rounds = now(), 0
    while rounds < ROUNDS or now() - begin < seconds:
        for name in rng.permutation(names):
            # This call is not timed. It brings the arrays into L1 again.
            functions[name].seconds(1)
            before = clock.seconds(_TICKS)
            taken = functions[name].seconds(calls[name])
            found[name].append(taken / (before + clock.seconds(_TICKS)) * 2 * ticks)
        rounds += 1
    quick, low, middle, high = np.percentile(
        [found[name] for name in names], (10, 25, 50, 75), axis=1
    )
    spread = (high - low) / middle
    return Cycles(
        dict(zip(names, quick.tolist(), strict=True)),
        dict(zip(names, spread.tolist(), strict=True)),
        rounds,
    )


def _calls(function: Timed) -> int:
    """Return how many calls of a function one round makes: about ``_SLICE`` seconds of calls."""
    calls = 1
    while calls < 1 << 16 and function.seconds(calls) * calls < _SLICE / 2:
        calls *= 2
    return calls
