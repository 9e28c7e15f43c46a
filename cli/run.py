"""``tilewright run``: check edited C of a kernel, and time it next to the generated C."""

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
    help="The edited C file; if it does not exist, it is written first.",
)
@click.option(
    "--cases", type=click.IntRange(1), default=3, show_default=True, help="Calls that are checked."
)
@json_option
def command(wanted: Wanted, source: Path, cases: int, as_json: bool) -> None:
    """Compile C that was edited, check it, and time it next to the generated C.

    SIZES is MxNxK, or `transpose ROWSxCOLS`. If the file of --source is missing, the generated C is
    written there to be edited. Otherwise the file is compiled as generated C is, and its results
    are compared with numpy's. The changes are shown. If this CPU has the target, the times of both
    are shown too.
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
        click.echo(f"not timed: {kernel.target} is emulated here ({kernel.emulated})")
    else:
        click.echo(kernel.diff(measure=True))


def _data(kernel: tw.Kernel, generated: tw.Kernel, checked: tw.Verification) -> dict[str, Any]:
    """Return the results of an edited kernel for ``--json``.

    ``timing`` compares the times of the edited and the generated kernel. It is None if the target
    is emulated.
    """
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
