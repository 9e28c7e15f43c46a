"""What is packed though nobody asked: operands whose lines lie across the vectors."""

from __future__ import annotations

from typing import Any

import pytest
from support.products.plans import plan_of

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
    assert (plan.problem.vectorize, plan.staging.packs, dict(plan.nest.blocks)) == ("n", "b", {})


@pytest.mark.parametrize("target", ["avx2", "avx512", "neon"])
@pytest.mark.parametrize(("k", "n"), [(256, 4096), (128, 1000), (300, 600)])
def test_what_the_cache_does_not_hold_is_packed_in_blocks(target: str, k: int, n: int) -> None:
    spec = Gemm(33, n, k, b=COLUMNS)  # too few rows for blocks of both operands
    plan = plan_for(spec, Schedule(), targets.load(target))
    assert (plan.problem.vectorize, plan.staging.packs) == ("n", "b")
    assert 4 * k * plan.nest.blocks["n"] <= PACKED_BYTES < 4 * k * (plan.nest.blocks["n"] + n)
    assert plan.nest.blocks["n"] % plan.staging.lanes == 0
    (why,) = (each.reason for each in plan.decisions if each.what == "loops")
    assert why == "B is packed in blocks that stay in the cache"


def test_a_schedule_that_was_asked_for_stays() -> None:
    for schedule in (Schedule(loops="nmk"), Schedule(vectorize="k"), Schedule(pack="b")):
        plan = plan_for(Gemm(256, 4096, 256, b=COLUMNS), schedule, targets.load("avx2"))
        assert plan.problem.schedule == schedule


def test_vectors_that_need_no_packing_are_preferred_to_a_large_one() -> None:
    plan = plan_for(Gemm(512, 512, 64, a=COLUMNS, b=COLUMNS), Schedule(), targets.load("avx2"))
    assert (plan.problem.vectorize, plan.staging.packs) == ("m", "")


def test_a_line_that_no_block_holds_is_not_packed() -> None:
    plan = plan_for(Gemm(20, 20, 100_000, b=COLUMNS), Schedule(), targets.load("avx2"))
    assert (plan.problem.vectorize, plan.staging.packs) == ("k", "")


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


@pytest.mark.parametrize("target", ["avx2", "avx512"])
def test_few_lines_across_k_are_turned(target: str) -> None:
    for spec, packed in (
        (Gemm(300, 3, 300), "b"),
        (Gemm(tw.dim("m"), 3, tw.dim("k")), "b"),
        (Gemm(3, 300, 300, a=COLUMNS, b=COLUMNS, c=COLUMNS), "a"),
    ):
        plan = plan_for(spec, Schedule(), targets.load(target))
        assert (plan.problem.vectorize, plan.staging.packs) == ("k", packed)
    many = tw.dim("m"), tw.dim("n"), tw.dim("k")
    for other in (Gemm(3, 300, 300), Gemm(300, 64, 300), Gemm(2, 3, 5), Gemm(*many)):
        assert plan_for(other, Schedule(), targets.load(target)).problem.vectorize != "k"


def test_vectors_along_k_may_be_asked_for_where_one_operand_lies_so() -> None:
    target = targets.load("avx2")
    plan = plan_for(Gemm(40, 50, 60), Schedule(vectorize="k"), target)
    assert (plan.problem.vectorize, plan.staging.packs) == ("k", "b")
    assert (
        plan_for(Gemm(40, 50, 60), Schedule(vectorize="k", pack="b"), target).staging.packs == "b"
    )
    for spec, schedule in (
        (Gemm(40, 50, 60, a=COLUMNS), Schedule(vectorize="k")),
        (Gemm(40, 50, 60), Schedule(vectorize="k", pack="a")),
        (Gemm(40, 50, 60, b=COLUMNS), Schedule(vectorize="k", pack="b")),
    ):
        with pytest.raises(tw.ScheduleError, match="no vector is contiguous"):
            plan_for(spec, schedule, target)


TURNED: dict[str, tuple[Gemm, Schedule]] = {
    "columns": (Gemm(37, 3, 70), Schedule()),
    "rows": (Gemm(3, 37, 70, a=COLUMNS, b=COLUMNS), Schedule()),
    "blocks of K": (Gemm(37, 3, 70), Schedule(loops="knmk", block={"k": 32}, vectorize="k")),
    "blocks of N": (Gemm(37, 9, 70), Schedule(loops="nmnk", block={"n": 4}, vectorize="k")),
    "many columns": (Gemm(9, 40, 33, beta=1), Schedule(vectorize="k")),
    "of the call": (
        Gemm(tw.dim("m"), tw.dim("n", max=7), tw.dim("k"), ldb=tw.dim("ldb")),
        Schedule(loops="Mnk", threads=2, vectorize="k"),
    ),
    "stack": (Gemm(9, 3, 33, batch=tw.Strided(5, c=None)), Schedule(vectorize="k")),
    "batch": (Gemm(9, 3, 33, batch=tw.Addresses(4)), Schedule(vectorize="k")),
    "two products": (
        Gemm(37, 3, 70, b2="f32", epilogue=tw.acc * tw.acc2),
        Schedule(vectorize="k"),
    ),
}


