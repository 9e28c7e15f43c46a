"""Every constructor with wrong values of every parameter: only tilewright's errors come out."""

from __future__ import annotations

import dataclasses
import inspect
import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ScheduleError, SpecError, TilewrightError
from tilewright.runtime.driver import request_for
from tilewright.spec import postops
from tilewright.spec.names import check_function_name
from tilewright.spec.signature import signature

NAN, INF = float("nan"), float("inf")
NUMBERS: tuple[Any, ...] = (
    True, -1, 0, 1, 2**31, 2**48, 2**62, 2**63, 2**70, 10**400, 10**6000, -(10**400), 1.5, -0.0,
    NAN, INF, -INF, 1e39, 1e300, 5e-324, 1j, Fraction(1, 3), Fraction(10**400), Decimal("NaN"),
    Decimal("sNaN"), Decimal(10) ** 400, np.float32(1), np.int8(3), np.True_, np.float64("nan"),
    ml_dtypes.bfloat16(2), np.datetime64(1, "s"),
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, "x", "", "scalar", "row", "int", b"x", [], [1], (1, 2), [[1, 2]], [["k", 1], ["k", 2]],
    {}, {1: 2}, {"k": "8"}, {"x": 3}, {"k": 10**18}, {"int": tw.row_max(tw.acc)}, {3: 4}, {"o": 3},
    np.ones(4), np.array([4]), np.array(4), np.array("x"), np.array([True]), object(), int,
    np.float32, tw.acc + 1, tw.dim("q"), tw.Operand("o"), tw.Schedule(), tw.Addresses(2**40),
    tw.Packed("f32"), tw.Matrix("f32", "F"), set(), range(3), ..., "a" * 10000,
)  # fmt: skip


@tw.postop
def beyond(x: tw.Expression) -> tw.Expression:
    """A function whose meaning has a number that f32 does not hold."""
    return tw.minimum(x, 1e39)


FUNCTIONS = [getattr(tw, name) for name in postops.NAMES]
MADE: list[tuple[Any, dict[str, Any]]] = [
    *((tw.Gemm, {"m": 4, "n": 4, "k": 4, "a": a}) for a in ("f32", "s8", "f64", "bf16")),
    (tw.Transpose, {"rows": 4, "cols": 4}),
    (tw.Pack, {"k": 4, "n": 4}),
    (tw.Operand, {"name": "x"}),
    (tw.Matrix, {"type": "f32"}),
    (tw.Packed, {"type": "f32"}),
    (tw.Strided, {"count": 2}),
    (tw.Addresses, {"count": 2}),
    (tw.Schedule, {}),
    (tw.dim, {"name": "x"}),
    *((f, dict.fromkeys(inspect.signature(f).parameters, tw.acc)) for f in FUNCTIONS),
    *((f, {"expression": tw.acc}) for f in (tw.row_max, tw.row_sum, tw.row_absmax)),
]


@pytest.mark.parametrize(("make", "given"), MADE, ids=lambda x: getattr(x, "__name__", ""))
def test_wrong_values_end_in_errors_of_ones_own(make: Any, given: dict[str, Any]) -> None:
    refused = 0
    for name in inspect.signature(make).parameters:
        for value in (*NUMBERS, *OTHERS):
            try:
                made = make(**{**given, name: value})
            except TilewrightError as error:
                refused += len(str(error)) > 0
            else:
                assert repr(made)
                hash(made)
    assert refused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"alpha": 1e39}, "alpha must be a finite number of f32"),
        ({"alpha": 10**400}, "alpha must be a finite number of f32"),
        ({"beta": NAN}, "beta must be a finite number"),
        ({"a": "s8", "alpha": NAN}, "alpha must be a finite number"),
        ({"a": "f64", "alpha": 10**400}, "finite number of f64"),
        ({"a": "s8", "a_zero": NAN}, "a_zero must be a whole number of 32 bits"),
        ({"a": "s8", "a_zero": INF}, "a_zero must be a whole number of 32 bits"),
        ({"d_scale": np.ones(4)}, "d_scale must be a number, 'scalar' or 'column'"),
        ({"d_scale": 0}, "d_scale divides"),
        ({"d_scale": 2.0**-128}, "d_scale divides.*\n.*\n.*at least 5.877"),
        ({"d_scale": NAN}, "d_scale must be a finite number"),
        ({"epilogue": tw.acc + 1e300}, "a number of an expression must be a finite number of f32"),
        ({"epilogue": tw.clip(tw.acc, -1e39, 0)}, "a number of an expression must be a finite"),
        ({"a": "s8", "epilogue": tw.acc * -1e39}, "a number of an expression must be a finite"),
        ({"epilogue": beyond(tw.acc)}, "a number of an expression must be a finite number of f32"),
        ({"b_scale": 1e39}, "b_scale must be a finite number of f32"),
        ({"m": np.array([4])}, "m must be an int"),
        ({"m": 2**62}, "m is out of range"),
        ({"m": 2**40, "n": 2**40}, "C is larger than memory"),
        ({"lda": 2**47}, "A is larger than memory"),
        ({"batch": tw.Strided(2**20, a=2**40)}, "the batch of A is larger than memory"),
        ({"batch": tw.Addresses(2**48)}, "the batch of A is larger than memory"),
        ({"algebra": np.ones(2)}, "algebra must be True or False"),
        ({"epilogue": 10**400}, "beyond floating point"),
    ],
)
def test_what_a_product_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        tw.Gemm(**{"m": 4, "n": 4, "k": 4, **given})


