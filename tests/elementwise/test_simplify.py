"""What sympy makes of expressions as if numbers were real."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.elementwise.builder import Builder, Value, run
from tilewright.elementwise.functions import lower_expression
from tilewright.elementwise.simplify import simplify
from tilewright.spec import postops
from tilewright.spec.expression import (
    Call,
    Expression,
    Operand,
    acc,
    acc2,
    as_expression,
    dst,
    walk,
)

#: An operand's name may be that of a leaf.
SCALE = Operand("acc2", "f32")


@pytest.mark.parametrize(
    ("one", "shorter"),
    [
        ((acc + 1e8) - 1e8, acc),
        (acc - acc, as_expression(0)),
        (acc / 3 * 3, acc),
        (acc * 2 + acc * 3, acc * 5),
        ((acc * SCALE + acc2 * SCALE) / SCALE, acc + acc2),
        (postops.relu(acc + 0 * SCALE), postops.relu(acc)),
        (postops.exp(postops.log(acc)), acc),
        (postops.sqrt(acc**2), abs(acc)),
        (postops.maximum(acc, acc - 1), acc),
        (postops.gelu_erf(acc) * 0.1 * 10, postops.gelu_erf(acc)),
        (acc**2.5 / acc, acc**1.5),
        (-acc - dst - 3 + acc * 2, acc - dst - 3),
    ],
)
def test_real_numbers_shorten_it(one: Expression, shorter: Expression) -> None:
    assert simplify(one) == shorter


@pytest.mark.parametrize(
    "one",
    [
        acc, acc + 1, acc / 7, -(acc - dst), acc / 0, acc * float("inf"), dst**3,
        postops.where(acc < dst, acc, dst), postops.log(acc * 0 - 1), postops.relu(acc, 0.1),
    ],
)  # fmt: skip
def test_what_is_no_shorter_stays(one: Expression) -> None:
    assert simplify(one) == one


LEAVES = st.sampled_from([acc, acc2, dst, SCALE, as_expression(2), as_expression(0.5)])
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] / (p[1] * p[1] + 1)),
        st.tuples(inner, inner).map(lambda p: postops.maximum(*p)),
        inner.map(postops.tanh),
        inner.map(postops.relu),
        inner.map(abs),
    ),
    max_leaves=6,
)


def value(one: Expression) -> Any:
    """The value on some leaves."""
    rng = np.random.default_rng(5)
    arrays: dict[Expression, Any] = {
        leaf: rng.uniform(0.5, 2, 50).astype(np.float32) for leaf in (acc, acc2, dst, SCALE)
    }
    b = Builder()
    inputs = {leaf: b.input() for leaf in arrays}
    result = lower_expression(one, b, inputs.__getitem__)
    if not isinstance(result, Value):
        return result
    return run(b.steps, {inputs[leaf]: array for leaf, array in arrays.items()})[result]


@settings(max_examples=40)
@given(EXPRESSIONS)
def test_the_value_is_the_same_but_for_rounding(one: Expression) -> None:
    found = simplify(one)
    calls = [sum(isinstance(node, Call) for node in walk(tree)) for tree in (found, one)]
    assert calls[0] <= calls[1]
    assert np.allclose(value(found), value(one), rtol=1e-3, atol=1e-3)
