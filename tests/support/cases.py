"""Counting cases: one kernel on one set of operands, per target and per means of running it."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

MEANS = ("interpreted", "compiled", "native", "qemu", "header")
#: The means that run the target's C.
RUNS = ("native", "qemu", "header")
#: The target on which all cases of a list are tried.
THOROUGH = "avx2"
#: Targets of which so many other cases run that a list's may be fewer, whatever their features.
FREQUENT = ("amx", "avx512", "neon", "scalar")
T = TypeVar("T")
#: The targets of which a run must try enough cases, those with more features among them.
REQUIRED = (
    *("avx2", "neon", "neon+dotprod+i8mm+bf16", "amx", "power10"),
    *("sve256", "rvv256", "sme"),
)


class Cases:
    """A count per target and means; counts of several processes add up."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}

    def count(self, target: str, means: str, n: int = 1) -> None:
        """``n`` cases of ``target`` were checked by ``means``, one of MEANS."""
        if means not in MEANS:
            raise ValueError(f"unknown means {means!r}; expected one of {', '.join(MEANS)}")
        self._counts.setdefault(target, Counter())[means] += n

    def add(self, other: Mapping[str, Mapping[str, int]]) -> None:
        """Add the counts of another process."""
        for target, counts in other.items():
            for means, n in counts.items():
                self.count(target, means, n)

    def as_dict(self) -> dict[str, dict[str, int]]:
        """The counts as plain data: target to means to number."""
        return {target: dict(counts) for target, counts in self._counts.items()}

    def lines(self) -> list[str]:
        """One line per target, every means with its number."""
        return [
            f"{target}: " + ", ".join(f"{means} {counts[means]}" for means in MEANS)
            for target, counts in sorted(self._counts.items())
        ]

    def lacking(self, required: int) -> list[str]:
        """What to say of the targets whose C ran on fewer than ``required`` cases."""
        ran = {target: self._ran(target) for target in REQUIRED}
        return [
            f"{target}: {n} cases ran, {required} are required"
            for target, n in ran.items()
            if n < required
        ]

    def _ran(self, target: str) -> int:
        """The cases of ``target`` whose C ran, with the features named or with more."""
        every = self._counts.items()
        counts = (found for name, found in every if f"{name}+".startswith(f"{target}+"))
        return sum(found[means] for found in counts for means in RUNS)


def sampled(target: str, every: Iterable[T], one_of: int = 3) -> list[T]:
    """All of ``every`` on one target, and one of so many on each other, other ones on each.

    The more targets there are, the more of them try a case: the time of a run grows by little.
    Those that many other tests try take half as many.
    """
    cases = list(every)
    if target == THOROUGH:
        return cases
    one_of *= 2 if target.partition("+")[0] in FREQUENT else 1
    one_of = max(1, min(one_of, len(cases)))
    return cases[zlib.crc32(target.encode()) % one_of :: one_of]
