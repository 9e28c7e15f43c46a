"""Results in the memory of inputs, and with gaps between their rows: right, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import nn

ROWS, STEP = tw.dim("rows"), tw.dim("step")


def scaled(y: Any, x: Any) -> Any:
    """The first pass holds a value in the row of the result, and reads both inputs."""
    held = tw.gelu_erf(x)
    return held * nn.sum(held * y, keepdims=True)


def shares(x: Any) -> Any:
    """Two values are held in the rows of two results."""
    one, two = tw.gelu_erf(x), tw.exp(x * 0.5)
    return one / nn.sum(one, keepdims=True), two / nn.sum(two, keepdims=True)


def weighted(x: Any) -> Any:
    """The last pass reads x, and a value that an earlier pass held."""
    held = tw.gelu_erf(x)
    return held / nn.sum(held, keepdims=True) * x


def of(function: Callable[..., Any], rows: Any, *names: str, target: str = "host") -> tw.Kernel:
    given = dict.fromkeys(names, tw.Tensor("f32", (rows, 100)))
    return tw.compile(tw.network(function).of(**given), target=target)


def arrays(rows: int, count: int) -> list[Any]:
    rng = np.random.default_rng(rows)
    return [rng.standard_normal((rows, 100)).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("target", ["host", "avx2", "neon"])
def test_values_held_in_the_rows_of_results_are_read_before_these_are_written(target: str) -> None:
    assert of(shares, ROWS, "x", target=target).verify(cases=1).cases == 1


@pytest.mark.parametrize("target", ["host", "avx2", "neon"])
@pytest.mark.parametrize("function", [scaled, lambda y, x: (x * 2, nn.max(x + y), y - x)])
@pytest.mark.parametrize("rows", [1, 5, ROWS])
def test_each_result_may_be_any_input_of_its_shape(function: Any, rows: Any, target: str) -> None:
    kernel = of(function, rows, "y", "x", target=target)
    y, x = arrays(1 if rows == 1 else 5, 2)
    right = kernel(y, x)
    for turn in (1, -1):
        given = y.copy(), x.copy()
        if not isinstance(right, tuple):
            assert kernel(*given, out=given[turn]) is given[turn]
            np.testing.assert_array_equal(given[turn], right)
            continue
        first, last = given[::turn]
        found = kernel(*given, out=(first, np.empty_like(right[1]), last))
        assert found[0] is first and found[2] is last
        for one, other in zip(found, right, strict=True):
            np.testing.assert_array_equal(one, other)


def test_values_of_one_row_are_held_apart_from_an_input_that_is_read_later() -> None:
    (x,) = arrays(1, 1)
    kernel = of(weighted, 1, "x")
    right = kernel(x)
    np.testing.assert_array_equal(kernel(x, out=x), right)


def test_results_of_rows_in_place_are_refused_beside_others() -> None:
    s = tw.Tensor("f32", (ROWS, 1))
    function = tw.network(lambda s, x: (nn.max(x, keepdims=True), x * s))
    kernel = tw.compile(function.of(s=s, x=tw.Tensor("f32", (ROWS, 100))))
    (x,) = arrays(5, 1)
    column = x[:, :1].copy()
    with pytest.raises(tw.ArgumentError, match="out0 shares elements with s"):
        kernel(column, x, out=(column, np.empty_like(x)))
    kernel(column, x, out=(np.empty_like(column), x))
    with pytest.raises(tw.ArgumentError, match="out0 shares elements with out1"):
        both = of(lambda x: (x * 2, x + 1), ROWS, "x")
        both(x, out=(x, x))
