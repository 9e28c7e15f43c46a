"""Build the C library that runs the parallel loops of all kernels in a process.

``process`` imports this module only if the library is not in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import compile_library
from tilewright.runtime.machine.threadpools import LIBRARY
from tilewright.runtime.store.compiled import render
from tilewright.settings import THREADS
from tilewright.targets import load

#: Maximum number of threads of the program from which kernels use OpenMP: for example the main
#: thread and one worker. OpenMP makes a separate team for each such thread, with as many threads as
#: the process has CPUs.
TEAMS = 2
#: If the caller of a loop waits for OpenMP's threads for more than this number of nanoseconds, they
#: count as late. Waking a thread takes much less, a time slice of another program takes longer.
PATIENCE = 2_000_000
#: Names of the counters of parallel loops in the C library: loops on OpenMP's threads, on
#: tilewright's ("own"), and on the calling thread alone. The last kind is counted by its reason.
EVENTS = ("openmp", "own", "taken", "inside", "handler")


def source() -> str:
    """Return the C code of the library."""
    return render(
        "threads/process.c.j2", asked=THREADS, events=EVENTS, teams=TEAMS, patience=PATIENCE
    )


def build(directory: Path) -> Mapping[str, Any]:
    """Compile the library in ``directory``, and return its entry for the cache."""
    target = load("scalar")
    compiler = find_compiler(target, emulated=False)
    library = compile_library(source(), target, compiler, directory, LIBRARY)
    return {"library": library.name, "source": f"{LIBRARY}.c", "compiler": str(compiler)}
