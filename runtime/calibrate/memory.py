"""Measure caches and memory: the bytes of each cache that one core can use, and the read speeds."""

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

#: Sizes of L1, L2 and L3 in bytes that are assumed if the system does not report them.
USUAL = (32 << 10, 512 << 10, 2 << 20)
#: Size of the buffer for measuring memory: this many times the last-level cache, but at most this
#: many bytes.
_TIMES, _MOST = 4, 256 << 20
#: A buffer counts as cached if it is read at least this fast, relative to a buffer of an eighth of
#: its size.
_AS_FAST = 0.6

#: Function that takes the size of a buffer in bytes, and returns how fast the buffer is read, in
#: bytes per cycle.
Reader = Callable[[int], float]


def caches(reader: Reader, sizes: tuple[int, ...], last: int) -> tuple[tuple[Cache, ...], float]:
    """Return each cache's usable size and read speed, and memory's read speed, in bytes per cycle.

    ``sizes`` are the core's shares of the caches as the system reports them, L1 first. ``last`` is
    the size of the whole last cache. If other cores use a shared cache, the result is a smaller
    share.
    """
    found: list[Cache] = []
    for size in sizes:
        nearer = found[-1].size if found else 0
        # Halve the size until a buffer in this cache is read about as fast as a smaller one. The
        # smaller buffer must still be larger than the nearer caches.
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
    """Return the core's shares of the caches, L1 first, and the size of the whole last cache."""
    shares = tuple(host.cache_shares().values()) or USUAL
    return shares, max(host.caches().values(), default=USUAL[-1])


def reader(target: Target, library: Path, seconds: float) -> Reader:
    """Return a function that measures how fast ``target``'s widest vectors read a buffer.

    Each measurement takes ``seconds``.
    """
    stride = STREAM.unroll * target.of("f32")[0].nbytes
    clock = Function(library, CLOCK.name)
    known: dict[int, float] = {}

    def read(size: int) -> float:
        size = max(stride, size // stride * stride)
        if size not in known:
            # The buffer is aligned, because vectors that cross cache lines are read half as fast.
            buffer = aligned(size)
            buffer.fill(1)
            given = buffer, np.array([size], np.int64), np.zeros(64)
            stream = {STREAM.name: Function(library, STREAM.name, given)}
            found = in_cycles(stream, clock, CLOCK.adds, seconds)
            known[size] = size / found.cycles[STREAM.name]
        return known[size]

    return read
