"""Expressions are graphs: what reads one visits each node once, however deep it is and shared."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.cli.code import spec_of_code
from tilewright.elementwise.simplify import DEEPEST, MOST, simplify
from tilewright.errors import PlanError, SpecError
from tilewright.generate import plan_for
from tilewright.plan.epilogues import MOST_OPERATIONS, check_length
from tilewright.runtime.driver import described
from tilewright.runtime.reference.epilogue import evaluate, evaluate_whole
from tilewright.runtime.reference.interval import Interval
from tilewright.spec.expression import Expression
from tilewright.spec.expression.checks import MOST_NODES
from tilewright.spec.sizes import canonical
from tilewright.targets import load

#: How often a sum is added to itself: as a tree it has 2**DOUBLED nodes.
DOUBLED = 60
#: Functions within each other, more than Python's recursion has room for.
DEEP = 400


@tw.postop
def halved_twice(x: tw.Expression) -> tw.Expression:
    """``x / 4``, in two functions that are defined by others."""
    return tw.linear(tw.linear(x, 0.5, 0), 0.5, 0)


def doubled(times: int) -> Expression:
    """``acc * 2**times``, as sums."""
    made: Expression = tw.acc
    for _ in range(times):
        made = made + made
    return made


def deep(times: int) -> Expression:
    """Functions of functions, ``times`` of each of three kinds."""
    made: Expression = tw.acc
    for _ in range(times):
        made = halved_twice(tw.relu(made)) * 4
    return made


LARGE = pytest.mark.parametrize("one", [doubled(DOUBLED), deep(DEEP)], ids=["shared", "deep"])


@LARGE
def test_a_large_expression_is_a_value(one: Expression) -> None:
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    assert hash(again) == hash(one)
    assert again + 1 != one + 2
    assert copy.deepcopy(one) is one
    spec = tw.Gemm(2, 3, 4, epilogue=one)
    assert canonical(spec) == canonical(tw.Gemm(2, 3, 4, epilogue=again))
    assert canonical(spec) != canonical(tw.Gemm(2, 3, 4, epilogue=again + 1))
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize("one", [doubled(DOUBLED), deep(120)], ids=["shared", "deep"])
def test_a_large_expression_prints_as_the_code_that_makes_it(one: Expression) -> None:
    text = repr(one)
    assert text.startswith("(e0 := ")
    assert len(text) < 20_000
    names = {name: getattr(tw, name) for name in ("acc", "relu")} | {"halved_twice": halved_twice}
    assert eval(text, {"__builtins__": {}}, names) == one  # noqa: S307  our own repr


def test_the_command_line_reads_parts_that_have_names() -> None:
    made = doubled(DOUBLED) ** 2
    spec = tw.Gemm(2, 3, 4, epilogue=made)
    assert spec_of_code(repr(spec)) == spec


def test_equal_graphs_are_equal_however_much_they_share() -> None:
    part = tw.acc * 2 + 1
    shared, apart = part * part, (tw.acc * 2 + 1) * (tw.acc * 2 + 1)
    assert shared == apart
    assert hash(shared) == hash(apart)
    assert canonical(shared) == canonical(apart)
    assert shared != part * (part + 1)


def test_results_of_a_large_expression_are_those_of_its_parts() -> None:
    """By the reference, in real numbers and in integers, and by a program of few steps."""
    values = np.array([[-2.0, 0.5, 3.0]])
    acc = Interval.exactly(values.astype(np.longdouble), "f64")
    found = evaluate(doubled(DOUBLED), {"acc": acc}, {})
    np.testing.assert_array_equal(found.value, values * 2.0**DOUBLED)
    found = evaluate(deep(DEEP), {"acc": acc}, {})
    np.testing.assert_array_equal(found.value, np.maximum(values, 0))
    whole = evaluate_whole(doubled(40), {"acc": np.array([3], np.int64)}, {})
    assert whole[0] == 3 * 2**40


def test_a_kernel_computes_a_shared_expression() -> None:
    """Its program has one operation for each node."""
    one = np.ones((1, 1), np.float32)
    spec = tw.Gemm(1, 1, 1, epilogue=doubled(20))
    assert tw.compile(spec, target="scalar")(one, one) == 2.0**20
    whole = tw.Gemm(4, 3, 5, a="s8", d="s32", epilogue=doubled(3))
    tw.compile(whole, target="scalar").verify()


@pytest.mark.parametrize("type_", ["f32", "f64", "s8"])
def test_what_is_too_long_for_a_kernel_is_refused(type_: Any) -> None:
    d: Any = "s32" if type_ == "s8" else None
    long = doubled(MOST_OPERATIONS + 1)
    with pytest.raises(PlanError) as refused:
        plan_for(tw.Gemm(2, 2, 2, a=type_, d=d, epilogue=long), tw.Schedule(), load("scalar"))
    assert f"{MOST_OPERATIONS + 1} functions" in str(refused.value)
    assert f"at most {MOST_OPERATIONS} operations" in str(refused.value)
    check_length(tw.Gemm(2, 2, 2, a=type_, d=d, epilogue=doubled(MOST_OPERATIONS)))


def test_what_outputs_reduce_counts_as_well() -> None:
    parts = {"sum": tw.row_sum(doubled(MOST_OPERATIONS)), "max": tw.row_max(tw.acc * 3)}
    with pytest.raises(PlanError, match="too long for one kernel"):
        check_length(tw.Gemm(2, 2, 2, outputs=parts))


def test_an_expression_has_so_many_nodes_at_most() -> None:
    assert tw.Gemm(2, 2, 2, epilogue=doubled(MOST_NODES - 1)).named == ()
    with pytest.raises(SpecError, match=rf"{MOST_NODES + 1} functions, operands and numbers"):
        tw.Gemm(2, 2, 2, epilogue=doubled(MOST_NODES))


@pytest.mark.parametrize("times", [DEEPEST + 1, 1000])
def test_sympy_is_asked_about_short_expressions_only(times: int) -> None:
    with pytest.raises(PlanError, match=f"at most {MOST}, and {DEEPEST} within each other"):
        simplify(doubled(times))
    assert simplify(doubled(DEEPEST)) == tw.acc * 2.0**DEEPEST


def test_f64_is_checked_within_what_functions_mean() -> None:
    with pytest.raises(SpecError, match="tanh is not computed in f64"):
        tw.Gemm(2, 2, 2, a="f64", epilogue=deep(DEEP) + tw.tanh(tw.acc))


def test_the_programs_of_own_functions_stand_in_the_key() -> None:
    """Of an expression whose own functions are within each other, in one text of linear length."""
    _, program = described(tw.Gemm(2, 2, 2, epilogue=deep(300)))
    assert len(program) < 300 * 500