@pytest.mark.twice
@pytest.mark.parametrize("target", ["host", "avx2", "neon", "scalar"])
def test_what_is_turned_is_right(target: str) -> None:
    builds = [(*each, target) for each in TURNED.values()]
    for name, kernel in zip(TURNED, tw.compile_many(builds), strict=True):
        assert kernel.verify().cases == 3, name


HALVES: Any = Matrix("bf16", "F")


@pytest.mark.parametrize("target", ["avx2", "avx512+bf16", "neon"])
@pytest.mark.parametrize("n", [96, 2048])
def test_few_rows_of_halves_meet_columns_along_k(target: str, n: int) -> None:
    plan = plan_of(Gemm(4, n, 768, a="bf16", b=HALVES), Schedule(), target)
    assert (plan.problem.vectorize, plan.staging.packs, "b" in plan.staging.sources) == (
        "k",
        "",
        False,
    )
    plan = plan_of(Gemm(200, n, 768, a="bf16", b=HALVES), Schedule(), target)
    assert plan.problem.vectorize == "n"
    for m, along in ((tw.dim("m", max=16), "k"), (tw.dim("m"), "n")):
        plan = plan_of(Gemm(m, n, 768, a="bf16", b=HALVES), Schedule(), target)
        assert plan.problem.vectorize == along


@pytest.mark.parametrize(
    ("a", "b", "target"),
    [
        ("s8", "s8", "avx512+vnni"),  # the sign of B is flipped
        ("u8", "s8", "avx2"),  # both are widened
        ("bf16", "bf16", "neon+i8mm+bf16"),  # which else multiplies blocks of C
        ("bf16", "bf16", "amx"),
    ],
)
@pytest.mark.parametrize("n", [96, 2048])
def test_few_rows_are_read_along_k_where_blocks_would_be_packed(
    a: Any, b: Any, target: str, n: int
) -> None:
    plan = plan_of(Gemm(4, n, 768, a=a, b=Matrix(b, "F")), Schedule(), target)
    assert (plan.problem.vectorize, plan.staging.packs, "b" in plan.staging.sources) == (
        "k",
        "",
        False,
    )


@pytest.mark.parametrize(
    ("a", "b", "target"),
    [
        ("u16", "u16", "avx512+vnni"),  # the signs of both would be flipped
        ("s8", "u8", "neon"),  # nothing flips them, nor widens both
        ("f16", "f16", "rvv256"),  # nothing loads halves
    ],
)
def test_what_is_converted_is_not_read_along_k_everywhere(a: Any, b: Any, target: str) -> None:
    spec = Gemm(4, 96, 256, a=a, b=Matrix(b, "F"))
    assert plan_of(spec, Schedule(), target).problem.vectorize != "k"
    with pytest.raises(tw.ScheduleError, match="vectorize"):
        plan_of(spec, Schedule(vectorize="k"), target)


BYTES: Any = {"a": "u8", "b": Matrix("s8", "F"), "d": "f32", "a_scale": "row", "b_scale": "column"}
ALONG_K: dict[str, tuple[Gemm, str]] = {
    "bf16": (Gemm(5, 37, 333, a="bf16", b=HALVES, c=Matrix("f32", "F"), beta=1), "avx512+bf16"),
    "row": (Gemm(1, 40, 77, a="bf16", b=HALVES, d="bf16", epilogue=tw.relu(tw.acc)), "avx512+bf16"),
    "f16": (Gemm(6, 33, 100, a="f16", b=Matrix("f16", "F")), "avx2"),
    "mixed": (Gemm(3, 20, 65, a="f32", b=HALVES), "avx512"),
    "bytes": (Gemm(7, 35, 259, **BYTES), "avx512+vnni"),
    "zeros": (Gemm(7, 35, 259, a_zero=3, b_zero="column", **BYTES), "avx512+vnni"),
    "neon": (Gemm(3, 9, 45, a="s8", b=Matrix("s8", "F")), "neon+dotprod"),
    "of the call": (
        Gemm(tw.dim("m", max=16), tw.dim("n"), tw.dim("k"), a="f16", b=Matrix("f16", "F")),
        "avx512",
    ),
}


@pytest.mark.parametrize("name", ALONG_K)
def test_what_is_read_along_k_is_right(name: str) -> None:
    spec, target = ALONG_K[name]
    kernel = tw.compile(spec, Schedule(vectorize="k"), target)
    assert kernel.verify(cases=5).cases == 5
