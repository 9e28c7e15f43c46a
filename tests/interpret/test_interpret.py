"""The interpreter against numpy, and that it refuses every access that is not the operand's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases import Cases
from support.products.operands import operands
from support.products.space import case
from support.specimens import VECTOR_TARGETS

from tilewright import targets
from tilewright.errors import ArgumentTypeError, ArgumentValueError, PlanError
from tilewright.generate import interpret_kernel, plan_for, program_for
from tilewright.interpret.memory import Buffer
from tilewright.interpret.run import interpret
from tilewright.ir.nest import Program
from tilewright.ir.ops import (
    Advance,
    Load,
    Loop,
    Op,
    Store,
)
from tilewright.plan.tiling.tiles import grids_of
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Addresses, Offsets, Strided
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from tilewright.spec.transpose import Transpose
from tilewright.symbolic import ONE

every_target = pytest.mark.parametrize("name", VECTOR_TARGETS)


@every_target
@pytest.mark.parametrize("index", range(12))
def test_cases_of_the_whole_space_agree_with_numpy(name: str, index: int, cases: Cases) -> None:
    one = case(targets.load(name), seed=5, index=index)
    plan = plan_for(one.spec, one.schedule, one.target)
    for kind in ("integers", "random", "special"):
        given = operands(one, kind)
        sizes = [value for _, value in one.values]
        interpret(plan, program_for(plan), given.arguments, sizes, one.scalars)
        given.check(given.c)
        cases.count(name, "interpreted")


@every_target
def test_forty_cubed_takes_few_calls_of_python(name: str) -> None:
    """Lanes are numpy's: an operation on a vector costs a few calls, however many lanes it has."""
    a, b = np.ones((40, 40), "f4"), np.ones((40, 40), "f4")
    c = np.empty((40, 40), "f4")
    target, calls = targets.load(name), 0
    plan = plan_for(Gemm(40, 40, 40), Schedule(), target)
    program = program_for(plan)

    def watch(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(watch)
    try:
        interpret(plan, program, [a, b, c])
    finally:
        sys.setprofile(None)
    assert (c == 40).all()
    lanes = min(grid.tile.shape.vector.lanes for grid in grids_of(plan.tiling.passes["whole"]))
    assert calls < 16 * 40**3 / lanes, calls


# -- where operands lie ---------------------------------------------------------------------------


@every_target
def test_operands_inside_larger_buffers(name: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, 400).astype("f4") for _ in range(2))
    c = np.full(400, np.nan, "f4")
    leading: dict[str, Any] = {f"ld{x}": dim(f"ld{x}") for x in "abc"}
    spec = Gemm(5, 11, 9, **leading)
    arrays = [Buffer(a, 7), Buffer(b, 3), Buffer(c, 11)]
    interpret_kernel(spec, Schedule(), targets.load(name), arrays, [12, 14, 17])
    view = c[11 : 11 + 5 * 17].reshape(5, 17)
    product = a[7 : 7 + 60].reshape(5, 12)[:, :9] @ b[3 : 3 + 126].reshape(9, 14)[:, :11]
    np.testing.assert_array_equal(view[:, :11], product)
    view[:, :11] = np.nan
    assert np.isnan(c).all(), "the elements around C were written"


def test_a_strided_view_is_taken_where_it_lies() -> None:
    big = np.zeros((10, 20), "f4")
    a, b = np.ones((4, 6), "f4"), np.ones((6, 5), "f4")
    spec = Gemm(4, 5, 6, ldc=20)
    interpret_kernel(spec, Schedule(), targets.load("scalar"), [a, b, big[3:7, 2:7]])
    assert (big[3:7, 2:7] == 6).all() and big.sum() == 6 * 20


def test_a_batch_by_addresses_and_by_offsets() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-4, 5, (2, 3, 4, 4)).astype("f8")
    expected = sum(x @ y for x, y in zip(a, b, strict=True))
    target = targets.load("scalar")
    c = np.empty((4, 4))
    spec = Gemm(4, 4, 4, a="f64", batch=Addresses(3))
    interpret_kernel(spec, Schedule(), target, [list(a), list(b), c])
    np.testing.assert_array_equal(c, expected)
    c[:] = np.nan
    spec = Gemm(4, 4, 4, a="f64", batch=Offsets(dim("count")))
    at = np.array([32, 0, 16])
    interpret_kernel(spec, Schedule(), target, [a.ravel(), b.ravel(), c, at, at], [3])
    np.testing.assert_array_equal(c, expected)


def test_transposition_in_place_and_apart() -> None:
    x = np.arange(81, dtype="f4").reshape(9, 9)
    for name in VECTOR_TARGETS:
        out, same = np.zeros((9, 9), "f4"), x.copy()
        interpret_kernel(Transpose(9, 9), Schedule(), targets.load(name), [x, out])
        interpret_kernel(Transpose(9, 9), Schedule(), targets.load(name), [same, same])
        assert (out == x.T).all() and (same == x.T).all()


# -- what is refused ------------------------------------------------------------------------------

SPEC = Gemm(3, 5, 7)
ORDERS = {"a": (3, 7), "b": (7, 5), "c": (3, 5)}


def tampered(program: Program, change: Callable[[Op], Op]) -> Program:
    def deep(op: Op) -> Op:
        if isinstance(op, Loop):
            return replace(op, body=tuple(map(deep, op.body)))
        return change(op)

    tiles = tuple(
        replace(t, body=tuple(map(deep, t.body)), end=tuple(map(deep, t.end)))
        for t in program.tiles
    )
    return replace(program, tiles=tiles)


