"""The schedules worth trying: legal by construction, best expected first."""

from __future__ import annotations

import random

import pytest

import tilewright as tw
from tilewright import targets
from tilewright.plan.planner import make_plan
from tilewright.tuning.nests import Nest, cycles
from tilewright.tuning.variants import LOOKED_AT, candidates

LARGE = tw.Gemm(512, 480, 600)
RELU = tw.relu(tw.acc)
SPECS = [
    (tw.Gemm(64, 48, 64), "avx2"),
    (LARGE, "avx512"),
    (tw.Gemm(512, 480, 600, order="F", beta=1), "neon"),
    (tw.Gemm(tw.dim("m"), 512, 512), "avx2"),
    (tw.Gemm(512, 512, 512, d="bf16", epilogue=RELU), "avx512"),
    (tw.Gemm(256, 512, 512, a="u8", b=tw.Packed("s8", 64)), "avx512+vnni"),
    (tw.Gemm(64, 512, 512, a=tw.Matrix("f32", "F"), b=tw.Matrix("f32", "F")), "scalar"),
    (tw.Gemm(256, 256, 256, batch=tw.Strided(4)), "avx2"),
    (tw.Gemm(512, 512, 512, a="bf16", b="bf16"), "amx"),
]


@pytest.mark.parametrize(("spec", "target"), SPECS, ids=lambda value: str(value)[:40])
def test_they_are_legal_and_best_expected_first(spec: tw.Gemm, target: str) -> None:
    found = candidates(spec, target, threads=2)
    for part in (found[:LOOKED_AT], found[LOOKED_AT:]):  # by whole kernels, by loops and tiles
        assert [one.cycles for one in part] == sorted(one.cycles for one in part)
    nests: dict[object, tw.Schedule] = {}
    for one in found:
        schedule = one.schedule
        key = schedule.loops, schedule.block, schedule.pack, schedule.prefetch, schedule.vectorize
        nests.setdefault(key, schedule)
    some = random.Random(0).sample(found, 6)
    for schedule in [*list(nests.values())[:12], *(one.schedule for one in some)]:
        make_plan(spec, schedule, targets.load(target.partition("+")[0]).having(
            target.split("+")[1:]))  # fmt: skip


def test_small_operands_have_neither_blocks_nor_threads() -> None:
    for schedule in tw.variants(tw.Gemm(32, 32, 32), "avx2", threads=8):
        assert not (schedule.block or schedule.pack or schedule.prefetch or schedule.threads)


def test_large_ones_have_all_of_them() -> None:
    found = list(tw.variants(LARGE, "avx2", threads=4))
    assert {schedule.threads for schedule in found} == {None, 4}
    assert {schedule.pack for schedule in found} == {None, "b"}
    assert {4, 8, None} == {schedule.prefetch for schedule in found}
    blocks = {tuple(dict(schedule.block)) for schedule in found}
    assert {("k", "n"), ("n",), ()} <= blocks
    assert {s.threads for s in tw.variants(LARGE, "avx2", threads=1)} == {None}
    assert len(set(found)) == len(found)


def test_traffic_decides_between_nests() -> None:
    """A B beyond all caches that is walked once for each panel of A costs more than in blocks."""
    spec = tw.Gemm(2048, 2048, 2048)
    sizes = dict.fromkeys("mnk", 2048)
    plans = {
        loops: make_plan(spec, nest.on(tw.Schedule(vectorize="n")), targets.load("avx2"))
        for loops, nest in (
            ("mnk", Nest("mnk")),
            ("nkmnk", Nest("nkmnk", (("k", 256), ("n", 192)), "b")),
        )
    }
    plain = cycles(plans["mnk"].staging, Nest("mnk"), sizes, (6, 16), 1e8)
    blocked = cycles(
        plans["nkmnk"].staging, Nest("nkmnk", (("k", 256), ("n", 192)), "b"), sizes, (6, 16), 1e8
    )
    assert plain > 2 * blocked > 2e8


def test_operands_that_stay_in_the_first_cache_cost_nothing_more() -> None:
    plan = make_plan(tw.Gemm(16, 16, 16), tw.Schedule(), targets.load("avx2"))
    assert cycles(plan.staging, Nest("nmk"), dict.fromkeys("mnk", 16), (6, 16), 1000) == 1000
