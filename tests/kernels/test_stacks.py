"""Stacks of products, one C for each: side by side in vectors, and one after the other."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.products.interpreted import Interpreted

import tilewright as tw
from tilewright.errors import ArgumentError, PlanError, ScheduleError, SpecError
from tilewright.generate import draw_plan, explain_plan, plan_for, program_for, verified
from tilewright.ir.nest import NestNode, Pack
from tilewright.ir.nodes import rewritten
from tilewright.lower.stack import COUNTER
from tilewright.plan.routines.stack import StackPlan
from tilewright.runtime.machine.host import resolve

Array = np.ndarray[Any, Any]
TARGETS = ("avx2", "avx512", "neon")
COUNTS = (0, 1, 3, 16, 17, 35)


def stack(*sizes: Any, count: Any = None, **more: Any) -> tw.Gemm:
    count = tw.dim("count") if count is None else count
    return tw.Gemm(*sizes, batch=tw.Strided(count, c=None), **more)


def whole(shape: tuple[int, ...], dtype: Any = "f4", seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def right(a: Array, b: Array) -> Array:
    found: Array = a.astype("f8") @ b.astype("f8")
    return found


# --- side by side --------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("type_", ["f32", "f64"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_interpreter_finds_every_element_right(target: str, type_: str, order: Any) -> None:
    limits = [tw.dim(name, max=5) for name in "mnk"]
    for sizes, beta in product(((3, 3, 3), (4, 2, 5), (9, 5, 1), limits), (0, 1, 3)):
        spec = stack(*sizes, a=type_, order=order, beta=beta, alpha=1 if beta else 2)
        one = Interpreted(spec, tw.Schedule(vectorize="b"), resolve(target))
        for seed in range(2):
            one.run(one.sample(seed, whole=True))


@pytest.mark.twice
@pytest.mark.parametrize("target", ["host", "avx2", "neon"])
@pytest.mark.parametrize("type_", ["f32", "f64"])
def test_groups_and_what_they_leave_over(target: str, type_: str) -> None:
    dtype = {"f32": "f4", "f64": "f8"}[type_]
    limits = [tw.dim(name, max=6) for name in "mnk"]
    kernel = tw.compile(stack(*limits, a=type_, beta=1), tw.Schedule(vectorize="b"), target)
    for count, (m, n, k) in product(
        COUNTS, ((1, 1, 1), (3, 4, 5), (6, 6, 6), (2, 0, 3), (2, 2, 0))
    ):
        a, b, c = (whole((count, *shape), dtype, count) for shape in ((m, k), (k, n), (m, n)))
        expected = right(a, b) + c
        kernel(a, b, c)
        np.testing.assert_array_equal(c, expected)


def test_all_of_them_are_told() -> None:
    plan = plan_for(stack(3, 3, 3), tw.Schedule(vectorize="b"), resolve("avx512"))
    text = explain_plan(plan)
    assert "16 side by side in a vector" in text
    assert "count products, each with its own C" in text
    assert "16 products side by side" in draw_plan(plan)


def test_what_the_model_chooses_by_the_size() -> None:
    avx512 = resolve("avx512")
    unknown = [tw.dim(name) for name in "mnk"]
    for sizes, beside in (((3, 3, 3), True), ((16, 16, 16), False), (unknown, False)):
        plan = plan_for(stack(*sizes), tw.Schedule(), avx512)
        assert isinstance(plan, StackPlan)
        assert (plan.each is None) == beside


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (stack(4, 4, tw.dim("k")), "a size without limit"),
        (stack(40, 40, 40), "the stack has"),
        (stack(4, 4, 4, a="bf16"), "the sums' type"),
        (stack(4, 4, 4, epilogue=tw.relu(tw.acc)), "without D"),
        (stack(4, 4, 4, beta="scalar"), "numbers of the call"),
        (stack(4, 4, 4, lda=9), "one piece"),
        (tw.Gemm(4, 4, 4, batch=tw.Strided(9, b=0, c=None)), "serves all"),
    ],
)
def test_what_cannot_stand_side_by_side(spec: tw.Gemm, words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        plan_for(spec, tw.Schedule(vectorize="b"), resolve("avx2"))
    plan_for(spec, tw.Schedule(), resolve("avx2"))


# --- one after the other -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "target"),
    [
        (stack(5, 7, 9, beta=1), "avx512"),
        (stack(5, 7, 9, a="bf16", b="bf16", d="bf16", epilogue=tw.relu(tw.acc)), "avx512"),
        (stack(5, 7, 9, a="u8", b="s8", a_zero=3, d="u8", a_scale=0.5), "avx2"),
        (stack(20, 33, 70, a="bf16", b="bf16", count=3), "amx"),
        (tw.Gemm(6, 8, 5, batch=tw.Strided(4, a=0, b=100, c=60), ldc=10), "neon"),
        (tw.Gemm(6, 8, 5, b=tw.Packed("f32"), batch=tw.Strided(4, c=None)), "avx2"),
        (stack(0, 3, 4), "avx2"),
        (stack(3, 3, 0, beta=2), "avx2"),
    ],
)
def test_one_by_one_interpreted(spec: tw.Gemm, target: str) -> None:
    one = Interpreted(spec, tw.Schedule(loops="bnmk"), resolve(target))
    for seed in range(2):
        one.run(one.sample(seed, whole=True))


@pytest.mark.twice
@pytest.mark.parametrize("target", ["host", "avx2"])
def test_one_by_one_compiled(target: str) -> None:
    bias = tw.Operand("bias", "f32", per="column")
    specs = [
        stack(*(tw.dim(name) for name in "mnk"), ldb=tw.dim("ldb")),
        stack(5, 20, 31, a="bf16", b="bf16", epilogue=tw.relu(tw.acc + bias)),
        stack(5, 20, 31, a="s8", b="s8", beta="scalar"),
        tw.Gemm(6, 18, 5, b=tw.Packed("f32"), batch=tw.Strided(4, c=None)),
    ]
    for kernel in tw.compile_many([(spec, tw.Schedule(loops="bnmk"), target) for spec in specs]):
        kernel.verify()


def test_products_in_parallel_are_the_same_bits() -> None:
    a, b = (np.random.default_rng(1).standard_normal((300, 9, 9)) for _ in "ab")
    for sizes in ((9, 9, 9), (3, 3, 3)):
        x, y = a[:, : sizes[0], : sizes[2]].copy(), b[:, : sizes[2], : sizes[1]].copy()
        alone = tw.compile(stack(*sizes, a="f64"), tw.Schedule(loops="bmnk"))
        shared = tw.compile(stack(*sizes, a="f64"), tw.Schedule(loops="Bmnk", threads=2))
        np.testing.assert_array_equal(alone(x, y), shared(x, y))


def test_scratch_memory_is_not_shared_by_threads() -> None:
    """Threads share each product in its place, where nothing else is asked for."""
    within = stack(9, 30, 70, a="u8", b="s8", a_zero=3)
    tw.compile(within, tw.Schedule(threads=2), "avx2").verify()


@pytest.mark.parametrize(
    ("types", "target"), [(("f64", "f64"), "power10"), (("bf16", "bf16"), "avx2")]
)
def test_products_in_parallel_have_scratch_memory_of_their_own(
    types: tuple[str, str], target: str
) -> None:
    """One place for all threads is refused."""
    sizes, schedule = [tw.dim(name, max=4) for name in "mnk"], tw.Schedule(loops="Bnmk")
    spec = stack(*sizes, a=types[0], b=types[1], count=5, beta="scalar")
    one = Interpreted(spec, schedule, resolve(target))
    assert one.program.scratch == 0 != one.program.worker_scratch
    one.run(one.sample(0, whole=True))

    def shared(node: NestNode) -> NestNode:
        return replace(node, of_worker=False) if isinstance(node, Pack) else node

    nest = tuple(rewritten(one.program.nest, shared))
    wrong = replace(one.program, nest=nest, scratch=one.program.worker_scratch)
    with pytest.raises(PlanError, match=f"all trips of the parallel loop {COUNTER} write the same"):
        verified(wrong, spec, resolve(target))


@pytest.mark.twice
def test_large_stacks_of_transposed_matrices_are_computed_in_parallel() -> None:
    a, b = whole((150, 40, 45)), whole((150, 33, 45)).transpose(0, 2, 1)
    np.testing.assert_array_equal(tw.matmul(a, b, threads=2), np.matmul(a, b))


# --- arrays --------------------------------------------------------------------------------------


def test_outputs_are_made_or_given_in_either_order() -> None:
    a, b = whole((5, 3, 4)), whole((5, 4, 2))
    for order in ("C", "F"):
        spec = stack(3, 2, 4, a=tw.Matrix("f32"), b=tw.Matrix("f32"), c=tw.Matrix("f32", order))
        made = tw.compile(spec)(a, b)
        assert made.shape == (5, 3, 2)
        assert made.strides[-1 if order == "C" else -2] == 4
        np.testing.assert_array_equal(made, right(a, b))


def test_interleaved_matrices_may_be_written() -> None:
    """Heads: C's matrices lie between each other's rows, and share no element."""
    spec = tw.Gemm(3, 2, 4, ldc=tw.dim("ldc"), batch=tw.Strided(tw.dim("count"), c=tw.dim("apart")))
    a, b, heads = whole((5, 3, 4)), whole((5, 4, 2)), np.full((3, 5, 2), np.nan, "f4")
    tw.compile(spec)(a, b, heads.transpose(1, 0, 2))
    np.testing.assert_array_equal(heads.transpose(1, 0, 2), right(a, b))


def test_bad_arrays_are_refused() -> None:
    kernel = tw.compile(stack(3, 3, 3))
    apart = tw.Gemm(3, 3, 3, batch=tw.Strided(tw.dim("count"), c=tw.dim("apart")))
    a, b = whole((6, 3, 3)), whole((6, 3, 3))
    with pytest.raises(ArgumentError, match="3-d"):
        kernel(a, b, np.zeros((3, 3), "f4"))
    with pytest.raises(ArgumentError, match="wrong shape"):
        kernel(a, b, np.zeros((5, 3, 3), "f4"))
    with pytest.raises(ArgumentError, match="c shares elements with a"):
        kernel(a, b, a)
    both = np.zeros((12, 3, 3), "f4")
    with pytest.raises(ArgumentError, match="c shares elements with b"):
        kernel(a, both[:6], both[3:9])
    memory = np.zeros(100, "f4")
    overlapping = np.lib.stride_tricks.as_strided(memory, (6, 3, 3), (4 * 5, 4 * 3, 4))
    with pytest.raises(ArgumentError, match="matrices of c share elements"):
        tw.compile(apart)(a, b, overlapping)
    with pytest.raises(ArgumentError, match="cannot be made here"):
        tw.compile(apart)(a, b)


def test_c_is_d_only_where_it_lies_alike() -> None:
    kernel = tw.compile(stack(3, 3, 3, beta=1, epilogue=tw.relu(tw.acc)))
    a, b, c = whole((20, 3, 3)), whole((20, 3, 3), seed=1), whole((20, 3, 3), seed=2)
    expected = np.maximum(right(a, b) + c, 0)
    kernel(a, b, c, out=c)
    np.testing.assert_array_equal(c, expected)
    both = np.zeros((21, 3, 3), "f4")
    with pytest.raises(ArgumentError, match="shares elements with c"):
        kernel(a, b, both[:20], out=both[1:])


def test_bad_specs_and_schedules() -> None:
    with pytest.raises(SpecError, match="matrices of C share elements"):
        tw.Gemm(4, 4, 4, batch=tw.Strided(3, c=3))
    with pytest.raises(SpecError, match="a stack of products has neither"):
        stack(4, 4, 4, outputs={"most": tw.row_max(tw.acc)})
    with pytest.raises(ScheduleError, match="the loop over them outside"):
        program_for(plan_for(stack(4, 4, 4), tw.Schedule(loops="nmk"), resolve("avx2")))
    summed = tw.Gemm(4, 4, 4, batch=tw.Strided(3))
    with pytest.raises(ScheduleError, match="all add to the same"):
        program_for(plan_for(summed, tw.Schedule(loops="Bnmk"), resolve("avx2")))
    with pytest.raises(ScheduleError):
        program_for(plan_for(summed, tw.Schedule(vectorize="b"), resolve("avx2")))


def test_variants_of_a_stack_are_those_of_a_product_and_side_by_side() -> None:
    found = list(tw.variants(stack(3, 3, 3), target="avx2"))
    assert tw.Schedule(vectorize="b") in found
    assert all(s.vectorize == "b" or (s.loops or "").startswith("b") for s in found)


# --- tw.matmul -----------------------------------------------------------------------------------


@pytest.mark.twice
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", ml_dtypes.bfloat16])
def test_matmul_of_stacks(dtype: Any) -> None:
    for n, count in product((1, 2, 4, 5, 7, 9), (1, 2, 40)):
        a, b = whole((count, n, n), dtype), whole((count, n, n), dtype, 1)
        for _ in range(2):  # the second time C finds the kernel
            np.testing.assert_array_equal(tw.matmul(a, b), right(a, b))
        np.testing.assert_array_equal(tw.matmul(a, b[0]), right(a, b[0]))
        np.testing.assert_array_equal(tw.matmul(a[0], b), right(a[0], b))
        turned = a.transpose(0, 2, 1)
        np.testing.assert_array_equal(tw.matmul(turned, b), right(turned, b))
        np.testing.assert_array_equal(tw.matmul(a[::-1], b), right(a[::-1], b))
        np.testing.assert_array_equal(
            tw.matmul(a[:, :, :1], b[:, :1]), right(a[:, :, :1], b[:, :1])
        )


def test_matmul_of_stacks_of_several_dimensions_and_options() -> None:
    a, b = whole((3, 4, 5, 5)), whole((4, 5, 5), seed=1)
    np.testing.assert_array_equal(tw.matmul(a, b), right(a, b))
    np.testing.assert_array_equal(tw.matmul(a, a), right(a, a))
    out = whole((3, 4, 5, 5), seed=3)
    expected = 2 * right(a, b) + 3 * out
    tw.matmul(a, b, out, alpha=2, beta=3)
    np.testing.assert_array_equal(out, expected)
    bias = tw.Operand("bias", "f32", per="column")
    given = whole((5,), seed=4)
    found = tw.matmul(a, b, epilogue=tw.relu(tw.acc + bias), bias=given)
    np.testing.assert_array_equal(found, np.maximum(right(a, b) + given, 0))
    heads = np.zeros((5, 12, 5), "f4")
    tw.matmul(a.reshape(12, 5, 5), np.tile(b, (3, 1, 1)), heads.transpose(1, 0, 2))
    np.testing.assert_array_equal(heads.transpose(1, 0, 2), right(a, b).reshape(12, 5, 5))
    large = whole((300, 40, 40)), whole((300, 40, 40), seed=2)
    np.testing.assert_array_equal(tw.matmul(*large), right(*large))
    alone = tw.matmul(*large, deterministic=True)
    np.testing.assert_array_equal(alone[7], tw.matmul(large[0][7], large[1][7], deterministic=True))


@pytest.mark.twice
def test_rows_of_any_number_beside_a_b_in_blocks() -> None:
    """Some of the loops over tiles have none then, and the others are as many as before."""
    b = tw.Packed("f32", nb=32)
    spec = stack(tw.dim("m"), 64, 9, count=2, a=tw.Matrix("f32", "F"), b=b, order="F")
    kernel = tw.compile(spec, target="avx512")
    for m in (1, 2, 14, 17, 42):
        x, y = whole((2, m, 9)), whole((2, 9, 64), seed=1)
        x = np.asfortranarray(x.transpose(1, 2, 0)).transpose(2, 0, 1)
        found = np.array(kernel(x, kernel.pack_b(y)))
        assert (found == right(x, y)).all(), m


def test_a_tile_that_leaves_no_register_puts_no_products_side_by_side() -> None:
    """What is open is chosen so that the tile fits; what is asked for is refused."""
    spec = tw.Gemm(9, 9, 9, batch=tw.Strided(tw.dim("count"), c=None))
    kernel = tw.compile(spec, tw.Schedule(tile=(8, 16)), "avx512")
    said = " ".join(kernel.explain().split())
    assert "one after the other" in said and "need 81 registers" in said
    kernel.verify(cases=2)
    with pytest.raises(ScheduleError, match="8x9 elements of C need 81 registers of 32"):
        tw.compile(spec, tw.Schedule(tile=(8, 16), vectorize="b"), "avx512")
