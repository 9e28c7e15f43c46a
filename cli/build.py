"""``tilewright build``: build the C libraries that a Python file describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilewright.errors import SpecError

from .screen import console, duration, json_option, show_json, size, table, working

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
    help="Output folder, created if missing; several libraries get a folder each inside it.",
)
@click.option(
    "--compile/--no-compile",
    "compiles",
    default=True,
    help="Compile the library, or only write its C code.",
)
@click.option("--test/--no-test", "tests", default=True, help="Run the self-test where it can run.")
@click.option(
    "--architecture",
    "architectures",
    multiple=True,
    metavar="NAME",
    help="Compile only for x86_64 or aarch64; may be repeated. Default: for all.",
)
@click.option("--jobs", type=click.IntRange(1), help="Files compiled at a time; default: the CPUs.")
@json_option
def command(
    specs: Path,
    output: Path,
    compiles: bool,
    tests: bool,
    architectures: tuple[str, ...],
    jobs: int | None,
    as_json: bool,
) -> None:
    """Build the C libraries of a Python file.

    These are the variables at its top level that hold a `tw.library(...)`.

    SPECS is run like any Python file. The C is written to the output folder, with a header, files
    for CMake, meson and pkg-config, a self-test and a manifest. Then it is compiled for every
    architecture that has a compiler here, into the folder `build` of the output.
    """
    with working("generating"):
        found = _libraries(specs)
    said, wrong = [], False
    for library in found:
        folder = output if len(found) == 1 else output / library.name
        built: tuple[Built, ...] = ()
        if not compiles:
            library.write(folder)
        else:
            chosen = architectures or None
            with working(f"compiling {library.name}"):
                built = library.build(folder, architectures=chosen, selftest=tests, jobs=jobs)
        wrong |= not all(one.passed for one in built)
        said.append(_as_json(library, folder, built))
        if not as_json:
            _say_written(library, folder)
            for one in built:
                _say_built(library, one)
    if as_json:
        show_json(said)
    if wrong:
        raise click.exceptions.Exit(1)


def _libraries(specs: Path) -> list[Library]:
    """Run the Python file ``specs``, and return the libraries that its variables hold."""
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
    """Run a Python file as `python SPECS` does, and return its variables.

    One difference remains: in the file, ``__name__`` is not ``"__main__"``.
    """
    import runpy
    import sys

    sys.path.insert(0, str(specs.resolve().parent))
    try:
        return runpy.run_path(str(specs), run_name=specs.stem)
    finally:
        sys.path.pop(0)


def _say_written(library: Library, folder: Path) -> None:
    text = sum(map(len, library.files.values()))
    click.echo(
        f"{library.name} {library.version}: {len(library.kernels)} kernels for "
        f"{len(library.targets)} targets, generated in {duration(library.seconds)}: "
        f"{len(library.files)} files, {size(text)}, in {folder}"
    )


def _say_built(library: Library, built: Built) -> None:
    """Print a table of an architecture's targets, and the library files that were compiled."""
    if built.missing:
        click.echo(f"{built.machine}: not compiled: {built.missing}")
        return
    title = f"{built.machine}: {built.compiler}, in {duration(built.seconds)}"
    numbers = ("kernels", "compiled in", "objects")
    shown = table(title, "target", *numbers, "self-test", numbers=numbers)
    for each in built.targets:
        kernels, took = str(len(library.kernels)), duration(each.seconds)
        shown.add_row(each.target, kernels, took, size(each.bytes), each.checked)
    console().print(shown)
    for path in (built.static, built.shared):
        if path is not None:
            click.echo(f"{path.name}: {size(path.stat().st_size)}, in {path.parent}")
    if not built.passed:
        click.echo(built.output, err=True)


def _as_json(library: Library, folder: Path, built: Sequence[Built]) -> dict[str, Any]:
    """Return the facts for ``--json`` about a library and the files compiled from it."""
    return {
        "library": library.name,
        "version": library.version,
        "folder": str(folder),
        "kernels": list(library.kernels),
        "targets": list(library.targets),
        "seconds": library.seconds,
        "built": [
            {
                "architecture": one.machine,
                "compiler": one.compiler,
                "missing": one.missing,
                "passed": one.passed,
                "seconds": one.seconds,
                "libraries": {
                    str(path): path.stat().st_size for path in (one.static, one.shared) if path
                },
                "targets": [asdict(each) for each in one.targets],
            }
            for one in built
        ],
    }
