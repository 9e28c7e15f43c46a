"""What a call from Python costs beside ``np.matmul(a, b, out=c)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import repeat
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.measure.figures import Figure, Section
from benchmarks.measure.native import Effort
from benchmarks.measure.options import Options

SIZE = 16
CHECKED, BOUND, NAMED = 0.45, 0.2, 0.65
LOOPS = 500


def run(options: Options) -> Section:
    """Time numpy, checked calls and a bound call in interleaved rounds."""
    import tilewright as tw

    rng = np.random.default_rng(options.seed)
    a, b = (rng.uniform(-1, 1, (SIZE, SIZE)).astype(np.float32) for _ in range(2))
    c = np.empty((SIZE, SIZE), np.float32)
    kernel = tw.compile(tw.Gemm(SIZE, SIZE, SIZE), target=options.target)
    bound = kernel.bind(a, b, out=c)
    matmul = np.matmul

    def by_numpy() -> None:
        for _ in repeat(None, LOOPS):
            matmul(a, b, out=c)

    def by_checked_call() -> None:
        for _ in repeat(None, LOOPS):
            kernel(a, b, c)

    def by_name() -> None:
        for _ in repeat(None, LOOPS):
            kernel(a, b, out=c)

    def by_bound_call() -> None:
        for _ in repeat(None, LOOPS):
            bound()

    loops = (by_numpy, by_checked_call, by_bound_call, by_name)
    numpy, *ours = _rounds(loops, options.effort).T
    taken = dict(zip(("checked call", "bound call", "checked call, out="), ours, strict=True))
    ratios = {name: float(np.median(each / numpy)) for name, each in taken.items()}
    _print(options.console, numpy, taken, ratios)
    limits = {"checked call": CHECKED, "bound call": BOUND, "checked call, out=": NAMED}
    figures = tuple(
        Figure(f"{name} to np.matmul", ratios[name], limit, at_most=True)
        for name, limit in limits.items()
    )
    return Section("calls", figures, (dict(ratios),))


def _print(
    console: Console, numpy: Any, taken: Mapping[str, Any], ratios: Mapping[str, float]
) -> None:
    table = Table(title=f"A call of {SIZE}x{SIZE}x{SIZE}", title_justify="left")
    for heading in ("", "ns", "of np.matmul"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row("np.matmul", f"{1e9 * np.median(numpy):.0f}", "1")
    for name, each in taken.items():
        table.add_row(name, f"{1e9 * np.median(each):.0f}", f"{ratios[name]:.3f}")
    console.print(table)


def _rounds(loops: tuple[Callable[[], None], ...], effort: Effort) -> Any:
    """Seconds for one call: rounds x loops, each the least of the repeats."""
    seconds = np.full((effort.rounds, len(loops)), np.inf)
    for row in seconds:
        for _ in range(effort.repeats):
            for i, loop in enumerate(loops):
                start = perf_counter()
                loop()
                row[i] = min(row[i], (perf_counter() - start) / LOOPS)
    return seconds
