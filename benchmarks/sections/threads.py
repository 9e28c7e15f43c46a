"""What a second thread gains: of a kernel with a loop in upper case, and of ``tw.matmul``.

Two processors may be one core's, or another program's: threads then gain nothing, whoever makes
them. So the chains of the peak run on two threads as well, in the same rounds. Where these do not
gain enough, the section says what it measured and demands nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from statistics import median
from threading import Barrier

import numpy as np
from rich.console import Console

from benchmarks.matmul import two_threads
from benchmarks.measure import kernels, peak
from benchmarks.measure.figures import Figure, Section
from benchmarks.measure.native import Call, Effort, calls_in, seconds
from benchmarks.measure.operands import Operands, WrongResultError
from benchmarks.measure.options import Options
from benchmarks.measure.shapes import Shape

SHAPE, THREADS = Shape(512, 512, 512), 2
#: Seconds of one measurement, long beside the start of a thread.
QUANTUM = 10e-3
OF_CORES = 0.8


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times as fast two threads are as one: at the product, and at the peak's chains."""

    product: float
    cores: float
    cpus: int

    @property
    def figures(self) -> tuple[Figure, ...]:
        """What is demanded: nothing where the cores themselves gain too little."""
        if self.cores < two_threads.IDLE:
            return ()
        return (Figure("two threads, of what two cores gain", self.product / self.cores, OF_CORES),)

    def tell(self, console: Console, target: str) -> None:
        """Print it, and why nothing is demanded where nothing is."""
        console.print(
            f"Threads: {SHAPE} f32, {target}, NMk, is {self.product:.2f} times as fast on "
            f"{THREADS} threads as on one; chains of multiply-adds {self.cores:.2f} times "
            f"({self.cpus} CPUs)."
        )
        if not self.figures:
            console.print(
                f"There are no {THREADS} idle cores here: below {two_threads.IDLE} times for the "
                "chains, nothing is demanded of products."
            )


def run(options: Options) -> Section:
    """Time the product and the chains, on one thread and on two, in turns."""
    cpus = len(os.sched_getaffinity(0))
    if cpus < THREADS:
        options.console.print(f"Threads: nothing is measured, this process may use {cpus} CPU.")
        return Section("threads", ())
    calls = (*_products(options), peak.peak(options.target))
    counts = [calls_in(call, QUANTUM) for call in calls]
    with ThreadPoolExecutor(THREADS) as pool:
        rounds = [_round(pool, calls, counts, options.effort) for _ in range(options.effort.rounds)]
        chosen = two_threads.measured(options, lambda: _of_cores(pool, calls[2], counts[2]))
    product, cores = (median(column) for column in zip(*rounds, strict=True))
    found = Gain(product, cores, cpus)
    found.tell(options.console, options.target)
    two_threads.tell(chosen, options.console)
    demanded = two_threads.figures(chosen) if found.figures else ()
    records = ({**row._asdict(), "shape": str(row.shape)} for row in chosen)
    return Section("threads", (*found.figures, *demanded), (asdict(found), *records))


def _products(options: Options) -> tuple[Call, Call]:
    """The product on one thread and on two, whose results are the same to the bit."""
    import tilewright as tw

    spec = kernels.spec(SHAPE)
    schedules = [tw.Schedule(loops="NMk", threads=count) for count in (1, THREADS)]
    made = tw.compile_many([(spec, schedule, options.target) for schedule in schedules])
    calls, results = [], []
    for kernel in made:
        operands = Operands.random(SHAPE, np.random.default_rng(options.seed))
        calls.append(kernels.call(kernel, SHAPE, operands))
        operands.check(calls[-1])
        results.append(operands.c.copy())
    if not np.array_equal(results[0], results[1]):
        raise WrongResultError(f"{SHAPE}, NMk: {THREADS} threads compute other bits than one")
    return calls[0], calls[1]


def _round(
    pool: Executor, calls: Sequence[Call], counts: Sequence[int], effort: Effort
) -> tuple[float, float]:
    """How many times as fast two threads are, at the product and at the chains: least times."""
    taken = [
        (*map(seconds, calls, counts), _side_by_side(pool, calls[2], counts[2]))
        for _ in range(effort.repeats)
    ]
    alone, together, chains, beside = map(min, zip(*taken, strict=True))
    return alone / together, THREADS * chains / beside


def _of_cores(pool: Executor, chains: Call, count: int) -> float:
    """How many times as fast two threads are at the chains, now: in the best of three rounds."""
    return max(
        THREADS * seconds(chains, count) / _side_by_side(pool, chains, count) for _ in range(3)
    )


def _side_by_side(pool: Executor, call: Call, count: int) -> float:
    """Seconds of a call in the slowest of the threads that make it at the same time."""
    start = Barrier(THREADS)

    def work(_: int) -> float:
        start.wait()
        return seconds(call, count)

    return max(pool.map(work, range(THREADS)))
