"""``tilewright bench`` and ``peak``: measure how fast kernels run here, and a core's peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
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
@click.option("--cold", is_flag=True, help="Time calls on data in memory, not in the caches.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=0.2,
    show_default=True,
    help="Seconds of timing for each kernel.",
)
@json_option
def command(wanted: Wanted, cold: bool, seconds: float, as_json: bool) -> None:
    """Check kernels, then time them in a C loop.

    SIZES is MxNxK, or `transpose ROWSxCOLS`. A size that is a name is 64 here.
    """
    requests = [(spec, wanted.asked, wanted.target) for spec in wanted.specs]
    with working(f"compiling {len(requests)} kernels"):
        kernels = tw.compile_many(requests)
    numbers = ("median", "best", "spread", "rate", "of peak", "max error", "allowed")
    data = "memory" if cold else "cache"
    shown = table(
        f"target {kernels[0].target}, {_how(kernels, wanted)}, data in {data}",
        *("product", *numbers),
        numbers=numbers,
    )
    found = []
    for kernel in progress(kernels, "timing"):
        checked = kernel.verify()
        timing = kernel.bench(cold=cold, seconds=seconds)
        found.append(_data(kernel, timing, checked))
        shown.add_row(
            spec_text(kernel.spec),
            duration(timing.median),
            duration(timing.best),
            percent(timing.spread),
            rate(kernel, timing),
            percent(timing.of_peak),
            f"{checked.max_error:.2g}",
            f"{checked.bound:.2g}",
        )
    if as_json:
        show_json(found)
    else:
        console().print(shown)


def _data(kernel: tw.Kernel, timing: tw.Timing, checked: tw.Verification) -> dict[str, Any]:
    """Return a kernel's results for ``--json``: times of a call, GFLOPS, and errors."""
    chosen = {"name": kernel.name, "spec": repr(kernel.spec), "schedule": asdict(kernel.schedule)}
    return {
        **chosen,
        "target": kernel.target,
        "tuned": kernel.tuned is not None,
        **asdict(timing),
        "max_error": checked.max_error,
        "bound": checked.bound,
    }


def _how(kernels: Sequence[tw.Kernel], wanted: Wanted) -> str:
    """Return the requested schedule as text; if kernels are tuned, return how many of them are."""
    tuned = sum(kernel.tuned is not None for kernel in kernels)
    if not tuned:
        return schedule_text(wanted.schedule)
    return "tuned" if tuned == len(kernels) else f"{tuned} of {len(kernels)} tuned"


# --- the peak of a core ------------------------------------------------------------------------


@click.command("peak")
@click.option(
    "--target", default="host", show_default=True, help="A name that `tilewright targets` lists."
)
@click.option(
    "--type",
    "types",
    default="f32",
    show_default=True,
    help="Type of A and B, or one for each: u8,s8.",
)
@click.option("--emit", is_flag=True, help="Write a C program that measures the peak elsewhere.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The program's file (name.c), with --emit; default: standard output.",
)
@json_option
def peak(target: str, types: str, emit: bool, output: Path | None, as_json: bool) -> None:
    """Measure the throughput and latency of one core's multiply-adds.

    With --emit nothing is measured here. Instead the C of the same loops is written, for boards
    without Python. A comment in it has the command that compiles it into a static program.
    """
    names = types.split(",")
    given = names[0] if len(names) == 1 else tuple(names)
    if emit:
        _emit(target, given, output, as_json)
        return
    if output is not None:
        raise click.UsageError("-o is for --emit.")
    found = tw.peak(target, given)
    if as_json:
        show_json(asdict(found))
        return
    numbers = ("chains", "GFLOPS", "ns", "cycles")
    shown = table(
        f"{found.target}, {found.type}: {found.gflops:.1f} GFLOPS at about {found.clock:.2f} GHz",
        *("multiply-add", "vector", *numbers),
        numbers=numbers,
    )
    for form in found.forms:
        shown.add_row(
            form.mnemonic,
            form.vector,
            str(form.chains),
            f"{form.gflops:.1f}",
            f"{form.destination:.2f}",
            f"{form.destination_cycles:.1f}",
        )
    console().print(shown)


def _emit(target: str, given: str | tuple[str, ...], output: Path | None, as_json: bool) -> None:
    """Write the C program that measures the peak on another machine."""
    from tilewright.runtime.bench.peak_program import peak_program

    text = peak_program(target, given, file="peak.c" if output is None else output.name)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    if as_json:
        show_json({"text": text} if output is None else {"file": str(output)})
    else:
        click.echo(text if output is None else str(output), nl=output is not None)
