"""The register tiles that a plan ends with: what they say, their names, and the loops around."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path
from typing import Any

import pytest
from support.source_tree import ROOT
from sympy import Expr, Integer

from tilewright.generate import Request, generate, plan_for, program_for
from tilewright.ir.nest import Call, NestNode
from tilewright.ir.nodes import inside, walk
from tilewright.ir.ops import MultiplyAdd, MultiplyMatrices
from tilewright.plan.plan import Plan
from tilewright.plan.tiling.parts import cut
from tilewright.plan.tiling.tiles import Either, Grid, grids_of
from tilewright.runtime.machine.host import resolve
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Matrix, Packed, Strided
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from tilewright.symbolic import symbol, value


def grids(plan: Plan) -> list[Grid]:
    return [grid for step in plan.tiling.passes.values() for grid in grids_of(step)]


def covered(plan: Plan) -> int:
    """The elements of C in the grids of a pass without loops over blocks."""
    found = grids_of(plan.tiling.passes["whole"])
    return sum(
        int(grid.along.count * grid.along.size * grid.across.count * grid.across.size)
        for grid in found
    )


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("schedule", [Schedule(), Schedule(tile=(2, 4)), Schedule(tails="narrow")])
@pytest.mark.parametrize("name", ["avx2", "avx512", "neon", "scalar"])
def test_grids_cover_c_once(name: str, schedule: Schedule, order: str) -> None:
    spec = Gemm(37, 29, 16, order=order)  # type: ignore[arg-type]
    plan = plan_for(spec, schedule, resolve(name))
    assert covered(plan) == 37 * 29
    assert {grid.tile.number for grid in grids(plan)} == set(range(len(plan.tiling.tiles)))
    for tile in plan.tiling.tiles:
        assert plan.tiling.tiles[tile.number] is tile
        assert (tile.steps, tile.k_tail, tile.accumulate) == (16, 0, False)


@pytest.mark.parametrize(("order", "target"), [("C", "avx2"), ("F", "avx2"), ("F", "neon")])
def test_mr_and_nr_are_rows_and_columns_of_c_whatever_lies_along_vectors(
    order: str, target: str
) -> None:
    spec = Gemm(24, 24, 8, order=order)  # type: ignore[arg-type]
    tile = (4, 8) if order == "C" else (8, 4)
    schedule = Schedule(tile=tile)
    plan = plan_for(spec, schedule, resolve(target))
    assert plan.problem.vectorize == ("n" if order == "C" else "m")
    (planned,) = plan.tiling.tiles
    (program,) = program_for(plan).tiles
    assert (planned.mr, planned.nr) == (program.mr, program.nr) == tile
    text = generate([Request("k", spec, schedule, resolve(target))]).text
    assert f"{tile[0]} x {tile[1]} of C" in text


def test_following_mr_from_the_schedule_to_c_enters_nine_modules() -> None:
    """Those that say ``mr``; ``explain``, which prints it, is no station on the way.

    Nor is a stack of products side by side, whose tiles are its own.
    """
    found = set()
    for path in (ROOT / "dsl").rglob("*.py"):
        code = io.StringIO(path.read_text(encoding="utf-8"))
        names = {t.string for t in tokenize.generate_tokens(code.readline)}
        if "mr" in names and path.parent.name != "explain" and path.name != "stack.py":
            found.add(path.relative_to(ROOT).as_posix())
    templates = {
        path.relative_to(ROOT).as_posix()
        for path in Path(ROOT / "templates").rglob("*.j2")
        if "t.mr" in path.read_text(encoding="utf-8")
    }
    assert {"dsl/spec/schedule.py", "dsl/plan/tiling/tiles.py", "dsl/ir/ops.py"} <= found
    assert templates == {"templates/kernel/tile.c.j2"}
    assert len(found | templates) <= 9


# -- the loops around ---------------------------------------------------------------------------


def called(nodes: tuple[NestNode, ...]) -> list[str]:
    return [
        name
        for node in nodes
        for name in ([node.program] if isinstance(node, Call) else called(inside(node)))
    ]


def test_the_first_block_of_k_begins_the_sums_and_later_ones_add() -> None:
    spec = Gemm(8, 16, 40)
    schedule = Schedule(tile=(4, 16), loops="knmk", block={"k": 16})
    plan = plan_for(spec, schedule, resolve("avx2"))
    assert [(tile.steps, tile.accumulate) for tile in plan.tiling.tiles] == [
        (16, False), (16, True), (8, True),
    ]  # fmt: skip
    program = program_for(plan)
    planned = {tile.name: tile.planned for tile in program.tiles}
    assert [planned[name] for name in called(program.nest)] == [0, 1, 2]


def test_a_batch_that_may_be_empty_has_tiles_that_sum_nothing() -> None:
    spec = Gemm(8, 16, 8, batch=Strided(dim("count")))
    plan = plan_for(spec, Schedule(loops="bnmk"), resolve("avx2"))
    found = plan.tiling.passes["whole"]
    assert isinstance(found, Either) and found.body is not None and found.otherwise is not None
    assert {grid.tile.steps for grid in grids_of(found.body)} == {8}
    assert {grid.tile.steps for grid in grids_of(found.otherwise)} == {0}
    assert [grid.tile.accumulate for grid in grids_of(found.otherwise)] == [False]


def test_blocks_of_a_packed_b_have_the_search_that_was_made_for_them() -> None:
    spec = Gemm(64, 64, 32, b=Packed("f32", nb=16))
    plan = plan_for(spec, Schedule(), resolve("avx2"))
    searches = {tile.search.estimate for tile in plan.tiling.tiles if tile.search is not None}
    assert searches
    for estimate in searches:
        assert ", 1 of 16 columns: estimated" in estimate, "a block has 16 columns, not all 64"


def test_an_empty_c_has_no_tiles() -> None:
    plan = plan_for(Gemm(0, 4, 4), Schedule(), resolve("avx2"))
    assert (plan.tiling.tiles, dict(plan.tiling.passes)) == ((), {})


# -- parts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [True, False])
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("most", [1, 3, 6, 8])
def test_parts_cover_an_extent_in_order(most: int, lanes: int, tail: bool) -> None:
    for total in range(0, 60, lanes):
        at = 0
        for part in cut(Integer(total), most, lanes, tail=tail):
            assert (part.start, part.size) == (at, part.units * lanes)
            assert 1 <= part.units <= most and part.count >= 1
            at += int(part.size * part.count)
        assert at == total


def test_a_known_tail_is_one_part_or_halved() -> None:
    assert [part.units for part in cut(Integer(15), 8)] == [8, 7]
    assert [part.units for part in cut(Integer(15), 8, tail=False)] == [8, 4, 2, 1]


def test_an_extent_of_the_call_is_covered_whatever_it_is() -> None:
    total: Expr = symbol("n")
    for n in range(40):
        parts = [
            (part.start.subs(total, n), part.units, part.count.subs(total, n))
            for part in cut(total, 6, 2)
        ]
        ends = [value(start + 2 * units * count) for start, units, count in parts]
        assert [start for start, _, _ in parts[1:]] == ends[:-1]
        assert ends[-1] == n - n % 2


# -- the instruction ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "types", "mnemonic"),
    [
        ("avx512", ("f32", "f32"), "vfmadd231ps"),
        ("avx512+vnni", ("u8", "s8"), "vpdpbusd"),
        ("avx512+vnni+bf16", ("bf16", "bf16"), "vdpbf16ps"),
        ("neon+dotprod", ("s8", "s8"), "sdot"),
        ("amx", ("bf16", "bf16"), "tdpbf16ps"),
    ],
)
def test_the_instruction_that_is_chosen_is_the_one_that_is_issued(
    name: str, types: tuple[Any, Any], mnemonic: str
) -> None:
    target = resolve(name)
    plan = plan_for(Gemm(20, 34, 24, a=types[0], b=types[1]), Schedule(), target)
    assert plan.staging.product.mnemonic == mnemonic
    program = program_for(plan)
    for tile in program.tiles:
        if tile.planned is None:
            continue
        shape = plan.tiling.tiles[tile.planned].shape
        assert {shape.op, shape.plain} <= set(plan.staging.product.ops[shape.vector])
        issued = {op.op for op in walk(tile.body) if isinstance(op, MultiplyAdd | MultiplyMatrices)}
        assert issued and issued <= {shape.op, shape.plain}


def test_tiles_leave_registers_to_the_conversions_of_both_operands() -> None:
    """Along K both are converted in steps where no load does: 3x4 sums and their steps are 19."""
    spec = Gemm(48, 16, 13, a=Matrix("f16", "C"), order="F")
    program = program_for(plan_for(spec, Schedule(vectorize="k"), resolve("scalar")))
    assert max(int(tile.mr * tile.nr) for tile in program.tiles if tile.mr is not None) == 10
