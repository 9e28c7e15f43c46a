"""The default schedule against the best one that ``tw.variants`` yields.

It yields hundreds for a shape: measured are the first two thirds of a portion, as the model ranks
them, and for the last third others at random, in case the model is wrong; or all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.progress import track
from rich.table import Table

from benchmarks.measure import kernels, machine, peak
from benchmarks.measure.figures import Figure, Section, geometric_mean
from benchmarks.measure.native import Call, Effort, Timed, measure
from benchmarks.measure.operands import Operands
from benchmarks.measure.options import Options
from benchmarks.measure.shapes import ROUND, TABLE, UKERNEL, Shape

if TYPE_CHECKING:
    import tilewright as tw

OF_BEST, LEAST = 0.93, 30
# A first look at all, then the leading ones again beside the default: the fastest of many noisy
# timings is faster than it is.
LOOK, FINALISTS, AT_ONCE = Effort(rounds=5, repeats=3, quantum=100e-6), 5, 24
DEFAULT = "default"


def run(options: Options) -> Section:
    """Measure every variant of every shape of the lists."""
    import tilewright as tw

    rng = np.random.default_rng(options.seed)
    shapes = [shape for shape in dict.fromkeys((*TABLE, *UKERNEL)) if options.wants(shape)]
    table = Table(title=f"Variants, {options.target}: GFLOPS", title_justify="left")
    for heading in ("m x n x k (batch)", "variants", "default", "best", "default to best", "best"):
        table.add_column(heading)
    ratios, rows, figures = [], [], []
    for shape in track(shapes, "variants", console=options.console, transient=True):
        yielded = list(tw.variants(kernels.spec(shape), target=options.target))
        schedules = _chosen(yielded, options.variants, rng)
        timed, best = _best(options, shape, schedules, Operands.random(shape, rng))
        ratio = timed.ratio(DEFAULT, best)
        ratios.append(ratio)
        speeds = [f"{timed.gflops(name):.1f}" for name in (DEFAULT, best)]
        table.add_row(
            str(shape), f"{len(schedules)} of {len(yielded)}", *speeds, f"{ratio:.3f}", best
        )
        rows.append({"shape": str(shape), "ratio": ratio, "best": best, "count": len(schedules)})
        if shape == ROUND[0]:
            figures.append(Figure(f"variants of {shape}", len(yielded), LEAST))
    options.console.print(table)
    if options.only is None:
        mean = geometric_mean(ratios)
        figures.append(Figure("default schedule to the best variant", mean, OF_BEST))
    return Section("variants", tuple(figures), tuple(rows))


def _chosen(
    schedules: Sequence[tw.Schedule], count: int, rng: np.random.Generator
) -> list[tw.Schedule]:
    if count == 0 or len(schedules) <= count:
        return list(schedules)
    first = 2 * count // 3
    others = rng.choice(np.arange(first, len(schedules)), count - first, replace=False)
    return [*schedules[:first], *(schedules[i] for i in sorted(others))]


def _label(schedule: tw.Schedule) -> str:
    """What the schedule says, less what it leaves open."""
    names = [field.name for field in dataclasses.fields(schedule)]
    fields = {name: getattr(schedule, name) for name in names}
    said = (f"{name}={value}" for name, value in fields.items() if value not in (None, (), "auto"))
    return " ".join(said)


def _best(
    options: Options, shape: Shape, schedules: Sequence[tw.Schedule], operands: Operands
) -> tuple[Timed, str]:
    """The final timing of default and leaders, and the name of the fastest in it."""
    import tilewright as tw

    spec = kernels.spec(shape)
    with machine.every_core():
        ready = tw.compile_many([(spec, s, options.target) for s in (None, *schedules)])
    names = [DEFAULT, *map(_label, schedules)]
    calls = [kernels.call(k, shape, operands, n) for n, k in zip(names, ready, strict=True)]
    for call in calls:
        operands.check(call)
    default, *others = calls
    # In portions, each with its own measured peak.
    speed: dict[str, float] = {}
    for start in range(0, len(others), AT_ONCE):
        portion = others[start : start + AT_ONCE]
        timed = measure([peak.peak(options.target), *portion], LOOK)
        speed |= {call.name: timed.ratio(call.name, peak.NAME) for call in portion}
    leaders: list[Call] = sorted(others, key=lambda call: -speed[call.name])[:FINALISTS]
    timed = measure([default, *leaders], options.effort)
    names = [call.name for call in timed.calls]
    return timed, max(names, key=timed.gflops)
