"""The sections of the benchmarks that demand nothing, or something only of idle cores."""

from __future__ import annotations

import io
import os
import re

import pytest
from rich.console import Console

from benchmarks import tails, threads
from benchmarks.__main__ import SECTIONS
from benchmarks.figures import Section
from benchmarks.native import Effort, MissingError, compiler
from benchmarks.options import Options
from tilewright import targets
from tilewright.runtime.host import is_native


def measurable() -> bool:
    try:
        return bool(compiler()) and is_native(targets.load("avx2"))
    except MissingError:
        return False


here = pytest.mark.skipif(not measurable(), reason="no gcc, or no processor with figures")


def options(only: str = "") -> tuple[Options, io.StringIO]:
    said, effort = io.StringIO(), Effort(1, 1, 1e-4)
    return Options(Console(file=said, width=200), 0, effort, "avx2", re.compile(only)), said


def test_both_are_sections() -> None:
    assert {"tails", "threads"} <= set(SECTIONS)


# -- threads ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("product", "cores", "met"), [(1.9, 1.95, [True]), (1.2, 1.95, [False]), (1.2, 1.4, [])]
)
def test_threads_must_gain_what_the_cores_do(product: float, cores: float, met: list[bool]) -> None:
    gain, (_, said) = threads.Gain(product, cores, 2), options()
    assert [figure.met for figure in gain.figures] == met
    gain.tell(Console(file=said, width=200), "avx2")
    assert f"{product:.2f} times as fast on 2 threads" in said.getvalue()
    assert ("nothing is demanded" in said.getvalue()) == (not met)


@here
def test_threads_are_measured_beside_the_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, said = options()
    monkeypatch.setattr(threads, "QUANTUM", 1e-3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    section = threads.run(chosen)
    (row,) = section.rows
    for name in ("product", "cores"):
        gain = row[name]
        assert isinstance(gain, float)
        assert 0.2 < gain < 4
    assert "(2 CPUs)" in said.getvalue()


def test_one_cpu_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, said = options()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert threads.run(chosen) == Section("threads", ())
    assert "nothing is measured, this process may use 1 CPU" in said.getvalue()


# -- tails --------------------------------------------------------------------------------------


@here
def test_every_way_with_tails_is_measured() -> None:
    """Of 127x127x127 the packed operand lies in memory that the caller gives."""
    chosen, said = options("13x5x7|127x")
    section = tails.run(chosen)
    assert [row["shape"] for row in section.rows] == ["13x5x7", "127x127x127"]
    for row in section.rows:
        speeds = row["gflops"]
        assert isinstance(speeds, dict)
        assert speeds.keys() == {"auto", "mask", "narrow", "bounce"}
        assert min(speeds.values()) > 0
    assert "n, b" in said.getvalue()
