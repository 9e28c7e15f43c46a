"""Kernels beside numpy: both called from Python on the same arrays, in turns, on one core."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import tilewright as tw

#: Seconds of a slice, short beside a scheduler's; and the least number of rounds.
_SLICE, _ROUNDS = 300e-6, 9


@dataclass(frozen=True, slots=True)
class Called:
    """Seconds per call from Python, of the kernel and of numpy; ``ratio`` is numpy's over ours."""

    ours: float
    numpy: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Measured:
    """A kernel's figures; ``error`` is the largest as a fraction of what rounding can cause."""

    title: str
    sizes: str
    kernel: tw.Kernel
    timing: tw.Timing
    called: Called
    error: float

    @property
    def moves(self) -> bool:
        """Whether the kernel moves data and computes nothing."""
        return isinstance(self.kernel.spec, tw.Transpose)

    @property
    def work(self) -> float:
        """What one call does: 1e9 operations, or GiB read and written by a transposition."""
        return work(self.kernel)

    @property
    def rate(self) -> str:
        """Work per second in a C loop, with its unit."""
        return rate(self.kernel, self.timing)


def work(kernel: tw.Kernel) -> float:
    """What one call does: 1e9 operations, or GiB read and written by a transposition."""
    spec = kernel.spec
    if not isinstance(spec, tw.Transpose):
        return float(kernel.flops) / 1e9
    rows, cols = (n if isinstance(n, int) else 64 for n in (spec.rows, spec.cols))
    return float(2 * rows * cols * kernel.signature.output.itemsize / 2**30)


def rate(kernel: tw.Kernel, timing: tw.Timing) -> str:
    """Work per second in a C loop, with its unit."""
    if isinstance(kernel.spec, tw.Transpose):
        return f"{work(kernel) / timing.median:.1f} GiB/s"
    return f"{timing.gflops:.1f} GFLOPS"


def beside(ours: Callable[[], Any], theirs: Callable[[], Any], seconds: float) -> Called:
    """Medians over rounds, of about ``seconds`` in all, that time one after the other."""
    counts = [_calls(function) for function in (ours, theirs)]
    rounds: list[tuple[float, float, float]] = []
    while len(rounds) < _ROUNDS or 2 * _SLICE * len(rounds) < seconds:
        mine, other = (_per_call(f, n) for f, n in zip((ours, theirs), counts, strict=True))
        rounds.append((mine, other, other / mine))
    return Called(*map(median, zip(*rounds, strict=True)))


def _calls(function: Callable[[], Any]) -> int:
    """How often a function is called in a slice."""
    spent = min(_per_call(function, calls) for calls in (1, 4, 16))
    return max(1, int(_SLICE / spent))


def _per_call(function: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls
