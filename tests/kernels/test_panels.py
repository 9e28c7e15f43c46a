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
from tilewright.plan.plan import Plan
from tilewright.runtime.arrays.dtypes import preferred
from tilewright.runtime.machine.host import resolve
from tilewright.spec.types import ITEMSIZE, accumulator
from tilewright.symbolic import evaluate

#: m, n, k: nothing, less than a tile, whole blocks, and what those leave over.
SIZES = ((1, 1, 1), (0, 4, 4), (4, 0, 4), (4, 4, 0), (7, 50, 63), (33, 97, 65), (64, 96, 64),
         (100, 130, 150), (31, 95, 129))  # fmt: skip
BY_ROWS, BY_COLUMNS = "nkmmnk", "mknnmk"
BIAS = tw.Operand("bias", "f32", per="column")
BLOCK = {"m": 32, "n": 96, "k": 64}


def spec(
    type_: str = "f32", orders: str = "CCC", types: tuple[str, ...] = (), **more: Any
) -> tw.Gemm:
    each = zip(types or (type_,) * 3, orders, strict=True)
    a, b, c = (tw.Matrix(t, order) for t, order in each)  # type: ignore[arg-type]
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


def finished(a: str, b: str, orders: str, d: str, **more: Any) -> tw.Gemm:
    """A product of sizes of the call whose D, in C's place or beside it, is made of its sums."""
    x, y, z = (tw.Matrix(t, o) for t, o in zip((a, b, d), orders, strict=True))  # type: ignore[arg-type]
    m, n, k = (tw.dim(name) for name in "mnk")
    more |= {"order": orders[2], "lda": tw.dim("lda"), "ldb": tw.dim("ldb")}
    return tw.Gemm(m, n, k, a=x, b=y, d=z, **more)


def whole(rng: np.random.Generator, type_: str, shape: tuple[int, int], order: str) -> Any:
    """Small whole numbers, none below 0 where the type has none."""
    found = rng.integers(0 if type_ == "u8" else -4, 5, shape).astype(preferred(type_))
    return np.asarray(found, order=order)  # type: ignore[call-overload]


def low(a: str, b: str, orders: str, **more: Any) -> tw.Gemm:
    """A product of sizes of the call, of types that are converted."""
    return spec(a, orders, types=(a, b, accumulator(a, b)), **more)


@pytest.mark.parametrize(
    ("target", "a", "b"),
    [
        ("scalar", "s8", "u8"), ("avx2", "bf16", "f16"), ("avx2", "s8", "s8"),
        ("avx512", "f8_e4m3", "bf16"), ("avx512+vnni+bf16", "bf16", "bf16"),
        ("avx512+vnni", "s8", "s8"), ("neon", "u8", "s8"), ("neon+bf16", "bf16", "bf16"),
        ("neon+i8mm", "s8", "s8"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("orders", "loops"), [("CFC", BY_ROWS), ("FCF", BY_COLUMNS)])
def test_the_interpreter_converts_what_it_packs(
    target: str, a: str, b: str, orders: str, loops: str
) -> None:
    schedule = tw.Schedule(loops=loops, block={"m": 8, "n": 16, "k": 8}, pack="ab")
    one = Interpreted(low(a, b, orders, beta=1), schedule, resolve(target))
    for seed in range(2):
        one.run(one.sample(seed, whole=True))


@pytest.mark.twice
@pytest.mark.parametrize(
    ("a", "b", "orders", "loops", "target"),
    [
        ("bf16", "bf16", "CCC", BY_ROWS, "host"), ("bf16", "bf16", "CFC", "nkMmnk", "host"),
        ("s8", "s8", "CCC", BY_ROWS, "host"), ("s8", "s8", "FFF", BY_COLUMNS, "host"),
        ("u8", "s8", "CFC", BY_ROWS, "host"), ("f16", "f8_e4m3", "FCC", BY_ROWS, "host"),
        ("s8", "u8", "CCC", BY_ROWS, "avx2"), ("s8", "s8", "CFF", BY_COLUMNS, "neon+i8mm"),
    ],
)  # fmt: skip
def test_all_sizes_of_what_is_converted(
    a: str, b: str, orders: str, loops: str, target: str
) -> None:
    rng = np.random.default_rng(8)
    schedule = tw.Schedule(loops=loops, block=BLOCK, pack="ab")
    kernel = tw.compile(low(a, b, orders, beta="scalar"), schedule, target)
    for (m, n, k), beta in product((*SIZES, (5, 130, 3), (66, 100, 66)), (0, 2)):
        x, y = whole(rng, a, (m, k), orders[0]), whole(rng, b, (k, n), orders[1])
        c = whole(rng, accumulator(a, b), (m, n), orders[2])
        right = x.astype("f8") @ y.astype("f8") + beta * c
        if beta == 0 and c.dtype == "f4":
            c[...] = np.nan
        kernel(x, y, c, beta=beta)
        np.testing.assert_array_equal(c, right)


def test_blocks_are_converted_as_they_are_packed_and_never_whole() -> None:
    schedule = tw.Schedule(loops=BY_ROWS, pack="ab")
    for a, b, target in (
        ("bf16", "bf16", "avx512"),
        ("s8", "s8", "avx512+vnni"),
        ("f16", "f16", "neon"),
    ):
        plan = plan_for(low(a, b, "CCC"), schedule, resolve(target))
        assert plan.staging.packs == "ab"
        assert not plan.staging.sources
        assert "converted as it is packed" in explain_plan(plan)
        item = ITEMSIZE[plan.staging.product.along]
        sums = 4 * 100_000 if plan.staging.corrects else 0
        most = (plan.nest.blocks["n"] + plan.staging.lanes) * (
            plan.nest.blocks["k"] + 8
        ) * item + sums
        for size in (64, 1000, 100_000):
            sizes = dict.fromkeys(("m", "n", "k", "lda", "ldb", "ldc"), size)
            assert evaluate(program_for(plan).scratch, sizes) <= most


@pytest.mark.parametrize(
    ("a", "b", "more", "orders", "loops"),
    [
        ("f32", "f32", {"d": "f16", "epilogue": tw.relu(tw.acc + BIAS)}, "CCC", BY_ROWS),
        ("bf16", "bf16", {"d": "bf16", "beta": 1}, "CFF", BY_COLUMNS),
        ("u8", "s8", {"d": "u8", "a_zero": 3, "b_zero": 2, "d_scale": 0.5}, "CCC", BY_ROWS),
        ("s8", "s8", {"d": "s8", "b_scale": "column", "d_zero": 3}, "CCC", "knmmnk"),
        ("f16", "f16", {"d": "f16", "outputs": {"most": tw.row_max(tw.acc)}}, "CCC", "nmkmnk"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("target", ["avx512+vnni+bf16", "avx2", "neon"])
def test_the_interpreter_finishes_blocks_of_sums(
    target: str, a: str, b: str, more: dict[str, Any], orders: str, loops: str
) -> None:
    schedule = tw.Schedule(loops=loops, block={"m": 8, "n": 16, "k": 8}, pack="ab")
    one = Interpreted(finished(a, b, orders, **more), schedule, resolve(target))
    for seed in range(2):
        one.run(one.sample(seed, whole=True))


@pytest.mark.twice
@pytest.mark.parametrize(
    ("a", "b", "d", "orders", "loops"),
    [("u8", "s8", "s32", "CCC", "nkMmnk"), ("f32", "f32", "f32", "FFF", BY_COLUMNS)],
)
def test_sums_of_a_part_of_c_after_those_of_the_other(
    a: str, b: str, d: str, orders: str, loops: str
) -> None:
    rng = np.random.default_rng(9)
    spec, schedule = (
        finished(a, b, orders, d=d, epilogue=tw.acc + BIAS),
        tw.Schedule(loops=loops, pack="ab"),
    )
    host = resolve("host")
    kernel = tw.compile(spec, schedule, "host" if host.matrix is None else "avx512+vnni")
    assert isinstance(kernel.plan, Plan)
    (most,) = (kernel.plan.nest.summed or {}).values()
    long, short = 2 * most + 5, 33
    for k in (7, kernel.plan.nest.blocks["k"] + 3):
        m, n = (long, short) if orders == "CCC" else (short, long)
        x, y = whole(rng, a, (m, k), orders[0]), whole(rng, b, (k, n), orders[1])
        bias = rng.integers(-9, 9, n).astype("f4")
        np.testing.assert_array_equal(kernel(x, y, bias=bias), x.astype("f8") @ y + bias)


def test_a_matrix_unit_says_that_it_converts_whole_matrices() -> None:
    one = low("bf16", "bf16", "CCC")
    plan = plan_for(one, tw.Schedule(loops="nkMmnk", pack="ab"), resolve("amx"))
    assert (plan.nest.outer + plan.nest.inner, plan.staging.packs) == ("mNmk", "")
    assert "a matrix unit reads rows along K" in explain_plan(plan)


def test_blocks_of_what_is_converted_have_no_other_way() -> None:
    for one, schedule in (
        (low("s8", "s8", "CCC"), tw.Schedule(pack="ab")),
        (low("s8", "s8", "CCC"), tw.Schedule(loops=BY_ROWS, pack="b")),
        (tw.Gemm(8, 8, 8, a="bf16", b="bf16"), tw.Schedule(loops=BY_ROWS, block=BLOCK, pack="ab")),
    ):
        with pytest.raises(ScheduleError, match="before anything else"):
            plan_for(one, schedule, resolve("avx512"))


def test_blocks_that_are_left_out_follow_the_caches() -> None:
    plan = plan_for(spec(), tw.Schedule(loops=BY_ROWS, pack="ab"), resolve("avx512"))
    caches, item = plan.target.core.caches, 4
    assert plan.nest.panel_tile is not None
    mr, nr = plan.nest.panel_tile
    assert plan.nest.blocks["m"] % mr == 0
    assert plan.nest.blocks["n"] % nr == 0
    assert mr * plan.nest.blocks["k"] * item < caches[0].size
    assert plan.nest.blocks["n"] * plan.nest.blocks["k"] * item <= caches[-1].size
    text = explain_plan(plan)
    assert "what the caches hold" in text
    assert f"A of {mr} and B of {nr}" in text
    assert "Operations and bytes of one call with m = 64" in text


def test_blocks_asked_for_are_never_exceeded() -> None:
    plan = plan_for(spec(), tw.Schedule(loops=BY_ROWS, block=BLOCK, pack="ab"), resolve("avx512"))
    assert all(plan.nest.blocks[d] <= most for d, most in BLOCK.items())


def test_a_block_is_of_the_first_of_two_loops() -> None:
    with pytest.raises(ScheduleError, match="is the step of the first of two loops"):
        plan_for(spec(), tw.Schedule(loops="nmk", block={"k": 8}), resolve("avx2"))


def test_extra_memory_is_the_packed_blocks_alone() -> None:
    plan = plan_for(spec(), tw.Schedule(loops=BY_ROWS, pack="ab"), resolve("host"))
    most = plan.nest.blocks["n"] * plan.nest.blocks["k"] * 4
    for size in (64, 1000, 100_000):
        sizes = dict.fromkeys(("m", "n", "k", "lda", "ldb", "ldc"), size)
        assert evaluate(program_for(plan).scratch, sizes) <= most


def test_large_operands_of_fixed_sizes_are_packed_in_blocks_by_default() -> None:
    target = resolve("avx512")
    large = tw.Gemm(512, 600, 700)
    plan = plan_for(large, tw.Schedule(), target)
    assert plan.nest.outer + plan.nest.inner == "nkmmnk"
    assert plan.nest.panel_tile is not None
    assert "operands are large" in explain_plan(plan)
    assert plan_for(large, tw.Schedule(threads=2), target).nest.outer == "nkMmn"
    assert plan_for(tw.Gemm(512, 600, 700, order="F"), tw.Schedule(), target).nest.outer == "mknnm"
    for other, schedule in (
        (tw.Gemm(64, 64, 64), tw.Schedule()),
        (large, tw.Schedule(loops="nmk")),
        (tw.Gemm(512, 600, 700, outputs={"most": tw.row_max(tw.acc)}), tw.Schedule()),
        (tw.Gemm(512, 96, 700, a="bf16"), tw.Schedule()),
    ):
        assert plan_for(other, schedule, target).nest.panel_tile is None
    for other in (
        tw.Gemm(512, 700, 800, a="bf16"),
        tw.Gemm(512, 600, 700, epilogue=tw.relu(tw.acc)),
        tw.Gemm(512, 700, 800, a="u8", b="s8", d="u8", order="F"),
    ):
        assert plan_for(other, tw.Schedule(), target).staging.packs == "ab"


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
