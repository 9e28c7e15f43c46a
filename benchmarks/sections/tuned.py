"""The winner of a tuning beside the default schedule, and beside every peer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from benchmarks.measure.shapes import BATCH, TABLE, Shape, random_shapes
from benchmarks.peers.f32 import Peer

#: Seconds that each is tuned, and the least that the winners must reach beside the defaults.
SECONDS, LEAST = 15.0, 1.0
#: The same of their speed beside the best peer, and the geometric mean of it.
LEAST_AHEAD, MEAN_AHEAD = 1.0, 1.2


def run(options: Options, peers: Sequence[Peer] = (), seconds: float = SECONDS) -> Section:
    """Tune each shape, then time default, winner and peers in turns."""
    every = dict.fromkeys((*TABLE, BATCH, *random_shapes(options.seed)))
    shapes = [shape for shape in every if options.wants(shape)]
    table = Table(title=f"Tuned, {options.target}: GFLOPS", title_justify="left")
    named = [peer.name for peer in peers]
    for heading in ("m x n x k (batch)", "measured", "default", "tuned", *named, "schedule"):
        table.add_column(heading)
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        for shape in track(shapes, "tune", console=options.console, transient=True):
            row = _row(options, shape, peers, seconds, Path(folder) / "tuned.sqlite3")
            numbers = (f"{row[name]:.3g}" for name in ("default", "tuned", *named))
            cells = (str(row["measured"]), *numbers, row["schedule"])
            table.add_row(str(shape), *cells)
            rows.append(row)
    options.console.print(table)
    return Section("tune", tuple(_figures(options, rows)), tuple(rows))


def _figures(options: Options, rows: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    if options.only is not None:
        return
    ratios = [row["ratio"] for row in rows]
    yield Figure("tuned schedules to the defaults", geometric_mean(ratios), LEAST)
    ahead = [row["ahead"] for row in rows if row["ahead"] is not None]
    if ahead:
        yield Figure("tuned, to the best peer: mean", geometric_mean(ahead), MEAN_AHEAD)
        yield Figure("tuned, to the best peer: least", min(ahead), LEAST_AHEAD)


def _row(
    options: Options, shape: Shape, peers: Sequence[Peer], seconds: float, database: Path
) -> dict[str, Any]:
    """What the tuning found, measured once more on data in cache, beside the peers."""
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
    calls += [peer.call(shape, operands) for peer in peers]
    for call in calls:
        operands.check(call)
    timed = measure(calls, options.effort)
    return {
        "shape": str(shape),
        "measured": len(tuning.ranking),
        "default": timed.gflops("default"),
        "tuned": timed.gflops("tuned"),
        "ratio": timed.ratio("tuned", "default"),
        **{peer.name: timed.gflops(peer.name) for peer in peers},
        "ahead": min((timed.ratio("tuned", peer.name) for peer in peers), default=None),
        "schedule": repr(winner.schedule),
    }
