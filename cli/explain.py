"""``tilewright explain``: the plan of a kernel, and why it is so."""

from __future__ import annotations

import click

from .words import Wanted
from .words import wanted as takes_kernels


@click.command("explain")
@takes_kernels
def command(wanted: Wanted) -> None:
    """Print the plan of a kernel: formulas, registers, the bound, and each decision's reason.

    SIZES is MxNxK, or ROWSxCOLS of a transposition. A size that is a name is known only at the
    call. Nothing is compiled.
    """
    from tilewright.generate import explain_plan, plan_for
    from tilewright.runtime.machine.host import resolve

    target = resolve(wanted.target)
    for spec in wanted.specs:
        click.echo(explain_plan(plan_for(spec, wanted.schedule, target)))
