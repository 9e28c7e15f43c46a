"""Run the parallel loops of all kernels of the process on the threads that it already has.

A library in C does that. It is compiled once and kept in the cache. Kernels call it through a
pointer in their own library. Without it, the loops of each library of kernels run on threads of
that library.
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

#: The variable of each library with parallel loops: the functions that run them.
SYMBOL = "tilewright_threads"
_FUNCTIONS = {
    "tw_threads": ((), "uintptr_t"),
    "tw_threads_ask": (("int64_t", "int64_t"), "int64_t"),
    "tw_threads_tell": (("uintptr_t",), "uintptr_t"),
    "tw_threads_patience": (("int64_t",), "int64_t"),
    "tw_threads_quota": (("uintptr_t", "uintptr_t"), "int64_t"),
}


class Told(NamedTuple):
    """The facts that decide how parallel loops run, and how many have run.

    ``most`` is the least of the limits that follow; 0 means no limit: ``cpus`` by affinity and
    quota, ``environment`` of OMP_NUM_THREADS, ``openmp`` of the OpenMP runtime for this thread,
    ``limit`` of threadpoolctl. ``usable`` is 1 if OpenMP's threads may run loops.
    ``late`` is 1 while they are not used because they came late. ``child`` is 1 in
    a child forked after the library was loaded, ``forked`` if the process that loaded it was itself
    forked. ``teams`` are the threads that have a team of OpenMP's for kernels.

    Counts of loops: ``by_openmp`` and ``by_own`` ran on those threads. The others ran alone:
    ``taken`` because another loop ran, ``inside`` a loop of OpenMP's, ``handler`` in a signal
    handler.
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
    """Let the parallel loops of the library at ``path`` run as all others of the process do."""
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
    """Return the facts, and the path of the OpenMP runtime ("" if there is none).

    The result is None if the library could not be built.
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


def quota_in_c(root: Path, listed: Path) -> int:
    """Return the quota as C reads it: as ``runtime.machine.quota.quota``, with 0 for none."""
    found = functions()
    assert found is not None, "the library is built"
    texts = [np.frombuffer(bytes(path) + b"\0", np.uint8) for path in (root, listed)]
    return int(found["tw_threads_quota"](*map(address, texts)))


def _ask(found: dict[str, Any]) -> None:
    """Tell C what the environment says now."""
    said = settings()
    found["tw_threads_ask"](THREADS.index(said.threads), said.openmp_threads or 0)


@cache
def functions() -> dict[str, Any] | None:
    """Return the functions of the library, built on first use; None, with a warning, without it."""

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
