"""What ``benchmarks.lessons`` undoes is there to be undone."""

from __future__ import annotations

import sys

import pytest
from support.source_tree import ROOT

from tilewright import generate
from tilewright.runtime.build import toolchain
from tilewright.runtime.machine import host
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import Schedule

sys.path.insert(0, str(ROOT))  # benchmarks is a program beside tilewright, not a package of it
from benchmarks import lessons


def text(spec: Gemm, schedule: Schedule, target: str) -> str:
    """The C without the comment that names schedule and target."""
    request = generate.Request("kernel", spec, schedule, host.resolve(target))
    c = generate.generate([request]).text
    return "\n".join(line for line in c.splitlines() if not line.startswith((" *", "/*")))


@pytest.mark.parametrize("lesson", lessons.TIMED, ids=lambda lesson: lesson.title)
def test_a_measure_shows_in_the_c(lesson: lessons.Timed) -> None:
    kept = text(lesson.spec, Schedule(), lesson.target)
    with lesson.undo():
        assert text(lesson.spec, lesson.other, lesson.target) != kept


def test_the_other_measures_are_taken() -> None:
    kept = text(Gemm(8, 8, 4), Schedule(), "neon")
    with lessons.without_barrier():
        assert text(Gemm(8, 8, 4), Schedule(), "neon") != kept
    flags = toolchain._GCC_FLAGS
    with lessons.with_scheduling():
        assert flags != toolchain._GCC_FLAGS
