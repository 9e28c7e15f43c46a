"""Networks with products: traced, packed, called, explained, shipped; and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from support.cases import Cases

import tilewright as tw
from tilewright import nn
from tilewright.cli.code import spec_of_code
from tilewright.generate import plan_for, program_for
from tilewright.runtime.call.packed_weights import PackedWeights
from tilewright.symbolic import Least, evaluate

ROWS = tw.dim("rows")
NUMPY: Any = np


def relu3(x: Any, w: Any) -> Any:
    for number in (1, 2, 3):
        x = tw.relu(nn.linear(x, w[f"w{number}"], w[f"b{number}"]))
    return x


def classes(x: Any, w: Any) -> Any:
    h = tw.relu(nn.linear(x, w.w1, w.b1))
    return nn.softmax(nn.linear(tw.relu(nn.linear(h, w.w2, w.b2)), w.w3, w.b3))


def gated(x: Any, w: Any) -> Any:
    """Values with several users, a residual, a product without bias; two results."""
    h = nn.layer_norm(x, w.g, w.b)
    y = x + nn.linear(tw.silu(h @ w.gate) * (h @ w.up), w.down)
    return y, nn.max(y @ w.gate, keepdims=True)


def named(a: Any, c: Any, w: Any) -> Any:
    """Tensors with names of a product's arguments; operands of each kind; strides; a cast."""
    h = tw.relu(a @ w.b) * c + w.zero
    return (h.astype("bf16").astype("f32") @ w.c) * w.one + a, h, a


def weights_of(*sizes: int) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    found = {}
    for number, (k, n) in enumerate(pairwise(sizes), 1):
        found[f"w{number}"] = (rng.standard_normal((k, n)) / np.sqrt(k)).astype(np.float32)
        found[f"b{number}"] = rng.standard_normal(n).astype(np.float32)
    return found


def right(x: Any, w: dict[str, Any], *, softmax: bool) -> Any:
    h = x.astype(np.float64)
    for number in (1, 2, 3):
        h = h @ w[f"w{number}"].astype(np.float64) + w[f"b{number}"]
        h = h if softmax and number == 3 else np.maximum(h, 0)
    powers = np.exp(h - h.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True) if softmax else h


def of(function: Callable[..., Any], w: Any, rows: Any = ROWS, columns: int = 13) -> tw.Network:
    return tw.network(function).of(x=tw.Tensor("f32", (rows, columns)), w=w)


LARGE, SMALL = weights_of(13, 512, 256, 128), weights_of(13, 40, 21, 10)
GATED = {
    "g": tw.Tensor("f32", 21), "b": tw.Tensor("f32", 21), "gate": tw.Tensor("f32", (21, 50)),
    "up": tw.Tensor("f32", (21, 50)), "down": tw.Tensor("f32", (50, 21)),
}  # fmt: skip
NAMED = tw.network(named).of(
    a=tw.Tensor("f32", (ROWS, 13), (tw.dim("step"), 1)), c=tw.Tensor("bf16", (ROWS, 7)),
    w={"b": tw.Tensor("f32", (13, 7)), "zero": tw.Tensor("f32", 7), "one": tw.Tensor("f32", 1),
       "c": tw.Tensor("f32", (7, 13))},
)  # fmt: skip
MLPS = {"large": (relu3, LARGE), "classes": (classes, SMALL)}


@pytest.mark.parametrize("name", MLPS)
@pytest.mark.parametrize("target", ["host", "avx2", "neon"])
def test_a_row_depends_on_that_row_and_the_weights_alone(
    name: str, target: str, cases: Cases
) -> None:
    function, weights = MLPS[name]
    net = tw.compile(of(function, weights), target=target)
    packed = pickle.loads(pickle.dumps(net.pack(weights)))
    x = np.random.default_rng(4).standard_normal((38, 13)).astype(np.float32)
    whole = net(x, packed)
    np.testing.assert_allclose(
        whole, right(x, weights, softmax=function is classes), rtol=1e-4, atol=1e-5
    )
    for rows in (0, 1, 2, 7):
        np.testing.assert_array_equal(net(x[:rows], packed), whole[:rows])
    out = np.empty_like(whole)
    assert net(packed, x=x, out=out) is out
    np.testing.assert_array_equal(out, whole)
    cases.count(target, "native" if net.emulated is None else "qemu", 6)


