"""``tilewright explain``: print the plan of a kernel with its reasons."""

from __future__ import annotations

from pathlib import Path

import click

import tilewright as tw
from tilewright.errors import SpecError

from .screen import columns, json_option, show_json
from .words import Wanted
from .words import wanted as takes_kernels


@click.command("explain")
@takes_kernels
@click.option(
    "--svg",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw one product: loops, tiles of the matrix C, registers and roofline.",
)
@click.option(
    "--measure",
    is_flag=True,
    help="Compile the kernel, and show its measured time beside the estimate.",
)
@json_option
def command(wanted: Wanted, svg: Path | None, measure: bool, as_json: bool) -> None:
    """Show how a kernel computes, and why.

    SIZES is MxNxK, or `transpose ROWSxCOLS`. A size that is a name is known only at the call; it is
    estimated as 64. Nothing is compiled, except with --measure. If no schedule is given, it is the
    one of the kernel that tw.compile makes: the stored winner of `tilewright tune`, or else the
    cost model's choice.
    """
    from tilewright.explain.text import WIDTH
    from tilewright.generate import draw_plan, explain_plan, plan_facts
    from tilewright.plan.routine import routine_of
    from tilewright.runtime.driver import planned

    plans = [planned(spec, wanted.asked, wanted.target) for spec in wanted.specs]
    if svg is not None and not (len(plans) == 1 and routine_of(plans[0]).drawn):
        raise SpecError("a picture is of one product", got=f"--svg, and {len(plans)} specs")
    if as_json and measure:
        raise click.UsageError("--json has no --measure: `tilewright bench --json` measures.")
    if as_json:
        show_json([plan_facts(plan) for plan in plans])
    for spec, plan in zip(wanted.specs, plans, strict=True):
        if measure:
            kernel = tw.compile(spec, wanted.asked, wanted.target)
            click.echo(kernel.explain(measure=True))
        elif not as_json:
            click.echo(explain_plan(plan, width=max(columns() or WIDTH, 60)))
        if svg is not None:
            svg.write_text(draw_plan(plan), encoding="utf-8")
