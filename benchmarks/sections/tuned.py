"""The default schedule against the winner of a tuning, on a handful of shapes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.progress import track
from rich.table import Table

from benchmarks.measure import kernels
from benchmarks.measure.figures import Figure, Section, geometric_mean
from benchmarks.measure.native import measure
from benchmarks.measure.operands import Operands
from benchmarks.measure.options import Options
from benchmarks.measure.shapes import BATCH, TABLE, Shape

#: Seconds that each is tuned, and the least that the winners must reach beside the defaults.
SECONDS, LEAST = 15.0, 1.0
SHAPES = (*TABLE[1:6], *TABLE[9:14], BATCH)


def run(options: Options, seconds: float = SECONDS) -> Section:
    """Tune each shape, then time default and winner in turns."""
    shapes = [shape for shape in SHAPES if options.wants(shape)]
    table = Table(title=f"Tuned, {options.target}: GFLOPS", title_justify="left")
    for heading in ("m x n x k (batch)", "measured", "default", "tuned", "ratio", "schedule"):
        table.add_column(heading)
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        for shape in track(shapes, "tune", console=options.console, transient=True):
            row = _row(options, shape, seconds, Path(folder) / "tuned.sqlite3")
            numbers = (f"{row[name]:.3g}" for name in ("default", "tuned", "ratio"))
            cells = (str(row["measured"]), *numbers, row["schedule"])
            table.add_row(str(shape), *cells)
            rows.append(row)
    options.console.print(table)
    return Section("tune", _figures(options, [row["ratio"] for row in rows]), tuple(rows))


def _figures(options: Options, ratios: Sequence[float]) -> tuple[Figure, ...]:
    if options.only is not None:
        return ()
    return (Figure("tuned schedules to the defaults", geometric_mean(ratios), LEAST),)


def _row(options: Options, shape: Shape, seconds: float, database: Path) -> dict[str, Any]:
    """What the tuning found, measured once more on data in cache."""
    import tilewright as tw
    from tilewright.runtime.tuned import Database
    from tilewright.tuning.tune import Tuning

    spec = kernels.spec(shape)
    tuning = Tuning(spec, target=options.target, seconds=seconds, database=Database(database))
    for _ in tuning.steps():
        pass
    winner = tuning.result().kernel
    default = tw.compile(spec, tw.Schedule(), options.target)
    operands = Operands.random(shape, np.random.default_rng(options.seed))
    calls = [
        kernels.call(kernel, shape, operands, name)
        for name, kernel in (("default", default), ("tuned", winner))
    ]
    for call in calls:
        operands.check(call)
    timed = measure(calls, options.effort)
    return {
        "shape": str(shape),
        "measured": len(tuning.ranking),
        "default": timed.gflops("default"),
        "tuned": timed.gflops("tuned"),
        "ratio": timed.ratio("tuned", "default"),
        "schedule": repr(winner.schedule),
    }
