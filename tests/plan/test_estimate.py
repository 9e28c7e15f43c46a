"""What a whole kernel is estimated to take, and what passes into each cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tilewright.generate import plan_for
from tilewright.isa.machine import Cache
from tilewright.isa.target import Target
from tilewright.plan.estimate.caches import (
    Cycles,
    Lines,
    Pages,
    Piece,
    Region,
    Repeat,
    Series,
    lost,
    passing,
    work,
)
from tilewright.plan.estimate.kernel import Estimate, estimate
from tilewright.plan.estimate.stack import estimate_stack
from tilewright.plan.problem import NOMINAL
from tilewright.runtime.machine.host import resolve
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Packed, Strided
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim

KIB = 1024
ITEM = 4


def zen4() -> Target:
    return resolve("avx512+zen4")


def of(
    spec: Gemm, schedule: Schedule | None = None, *, cold: bool = False, **sizes: int
) -> Estimate:
    return estimate(plan_for(spec, schedule or Schedule(), zen4()), sizes, cold=cold)


def flat(size: float) -> Region:
    return Region(1, size, size)


# --- caches --------------------------------------------------------------------------------------


def test_a_region_lies_in_whole_lines_of_each_row() -> None:
    assert Region(10, 64, 256).units(64) == 10
    assert Region(10, 16, 256).units(64) == 10
    assert Region(1, 640, 640).units(64) == 10
    assert 10 < Region(10, 64, 260).units(64) < 20, "rows that begin anywhere reach into two"
    assert Region(64, 192, 4096).units(4096) == 64
    assert Region(64, 192, 512).units(4096) == pytest.approx(8, abs=1)


def test_rows_a_power_of_two_apart_share_few_places() -> None:
    first = Lines(32 * KIB, 64, places=True)
    panel = Region(256, 64, 4096)
    assert first.taken(panel) == 16 * KIB
    assert first.crowded(panel) == 64 * 16 * KIB, "all in one of 64 sets"
    assert first.crowded(Region(256, 64, 4160)) == 16 * KIB
    assert Lines(32 * KIB, 64, places=False).crowded(panel) == 16 * KIB


def test_what_a_loop_does_not_change_stays_where_all_that_a_trip_touches_fits() -> None:
    cache = Lines(32 * KIB, 64, places=True)
    for held, times in ((8 * KIB, 1), (1024 * KIB, 10)):
        body = Piece({"a": flat(4 * KIB), "b": flat(held)}, Cycles({"x": 1.0}))
        nest = Repeat(10, frozenset("a"), body, {"a": flat(40 * KIB), "b": flat(held)})
        assert passing(nest, cache) == {"a": 40 * KIB, "b": times * held}
        assert work(nest).total == 10


def test_a_nest_is_estimated_once_for_each_cache() -> None:
    first, second = (Lines(size * KIB, 64, places=False) for size in (1, 512))
    body = Piece({"b": flat(4 * KIB)}, Cycles({"x": 1.0}))
    nests = [Repeat(trips, frozenset(), body, body.regions) for trips in (3, 5)]
    moved = [passing(nest, cache) for nest in nests for cache in (first, second)]
    assert [each["b"] / KIB for each in moved] == [12, 4, 20, 4]
    again = [passing(nest, cache) for nest in nests for cache in (first, second)]
    assert all(one is other for one, other in zip(moved, again, strict=True))
    other = replace(nests[0], trips=7)
    assert (passing(other, first)["b"], work(other).total) == (28 * KIB, 7)
    assert nests[0] == Repeat(3, frozenset(), body, body.regions)


def test_neighbours_that_share_lines_bring_them_once() -> None:
    body = Piece({"b": Region(8, 16, 4160)}, Cycles())
    nest = Repeat(4, frozenset("b"), body, {"b": Region(8, 64, 4160)})
    assert passing(nest, Lines(32 * KIB, 64, places=True)) == {"b": 8 * 64}
    assert passing(nest, Pages(4))["b"] > 8, "four pages do not last until the next trip"
    assert passing(nest, Pages(64))["b"] == pytest.approx(9, abs=1)


def test_what_is_packed_is_read_from_the_cache_that_holds_it() -> None:
    fill = Piece({"b": flat(256 * KIB), "b packed": flat(256 * KIB)}, Cycles({"packing": 5.0}))
    tiles = Piece({"b packed": flat(256 * KIB), "c": flat(KIB)}, Cycles({"loads": 7.0}))
    every = {"b": flat(256 * KIB), "b packed": flat(256 * KIB), "c": flat(KIB)}
    nest = Series((fill, tiles), frozenset(), every)
    assert work(nest).bounds == {"packing": 5, "loads": 7}
    assert passing(nest, Lines(1024 * KIB, 64, places=True))["b packed"] == 256 * KIB
    assert passing(nest, Lines(32 * KIB, 64, places=True))["b packed"] == 512 * KIB
    assert set(lost(nest, Lines(1024 * KIB, 64, places=True)).values()) == {0}


# --- kernels -------------------------------------------------------------------------------------


def test_operands_in_the_first_cache_cost_nothing_to_arrive() -> None:
    found = of(Gemm(32, 32, 32))
    assert not any(each.bytes for each in found.arrivals.values())
    assert found.operands == 3 * 32 * 32 * ITEM
    assert found.least == 32**3 / 16
    assert found.least <= found.cycles < 1.5 * found.least


def test_from_memory_every_operand_comes_once() -> None:
    found = of(Gemm(64, 48, 64), cold=True)
    once = (64 * 64 + 64 * 48 + 2 * 64 * 48) * ITEM
    assert found.arrivals["memory"].bytes == once, "what is written comes, and goes back"
    assert found.cycles > of(Gemm(64, 48, 64)).cycles


@pytest.mark.parametrize("size", [3, 16])
def test_a_stack_takes_what_each_product_does_and_brings_all_of_them(size: int) -> None:
    """Side by side, and one after the other."""
    count = 10_000
    spec = Gemm(size, size, size, batch=Strided(dim("count"), c=None))
    plan: Any = plan_for(spec, Schedule(), zen4())
    assert (plan.each is None) == (size == 3)
    few, many = (estimate_stack(plan, {"count": n}) for n in (10, count))
    once = size * size * ITEM
    assert few.operands <= 64 * KIB < many.operands
    assert many.work.keys() == few.work.keys()
    assert sum(many.work.values()) == pytest.approx(count / 10 * sum(few.work.values()))
    cold = estimate_stack(plan, {"count": count}, cold=True)
    assert cold.arrivals["memory"].bytes == pytest.approx(4 * count * once, rel=0.01)
    assert cold.cycles >= many.cycles >= many.least > 0


def test_one_matrix_for_all_of_a_stack_comes_once() -> None:
    moved = []
    for stride in (0, None):
        spec = Gemm(16, 16, 16, batch=Strided(1000, b=stride, c=None))
        plan: Any = plan_for(spec, Schedule(loops="bnmk"), zen4())
        moved.append(estimate_stack(plan, {}, cold=True).arrivals["memory"].bytes)
    assert moved[1] - moved[0] == pytest.approx(999 * 16 * 16 * ITEM, rel=0.01)


def test_a_b_beyond_the_second_cache_comes_for_each_row_of_tiles() -> None:
    spec, tile = Gemm(64, 1024, 512), (4, 64)
    b = 1024 * 512 * ITEM
    rows = of(spec, Schedule(tile=tile, loops="mnk")).arrivals["L3"].bytes
    assert 0.9 * 16 * b < rows < 1.2 * 16 * b
    blocked = Schedule(tile=tile, loops="nmnk", block={"n": 128}, pack="b")
    assert of(spec, blocked).arrivals["L3"].bytes < 0.5 * rows


def test_blocks_that_caches_hold_take_less_than_none() -> None:
    spec = Gemm(2048, 2048, 2048)
    blocked = of(spec)
    assert blocked.cycles < of(spec, Schedule(tile=(8, 48), loops="nmk")).cycles
    assert blocked.bound == "multiply-add units"
    assert "packing" in blocked.work


@pytest.mark.parametrize("m", [1, 2])
def test_a_thin_product_of_a_large_b_is_bound_by_memory(m: int) -> None:
    found = of(Gemm(m, 4096, 2048), cold=True)
    assert found.bound == "memory"
    assert found.arrivals["memory"].bytes >= 4096 * 2048 * ITEM
    assert of(Gemm(m, 48, 64)).bound != "memory"


def test_the_numbers_of_the_core_decide() -> None:
    target = zen4()
    slow = replace(target.core, caches=(Cache(4 * KIB, 64), Cache(1024 * KIB, 1)), memory=0.1)
    plan = plan_for(Gemm(64, 64, 64), Schedule(), replace(target, core=slow))
    assert estimate(plan, {}).bound == "L2"
    assert estimate(plan, {}, cold=True).bound == "memory"


def test_threads_cut_panels_that_are_not_as_many_as_they_are() -> None:
    spec, target = Gemm(509, 24, 400, b=Packed("f32", nb=8)), resolve("avx2+zen4")
    plan = plan_for(spec, Schedule(loops="NMk", threads=2), target)
    one, two = (estimate(plan, {}, threads=threads).cycles for threads in (1, 2))
    assert 0.5 < two / one < 0.6, "a thread does one and a half of three panels"


def test_sizes_of_the_call_are_given_or_nominal() -> None:
    spec = Gemm(dim("m"), dim("n"), dim("k"))
    small, large = of(spec), of(spec, m=256, n=256, k=256)
    assert small.least == NOMINAL**3 / 16
    assert large.least == 256**3 / 16
    assert large.cycles > 32 * small.cycles


@pytest.mark.parametrize(
    "spec",
    [
        Gemm(64, 64, 64, batch=Strided(5)),
        Gemm(64, 64, 320, a="u8", b="s8", d="u8", d_scale=0.5),
        Gemm(33, 70, 65, a="bf16", b=Packed("bf16", 32), beta=1),
        Gemm(13, 7, 0),
        Gemm(40, 40, 40, order="F", beta=2),
        Gemm(64, 64, 64, a="f64", b="f64"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("name", ["avx512+vnni+bf16", "avx2", "neon", "scalar", "amx"])
def test_every_plan_has_an_estimate(spec: Gemm, name: str) -> None:
    plan = plan_for(spec, Schedule(), resolve(name))
    hot, cold = (estimate(plan, {}, cold=cold) for cold in (False, True))
    assert 0 <= hot.cycles <= cold.cycles
    assert hot.least <= hot.cycles
    assert hot.bound in {*hot.work, *hot.arrivals}
