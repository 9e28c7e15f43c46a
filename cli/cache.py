"""``tilewright cache``: what was compiled before."""

from __future__ import annotations

import click

from .screen import console, size, table, working


@click.group("cache")
def command() -> None:
    """Compiled kernels on disk: list them, check them, remove them."""


@command.command("list")
def list_() -> None:
    """Show every library, the kernels it holds, and its size."""
    from tilewright.runtime.store import cache, folders

    with working("reading the cache"):
        entries = cache.list_entries()
    numbers = ("kernels", "size")
    root = folders.cache_directory()
    libraries = [entry for entry in entries if "entry" not in entry.manifest]
    shown = table(str(root), "library", "target", "runs by", "compiler", *numbers, numbers=numbers)
    total = 0
    for entry in libraries:
        manifest = entry.manifest
        used = sum(file["size"] for file in manifest["files"].values())
        total += used
        shown.add_row(
            entry.key[:16],
            str(manifest.get("target", f"({entry.library.stem})")),
            str(manifest.get("means", "native")),
            str(manifest.get("compiler", "")),
            str(len(specs)) if isinstance(specs := manifest.get("spec"), list) else "",
            size(used),
        )
    if libraries:
        console().print(shown)
    count = f"{len(libraries)} {'library' if len(libraries) == 1 else 'libraries'}"
    click.echo(f"{root}: {count}, {size(total)}")


@command.command("clear")
def clear() -> None:
    """Remove everything; libraries that a process has loaded stay usable to it."""
    from tilewright.runtime.store import cache, folders

    removed = cache.clear()
    click.echo(f"{folders.cache_directory()}: {removed} {_entries(removed)} removed")


@command.command("verify")
def verify() -> None:
    """Read every file and compare its digest; status 1 when something was altered."""
    from tilewright.runtime.store import cache, folders

    with working("reading every file"):
        found = list(cache.verify_entries())
    bad = [(key, problem) for key, problem in found if problem is not None]
    for key, problem in bad:
        click.echo(f"{key[:16]}: {problem}", err=True)
    click.echo(f"{folders.cache_directory()}: {len(found)} {_entries(len(found))}, {len(bad)} bad")
    if bad:
        raise click.exceptions.Exit(1)


def _entries(n: int) -> str:
    return "entry" if n == 1 else "entries"
