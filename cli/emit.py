"""``tilewright emit``: write the C of a kernel for another project."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tilewright.errors import SpecError

from .screen import json_option, show_json
from .words import Wanted
from .words import wanted as takes_kernels

if TYPE_CHECKING:
    from tilewright.generate import Request

#: Function that returns the C code of kernels as one text. Its second argument is the file's name,
#: None for standard output.
Text = Callable[[Sequence["Request"], str | None], str]


@click.command("emit")
@takes_kernels
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="A file (name.c), its header (name.h) or a folder; default: standard output.",
)
@click.option(
    "--name", help="Name of the C function; default: a name that describes the computation."
)
@click.option(
    "--main",
    is_flag=True,
    help="Write a program with arguments and right results; it prints pass or fail.",
)
@click.option(
    "--cases", type=click.IntRange(1), default=2, show_default=True, help="Calls that --main makes."
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of the random arguments of --main.",
)
@click.option("--bench", is_flag=True, help="With --main: time the calls too, and the core's peak.")
@json_option
def command(
    wanted: Wanted,
    output: Path | None,
    name: str | None,
    main: bool,
    cases: int,
    seed: int,
    bench: bool,
    as_json: bool,
) -> None:
    """Write the C code of kernels.

    SIZES is MxNxK, or `transpose ROWSxCOLS`. Nothing is compiled, and the target need not run on
    this machine. With --main the file is a program that tests one kernel, for boards and simulators
    without Python. A comment in it has the command that compiles it into a static program.
    """
    requests = _requests(wanted, name)
    if main and output is not None and output.suffix == ".h":
        raise click.UsageError("--main writes a program: its name ends in .c.")
    if bench and not main:
        raise click.UsageError("--bench is for --main: what has no main times nothing.")
    text = _program(cases, seed, bench) if main else _library
    if output is None:
        said = text(requests, None)
        names = [request.name for request in requests]
        if as_json:
            show_json({"names": names, "text": said})
        else:
            click.echo(said, nl=False)
        return
    written = dict(_written(output, requests, text))
    if as_json:
        show_json([{"file": str(file), "names": names} for file, names in written.items()])
        return
    for file, names in written.items():
        click.echo(f"{file}: {', '.join(names)}" if file == output else str(file))


def _written(
    output: Path, requests: Sequence[Request], text: Text
) -> Iterator[tuple[Path, list[str]]]:
    """Write the C code of the kernels, or a header that declares them.

    Yield each file that was written, with the names of its kernels.
    """
    if output.suffix == ".h" and not output.is_dir():
        from tilewright.generate import header

        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(header(requests, output.stem), encoding="utf-8")
        yield output, [request.name for request in requests]
        return
    if output.suffix == ".c" and not output.is_dir():
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text(requests, output.name), encoding="utf-8")
        yield output, [request.name for request in requests]
        return
    if output.exists() and not output.is_dir():
        raise click.BadParameter(f"{output} is neither a folder nor a C file (name.c, or name.h)")
    output.mkdir(parents=True, exist_ok=True)
    for request in requests:
        file = output / f"{request.name}.c"
        file.write_text(text([request], file.name), encoding="utf-8")
        yield file, [request.name]


def _library(requests: Sequence[Request], _file: str | None) -> str:
    from tilewright.runtime.edited import own_file

    return own_file(requests).text


def _program(cases: int, seed: int, bench: bool) -> Text:
    from tilewright.runtime.harness import program

    def text(requests: Sequence[Request], file: str | None) -> str:
        if len(requests) > 1:
            raise SpecError(
                "one program for several kernels",
                got=f"--main, and {len(requests)} kernels",
                hint="-o folder: a program for each",
            )
        return program(requests[0], cases=cases, seed=seed, file=file, bench=bench)

    return text


def _requests(wanted: Wanted, name: str | None) -> list[Request]:
    from tilewright.runtime.driver import request_for

    if name is not None and len(wanted.specs) > 1:
        raise SpecError("one name for several kernels", got=f"--name {name}", hint="leave it out")
    return [request_for(spec, wanted.schedule, wanted.target, name) for spec in wanted.specs]
