"""``tilewright tune``: find the best schedules for this CPU by measuring.

The results are stored, and can be exported and merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tilewright.errors import SpecError, TilewrightError, install
from tilewright.runtime.store.patience import silence
from tilewright.runtime.tuned import MEASURED, Database, Winner
from tilewright.spec.gemm import Gemm
from tilewright.spec.network.value import Network
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Spec

from .measured import speed
from .screen import console, json_option, progress_console, show_json, table
from .words import schedule_text, sizes_text, spec_text, wanted_specs

if TYPE_CHECKING:
    from tilewright.tuning.tune import Tuning

#: Exit status if the user interrupts the command: 128 + SIGINT, as in a shell.
_INTERRUPTED = 130
_PATH = click.Path(path_type=Path, dir_okay=False)
_GIVEN = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command("tune")
@wanted_specs
@click.option(
    "--file",
    "listed",
    type=_GIVEN,
    help="File of specs, one on each line: MxNxK, or as Python prints it; # begins a comment.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=60,
    show_default=True,
    help="Seconds of tuning for each spec.",
)
@click.option(
    "--search",
    type=click.Choice(["optuna", "ranked"]),
    default="optuna",
    show_default=True,
    help="optuna: learn from the measurements; ranked: follow the cost model's order.",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Most threads of a schedule.",
)
@click.option("--again", is_flag=True, help="Tune specs that have a stored winner too.")
@click.option("--report", type=_PATH, help="Write the stored results of the specs as HTML.")
@click.option("--export", "exported", type=_PATH, help="Write all stored results as JSON lines.")
@click.option(
    "--forget",
    is_flag=True,
    help="Remove the stored results of these specs for this CPU; without specs, all results.",
)
@click.option(
    "--merge", "merged", type=_GIVEN, help="Add the results in a file that --export wrote."
)
@json_option
def command(
    specs: tuple[Spec, ...],
    read: Callable[[str], Spec],
    target: str,
    listed: Path | None,
    seconds: float,
    search: str,
    threads: int,
    again: bool,
    report: Path | None,
    exported: Path | None,
    merged: Path | None,
    forget: bool,
    as_json: bool,
) -> None:
    """Find the fastest schedules by measuring.

    SIZES is MxNxK. A network is given by --spec or --file, as Python prints it. From then on
    tw.compile takes the winner if no schedule is given. Each round of measurements is stored. After
    an interruption the same command continues; specs that have a winner are skipped. Results are in
    the user's data directory, or in TILEWRIGHT_DATA_DIR. Compiled kernels are elsewhere: in
    TILEWRIGHT_CACHE_DIR.
    """
    specs = (*specs, *(_listed(listed, read) if listed else ()))
    if forget:
        _forget(specs, target, as_json)
        return
    if not specs and merged is None and exported is None:
        missing = "'SIZES...', --spec, --file, --export, --merge or --forget"
        raise click.UsageError(f"Missing argument {missing}.")
    if report is not None and find_spec("matplotlib") is None:
        raise click.UsageError(f"--report needs matplotlib: {install('tune')}")
    database = Database()
    if merged is not None:
        click.echo(_merge(database, merged), err=as_json)
    options = {"target": target, "seconds": seconds, "search": search, "threads": threads}
    tunings = [_tuning(spec, database, options) for spec in specs]
    try:
        _tune(tunings, again)
    except KeyboardInterrupt:
        click.echo("interrupted: all rounds before are stored; the same command goes on", err=True)
        raise click.exceptions.Exit(_INTERRUPTED) from None
    if as_json:
        show_json([_data(database, tuning) for tuning in tunings])
    elif tunings:
        _show(database, tunings)
    if report is not None:
        from .report import write

        write(report, database, [(tuning.spec, tuning.subject) for tuning in tunings])
        click.echo(f"{report}: {_count(len(tunings), 'spec')}", err=as_json)
    if exported is not None:
        lines = list(database.export())
        exported.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        click.echo(f"{exported}: {_count(len(lines), 'line')}", err=as_json)


def _forget(specs: Sequence[Spec], target: str, as_json: bool) -> None:
    """Remove the stored results of ``specs``, or all results if there are no specs.

    Print how many results were removed.
    """
    from tilewright.runtime.driver import tuning_subject
    from tilewright.runtime.machine.host import resolve

    database = Database()
    name = resolve(target).name if specs else ""
    subjects = [tuning_subject(spec, name) for spec in specs]
    results, winners = database.forget(subjects if specs else None)
    if as_json:
        show_json({"file": str(database.path), "results": results, "winners": winners})
    else:
        said = f"{_count(results, 'result')} and {_count(winners, 'winner')}"
        click.echo(f"{database.path}: {said} removed")


def _listed(path: Path, read: Callable[[str], Spec]) -> list[Spec]:
    """Return the specs in a file, one on each line. ``read`` converts a line to a spec."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        try:
            found.append(read(said))
        except (ValueError, TilewrightError) as error:
            raise SpecError(
                f"a line of {path.name} is no spec",
                got=f"line {number}: {said}",
                expected="64x48x64, or Gemm(64, 48, 64)",
                hint=str(error).partition("\n")[0],
            ) from None
    return found


