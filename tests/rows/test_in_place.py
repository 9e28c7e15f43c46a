"""Results in the memory of inputs, and with gaps between their rows: right, or refused."""

from __future__ import annotations

import pickle
import re
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


@pytest.mark.parametrize(("rows", "target"), [(1, "host"), (5, "avx2"), (ROWS, "neon")])
@pytest.mark.parametrize("function", [scaled, lambda y, x: (x * 2, nn.max(x + y), y - x)])
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
    both = of(lambda x: (x * 2, x + 1), ROWS, "x")
    with pytest.raises(tw.ArgumentError, match="out0 shares elements with out1"):
        both(x, out=(x, x))


def normal(x: Any) -> Any:
    return nn.softmax(x)


def gaps(cols: int, step: Any) -> tw.Tensor:
    return tw.Tensor("f32", (ROWS, cols), strides=step and (step, 1))


@pytest.mark.parametrize(
    ("step", "target"), [(STEP, "host"), (128, "host"), (128, "avx2"), (STEP, "neon")]
)
def test_rows_of_results_may_have_gaps_which_are_not_written(step: Any, target: str) -> None:
    x = gaps(100, STEP)
    spec = tw.network(normal).of(x=x, out=gaps(100, step))
    assert spec == pickle.loads(pickle.dumps(spec)) == _again(spec)
    assert spec != tw.network(normal).of(x=x) == tw.network(normal).of(x=x, out=None)
    kernel = tw.compile(spec, target=target)
    held = np.full((5, 128), 7, np.float32)
    held[:, :100] = arrays(5, 1)[0]
    right = of(normal, ROWS, "x", target=target)(held[:, :100].copy())
    view = held[:, :100]
    np.testing.assert_array_equal(kernel(view), right)
    assert kernel(view, out=view) is view
    np.testing.assert_array_equal(view, right)
    assert (held[:, 100:] == 7).all()
    assert kernel.verify(cases=1).cases == 1
    if step == 128:
        with pytest.raises(tw.ArgumentError, match="wrong leading dimension"):
            kernel(view, out=np.empty((5, 100), np.float32))


def _again(spec: tw.Network) -> Any:
    """Return the spec that the text of ``spec`` makes."""
    names = {name: getattr(tw, name) for name in tw.__all__}
    return eval(repr(spec), {**names, "nn": nn})  # noqa: S307  our own repr


def test_each_of_several_results_may_have_gaps() -> None:
    function = tw.network(lambda x: (nn.max(x, keepdims=True), x * 2))
    x = tw.Tensor("f32", (ROWS, 100))
    spec = function.of(x=x, out=(gaps(1, STEP), None))
    assert spec == _again(spec)
    held, (x,) = np.full((5, 9), 7, np.float32), arrays(5, 1)
    top, twice = tw.compile(spec)(x, out=(held[:, 3:4], np.empty_like(x)))
    np.testing.assert_array_equal(top, x.max(axis=1, keepdims=True))
    np.testing.assert_array_equal(twice, x * 2)
    assert (np.delete(held, 3, axis=1) == 7).all()


@pytest.mark.parametrize(("step", "stages"), [(STEP, 2), (64, 1)])
def test_a_product_is_stored_in_rows_with_gaps(step: Any, stages: int) -> None:
    function = tw.network(lambda x, w: tw.relu(x @ w.up))
    up = np.eye(32, 48, dtype=np.float32)
    spec = function.of(x=gaps(32, None), w={"up": up}, out=gaps(48, step))
    kernel, held = tw.compile(spec), np.full((5, 64), 7, np.float32)
    x = arrays(5, 1)[0][:, :32].copy()
    kernel(x, kernel.pack({"up": up}), out=held[:, :48])
    np.testing.assert_array_equal(held[:, :32], np.maximum(x, 0))
    assert (held[:, 48:] == 7).all()
    assert len(re.findall("^stage ", kernel.explain(), re.MULTILINE)) == stages


@pytest.mark.parametrize("target", ["host", "avx2", "neon"])
def test_columns_of_an_input_may_be_contiguous(target: str) -> None:
    turned = tw.Tensor("f32", (ROWS, 6), strides=(1, STEP))
    kernel = tw.compile(tw.network(normal).of(x=turned), target=target)
    x = arrays(6, 1)[0]
    np.testing.assert_array_equal(kernel(x.T), tw.compile(kernel.spec)(x.T))
    np.testing.assert_allclose(kernel(x.T).sum(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize(("shape", "strides"), [((1, 6), (1, 1)), ((4, 1), (1, 9))])
def test_an_axis_of_one_element_has_any_stride(shape: Any, strides: Any) -> None:
    assert tw.Tensor("f32", shape, strides) == tw.Tensor("f32", shape)


def test_the_c_of_a_library_counts_the_bytes_of_rows_with_gaps(tmp_path: Any) -> None:
    spec = tw.network(normal).of(x=gaps(100, STEP), out=gaps(100, tw.dim("other")))
    built = tw.library("rows", {"soft": spec}, targets=["host"]).build(tmp_path)[0]
    assert "pass" in built.output
    header = (tmp_path / "include" / "rows.h").read_text()
    assert "int64_t rows_soft_out_bytes(int64_t rows_, int64_t step_, int64_t other_)" in header
    assert "may be x_ itself" not in header


@pytest.mark.parametrize(
    ("strides", "found"),
    [
        ((0, 1), r"(?s)rows of a tensor share elements.*shape \(1, 6\), which broadcasts"),
        ((5, 1), "6 elements or more from one row to the next"),
        ((1, 3), "4 elements or more from one column"),
        ((50, 2), r"(?s)follow each other.*the function takes x\[:, ::2\]"),
    ],
)
def test_strides_that_no_kernel_has_are_refused(strides: Any, found: str) -> None:
    with pytest.raises(tw.SpecError, match=found):
        tw.Tensor("f32", (4, 6), strides=strides)


@pytest.mark.parametrize(
    ("out", "found"),
    [
        (gaps(90, STEP), r"(?s)not the result's tensor.*\(dim\('rows'\), 100\)"),
        ((gaps(100, STEP), None), "not the result's tensor"),
        (tw.Tensor("f32", (ROWS, 100), (1, STEP)), r"(?s)rows of a result are contiguous.*\.T"),
    ],
)
def test_results_that_the_function_has_not_are_refused(out: Any, found: str) -> None:
    with pytest.raises(tw.SpecError, match=found):
        tw.network(normal).of(x=tw.Tensor("f32", (ROWS, 100)), out=out)
