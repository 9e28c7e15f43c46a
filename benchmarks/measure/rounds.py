"""Calls from Python, timed in interleaved rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from .native import Effort

Array = np.ndarray[Any, Any]
#: Seconds that one measurement of a call takes at least, and that all of one call take about.
LEAST, MOST = 0.003, 0.5


def rounds(calls: Sequence[Callable[[], object]], effort: Effort) -> Array:
    """Seconds of each call: the median over rounds of the least of the repeats.

    A call that takes long has fewer of both, so that all of it takes some ``MOST`` seconds.
    """
    once = [_warmed(call) for call in calls]
    plans = [_plan(seconds, effort) for seconds in once]
    seconds = np.full((effort.rounds, len(calls)), np.nan)
    for turn in range(effort.rounds):
        for repeat in range(effort.repeats):
            for i, (turns, repeats, loops) in enumerate(plans):
                if turn < turns and repeat < repeats:
                    seconds[turn, i] = np.fmin(seconds[turn, i], _seconds(calls[i], loops))
    found: Array = np.nanmedian(seconds, axis=0)
    return found


def _plan(once: float, effort: Effort) -> tuple[int, int, int]:
    """Rounds, repeats in one, and calls in one measurement."""
    loops = max(1, round(LEAST / once))
    measurements = max(1, round(MOST / (once * loops)))
    turns = min(effort.rounds, measurements)
    return turns, min(effort.repeats, max(1, measurements // turns)), loops


def _warmed(call: Callable[[], object]) -> float:
    """Seconds of the second call, or of the first if that is long."""
    first = _seconds(call, 1)
    return first if first >= MOST else _seconds(call, 1)


def _seconds(call: Callable[[], object], loops: int) -> float:
    start = perf_counter()
    for _ in range(loops):
        call()
    return (perf_counter() - start) / loops
