"""Rounds in which functions take turns, each beside a clock of the core: cycles, not seconds.

The clock of a core moves; a chain of additions takes a cycle for each, whatever a cycle is just
then. So every function is timed right behind such a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np

#: Seconds of a function in a round, about: long beside reading the clock.
_SLICE = 25e-6
#: Calls of the clock each time, for the same reason.
_TICKS = 4
#: The least number of rounds.
ROUNDS = 9


class Timed(Protocol):
    """Something that runs again and again."""

    def seconds(self, calls: int) -> float:
        """Seconds of one of so many calls."""


@dataclass(frozen=True, slots=True)
class Cycles:
    """Cycles of a call of each function, and how far each one strayed.

    ``cycles`` are those of a quick round, the tenth percentile: what disturbs a core makes it
    slower. ``spread`` is the interquartile range of a function's rounds over their median.
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

    Rounds go through the functions in another order each time.
    """
    names = list(functions)
    calls = {name: _calls(function) for name, function in functions.items()}
    rng = np.random.default_rng(0)
    found: dict[str, list[float]] = {name: [] for name in names}
    begin, rounds = now(), 0
    while rounds < ROUNDS or now() - begin < seconds:
        for name in rng.permutation(names):
            functions[name].seconds(1)  # its arrays are in the first cache again
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
    """How many calls fill a slice."""
    calls = 1
    while calls < 1 << 16 and function.seconds(calls) * calls < _SLICE / 2:
        calls *= 2
    return calls
