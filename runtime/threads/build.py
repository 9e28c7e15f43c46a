"""Build the library that runs parallel loops; ``process`` imports this if the cache lacks it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.emit.render import render
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import compile_library
from tilewright.runtime.machine.threadpools import LIBRARY
from tilewright.settings import THREADS
from tilewright.targets import load

#: Most threads of the process that get a team of OpenMP's for kernels: the main thread, and one
#: that computes for it. Each team has as many threads as the process has CPUs.
TEAMS = 2
#: Nanoseconds that a loop waits in vain for OpenMP's threads before they count as late: much more
#: than it takes to wake a thread, and less than a time slice of another program.
PATIENCE = 2_000_000
#: Counters of parallel loops in C. A loop ran on OpenMP's threads, on our own, or alone: since
#: another loop ran, inside a loop of OpenMP's, or in a signal handler.
EVENTS = ("openmp", "own", "taken", "inside", "handler")


def source() -> str:
    """Return the library's C."""
    return render(
        "threads/process.c.j2", asked=THREADS, events=EVENTS, teams=TEAMS, patience=PATIENCE
    )


def build(directory: Path) -> Mapping[str, Any]:
    """Compile the library."""
    target = load("scalar")
    compiler = find_compiler(target, emulated=False)
    library = compile_library(source(), target, compiler, directory, LIBRARY)
    return {"library": library.name, "source": f"{LIBRARY}.c", "compiler": str(compiler)}
