"""``tilewright sweep``: compile and run random products, and compare them with numpy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.table import Table

from tilewright.runtime.fuzz.axes import title
from tilewright.runtime.fuzz.drawing import EVERY, AnyCase
from tilewright.runtime.fuzz.sweep import Outcome, Tally, Verdict, sweep
from tilewright.runtime.machine.host import resolve

from .screen import console, json_option, progress, show_json, table


@click.command("sweep")
@click.option(
    "--cases", type=click.IntRange(1), default=200, show_default=True, help="Number of cases."
)
@click.option(
    "--target", default="host", show_default=True, help="A name that `tilewright targets` lists."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random cases.")
@click.option("--first", type=click.IntRange(0), default=0, help="Number of the first case.")
@click.option(
    "--having",
    type=(str, str),
    multiple=True,
    metavar="AXIS LEVEL",
    help="Only cases with this level of this axis; the printed table lists both.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    show_default=True,
    help="Number of processes.",
)
@click.option(
    "--optimize",
    type=click.Choice(["2", "1", "g", "0"]),
    help="-O level of the C compiler in place of the usual one; g compiles twice as fast.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    cases: int,
    target: str,
    seed: int,
    first: int,
    having: tuple[tuple[str, str], ...],
    jobs: int,
    optimize: str | None,
    as_json: bool,
) -> None:
    """Compile, run and check random kernels.

    A case that is refused is a failure too. For each failure, the Python that repeats it is shown.
    The same seed makes the same cases on every target.
    """
    name = resolve(target).name
    tally, faults = Tally(), list[tuple[AnyCase, Outcome]]()
    flags = [] if optimize is None else [f"-O{optimize}"]
    found = sweep(name, cases, seed, first=first, having=dict(having), jobs=jobs, flags=flags)
    for case, outcome in progress(found, f"{name}, seed {seed}", total=cases):
        tally.add(case, outcome)
        if outcome.verdict != "passed":
            faults.append((case, outcome))
    if as_json:
        show_json(_data(name, seed, tally, faults))
        context.exit(1 if faults else 0)
    screen = console()
    screen.print(coverage(tally, f"{name}, seed {seed}: how often each level occurred"))
    _show(faults, name)
    passed, failed, refused = (tally.verdicts[v] for v in ("passed", "failed", "refused"))
    screen.print(f"{name}: {passed} passed, {failed} failed, {refused} refused")
    if faults:
        context.exit(1)


def _data(
    target: str, seed: int, tally: Tally, faults: Sequence[tuple[AnyCase, Outcome]]
) -> dict[str, Any]:
    """Return the results for ``--json``.

    They are the number of cases with each outcome, and the failures with Python code that repeats
    them.
    """
    return {
        "target": target,
        "seed": seed,
        **{verdict: tally.verdicts[verdict] for verdict in ("passed", "failed", "refused")},
        "faults": [
            {
                "case": case.index,
                "verdict": outcome.verdict,
                "reason": outcome.reason,
                "python": case.python(target),
            }
            for case, outcome in faults
        ],
    }


def coverage(tally: Tally, heading: str) -> Table:
    """Return a table with the number of cases, and of failures, for each level of each axis.

    An axis is a property of the random cases, for example ``m``. Its levels are the values tried.
    """
    shown = table(heading, "axis", "cases by level")
    for axis, levels in EVERY.items():
        counted = tally.levels.get(axis, {})
        parts = []
        for level in dict.fromkeys(map(title, levels)):
            verdicts: Mapping[Verdict, int] = counted.get(level, {})
            wrong = sum(n for verdict, n in verdicts.items() if verdict != "passed")
            text = f"{level}: {sum(verdicts.values())}"
            parts.append(f"{text} [red]({wrong} wrong)[/red]" if wrong else text)
        shown.add_row(axis, ", ".join(parts))
    return shown


def _show(faults: Sequence[tuple[AnyCase, Outcome]], target: str) -> None:
    screen = console()
    for case, outcome in faults:
        screen.print(f"--- case {case.index} {outcome.verdict}")
        screen.print(outcome.reason, markup=False, soft_wrap=True)
        screen.print(case.python(target), markup=False, soft_wrap=True)