def run(program: Program, spec: Gemm = SPEC, name: str = "scalar") -> None:
    arrays = [np.zeros(ORDERS[x], "f4") for x in "abc"]
    interpret(plan_for(spec, Schedule(), targets.load(name)), program, arrays)


def program_of(spec: Gemm = SPEC, name: str = "scalar") -> Program:
    return program_for(plan_for(spec, Schedule(), targets.load(name)))


def test_a_read_behind_the_operand_is_named() -> None:
    def longer(op: Op) -> Op:
        if isinstance(op, Load) and op.address.pointer.startswith("pa"):
            return replace(op, address=replace(op.address, offset=op.address.offset + 1))
        return op

    with pytest.raises(PlanError, match=r"of a, 1 of them outside(.|\n)*a\[21\]"):
        run(tampered(program_of(), longer))


def test_a_read_of_padding_is_named() -> None:
    values = np.zeros(3 * 9, "f4")
    spec = Gemm(3, 5, 7, lda=8)
    wrong = program_of(Gemm(3, 5, 8))
    arrays = [Buffer(values), Buffer(np.zeros(40, "f4")), Buffer(np.zeros(15, "f4"))]
    with pytest.raises(PlanError, match=r"of a(.|\n)*line 0, element 7"):
        interpret(plan_for(spec, Schedule(), targets.load("scalar")), wrong, arrays)


def test_a_write_beside_c_and_a_write_into_an_input() -> None:
    def elsewhere(pointer: str, more: int) -> Callable[[Op], Op]:
        def change(op: Op) -> Op:
            if isinstance(op, Store):
                address = replace(op.address, pointer=pointer, offset=op.address.offset + more)
                return replace(op, address=address)
            return op

        return change

    with pytest.raises(PlanError, match="writes 1 elements of c, 1 of them outside"):
        run(tampered(program_of(), elsewhere("c", 15)))
    with pytest.raises(PlanError, match="writes a, an input"):
        run(tampered(program_of(), elsewhere("a", 0)))


def test_c_is_not_read_where_beta_is_0() -> None:
    with pytest.raises(PlanError, match="reads c before it was written"):
        run(program_of(Gemm(3, 5, 7, beta=1)))


def test_a_step_too_far_is_seen() -> None:
    def farther(op: Op) -> Op:
        return replace(op, step=op.step + ONE) if isinstance(op, Advance) else op

    spec = Gemm(3, 5, 7)
    program = program_for(plan_for(spec, Schedule(k_unroll=1), targets.load("scalar")))
    with pytest.raises(PlanError, match="outside"):
        run(tampered(program, farther))


def test_a_dropped_mask_is_seen() -> None:
    def whole(op: Op) -> Op:
        return replace(op, active=None) if isinstance(op, Load) else op

    with pytest.raises(PlanError, match=r"of b, \d of them outside"):
        run(tampered(program_of(name="avx512"), whole), name="avx512")


def test_a_batch_entry_that_does_not_exist() -> None:
    spec = Gemm(3, 5, 7, batch=Addresses(dim("count")))
    a, b = [np.zeros((3, 7), "f4")], [np.zeros((7, 5), "f4")]
    with pytest.raises(PlanError, match="entry 1 of a"):
        interpret_kernel(
            spec, Schedule(), targets.load("scalar"), [a, b, np.zeros((3, 5), "f4")], [2]
        )


@pytest.mark.parametrize(
    ("a", "error"),
    [
        (np.zeros(20, "f4"), ArgumentValueError),
        (np.zeros((3, 7), "f8"), ArgumentTypeError),
        (np.zeros((3, 7), "f4")[::-1], ArgumentValueError),
        ((np.zeros(21, "f4"), -1), ArgumentValueError),
    ],
)
def test_buffers_that_do_not_fit(a: Any, error: type[Exception]) -> None:
    arrays = [a, np.zeros((7, 5), "f4"), np.zeros((3, 5), "f4")]
    with pytest.raises(error):
        interpret_kernel(SPEC, Schedule(), targets.load("scalar"), arrays)


# -- arithmetic -----------------------------------------------------------------------------------


def test_a_multiply_add_is_rounded_once() -> None:
    x = np.float32(1 + 2.0**-12)
    a, b = np.array([[-1, x]], "f4"), np.array([[x * x], [x]], "f4")
    c = np.empty((1, 1), "f4")
    interpret_kernel(Gemm(1, 1, 2), Schedule(k_split=1), targets.load("avx2"), [a, b, c])
    exact = np.float64(x) * np.float64(x) - np.float64(np.float32(x * x))
    assert c[0, 0] == exact != 0


def test_what_is_counted() -> None:
    arrays = [np.zeros(shape, "f4") for shape in ((1, 4, 3), (1, 3, 8), (4, 8))]
    spec, schedule = Gemm(4, 8, 3, batch=Strided(1)), Schedule(vectorize="n")
    counts = interpret_kernel(spec, schedule, targets.load("avx2"), arrays)
    assert (counts.loads, counts.broadcasts, counts.multiply_adds, counts.stores) == (3, 12, 12, 4)
    assert (counts.bytes_read, counts.bytes_written) == (3 * 32 + 12 * 4, 128)
