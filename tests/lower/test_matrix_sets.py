"""K over several sets of a matrix unit's accumulators: when, in which registers, what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from support.cases import Cases
from support.products.interpreted import Interpreted, small_cases

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.generate import Request, explain_plan, generate, plan_for, program_for
from tilewright.ir.nodes import walk
from tilewright.ir.ops import (
    Loop,
    MultiplyMatrices,
    StoreMatrix,
    TileProgram,
    ZeroMatrix,
)
from tilewright.runtime.driver import build_many
from tilewright.targets import load

AMX = load("amx")
M, N, K, COUNT = (tw.dim(name) for name in ("m", "n", "k", "count"))
bias, gain = tw.Operand("bias", "f32", "column"), tw.Operand("gain", "f32", "row")
LONG = tw.Gemm(16, 16, 512, a="bf16")
LONG_K = tw.dim("k", multiple_of=171)


def program_of(spec: tw.Gemm, schedule: tw.Schedule | None = None) -> list[TileProgram]:
    plan = plan_for(spec, schedule or tw.Schedule(), AMX)
    return [tile for tile in program_for(plan).tiles if tile.numbers]


def sets(spec: tw.Gemm, schedule: tw.Schedule | None = None) -> list[int]:
    """The accumulator sets of each tile that uses the matrix unit."""
    tiles = plan_for(spec, schedule or tw.Schedule(), AMX).tiling.tiles
    return [tile.shape.k_split for tile in tiles]


def with_sets(schedule: tw.Schedule, count: int) -> tw.Schedule:
    """``schedule`` with K over ``count`` sets, and the unrolling left out."""
    chosen: dict[str, Any] = {f.name: getattr(schedule, f.name) for f in fields(schedule)}
    chosen |= {"block": dict(schedule.block), "k_unroll": None, "k_split": count}
    return tw.Schedule(**chosen)


# -- what is chosen -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (LONG, 4),
        (tw.Gemm(16, 16, 512, a="bf16", b=tw.Packed("bf16")), 4),
        (tw.Gemm(16, 16, 512, a="s8", b=tw.Packed("s8")), 4),
        (tw.Gemm(16, 32, 512, a="s8"), 2),  # two chains, and registers for two sets of them
        (tw.Gemm(32, 16, K, a="u8"), 2),
        (tw.Gemm(16, 16, 256, a="s8"), 2),  # four steps, two for each set
        (tw.Gemm(16, 16, 240, a="s8"), 2),  # steps of 60
        (tw.Gemm(16, 16, 192, a="s8"), 1),
        (tw.Gemm(16, 16, 97, a="bf16"), 2),  # three steps, and a cut one
        (tw.Gemm(16, 16, 34, a="bf16"), 1),  # one step, and a cut one
        (tw.Gemm(16, 16, 64, a="bf16", batch=tw.Strided(16)), 2),  # of each matrix two steps
        (tw.Gemm(16, 16, 31, a="bf16", batch=tw.Strided(16)), 1),  # of each matrix one
        (tw.Gemm(64, 64, 64, a="bf16"), 1),
        (tw.Gemm(64, 64, 4096, a="s8"), 1),  # four chains already
        (tw.Gemm(16, 48, 512, a="s8"), 1),  # registers for one set of three chains only
    ],
)
def test_the_cost_model_splits_what_the_latency_bounds(spec: tw.Gemm, expected: int) -> None:
    assert {*sets(spec)} == {expected}


def test_the_choice_follows_from_the_unit_s_data() -> None:
    assert AMX.matrix is not None
    for latency, expected in ((16, 1), (32, 2), (52, 4)):
        target = replace(AMX, matrix=replace(AMX.matrix, latency=latency))
        assert plan_for(LONG, tw.Schedule(), target).tiling.tiles[0].shape.k_split == expected
    slow = replace(AMX, core=replace(AMX.core, stores=0.01))
    assert plan_for(LONG, tw.Schedule(), slow).tiling.tiles[0].shape.k_split == 1


def told(spec: tw.Gemm, schedule: tw.Schedule | None = None) -> str:
    """What ``explain`` says, on one line."""
    return " ".join(explain_plan(plan_for(spec, schedule or tw.Schedule(), AMX)).split())


def test_explain_says_why() -> None:
    why = "K sets 4: 1 chain of multiply-adds, too few to hide the latency, which takes 4; "
    assert f"{why}485 cycles a tile, 584 with 2" in told(LONG)
    assert "4 steps of 32 K per iteration: an iteration has a step for each set" in told(LONG)
    short = told(tw.Gemm(16, 16, 64, a="bf16"), tw.Schedule(k_split=2))
    assert "K sets 2: asked for: 2 chains; 4 hide the latency" in short
    assert "all of K, without a loop: K is less than two iterations" in short
    square = told(tw.Gemm(64, 64, 4096, a="bf16"))
    assert "K sets 1: 4 chains of multiply-adds, enough to hide the latency" in square
    assert "2 sets need 12 of 8 registers" in square
    assert (
        "4 accumulators + 1 A + 1 B = 6 of 8 tmm, K over 4 sets"
        in generate([Request("k", LONG, tw.Schedule(), AMX)]).text
    )


def test_variants_try_the_numbers_of_sets() -> None:
    found = [*tw.variants(tw.Gemm(16, 16, 512, a="bf16", b=tw.Packed("bf16")), "amx")]
    whole = [schedule.k_split for schedule in found if schedule.tile == (16, 16)]
    assert {*whole} == {1, 2, 4} and whole[0] == 4
    assert not [s for s in tw.variants(tw.Gemm(16, 16, 64, a="s8"), "amx") if s.k_split != 1]


# -- registers and steps --------------------------------------------------------------------------


def products(tile: TileProgram) -> Iterator[tuple[int, list[str]]]:
    """For the loops of a tile, and what follows: how deep, and the sums of the products."""
    straight = tuple(op for op in tile.body if not isinstance(op, Loop))
    loops = [op for op in tile.body if isinstance(op, Loop)]
    for depth, ops in [*((1, loop.body) for loop in loops), (0, straight)]:
        yield depth, [op.acc.name for op in walk(ops) if isinstance(op, MultiplyMatrices)]


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        (128, [(1, ["c0_0", "c0_0_s1"]), (0, [])]),
        (160, [(1, ["c0_0", "c0_0_s1"]), (0, ["c0_0"])]),
        (96, [(0, ["c0_0", "c0_0_s1", "c0_0"])]),
        (66, [(0, ["c0_0", "c0_0_s1", "c0_0"])]),  # two steps of 22 and what is left
        (32, [(0, ["c0_0"])]),
        (K, [(1, ["c0_0", "c0_0_s1"]), (1, ["c0_0"]), (1, ["c0_0"]), (0, [])]),
    ],
)
def test_steps_take_the_sets_in_turn(k: Any, expected: list[tuple[int, list[str]]]) -> None:
    (tile,) = program_of(tw.Gemm(16, 16, k, a="bf16"), tw.Schedule(k_split=2))
    assert [*products(tile)] == expected
    zeroed = [op.dst.name for op in tile.body if isinstance(op, ZeroMatrix)]
    stored = [op.src.name for op in walk(tile.end) if isinstance(op, StoreMatrix)]
    assert zeroed == stored == ["c0_0", "c0_0_s1"]


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        (320, [(1, ["c0_0"] * 3), (0, ["c0_0"])]),
        (160, [(0, ["c0_0"] * 5)]),
        (K, [(1, ["c0_0"] * 3), (1, ["c0_0"]), (1, ["c0_0"]), (0, [])]),
    ],
)
def test_a_trip_has_as_many_steps_as_asked(k: Any, expected: list[tuple[int, list[str]]]) -> None:
    schedule = tw.Schedule(k_split=1, k_unroll=3)
    (tile,) = program_of(tw.Gemm(16, 16, k, a="bf16"), schedule)
    assert [*products(tile)] == expected
    assert "asked for" in told(tw.Gemm(16, 16, k, a="bf16"), schedule)


def test_one_set_is_stored_where_it_belongs() -> None:
    (tile,) = program_of(tw.Gemm(16, 16, 512, a="bf16"), tw.Schedule(k_split=1))
    (store,) = [op for op in tile.end if op.kind != "note"]
    assert isinstance(store, StoreMatrix) and store.address.pointer == "c"


def test_sets_that_do_not_fit_are_refused() -> None:
    short = r"(?s)tile 32x32 needs 12 matrix registers on amx \(8 accumulators.*it has 8"
    with pytest.raises(ScheduleError, match=short):
        program_of(tw.Gemm(64, 64, 512, a="s8"), tw.Schedule(tile=(32, 32), k_split=2))
    with pytest.raises(ScheduleError, match=r"(?s)k_split \(7,\) fits amx's 8 registers.*smaller"):
        program_of(tw.Gemm(16, 16, 512, a="s8"), tw.Schedule(k_split=7))
    with pytest.raises(ScheduleError, match=r"k_split \(7,\) does not fit amx's 8 registers"):
        program_of(tw.Gemm(M, 16, 512, a="s8"), tw.Schedule(k_split=7))
    assert sets(tw.Gemm(16, 16, 512, a="s8"), tw.Schedule(k_split=6)) == [6]
    assert {*sets(tw.Gemm(64, 64, 512, a="s8"), tw.Schedule(k_split=2))} == {2}


# -- numbers --------------------------------------------------------------------------------------

#: Products by where their sums meet: tails, what is known at the call, batches, ends of tiles.
SPECS: dict[str, tw.Gemm] = {
    "steps": tw.Gemm(16, 16, 256, a="bf16"),
    "one row, a tail of K": tw.Gemm(1, 16, 250, a="bf16", b=tw.Packed("bf16")),
    "tails of all": tw.Gemm(21, 37, 333, a="s8", b=tw.Packed("s8"), beta=1),
    "in columns": tw.Gemm(19, 20, 200, a="u8", b="s8", order="F", beta=1),
    "C in columns, M of the call": tw.Gemm(M, 16, 130, a="bf16", c=tw.Matrix("f32", "F")),
    "all of the call": tw.Gemm(M, N, K, a="s8", b="u8", beta=1),
    "long K of the call": tw.Gemm(5, 16, LONG_K, a="bf16", d="bf16", epilogue=tw.relu(tw.acc)),
    "factors of the call": tw.Gemm(16, 24, 160, a="bf16", alpha="scalar", beta="scalar"),
    "strided": tw.Gemm(16, 16, 130, a="bf16", batch=tw.Strided(3), beta=1),
    "addresses of the call": tw.Gemm(9, 18, LONG_K, a="s8", batch=tw.Addresses(COUNT)),
    "offsets": tw.Gemm(16, 16, 192, a="u8", b="s8", batch=tw.Offsets(COUNT), beta=2),
    "a converted batch": tw.Gemm(
        M, 17, 150, a="bf16", c=tw.Matrix("bf16", "F"), beta=1, batch=tw.Strided(COUNT),
    ),
    "scales and zero points": tw.Gemm(
        18, 21, 270, a="u8", b=tw.Packed("s8"), d="u8", a_zero=3, b_zero="column",
        a_scale="row", b_scale="column", d_scale="scalar", d_zero=7,
        epilogue=tw.relu(tw.acc + bias),
    ),
    "outputs": tw.Gemm(
        17, 40, 200, a="bf16", d="f32", epilogue=tw.gelu_erf(tw.acc * gain),
        outputs={"amax": tw.row_absmax(tw.acc), "total": tw.row_sum(tw.acc)},
    ),
    "gated": tw.Gemm(
        16, 20, 140, a="bf16", b="bf16", b2="bf16", d="bf16",
        epilogue=tw.maximum(tw.acc, tw.acc2),
    ),
    "gated, in columns": tw.Gemm(
        M, 16, 192, a="s8", b="s8", b2="s8", d=tw.Matrix("f32", "F"),
        epilogue=tw.maximum(tw.acc + bias, tw.acc2),
    ),
}  # fmt: skip
BATCH_LOOPS = ("nmbk", "bnmk", "nbmk")


def schedules(spec: tw.Gemm) -> Iterator[tw.Schedule]:
    """The loops chosen, those that cut K and, of a batch, every place it may stand."""
    yield from (tw.Schedule(k_split=count) for count in (2, 3, 4))
    yield tw.Schedule(k_split=1, k_unroll=3)
    yield tw.Schedule(k_split=2, k_unroll=4)
    yield tw.Schedule(k_split=2, loops="bknmk" if spec.batch else "knmk", block={"k": 128})
    yield from (tw.Schedule(k_split=4, loops=loops) for loops in BATCH_LOOPS if spec.batch)


@pytest.mark.parametrize("name", SPECS)
def test_sums_of_all_sets_are_the_product(name: str, cases: Cases) -> None:
    """Interpreted: every access is checked, and what is read was written."""
    spec = SPECS[name]
    for index, schedule in enumerate(schedules(spec)):
        interpreted = Interpreted(spec, schedule, AMX)
        assert schedule.k_split in sets(spec, schedule)
        for whole in (True, False):
            interpreted.run(interpreted.sample(index, whole=whole))
        cases.count("amx", "interpreted", 2)


def test_random_products_in_sets(cases: Cases) -> None:
    """The sweep's products and schedules, K over more sets than steps among them."""
    done = 0
    for index, (spec, schedule) in enumerate(small_cases(23, 85)):
        product = None if spec.stacked else plan_for(spec, schedule, AMX).nests[0].staging.product
        if product is None or product.unit is None or product.block:
            continue
        interpreted = Interpreted(spec, with_sets(schedule, 2 + index % 3), AMX)
        for whole in (True, False):
            interpreted.run(interpreted.sample(index, whole=whole))
        cases.count("amx", "interpreted", 2)
        done += 1
    assert done > 15


def test_the_c_of_all_sets(cases: Cases) -> None:
    """In C, on the CPU or through the header, within sessions as well; half of them, in turn."""
    found = [
        (spec, schedule)
        for index, spec in enumerate(SPECS.values())
        for schedule in [*schedules(spec)][index % 2 :: 2]
    ]
    kernels: list[Any] = build_many([(*each, "amx") for each in found], flags=("-O0",))
    for index, kernel in enumerate(kernels):
        kernel.verify(cases=2, seed=index)
        with kernel.session():
            kernel.verify(cases=1, seed=index)
        cases.count("amx", kernel.emulated or "native", 3)
