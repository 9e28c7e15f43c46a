"""Measure the gain of a second thread if ``tw.matmul`` chooses the number of threads.

``tw.matmul`` computes small products on one thread; a limit of two threads must not make them
slower. A virtual machine may put two processors on one core while this runs. Therefore a chain of
multiply-adds on each processor is timed before and after each product. If the second chain gains
too little, nothing is demanded of the product.
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
#: Square products around the size from which two threads are used. The same number of products has
#: random sizes up to ``MOST``.
SQUARES = tuple(Shape(n, n, n) for n in (32, 96, 160, 192, 208, 224, 256, 320, 384, 512))
MOST = 512
#: Products of neural networks in f32, and the minimum speed of two threads, divided by the speed of
#: one. In some, few rows are multiplied by a large matrix. In the small ones, starting the threads
#: takes a notable part of the time.
NAMED = {
    Shape(512, 768, 768): 1.9,
    Shape(128, 768, 768): 1.9,
    Shape(64, 2048, 2048): 1.7,
    Shape(784, 32, 192): 1.6,
    Shape(49, 160, 576): 1.5,
}
#: Number of random products; their maximum m, n and k; and their maximum number of multiply-adds.
#: Logarithms of sizes are uniformly distributed.
SWEPT, LONGEST, HEAVIEST = 20, 2048, 1 << 28
#: Minimum speed of two threads, divided by the speed of one: of large products, and of the others.
#: Most of the others run on one thread, so 0.97 allows for noise.
OF_LARGE, OF_OTHERS = 1.9, 0.97
#: Minimum gain of a second chain of multiply-adds if two cores are idle.
IDLE = 1.8


class Row(NamedTuple):
    """The speed of two threads, divided by the speed of one: the median of the rounds.

    ``cores`` is the same ratio of two chains of multiply-adds: the smaller one of the measurements
    just before and just after the product.
    """

    types: str
    shape: Shape
    gain: float
    cores: float

    @property
    def named(self) -> bool:
        """True if the product is one of ``NAMED``, which have their own figures."""
        return self.types == "f32" and self.shape in NAMED

    @property
    def large(self) -> bool:
        """True if m, n and k are so large that two threads must be faster."""
        return min(self.shape.m, self.shape.n, self.shape.k) > MOST


def measured(options: Options, of_cores: Callable[[], float]) -> tuple[Row, ...]:
    """Time every product that ``--only`` selects; ``of_cores`` times chains on both cores."""
    rng = np.random.default_rng(options.seed)
    random = (Shape(*map(int, rng.integers(1, MOST + 1, 3))) for _ in SQUARES)
    every = (*NAMED, *LARGE, *SQUARES, *random, *_swept(rng))
    shapes = [shape for shape in every if options.wants(shape)]
    asked = [(types, shape) for types in TYPES for shape in shapes]
    shown = track(asked, "two threads", console=options.console, transient=True)
    return tuple(_row(types, shape, options, of_cores) for types, shape in shown)


def _swept(rng: np.random.Generator) -> Iterator[Shape]:
    """Yield random products; the logarithms of their sizes are uniformly distributed."""
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
    """Print the gain of the second thread for every product."""
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
    """Yield the figures: each gain, or the smallest of a group, with its goal."""
    for row in rows:
        if row.named and row.cores >= IDLE:
            yield Figure(f"two threads to one, {row.shape}", row.gain, NAMED[row.shape])
    rows = [row for row in rows if not row.named]
    for large, most in ((True, OF_LARGE), (False, OF_OTHERS)):
        gains = [row.gain for row in rows if row.large == large and row.cores >= IDLE]
        if gains:
            of = "1024 and above" if large else f"a size up to {MOST}"
            yield Figure(f"two threads to one, products of {of}, least", min(gains), most)
