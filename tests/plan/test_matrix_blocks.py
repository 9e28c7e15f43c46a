"""Blocks in which a matrix unit finds its operands: who copies, who converts, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.generate import explain_plan, plan_for, program_for
from tilewright.ir.nest import BlockLoop, Pack
from tilewright.ir.nodes import walk
from tilewright.plan.plan import Plan
from tilewright.plan.tiling.blocking import packed_block
from tilewright.runtime.matmul.families import (
    Family,
    Options,
    class_of,
    schedule_of,
    spec_of,
)
from tilewright.symbolic import value
from tilewright.targets import load

AMX = load("amx")
M, N, K = (tw.dim(name) for name in "mnk")


def planned(spec: tw.Gemm, **asked: object) -> Plan:
    plan: Plan = plan_for(spec, tw.Schedule(**asked), AMX)  # type: ignore[arg-type]
    return plan


def loops(plan: Plan) -> str:
    return plan.nest.outer + plan.nest.inner


def test_rows_beside_all_of_b_are_copied_in_blocks() -> None:
    plan = planned(tw.Gemm(512, 512, 512, a="bf16", b="bf16"))
    assert (loops(plan), plan.staging.packs, plan.nest.blocks) == ("mnmk", "a", {"m": 128})
    assert "b" in plan.staging.sources, "B is converted whole"


@pytest.mark.parametrize(
    ("m", "expected", "blocks"),
    [
        (49, "knmnk", {"k": 512, "n": 256}),
        (257, "nmnk", {"n": 128}),
        (5000, "mnmnk", {"m": 1024, "n": 128}),
    ],
)
def test_a_large_b_is_converted_in_blocks(m: int, expected: str, blocks: dict[str, int]) -> None:
    plan = planned(tw.Gemm(m, 4096, 4096, a="bf16", b="bf16"))
    assert (loops(plan), plan.staging.packs, plan.nest.blocks) == (expected, "ab", blocks)
    assert not plan.staging.sources


def test_one_line_of_c_is_summed_by_vectors_unless_packing_is_asked_for() -> None:
    """Groups of K for one line would take longer than the product."""
    spec = tw.Gemm(333, 1, 500, a=tw.Matrix("bf16", "F"), b="bf16", order="F")
    plan = planned(spec)
    assert (plan.problem.along, plan.staging.packs, plan.staging.product.op.form) == (
        "m",
        "",
        "broadcast",
    )
    assert tw.compile(spec, target="amx").verify().cases == 3
    asked = planned(spec, pack="a")
    assert (asked.problem.along, asked.staging.packs, asked.staging.product.op.form) == (
        "n",
        "a",
        "matrix",
    )
    assert tw.compile(spec, tw.Schedule(pack="a"), "amx").verify().cases == 3


def test_blocks_of_a_short_k_are_wide() -> None:
    assert planned(tw.Gemm(300, 4096, 2048, a="bf16", b="bf16")).nest.blocks == {"n": 256}
    assert planned(tw.Gemm(300, 4096, 4096, a="u8", b="s8")).nest.blocks == {"n": 256}


def test_k_is_cut_where_few_rows_add_to_sums_that_stay_near() -> None:
    few = tw.dim("m", max=127)
    for spec, columns in (
        (tw.Gemm(256, 512, 1025, a="bf16", b="bf16"), 256),
        (tw.Gemm(49, 512, 4608, a="bf16", b="bf16", c="bf16"), 256),
        (tw.Gemm(49, 512, 4608, a="s8", b="s8"), 512),
        (tw.Gemm(few, N, K, a="bf16", b="bf16"), 256),
        (tw.Gemm(few, tw.dim("n", max=256), K, a="bf16", b="bf16"), 256),
    ):
        plan = planned(spec)
        assert (loops(plan), plan.staging.packs) == ("knmnk", "ab")
        assert plan.nest.blocks == {"k": 512, "n": columns}
    for spec in (
        tw.Gemm(49, 512, 1024, a="bf16", b="bf16"),  # short
        tw.Gemm(49, 300, 400, a="bf16", b="bf16"),  # near as it is
        tw.Gemm(256, 2048, 4608, a="bf16", b="bf16", c="bf16"),  # C holds no sums, and is large
    ):
        assert "k" not in planned(spec).nest.blocks


def test_few_columns_leave_rows_where_they_lie() -> None:
    for n in (64, 256):
        plan = planned(tw.Gemm(512, n, 512, a="bf16", b="bf16"))
        assert (loops(plan), plan.staging.packs) == ("nmk", "")


def test_sizes_of_the_call() -> None:
    plan = planned(tw.Gemm(M, N, K, a="bf16", b="bf16"))
    assert (loops(plan), plan.staging.packs, plan.nest.blocks) == (
        "mnmnk",
        "ab",
        {"m": 1024, "n": 128},
    )
    narrow = tw.Gemm(M, tw.dim("n", max=256), K, a="bf16", b="bf16")
    plan = planned(narrow)
    assert (loops(plan), plan.staging.packs, plan.nest.blocks) == ("mnmk", "a", {"m": 128})
    assert "a_tail" not in plan.staging.operands, "copied rows end with zeros"


def test_lines_of_c_decide_who_is_copied() -> None:
    turned = tw.Matrix("bf16", "F")
    plan = planned(tw.Gemm(4096, 5000, 4096, a=turned, b=turned, c=tw.Matrix("f32", "F")))
    assert (loops(plan), plan.problem.vectorize, plan.staging.packs) == ("nmnmk", "m", "ab")


def test_rows_meet_a_packed_b() -> None:
    wide = planned(tw.Gemm(4096, 2048, 2048, a="bf16", b=tw.Packed("bf16")))
    assert (loops(wide), wide.staging.packs, wide.nest.blocks) == ("mnmk", "a", {"m": 256})
    few = planned(tw.Gemm(64, 2048, 2048, a="bf16", b=tw.Packed("bf16")))
    assert (loops(few), few.staging.packs) == ("nmk", "a")
    narrow = planned(tw.Gemm(4096, 128, 2048, a="bf16", b=tw.Packed("bf16")))
    assert (loops(narrow), narrow.staging.packs) == ("mnmk", "")


def test_a_copy_begins_with_a_line_an_odd_number_of_them_apart() -> None:
    spec = tw.Gemm(300, 512, 1000, a="bf16", b="bf16")
    program = program_for(planned(spec, pack="a"))
    (copied,) = [n for n in walk(program.nest) if isinstance(n, Pack) and str(n.buffer)[0] == "a"]
    elements = value(copied.elements)
    assert elements is not None
    assert elements >= 300 * 33 * 32, "1000 elements of two bytes fill 31.25 lines"
    block = packed_block(planned(spec, pack="a"), "a", planned(spec).problem.sizes)
    apart = value(block.strides["m"])
    assert apart is not None
    assert divmod(apart * 2, 64) == (33, 0)


def test_explain_says_who_is_copied() -> None:
    said = explain_plan(planned(tw.Gemm(2048, 2048, 2048, a="bf16", b="bf16")))
    assert "copied in blocks" in said
    assert "converted as it is packed" in said


def test_threads_convert_together() -> None:
    spec = tw.Gemm(2048, 2048, 2048, a="bf16", b="bf16")
    shared = [
        node.note
        for node in walk(program_for(planned(spec, threads=4)).nest)
        if isinstance(node, BlockLoop) and node.parallel
    ]
    assert "convert b" in shared
    alone = program_for(planned(spec)).nest
    assert not any(isinstance(node, BlockLoop) and node.parallel for node in walk(alone))


def test_what_the_caller_packed_is_in_blocks_already() -> None:
    with pytest.raises(ScheduleError, match="converted, and packed, before anything else"):
        planned(tw.Gemm(64, 64, 64, a="bf16", b=tw.Packed("bf16")), pack="ab")


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((49, 512, 4608), "knmnk"),  # few rows
        ((2048, 2048, 2048), "mnmnk"),
        ((16, 4096, 4096), "knmnk"),
        ((257, 4096, 4096), "mnmnk"),
        ((257, 240, 240), "mnmk"),  # beside all of B, with K of the call
        ((784, 128, 1152), "mnmk"),
    ],
)
def test_products_of_any_size(sizes: tuple[int, int, int], expected: str) -> None:
    types, options = ("bf16", "bf16", "f32"), Options(threads=1, target="amx")
    family = Family(types, (1, 1, 1), class_of(*sizes, types, options), options)
    plan = plan_for(spec_of(family), schedule_of(family), AMX)
    assert loops(plan) == expected
    other = replace(schedule_of(family), threads=None)
    vectors = plan_for(spec_of(family), other, load("avx512"))
    assert vectors.staging.product.unit is None
