"""The plan's formulas equal what the interpreter counted, for random sizes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from support.products.operands import operands
from support.products.space import case
from support.specimens import VECTOR_TARGETS

from tilewright import targets
from tilewright.explain.decisions import flops_of as flops
from tilewright.generate import plan_for, program_for
from tilewright.interpret.run import Counts, interpret
from tilewright.ir.count import Formulas, calls, counted, formulas, is_counted
from tilewright.ir.nest import Program
from tilewright.plan.estimate.kernel import estimate
from tilewright.spec.expression import acc, acc2
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Addresses, Matrix, Strided
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from tilewright.spec.transpose import Transpose
from tilewright.symbolic import ONE, evaluate, value

every_target = pytest.mark.parametrize("name", VECTOR_TARGETS)


def agree(found: Formulas, counts: Counts, sizes: dict[str, int]) -> None:
    for field in fields(found):
        formula = getattr(found, field.name)
        assert evaluate(formula, sizes) == getattr(counts, field.name), f"{field.name}: {formula}"


@every_target
@pytest.mark.parametrize("index", range(0, 25, 2))
def test_random_specs_schedules_and_sizes(name: str, index: int) -> None:
    one = case(targets.load(name), seed=11, index=index)
    plan = plan_for(one.spec, one.schedule, one.target)
    program = program_for(plan)
    sizes = dict(one.values)
    arguments = operands(one, "integers").arguments
    counts = interpret(plan, program, arguments, [*sizes.values()], one.scalars)
    if is_counted(program):
        agree(formulas(program), counts, sizes)
    agree(counted(program, sizes).formulas, counts, sizes)


@every_target
@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
def test_fifty_sizes_of_one_kernel(name: str, orders: str) -> None:
    """One program, its formulas made once, at many run-time sizes."""
    a, b = (Matrix("f32", "C" if order == "C" else "F") for order in orders)
    batch = Strided(dim("count"))
    spec = Gemm(dim("m"), dim("n", 4), dim("k"), a=a, b=b, beta="scalar", batch=batch)
    plan = plan_for(spec, Schedule(), targets.load(name))
    program = program_for(plan)
    found = formulas(program)
    rng = np.random.default_rng(7)
    for _ in range(13):  # four orders of four targets: 208 in all
        m, n, k, count = (int(x) for x in rng.integers((0, 0, 0, 0), (24, 7, 24, 3)))
        sizes = {"m": m, "n": 4 * n, "k": k, "count": count}
        arrays = [_zeros(count, m, k, orders[0]), _zeros(count, k, 4 * n, orders[1])]
        arrays.append(np.zeros((m, 4 * n), "f4"))
        agree(found, interpret(plan, program, arrays, [*sizes.values()], [2.0]), sizes)


def _zeros(count: int, rows: int, cols: int, order: str) -> Any:
    shape = (count, rows, cols) if order == "C" else (count, cols, rows)
    return np.zeros(shape, "f4")


@every_target
@pytest.mark.parametrize("same", [False, True])
def test_transpositions(name: str, same: bool) -> None:
    size = dim("size")
    plan = plan_for(Transpose(size, size), Schedule(), targets.load(name))
    program = program_for(plan)
    found = formulas(program, same=same)
    for n in (0, 1, 7, 16, 21, 40):
        x = np.zeros((n, n), "f4")
        out = x if same else np.zeros((n, n), "f4")
        counts = interpret(plan, program, [x, out], [n, n])
        agree(found, counts, {"rows": n, "cols": n})


@pytest.mark.parametrize("orders", ["CCC", "FCF"])
@pytest.mark.parametrize(("m", "n", "k"), [(7, 5, 9), (30, 33, 20), (1, 40, 50)])
def test_blocks_whose_size_the_call_computes(orders: str, m: int, n: int, k: int) -> None:
    a, b, c = (Matrix("f32", "C" if order == "C" else "F") for order in orders)
    spec = Gemm(dim("m"), dim("n"), dim("k"), a=a, b=b, c=c)
    block = {"m": 12, "n": 16, "k": 8}
    loops = "nkmmnk" if orders[-1] == "C" else "mknnmk"
    schedule = Schedule(loops=loops, block=block, pack="ab", tile=(4, 8))
    plan = plan_for(spec, schedule, targets.load("avx2"))
    program, sizes = program_for(plan), {"m": m, "n": n, "k": k}
    shapes = ((m, k), (k, n), (m, n))
    arrays = [
        np.zeros(shape if order == "C" else shape[::-1], "f4")
        for shape, order in zip(shapes, orders, strict=True)
    ]
    found = counted(program, sizes)
    agree(found.formulas, interpret(plan, program, arrays, [m, n, k]), sizes)
    assert sum(found.calls.values()) > 0


def _program(spec: Gemm, schedule: Schedule, name: str) -> Program:
    return program_for(plan_for(spec, schedule, targets.load(name)))


def test_a_fixed_kernel_has_numbers() -> None:
    program = _program(Gemm(64, 48, 64), Schedule(tile=(8, 48), k_unroll=2), "avx512")
    found = formulas(program)
    assert value(found.multiply_adds) == 64 * 48 * 64 / 16
    assert value(found.stores) == 64 * 48 / 16
    assert {tile: value(count) for tile, count in calls(program).items()} == {"tile0_8x48": 8}


def test_a_multiple_leaves_no_tail_in_the_formulas() -> None:
    spec = Gemm(dim("m", 8), dim("n", 48), dim("k", 2))
    program = _program(spec, Schedule(tile=(8, 48), k_unroll=2), "avx512")
    plan = plan_for(spec, Schedule(), targets.load("avx512"))
    assert (
        formulas(program).multiply_adds
        == flops(plan.spec, plan.problem.sizes, plan.problem.matrices) / 32
    )


def test_flops_are_what_the_spec_asks_for() -> None:
    spec = Gemm(3, dim("n"), 5, batch=Addresses(dim("count")))
    plan = plan_for(spec, Schedule(), targets.load("scalar"))
    assert (
        evaluate(flops(plan.spec, plan.problem.sizes, plan.problem.matrices), {"n": 7, "count": 2})
        == 2 * 3 * 7 * 5 * 2
    )


def test_flops_are_those_of_both_products_of_a_gated_kernel() -> None:
    plain, gated = Gemm(37, 96, 64), Gemm(37, 96, 64, b2="f32", epilogue=acc * acc2)
    target = targets.load("avx2")
    one, two = (plan_for(spec, Schedule(), target) for spec in (plain, gated))
    assert flops(plain, one.problem.sizes, ONE) == 2 * 37 * 96 * 64
    assert flops(gated, two.problem.sizes, ONE) == 4 * 37 * 96 * 64
    assert estimate(two, {}).least == 2 * estimate(one, {}).least
    adds = formulas(program_for(two)).multiply_adds
    assert adds == 2 * formulas(program_for(one)).multiply_adds
