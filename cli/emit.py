"""``tilewright emit``: the C of a kernel, for a project of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tilewright.errors import SpecError

from .words import Wanted
from .words import wanted as takes_kernels

if TYPE_CHECKING:
    from tilewright.generate import Request


@click.command("emit")
@takes_kernels
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="A file (name.c) or a folder, made where it is missing; default: standard output.",
)
@click.option("--name", help="The C function's name; default: one that says what it computes.")
def command(wanted: Wanted, output: Path | None, name: str | None) -> None:
    """Write the C of kernels: into one file, or one file for each into a folder.

    SIZES is MxNxK, or ROWSxCOLS of a transposition. Nothing is compiled, and the target need not
    run on this machine.
    """
    requests = _requests(wanted, name)
    from tilewright.generate import generate

    if output is None:
        click.echo(generate(requests).text, nl=False)
        return
    if output.suffix == ".c" and not output.is_dir():
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(generate(requests).text, encoding="utf-8")
        click.echo(f"{output}: {', '.join(request.name for request in requests)}")
        return
    if output.exists() and not output.is_dir():
        raise click.BadParameter(f"{output} is neither a folder nor a C file (name.c)")
    output.mkdir(parents=True, exist_ok=True)
    for request in requests:
        file = output / f"{request.name}.c"
        file.write_text(generate([request]).text, encoding="utf-8")
        click.echo(str(file))


def _requests(wanted: Wanted, name: str | None) -> list[Request]:
    from tilewright.generate import Request
    from tilewright.runtime.cache import key
    from tilewright.runtime.driver import kernel_name
    from tilewright.runtime.host import resolve
    from tilewright.sizes import canonical, check_identifier

    if name is not None:
        check_identifier(name, "a kernel")
        if len(wanted.specs) > 1:
            raise SpecError(
                "one name for several kernels", got=f"--name {name}", hint="leave it out"
            )
    target = resolve(wanted.target)
    requests = []
    for spec in wanted.specs:
        digest = key("emit", canonical(spec), canonical(wanted.schedule), target.name)
        named = name or kernel_name(spec, target, digest)
        requests.append(Request(named, spec, wanted.schedule, target))
    return requests
