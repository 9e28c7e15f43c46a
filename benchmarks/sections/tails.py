"""What is done with tails: each way of ``Schedule(tails=...)`` against ``"auto"``.

``"bounce"`` packs B or A, padded to whole vectors, in every call, and its time is counted. Nothing
is demanded: which way is best is a matter of the sizes and of the processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.progress import track
from rich.table import Table

from benchmarks.measure import kernels, machine, peak
from benchmarks.measure.figures import Section
from benchmarks.measure.native import Timed, measure
from benchmarks.measure.operands import Operands
from benchmarks.measure.options import Options
from benchmarks.measure.shapes import TAILS, Shape
from tilewright.plan.routine import routine_of

if TYPE_CHECKING:
    import tilewright as tw

AUTO, OTHERS = "auto", ("mask", "narrow", "bounce")


def run(options: Options) -> Section:
    """Time all ways of every shape in turns."""
    rng = np.random.default_rng(options.seed)
    shapes = [shape for shape in TAILS if options.wants(shape)]
    ready = _compiled(shapes, options.target)
    table = Table(title=f"Tails, {options.target}: GFLOPS, and to auto", title_justify="left")
    table.add_column("m x n x k")
    for heading in (AUTO, *OTHERS):
        table.add_column(heading, justify="right")
    table.add_column("bounce: vectors along, packed")
    rows = []
    for shape in track(shapes, "tails", console=options.console, transient=True):
        timed = _timed(options, ready[shape], shape, Operands.random(shape, rng))
        cells = (f"{timed.gflops(x):.1f} {timed.ratio(x, AUTO):.2f}" for x in OTHERS)
        (plan,) = routine_of(bounced := ready[shape]["bounce"].plan).nests(bounced)
        how = f"{plan.problem.vectorize}, {plan.staging.packs}"
        table.add_row(str(shape), f"{timed.gflops(AUTO):.1f}", *cells, how)
        rows.append(_record(shape, options.target, timed))
    options.console.print(table)
    return Section("tails", (), tuple(rows))


def _timed(
    options: Options, ready: Mapping[str, tw.Kernel], shape: Shape, operands: Operands
) -> Timed:
    calls = [kernels.call(kernel, shape, operands, tails) for tails, kernel in ready.items()]
    for call in calls:
        operands.check(call)
    return measure([peak.peak(options.target), *calls], options.effort)


def _record(shape: Shape, target: str, timed: Timed) -> dict[str, object]:
    return {
        "shape": str(shape),
        "target": target,
        "gflops": {tails: timed.gflops(tails) for tails in (AUTO, *OTHERS)},
        "to_auto": {tails: timed.ratio(tails, AUTO) for tails in OTHERS},
        "of_peak": {tails: timed.ratio(tails, peak.NAME) for tails in (AUTO, *OTHERS)},
    }


def _compiled(shapes: Sequence[Shape], target: str) -> dict[Shape, dict[str, tw.Kernel]]:
    """For each shape a kernel for each way, all in one library."""
    import tilewright as tw

    ways = (AUTO, *OTHERS)
    schedules = [tw.Schedule(tails=tails) for tails in ways]
    requests = [(kernels.spec(shape), each, target) for shape in shapes for each in schedules]
    with machine.every_core():
        made = iter(tw.compile_many(requests))
    return {shape: {tails: next(made) for tails in ways} for shape in shapes}
