"""``tilewright bench``: how fast kernels run here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

import tilewright as tw

from .measured import rate
from .screen import (
    console,
    duration,
    json_option,
    percent,
    progress,
    show_json,
    table,
    working,
)
from .words import Wanted, schedule_text, spec_text
from .words import wanted as takes_kernels


@click.command("bench")
@takes_kernels
@click.option("--cold", is_flag=True, help="On data that lies in memory, not in the caches.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=0.2,
    show_default=True,
    help="For each.",
)
@json_option
def command(wanted: Wanted, cold: bool, seconds: float, as_json: bool) -> None:
    """Check kernels, then time them in a C loop.

    SIZES is MxNxK, or `transpose ROWSxCOLS`; a size that is a name is 64 here.
    """
    requests = [(spec, wanted.asked, wanted.target) for spec in wanted.specs]
    with working(f"compiling {len(requests)} kernels"):
        kernels = tw.compile_many(requests)
    numbers = ("median", "best", "spread", "rate", "of peak", "max error")
    data = "memory" if cold else "cache"
    shown = table(
        f"{kernels[0].target}, {_how(kernels, wanted)}, data in {data}",
        *("product", *numbers),
        numbers=numbers,
    )
    found = []
    for kernel in progress(kernels, "timing"):
        checked = kernel.verify()
        timing = kernel.bench(cold=cold, seconds=seconds)
        found.append(_data(kernel, timing, checked.max_error))
        shown.add_row(
            spec_text(kernel.spec),
            duration(timing.median),
            duration(timing.best),
            percent(timing.spread),
            rate(kernel, timing),
            percent(timing.of_peak),
            f"{checked.max_error:.2g}",
        )
    if as_json:
        show_json(found)
    else:
        console().print(shown)


def _data(kernel: tw.Kernel, timing: tw.Timing, error: float) -> dict[str, Any]:
    """What was found of a kernel: seconds a call, GFLOPS, the share of the peak."""
    chosen = {"name": kernel.name, "spec": repr(kernel.spec), "schedule": asdict(kernel.schedule)}
    return {
        **chosen,
        "target": kernel.target,
        "tuned": kernel.tuned is not None,
        **asdict(timing),
        "max_error": error,
    }


def _how(kernels: Sequence[tw.Kernel], wanted: Wanted) -> str:
    """What was asked for, or who chose."""
    tuned = sum(kernel.tuned is not None for kernel in kernels)
    if not tuned:
        return schedule_text(wanted.schedule)
    return "tuned" if tuned == len(kernels) else f"{tuned} of {len(kernels)} tuned"
