"""Time kernels next to numpy on one core, with the same arrays.

The kernel and numpy are called from Python, in turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import tilewright as tw
from tilewright.spec.types import is_integer

#: Seconds for which each function is timed in a round, and the minimum number of rounds. The time
#: in a round is short compared with the time slice of the operating system's scheduler.
_SLICE, _ROUNDS = 300e-6, 9


@dataclass(frozen=True, slots=True)
class Called:
    """Seconds of a call from Python, for the kernel (``ours``) and for numpy.

    ``ratio`` is numpy's time divided by the kernel's time.
    """

    ours: float
    numpy: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of a kernel in the demo.

    ``error`` is the largest error of a result divided by the allowed error.
    """

    title: str
    sizes: str
    kernel: tw.Kernel
    timing: tw.Timing
    called: Called
    error: float

    @property
    def moves(self) -> bool:
        """True if the kernel moves data and computes nothing."""
        return isinstance(self.kernel.spec, tw.Transpose)

    @property
    def work(self) -> float:
        """The work of one call: operations / 1e9."""
        return float(self.kernel.flops) / 1e9

    @property
    def rate(self) -> str:
        """The kernel's speed in a C loop as text, for example ``88.0 GFLOPS``."""
        return rate(self.kernel, self.timing)


def rate(kernel: tw.Kernel, timing: tw.Timing) -> str:
    """Return a kernel's speed in a C loop as text, with its unit: see ``speed``."""
    whole = isinstance(kernel.spec, tw.Gemm) and is_integer(kernel.spec.factors[0])
    return speed(timing, "GOPS" if whole else "GFLOPS")


def speed(timing: tw.Timing, unit: str = "GFLOPS") -> str:
    """Return operations per second as text; bytes per second if the kernel has no product."""
    if timing.gb_per_s is not None:
        return f"{timing.gb_per_s:.1f} GB/s"
    return f"{timing.gflops:.1f} {unit}"


def beside(ours: Callable[[], Any], theirs: Callable[[], Any], seconds: float) -> Called:
    """Time a kernel's call and numpy's call in turns for about ``seconds``.

    Return the medians over all rounds.
    """
    counts = [_calls(function) for function in (ours, theirs)]
    rounds: list[tuple[float, float, float]] = []
    while len(rounds) < _ROUNDS or 2 * _SLICE * len(rounds) < seconds:
        mine, other = (_per_call(f, n) for f, n in zip((ours, theirs), counts, strict=True))
        rounds.append((mine, other, other / mine))
    return Called(*map(median, zip(*rounds, strict=True)))


def _calls(function: Callable[[], Any]) -> int:
    """Return the number of calls of a function in one round."""
    spent = min(_per_call(function, calls) for calls in (1, 4, 16))
    return max(1, int(_SLICE / spent))


def _per_call(function: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls
