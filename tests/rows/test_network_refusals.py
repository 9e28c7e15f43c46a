"""What a traced function and its arguments may not do: each has an error of tilewright."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import nn

ROWS = tw.dim("rows")
NUMPY: Any = np
NN: Any = nn
X = np.float32(np.arange(24) % 5).reshape(3, 8)
UP = {"up": np.ones((8, 4), np.float32)}


def of(function: Any, rows: Any = ROWS, **more: Any) -> tw.Network:
    return tw.network(function).of(x=tw.Tensor("f32", (rows, 8)), **more)


def deleted(x: Any) -> Any:
    del x[0]
    return x


def generated(x: Any) -> Any:
    yield x


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: tw.relu(x * 1e300), "a finite number of f32\n  got: 1e[+]300"),
        (lambda x: tw.where(x > 0, x, -1e39), "a finite number of f32"),
        (lambda x: nn.pad(x, ((0, 0), (0, 1)), 1e39), "a finite number of f32"),
        (lambda x: x.sum((0, 0)), "axes of a tensor, each once"),
        (lambda x: x.sum((0, 2)), "axes of a tensor, each once"),
        (lambda x: x.sum(-1, dtype="f8"), "no argument 'dtype'"),
        (lambda x: x.sum(1.5), "reduces one axis"),
        (lambda x: x * len(x), r"nn\.extent"),
        (lambda x: next(iter(x)), "elements to iterate"),
        (lambda x: next(reversed(x)), "elements to iterate"),
        (lambda x: x * (1 in x), "elements to iterate"),
        (lambda x: [x, x][x], "no number before"),
        (lambda x: x * complex(x), "no number before"),
        (lambda x: x * math.exp(x), "no number before"),
        (lambda x: f"{x:.3f}" and x, "no number before"),
        (lambda x: not x, "truth value"),
        (lambda x: round(x, 2), "whole numbers"),
        (lambda x: x % 2, r"tw\.floor"),
        (lambda x: divmod(x, 2), r"tw\.floor"),
        (lambda x: x // 2, r"tw\.floor"),
        (lambda x: x << 1, "bits to shift"),
        (lambda x: x >> 1, "bits to shift"),
        (lambda x: 2**x, "exponent"),
        (deleted, "never changes"),
        (lambda x: setattr(x, "scale", 1), "no attributes to set"),
        (lambda x: setattr(x + 1, "args", ()), "no attributes to set"),
        (lambda x: delattr(x, "shape"), "never changes"),
        (lambda x: x.flatten(), r"x\.reshape\(-1\)"),
        (lambda x: x.numpy(), "no attribute 'numpy'"),
        (lambda x: x.dtype, "no attribute 'dtype'"),
        (lambda x: x[:, ::0], "positive step"),
        (lambda x: x[:, "a":], "positive step"),
        (lambda x: x == 0, r"tw\.eq"),
        (lambda x: x + x.shape[0], r"nn\.extent\(dim\('rows'\)\)"),
        (lambda x: x + "a", "made of tensors, weights and numbers"),
        (lambda x: NUMPY.asarray(x) + x, "no numbers before"),
        (lambda x: NUMPY.array([x, x]), "no numbers before"),
        (lambda x: NUMPY.where(x > 0), r"np\.where\(condition, x, y\)"),
        (lambda x: NUMPY.sum(x, 1, NUMPY.float64), r"np\.sum\(x"),
        (lambda x: NUMPY.maximum(x, 0, out=X), r"tw\.maximum"),
        (lambda x: NN.linear(x) + 1, "linear lacks weight"),
        (lambda x: NN.linear(3, x), "nn.linear is of tensors"),
        (lambda x: NN.softmax(x, dim=1), "no argument 'dim'"),
        (lambda x: NN.pad(x, 1), "before, after"),
        (lambda x: NN.expand(x, (-3, ROWS, 8)), "cannot be broadcast"),
        (lambda x: NN.quantize(x, 0), "a number that is not 0"),
        (lambda x: NN.quantize(x, float("nan")), "a number that is not 0"),
        (lambda x: NN.quantize(x, 1, 300), "-128 to 127, for s8"),
        (lambda x: NN.quantize(x, 1, type="f32"), "rounds to integers"),
        (lambda x: NN.dequantize(x, "a"), "a number that is not 0"),
        (lambda x: NN.product(x, x.T, type="q"), "unknown element type"),
        (lambda x: x * NN.extent(8), "a size of the call"),
        (generated, "is not computed from its tensors"),
    ],
)  # fmt: skip
def test_a_traced_function_is_refused(function: Any, says: str) -> None:
    with pytest.raises(tw.SpecError, match=says) as caught:
        of(function)
    assert __file__.rpartition("/")[2] in str(caught.value)


def test_functions_of_torch_are_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(tw.SpecError, match=r"torch\.relu .*[\s\S]*try: tw\.relu"):
        of(lambda x: torch.relu(x) + 1)
    with pytest.raises(tw.SpecError, match="in a network w"):
        of(lambda x: x + torch.ones(8))


def layer(x: Any, w: Any) -> Any:
    return tw.relu(x @ w.up)


@tw.network
def inner(x: Any, w: Any) -> Any:
    return x @ w.up


def endless(x: Any) -> Any:
    return endless(x)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: of(layer, w=[UP["up"]]), "neither a tensor nor weights by name"),
        (lambda: of(layer, w=UP["up"]), "neither a tensor nor weights by name"),
        (lambda: of(layer, w=None), "cannot be traced: 'NoneType'[^$]*got: w=None"),
        (lambda: of(layer, w="up"), "cannot be traced: 'str'"),
        (lambda: tw.network(layer).of(x=X, w=UP), "neither a tensor nor weights by name"),
        (lambda: tw.network(layer).of(x=(3, 8), w=UP), r"cannot be traced[^$]*x=\(3, 8\)"),
        (lambda: tw.network(layer).of(tw.Tensor("f32", 8), UP), "given by name"),
        (lambda: of(lambda x, w: x @ w["nope"], w=UP), "no weight 'nope'"),
        (lambda: of(lambda x, w: x @ w.nope, w=UP), "no weight 'nope'"),
        (lambda: of(lambda x: nn.expand(x[0], (tw.dim("q"), 8)) + x[0]), "no tensor has this size"),
        (lambda: of(lambda x: nn.pad(x, ((1, -1), (0, 0)))), r"0 or more[^$]*x\[1:-1\]"),
        (lambda: of(lambda x, w: x @ w, w=UP), "a product is of two tensors"),
        (lambda: inner(X, UP), r"tensors of another network[^$]*tw\.compile\(inner\.of"),
        (lambda: inner(tw.Tensor("f32", 8)), "tensors of another network"),
        (lambda: of(lambda x: inner(x) + 1), "takes other arguments"),
        (lambda: of(lambda x: inner(x, x, x)), "takes other arguments"),
        (lambda: of(endless), "calls itself too often"),
        (lambda: tw.network(min), "a function of Python"),
        (lambda: tw.network(lambda *x: x), "names each of its tensors"),
        (lambda: tw.network(lambda x, y: x + y).of(
            x=tw.Tensor("f32", tw.dim("r", max=4)), y=tw.Tensor("f32", tw.dim("r"))),
         r"dim\('r', max=4\), dim\('r'\)"),
        (lambda: tw.PackedWeights((("w.up", (1,), "f32"),), ()), "an array for each weight"),
        (lambda: tw.Stages(products=[1]), "by name"),  # type: ignore[list-item]
    ],
)  # fmt: skip
def test_arguments_are_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(tw.TilewrightError, match=says):
        make()


RIGHT: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "all": (lambda x: x.sum(), lambda x: x.sum()),
    "all, of numpy": (lambda x: NUMPY.sum(x) + 0, lambda x: x.sum()),
    "the mean of all": (lambda x: x.mean(), lambda x: x.mean()),
    "several axes": (lambda x: x.max((0, -1)), lambda x: x.max()),
    "all, beside each": (lambda x: (x * x.sum(), x - abs(x - 3).sum(-1).max())[1] * x.sum(),
                         lambda x: (x - abs(x - 3).sum(-1).max()) * x.sum()),
    "kept axes": (lambda x: x - NUMPY.mean(x, axis=(0, 1), keepdims=True), lambda x: x - x.mean()),
    "a softmax of integers": (lambda x: nn.softmax(x.astype("u8")),
                              lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
    "round": (lambda x: round(x * 0.5), lambda x: np.round(x * 0.5)),
    "an integer axis": (lambda x: x + x.shape[1] + x.ndim, lambda x: x + 10),
    "a bound argument": (functools.partial(lambda x, y: x * y, y=3), lambda x: x * 3),
    "by place alone": (lambda x, /: x + 1, lambda x: x + 1),
    "a function of numpy": (NUMPY.tanh, np.tanh),
    "constants": (lambda x: nn.sum(nn.full((2, 3), 2) + 1) + x.sum() * 0, lambda x: [9, 9]),
    "constants turned": (lambda x: (x, (nn.full((2, 3), 2) + 1).T)[1] + 0 * x.sum(),
                         lambda x: np.full((3, 2), 3)),
    "a broadcast axis, summed": (lambda x: nn.expand(x[..., None], (ROWS, 8, 5)).sum(-1) * x,
                                 lambda x: 5 * x * x),
    "broadcast columns": (lambda x: nn.softmax(nn.expand(x[:, :1], (ROWS, 5))) - x[:, 3:],
                          lambda x: 0.2 - x[:, 3:]),
    "broadcast rows": (
        lambda x: nn.expand(x[0], (ROWS, 8)) - nn.max(nn.expand(x[0], (ROWS, 8)), keepdims=True),
        lambda x: x[:1] - x[:1].max() + 0 * x,
    ),
    "broadcast rows, down": (lambda x: (nn.expand(x[0], (ROWS, 8)).sum(0) / nn.extent(ROWS),
                                        nn.expand(x[:, :1], (ROWS, 5)).max(0))[0],
                             lambda x: x[0]),
    "a sum for each row, as integers": (lambda x: nn.sum(x * 4, keepdims=True).astype("s32"),
                                        lambda x: np.rint(4 * x.sum(-1, keepdims=True))),
}  # fmt: skip


def test_what_is_not_refused_is_right() -> None:
    nets = tw.compile_many([(of(f), None, "host") for f, _ in RIGHT.values()])
    for (name, (_, right)), net in zip(RIGHT.items(), nets, strict=True):
        np.testing.assert_allclose(net(X), right(X.astype(np.float64)), 1e-6, 1e-6, err_msg=name)
    (double,) = (of(lambda x: x * len(x), rows=3),)
    np.testing.assert_array_equal(tw.compile(double)(X), X * 3)


def test_weights_have_any_name_and_no_other_attribute() -> None:
    w = {name: np.ones(8, np.float32) for name in ("_found", "check_used", "keys")}
    spec = of(lambda x, w: x + w._found * w.check_used * w.keys + getattr(w, "no", 0), w=w)
    assert len(spec.weights) == 3
    assert of(lambda x, w: x @ w.up if not hasattr(w, "no") else x, w=UP).weights


def test_constants_of_f64() -> None:
    x, double = np.random.default_rng(0).standard_normal((3, 8)), tw.Tensor("f64", (ROWS, 8))

    def function(x: Any) -> Any:
        padded = nn.pad(x, ((0, 0), (1, 0)), 0.1)
        triangle = tw.where(nn.index(x, 1) <= nn.index(x, 0), x, 0)
        return padded, triangle, x + nn.arange(8, "f64") * nn.full((8,), 0.3, "f64")

    spec = tw.network(function).of(x=double)
    names = {name: getattr(tw, name) for name in ("network", "Tensor", "dim", "nn", "where", "le")}
    assert eval(repr(spec), names) == spec  # noqa: S307  our own repr
    wanted = np.pad(x, ((0, 0), (1, 0)), constant_values=0.1), np.tril(x), x + np.arange(8) * 0.3
    for got, right in zip(tw.compile(spec)(x), wanted, strict=True):
        np.testing.assert_allclose(got, right, 1e-15, 1e-15)
    with pytest.raises(tw.SpecError, match="makes f32 or f64"):
        nn.arange(3, "bf16")


def test_weights_are_iterated_by_name() -> None:
    spec = of(lambda x, w: functools.reduce(lambda y, name: y + w[name], w, x) * len(w),
              w={"a": np.ones(8, np.float32), "b": np.ones(8, np.float32)})  # fmt: skip
    assert spec == of(lambda x, w: (x + w.a + w.b) * 2, w={n: tw.Tensor("f32", 8) for n in "ab"})
    assert of(lambda x, w: x @ w.up if "up" in w and "b" not in w else x, w=UP) == inner.of(
        x=tw.Tensor("f32", (ROWS, 8)), w=UP
    )


def test_a_network_without_tensors_and_a_tensor_called_d() -> None:
    made = tw.compile(tw.network(lambda: (nn.arange(3), nn.full((2, 1), 3) + 1)).of())
    first, second = made()
    assert first.tolist() == [0, 1, 2] and second.tolist() == [[4], [4]]
    net = tw.compile(tw.network(lambda d: d + 1).of(d=tw.Tensor("f32", (ROWS, 8))))
    np.testing.assert_array_equal(net(d=X), X + 1)
    counted = tw.compile(of(lambda x: x + nn.arange(8)))
    assert "arange0" in counted.explain(rows=3) and "arange0" in str(counted.profile(rows=3))
    assert net.verify(cases=1).cases == 1
