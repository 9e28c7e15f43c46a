"""``tilewright cache``: list, check and remove compiled kernels.

``tilewright warm`` compiles kernels before they are needed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from tilewright.runtime.store.patience import silence
from tilewright.spec.types import INPUTS

from .screen import (
    console,
    duration,
    json_option,
    progress_console,
    show_json,
    size,
    table,
    working,
)
from .words import ElementType

if TYPE_CHECKING:
    from rich.table import Table

    from tilewright.runtime.store.cache import Entry


@click.group("cache")
def command() -> None:
    """List, check or remove the compiled kernels on disk.

    They are in the user's cache directory, or in TILEWRIGHT_CACHE_DIR. Results of `tune` and
    `calibrate` are elsewhere: in the user's data directory, or in TILEWRIGHT_DATA_DIR.
    """


@command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """Show every library with its size and the names of its kernels."""
    from tilewright.runtime.store import cache, folders

    with working("reading the cache"):
        entries = cache.list_entries()
    root = folders.cache_directory()
    found = [_data(entry) for entry in entries if "entry" not in entry.manifest]
    if as_json:
        show_json({"folder": str(root), "libraries": found})
        return
    kernels = [one for one in found if one["kernels"]]
    if kernels:
        console().print(_table(kernels))
    if helpers := sum(one["bytes"] for one in found if not one["kernels"]):
        click.echo(f"libraries that all kernels share: {size(helpers)}")
    count = f"{len(found)} {'library' if len(found) == 1 else 'libraries'}"
    click.echo(f"{root}: {count}, {size(sum(one['bytes'] for one in found))}")


def _table(found: list[dict[str, Any]]) -> Table:
    """Return a table of libraries with kernels. Only emulated ones have an entry in "runs by"."""
    emulated = any(one["runs_by"] != "native" for one in found)
    columns = ("kernel", "target", *(("runs by",) if emulated else ()), "compiler", "size")
    shown = table("", *columns, numbers=("size",))
    for one in found:
        first, *others = one["kernels"]
        runs = one["runs_by"].replace("native", "")
        compiler = one["compiler"].partition(" (")[0]
        row = (one["target"], *((runs,) if emulated else ()), compiler, size(one["bytes"]))
        shown.add_row(first, *row)
        for name in others:
            shown.add_row(name)
    return shown


def _data(entry: Entry) -> dict[str, Any]:
    """Return facts about a library in the cache. ``kernels`` is empty if it has no kernels."""
    manifest = entry.manifest
    return {
        "key": entry.key,
        "library": entry.library.stem,
        "kernels": sorted(manifest.get("texts", ())),
        "target": str(manifest.get("target", "")),
        "runs_by": str(manifest.get("means", "native")),
        "compiler": str(manifest.get("compiler", "")),
        "bytes": sum(file["size"] for file in manifest["files"].values()),
    }


@command.command("clear")
@json_option
def clear(as_json: bool) -> None:
    """Remove everything. Processes can go on using libraries that they have loaded."""
    from tilewright.runtime.store import cache, folders

    removed = cache.clear()
    if as_json:
        show_json({"folder": str(folders.cache_directory()), "removed": removed})
        return
    click.echo(f"{folders.cache_directory()}: {removed} {_entries(removed)} removed")
    data = folders.data_directory()
    if data.exists():
        click.echo(f"{data}: what tune and calibrate stored stays; their --forget removes it")


@command.command("verify")
@json_option
def verify(as_json: bool) -> None:
    """Read every file and compare its digest. The status is 1 if a file was altered."""
    from tilewright.runtime.store import cache, folders

    with working("reading every file"):
        found = list(cache.verify_entries())
    bad = [(key, problem) for key, problem in found if problem is not None]
    root = folders.cache_directory()
    if as_json:
        show_json({"folder": str(root), "entries": len(found), "bad": dict(bad)})
    else:
        for key, problem in bad:
            click.echo(f"{key[:16]}: {problem}", err=True)
        click.echo(f"{root}: {len(found)} {_entries(len(found))}, {len(bad)} bad")
    if bad:
        raise click.exceptions.Exit(1)


def _entries(n: int) -> str:
    return "entry" if n == 1 else "entries"


# --- compiling in advance ----------------------------------------------------------------------


@click.command("warm")
@click.option(
    "--type",
    "types",
    type=ElementType(INPUTS),
    multiple=True,
    default=("f32",),
    show_default="f32",
    help="Type of A and B; may be repeated.",
)
@click.option(
    "--target", default="host", show_default=True, help="A name that `tilewright targets` lists."
)
@json_option
def warm(types: tuple[str, ...], target: str, as_json: bool) -> None:
    """Compile the commonest kernels in advance.

    They cover all sizes, from one row to large matrices, because one kernel serves a class of
    sizes. Rows must be contiguous. Kernels with an epilogue, with alpha and beta, for stacks and
    for other layouts are compiled when they are first used. `tilewright cache list` shows the
    kernels.
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


def _warmed(type_: str, target: str) -> dict[str, Any]:
    """Compile the kernels for an element type.

    Return their number, and the seconds that the compilation took.
    """
    from tilewright.runtime.matmul.warm import warm

    begun, count = time.monotonic(), 0
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with silence(), Progress(*columns, console=progress_console(), transient=True) as bar:
        task = bar.add_task(f"compiling for {type_}", total=None)
        for done, count in warm(type_, target):
            bar.update(task, completed=done, total=count)
    return {"kernels": count, "seconds": time.monotonic() - begun}
