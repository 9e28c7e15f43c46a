"""One row of A by weights out of memory: bytes a second, beside loads for which nothing waits."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np

import tilewright as tw
from benchmarks.measure import machine
from benchmarks.measure.native import Effort, library
from benchmarks.measure.rounds import rounds

from .products import FORMATS, HALVES, draw, of_format

Array = np.ndarray[Any, Any]
#: (n, k) of weights, and the bytes of all their copies, which no cache holds.
SIZES = ((4096, 4096), (14336, 4096), (4096, 14336))
COPIES = 1 << 28
READS = "reads"


@dataclass(frozen=True, slots=True)
class FromMemory:
    """Bytes a second of weights of each format, and of plain reads, by so many threads."""

    size: tuple[int, int]
    threads: int
    rates: dict[str, float]

    def share(self, name: str) -> float:
        """Of plain reads in the same rounds."""
        return self.rates[name] / self.rates[READS]


def measure(size: tuple[int, int], threads: int, effort: Effort, rng: Any) -> FromMemory:
    """Each format in turns with plain reads; copies of the weights follow each other."""
    with machine.every_core() if threads > 1 else nullcontext():
        calls = _calls(size, threads, rng)
        taken = rounds([call for call, _ in calls.values()], effort)
    rates = {
        name: nbytes / float(seconds)
        for (name, (_, nbytes)), seconds in zip(calls.items(), taken, strict=True)
    }
    return FromMemory(size, threads, rates)


def _calls(
    size: tuple[int, int], threads: int, rng: Any
) -> dict[str, tuple[Callable[[], object], int]]:
    """What is timed, and the bytes that it reads."""
    n, k = size
    schedule = tw.Schedule(threads=threads) if threads > 1 else None
    calls: dict[str, tuple[Callable[[], object], int]] = {READS: _reads(threads)}
    for name, form in FORMATS.items():
        kernel = tw.compile(of_format(name, n, k), schedule)
        left = rng.standard_normal((1, k), np.float32)
        copies = _copies(kernel.pack_b(draw(form, k, n, rng)))
        given = left.astype(ml_dtypes.bfloat16) if name in HALVES else left
        bound: list[Callable[[], object]] = [
            kernel.bind(given, packed, kernel(given, packed)) for packed in copies
        ]
        calls[name] = (partial(_every, bound), sum(packed.nbytes for packed in copies))
    return calls


def _copies(packed: tw.PackedMatrix) -> list[tw.PackedMatrix]:
    """As many as fill ``COPIES`` bytes, each with memory of its own."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "packed"
        packed.save(path)
        return [tw.PackedMatrix.load(path) for _ in range(-(-COPIES // packed.nbytes))]


def _every(calls: list[Callable[[], object]]) -> None:
    for call in calls:
        call()


def _reads(threads: int) -> tuple[Callable[[], object], int]:
    """Plain reads of ``COPIES`` bytes, each thread of a part, and how many bytes they read."""
    read = library("stream", "-march=native").stream_read
    memory = np.ones(COPIES + 64, np.uint8)
    begin = memory.ctypes.data + -memory.ctypes.data % 64
    part = COPIES // threads // 256 * 256
    pool = ThreadPoolExecutor(threads)

    def one(index: int) -> None:
        read(ctypes.c_void_p(begin + index * part), ctypes.c_int64(part))
        assert memory.size

    def call() -> None:
        list(pool.map(one, range(threads)))

    return (call if threads > 1 else partial(one, 0)), part * threads


def all_threads() -> int:
    """CPUs that this process may use."""
    with machine.every_core():
        return len(os.sched_getaffinity(0))
