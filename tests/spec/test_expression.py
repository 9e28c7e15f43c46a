"""Expressions: how they are built, printed, compared and refused."""

from __future__ import annotations

import inspect
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import SpecError, TilewrightError
from tilewright.spec import expression, postops
from tilewright.spec.expression import (
    REGISTRY,
    Call,
    Expression,
    Number,
    Operand,
    acc,
    acc2,
    as_expression,
    dst,
    is_integer_additions,
    operands_of,
    uses,
    walk,
)
from tilewright.spec.sizes import canonical

#: For what type checkers refuse.
ANY: Any = acc
MISUSED: Any = object()
#: numpy, whose stubs know nothing of expressions.
NUMPY: Any = np
BIAS = Operand("bias", "f32", per="column")
NAMES: dict[str, Any] = {
    **{name: getattr(expression, name) for name in ("Operand", "acc", "acc2", "dst")},
    **{name: getattr(postops, name) for name in postops.NAMES},
}


def rebuilt(text: str) -> Any:
    return eval(text, {"__builtins__": {"float": float}}, dict(NAMES))  # noqa: S307  our own repr


NUMBERS = st.floats(allow_nan=False) | st.integers(-(2**40), 2**40)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.sampled_from([acc, acc2, dst, BIAS, Operand("s", "bf16"), Operand("t", "u8", "full")])
#: Functions of one value with parameters that may be left out.
OPTIONAL = [name for name in postops.NAMES if len(inspect.signature(NAMES[name]).parameters) > 1]
OPTIONAL = [name for name in OPTIONAL if not REGISTRY[name].operands[1:]]
OPTIONAL = [name for name in OPTIONAL if None not in dict(REGISTRY[name].parameters).values()]
UNARY = [name for name in postops.NAMES if len(inspect.signature(NAMES[name]).parameters) == 1]
BINARY = [*"+-*/<", "maximum", "prelu", "eq"]


def _binary(parts: tuple[str, Any, Any]) -> Any:
    sign, x, y = parts
    match sign:
        case "+":
            return x + y
        case "-":
            return x - y
        case "*":
            return x * y
        case "/":
            return x / y
        case "<":
            return x < y
    return NAMES[sign](x, y)


def _grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(st.sampled_from(BINARY), inner, inner | NUMBERS).map(_binary),
        st.tuples(st.sampled_from(BINARY), NUMBERS, inner).map(_binary),
        st.tuples(st.sampled_from(UNARY), inner).map(lambda p: NAMES[p[0]](p[1])),
        inner.map(lambda x: -x),
        st.tuples(inner, FINITE).map(lambda p: p[0] ** p[1]),
        st.tuples(inner, FINITE, FINITE).map(lambda p: postops.pow(*p)),
        st.tuples(inner, inner, inner).map(lambda p: postops.where(*p)),
        st.tuples(st.sampled_from(OPTIONAL), inner).map(lambda p: NAMES[p[0]](p[1])),
        st.tuples(inner, FINITE, FINITE).map(lambda p: postops.hardswish(*p)),
    )


EXPRESSIONS = st.recursive(LEAVES, _grown, max_leaves=12)


@given(EXPRESSIONS)
def test_the_repr_is_the_python_that_makes_it(one: Expression) -> None:
    again = rebuilt(repr(one))
    assert again == one
    assert hash(again) == hash(one)
    assert canonical(again) == canonical(one)
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (postops.relu(acc + BIAS), "relu(acc + Operand('bias', 'f32', per='column'))"),
        (postops.relu(acc, 0.1), "relu(acc, alpha=0.1)"),
        (acc - (dst - 1), "acc - (dst - 1)"),
        (acc - dst - 1, "acc - dst - 1"),
        (-(acc**2), "-acc ** 2"),
        ((-acc) ** -1, "(-acc) ** -1"),
        (2 / (acc * 3.5), "2 / (acc * 3.5)"),
        (abs(acc) < 3, "lt(abs(acc), 3)"),
        (postops.silu(acc2), "swish(acc2)"),
        (postops.hardsigmoid(acc, beta=1), "hardsigmoid(acc, beta=1)"),
        (postops.pow(acc, 2, 0.5), "pow(acc, 2, 0.5)"),
        (acc * -0.0 + float("inf"), "acc * -0.0 + float('inf')"),
        (+acc, "acc"),
    ],
)
def test_the_repr_reads_as_written(made: Expression, text: str) -> None:
    assert repr(made) == text


def test_an_entry_has_the_functions_arguments() -> None:
    assert {"elu", "relu", "swish"} <= set(OPTIONAL)
    for name in set(postops.NAMES) - {"silu"}:
        entry, parameters = REGISTRY[name], inspect.signature(NAMES[name]).parameters
        assert [*entry.operands, *dict(entry.parameters)] == list(parameters)
        for parameter, default in entry.parameters:
            said = parameters[parameter].default
            assert said == default if default is not None else said is inspect.Parameter.empty
        assert NAMES[name].__doc__


def test_equality_is_of_structure_and_of_the_signs_of_zeros() -> None:
    assert acc + 1 == acc + 1.0
    assert acc + 0.0 != acc + -0.0
    assert (ANY == 1) is False
    assert Number(float("nan")) == Number(float("nan"))
    assert len({acc + BIAS, acc + BIAS, BIAS + acc}) == 2
    assert Operand("x", "f32") != Operand("x", "f16")


