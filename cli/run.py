"""``tilewright run``: C that a person edited, checked and timed beside what is generated."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import tilewright as tw
from tilewright.errors import SpecError

from .screen import json_option, show_json, working
from .words import Wanted
from .words import wanted as takes_kernels


@click.command("run")
@takes_kernels
@click.option(
    "--source",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The edited C; written first where there is no such file.",
)
@click.option(
    "--cases", type=click.IntRange(1), default=3, show_default=True, help="Calls that are checked."
)
@json_option
def command(wanted: Wanted, source: Path, cases: int, as_json: bool) -> None:
    """Compile the C of a kernel that was edited, check it, and time it beside the generated one.

    SIZES is MxNxK, or `transpose ROWSxCOLS`. Where the file of --source is missing, the
    generated C is written there, to be edited. Otherwise it is compiled as the generated C is, its
    results are compared with numpy's, and what was changed is shown, with the time of both where
    this CPU has the target.
    """
    if len(wanted.specs) != 1:
        raise SpecError("an edited file is of one kernel", got=f"{len(wanted.specs)} specs")
    asked = wanted.specs[0], wanted.asked, wanted.target
    if not source.exists():
        with working("compiling what is generated"):
            kernel = tw.compile(*asked)
        path = kernel.edit(source)
        if as_json:
            show_json({"name": kernel.name, "written": str(path)})
        else:
            click.echo(f"{path}: {kernel.name}, as generated. Edit it, and run this again.")
        return
    with working(f"compiling {source}"):
        kernel = tw.compile(*asked, source=source)
    checked = kernel.verify(cases)
    if as_json:
        show_json(_data(kernel, tw.compile(*asked), checked))
        return
    click.echo(f"{kernel.name}: right in {checked.cases} cases")
    if kernel.emulated:
        click.echo(kernel.diff() or "nothing was changed")
        click.echo(f"not timed: {kernel.target} runs here through {kernel.emulated}")
    else:
        click.echo(kernel.diff(measure=True))


def _data(kernel: tw.Kernel, generated: tw.Kernel, checked: tw.Verification) -> dict[str, Any]:
    """What was found of an edited kernel: seconds a call of both, None where they are emulated."""
    from tilewright.runtime.bench.timing import compare

    timed = None if kernel.emulated else asdict(compare(generated, kernel))
    return {
        "name": kernel.name,
        "target": kernel.target,
        "emulated": kernel.emulated,
        "max_error": checked.max_error,
        "diff": kernel.diff(),
        "timing": timed,
    }
