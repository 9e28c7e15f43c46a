"""The cost model's estimate of whole kernels beside their times: does it rank schedules rightly?

Schedules of each spec are drawn at random from those that ``tw.variants`` yields, some with other
tails. They are timed in turns, each beside a loop of multiply-adds, on data in cache; the figure is
Spearman's rank correlation of the times and the estimates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.progress import track
from rich.table import Table

from benchmarks.measure import machine
from benchmarks.measure.figures import Figure, Section
from benchmarks.measure.options import Options

if TYPE_CHECKING:
    import tilewright as tw

LEAST = 0.9
#: Schedules of each spec, those of them that have other tails, and the rounds that each is timed.
COUNT, TAILED, ROUNDS = 15, 3, 7


def specs() -> dict[str, tw.Gemm]:
    """Small, round, odd, long in K, thin, and beyond the caches; in four types."""
    import tilewright as tw

    return {
        "8x8x8": tw.Gemm(8, 8, 8, beta=1),
        "13x5x7": tw.Gemm(13, 5, 7, beta=1),
        "23x23x23": tw.Gemm(23, 23, 23, beta=1),
        "64x64x64": tw.Gemm(64, 64, 64, beta=1),
        "16x16x16 (16)": tw.Gemm(16, 16, 16, beta=1, batch=tw.Strided(16)),
        "48x40x64 F": tw.Gemm(48, 40, 64, order="F", beta=1),
        "6x16x256": tw.Gemm(6, 16, 256, beta=1),
        "1x256x256": tw.Gemm(1, 256, 256),
        "100x70x64": tw.Gemm(100, 70, 64),
        "37x130x91": tw.Gemm(37, 130, 91),
        "64x48x512": tw.Gemm(64, 48, 512, beta=1),
        "256x256x256": tw.Gemm(256, 256, 256, beta=1),
        "512x512x512": tw.Gemm(512, 512, 512),
        "64x1024x512": tw.Gemm(64, 1024, 512),
        "64x2048x2048": tw.Gemm(64, 2048, 2048),
        "32x32x32 f64": tw.Gemm(32, 32, 32, a="f64", b="f64", beta=1),
        "17x133x65 f64": tw.Gemm(17, 133, 65, a="f64", b="f64"),
        "64x64x64 bf16": tw.Gemm(64, 64, 64, a="bf16", b=tw.Packed("bf16")),
        "48x64x256 u8 x s8": tw.Gemm(48, 64, 256, a="u8", b=tw.Packed("s8")),
        "33x47x129 s8": tw.Gemm(33, 47, 129, a="s8", b=tw.Packed("s8")),
    }


def run(options: Options) -> Section:
    """Time schedules of every spec, and rank them both ways."""
    target = machine.targets()[0]
    wanted = {name: spec for name, spec in specs().items() if options.wants(name)}
    table = Table(title=f"Estimates, {target}", title_justify="left")
    for heading in ("product", "schedules", "slowest to fastest", "rank correlation", "estimate"):
        table.add_column(heading)
    rows: list[dict[str, Any]] = []
    for name, spec in track(wanted.items(), "estimate", console=options.console, transient=True):
        rng = np.random.default_rng([options.seed, *name.encode()])
        found = [*_measured(spec, target, rng)]
        times, guesses = (np.array([one[key] for one in found]) for key in ("cycles", "estimate"))
        correlation = rank_correlation(times, guesses)
        table.add_row(
            name, str(len(found)), f"{times.max() / times.min():.1f}", f"{correlation:.3f}",
            f"{np.exp(np.mean(np.log(guesses / times))):.2f}",
        )  # fmt: skip
        rows += [{"spec": name, "correlation": correlation, **one} for one in found]
    options.console.print(table)
    return Section("estimate", _figures(options, rows), tuple(rows))


def _figures(options: Options, rows: Sequence[dict[str, Any]]) -> tuple[Figure, ...]:
    if not rows:
        return ()
    within = {row["spec"]: row["correlation"] for row in rows}
    least = min(within, key=lambda name: within[name])
    times, guesses = (np.array([row[key] for row in rows]) for key in ("cycles", "estimate"))
    spread = np.std(np.log(guesses / times))
    options.console.print(
        f"least {within[least]:.3f}, {least}; estimates spread by {spread:.0%} around the times"
    )
    mean = float(np.mean([*within.values()]))
    return (
        Figure("rank correlation of estimates and times, mean of all products", mean, LEAST),
        Figure(
            "rank correlation of estimates and times, all schedules",
            rank_correlation(times, guesses),
            LEAST,
        ),
    )


def rank_correlation(
    one: np.ndarray[tuple[int], np.dtype[np.float64]],
    other: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> float:
    """Spearman's: the correlation of the ranks, of equal values their mean."""
    first, second = (
        np.array([np.mean(np.flatnonzero(np.sort(values) == each)) for each in values])
        for values in (one, other)
    )
    return float(np.corrcoef(first, second)[0, 1])


def _measured(spec: tw.Gemm, target: str, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Each schedule that compiles with its cycles, measured and estimated."""
    from tilewright.generate import plan_for
    from tilewright.plan.estimate.kernel import estimate
    from tilewright.runtime.machine.host import resolve
    from tilewright.tuning.workbench import Bench

    bench, schedules = Bench(spec, target), _drawn(spec, target, rng)
    with machine.every_core():
        failed = bench.build(schedules)
    ready = [schedule for schedule in schedules if failed[schedule] is None]
    for schedule in ready:
        bench.check(schedule)
    taken: dict[tw.Schedule, list[float]] = {schedule: [] for schedule in ready}
    for _ in range(ROUNDS):
        for place in rng.permutation(len(ready)):
            spent, at_peak = bench.hot(ready[place])
            taken[ready[place]].append(spent / at_peak)
    for schedule, ratios in taken.items():
        guess = estimate(plan_for(spec, schedule, resolve(target)), {})
        yield {
            "schedule": repr(schedule),
            "cycles": float(np.median(ratios)) * guess.least,
            "estimate": guess.cycles,
            "bound": guess.bound,
        }


def _drawn(spec: tw.Gemm, target: str, rng: np.random.Generator) -> list[tw.Schedule]:
    """Different schedules at random, the last of them with other tails than the model's."""
    import tilewright as tw
    from tilewright.generate import plan_for
    from tilewright.runtime.machine.host import resolve
    from tilewright.spec.schedule import TAILS

    yielded = [*tw.variants(spec, target, threads=1)]
    found: dict[tw.Schedule, None] = {}
    for place in rng.permutation(len(yielded)):
        schedule = yielded[place]
        if len(found) >= COUNT - TAILED:
            schedule = replace(schedule, tails=str(rng.choice(TAILS[1:])))
        try:
            plan_for(spec, schedule, resolve(target))
        except tw.TilewrightError:
            continue
        found[schedule] = None
        if len(found) == COUNT:
            break
    return [*found]
