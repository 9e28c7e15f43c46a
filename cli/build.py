"""``tilewright build``: a library in C of what a file of specs describes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilewright.errors import SpecError

if TYPE_CHECKING:
    from tilewright.runtime.library.build import Built
    from tilewright.runtime.library.make import Library


@click.command("build")
@click.argument("specs", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="A folder, made where it is missing; of several libraries, a folder for each in it.",
)
@click.option("--compile/--no-compile", "compiles", default=True, help="Or write the C alone.")
@click.option("--test/--no-test", "tests", default=True, help="Run the self-test where it can run.")
@click.option(
    "--architecture",
    "architectures",
    multiple=True,
    metavar="NAME",
    help="Compile for this one alone: x86_64, aarch64; may be repeated. Default: for all.",
)
@click.option("--jobs", type=click.IntRange(1), help="Files compiled at a time; default: the CPUs.")
def command(
    specs: Path,
    output: Path,
    compiles: bool,
    tests: bool,
    architectures: tuple[str, ...],
    jobs: int | None,
) -> None:
    """Build the libraries that a Python file makes: each is a `tw.library(...)` at its top level.

    SPECS is run as any Python file is. The C is written into the output folder with a header,
    CMake, meson and pkg-config files, a self-test and a manifest; then it is compiled for every
    architecture that has a compiler here, into its folder `build`.
    """
    found = _libraries(specs)
    wrong = False
    for library in found:
        folder = output if len(found) == 1 else output / library.name
        if not compiles:
            _say_written(library, library.write(folder))
            continue
        built = library.build(
            folder, architectures=architectures or None, selftest=tests, jobs=jobs
        )
        _say_written(library, folder)
        for one in built:
            _say_built(library, one)
        wrong |= not all(one.passed for one in built)
    if wrong:
        raise click.exceptions.Exit(1)


def _libraries(specs: Path) -> list[Library]:
    """The libraries that the file's variables hold."""
    from tilewright.runtime.library.make import Library

    held = {id(each): each for each in _run(specs).values() if isinstance(each, Library)}
    found = list(held.values())
    if not found:
        raise SpecError(
            "the file makes no library",
            got=str(specs),
            expected="a variable that holds one, at the top level",
            hint='kernels = tw.library("mykernels", {"gemm": tw.Gemm(8, 8, 8)}, targets=["avx2"])',
        )
    names = [each.name for each in found]
    if len(set(names)) < len(names):
        raise SpecError("two libraries of the file have one name", got=", ".join(names))
    return found


def _run(specs: Path) -> Mapping[str, Any]:
    """The variables of a Python file after it was run, as `python SPECS` but for its name."""
    import runpy
    import sys

    sys.path.insert(0, str(specs.resolve().parent))
    try:
        return runpy.run_path(str(specs), run_name=specs.stem)
    finally:
        sys.path.pop(0)


def _say_written(library: Library, folder: Path) -> None:
    size = sum(map(len, library.files.values()))
    click.echo(
        f"{library.name} {library.version}: {len(library.kernels)} kernels for "
        f"{len(library.targets)} targets, generated in {library.seconds:.1f} s: "
        f"{len(library.files)} files, {size:,} bytes, in {folder}"
    )


def _say_built(library: Library, built: Built) -> None:
    """A table of the targets of one architecture, and what was made."""
    if built.missing:
        click.echo(f"{built.machine}: not compiled: {built.missing}")
        return
    click.echo(f"{built.machine}: {built.compiler}, in {built.seconds:.1f} s")
    rows = [("target", "kernels", "compiled", "objects", "self-test")]
    rows += [
        (
            each.target,
            str(len(library.kernels)),
            f"{each.seconds:.1f} s",
            f"{each.bytes:,} bytes",
            each.checked,
        )
        for each in built.targets
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:4], widths[1:4], strict=True)]
        click.echo("  " + "  ".join([*cells, row[4]]))
    for path in (built.static, built.shared):
        if path is not None:
            click.echo(f"  {path.name}: {path.stat().st_size:,} bytes, in {path.parent}")
    if not built.passed:
        click.echo(built.output, err=True)
