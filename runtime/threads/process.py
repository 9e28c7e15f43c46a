"""Run the parallel loops of all kernels in a process on the same threads.

These are the threads of an OpenMP runtime if the process has loaded one, else tilewright's own. A C
library runs the loops. It is compiled once and kept in the cache. A kernel calls it through a
pointer in the kernel's library. If it cannot be built, each kernel's library starts threads for its
own loops.
"""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import ToolchainError
from tilewright.runtime.arrays.memory import address
from tilewright.runtime.call.abi import backend, function_type, library, primitive
from tilewright.runtime.store import cache as store
from tilewright.runtime.store.cache import Entry
from tilewright.runtime.store.damaged import kept
from tilewright.settings import THREADS, settings

#: A variable in each library with parallel loops: a pointer to the functions that run them.
SYMBOL = "tilewright_threads"
_FUNCTIONS = {
    "tw_threads": ((), "uintptr_t"),
    "tw_threads_ask": (("int64_t", "int64_t"), "int64_t"),
    "tw_threads_tell": (("uintptr_t",), "uintptr_t"),
    "tw_threads_patience": (("int64_t",), "int64_t"),
    "tw_threads_quota": (("uintptr_t", "uintptr_t"), "int64_t"),
}


class Told(NamedTuple):
    """Answers of the C library: how parallel loops run, and how many loops have run.

    Maximum number of threads of a loop; 0 means no limit:

    - ``most``: the smallest of the limits below.
    - ``cpus``: CPUs that the process may use, by its affinity and quota.
    - ``environment``: OMP_NUM_THREADS.
    - ``openmp``: the OpenMP runtime's setting for the calling thread.
    - ``limit``: the limit that threadpoolctl set.

    Whether OpenMP's threads run loops, 1 or 0:

    - ``usable``: OpenMP's threads may run loops.
    - ``late``: OpenMP's threads are not used for now, because a caller waited for them too long.
    - ``child``: the process was forked after the library was loaded.
    - ``forked``: the process that loaded the library was itself forked.

    ``teams`` is the number of threads for which OpenMP has made a team that runs loops of kernels.

    Numbers of loops that have run: ``by_openmp`` on OpenMP's threads, ``by_own`` on tilewright's.
    The others ran on the calling thread alone: ``taken`` because another loop ran, ``inside`` a
    parallel region of OpenMP, ``handler`` in a signal handler.
    """

    most: int
    cpus: int
    environment: int
    openmp: int
    limit: int
    usable: int
    late: int
    child: int
    forked: int
    teams: int
    by_openmp: int
    by_own: int
    taken: int
    inside: int
    handler: int


@cache
def attach(path: Path) -> None:
    """Make the kernels' library at ``path`` run its parallel loops on the process's threads."""
    kernels, word = library(str(path)), primitive("uintptr_t")
    try:
        kernels.read_variable(word, SYMBOL)
    except (KeyError, AttributeError):
        return  # it has no parallel loops
    found = functions()
    if found is not None:
        _ask(found)
        kernels.write_variable(word, SYMBOL, found["tw_threads"]())


def told() -> tuple[Told, str] | None:
    """Ask the C library how parallel loops run now.

    Returns the answers, and the path of the OpenMP runtime ("" if there is none). Returns None if
    the C library could not be built.
    """
    found = functions()
    if found is None:
        return None
    _ask(found)
    words = np.zeros(len(Told._fields), np.int64)
    path = backend.cast(
        backend.new_pointer_type(primitive("char")), found["tw_threads_tell"](address(words))
    )
    return Told(*map(int, words)), backend.string(path).decode(errors="replace")


def _ask(found: dict[str, Any]) -> None:
    """Pass TILEWRIGHT_THREADS and OMP_NUM_THREADS to the C library."""
    said = settings()
    found["tw_threads_ask"](THREADS.index(said.threads), said.openmp_threads or 0)


@cache
def functions() -> dict[str, Any] | None:
    """Return the functions of the C library, by name; it is built at the first use.

    If it cannot be built, warn and return None.
    """

    def build(folder: Path) -> Any:
        from . import build as builder

        return builder.build(folder)

    def load(entry: Entry) -> dict[str, Any]:
        built = library(str(entry.library))
        return {
            name: built.load_function(function_type(*signature), name)
            for name, signature in _FUNCTIONS.items()
        }

    try:
        return kept(store.key("threads"), build, load)
    except ToolchainError as error:
        warnings.warn(
            f"each library of kernels has its own threads, beside those of OpenMP: {error.brief}",
            stacklevel=2,
        )
        return None
