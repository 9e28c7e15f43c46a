"""What a second thread gains where ``tw.matmul`` chooses how many compute.

Small products are below the size from which it offers them to two: they must not take longer.
The processors of a virtual machine may become one core's while this runs: two chains of
multiply-adds are timed before each product and after it, and nothing is demanded where they gain
too little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import tilewright as tw
from benchmarks.matmul.products import rounds_of
from benchmarks.measure.figures import Figure
from benchmarks.measure.operands import WrongResultError
from benchmarks.measure.options import Options
from benchmarks.measure.shapes import Shape

THREADS = 2
TYPES = {"f32": np.float32, "f64": np.float64}
LARGE = tuple(Shape(n, n, n) for n in (1024, 1536, 2048))
#: Squares on both sides of the size from which there are two threads, and as many at random.
SQUARES = tuple(Shape(n, n, n) for n in (32, 96, 160, 192, 208, 224, 256, 320, 384, 512))
MOST = 512
#: Products of networks in f32, and how many times as fast two threads are at least: few rows for
#: which a large matrix is streamed, and small ones, which a parallel region costs a part of.
NAMED = {
    Shape(512, 768, 768): 1.9,
    Shape(128, 768, 768): 1.9,
    Shape(64, 2048, 2048): 1.7,
    Shape(784, 32, 192): 1.6,
    Shape(49, 160, 576): 1.5,
}
#: How many products of sizes from 1 to ``LONGEST``, as many small as large ones, and their most
#: multiply-adds.
SWEPT, LONGEST, HEAVIEST = 20, 2048, 1 << 28
#: Times as fast as one thread, at least. Most of the others run as on one thread, but for noise.
OF_LARGE, OF_OTHERS = 1.9, 0.97
#: What chains of multiply-adds gain where two cores are idle, at least.
IDLE = 1.8


class Row(NamedTuple):
    """How many times as fast two threads are as one, the median of the rounds.

    ``cores`` says the same of chains of multiply-adds, just before and after, whichever is less.
    """

    types: str
    shape: Shape
    gain: float
    cores: float

    @property
    def named(self) -> bool:
        """Whether it has a figure of its own."""
        return self.types == "f32" and self.shape in NAMED

    @property
    def large(self) -> bool:
        """Whether all its sizes are beyond those of which two threads may gain nothing."""
        return min(self.shape.m, self.shape.n, self.shape.k) > MOST


def measured(options: Options, of_cores: Callable[[], float]) -> tuple[Row, ...]:
    """Time every product that ``--only`` leaves; ``of_cores`` times the chains of both cores."""
    rng = np.random.default_rng(options.seed)
    random = (Shape(*map(int, rng.integers(1, MOST + 1, 3))) for _ in SQUARES)
    every = (*NAMED, *LARGE, *SQUARES, *random, *_swept(rng))
    shapes = [shape for shape in every if options.wants(shape)]
    asked = [(types, shape) for types in TYPES for shape in shapes]
    shown = track(asked, "two threads", console=options.console, transient=True)
    return tuple(_row(types, shape, options, of_cores) for types, shape in shown)


def _swept(rng: np.random.Generator) -> Iterator[Shape]:
    """Products whose sizes are as often small as large."""
    for _ in range(SWEPT):
        m, n, k = (int(2**x) for x in rng.uniform(0, np.log2(LONGEST + 1), 3))
        yield Shape(m, n, max(1, min(k, HEAVIEST // (m * n))))


def _row(types: str, shape: Shape, options: Options, of_cores: Callable[[], float]) -> Row:
    rng, dtype = np.random.default_rng(options.seed), TYPES[types]
    a, b = (
        rng.integers(-2, 3, sizes).astype(dtype)
        for sizes in ((shape.m, shape.k), (shape.k, shape.n))
    )
    exact, out = a.astype(np.float64) @ b, np.empty((shape.m, shape.n), dtype)
    calls = {
        "one": lambda: tw.matmul(a, b, out, threads=1),
        "two": lambda: tw.matmul(a, b, out, threads=THREADS),
    }
    for who, call in calls.items():
        if (call() != exact).any():
            raise WrongResultError(f"{who}: {shape} {types} is wrong")
    before = of_cores()
    seconds = rounds_of(calls, options.effort)
    gain = float(np.median(seconds["one"] / seconds["two"]))
    return Row(types, shape, gain, min(before, of_cores()))


def tell(rows: Sequence[Row], console: Console) -> None:
    """Print every product with what the second thread gains."""
    table = Table(title=f"tw.matmul on {THREADS} threads, times as fast as on one")
    for heading in ("m x n x k", *TYPES):
        table.add_column(heading, justify="left" if heading == "m x n x k" else "right")
    for shape in dict.fromkeys(row.shape for row in rows):
        gains = {row.types: _said(row) for row in rows if row.shape == shape}
        table.add_row(str(shape), *(gains[types] for types in TYPES))
    console.print(table)
    if any(row.cores < IDLE for row in rows):
        console.print(f"In parentheses: chains of multiply-adds gained less than {IDLE} beside it.")


def _said(row: Row) -> str:
    return f"{row.gain:.2f}" if row.cores >= IDLE else f"({row.gain:.2f})"


def figures(rows: Sequence[Row]) -> Iterator[Figure]:
    """What is demanded of them."""
    for row in rows:
        if row.named and row.cores >= IDLE:
            yield Figure(f"two threads to one, {row.shape}", row.gain, NAMED[row.shape])
    rows = [row for row in rows if not row.named]
    for large, most in ((True, OF_LARGE), (False, OF_OTHERS)):
        gains = [row.gain for row in rows if row.large == large and row.cores >= IDLE]
        if gains:
            of = "1024 and above" if large else f"a size up to {MOST}"
            yield Figure(f"two threads to one, products of {of}, least", min(gains), most)
