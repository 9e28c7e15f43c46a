"""``tilewright peak``: what one core can do at most, here or by a program for elsewhere."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

import tilewright as tw

from .screen import console, json_option, show_json, table


@click.command("peak")
@click.option("--target", default="host", show_default=True, help="As `tilewright targets` says.")
@click.option(
    "--type", "types", default="f32", show_default=True, help="Of A and B, or of each: u8,s8."
)
@click.option("--emit", is_flag=True, help="Write the C of a program that measures it elsewhere.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The program's file (name.c), with --emit; default: standard output.",
)
@json_option
def command(target: str, types: str, emit: bool, output: Path | None, as_json: bool) -> None:
    """Measure the multiply-adds of one core: their throughput and their latency.

    With --emit nothing is measured here: the C of the same loops is written, with the command that
    builds it into a static program, for boards without Python.
    """
    names = types.split(",")
    given = names[0] if len(names) == 1 else tuple(names)
    if emit:
        _emit(target, given, output, as_json)
        return
    if output is not None:
        raise click.UsageError("-o is for --emit.")
    found = tw.peak(target, given)
    if as_json:
        show_json(asdict(found))
        return
    numbers = ("chains", "GFLOPS", "ns", "cycles")
    shown = table(
        f"{found.target}, {found.type}: {found.gflops:.1f} GFLOPS at about {found.clock:.2f} GHz",
        *("multiply-add", "vector", *numbers),
        numbers=numbers,
    )
    for form in found.forms:
        shown.add_row(
            form.mnemonic,
            form.vector,
            str(form.chains),
            f"{form.gflops:.1f}",
            f"{form.destination:.2f}",
            f"{form.destination_cycles:.1f}",
        )
    console().print(shown)


def _emit(target: str, given: str | tuple[str, ...], output: Path | None, as_json: bool) -> None:
    """Write the program."""
    from tilewright.runtime.bench.peak_program import peak_program

    text = peak_program(target, given, file="peak.c" if output is None else output.name)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    if as_json:
        show_json({"text": text} if output is None else {"file": str(output)})
    else:
        click.echo(text if output is None else str(output), nl=output is not None)
