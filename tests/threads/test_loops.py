"""Parallel loops that run as one: each trip runs once, and threads get equal work."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from support.source_tree import ROOT

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")


class Loop(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int64) for name in ("trips", "pieces", "work", "shares", "first")
    )


class Cut(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in ("from_", "to", "ends"))


class Loops(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in ("shares", "work", "pieces"))


@pytest.fixture(scope="module")
def c(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("loops")
    text = (ROOT / "templates" / "kernel" / "loops.c.j2").read_text(encoding="utf-8")
    text = re.sub(r"\{[#%].*[#%]\}", "", text).replace("static ", "")
    (folder / "loops.c").write_text(f"#include <stdint.h>\n{text}", encoding="utf-8")
    command = [
        "gcc",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        "-o",
        "loops.so",
        "loops.c",
    ]
    subprocess.run(command, check=True, cwd=folder)
    library = ctypes.CDLL(str(folder / "loops.so"))
    library.loops_together.restype = Loops
    library.loop_trip.restype = library.loop_within.restype = ctypes.c_int64
    library.loop_cut.restype = Cut
    return library


def ranges(c: Any, loops: Sequence[tuple[int, int]], ends: Sequence[float]) -> list[list[range]]:
    """The trips of each loop, for shares cut at these parts of all of them."""
    given = (Loop * len(loops))(*(Loop(trips, 1, work) for trips, work in loops))
    together = c.loops_together(given, ctypes.c_int64(len(loops)))
    assert together.pieces == sum(trips for trips, _ in loops)
    cuts = [0, *(int(end * together.shares) for end in ends), together.shares]

    def at(loop: Loop, share: int) -> int:
        found: int = c.loop_trip(ctypes.byref(loop), ctypes.c_int64(share))
        return found

    return [
        [range(at(loop, first), at(loop, last)) for loop in given] for first, last in pairwise(cuts)
    ]


def test_each_trip_belongs_to_one_part(c: Any) -> None:
    rng = np.random.default_rng(7)
    for _ in range(300):
        count = int(rng.integers(1, 5))
        trips, works = rng.integers(0, 40, count), 10 ** rng.integers(0, 9, count)
        loops = list(zip(map(int, trips), map(int, works), strict=True))
        parts = ranges(c, loops, sorted(rng.random(int(rng.integers(0, 12)))))
        for number, (all_trips, _) in enumerate(loops):
            assert [trip for part in parts for trip in part[number]] == list(range(all_trips))


@pytest.mark.parametrize("loops", [[(5, 786432), (32, 8192)], [(32, 8192), (5, 786432)]])
def test_half_of_the_shares_is_half_of_the_work(c: Any, loops: list[tuple[int, int]]) -> None:
    halves = ranges(c, loops, [0.5])
    done = [sum(len(r) * loop[1] for r, loop in zip(half, loops, strict=True)) for half in halves]
    heaviest = max(work for _, work in loops)
    assert abs(done[0] - done[1]) <= 2 * heaviest
    assert min(done) > 0


def test_loops_without_trips_or_work_are_nobodys(c: Any) -> None:
    assert ranges(c, [(0, 0), (0, 5)], [0.5]) == [[range(0), range(0)]] * 2
    assert [[len(r) for r in part] for part in ranges(c, [(4, 0)], [0.5])] == [[2], [2]]


def test_threads_cut_a_trip(c: Any) -> None:
    """Of each trip, each piece runs once, and what comes after the pieces too."""
    rng = np.random.default_rng(8)
    for _ in range(300):
        trips, pieces, work = (int(rng.integers(0, most)) for most in (7, 60, 10**6))
        loops = (Loop * 2)(Loop(9, 1, 5000), Loop(trips, pieces, work))
        shares = c.loops_together(loops, ctypes.c_int64(2)).shares
        own = ctypes.byref(loops[1])
        given = sorted(int(x) for x in rng.integers(0, shares + 1, int(rng.integers(0, 9))))
        done: list[tuple[int, int]] = []
        for cut in pairwise([0, *given, shares]):
            first, last = map(ctypes.c_int64, cut)
            for trip in range(c.loop_within(own, first), c.loop_trip(own, last)):
                part = c.loop_cut(own, ctypes.c_int64(trip), first, last)
                done += [(trip, piece) for piece in range(part.from_, part.to)]
                done += [(trip, pieces)] * part.ends
        assert done == [(trip, piece) for trip in range(trips) for piece in range(pieces + 1)]


def test_two_threads_share_a_single_trip(c: Any) -> None:
    loops = (Loop * 1)(Loop(1, 100, 10**6))
    together = c.loops_together(loops, ctypes.c_int64(1))
    assert together.pieces == 100
    half = [ctypes.c_int64(x) for x in (0, 0, together.shares // 2)]
    part = c.loop_cut(ctypes.byref(loops[0]), *half)
    assert (part.from_, part.ends) == (0, 0) and 45 <= part.to <= 55
