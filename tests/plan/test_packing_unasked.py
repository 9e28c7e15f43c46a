"""What is packed though nobody asked: operands whose lines lie across the vectors."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright as tw
from tilewright import targets
from tilewright.generate import plan_for
from tilewright.plan.planner import PACKED_BYTES
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Matrix
from tilewright.spec.schedule import Schedule

COLUMNS: Any = Matrix("f32", "F")
OUTPUTS = {"most": tw.row_max(tw.acc)}


@pytest.mark.parametrize("target", ["avx2", "avx512", "neon"])
@pytest.mark.parametrize("outputs", [None, OUTPUTS], ids=["alone", "reduced"])
def test_columns_of_a_large_b_are_packed(target: str, outputs: Any) -> None:
    spec = Gemm(512, 512, 64, b=COLUMNS, outputs=outputs)
    plan = plan_for(spec, Schedule(), targets.load(target))
    assert (plan.vectorize, plan.packs, dict(plan.blocks)) == ("n", "b", {})


@pytest.mark.parametrize("target", ["avx2", "avx512", "neon"])
@pytest.mark.parametrize(("k", "n"), [(256, 4096), (128, 1000), (300, 600)])
def test_what_the_cache_does_not_hold_is_packed_in_blocks(target: str, k: int, n: int) -> None:
    spec = Gemm(33, n, k, b=COLUMNS)  # too few rows for blocks of both operands
    plan = plan_for(spec, Schedule(), targets.load(target))
    assert (plan.vectorize, plan.packs) == ("n", "b")
    assert 4 * k * plan.blocks["n"] <= PACKED_BYTES < 4 * k * (plan.blocks["n"] + n)
    assert plan.blocks["n"] % plan.lanes == 0
    (why,) = (each.reason for each in plan.decisions if each.what == "loops")
    assert why == "B is packed in blocks that stay in the cache"


def test_a_schedule_that_was_asked_for_stays() -> None:
    for schedule in (Schedule(loops="nmk"), Schedule(vectorize="k"), Schedule(pack="b")):
        plan = plan_for(Gemm(256, 4096, 256, b=COLUMNS), schedule, targets.load("avx2"))
        assert plan.schedule == schedule


def test_vectors_that_need_no_packing_are_preferred_to_a_large_one() -> None:
    plan = plan_for(Gemm(512, 512, 64, a=COLUMNS, b=COLUMNS), Schedule(), targets.load("avx2"))
    assert (plan.vectorize, plan.packs) == ("m", "")


def test_a_line_that_no_block_holds_is_not_packed() -> None:
    plan = plan_for(Gemm(20, 20, 100_000, b=COLUMNS), Schedule(), targets.load("avx2"))
    assert (plan.vectorize, plan.packs) == ("k", "")


@pytest.mark.twice
@pytest.mark.parametrize(
    "spec",
    [
        Gemm(33, 700, 301, b=COLUMNS, epilogue=tw.relu(tw.acc + tw.Operand("x", "f32", "column"))),
        Gemm(33, 700, 301, b=COLUMNS, outputs=OUTPUTS),
        Gemm(700, 33, 301, a=COLUMNS, b=COLUMNS, beta=1),
        Gemm(65, 530, 260, a=Matrix("f64", "C"), b=Matrix("f64", "F")),
    ],
    ids=["relu", "reduced", "columns", "f64"],
)
def test_it_is_right(spec: Gemm) -> None:
    assert tw.compile(spec).verify().cases == 3
