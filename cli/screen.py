"""Output that all commands share: the console, tables, progress and JSON."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar, cast

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tilewright.runtime.store.patience import silence

#: Width of the output in characters if it is not a terminal. No line is so long that it is cut or
#: wrapped.
_WIDE = 10_000
Item = TypeVar("Item")


Command = TypeVar("Command", bound=Callable[..., Any])


def console() -> Console:
    """Return the console on standard output.

    It is as wide as the terminal. If the output is not a terminal, no line is cut or wrapped.
    """
    width = columns()
    if width is not None:
        return Console(highlight=False, width=width)
    return Console(highlight=False, width=_WIDE, file=cast("TextIO", _Unpadded(sys.stdout)))


class _Unpadded:
    """A stream that removes the spaces with which tables pad the ends of lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text that consists of whole lines."""
        return self._stream.write("\n".join(line.rstrip(" ") for line in text.split("\n")))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def columns() -> int | None:
    """Return the width of the terminal on standard output; None if it is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def json_option(command: Command) -> Command:
    """Add the flag ``--json`` to ``command``, which gets it as the argument ``as_json``."""
    option = click.option(
        "--json", "as_json", is_flag=True, help="Print what was found as JSON, for programs."
    )
    made: Command = option(command)
    return made


def show_json(found: Any) -> None:
    """Print ``found`` as a JSON document on standard output."""
    click.echo(json.dumps(found, indent=2))


def progress_console() -> Console:
    """Return the console that shows progress on standard error, if that is a terminal."""
    return Console(stderr=True, quiet=not sys.stderr.isatty())


def table(title: str, *columns: str, numbers: Iterable[str] = ()) -> Table:
    """Return an empty table. The columns in ``numbers`` are right-aligned."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    right = set(numbers)
    for column in columns:
        made.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=column in right or column == columns[0],
        )
    return made


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show a spinner with the name of the current work until the ``with`` block ends."""
    with silence(), progress_console().status(f"{what} ..."):
        yield


@contextmanager
def stages() -> Iterator[Callable[[str], None]]:
    """Show a spinner until the ``with`` block ends.

    The ``with`` statement gets a function that changes the name of the current work.
    """
    with silence(), progress_console().status("...") as status:
        yield lambda what: status.update(f"{what} ...")


def progress(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items, with a bar that shows how many of ``total`` are done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with silence(), Progress(*columns, console=progress_console(), transient=True) as bar:
        task = bar.add_task(what, total=len(items) if isinstance(items, Sequence) else total)
        for item in items:
            yield item
            bar.advance(task)


def percent(fraction: float | None) -> str:
    """Return a fraction of the peak, for example ``92 %``; a dash if the peak is unknown."""
    return "-" if fraction is None else f"{100 * fraction:.0f} %"


def duration(seconds: float) -> str:
    """Return a time with three digits in a suitable unit, for example ``1.23 us``."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def size(n: int) -> str:
    """Return a number of bytes in a suitable unit, for example ``20.0 KiB``."""
    if n < 1 << 10:
        return f"{n} B"
    for unit, shift in (("KiB", 10), ("MiB", 20)):
        if n < 1 << (shift + 10):
            return f"{n / (1 << shift):.1f} {unit}"
    return f"{n / (1 << 30):.1f} GiB"
