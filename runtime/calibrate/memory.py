"""Caches and memory: how much of each a core may count on, and how fast it reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tilewright.isa.machine import Cache
from tilewright.isa.target import Target
from tilewright.runtime.arrays.memory import aligned
from tilewright.runtime.machine import host

from .loops import CLOCK, STREAM, Function
from .rounds import in_cycles

#: Caches count as this many bytes where the system does not say.
USUAL = (32 << 10, 512 << 10, 2 << 20)
#: Memory is read in a buffer this many times the last cache, of so many bytes at most.
_TIMES, _MOST = 4, 256 << 20
#: A cache's share is what is read this much more slowly at most than an eighth of it.
_AS_FAST = 0.6

#: Bytes a cycle at which so many bytes are read again and again.
Reader = Callable[[int], float]


def caches(reader: Reader, sizes: tuple[int, ...], last: int) -> tuple[tuple[Cache, ...], float]:
    """Each cache with its rate, and the rate of memory, which is bytes a cycle.

    ``sizes`` are a core's shares of the caches as the system tells them, nearest first, ``last``
    the whole of the last one. Where others use a shared cache too, less of it is found.
    """
    found: list[Cache] = []
    for size in sizes:
        nearer = found[-1].size if found else 0
        # A cache is read where the nearer ones hold little of what is read.
        while size > 4 * nearer and reader(size // 2) < _AS_FAST * reader(
            max(size // 8, min(2 * nearer, size // 2))
        ):
            size //= 2
        if size > nearer:
            found.append(Cache(size, _two_digits(reader(size // 2))))
    return tuple(found), _two_digits(reader(min(_TIMES * last, _MOST)))


def _two_digits(number: float) -> float:
    return float(f"{number:.2g}")


def sizes() -> tuple[tuple[int, ...], int]:
    """A core's shares of the caches, nearest first, and the last cache's whole size."""
    shares = tuple(host.cache_shares().values()) or USUAL
    return shares, max(host.caches().values(), default=USUAL[-1])


def reader(target: Target, library: Path, seconds: float) -> Reader:
    """What reads memory with the widest vectors of ``target``, for so many seconds each time."""
    stride = STREAM.unroll * target.of("f32")[0].nbytes
    clock = Function(library, CLOCK.name)
    known: dict[int, float] = {}

    def read(size: int) -> float:
        size = max(stride, size // stride * stride)
        if size not in known:
            buffer = aligned(size)  # vectors that cross lines would be read half as fast
            buffer.fill(1)
            given = buffer, np.array([size], np.int64), np.zeros(64)
            stream = {STREAM.name: Function(library, STREAM.name, given)}
            found = in_cycles(stream, clock, CLOCK.adds, seconds)
            known[size] = size / found.cycles[STREAM.name]
        return known[size]

    return read
