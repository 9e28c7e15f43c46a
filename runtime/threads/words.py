"""Say in words which threads run parallel loops in this process, why, and how many there may be."""

from __future__ import annotations

from typing import NamedTuple

from tilewright.settings import settings

from .process import Told, told


class Choice(NamedTuple):
    """The threads that run parallel loops in this process.

    - ``threads``: ``openmp``, an OpenMP runtime's, or ``own``, tilewright's.
    - ``reason``: why, for messages.
    - ``most``: maximum number of threads of a loop. ``limit``: the reason for this maximum.
    - ``runtime``: path of the OpenMP runtime, "" if the process has loaded none.
    """

    threads: str
    reason: str
    most: int
    limit: str
    runtime: str

    def __str__(self) -> str:
        name = f"OpenMP of {self.runtime}" if self.threads == "openmp" else "tilewright's own"
        return f"{name}, because {self.reason}; at most {self.most}: {self.limit}"


def choice() -> Choice:
    """Return the threads that would run a parallel loop if the calling thread began one now."""
    found = told()
    if found is None:
        from tilewright.runtime.machine.host import usable_cpus

        reason = "no compiler here built the library that calls OpenMP"
        return Choice("own", reason, usable_cpus(), "the CPUs that the process may use", "")
    facts, runtime = found
    threads, reason = _whose(facts, runtime, settings().threads)
    return Choice(threads, reason, facts.most, _limit(facts), runtime)


def _whose(facts: Told, runtime: str, asked: str) -> tuple[str, str]:
    """Return "openmp" or "own", and the reason."""
    said = "" if asked == "auto" else f"TILEWRIGHT_THREADS={asked}"
    if asked == "own":
        return "own", said
    if not runtime:
        return "own", "the process has loaded no OpenMP runtime"
    if facts.child:
        return "own", "OpenMP's threads stayed in the process that this one was forked from"
    if not facts.usable:
        return "own", "this process was forked, and OpenMP's threads may be its parent's"
    if facts.late and not said:
        return "own", "OpenMP's threads came late, since others hold the CPUs; soon tried again"
    return "openmp", said or "the process has loaded it, and its threads serve both"


def _limit(facts: Told) -> str:
    """Return the limit that sets the maximum number of threads, for example ``OMP_NUM_THREADS``."""
    limits = {
        "OMP_NUM_THREADS": facts.environment,
        "the limit of threadpoolctl": facts.limit,
        "OpenMP's setting for this thread": facts.openmp,
    }
    for name, number in limits.items():
        if number == facts.most and number < facts.cpus:
            return name
    return "the CPUs that the process may use"