def test_the_largest_and_the_smallest_numbers_are_legal() -> None:
    largest = 2.0**128 - 2.0**104
    spec = tw.Gemm(4, 4, 4, alpha=largest, beta=2.0**-149, a_scale=-largest)
    assert (spec.alpha, spec.beta, spec.a_scale) == (largest, 2.0**-149, -largest)
    assert tw.Gemm(4, 4, 4, a="f64", alpha=1e300).alpha == 1e300
    four: Any = np.int64(4)
    two: Any = np.int16(2)
    plain = tw.Gemm(4, 4, 4, batch=tw.Strided(2))
    assert tw.Gemm(four, 4, 4, batch=tw.Strided(two)) == plain


@pytest.mark.parametrize(
    "given",
    [
        {"prefetch": 10**18}, {"k_unroll": 10**9}, {"threads": 10**9}, {"tile": (2**40, 8)},
        {"block": [1]}, {"block": "k"}, {"block": {"k": 10**18}}, {"block": [["k", 1], ["k", 2]]},
        {"block": {"q": 1}}, {"block": [["k", "8"]]}, {"tails": ["mask"]}, {"pack": np.ones(2)},
    ],
)  # fmt: skip
def test_what_a_schedule_cannot_be_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ScheduleError) as caught:
        tw.Schedule(**given)
    assert caught.value.expected


@pytest.mark.parametrize(
    "schedule",
    [
        tw.Schedule(),
        tw.Schedule(tile=(4, 16), loops="mnkmnk", block={"n": 32, "m": 8, "k": 64}, k_unroll=2),
        tw.Schedule(vectorize="n", pack="ab", tails="mask", prefetch=4, threads=1),
    ],
)
def test_a_schedule_comes_back_from_json(schedule: tw.Schedule) -> None:
    again = tw.Schedule(**json.loads(json.dumps(dataclasses.asdict(schedule))))
    assert again == schedule
    assert (hash(again), repr(again)) == (hash(schedule), repr(schedule))


# -- names ----------------------------------------------------------------------------------------

WORDS = [
    "int",
    "restrict",
    "double",
    "void",
    "new",
    "class",
    "and",
    "_Bool",
    "__x",
    "for",
    "1x",
    "",
]


@pytest.mark.parametrize("name", WORDS)
def test_words_are_nobodys_names(name: str) -> None:
    for make in (
        lambda: tw.Operand(name),
        lambda: tw.Gemm(4, 4, 4, outputs={name: tw.row_max(tw.acc)}),
        lambda: request_for(tw.Gemm(4, 4, 4), None, "scalar", name),
        lambda: tw.harness(tw.Gemm(4, 4, 4), target="scalar", name=name),
    ):
        with pytest.raises(SpecError, match="the name of"):
            make()


@pytest.mark.parametrize(
    "name", ["main", "memcpy", "INT64_MAX", "int64_t", "exp", "expf", "strided", "printf", "errno"]
)
def test_a_kernel_is_not_called_as_the_library_is(name: str) -> None:
    with pytest.raises(SpecError, match=f"a kernel cannot be called {name}"):
        check_function_name(name)
    assert check_function_name(f"gemm_{name}_2") == f"gemm_{name}_2"


@pytest.mark.parametrize("name", ["main", "INT64_MAX", "int64_t", "bias", "sums", "m", "new_"])
def test_an_operand_is_called_alike_everywhere(name: str) -> None:
    """Python takes its name; C, its declaration included, the name with an underscore behind."""
    s = tw.Operand(name, per="column")
    kernel = tw.compile(tw.Gemm(2, 3, 4, epilogue=tw.acc + s), target="scalar")
    ones = np.ones((2, 4), np.float32), np.ones((4, 3), np.float32)
    given = np.arange(3, dtype=np.float32)
    assert (kernel(*ones, **{name: given}) == 4 + given).all()
    assert f"const float *{name}_" in kernel.c_declaration
    assert f"const float *{name}_" in kernel.source
    assert signature(kernel.spec).array(name).symbol == f"{name}_"


@pytest.mark.parametrize("name", ["a", "alpha", "out", "d_scale", "self", "a_offsets"])
def test_an_operand_is_not_called_as_another_argument(name: str) -> None:
    with pytest.raises(SpecError, match="is taken by another argument"):
        tw.Gemm(4, 4, 4, epilogue=tw.acc + tw.Operand(name))


def test_no_matrices_tell_no_sizes() -> None:
    with pytest.raises(SpecError, match="no argument tells dim 'k'"):
        tw.compile(tw.Gemm(4, 4, tw.dim("k"), batch=tw.Addresses(0)), target="scalar")
