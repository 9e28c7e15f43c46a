"""``tilewright warm``: the common kernels of ``tw.matmul``, compiled ahead."""

from __future__ import annotations

import time

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from tilewright.runtime.store.patience import silence
from tilewright.spec.types import INPUTS

from .screen import duration, json_option, progress_console, show_json


@click.command("warm")
@click.option(
    "--type",
    "types",
    type=click.Choice(INPUTS),
    multiple=True,
    default=("f32",),
    show_default="f32",
    help="A's and B's; may be repeated.",
)
@click.option("--target", default="host", show_default=True, help="As in `tilewright targets`.")
@json_option
def command(types: tuple[str, ...], target: str, as_json: bool) -> None:
    """Compile the kernels that `tw.matmul(a, b)` and `tw.matmul(x, w.T)` use most.

    One kernel serves a class of sizes: these are of all sizes, from one row to large matrices, with
    rows contiguous. Kernels with an epilogue, with alpha and beta, of stacks and of other layouts
    are compiled at their first use. Kernels are kept in the cache: see `tilewright cache list`.
    """
    from tilewright.runtime.call import dispatch
    from tilewright.runtime.machine.host import resolve

    name = resolve(target).name
    dispatch.dispatcher()
    found = [{"type": each, "target": name, **_warmed(each, target)} for each in types]
    if as_json:
        show_json(found)
        return
    for one in found:
        took = duration(one["seconds"])
        click.echo(f"{one['type']} on {name}: {one['kernels']} kernels are in the cache, in {took}")


def _warmed(type_: str, target: str) -> dict[str, float]:
    """How many kernels there are of a type, and the seconds that they took."""
    from tilewright.runtime.matmul.warm import warm

    begun, count = time.monotonic(), 0
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with silence(), Progress(*columns, console=progress_console(), transient=True) as bar:
        task = bar.add_task(f"compiling for {type_}", total=None)
        for done, count in warm(type_, target):
            bar.update(task, completed=done, total=count)
    return {"kernels": count, "seconds": time.monotonic() - begun}
