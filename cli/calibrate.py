"""``tilewright calibrate``: measure this machine's core for the cost model."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

import tilewright as tw
from tilewright.isa.machine import Core

from .screen import console, json_option, show_json, size, stages, table

#: Fields of ``Core`` that are shown for each vector width (two groups), and fields that are shown
#: once for the whole core.
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
    "region",
)


@click.command("calibrate")
@click.option(
    "--seconds",
    type=click.FloatRange(5),
    default=30,
    show_default=True,
    help="Time limit in seconds.",
)
@click.option(
    "--export",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="NAME.json",
    help="Also write a file like those in targets/cores/.",
)
@click.option("--forget", is_flag=True, help="Remove the stored measurements of this machine.")
@json_option
def command(seconds: float, path: Path | None, forget: bool, as_json: bool) -> None:
    """Measure this CPU for the cost model.

    From then on the target "host" uses them. If the machine is too busy to measure, that is an
    error and nothing is changed. The numbers are in the user's data directory, or in
    TILEWRIGHT_DATA_DIR. Compiled kernels are elsewhere: in TILEWRIGHT_CACHE_DIR.
    """
    if forget:
        _forget(as_json)
        return
    if path is not None and path.exists():
        raise click.UsageError(f"{path} exists: a calibration replaces no file.")
    with stages() as say:
        found = tw.calibrate(seconds, say=say)
    if path is not None:
        found.export(path)
    if as_json:
        said = {"kept": str(found.path), "spread": found.spread, "left_out": found.left_out}
        show_json({**said, "core": found.core.raw()})
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
        screen.print(
            f'Not measured, for want of time: {", ".join(found.left_out)}. It is not what "host" '
            f"is here; tilewright calibrate --seconds {2 * seconds:g} measures it too."
        )
    screen.print(f"Kept in {found.path}; the multiply-adds' rounds stray {found.spread:.1%}.")
    screen.print("tilewright calibrate --forget removes it.")
    if path is not None:
        screen.print(f"Exported to {path}.")


def _rates(title: str, core: Core) -> Table:
    shown = table(title, "bytes of a vector", *_RATES, *_SHARES, numbers=(*_RATES, *_SHARES))
    for nbytes in (*(width.bytes for width in core.widths), None):
        at = core if nbytes is None else core.at(nbytes)
        cells = (f"{getattr(at, name):.3g}" for name in (*_RATES, *_SHARES))
        shown.add_row("widest" if nbytes is None else str(nbytes), *cells)
    return shown


def _forget(as_json: bool) -> None:
    """Remove this processor's calibration, and print whether there was one."""
    from tilewright.runtime.machine import calibrations, host

    path = calibrations.path_of(host.cpu().processor)
    there = calibrations.forget(path)
    if as_json:
        show_json({"forgotten": there, "file": str(path)})
    else:
        click.echo(f"{path}: {'removed' if there else 'there is no calibration to remove'}")


def _whole(core: Core) -> Table:
    shown = table("a tile, and memory", "number", "value", numbers=("value",))
    for name in _WHOLE:
        shown.add_row(name, f"{getattr(core, name):.6g}")
    for level, each in enumerate(core.caches, 1):
        shown.add_row(f"L{level}", f"{size(each.size)}, {each.rate:g} B")
    return shown


def _speeds(core: Core) -> Table:
    numbers = ("bytes of a vector", "cycles", "latency")
    shown = table("multiply-adds of other speeds", "instruction", *numbers, numbers=numbers)
    for speed in core.speeds:
        figures = (f"{number:.3g}" for number in (speed.cycles, speed.latency))
        shown.add_row(speed.mnemonic, str(speed.bytes), *figures)
    return shown
