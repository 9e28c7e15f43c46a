"""``tilewright cache``: what was compiled before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .screen import console, json_option, show_json, size, table, working

if TYPE_CHECKING:
    from tilewright.runtime.store.cache import Entry


@click.group("cache")
def command() -> None:
    """Compiled kernels on disk: list them, check them, remove them.

    They are in the user's cache directory, or where TILEWRIGHT_CACHE_DIR says. What `tune` and
    `calibrate` store is no part of it: TILEWRIGHT_DATA_DIR says where that is.
    """


@command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """Show every library, the kernels it holds by name, and its size."""
    from tilewright.runtime.store import cache, folders

    with working("reading the cache"):
        entries = cache.list_entries()
    root = folders.cache_directory()
    found = [_data(entry) for entry in entries if "entry" not in entry.manifest]
    if as_json:
        show_json({"folder": str(root), "libraries": found})
        return
    columns = ("holds", "target", "runs by", "compiler", "size")
    shown = table(str(root), *columns, numbers=("size",))
    for one in found:
        names = one["kernels"] or [one["library"]]
        row = (names[0], one["target"], one["runs_by"], one["compiler"], size(one["bytes"]))
        shown.add_row(*row)
        for name in names[1:]:
            shown.add_row(name)
    if found:
        console().print(shown)
    count = f"{len(found)} {'library' if len(found) == 1 else 'libraries'}"
    click.echo(f"{root}: {count}, {size(sum(one['bytes'] for one in found))}")


def _data(entry: Entry) -> dict[str, Any]:
    """A library of the cache; one that holds no kernels has their names empty."""
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
    """Remove everything; libraries that a process has loaded stay usable to it."""
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
    """Read every file and compare its digest; status 1 when something was altered."""
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
