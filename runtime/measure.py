"""Timing kernels: a C loop calls through a function pointer, Python only reads the clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import ArgumentValueError
from tilewright.spec import Transpose

from . import dispatch, host
from .frame import Frame
from .known import Array
from .peak import Meter
from .samples import Sample, Sampled, sample

#: Seconds of a round, short beside a scheduler's slice, and about what the peak's loop takes.
_QUANTUM, _PEAK = 400e-6, 100e-6
#: The least and the greatest number of rounds.
_ROUNDS = (11, 2000)
#: Data counts as cold when this many times the last cache's size was touched since.
_COLD = 2
_LAST_CACHE = 32 << 20
_MAX_COPIES = 4096


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call: the median and the best of the rounds, and their ``spread``: the
    interquartile range over the median. ``gflops`` at the median; ``of_peak`` the median fraction
    of the target's peak, which is measured in each round (None for a transposition).
    """

    median: float
    best: float
    spread: float
    gflops: float
    of_peak: float | None


def bench(kernel: Sampled, cold: bool = False, seconds: float = 0.2) -> Timing:
    """Time ``kernel`` for about ``seconds`` on arrays of its sizes, run-time ones of 64.

    ``cold``: every call takes the next of many copies of the arrays, which together are larger
    than the caches.
    """
    if not seconds > 0:
        raise ArgumentValueError("seconds must be positive", got=seconds)
    rng = np.random.default_rng(0)
    first = sample(kernel.signature, rng, varied=False)
    samples = [first]
    for _ in range(_copies(first) - 1 if cold else 0):
        samples.append(sample(kernel.signature, rng, varied=False))
    frames = [kernel.frame(**one.named(kernel.signature)) for one in samples]
    meter = None if isinstance(kernel.spec, Transpose) else Meter(kernel.isa, kernel.spec.type)
    times, peaks = rounds(frames, seconds, meter)
    low, middle, high = np.percentile(times, (25, 50, 75))
    work = flops(kernel, first)
    of_peak = None
    if meter is not None:
        of_peak = float(np.median(work / times / (meter.loop.flops / peaks)))
    return Timing(
        median=float(middle),
        best=float(times.min()),
        spread=float((high - low) / middle),
        gflops=float(work / middle / 1e9),
        of_peak=of_peak,
    )


def flops(kernel: Sampled, held: Sample) -> int:
    """Floating-point operations of one call on ``held``."""
    spec = kernel.spec
    if isinstance(spec, Transpose):
        return 0
    count = 1 if spec.batch is None else held.size(spec.batch.count)
    return 2 * count * held.size(spec.m) * held.size(spec.n) * held.size(spec.k)


def _copies(held: Sample) -> int:
    """How many samples it takes to push one out of every cache."""
    used = sum(memory.nbytes for memory in held.memory)
    last = max(host.caches().values(), default=_LAST_CACHE)
    return int(np.clip(-(-_COLD * last // max(used, 1)), 2, _MAX_COPIES))


def rounds(frames: list[Frame], seconds: float, meter: Meter | None) -> tuple[Array, Array]:
    """Seconds per call in each of the rounds, which together take about ``seconds``, and the
    seconds of ``meter``'s loop right after each.
    """
    timed = dispatch.dispatcher().time
    words: Any = np.concatenate([frame.words for frame in frames])
    place, count, calls = dispatch.address(words), len(frames), len(frames)
    while (spent := timed(place, count, calls)) < _QUANTUM / 4:
        if spent < 0:
            raise MemoryError("no memory for the kernel's scratch buffer")
        calls *= 2
    calls = max(1, int(calls * _QUANTUM / spent))
    quanta = int(np.clip(seconds / (_QUANTUM + _PEAK), *_ROUNDS))
    times, peaks = np.empty(quanta), np.ones(quanta)
    for i in range(quanta):
        times[i] = timed(place, count, calls) / calls
        if meter is not None:
            peaks[i] = meter.seconds()
    return times, peaks
