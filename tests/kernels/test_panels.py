"""Blocks whose sizes the call computes, packed in panels: interpreted, compiled, explained."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from support.products.interpreted import Interpreted

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.generate import explain_plan, plan_for, program_for
from tilewright.runtime.machine.host import resolve
from tilewright.symbolic import evaluate

#: m, n, k: nothing, less than a tile, whole blocks, and what those leave over.
SIZES = ((1, 1, 1), (0, 4, 4), (4, 0, 4), (4, 4, 0), (7, 50, 63), (33, 97, 65), (64, 96, 64),
         (100, 130, 150), (31, 95, 129))  # fmt: skip
BY_ROWS, BY_COLUMNS = "nkmmnk", "mknnmk"
BLOCK = {"m": 32, "n": 96, "k": 64}


def spec(type_: str = "f32", orders: str = "CCC", **more: Any) -> tw.Gemm:
    a, b, c = (tw.Matrix(type_, order) for order in orders)  # type: ignore[arg-type]
    m, n, k = (tw.dim(name) for name in "mnk")
    more |= {f"ld{name}": tw.dim(f"ld{name}") for name in "abc"}
    return tw.Gemm(m, n, k, a=a, b=b, c=c, **more)


@pytest.mark.parametrize("target", ["scalar", "avx2", "avx512", "neon"])
@pytest.mark.parametrize(("orders", "loops"), [("CCC", BY_ROWS), ("FFF", BY_COLUMNS)])
def test_the_interpreter_finds_every_element_right(target: str, orders: str, loops: str) -> None:
    tile = (2, 4) if target == "scalar" else (4, 8)
    block = {"m": 8, "n": 16, "k": 8}
    schedule = tw.Schedule(tile=tile, loops=loops, block=block, pack="ab")
    one = Interpreted(spec(orders=orders, beta=1), schedule, resolve(target))
    for seed in range(4):
        one.run(one.sample(seed, whole=True))


@pytest.mark.twice
@pytest.mark.parametrize(
    ("type_", "orders", "loops", "target"),
    [
        ("f32", "CCC", BY_ROWS, "host"), ("f32", "CFC", BY_ROWS, "host"),
        ("f32", "FCC", "nkMmnk", "host"), ("f32", "FFF", BY_COLUMNS, "host"),
        ("f64", "CCF", BY_COLUMNS, "host"), ("f32", "CCC", BY_ROWS, "neon"),
        ("f64", "CCC", BY_ROWS, "scalar"),
    ],
)  # fmt: skip
def test_all_sizes(type_: str, orders: str, loops: str, target: str) -> None:
    rng = np.random.default_rng(5)
    dtype = {"f32": "f4", "f64": "f8"}[type_]
    schedule = tw.Schedule(loops=loops, block=BLOCK, pack="ab")
    kernel = tw.compile(spec(type_, orders, beta="scalar"), schedule, target)
    for (m, n, k), beta in product(SIZES, (0, 2)):
        a, b, c = (
            np.array(rng.integers(-4, 5, shape), dtype, order=order)  # type: ignore[call-overload]
            for shape, order in zip(((m, k), (k, n), (m, n)), orders, strict=True)
        )
        right = a.astype("f8") @ b.astype("f8") + beta * c
        c[...] = np.nan if beta == 0 else c
        kernel(a, b, c, beta=beta)
        np.testing.assert_array_equal(c, right)


def test_blocks_that_are_left_out_follow_the_caches() -> None:
    plan = plan_for(spec(), tw.Schedule(loops=BY_ROWS, pack="ab"), resolve("avx512"))
    caches, item = plan.target.core.caches, 4
    assert plan.panel_tile is not None
    mr, nr = plan.panel_tile
    assert plan.blocks["m"] % mr == 0
    assert plan.blocks["n"] % nr == 0
    assert mr * plan.blocks["k"] * item < caches[0].size
    assert plan.blocks["n"] * plan.blocks["k"] * item <= caches[-1].size
    text = explain_plan(plan)
    assert "what the caches hold" in text
    assert f"A of {mr} and B of {nr}" in text
    assert "Operations and bytes of one call with m = 64" in text


def test_blocks_asked_for_are_never_exceeded() -> None:
    plan = plan_for(spec(), tw.Schedule(loops=BY_ROWS, block=BLOCK, pack="ab"), resolve("avx512"))
    assert all(plan.blocks[d] <= most for d, most in BLOCK.items())


def test_a_block_is_of_the_first_of_two_loops() -> None:
    with pytest.raises(ScheduleError, match="is the step of the first of two loops"):
        plan_for(spec(), tw.Schedule(loops="nmk", block={"k": 8}), resolve("avx2"))


def test_extra_memory_is_the_packed_blocks_alone() -> None:
    plan = plan_for(spec(), tw.Schedule(loops=BY_ROWS, pack="ab"), resolve("host"))
    most = plan.blocks["n"] * plan.blocks["k"] * 4
    for size in (64, 1000, 100_000):
        sizes = dict.fromkeys(("m", "n", "k", "lda", "ldb", "ldc"), size)
        assert evaluate(program_for(plan).scratch, sizes) <= most


def test_large_operands_of_fixed_sizes_are_packed_in_blocks_by_default() -> None:
    target = resolve("avx512")
    large = tw.Gemm(512, 600, 700)
    plan = plan_for(large, tw.Schedule(), target)
    assert plan.outer + plan.inner == "nkmmnk"
    assert plan.panel_tile is not None
    assert "operands are large" in explain_plan(plan)
    assert plan_for(large, tw.Schedule(threads=2), target).outer == "nkMmn"
    assert plan_for(tw.Gemm(512, 600, 700, order="F"), tw.Schedule(), target).outer == "mknnm"
    for other, schedule in (
        (tw.Gemm(64, 64, 64), tw.Schedule()),
        (large, tw.Schedule(loops="nmk")),
        (tw.Gemm(512, 600, 700, epilogue=tw.relu(tw.acc)), tw.Schedule()),
        (tw.Gemm(512, 600, 700, a="bf16"), tw.Schedule()),
    ):
        assert plan_for(other, schedule, target).panel_tile is None


@pytest.mark.twice
def test_a_large_product_of_fixed_sizes() -> None:
    rng = np.random.default_rng(6)
    a = rng.integers(-4, 5, (130, 530)).astype("f4")
    b = rng.integers(-4, 5, (530, 1100)).astype("f4")
    kernel = tw.compile(tw.Gemm(130, 1100, 530, beta=1))
    c = np.ones((130, 1100), "f4")
    kernel(a, b, c)
    np.testing.assert_array_equal(c, a.astype("f8") @ b + 1)
    assert kernel.verify(1).cases == 1
