"""Attention as one stage over matrices and blocks of queries: bits, refusals, and the choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from support.cases import Cases

import tilewright as tw
from tilewright import nn
from tilewright.generate import interpret_kernel, plan_for, program_for
from tilewright.ir.nest import BlockLoop, Pack
from tilewright.ir.nodes import walk
from tilewright.runtime.arrays.elements import encode
from tilewright.spec.network.views import given_shape
from tilewright.symbolic import evaluate

B, R, K = tw.dim("batch"), tw.dim("rows"), tw.dim("keys")
T = tw.Tensor


def heads(x: Any, mask: Any) -> Any:
    q, k, v = nn.heads(x, 3, parts=3)
    return nn.merge(nn.attention(q, k, v, mask=mask))


def grouped(q: Any, k: Any, v: Any) -> Any:
    """Causal; two heads of queries for each head of keys; a function after the softmax."""
    visible = nn.arange(K)[None, :] <= nn.arange(R)[:, None]
    scores = q.reshape((B, 2, 2, R, 5)) @ k[:, :, None].T + tw.where(visible, 0, -np.inf)
    return (nn.softmax(scores) * 0.5) @ v[:, :, None]


def apart(x: Any, w: Any) -> Any:
    """Each of queries, keys and values has a product of its own, and values come last."""
    q, k, v = (nn.heads(x @ w[name], 2) for name in "qkv")
    return nn.merge(nn.attention(q, k, v)) @ w.o


APART = dict.fromkeys("qkvo", T("f32", (12, 12)))
SPECS = {
    "heads": tw.network(heads).of(x=T("f32", (B, R, 63)), mask=T("f32", (B, 1, 1, R))),
    "grouped": tw.network(grouped).of(
        q=T("f32", (B, 4, R, 5)), k=T("f32", (B, 2, K, 5)), v=T("f32", (B, 2, K, 5))
    ),
    "fixed": tw.network(heads).of(x=T("f32", (2, 13, 63)), mask=T("f32", (13, 13))),
    "one query": tw.network(lambda q, k: nn.softmax(q @ k.T) @ k).of(
        q=T("bf16", (3, 2, 1, 16)), k=T("bf16", (3, 2, 5, 16))
    ),
    "apart": tw.network(apart).of(x=T("f32", (B, R, 12)), w=APART),
}
NAMES = "attention0"


def stage(spec: tw.Network, isa: Any, rows: int) -> tw.Stage:
    """Return the stage of the attention."""
    steps = [step.name for step in plan_for(spec, tw.Stages(), isa).steps]
    first, last = steps.index("product0"), steps.index("product1")
    return tw.Stage(" ".join(steps[first : last + 1]), rows=rows)


def schedules(spec: tw.Network, isa: Any, seed: int) -> Iterator[tw.Stages]:
    random = Random(seed)
    while True:
        rows = random.choice((1, 2, 5, 8, 64))
        yield tw.Stages(stage(spec, isa, rows), threads=random.choice((None, 3)))


def tensors(spec: tw.Network, sizes: dict[Any, int]) -> tuple[list[Any], dict[str, Any]]:
    rng = np.random.default_rng(len(spec.inputs))

    def made(tensor: Any) -> Any:
        return encode(rng.standard_normal([sizes.get(s, s) for s in tensor.shape]), tensor.type)

    return [made(each) for each in spec.inputs], {each.key: made(each) for each in spec.weights}


@pytest.mark.parametrize("name", SPECS)
def test_blocks_of_queries_change_no_bit(name: str, cases: Cases) -> None:
    spec = SPECS[name]
    isa = tw.compile(tw.Gemm(2, 2, 2)).isa
    every = schedules(spec, isa, len(name))
    asked = [tw.Stages(), next(every), tw.Schedule(threads=2)]
    plain, *nets = tw.compile_many([(spec, each, "host") for each in asked])
    for sizes in ((1, 1, 1), (2, 17, 7), (1, 131, 3)) if spec.runtime_sizes() else ((0, 0, 0),):
        given, weights = tensors(spec, dict(zip((B, R, K), sizes, strict=True)))
        more = (plain.pack(weights),) if weights else ()
        wanted = plain(*given, *more)
        for net in nets:
            assert net(*given, *more).tobytes() == wanted.tobytes(), (net.schedule, sizes)
    cases.count("host", "native", 3 * len(nets))


@pytest.mark.parametrize(("name", "target"), [("heads", "neon"), ("fixed", "sve256"),
                                              ("grouped", "rvv256")])  # fmt: skip
def test_blocks_of_queries_change_no_bit_of_an_emulated_target(
    name: str, target: str, cases: Cases
) -> None:
    spec, isa = SPECS[name], tw.compile(tw.Gemm(2, 2, 2), target=target).isa
    known = dict(zip((B, R, K), (2, 7, 3), strict=True))
    given, _ = tensors(spec, known)
    sizes = [known[dim] for _, dim in spec.runtime_sizes()]
    shape = [
        each if isinstance(each, int) else known[each] for each in given_shape(spec.results[0], "")
    ]
    found: list[Any] = []
    for schedule in (tw.Stages(), tw.Stages(stage(spec, isa, 3), threads=2)):
        found.append(np.zeros(shape, np.float32))
        interpret_kernel(spec, schedule, isa, [*given, found[-1]], sizes)
    assert found[0].tobytes() == found[1].tobytes() and found[0].any()
    cases.count(target, "interpreted", 2)


def test_keys_are_packed_once_for_all_blocks_of_queries() -> None:
    spec = tw.network(lambda x: heads(x, 0)).of(x=T("f32", (2, 64, 3 * 48)))
    isa = tw.compile(tw.Gemm(2, 2, 2), target="avx2").isa
    for threads in (1, 4):
        program = program_for(plan_for(spec, tw.Stages(tw.Stage(NAMES, 4), threads=threads), isa))
        packs = [node for node in walk(program.nest) if isinstance(node, Pack)]
        (keys,) = (each for each in packs if str(each.buffer).endswith("b_packed"))
        loops = [node for node in walk(keys.body) if isinstance(node, BlockLoop)]
        assert any("blocks of 4 rows" in loop.note for loop in loops)
        parts = [n for n in walk(program.nest) if isinstance(n, BlockLoop) and n.counter == "part"]
        assert [evaluate(n.trips, {}) for n in parts] == [3] * (threads > 1)


def of_size(batch: Any, rows: Any) -> tw.Network:
    return tw.network(lambda x: heads(x, 0)).of(x=T("f32", (batch, rows, 3 * 48)))


@pytest.mark.parametrize(
    ("spec", "threads", "wanted"),
    [
        (of_size(1, 32), None, None),
        (of_size(1, 32), 2, 16),
        (of_size(8, 256), None, 64),
        (of_size(1, 3000), None, 16),
        (of_size(B, R), None, 64),
        (SPECS["apart"], None, 64),
    ],
)
def test_scores_that_exceed_l2_are_in_blocks(
    spec: tw.Network, threads: int | None, wanted: int | None
) -> None:
    isa = tw.compile(tw.Gemm(2, 2, 2), target="avx2").isa
    plan = plan_for(spec, tw.Schedule(threads=threads), isa)
    found = {step.block.rows for step in plan.steps if step.block is not None}
    assert found == ({wanted} - {None})
    if wanted:
        assert plan.schedule == plan_for(spec, plan.schedule, isa).schedule
        every = {each.names: each.rows for each in plan.schedule.stages}
        assert every[NAMES,] == wanted


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: tw.Stage("q k v " + NAMES, rows=3),
            "product0 has batch_ x 2 matrices, q has batch_",
        ),
        (lambda: tw.Stage(NAMES + " o", rows=3), "o has batch_ matrices, product0"),
        (lambda: tw.Stage("k v product0", rows=3), r"Stage\('k v', rows=3\)"),
    ],
)
def test_what_no_stage_of_attention_can_be_is_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(tw.ScheduleError, match=says):
        tw.compile(SPECS["apart"], tw.Stages(make()))


def test_keys_of_the_same_block_are_refused() -> None:
    spec = tw.network(lambda x: nn.softmax(x @ tw.exp(x).T) @ x).of(x=T("f32", (2, 3, R, 8)))
    with pytest.raises(tw.ScheduleError, match="needs other rows of value"):
        tw.compile(spec, tw.Stages(tw.Stage("exp0 product0 softmax0", rows=3)))
