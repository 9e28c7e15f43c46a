"""Explain the stages of a network as tables: bytes and caches, and estimated and measured time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from tilewright.isa.machine import Core
from tilewright.plan.routine import StageFacts

from .estimates import Measured, bytes_text, count_text, time_text


def sizes(facts: Sequence[StageFacts], core: Core) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of bytes, titles first.

    A size has the name of the nearest cache of ``core`` that holds so many bytes.
    """
    yield "stage", "result", "arrays", "moved", "unfused"
    for number, each in enumerate(facts):
        held = (f"{bytes_text(n)} {_cache(n, core)}" for n in (each.result, each.arrays))
        yield _name(number, each), *held, bytes_text(_moved(each)), bytes_text(each.alone)
    moved, alone = sum(map(_moved, facts)), sum(each.alone for each in facts)
    yield "all", "", "", bytes_text(moved), bytes_text(alone)


def _name(number: int, each: StageFacts) -> str:
    return f"{number} {each.name}" + (f", {each.runs} runs" if each.runs > 1 else "")


def _moved(each: StageFacts) -> int:
    return each.read + each.written


def _cache(nbytes: int, core: Core) -> str:
    """Return the name of the nearest cache that holds so many bytes; "memory" if none does."""
    caches = (number for number, each in enumerate(core.caches, 1) if nbytes <= each.size)
    number = next(caches, 0)
    return f"L{number}" if number else "memory"


def times(facts: Sequence[StageFacts], measured: Measured | None) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of times, titles first.

    ``measured`` has the time of each program, if there is one. Stages in one program have one time.
    """
    total = sum(each.cycles or 0.0 for each in facts)
    taken = [] if measured is None else [*_measured(facts, measured.stages)]
    rows = [("stage", "bound by", "cycles", "share")]
    for number, each in enumerate(facts):
        cycles = each.cycles
        told = ("", "") if cycles is None else (count_text(cycles), f"{cycles / (total or 1):.0%}")
        rows.append((f"{number} {each.name}", each.bound or "no estimate", *told))
    rows.append(("all", "", count_text(total), ""))
    for number, row in enumerate(rows):
        yield (*row, *taken[number]) if taken else row


def _measured(facts: Sequence[StageFacts], seconds: Sequence[float]) -> Iterator[tuple[str, str]]:
    """Yield titles, the measured time and share of each stage, and the time of all stages."""
    yield "measured", "share"
    for program, stages in groupby(facts, attrgetter("program")):
        first, *others = stages
        yield time_text(seconds[program]), f"{seconds[program] / sum(seconds):.0%}"
        yield from [(f"with {first.name}", "")] * len(others)
    yield time_text(sum(seconds)), ""