def test_numbers_may_be_numpys_and_fractions() -> None:
    assert np.float32(2) * ANY == 2 * acc
    assert ANY / np.int64(3) == acc / 3
    assert ANY + Fraction(1, 4) == acc + 0.25


def test_nodes_are_immutable() -> None:
    with pytest.raises((AttributeError, TypeError)):
        BIAS.name = "other"  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        acc.other = 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bool(acc < 1), "truth value"),
        (lambda: 1 if 0 < acc < 1 else 0, "truth value"),
        (lambda: acc < 1 and dst < 1, "tw.where"),
        (lambda: postops.where(ANY == 1, 2, 3), "tw.eq"),
        (lambda: ANY + "1", "'?1'?"),
        (lambda: ANY * np.ones(3), "tw.Operand"),
        (lambda: np.ones(3) * ANY, "ndarray"),
        (lambda: ANY + 1j, "complex"),
        (lambda: ANY**ANY, "beta of pow"),
        (lambda: 2**ANY, "the exponent of .. must be a number"),
        (lambda: acc ** float("nan"), "beta of pow"),
        (lambda: acc ** float("inf"), "beta of pow"),
        (lambda: postops.relu(ANY, MISUSED), "alpha of relu"),
        (lambda: postops.relu(acc, ANY), "alpha of relu"),
        (lambda: postops.clip(acc, 2, 1), "low=2, high=1"),
        (lambda: postops.clip(acc, float("nan"), 1), "low of clip"),
        (lambda: postops.soft_relu(acc, 0), "alpha"),
        (lambda: Operand("1x"), "C identifier"),
        (lambda: Operand("for"), "C identifier"),
        (lambda: Operand("double"), "word of C"),
        (lambda: Operand(MISUSED), "C identifier"),
        (lambda: Operand("x", "f33"), "f33"),  # type: ignore[arg-type]
        (lambda: Operand("x", "f32", MISUSED), "per says"),
        (lambda: operands_of(acc + BIAS, Operand("bias", "f32")), "declared twice"),
        (lambda: acc + postops.relu, r"tw\.relu\(tw\.acc\)"),  # type: ignore[operator]
        (lambda: NUMPY.clip(acc, 6, 0), "low=6, high=0"),
        (lambda: NUMPY.clip(acc, a_min=0), r"np\.clip.*other arguments"),
        (lambda: NUMPY.arctan(acc), "postop"),
        (lambda: NUMPY.max(acc, axis=0), "tensors"),
        (lambda: NUMPY.add.reduce(acc), "np.add"),
    ],
)
def test_what_has_no_meaning_is_refused_with_a_reason(make: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()


@pytest.mark.parametrize(
    ("made", "same"),
    [
        (lambda: NUMPY.maximum(acc, 0), postops.maximum(acc, 0)),
        (lambda: NUMPY.tanh(acc + 1), postops.tanh(acc + 1)),
        (lambda: NUMPY.float32(2) * acc, 2 * acc),
        (lambda: NUMPY.subtract(1, acc), 1 - acc),
        (lambda: NUMPY.less_equal(acc, dst), acc <= dst),
        (lambda: NUMPY.abs(acc), abs(acc)),
        (lambda: NUMPY.negative(acc), -acc),
        (lambda: NUMPY.rint(acc), postops.round(acc)),
    ],
)
def test_numpys_functions_are_ours_where_they_are_the_same(made: Any, same: Expression) -> None:
    assert made() == same


def test_a_function_without_its_operands_says_how_it_is_called() -> None:
    with pytest.raises(TypeError, match=r"tw\.relu\(tw\.acc\)") as caught:
        postops.relu()  # type: ignore[call-arg]
    assert isinstance(caught.value, TilewrightError)
    with pytest.raises(TypeError, match=r"where\(condition, x, y\)|where\("):
        postops.where(acc)  # type: ignore[call-arg]


def test_an_operand_of_elements_is_a_full_one() -> None:
    assert Operand("x", "f32", "element") == Operand("x", "f32", "full")
    assert repr(Operand("x", "f32", "element")) == "Operand('x', 'f32', per='full')"


def test_operands_are_found_once_and_in_order() -> None:
    z, b = Operand("z", "s8"), Operand("b", "bf16", per="row")
    assert operands_of(z * acc + b / z, dst - BIAS) == (b, BIAS, z)
    assert operands_of(acc) == ()


def test_leaves_are_found() -> None:
    one = postops.where(acc < 1, dst, BIAS)
    assert uses(one, acc) and uses(one, dst) and not uses(one, acc2)


def test_shared_parts_are_walked_once() -> None:
    one: Expression = acc
    for _ in range(64):
        one = one * one
    nodes = list(walk(one))
    assert len(nodes) == 65
    assert nodes[0] == acc and nodes[-1] is one


@pytest.mark.parametrize(
    ("one", "whole"),
    [
        (acc, True),
        (acc + Operand("z", "s8", per="column") - 3, True),
        (-acc + dst - acc2, True),
        (acc + 2**31, False),
        (acc - 2**31, False),
        (acc + -(2.0**31), True),
        (acc + 0.5, False),
        (acc + Operand("z", "f32"), False),
        (acc * 2, False),
        (postops.relu(acc), False),
    ],
)
def test_integer_additions(one: Expression, whole: bool) -> None:
    assert is_integer_additions(one) is whole


def test_as_expression() -> None:
    assert as_expression(3) == Number(3)
    assert as_expression(acc) is acc
    assert postops.exp(2) == Call("exp", (Number(2),))
