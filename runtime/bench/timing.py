"""Time kernels in a C loop that calls through a function pointer; Python only reads the clock.

In go compiled kernels. Out come seconds per call: of one kernel (``bench``), of two in turns
(``compare``), or of many in rounds that the caller arranges (``Timed``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from time import perf_counter

import numpy as np

from tilewright.errors import ArgumentValueError
from tilewright.runtime.call import dispatch
from tilewright.runtime.call.bound_sizes import Array, value_of
from tilewright.runtime.call.frame import Frame
from tilewright.runtime.machine import host
from tilewright.runtime.reference.arguments import Sample, Sampled, gain, sample
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.network.value import Network
from tilewright.spec.signature import Signature

from .peak import AtPeak, Types

#: Length of a round of calls in seconds. It is short, so that the scheduler rarely interrupts it.
_QUANTUM = 400e-6
#: Minimum and maximum number of rounds in one measurement.
_ROUNDS = (5, 2000)
#: Before a round on data in memory, this many times the size of the last-level cache is written.
_COLD = 2
#: Assumed size of the last-level cache in bytes, if the system does not report it.
_LAST_CACHE = 32 << 20
#: Maximum number of copies of the arrays in a round on data in memory.
_COPIES = 64
#: Maximum size of all copies of the arrays together, in bytes.
_COPIED = 256 << 20


@dataclass(frozen=True, slots=True)
class Timing:
    """The time that one call of a kernel takes.

    Attributes
    ----------
    median, best : float
        Seconds of a call: median and least of the rounds.
    spread : float
        Interquartile range of the rounds divided by the median.
    gflops : float
        GFLOPS at the median.
    of_peak : float or None
        Median of the speed divided by the target's peak, which each round measures. None if the
        kernel has no product.
    gb_per_s : float or None
        10**9 bytes per second at the median, if the kernel has no product: each element of its
        arrays is counted once, read or written. Else None.

    Examples
    --------
    >>> timing = tw.compile(tw.Gemm(16, 16, 16)).bench(seconds=0.01)
    >>> timing.best <= timing.median, 2 * 16**3 / timing.median / 1e9 / timing.gflops
    (True, 1.0...)
    """

    median: float
    best: float
    spread: float
    gflops: float
    of_peak: float | None
    gb_per_s: float | None = None

    @staticmethod
    def of(times: Array, flops: int, moved: int = 0, of_peak: float | None = None) -> Timing:
        """Return the figures of ``times``, seconds of a call.

        A call has ``flops`` operations. It reads and writes ``moved`` bytes, 0 if it multiplies.
        """
        low, middle, high = np.percentile(times, (25, 50, 75))
        return Timing(
            median=float(middle),
            best=float(times.min()),
            spread=float((high - low) / middle),
            gflops=float(flops / middle / 1e9),
            of_peak=of_peak,
            gb_per_s=float(moved / middle / 1e9) if moved else None,
        )


def bench(
    kernel: Sampled,
    cold: bool = False,
    seconds: float = 0.2,
    sizes: Mapping[str, int] | None = None,
) -> Timing:
    """Time ``kernel`` for about ``seconds`` on arrays of its sizes.

    ``sizes`` gives the run-time sizes, by the names of their C parameters. A size that is not given
    is 64. If ``cold``, every call takes another copy of the arrays, and the caches are filled with
    other data first. Raise TargetError if kernels are called through Python.
    """
    if not seconds > 0:
        raise ArgumentValueError("seconds must be positive", got=seconds)
    dispatch.timer("bench")
    rng = np.random.default_rng(0)
    draw = partial(sample, kernel.signature, rng, varied=False, gain=gain(kernel.spec), given=sizes)
    samples = [draw()]
    samples += [draw() for _ in range(_copies(samples[0]) - 1 if cold else 0)]
    frames = [kernel.frame(**one.named(kernel)) for one in samples]
    work = multiplied(kernel.spec, samples[0])
    at_peak = AtPeak(kernel.isa, work) if work else None
    times, peaks = rounds(frames, seconds, at_peak, cold=cold)
    of_peak = float(np.median(peaks / times)) if work else None
    moved = 0 if work else traffic(kernel.signature, samples[0].sizes)
    return Timing.of(times, sum(work.values()), moved, of_peak)


class Timed:
    """A kernel of a Gemm that is timed round by round, in turns with other kernels on the same
    arrays.
    """

    def __init__(self, kernel: Sampled, samples: list[Sample]) -> None:
        self._frames = [kernel.frame(**one.named(kernel)) for one in samples]
        words: Array = np.concatenate([frame.words for frame in self._frames])
        self._words, self._place = words, dispatch.address(words)
        self._timer = dispatch.timer("tune")
        self._calls = 0

    def hot(self) -> float:
        """Return the seconds of a call on arrays in cache, averaged over the calls of a round."""
        if not self._calls:
            self._calls, _ = _calls(self._timer, self._place, 1, cold=False)
        return self._timer(self._place, 1, self._calls) / self._calls

    def cold(self) -> float:
        """Return the seconds of a call on arrays in memory, averaged over all copies of them."""
        for frame in self._frames:
            frame.touch()
        count = len(self._frames)
        return self._timer(self._place, count, count) / count


@dataclass(frozen=True, slots=True)
class Compared:
    """Two kernels timed in turns.

    Attributes
    ----------
    first, second : float
        Median seconds of a call.
    ratio : float
        How many times as fast as the first kernel the second one is: the median over the rounds.
    quartiles : tuple of float
        Lower and upper quartile of that ratio.
    """

    first: float
    second: float
    ratio: float
    quartiles: tuple[float, float]


def compare(first: Sampled, second: Sampled, seconds: float = 0.5) -> Compared:
    """Time two kernels of one spec in turns, for about ``seconds``, on the same arrays in cache."""
    samples = copies(first, 1, 1)
    timed = [Timed(kernel, samples) for kernel in (first, second)]
    begin = perf_counter()
    taken: list[list[float]] = []
    while len(taken) < _ROUNDS[0] or perf_counter() - begin < seconds:
        taken.append([one.hot() for one in timed])
    times = np.array(taken)
    low, ratio, high = np.percentile(times[:, 0] / times[:, 1], (25, 50, 75))
    one, other = np.median(times, axis=0)
    return Compared(float(one), float(other), float(ratio), (float(low), float(high)))


def copies(
    kernel: Sampled, most_bytes: int, most: int, sizes: Mapping[str, int] | None = None
) -> list[Sample]:
    """Return random arguments for a kernel, in at most ``most`` copies and ``most_bytes`` bytes.

    There is at least one copy. ``sizes`` are run-time sizes; the others are 64.
    """
    rng = np.random.default_rng(0)
    draw = partial(sample, kernel.signature, rng, varied=False, gain=gain(kernel.spec), given=sizes)
    first = draw()
    used = max(1, sum(memory.nbytes for memory in first.memory))
    return [first, *(draw() for _ in range(min(most, most_bytes // used) - 1))]


class Filler:
    """Fills the caches with other data, so that the next call finds its arrays in memory."""

    def __init__(self) -> None:
        self._other = np.zeros(_COLD * _last_cache() // 8)

    def fill(self) -> None:
        """Write more bytes than the last-level cache holds."""
        self._other += 1


def flops(kernel: Sampled, held: Sample) -> int:
    """Return the number of floating-point operations of a call with the arguments ``held``."""
    return operations(kernel.spec, held)


def operations(spec: Spec, held: Sample) -> int:
    """Return the floating-point operations of a call of a ``spec``'s kernel, with ``held``.

    ``held`` are the arguments of the call.
    """
    return sum(multiplied(spec, held).values())


def multiplied(spec: Spec, held: Sample) -> Mapping[Types, int]:
    """Return the operations of a call's products, by the types on which the peak depends.

    The result is empty if the spec has no product.
    """
    if isinstance(spec, Network):
        return {types: int(flops) for types, flops in spec.work(held.sizes).items()}
    if not isinstance(spec, Gemm):
        return {}
    sizes = {name: held.size(getattr(spec, name)) for name in "mnk"}
    if spec.batch is not None:
        sizes["count"] = held.size(spec.batch.count)
    return {spec.multiplied: int(spec.flops(sizes))}


def traffic(signature: Signature, sizes: Mapping[str, int]) -> int:
    """Return the bytes of all elements that a call without a product reads and writes.

    ``sizes`` are the run-time sizes by the names of their dims.
    """
    total = 0
    for each in signature.arrays:
        elements = prod(value_of(size, sizes) for size in each.shape)
        total += elements * each.itemsize * (2 if each.role == "inout" else 1)
    return total


def _last_cache() -> int:
    return max(host.caches().values(), default=_LAST_CACHE)


def _copies(held: Sample) -> int:
    used = sum(memory.nbytes for memory in held.memory)
    return int(np.clip(_COPIED // max(used, 1), 2, _COPIES))


def rounds(
    frames: list[Frame], seconds: float, meter: AtPeak | None, *, cold: bool
) -> tuple[Array, Array]:
    """Time rounds of calls for about ``seconds``.

    Returns the seconds per call of each round, and the seconds of ``meter`` right after each.
    """
    timed = dispatch.timer("bench")
    words: Array = np.concatenate([frame.words for frame in frames])
    place, count = dispatch.address(words), len(frames)
    other = np.zeros(_COLD * _last_cache() // 8 if cold else 0)
    calls, spent = _calls(timed, place, count, cold=cold)
    times: list[float] = []
    peaks: list[float] = []
    begin = perf_counter()
    least, most = _ROUNDS
    while len(times) < most and (len(times) < least or perf_counter() - begin < seconds):
        if cold:
            other += 1
            for frame in frames:
                frame.touch()
        times.append(timed(place, count, calls) / calls)
        peaks.append(1.0 if meter is None else meter.seconds())
        if len(times) >= 3 and spent > seconds:
            break
    return np.array(times), np.array(peaks)


def _calls(
    timed: Callable[[int, int, int], float], place: int, count: int, *, cold: bool
) -> tuple[int, float]:
    """Return how many calls a round has, and how many seconds they take."""
    calls = count
    while (spent := timed(place, count, calls)) < _QUANTUM / 4 and not cold:
        if spent < 0:
            raise MemoryError("no memory for the kernel's scratch buffer")
        calls *= 2
    if cold:
        return calls, spent
    per_call = spent / calls
    calls = max(1, int(_QUANTUM / per_call))
    return calls, calls * per_call