def _merge(database: Database, path: Path) -> str:
    results, winners = database.merge(path.read_text(encoding="utf-8").splitlines())
    taken = f"{_count(results, 'result')} and {_count(winners, 'winner')}"
    return f"{path}: {taken} taken into {database.path}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _tuning(spec: Spec, database: Database, options: dict[str, Any]) -> Tuning:
    from tilewright.tuning.tune import Tuning

    if not isinstance(spec, Gemm | Network):
        raise SpecError("what is tuned is a Gemm or a Network", got=spec)
    return Tuning(spec, database=database, **options)


def _tune(tunings: Sequence[Tuning], again: bool) -> None:
    """Run the tunings, with a progress bar for each.

    Specs that have a stored winner are skipped unless ``again`` is True.
    """
    columns = (
        TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[said]}"),
    )  # fmt: skip
    left = [t for t in tunings if again or t.database.winner(t.subject) is None]
    with silence(), Progress(*columns, console=progress_console(), transient=True) as bar:
        total = bar.add_task("all", total=sum(t.seconds for t in left), said="")
        for done, tuning in enumerate(left):
            before = sum(t.seconds for t in left[:done])
            task = bar.add_task(sizes_text(tuning.spec), total=tuning.seconds, said="compiling")
            for step in tuning.steps():
                said = (
                    f"{step.phase}: {step.measured} of some {step.expected} variants, "
                    f"{step.best:.2f} times the default"
                )
                bar.update(task, completed=min(step.spent, tuning.seconds), said=said)
                bar.update(total, completed=before + min(step.spent, tuning.seconds))
            bar.remove_task(task)


def _show(database: Database, tunings: Sequence[Tuning]) -> None:
    from tilewright.tuning.race import rankings
    from tilewright.tuning.workbench import moved

    numbers = ("rate", "times default speed", "schedules timed", "failed")
    title = f"target {tunings[0].target.name}, CPU {tunings[0].subject.cpu}"
    shown = table(title, "spec", *numbers, "tuned", "schedule", numbers=numbers)
    for tuning in tunings:
        winner = database.winner(tuning.subject)
        if winner is None:  # the database was damaged; it was renamed, with a message
            continue
        results = database.results(tuning.subject)
        failed = sum(result.status != MEASURED for result in results)
        rate = f"{winner.gflops:.1f} GFLOPS"
        if not winner.gflops:
            ranked = rankings(results, Schedule(), moved(tuning.spec))
            rate = next((speed(o.hot) for o in ranked if o.schedule == winner.schedule), "-")
        shown.add_row(
            spec_text(tuning.spec), rate, gain(winner),
            str(len(results) - failed), str(failed), winner.day, schedule_text(winner.schedule),
        )  # fmt: skip
    console().print(shown)
    click.echo(f"stored in {database.path}; the same command with --forget removes it")


def _data(database: Database, tuning: Tuning) -> dict[str, Any]:
    """Return a spec's winner for ``--json``: its schedule, GFLOPS, and ratio to the default."""
    found: dict[str, Any] = {"spec": repr(tuning.spec), "target": tuning.target.name}
    winner = database.winner(tuning.subject)
    if winner is None:
        return {**found, "winner": None}
    numbers = {name: getattr(winner, name) for name in ("gflops", "ratio", "uncertainty", "day")}
    return {**found, "winner": {"schedule": asdict(winner.schedule), **numbers}}


def gain(winner: Winner) -> str:
    """Return the winner's speed divided by the default's as text, with the uncertainty."""
    return f"{winner.ratio:.3f} +- {winner.uncertainty:.3f}"
