"""``tilewright calibrate``: measure this machine's core for the cost model, and show it."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

import tilewright as tw
from tilewright.isa.machine import Core

from .screen import console, json_option, show_json, size, stages, table

#: What is shown of vectors of each width, and what of a core as a whole.
_RATES = ("fma_units", "loads", "stores", "shuffles")
_SHARES = ("spread", "shared")
_WHOLE = (
    "issue",
    "overlap",
    "strain",
    "idle",
    "hidden",
    "late",
    "beside",
    "crossing",
    "contention",
    "memory",
    "worth",
)


@click.command("calibrate")
@click.option("--seconds", type=click.FloatRange(5), default=30, show_default=True, help="At most.")
@click.option(
    "--export",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="NAME.json",
    help="Write the core's file too, as targets/cores/ has them.",
)
@json_option
def command(seconds: float, path: Path | None, as_json: bool) -> None:
    """Measure what the cost model asks of this machine's core, and keep it.

    "host" chooses by it from then on. A disturbed machine is an error, which changes nothing.
    """
    if path is not None and path.exists():
        raise click.UsageError(f"{path} exists: a calibration replaces no file.")
    with stages() as say:
        found = tw.calibrate(seconds, say=say)
    if path is not None:
        found.export(path)
    if as_json:
        show_json({"kept": str(found.path), "spread": found.spread, "core": found.core.raw()})
        return
    screen = console()
    for target, core in found.core.cores.items():
        screen.print(_rates(f"{found.core.title}, {target}: in a cycle", core))
        screen.print(_whole(core))
        if core.speeds:
            screen.print(_speeds(core))
    for target, (now, before) in found.errors.items():
        screen.print(
            f"{target}: estimates stray from {before:.1%} with the target's own numbers to "
            f"{now:.1%} with these."
        )
    if found.left_out:
        screen.print(f"No time was left for {', '.join(found.left_out)}: try more --seconds.")
    screen.print(f"Kept in {found.path}; the multiply-adds' rounds stray {found.spread:.1%}.")
    if path is not None:
        screen.print(f"Exported to {path}.")


def _rates(title: str, core: Core) -> Table:
    shown = table(title, "bytes of a vector", *_RATES, *_SHARES, numbers=(*_RATES, *_SHARES))
    for nbytes in (*(width.bytes for width in core.widths), None):
        at = core if nbytes is None else core.at(nbytes)
        cells = (f"{getattr(at, name):.3g}" for name in (*_RATES, *_SHARES))
        shown.add_row("widest" if nbytes is None else str(nbytes), *cells)
    return shown


def _whole(core: Core) -> Table:
    shown = table("a tile, and memory", *_WHOLE, *(f"L{n + 1}" for n in range(len(core.caches))))
    caches = (f"{size(each.size)}, {each.rate:g} B" for each in core.caches)
    shown.add_row(*(f"{getattr(core, name):.6g}" for name in _WHOLE), *caches)
    return shown


def _speeds(core: Core) -> Table:
    numbers = ("bytes of a vector", "cycles", "latency")
    shown = table("multiply-adds of other speeds", "instruction", *numbers, numbers=numbers)
    for speed in core.speeds:
        figures = (f"{number:.3g}" for number in (speed.cycles, speed.latency))
        shown.add_row(speed.mnemonic, str(speed.bytes), *figures)
    return shown
