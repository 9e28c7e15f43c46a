"""The cost model on a machine that does not exist: 7 registers of 3 lanes, a latency of 9.

Nothing in the model may know a size, a shape or a CPU: it plans for this one as for any other, and
what it plans is interpreted against numpy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import gcd, inf
from typing import Any

import numpy as np
import pytest
from support.products.operands import operands
from support.products.space import Case, case
from sympy import Expr, Integer

from tilewright.errors import ScheduleError
from tilewright.generate import explain_plan, interpret_kernel, plan_for, program_for
from tilewright.interpret.run import interpret
from tilewright.isa.machine import Core
from tilewright.isa.target import Target
from tilewright.isa.vector import Mask, MulAdd, Vector
from tilewright.plan.plan import Plan
from tilewright.plan.tiling.bounds import bounds, chains_wanted, step_cycles
from tilewright.plan.tiling.cost_model import (
    CLOSE,
    choose,
    equal_parts,
    ranking,
    steady,
)
from tilewright.plan.tiling.requests import request_at
from tilewright.plan.tiling.tile_costs import EXPOSED, UNASKED, tile_cycles, tile_table
from tilewright.plan.tiling.tile_shape import TileRequest
from tilewright.plan.tiling.tiles import RegisterTile
from tilewright.runtime.machine.host import resolve
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Matrix, Order
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from tilewright.spec.types import TypeName

ORDERS: tuple[Order, ...] = ("C", "F")
MASK = Mask(ctype="predicate", make="first({count})", load="", store="", registers=0)


def request_of(plan: Plan, steps: Expr) -> TileRequest:
    """Return the request for a tile that reads the operands outside all loops."""
    return request_at(plan.staging, plan.nest, steps, False)


def vector(
    element: str, lanes: int, *, masked: bool, partial: bool, forms: tuple[Any, ...]
) -> Vector:
    cuts = dict.fromkeys(range(1, lanes), "") if partial else {}
    return Vector(
        name=f"v{lanes}",
        element=element,
        lanes=lanes,
        ctype="",
        zero="",
        load="",
        store="",
        broadcast="",
        splat="",
        muladd=tuple(MulAdd(form=f, mnemonic="", spelling="", cols=lanes) for f in forms),
        sum_lanes="",
        mask=MASK if masked and lanes > 1 else None,
        partial_load=cuts,
        partial_store=cuts,
        ops={"eq": "", "select": ""},  # what a beta known only at the call asks for
    )


def invented(
    *forms: str, masked: bool = False, partial: bool = False, registers: int = 7, latency: int = 9
) -> Target:
    vectors = []
    for element in ("f32", "f64"):
        wide = forms or ("broadcast",)
        vectors += [
            vector(element, 3, masked=masked, partial=partial, forms=wide),
            vector(element, 1, masked=False, partial=False, forms=("scalar",)),
        ]
    vectors += [vector("s32", lanes, masked=False, partial=False, forms=()) for lanes in (3, 1)]
    return Target(
        name="invented",
        title="a machine that does not exist",
        machine="",
        cpu_flags=(),
        compiler_flags=(),
        zig_flags=(),
        headers=(),
        registers=registers,
        vectors=tuple(vectors),
        core=Core(fma_latency=latency, fma_units=1, loads=1, stores=1, issue=2),
    )


TARGETS = {
    "plain": invented(),
    "masks": invented(masked=True),
    "partial accesses": invented("broadcast", "lane", partial=True),
    "memory operands": invented("broadcast", "memory", masked=True),
    "scalar operands": invented("broadcast", "scalar", partial=True),
}
every_kind = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


def planned(spec: Gemm, target: Target, schedule: Schedule | None = None) -> Iterator[RegisterTile]:
    plan = plan_for(spec, schedule or Schedule(), target)
    program_for(plan)  # its tiles are verified
    for found in plan.tiling.tiles:
        assert found.shape.budget.total <= target.registers
    yield from plan.tiling.tiles


# -- legal --------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("orders", list(product(ORDERS, repeat=3)), ids="".join)
def test_every_order_agrees_with_numpy(target: Target, orders: tuple[Order, ...]) -> None:
    rng = np.random.default_rng(3)
    for m, n, k in ((1, 1, 1), (7, 10, 5), (12, 12, 12), (1, 13, 9), (13, 1, 9), (2, 5, 31)):
        a, b, c = (
            np.asarray(rng.integers(-4, 5, shape), "f4", order=order)
            for shape, order in zip(((m, k), (k, n), (m, n)), orders, strict=True)
        )
        expected = 2 * a @ b + c
        matrices: dict[str, Any] = {x: Matrix("f32", o) for x, o in zip("abc", orders, strict=True)}
        spec = Gemm(m, n, k, **matrices, alpha=2, beta=1)
        assert list(planned(spec, target))
        interpret_kernel(spec, Schedule(), target, [a, b, c])
        np.testing.assert_array_equal(c, expected)


@every_kind
@pytest.mark.parametrize("index", range(15))
def test_cases_of_the_whole_space_agree_with_numpy(target: Target, index: int) -> None:
    one: Case = case(target, seed=2, index=index)
    plan = plan_for(one.spec, one.schedule, target)
    given = operands(one, "integers")
    sizes = [value for _, value in one.values]
    interpret(plan, program_for(plan), given.arguments, sizes, one.scalars)
    given.check(given.c)


# -- sensible -----------------------------------------------------------------------------------


def test_a_large_product_uses_the_wide_vectors_and_most_registers() -> None:
    for orders in ("C", "F"):
        for found in planned(Gemm(60, 60, 60, order=orders), invented()):
            assert found.shape.vector.lanes == 3
            assert found.shape.budget.accumulators >= 4


def test_sizes_of_the_call_get_the_same_main_tile() -> None:
    tiles = list(planned(Gemm(dim("m"), dim("n"), dim("k")), invented(masked=True)))
    best = max(tiles, key=lambda f: f.shape.budget.accumulators)
    assert best.shape.vector.lanes == 3 and best.shape.budget.accumulators >= 4


def test_a_core_that_hides_few_stores_gets_tiles_of_few_vectors() -> None:
    target = invented(registers=24, latency=2)
    dear = replace(target, core=replace(target.core, hidden=4, late=30))
    plain, few = (list(planned(Gemm(60, 60, 60), t)) for t in (target, dear))
    assert min(found.shape.outputs for found in plain) > 4
    assert max(found.shape.outputs for found in few) <= 4
    text = explain_plan(plan_for(Gemm(9, 9, 9), Schedule(), dear))
    assert "4 stores of a tile cost nothing" in " ".join(text.split())


def test_what_a_core_overlaps_is_not_charged() -> None:
    core = invented().core
    (found,) = planned(Gemm(2, 3, 90), invented())
    each = bounds(found.shape, core).values()
    assert step_cycles(found.shape, replace(core, overlap=0)) == max(each)
    assert step_cycles(found.shape, replace(core, overlap=1)) == sum(each)


def test_a_multiply_add_may_have_a_latency_of_its_own() -> None:
    target = invented(registers=24, latency=2)
    slow = tuple(
        replace(vector, muladd=tuple(replace(op, latency=9) for op in vector.muladd))
        for vector in target.vectors
    )
    short, long = (
        next(planned(Gemm(1, 3, 90), t, Schedule(k_split=1)))
        for t in (target, replace(target, vectors=slow))
    )
    assert bounds(short.shape, target.core)["latency"] == 2
    assert bounds(long.shape, target.core)["latency"] == 9
    assert chains_wanted(long.shape, target.core) == 9


def test_a_core_that_wants_a_choice_gets_more_chains_than_hide_its_latency() -> None:
    target = invented(registers=24, latency=4)
    core = replace(target.core, loads=4, issue=9, late=9, overlap=0, idle=0)
    just, more = (
        list(planned(Gemm(60, 60, 60), replace(target, core=slow), Schedule(k_split=1)))
        for slow in (replace(core, hidden=4, strain=strain) for strain in (0, 9))
    )
    assert {found.shape.outputs for found in just} == {4}
    assert min(found.shape.outputs for found in more) >= 6


def test_vectors_that_begin_anywhere_touch_more_lines() -> None:
    core = invented().core
    whole, odd = (next(planned(Gemm(2, n, 90), invented())).shape for n in (6, 7))
    assert (whole.stride, odd.stride) == (24, 28)
    aligned = replace(whole, stride=0)
    assert aligned.touched(core) == aligned.loads
    assert whole.touched(core) == whole.loads, "12 bytes at multiples of 12"
    beyond = (3 * 4 - 4) / core.line
    assert replace(whole, stride=28).touched(core) == whole.loads + whole.vectors * beyond
    assert bounds(odd, core)["loads"] == odd.touched(core) / core.loads


def test_vectors_along_k_touch_more_lines_of_both_operands() -> None:
    """Rows of 21 floats begin anywhere; those of 32 do not, nor does what was packed."""
    target, shapes = resolve("avx512"), {}
    for k in (21, 32):
        spec = Gemm(4, 3, k, b=Matrix("f32", "F"))
        tile = next(planned(spec, target, Schedule(vectorize="k"))).shape
        shapes[k] = tile
        size, beyond = 4 * k, tile.touched(target.core) - tile.loads
        crossed = (64 - gcd(size, 64)) / 64 * target.core.crossing * tile.loads
        assert tile.lines == (size, size) and beyond == pytest.approx(crossed), k
    assert shapes[32].touched(target.core) == shapes[32].loads
    packs = Gemm(4, 3, 21)
    (turned,) = {each.shape.lines for each in planned(packs, target, Schedule(vectorize="k"))}
    assert sorted(turned) == [0, 4 * 21], "B, which lies across, is packed"


def test_a_busy_neighbour_takes_operations_away_and_no_multiply_adds() -> None:
    core = resolve("avx512").core
    (alone, plain), *others = resolve("avx512").states
    assert plain == core and alone + sum(share for share, _ in others) == pytest.approx(1)
    for _, busy in others:
        assert (busy.fma_units, busy.fma_latency) == (core.fma_units, core.fma_latency)
        assert busy.issue < core.issue and busy.loads < core.loads and busy.memory < core.memory


def test_of_tiles_that_are_near_one_that_reads_from_memory_loses_least() -> None:
    """Where threads share the core, and offsets of its rows are known."""
    target = resolve("avx512+emeraldrapids")
    fixed, given = Gemm(60, 32, 66), Gemm(60, 32, 66, lda=dim("lda"))
    shapes = {tile.shape.form for tile in planned(fixed, target)}
    assert shapes == {"memory"}
    for spec, on in ((fixed, replace(target, threads=1)), (given, target)):
        (shape,) = {tile.shape for tile in planned(spec, on)}
        assert shape.vectors == 2 and shape.form != "memory", on.threads
    request = request_of(plan_for(fixed, Schedule(), target), Integer(66))
    first, *others = ranking(target, 60, 32, True, request)
    fewest = min(each.cycles for each in others)
    assert fewest < first.cycles <= CLOSE * fewest


def test_tiles_of_no_steps_are_ranked_on_a_core_that_hides_their_ends() -> None:
    target = resolve("avx512")
    free = replace(target, core=replace(target.core, idle=0, hidden=64))
    plan = plan_for(Gemm(dim("m"), dim("n"), dim("k")), Schedule(), free)
    request = replace(request_of(plan, Integer(0)), steps=0)
    first, *others = steady(free, request, (1, 1))
    assert first.cycles == 0 and others


def test_broadcasts_that_take_multiply_add_units_bound_narrow_tiles() -> None:
    core = replace(invented().core, spread=1.5)
    (found,) = planned(Gemm(4, 3, 90), invented())
    wide = replace(found.shape, vectors=4)
    tall = replace(found.shape, rows=4, vectors=1)
    assert bounds(tall, core)["broadcasts"] == (4 + 4) * 1.5 / 2
    assert "broadcasts" not in bounds(wide, core) | bounds(replace(tall, form="memory"), core)
    assert "broadcasts" not in bounds(tall, invented().core)


def test_rows_apart_that_only_the_call_knows_are_counted_by_the_line() -> None:
    """In blocks of K: a tile needs lines of both operands, and one that is nearly square fewest."""
    (found,) = planned(Gemm(8, 3, 90), invented())
    plain = request_of(plan_for(Gemm(8, 3, 90), Schedule(), invented()), Integer(90))
    near, apart = (replace(plain, l1_rows=kept, stride=0) for kept in ((inf, inf), (16, inf)))
    core, sizes = invented().core, ((1, 4), (4, 1))
    more = []
    for r, v in sizes:
        shape = replace(found.shape, rows=r, vectors=v, stride=0)
        more.append(tile_cycles(shape, core, apart) - tile_cycles(shape, core, near))
    lines = [(12 * v + UNASKED * 4 * r) / core.line + 1 for r, v in sizes]
    late = 90 * EXPOSED * core.line / core.second.rate
    assert more == pytest.approx([late * each for each in lines])


def test_too_few_chains_are_split_over_k() -> None:
    (found,) = planned(Gemm(1, 3, 90), invented())
    assert found.shape.k_split > 1
    for found in planned(Gemm(12, 12, 90), invented(latency=1)):
        assert found.shape.k_split == 1


def test_a_form_that_needs_no_register_is_used_where_registers_are_short() -> None:
    spec = Gemm(6, 3, 64)
    (found,) = planned(spec, invented("broadcast", "memory"))
    assert found.shape.form == "memory" and found.shape.budget.accumulators == 6


def test_a_region_is_cut_into_equal_parts() -> None:
    assert equal_parts(13, 3) == ((5, 1), (4, 2))
    for found in planned(Gemm(14, 3, 90), invented(latency=1)):
        assert found.mr in (4, 5), "14 rows in parts of 5 and less, none much smaller"


def test_what_is_compared_begins_with_what_is_chosen() -> None:
    target = invented(masked=True)
    for across, along in ((13, 7), (14, 3), (60, 60)):
        request = request_of(plan_for(Gemm(across, along, 30), Schedule(), target), Integer(30))
        best, *others = ranking(target, across, along, True, request)
        assert best == choose(target, across, along, True, request)
        cycles = [best.cycles, *(other.cycles for other in others)]
        assert cycles == sorted(cycles)
        assert best not in others and len(others) >= 2
        covered = [sum(size * count for size, count in cut.across) for cut in (best, *others)]
        assert set(covered) == {across}


def test_a_tail_has_a_block_of_its_own() -> None:
    tiles = list(planned(Gemm(8, 10, 30), invented(partial=True), Schedule(tile=(2, 6))))
    assert any((found.mr, found.nr) == (2, 6) for found in tiles)
    assert all(found.shape.budget.total <= 7 for found in tiles)


def test_a_tile_that_does_not_fit_is_refused_with_one_that_does() -> None:
    with pytest.raises(ScheduleError, match=r"needs .* vector registers on invented") as error:
        list(planned(Gemm(12, 12, 12), invented(), Schedule(tile=(4, 6))))
    hint = re.match(r"tile=\((\d+), (\d+)\)", error.value.hint or "")
    assert hint is not None and "mr=4 rows by nr=6 columns" in str(error.value)
    legal = int(hint[1]), int(hint[2])
    assert list(planned(Gemm(12, 12, 12), invented(), Schedule(tile=legal)))
    with pytest.raises(ScheduleError, match="7 registers"):
        list(planned(Gemm(12, 12, 12), invented(), Schedule(k_split=9, k_unroll=9)))


def test_bounds_follow_from_the_core_alone() -> None:
    (found,) = planned(Gemm(1, 3, 90), invented(), Schedule(k_split=1))
    each = bounds(found.shape, invented().core)
    assert max(each, key=lambda name: each[name]) == "latency"
    assert each["latency"] == 9 and each["multiply-add units"] == 1
    text = explain_plan(plan_for(Gemm(1, 3, 90), Schedule(k_split=1), invented()))
    assert "latency: 11% of peak" in text


@pytest.mark.parametrize("name", ["scalar", "avx2", "avx512", "avx512+vnni+bf16", "amx", "neon"])
@pytest.mark.parametrize("type_", ["f32", "bf16", "s8"])
def test_no_taller_tile_fits(name: str, type_: TypeName) -> None:
    """The search begins with the tallest tile whose accumulators fit; no taller one does."""
    plan = plan_for(Gemm(64, 64, 64, a=type_, b=type_), Schedule(), resolve(name))
    request = request_of(plan, plan.problem.sizes["k"])
    for vector in request.vectors:
        for vectors in range(1, plan.target.registers + 1):
            most = request.tallest(plan.target, vector, vectors)
            assert most < request.most_rows(plan.target)
            for rows in range(most + 1, request.most_rows(plan.target), 3):
                assert not tile_table(plan.target, request).fits(vector, rows, vectors, False)
