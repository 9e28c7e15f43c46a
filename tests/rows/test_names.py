"""Names of functions of ``tilewright.nn`` in a network: they follow from its operators."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.cases import Cases

import tilewright as tw
from tilewright import nn
from tilewright.generate import plan_for
from tilewright.runtime.machine.host import resolve

R = tw.dim("rows")
T = tw.Tensor
WIDE = {"a": T("f32", (16, 512)), "g": T("f32", 512), "b": T("f32", (512, 16))}
APART = tw.Stages()


@tw.postop
def softmax(x: Any) -> Any:
    return x + x


def planned(function: Callable[..., Any], stages: Any = APART, type_: Any = "f32") -> Any:
    w = {key: T(type_ if len(one.shape) > 1 else "f32", one.shape) for key, one in WIDE.items()}
    used = {key: one for key, one in w.items() if key in function.__code__.co_names}
    spec = tw.network(function).of(x=T(type_, (R, 16)), w=used)
    return plan_for(spec, stages, resolve("avx512+zen5"))


def names(plan: Any) -> str:
    return " ".join(name for stage in plan.schedule.stages for name in stage.names)


def written_out(x: Any, w: Any) -> Any:
    y = x @ w.a
    e = np.exp(y - y.max(-1, keepdims=True))
    return e * (1 / e.sum(-1, keepdims=True))


def attends(x: Any, w: Any) -> Any:
    y = x @ w.b.T
    return nn.softmax(tw.relu(y @ y.T) * 2) @ y


@pytest.mark.parametrize(
    ("function", "type_", "wanted", "inside"),
    [
        (lambda x, w: nn.softmax(x @ w.a), "f32", "a softmax0", ()),
        (written_out, "f32", "a softmax0", ()),
        (lambda x, w: nn.log_softmax(x @ w.a), "bf16", "a log_softmax0", ()),
        (lambda x, w: nn.layer_norm(x @ w.a, w.g, w.g) @ w.b, "f16", "a layer_norm0 b", ()),
        (lambda x, w: nn.rms_norm(x @ w.a) @ w.b, "f32", "a rms_norm0 b", ()),
        (lambda x, w: nn.mean(x @ w.a, -1, keepdims=True), "f32", "a mean0", ()),
        (lambda x, w: tw.relu(nn.layer_norm(x @ w.a, w.g) + x[:, :1]), "f32", "a relu0",
         ("layer_norm0",)),
        (lambda x, w: softmax(nn.softmax(softmax(x @ w.a))), "f32", "a softmax0", ("softmax2",)),
        # no function of nn: the sum is of other numbers, or the gain is no gain
        (lambda x, w: tw.exp(x @ w.a) * (1 / nn.sum(x, keepdims=True)), "f32", "a sum0 mul0", ()),
        (lambda x, w: nn.rms_norm(x @ w.a) * (x @ w.a)[:, :1], "f32", "a mul0", ("rms_norm0",)),
    ],
)  # fmt: skip
def test_functions_have_names(
    function: Callable[..., Any], type_: Any, wanted: str, inside: tuple[str, ...]
) -> None:
    plan = planned(function, type_=type_)
    assert names(plan) == wanted and plan.steps[-1].inside == inside


def test_a_function_of_several_stages_is_a_name_of_all() -> None:
    plan = planned(attends, tw.Schedule(threads=2))
    assert names(plan) == "b_T attention0"
    again = planned(attends, tw.Stages(tw.Stage("product0 mul0 product1", rows=64), threads=2))
    assert repr(plan.steps) == repr(again.steps) and names(again) == "b_T product0 mul0 product1"
    with pytest.raises(tw.ScheduleError, match="'softmax0' is in two stages"):
        planned(attends, tw.Stages(tw.Stage("attention0", rows=4), tw.Stage("softmax0")))
    columns = planned(lambda x, w: nn.softmax(x @ w.a, 0))
    assert {step.name: step.also for step in columns.steps} == {
        "a": (), "max0": ("softmax0",), "sum0": ("softmax0",), "mul0": ("softmax0",)
    }  # fmt: skip


def quantized(x: Any, w: Any) -> Any:
    h = nn.quantize(tw.relu(nn.linear(x, w.a)) + 1, 0.1, zero=3, type="u8")
    return nn.mean(nn.dequantize(h, 0.1, 3), keepdims=True)


def test_places_of_functions(cases: Cases) -> None:
    spec = tw.network(quantized).of(x=T("f32", (R, 16)), w={"a": WIDE["a"]})
    moved = tw.Stages(tw.Stage("a mean0", rows=4, at={"quantize0": "rows"}))
    plain, net = tw.compile_many([(spec, each, "host") for each in (tw.Stages(), moved)])
    assert "\nwithin    a: relu0 add0 quantize0 dequantize0, in the accumulators" in plain.explain()
    assert "\nwithin    mean0: quantize0 dequantize0, in the same passes" in net.explain()
    made: Any = net.plan
    assert net.schedule == moved and made.steps[0].inside == ("relu0", "add0")
    x, weights = np.float32(np.arange(48)).reshape(3, 16), {"a": np.full((16, 512), 0.01, "f4")}
    packed = plain.pack(weights)
    assert net(x, packed).tobytes() == plain(x, packed).tobytes()
    cases.count("host", "native", 2)


def test_a_function_of_whole_rows_says_which_columns_it_reads() -> None:
    for place in ("accumulators", "slice"):
        stage = tw.Stage("a softmax0", rows=8, at={"softmax0": place})
        with pytest.raises(tw.ScheduleError) as refused:
            planned(written_out, tw.Stages(stage, products={"a": tw.Schedule(tile=(4, 48))}))
        assert refused.value.problem == (
            f"'softmax0' reads all columns of 'a', of which '{place}' has 48"
        )
        assert refused.value.hint == "at={'softmax0': 'rows'}"


def test_equal_networks_have_equal_names() -> None:
    nets = [
        tw.network(function).of(x=T("f32", (R, 16)), w={"a": WIDE["a"]})
        for function in (written_out, lambda x, w: nn.softmax(x @ w.a))
    ]
    nets.append(pickle.loads(pickle.dumps(nets[1])))
    nets.append(eval(repr(nets[1]), vars(tw) | {"nn": nn}))  # noqa: S307
    for each in nets:
        assert each == nets[0] and hash(each) == hash(nets[0]) and repr(each) == repr(nets[0])
        assert names(plan_for(each, tw.Stages(), resolve("avx2"))) == "a softmax0"
