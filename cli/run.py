"""``tilewright run``: C that a person edited, checked and timed beside what is generated."""

from __future__ import annotations

from pathlib import Path

import click

import tilewright as tw
from tilewright.errors import SpecError

from .screen import working
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
@click.option("--cases", type=click.IntRange(1), default=3, show_default=True)
def command(wanted: Wanted, source: Path, cases: int) -> None:
    """Compile the C of a kernel that was edited, check it, and time it beside the generated one.

    SIZES is MxNxK, or ROWSxCOLS of a transposition. Where the file of --source is missing, the
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
        click.echo(
            f"{kernel.edit(source)}: {kernel.name}, as generated. Edit it, and run this again."
        )
        return
    with working(f"compiling {source}"):
        kernel = tw.compile(*asked, source=source)
    checked = kernel.verify(cases)
    click.echo(f"{kernel.name}: right in {checked.cases} cases")
    if kernel.emulated:
        click.echo(kernel.diff() or "nothing was changed")
        click.echo(f"not timed: {kernel.target} runs here through {kernel.emulated}")
    else:
        click.echo(kernel.diff(measure=True))
