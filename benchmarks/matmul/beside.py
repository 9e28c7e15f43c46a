"""Time ``tw.matmul`` on one and two threads in a program that also uses PyTorch or numpy.

The two threads are tilewright's own, or those of OpenMP. Before each call, the program does
nothing, or PyTorch adds two tensors, or numpy computes a product; only the call is timed. The
threads of the other library stay awake for a while after their work, on the cores that the next
call needs. All contenders are measured in turns, several calls of each at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

import tilewright as tw
from benchmarks.measure.figures import Figure, Section
from benchmarks.measure.operands import WrongResultError
from benchmarks.measure.options import Options
from benchmarks.measure.shapes import Shape
from tilewright.runtime.threads import process

#: Products, and the minimum speed of two threads, divided by the speed of one.
SHAPES = {
    Shape(512, 768, 768): 1.9,
    Shape(128, 768, 768): 1.9,
    Shape(64, 2048, 2048): 1.7,
    Shape(784, 192, 32): 1.6,
}
#: Number of calls of a contender in a row. The first is not timed.
CALLS = 8
THREADS = 2
Call = Callable[[], object]


class Row(NamedTuple):
    """A product, the work between its calls, and the seconds of a call for each contender."""

    shape: Shape
    between: str
    seconds: Mapping[str, float]

    def gain(self, threads: str) -> float:
        """Return the speed of two threads (``own`` or ``openmp``), divided by the speed of one."""
        return self.seconds["one"] / self.seconds[threads]


def run(options: Options) -> Section:
    """Time all products. OpenMP's threads are timed only if PyTorch is installed."""
    cpus = len(os.sched_getaffinity(0))
    if cpus < THREADS:
        options.console.print(f"Beside: nothing is measured, this process may use {cpus} CPU.")
        return Section("beside", ())
    asked = os.environ.get("TILEWRIGHT_THREADS")
    try:
        rows = [row for shape in SHAPES if options.wants(shape) for row in _rows(shape, options)]
    finally:
        _choose(asked)
    options.console.print(_table(rows))
    told = tuple(
        {"shape": str(row.shape), "between": row.between, **dict(row.seconds)} for row in rows
    )
    return Section("beside", tuple(_figures(rows)), told)


def _rows(shape: Shape, options: Options) -> Iterator[Row]:
    rng = np.random.default_rng(options.seed)
    sizes = (shape.m, shape.k), (shape.k, shape.n)
    a, b = (rng.integers(-2, 3, size).astype(np.float32) for size in sizes)
    out, exact = np.empty((shape.m, shape.n), np.float32), a.astype(np.float64) @ b
    calls = dict(_contenders(a, b, out))
    for name, call in calls.items():
        out[...] = 0
        call()
        if (out != exact).any():
            raise WrongResultError(f"{name}: {shape} is wrong")
    for between, work in _work(rng).items():
        taken: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(options.effort.rounds):
            for name, call in calls.items():
                taken[name].append(_timed(name, call, work))
        yield Row(shape, between, {name: median(times) for name, times in taken.items()})


def _contenders(a: Any, b: Any, out: Any) -> Iterator[tuple[str, Call]]:
    """Yield the contenders' names and calls.

    The calls "own" and "openmp" differ only in TILEWRIGHT_THREADS, which ``_timed`` sets.
    """
    yield "one", lambda: tw.matmul(a, b, out, threads=1)
    yield "own", lambda: tw.matmul(a, b, out, threads=THREADS)
    if find_spec("torch"):
        import torch

        torch.set_num_threads(THREADS)
        x, y, z = map(torch.from_numpy, (a, b, out))
        yield "openmp", lambda: tw.matmul(a, b, out, threads=THREADS)
        yield "torch", lambda: torch.mm(x, y, out=z)
    yield "numpy", lambda: np.matmul(a, b, out)


def _work(rng: np.random.Generator) -> dict[str, Call]:
    """Return the kinds of work that may be done before a timed call, by name."""
    left, right = rng.standard_normal((2, 256, 256), np.float32)
    found: dict[str, Call] = {"nothing": lambda: None, "a product of numpy's": lambda: left @ right}
    if find_spec("torch"):
        import torch

        x, y = torch.ones(512, 768), torch.ones(512, 768)
        found["an addition of PyTorch's"] = lambda: torch.add(x, y)
    return found


def _choose(threads: str | None) -> None:
    """Set TILEWRIGHT_THREADS, which chooses the threads of the parallel loops that follow."""
    os.environ.pop("TILEWRIGHT_THREADS", None)
    if threads is not None:
        os.environ["TILEWRIGHT_THREADS"] = threads
    process.told()


def _timed(name: str, call: Call, work: Call) -> float:
    """Return the median time of a few calls in seconds; ``work`` is done before each, untimed."""
    if name in ("own", "openmp"):
        _choose(name)
    taken = []
    for _ in range(CALLS):
        work()
        begun = perf_counter()
        call()
        taken.append(perf_counter() - begun)
    return median(taken[1:])


def _table(rows: list[Row]) -> Table:
    names = list(rows[0].seconds) if rows else []
    table = Table(title=f"tw.matmul on {THREADS} threads beside others: microseconds of a call")
    for heading in ("m x n x k", "between", *names, "own gains", "openmp gains"):
        table.add_column(
            heading, justify="left" if heading in ("m x n x k", "between") else "right"
        )
    for row in rows:
        gains = [f"{row.gain(kind):.2f}" for kind in ("own", "openmp") if kind in row.seconds]
        times = (f"{row.seconds[name] * 1e6:.0f}" for name in names)
        table.add_row(str(row.shape), row.between, *times, *gains)
    return table


def _figures(rows: list[Row]) -> Iterator[Figure]:
    for row in rows:
        kind = "openmp" if "openmp" in row.seconds else "own"
        name = f"two threads of {kind} to one, {row.shape}, between: {row.between}"
        yield Figure(name, row.gain(kind), SHAPES[row.shape])
