"""No spill and no reload in any K loop: from the machine code of gcc and clang, for each target."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import track
from rich.table import Table

from benchmarks.measure import kernels
from benchmarks.measure.figures import Figure, Section
from benchmarks.measure.options import Options
from benchmarks.measure.shapes import TABLE, UKERNEL, Shape, random_shapes
from benchmarks.measure.spills import functions

if TYPE_CHECKING:
    import tilewright as tw
    from tilewright.generate import Request
    from tilewright.isa.target import Target

RANDOM = 50
# CC compiles for this machine, the other variable for Arm: the compilers to try, by target.
_NATIVE = [{"CC": "gcc"}, {"CC": "clang"}]
_ARM = "TILEWRIGHT_CC_AARCH64"
COMPILERS = {
    "avx512": _NATIVE,
    "avx2": _NATIVE,
    "neon": [{_ARM: "aarch64-linux-gnu-gcc"}, {_ARM: "clang --target=aarch64-linux-gnu"}],
}

Wanted = list[tuple[Shape, "tw.Schedule | None"]]


def run(options: Options) -> Section:
    """Compile the default schedules of the list and of random sizes; count stack accesses."""
    table = Table(title="K loops", title_justify="left")
    for heading in ("target", "compiler", "kernels", "K loops", "spills", "first"):
        table.add_column(heading)
    figures = []
    pairs = [(target, one) for target, several in COMPILERS.items() for one in several]
    for target, environment in track(pairs, "K loops", console=options.console, transient=True):
        wanted = _wanted(options)
        with set_environment(environment):
            text = disassembly(wanted, target)
        found = functions(text)
        loops = sum(region.looped for one in found for region in one.regions())
        spills = [spill for one in found for spill in one.spills()]
        (compiler,) = environment.values()
        first = escape(str(spills[0])) if spills else ""
        cells = (target, compiler, len(wanted), loops, len(spills), first)
        table.add_row(*map(str, cells))
        name = f"{target}, {compiler.split()[0]}"
        figures.append(Figure(f"spills in K loops, {name}", len(spills), 0, at_most=True))
        figures.append(Figure(f"K loops seen, {name}", loops, len(wanted) / 2))
    options.console.print(table)
    return Section("spills", tuple(figures))


def _wanted(options: Options) -> Wanted:
    shapes = dict.fromkeys((*TABLE, *UKERNEL, *random_shapes(options.seed, RANDOM)))
    return [(shape, None) for shape in shapes if options.wants(shape)]


def disassembly(wanted: Sequence[tuple[Shape, tw.Schedule | None]], target: str) -> str:
    """The machine code of kernels, as the compiler that the environment names makes it."""
    import tilewright as tw
    from tilewright.generate import Request
    from tilewright.runtime.machine.host import resolve

    resolved = resolve(target)
    requests = [
        Request(_name(i, shape), kernels.spec(shape), schedule or tw.Schedule(), resolved)
        for i, (shape, schedule) in enumerate(wanted)
    ]
    return machine_code(requests, resolved)


def machine_code(requests: Sequence[Request], target: Target) -> str:
    """The disassembly of generated kernels, all of one target."""
    from tilewright.generate import generate
    from tilewright.runtime.build.compilers import find_compiler
    from tilewright.runtime.build.toolchain import compile_library, disassemble

    compiler = find_compiler(target, emulated=False)
    with TemporaryDirectory() as folder:
        source = generate(requests).text
        library = compile_library(source, target, compiler, Path(folder), "kernels")
        return disassemble(library, compiler)


def _name(index: int, shape: Shape) -> str:
    return f"kernel{index}_{shape.m}x{shape.n}x{shape.k}_{shape.count}"


@contextmanager
def set_environment(changes: dict[str, str]) -> Iterator[None]:
    """Environment variables set for a while."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