@pytest.mark.parametrize("target", ["host", "avx2", "sve256"])
def test_networks_are_verified(target: str, cases: Cases) -> None:
    specs = [
        of(classes, SMALL),
        of(classes, SMALL, 5),
        of(classes, SMALL, 0),
        of(gated, GATED, columns=21),
        NAMED,
    ]
    nets = tw.compile_many([(spec, None, target) for spec in specs])
    for net in nets:
        assert net.verify(cases=2).cases == 2
    cases.count(target, "native" if nets[0].emulated is None else "qemu", 2 * len(nets))


def test_a_network_is_the_python_that_makes_it() -> None:
    for spec in (of(classes, SMALL), of(gated, GATED, columns=21)):
        names = {name: getattr(tw, name) for name in ("exp", "relu", "swish", "sqrt", "dim")}
        names |= {"nn": nn, "network": tw.network, "Tensor": tw.Tensor}
        made = eval(repr(spec), names)  # noqa: S307
        for other in (made, pickle.loads(pickle.dumps(spec)), spec_of_code(repr(spec))):
            assert other == spec and hash(other) == hash(spec)
    assert of(classes, SMALL) != of(relu3, SMALL)
    assert of(lambda x, w: NUMPY.matmul(x, w.a), {"a": tw.Tensor("f32", (13, 2))}).packed


def test_functions_of_elements_are_in_the_epilogue_and_buffers_share_memory() -> None:
    net = tw.compile(of(relu3, LARGE), target="avx2")
    text = net.explain(rows=32)
    assert text.count("\nstage ") == 3 and "buffer    value0: 2048 * rows_ bytes" in text
    moved, time = (line.split() for line in text.splitlines() if line.startswith("  1 w2"))
    assert moved[2:] == ["32", "KiB", "L1", "609", "KiB", "L3", "609", "KiB", "737", "KiB"]
    assert time[2:4] == ["multiply-add", "units"]
    assert evaluate(net.flops, {"rows": 32}) == 2 * 32 * (13 * 512 + 512 * 256 + 256 * 128)
    program = program_for(net.plan)
    assert evaluate(program.scratch, {"rows_": 32}) == 32 * 4 * (512 + 256)
    stages, tiles = 150, 4
    same = of(lambda x, w: reduce(lambda y, _: nn.softmax(y @ w.a + w.b), range(stages), x),
              {"a": tw.Tensor("f32", (40, 40)), "b": tw.Tensor("f32", 40)}, columns=40)  # fmt: skip
    shared = program_for(plan_for(same, tw.Schedule(), net.isa))
    assert len(shared.tiles) <= tiles + 1 and evaluate(shared.scratch, {"rows_": 1}) <= 512
    deep = tw.compile(of(lambda x, w: (((x @ w.a) @ w.a) @ w.a) @ w.a,
                         {"a": tw.Tensor("f32", (40, 40))}, 300, 40))  # fmt: skip
    assert program_for(deep.plan).scratch == 2 * 300 * 40 * 4
    assert deep.verify(cases=2).cases == 2


def test_places_of_buffers_of_different_sizes_have_short_formulas() -> None:
    def crossed(x: Any, y: Any) -> Any:
        for _ in range(4):
            scores, y = nn.softmax(x @ y.T), nn.softmax(y)
            x = nn.softmax(scores @ y)
        return x

    given = {name: tw.Tensor("f32", (tw.dim(f"many_{name}"), 4)) for name in "xy"}
    target = tw.compile(of(relu3, LARGE), target="avx2").isa
    plan = plan_for(tw.network(crossed).of(**given), tw.Schedule(), target)
    assert program_for(plan).scratch.count(Least) <= 16


