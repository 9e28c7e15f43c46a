"""Kernels beside numpy: both called from Python on the same arrays, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import tilewright as tw

_ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Measured:
    """A kernel's figures; ``rate`` in GFLOPS (GiB/s where data only moves), in a C loop.

    ``ratio``: how many times numpy's time the kernel's is shorter, both called from Python.
    """

    title: str
    kernel: tw.Kernel
    rate: float
    of_peak: float | None
    ratio: float
    error: float

    @property
    def moves(self) -> bool:
        """Whether the kernel moves data and computes nothing."""
        return isinstance(self.kernel.spec, tw.Transpose)

    @property
    def rate_text(self) -> str:
        """The rate with its unit."""
        return f"{self.rate:.1f} {'GiB/s' if self.moves else 'GFLOPS'}"


def rate(kernel: tw.Kernel, timing: tw.Timing) -> float:
    """GFLOPS, or the GiB that a transposition reads and writes in a second."""
    spec = kernel.spec
    if not isinstance(spec, tw.Transpose):
        return timing.gflops
    rows, cols = (64 if not isinstance(n, int) else n for n in (spec.rows, spec.cols))
    return float(2 * rows * cols * kernel.signature.output.itemsize / timing.median / 2**30)


def times_faster(ours: Callable[[], Any], theirs: Callable[[], Any], seconds: float) -> float:
    """The median over rounds of their time over ours; each round times both, one after another."""
    share = seconds / (2 * _ROUNDS)
    counts = [_calls(function, share) for function in (ours, theirs)]
    ratios = []
    for _ in range(_ROUNDS):
        mine, other = (_per_call(f, n) for f, n in zip((ours, theirs), counts, strict=True))
        ratios.append(other / mine)
    return median(ratios)


def _calls(function: Callable[[], Any], seconds: float) -> int:
    calls = 1
    while (spent := _per_call(function, calls) * calls) < seconds / 8:
        calls *= 2
    return max(1, int(calls * seconds / spent))


def _per_call(function: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls
