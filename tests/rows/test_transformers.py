"""Networks of tensors with several axes: views, products of values, joins, a transformer layer."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from support.cases import Cases

import tilewright as tw
from tilewright import nn, targets
from tilewright.cli.code import spec_of_code
from tilewright.generate import plan_for, program_for
from tilewright.symbolic import evaluate

B, R = tw.dim("batch"), tw.dim("rows")
WIDTH, HEADS = 24, 3


def t(*shape: Any) -> tw.Tensor:
    return tw.Tensor("f32", shape)


def layer(x: Any, mask: Any, w: Any) -> Any:
    q, k, v = nn.heads(nn.linear(x, w.qkv, w.bqkv), HEADS, parts=3)
    a = nn.softmax(q @ k.T * 0.25 + mask) @ v
    y = nn.layer_norm(x + nn.linear(nn.merge(a), w.o, w.bo), w.g1, w.b1)
    up = tw.gelu_erf(nn.linear(y, w.up, w.bup))
    return nn.layer_norm(y + nn.linear(up, w.down, w.bdown), w.g2, w.b2)


LAYER = {
    "qkv": t(WIDTH, 3 * WIDTH), "bqkv": t(3 * WIDTH), "o": t(WIDTH, WIDTH), "bo": t(WIDTH),
    "g1": t(WIDTH), "b1": t(WIDTH), "up": t(WIDTH, 50), "bup": t(50), "down": t(50, WIDTH),
    "bdown": t(WIDTH), "g2": t(WIDTH), "b2": t(WIDTH),
}  # fmt: skip


def gated(x: Any, w: Any) -> Any:
    one, other = nn.split(x @ w.a, 2)
    return tw.logistic(one) * other


def shared(x: Any, w: Any) -> Any:
    """A value that several stages need, and a result that is an input."""
    h = nn.softmax(x + w.g)
    return h, x.T, (h @ w.a).sum(1), h.transpose((1, 2, 0))


def pairs(x: Any, ids: Any, w: Any) -> Any:
    """Products of all pairs of rows, below the diagonal: a join within a join."""
    z = nn.concat([(x @ w.a)[:, None], nn.take(w.e, ids)], axis=1)
    p = z @ z.swapaxes(1, 2)
    return nn.concat([x, nn.concat([p[:, i, :i] for i in (1, 2, 3)], axis=1)], axis=1) @ w.b


def tokens(x: Any, w: Any) -> Any:
    """Products of columns: each token is mixed with the others."""
    y = x + (tw.relu(nn.layer_norm(x).T @ w.a) @ w.b).T
    return y + nn.layer_norm(y) @ w.c


def types_in_turn(x: Any, w: Any) -> Any:
    """Tensors of other types that follow each other in the same memory."""
    a = nn.dequantize(w.a, 0.01)
    h = nn.softmax(nn.dequantize(nn.quantize(x, 0.02), 0.02) @ a) @ w.b
    return nn.dequantize(nn.quantize(nn.softmax(h), 0.01), 0.01) @ a


#: Functions of networks, with the tensors and weights of each.
CASES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "layer": (layer, {"x": t(R, WIDTH), "mask": t(R), "w": LAYER}),
    "layer of a batch": (layer, {"x": t(B, R, WIDTH), "mask": t(B, 1, 1, R), "w": LAYER}),
    "turned": (lambda x: x.transpose((2, 0, 1)), {"x": t(B, R, 5)}),
    "six axes": (lambda x: x.transpose((5, 3, 1, 0, 2, 4)).sum(2), {"x": t(2, R, 2, 3, 2, 2)}),
    "heads": (lambda x: nn.merge(nn.heads(x, 3)) * 2, {"x": t(B, R, 12)}),
    "stacks": (lambda x, y: x @ y.T, {"x": t(B, 3, R, 4), "y": t(3, R, 4)}),
    "down": (lambda x, y: x.T @ y, {"x": t(B, R, 4), "y": t(B, R, 6)}),
    "groups": (
        lambda q, k: q.reshape((2, 3, R, 4)) @ k.reshape((2, 1, R, 4)).T,
        {"q": t(6, R, 4), "k": t(2, R, 4)},
    ),
    "attention": (nn.attention, {"q": t(B, 2, R, 8), "k": t(B, 2, 11, 8), "v": t(B, 2, 11, 5)}),
    "one row each": (
        lambda x, r, w: x @ w.a + r, {"x": t(B, 1, 6), "r": t(B, 1, 4), "w": {"a": t(6, 4)}}
    ),
    "columns of x": (lambda x, w: x[:, 1:5] @ w.a, {"x": t(R, 6), "w": {"a": t(4, 4)}}),
    "merged": (
        lambda x, w: (x + w.b).transpose((1, 0, 2)).reshape((R, 12)) @ w.a,
        {"x": t(3, R, 4), "w": {"a": t(12, 5), "b": t(4)}},
    ),
    "gated": (gated, {"x": t(R, 6), "w": {"a": t(6, 10)}}),
    "shared": (shared, {"x": t(3, R, 6), "w": {"a": t(6, 4), "g": t(6)}}),
    "vectors": (lambda x, v: v @ x.T, {"x": t(R, 6), "v": t(6)}),
    "softmax of axis 1": (lambda x: nn.softmax(x, axis=1), {"x": t(B, R, 5)}),
    "both axes": (lambda x: (x - x.max(0)).sum(1).sum(0), {"x": t(4, R)}),
    "joined": (
        lambda x, y: nn.concat((x, tw.exp(y), x[:, :2]), axis=1), {"x": t(R, 3), "y": t(R, 5)}
    ),
    "padded": (lambda x: nn.pad(x, ((1, 2), (0, 0), (2, 0)), 1.5), {"x": t(3, R, 4)}),
    "causal": (lambda x: tw.where(nn.index(x, 1) <= nn.index(x, 0), x, -9.0), {"x": t(R, R)}),
    "counted": (lambda x: x * nn.arange(R), {"x": t(B, R)}),
    "steps": (lambda x: x[:, 1:6:2] * x[:, 0:3], {"x": t(R, 6)}),
    "expanded": (lambda x, z: nn.expand(x, (B, R, 4)) + z, {"x": t(R, 1), "z": t(B, 1, 1)}),
    "rows of a table": (
        lambda ids, more, w: nn.layer_norm(nn.take(w.e, ids) + w.p, w.g) + nn.take(w.p, more),
        {"ids": tw.Tensor("s64", (B, R)), "more": tw.Tensor("u8", (R,)),
         "w": {"e": t(9, 6), "p": t(1, 6), "g": t(6)}},
    ),
    "pairs": (
        pairs,
        {"x": t(R, 5), "ids": tw.Tensor("s64", (R, 3)),
         "w": {"a": t(5, 6), "e": t(9, 6), "b": t(11, 4)}},
    ),
    "tokens": (tokens, {"x": t(7, 12), "w": {"a": t(7, 5), "b": t(5, 7), "c": t(12, 12)}}),
    "types in turn": (
        types_in_turn,
        {"x": t(64, 560), "w": {"a": tw.Tensor("s8", (560, 560)), "b": t(560, 560)}},
    ),
    "norm": (nn.layer_norm, {"x": t(B, R, 6), "weight": t(6)}),
}  # fmt: skip


def spec_of(name: str) -> tw.Network:
    function, given = CASES[name]
    return tw.network(function).of(**given)


@pytest.mark.parametrize(("target", "names"), [
    ("host", list(CASES)), ("neon", ["layer of a batch", "stacks", "both axes", "causal"]),
])  # fmt: skip
def test_results_are_those_of_float64(target: str, names: list[str], cases: Cases) -> None:
    nets = tw.compile_many([(spec_of(name), None, target) for name in names])
    for name, net in zip(names, nets, strict=True):
        assert net.verify(cases=3).cases == 3, name
    cases.count(target, "native" if nets[0].emulated is None else "qemu", 3 * len(nets))


@pytest.mark.parametrize("name", CASES)
def test_a_network_is_the_python_that_makes_it(name: str) -> None:
    spec = spec_of(name)
    for other in (pickle.loads(pickle.dumps(spec)), spec_of_code(repr(spec))):
        assert other == spec and hash(other) == hash(spec) and repr(other) == repr(spec)


def test_a_layer_is_right_and_a_row_is_its_own() -> None:
    rng = np.random.default_rng(5)
    shapes: dict[str, Any] = {name: tensor.shape for name, tensor in LAYER.items()}
    weights = {n: rng.standard_normal(s).astype(np.float32) / 5 for n, s in shapes.items()}
    net = tw.compile(spec_of("layer of a batch"))
    packed = net.pack(weights)
    x = rng.standard_normal((4, 9, WIDTH)).astype(np.float32)
    mask = np.where(rng.random((4, 1, 1, 9)) < 0.3, -np.inf, 0).astype(np.float32)
    mask[..., 0] = 0
    whole = net(x, mask, packed)
    for one in range(4):
        alone = net(x[one : one + 1], mask[one : one + 1], packed)
        np.testing.assert_array_equal(alone[0], whole[one])
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    np.testing.assert_allclose(whole, _right(x.astype(np.float64), mask, w), rtol=2e-4, atol=2e-5)
    assert net(x[:0], mask[:0], packed).shape == (0, 9, WIDTH)


def _right(x: Any, mask: Any, w: Any) -> Any:
    def norm(y: Any, gain: Any, bias: Any) -> Any:
        centred = y - y.mean(-1, keepdims=True)
        return centred / np.sqrt(y.var(-1, keepdims=True) + 1e-5) * gain + bias

    heads = (x @ w["qkv"] + w["bqkv"]).reshape(4, 9, 3, HEADS, -1).transpose(2, 0, 3, 1, 4)
    q, k, v = heads
    scores = q @ k.swapaxes(-1, -2) * 0.25 + mask
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    a = powers / powers.sum(-1, keepdims=True) @ v
    merged = a.swapaxes(1, 2).reshape(4, 9, WIDTH)
    y = norm(x + merged @ w["o"] + w["bo"], w["g1"], w["b1"])
    h = y @ w["up"] + w["bup"]
    gelu = h / 2 * (1 + np.vectorize(__import__("math").erf)(h / np.sqrt(2)))
    return norm(y + gelu @ w["down"] + w["bdown"], w["g2"], w["b2"])


def test_rows_of_a_table_are_those_of_numpy_and_never_beyond_it() -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    spec = tw.network(nn.take).of(table=t(4, 3), rows=tw.Tensor("s64", (B,)))
    rows = np.array([3, 0, -1, -4, 4, -5, 2**40, -(2**40)])
    np.testing.assert_array_equal(tw.compile(spec)(table, rows), table[np.clip(rows, -4, 3)])
    numpys: Any = np
    theirs = tw.network(lambda table, rows: numpys.take(table, rows, axis=0))
    assert theirs.of(table=t(4, 3), rows=tw.Tensor("s64", (B,))) == spec


def test_heads_are_strides() -> None:
    net = tw.compile(spec_of("layer"), target="avx2")
    text = net.explain(rows=8)
    assert "\nstage 8 " in text and "\nstage 9 " not in text  # no copies
    scores, heads = HEADS * 8 * 8 * 4, 8 * WIDTH * 4
    assert evaluate(program_for(net.plan).scratch, {"rows_": 8}) < 4 * scores + 12 * heads


@pytest.mark.parametrize("rows", [64, R])
def test_buffers_take_no_more_memory_than_two_neighbours(rows: Any) -> None:
    """Each layer reads one tensor and writes the next: 608 and 208 columns are the most."""
    widths = (13, 608, 208, 208, 608, 5)
    weights = {f"w{i}": t(*each) for i, each in enumerate(pairwise(widths))}

    def perceptron(x: Any, w: Any) -> Any:
        for name in weights:
            x = tw.relu(x @ w[name])
        return x

    spec = tw.network(perceptron).of(x=t(rows, 13), w=weights)
    program = program_for(plan_for(spec, tw.Schedule(), targets.load("avx2")))
    assert evaluate(program.scratch, {"rows_": 64}) == 64 * 4 * (608 + 208)


def test_attention_of_bf16_multiplies_bf16() -> None:
    q, k = (tw.Tensor("bf16", (2, R, 8)) for _ in "qk")
    spec = tw.network(lambda q, k: nn.attention(q, k, k)).of(q=q, k=k)
    result = spec.results[0].tensor
    assert result is not None and result.type == "bf16"
    assert tw.compile(spec).verify(cases=2).cases == 2


def test_a_value_is_copied_once() -> None:
    net = tw.compile(spec_of("tokens"), target="avx2")
    assert len([line for line in net.explain().splitlines() if "copy0:" in line]) == 1
