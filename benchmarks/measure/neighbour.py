"""Whether another thread of the core was at work: loads take longer then, products do not.

Two CPUs are often threads of one core, and what the other one does nobody here may be told. So two
loops that know it are timed in every round beside what is measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import numpy.typing as npt

from .native import Call, address, library

#: A round is disturbed where loads take so many times as long, beside products, as in a quiet one.
DISTURBED = 1.25
#: That a core loads as many vectors of 16 bytes as it multiplies, or more, holds of all for years.
ALONE = 1.0
_ROUNDS: list[float] = []
_BUSY = """
from benchmarks.measure.neighbour import witnesses
loads = witnesses()[0]
while True:
    for _ in range(1000):
        loads.once()
"""


@cache
def witnesses() -> tuple[Call, Call]:
    """Loads for which nothing waits, and products that load nothing."""
    programs = library("witness")
    block = np.ones(4096, np.float32)
    begin = (-block.ctypes.data % 64) // 4
    pointer = block[begin:].ctypes.data
    loads, products = (
        Call(name, address(getattr(programs, name)), (pointer,), 1, (block,))
        for name in ("witness_loads", "witness_products")
    )
    return loads, products


def note(seconds: npt.NDArray[np.float64]) -> None:
    """Keep the rounds of the two ``witnesses``: ``seconds[round, witness]``."""
    _ROUNDS.extend((seconds[:, 0] / seconds[:, 1]).tolist())


def verdict() -> str:
    """In how many of all rounds a neighbour took loads away, in words; "" where none was timed."""
    if not _ROUNDS:
        return ""
    quiet = min(float(np.percentile(_ROUNDS, 5)), ALONE)
    slow = [ratio / quiet for ratio in _ROUNDS if ratio > DISTURBED * quiet]
    if not slow:
        return (
            f"quiet: in {len(_ROUNDS)} rounds loads took as long as ever, {quiet:.2f} of products"
        )
    often = f"{len(slow)} of {len(_ROUNDS)} rounds"
    return f"disturbed: in {often} loads took {np.median(slow):.2f} times as long as in quiet ones"


@contextmanager
def neighbour(cpu: int | None) -> Iterator[None]:
    """A process that does nothing but load, on ``cpu``; none for None."""
    if cpu is None:
        yield
        return
    busy = subprocess.Popen([sys.executable, "-c", _BUSY])
    os.sched_setaffinity(busy.pid, {cpu})
    try:
        yield
    finally:
        busy.kill()
        busy.wait()