def test_a_library_packs_each_weight() -> None:
    library = tw.library("lib", {"mlp": of(classes, SMALL)}, targets=["scalar"], jobs=1)
    header = library.files["include/lib.h"]
    for name in ("lib_mlp(", "lib_mlp_pack_w_w1(", "lib_mlp_pack_w_w3("):
        assert name in header
    assert "made by lib_mlp_pack_w_w2" in header
    assert "lib_mlp_pack_w_w2((const float *)" in library.files["selftest/mlp_calls.c"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda w: {k: v for k, v in w.items() if k != "b2"}, "b2 missing"),
        (lambda w: {**w, "more": w["b1"]}, "more not used"),
        (lambda w: {**w, "w1": w["w1"].T}, r"w\.w1 has another type or shape"),
        (lambda w: {**w, "w1": w["w1"].astype(np.float64)}, "float64 of shape"),
        (lambda w: {**w, "b1": 1.0}, r"w\.b1"),
        (lambda w: list(w.values()), "a dict from names to arrays"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused(change: Callable[..., Any], says: str) -> None:
    net = tw.compile(of(classes, SMALL))
    with pytest.raises(tw.ArgumentError, match=says):
        net.pack(change(SMALL))


def test_packed_weights_are_copies_of_one_network() -> None:
    given = {name: array.copy() for name, array in SMALL.items()}
    net, other = tw.compile(of(classes, given)), tw.compile(of(classes, weights_of(13, 9, 9, 9)))
    packed = net.pack(given)
    x = np.ones((2, 13), np.float32)
    before = net(x, packed)
    for array in given.values():
        array[...] = 0
    np.testing.assert_array_equal(net(x, packed), before)
    assert isinstance(packed, PackedWeights)
    assert packed.names[0] == "w.w1"
    with pytest.raises(AttributeError, match="immutable"):
        packed.arrays = ()
    with pytest.raises(ValueError, match="read-only"):
        packed.arrays[1][0] = 1
    with pytest.raises(tw.ArgumentError, match="another network"):
        other(x, packed)
    with pytest.raises(tw.ArgumentError, match="packed weights"):
        net(x)
    square = tw.compile(of(lambda x, w: (x @ w.a) @ w.a, {"a": tw.Tensor("f32", (13, 13))}))
    held = square.pack({"a": np.eye(13, dtype=np.float32)})
    with pytest.raises(tw.ArgumentError):
        square(x, held, out=x)  # the second stage would read what the first one wrote


A = {"a": tw.Tensor("f32", (13, 5))}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: of(lambda x, w: x @ w.b, A), "no weight 'b'"),
        (lambda: of(lambda x, w: x, A), "no result depends on the weight"),
        (lambda: of(lambda x, w: x @ w.a, {"a": tw.Tensor("f32", (5, 13))}), "transposed"),
        (lambda: of(lambda x, w: x @ w.a, {"a": tw.Tensor("f32", (13, ROWS))}), "fixed size"),
        (lambda: of(lambda x, w: x @ w.a, {"a.b": 1}), "name"),
        (lambda: of(lambda x, w: x @ w.a, {"a": 1}), "an array or a tw.Tensor"),
        (lambda: of(lambda x, w: x @ x, A), "the rows of the second"),
        (lambda: of(lambda x, w: x @ np.ones((13, 2)), A), "two tensors"),
        (lambda: of(lambda x, w: x.reshape((13, ROWS))[:, 1] @ w.a, A), "known only at the call"),
        (lambda: of(lambda x, w: nn.heads(x @ w.a, 3), A), "multiple of parts"),
        (lambda: of(lambda x, w: nn.concat((x, x @ w.a), axis=0), A), "agree in type"),
        (lambda: of(lambda x, w: (x @ w.a) + w.a[0], A), "in no other way"),
        (lambda: tw.network(lambda w_a, w: w_a @ w.a).of(w_a=tw.Tensor("f32", (2, 13)), w=A),
         "one name"),
        (lambda: of(lambda x, w: x @ w.a, {"a": np.ones((13, 2))}), r"astype\(np\.float32\)"),
        (lambda: tw.compile(cast(Any, tw.network(nn.softmax))), r"softmax\.of\("),
        (lambda: tw.Tensor("f32", (3, 4), (40, 2)), "follow each other"),
        (lambda: tw.compile(of(relu3, SMALL), tw.Schedule(tile=(1, 64))), "no schedule"),
    ],
)  # fmt: skip
def test_what_no_network_with_products_can_be_is_refused(make: Any, says: str) -> None:
    with pytest.raises(tw.TilewrightError, match=says):
        make()
