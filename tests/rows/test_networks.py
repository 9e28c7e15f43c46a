"""Networks as values, and what a tracer refuses."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import nn
from tilewright.cli.code import spec_of_code

ROWS, COLS = tw.dim("rows"), tw.dim("cols")
NUMPY: Any = np


def several(x: Any, w: Any) -> Any:
    y = (nn.layer_norm(nn.softmax(x), w) * 2 - 1).astype("bf16")
    return y, nn.max(tw.gelu_erf(y), keepdims=True), nn.mean(-x)


def of(function: Callable[..., Any], **tensors: tw.Tensor) -> tw.Network:
    return tw.network(function).of(**tensors)


def matrix(type_: Any = "f32") -> tw.Tensor:
    return tw.Tensor(type_, (ROWS, COLS))


def test_a_network_is_the_python_that_makes_it() -> None:
    spec = of(several, x=tw.Tensor("f32", (ROWS, 70), (tw.dim("step"), 1)), w=tw.Tensor("f32", 70))
    names = {name: getattr(tw, name) for name in ("exp", "sqrt", "gelu_erf", "dim", "Tensor")}
    made = eval(repr(spec), {**names, "nn": nn, "network": tw.network})  # noqa: S307
    for other in (made, pickle.loads(pickle.dumps(spec)), spec_of_code(repr(spec))):
        assert other == spec
        assert hash(other) == hash(spec)
    assert spec != of(several, x=tw.Tensor("f32", (ROWS, 71)), w=tw.Tensor("f32", 71))


def test_functions_of_numpy_are_those_of_tilewright() -> None:
    theirs = of(lambda x: NUMPY.where(NUMPY.tanh(x) > 0, x, NUMPY.max(x, axis=-1, keepdims=True)),
                x=matrix())  # fmt: skip
    ours = of(lambda x: tw.where(tw.tanh(x) > 0, x, nn.max(x, keepdims=True)), x=matrix())
    assert theirs == ours
    fixed = tw.Tensor("f32", (ROWS, 6))
    theirs = of(lambda x: NUMPY.stack(NUMPY.split(NUMPY.clip(x, -1, 1), 2, axis=1)), x=fixed)
    ours = of(lambda x: nn.concat([half[None] for half in nn.split(tw.clip(x, -1, 1), 2)]), x=fixed)
    assert theirs == ours


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: x if x > 0 else -x, r"tw\.where"),
        (lambda x: x[7], "only index 0 is known"),
        (lambda x: x.reshape((7,)), "keeps the elements"),
        (lambda x: x.reshape((ROWS * ROWS, -1)), "no size for -1"),
        (lambda x: x.reshape((ROWS * 2, COLS)), "keeps the elements"),
        (lambda x: x.transpose((0, 0)), "each axis once"),
        (lambda x: x.__setitem__(0, 1.0), "never changes"),
        (lambda x: x * nn.sum(x).item(), "before the kernel runs"),
        (lambda x: x * float(nn.sum(x)), "before the kernel runs"),
        (lambda x: NUMPY.sort(x)[0], r"np\.sort"),
        (lambda x: NUMPY.cumsum(x) + 1, "np.cumsum"),
        (lambda x: x - nn.max(x), "keepdims=True"),
        (lambda x: x + tw.acc, "epilogue of a product"),
        (lambda x: nn.sum(tw.acc), "reduces tensors"),
        (lambda x: nn.sum(x, axis=2), "there is no axis 2"),
        (lambda x: 1.0, "is not computed from its tensors"),
        (nn.merge, "heads of fixed number"),
        (lambda x: x + np.ones(7), r"in a network w\.bias"),
        (lambda x: (), "returns nothing"),
    ],
)  # fmt: skip
def test_a_tracer_refuses_what_it_cannot_see(function: Any, says: str) -> None:
    with pytest.raises(tw.SpecError, match=says) as caught:
        of(function, x=matrix())
    assert __file__.rpartition("/")[2] in str(caught.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: of(lambda x, y: x, x=matrix(), y=matrix()), "no result depends"),
        (lambda: of(lambda x, y: x * y, x=matrix()), "y is missing"),
        (lambda: of(lambda x: x, z=matrix()), "x is missing"),
        (lambda: of(lambda out: out, out=matrix()), "cannot be called"),
        (lambda: of(lambda x, y: x + y, x=matrix("f64"), y=matrix()), "mixes f64"),
        (lambda: of(lambda x, y: (x * 2, y * 2), x=matrix("f64"), y=matrix("s32")), "not in both"),
        (lambda: of(lambda x, y: (x * 2, y), x=matrix("f64"), y=matrix()), "not in both"),
        (lambda: of(lambda x: (x.astype("f32"), x), x=matrix("f64")), "not in both"),
        (lambda: of(lambda x: x.astype("f32") * 2 + x, x=matrix("f64")), "mixes f64"),
        (lambda: of(lambda x: x.astype("s8"), x=matrix("f64")), "beside arithmetic in f32"),
        (lambda: of(lambda x: x.astype("f64"), x=matrix("s32")), "beside arithmetic in f32"),
        (lambda: of(lambda x: x.astype("f64") * 2, x=matrix("f16")), "beside arithmetic in f64"),
        (lambda: of(lambda x: (x * 2).astype("f32") * 2, x=matrix("f64")), "arithmetic in f64"),
        (lambda: of(lambda x: x.T.astype("f64"), x=matrix()), "only a network of one loop"),
        (lambda: of(nn.max, x=tw.Tensor("f32", (3, 0))), "size 0"),
        (lambda: of(lambda x: x + 1, x=matrix("s64")), "s32"),
        (lambda: of(lambda x: x, x=matrix("s64")), "s32"),
        (lambda: of(lambda x: nn.take(x, x), x=matrix()), "of integers"),
        (lambda: of(lambda rows: rows + 1, rows=matrix()), "one name"),
        (lambda: tw.Tensor("f32", (2,) * 7), "at most 6 axes"),
        (lambda: tw.Tensor("f32", (2, 3, 4), (12, 4, 1)), "no gaps"),
        (lambda: tw.Tensor("f32", (2, 3), (3,)), "a stride for each axis"),
        (lambda: tw.Gemm(2, 3, 4, epilogue=of(lambda x: x, x=matrix()).inputs[0]), "tensor"),
        (lambda: tw.compile(of(nn.softmax, x=matrix()), tw.Schedule(loops="nmk")), "no loops"),
        (lambda: tw.compile(of(nn.softmax, x=matrix()), tw.Schedule(tile=(2, 64))), "this tile"),
    ],
)  # fmt: skip
def test_what_no_network_can_be_is_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(tw.TilewrightError, match=says):
        make()


# -- axes that are joined -------------------------------------------------------------------------


def joined(x: Any, w: Any) -> Any:
    """Rows of two axes, of exchanged axes, of part of an axis; a mean of all; an axis cut again."""
    y = tw.relu(x.reshape(-1, 6) @ w.up)
    return (
        y.reshape(ROWS, COLS, 4),
        nn.softmax(x.swapaxes(0, 1).reshape(COLS * ROWS, 6)),
        x.reshape(ROWS * 3, COLS, 2).reshape(-1) + 1,
        nn.mean((x * 2).reshape(-1, 6), axis=0),
    )


def test_dims_become_one_axis() -> None:
    up = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)
    spec = of(joined, x=tw.Tensor("f32", (ROWS, COLS, 6)), w={"up": up})  # type: ignore[arg-type]
    assert spec_of_code(repr(spec)) == pickle.loads(pickle.dumps(spec)) == spec
    assert spec.results[1].tensor == ("f32", (ROWS * COLS, 6))
    net = tw.compile(spec, target="scalar")
    copies = [line for line in net.explain().splitlines() if "copy0:" in line]
    assert len(copies) == 1, "only exchanged axes are copied"
    packed = net.pack({"up": up})
    for rows, cols in ((3, 5), (1, 1), (4, 0)):
        x = np.random.default_rng(2).standard_normal((rows, cols, 6)).astype(np.float32)
        with np.errstate(invalid="ignore"):
            e = np.exp(x.swapaxes(0, 1).reshape(-1, 6).astype(float))
            right = (
                np.maximum(x.astype(float) @ up, 0), e / e.sum(axis=-1, keepdims=True),
                x.reshape(-1) + 1, (x.astype(float) * 2).reshape(-1, 6).sum(axis=0) / (rows * cols),
            )  # fmt: skip
        for found, wanted in zip(net(x, packed), right, strict=True):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    small = tuple(np.empty(shape, np.float32) for shape in ((3, 5, 4), (14, 6), (90,), (6,)))
    x = np.zeros((3, 5, 6), np.float32)
    with pytest.raises(tw.ArgumentError, match=r"\(15, 6\): cols\*rows is 15"):
        net(x, packed, out=small)


def test_joined_sizes_belong_to_views_alone() -> None:
    with pytest.raises(tw.SpecError, match="is one dim"):
        tw.Tensor("f32", (ROWS * COLS, 3))
    with pytest.raises(tw.SpecError, match="m is one dim"):
        tw.Gemm(ROWS * 2, 3, 4)
    spec = of(lambda x: x.reshape(-1) + 1, x=tw.Tensor("f32", (ROWS, COLS)))
    kernel = tw.compile(spec)
    np.testing.assert_array_equal(kernel(np.ones((2, 3), np.float32)), np.full(6, 2))
    size: Any = ROWS * ROWS * ROWS
    cube = of(lambda x: x.reshape(-1) / nn.extent(size), x=tw.Tensor("f32", (ROWS,) * 3))
    np.testing.assert_array_equal(
        tw.compile(cube)(np.ones((2, 2, 2), np.float32)), np.full(8, 0.125)
    )
    with pytest.raises(tw.SpecError, match="numba: a size of out is no single dim"):
        _ = kernel.numba
