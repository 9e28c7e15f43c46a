"""Stages of networks in blocks of rows: they change no bit; and what is refused."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from support.cases import Cases

import tilewright as tw
from tilewright import nn
from tilewright.cli.code import schedule_of_code
from tilewright.emit.parallel import joined
from tilewright.generate import Request, generate, interpret_kernel, plan_for, program_for
from tilewright.ir.nest import Beside, BlockLoop, Call
from tilewright.ir.nodes import walk
from tilewright.runtime.arrays.elements import encode
from tilewright.runtime.call.packed_matrix import memory
from tilewright.runtime.machine.host import resolve
from tilewright.symbolic import evaluate

B, R = tw.dim("batch"), tw.dim("rows")
T = tw.Tensor


def perceptron(x: Any, w: Any) -> Any:
    h = tw.relu(nn.linear(tw.relu(nn.linear(x, w.a, w.ba)), w.b))
    return nn.softmax(h @ w.c), h


def layer(x: Any, w: Any) -> Any:
    q, k, v = nn.heads(x @ w.qkv, 2, parts=3)
    y = nn.layer_norm(x + nn.linear(nn.merge(nn.softmax(q @ k.T) @ v), w.o), w.g)
    return nn.layer_norm(y + tw.gelu_erf(y @ w.up) @ w.down, w.g)


def rounded(x: Any, w: Any) -> Any:
    h = tw.relu(x @ w.a)
    one, other = nn.split(h, 2)
    return nn.concat((one * tw.tanh(other), h), axis=-1) @ w.b


def integers(x: Any, w: Any) -> Any:
    h = nn.quantize(tw.relu(nn.dequantize(x, 0.05, 3) @ nn.dequantize(w.a, 0.1)), 0.1, type="u8")
    return nn.dequantize(h, 0.1) @ nn.dequantize(w.b, 0.2)


LAYER = {"qkv": T("f32", (24, 72)), "o": T("f32", (24, 24)), "g": T("f32", 24),
         "up": T("f32", (24, 50)), "down": T("f32", (50, 24))}  # fmt: skip
WEIGHTS = {"a": T("f32", (13, 40)), "ba": T("f32", 40), "b": T("f32", (40, 21)),
           "c": T("f32", (21, 10))}  # fmt: skip
SPECS = {
    "perceptron": tw.network(perceptron).of(x=T("f32", (R, 13)), w=WEIGHTS),
    "fixed rows": tw.network(perceptron).of(x=T("f32", (9, 13)), w=WEIGHTS),
    "layer": tw.network(layer).of(x=T("f32", (B, R, 24)), w=LAYER),
    "rounded": tw.network(rounded).of(
        x=T("bf16", (R, 13)), w={"a": T("bf16", (13, 32)), "b": T("bf16", (48, 17))}
    ),
    "integers": tw.network(integers).of(
        x=T("u8", (R, 16)), w={"a": T("s8", (16, 40)), "b": T("s8", (40, 12))}
    ),
}


def legal(spec: tw.Network, isa: Any, seed: int) -> Iterator[tw.Stages]:
    """Yield random legal stages."""
    random = Random(seed)
    names = [step.name for step in plan_for(spec, tw.Schedule(), isa).steps]
    for threads in (random.choice((2, 3, 7)), None) * 20:
        ends = sorted({0, len(names), random.randrange(len(names)), random.randrange(len(names))})
        stages = [
            tw.Stage(" ".join(names[i:j]), rows=random.choice((1, 3, 4, 16, None)))
            for i, j in pairwise(ends)
        ]
        try:
            found = plan_for(spec, tw.Stages(*stages, threads=threads), isa)
        except tw.ScheduleError:
            continue
        if any(step.block for step in found.steps):
            yield found.schedule


def tensors(spec: tw.Network, rows: int) -> tuple[list[Any], dict[str, Any]]:
    rng = np.random.default_rng(rows)

    def made(tensor: Any) -> Any:
        shape = [3 if size == B else rows if size == R else size for size in tensor.shape]
        return encode(rng.standard_normal(shape), tensor.type)

    return [made(each) for each in spec.inputs], {each.key: made(each) for each in spec.weights}


@pytest.mark.parametrize("name", SPECS)
def test_stages_change_no_bit(name: str, cases: Cases) -> None:
    spec = SPECS[name]
    plain = tw.compile(spec, tw.Stages())
    every = legal(spec, plain.isa, 1)
    nets = tw.compile_many([(spec, next(every), "host") for _ in range(2)])
    for rows in (1, 17) if spec.filled else (0, 1, 2, 17, 37):
        given, weights = tensors(spec, rows)
        wanted, packed = plain(*given, plain.pack(weights)), plain.pack(weights)
        for net in nets:
            got = net(*given, packed)
            pairs = zip(*(x if spec.several else (x,) for x in (got, wanted)), strict=True)
            assert all(one.tobytes() == other.tobytes() for one, other in pairs), net.schedule
    cases.count("host", "native", 3 * len(nets))


@pytest.mark.parametrize("name", ["perceptron", "integers"])
def test_stages_change_no_bit_of_an_emulated_target(name: str, cases: Cases) -> None:
    spec, rows = SPECS[name], 5
    plain = tw.compile(spec, target="neon")
    given, weights = tensors(spec, rows)
    packed = plain.pack(weights)
    wanted = plain(*given, packed)
    wanted = wanted if spec.several else (wanted,)
    held = [memory(w) if type(w) is tw.PackedMatrix else w for w in packed.arrays]
    sizes = [3 if dim == B else rows for _, dim in spec.runtime_sizes()]
    every = legal(spec, plain.isa, 2)
    for _ in range(2):
        made = [np.zeros_like(each) for each in wanted]
        interpret_kernel(spec, next(every), plain.isa, [*given, *held, *made], sizes)
        assert [m.tobytes() for m in made] == [each.tobytes() for each in wanted]
    cases.count("neon", "interpreted", 2)


BLOCKS = tw.Stages(
    tw.Stage("a b"), tw.Stage("c softmax0", rows=32), products={"b": tw.Schedule(tile=(2, 16))},
    threads=2,
)  # fmt: skip


def test_stages_are_values() -> None:
    names = {name: getattr(tw, name) for name in ("Stages", "Stage", "Schedule")}
    for other in (eval(repr(BLOCKS), names), pickle.loads(pickle.dumps(BLOCKS)),  # noqa: S307
                  schedule_of_code(repr(BLOCKS))):  # fmt: skip
        assert other == BLOCKS and hash(other) == hash(BLOCKS) and repr(other) == repr(BLOCKS)
    assert tw.Stages() != tw.Schedule() and tw.Stages(*BLOCKS.stages, threads=2) != BLOCKS
    net = tw.compile(SPECS["perceptron"], BLOCKS)
    assert net.schedule == BLOCKS and net.verify(cases=2).cases == 2
    text = net.explain(rows=100)
    assert "\nstage 2   c: " in text
    equal = "in equal shares for 2 threads"
    assert f"\nblocks    at most 32 rows at a time: stages 2 to 3, {equal}" in text
    assert "value1: 1280 bytes, for one block of rows" in text


def test_values_of_a_block_are_small() -> None:
    spec = tw.network(lambda x, w: tw.relu(tw.relu(x @ w.a) @ w.b) @ w.c).of(
        x=T("f32", (R, 13)), w={name: WEIGHTS[name] for name in "abc"}
    )
    isa = tw.compile(spec, target="avx2").isa
    plan = plan_for(spec, tw.Stages(tw.Stage("a b c", rows=300)), isa)
    assert evaluate(program_for(plan).scratch, {"rows_": 10**6}) <= 300 * 4 * (40 + 21) + 128
    shared = program_for(plan_for(spec, tw.Stages(tw.Stage("a b c", rows=300), threads=2), isa))
    assert shared.scratch == 0
    assert evaluate(shared.worker_scratch, {"rows_": 10**6}) <= 300 * 4 * (40 + 21) + 128


# -- what the model chooses ------------------------------------------------------------------------


def thin(rows: Any) -> tw.Network:
    """A network whose values between products take longer to pass on than to compute."""
    weights = {"a": T("f32", (16, 4096)), "c": T("f32", (4096, 16))}
    return tw.network(lambda x, w: nn.softmax(tw.relu(x @ w.a) @ w.c)).of(
        x=T("f32", (rows, 16)), w=weights
    )


def wide(rows: Any) -> tw.Network:
    """A network with large weights: threads must share those if there are few rows."""
    weights = {"a": T("f32", (128, 8192)), "c": T("f32", (8192, 128))}
    return tw.network(lambda x, w: tw.relu(x @ w.a) @ w.c).of(x=T("f32", (rows, 128)), w=weights)


def decided(spec: tw.Network, threads: int | None = None) -> tuple[Any, str]:
    plan: Any = plan_for(spec, tw.Schedule(threads=threads), resolve("avx512+zen5"))
    *_, found = plan.decisions
    return plan.schedule, f"{found.choice}: {found.reason}"


@pytest.mark.parametrize(
    ("spec", "threads", "says"),
    [
        (thin(R), None, r"rows=\d+\).*less than one after another"),
        (thin(R), 2, r"rows=\d+\).*less than one after another"),
        (thin(128), 2, r"rows=(16|32|64)\).*less than one after another"),
        (wide(R), 2, r"rows=\d+\).*less than one after another"),
        (SPECS["perceptron"], None, "one after another: blocks of rows would save less"),
        (SPECS["layer"], 2, r"Stage\('o mul1 up down mul2', rows=\d+\).*less than"),
    ],
)
def test_the_model_joins_stages_where_that_saves_time(
    spec: tw.Network, threads: int | None, says: str
) -> None:
    schedule, said = decided(spec, threads)
    assert re.search(says, said)
    in_blocks = [each for each in schedule.stages if each.rows and each.names != ("attention0",)]
    assert bool(in_blocks) == ("rows=" in says)


def test_threads_share_what_is_in_a_single_block(cases: Cases) -> None:
    """Few rows of large weights are better shared by columns than by rows."""
    spec = wide(R)
    plain, net = tw.compile_many(
        [(spec, tw.Stages(), "host"), (spec, tw.Schedule(threads=2), "host")]
    )
    for rows in (1, 5, 11, 130):
        given, weights = tensors(spec, rows)
        packed = plain.pack(weights)
        assert net(*given, packed).tobytes() == plain(*given, packed).tobytes(), rows
    cases.count("host", "native", 4)
    plan = plan_for(spec, tw.Schedule(threads=2), resolve("avx512+zen5"))
    (block,) = {step.block for step in plan.steps}
    outer = [node for node in walk(program_for(plan).nest) if isinstance(node, BlockLoop)]
    assert block.inner and outer[0].counter == "block_of_rows"
    assert outer[0].parallel and any(loop.parallel for loop in outer[1:])


def test_few_rows_lose_on_a_matrix_unit() -> None:
    """It would be configured for each loop that threads share in a block."""
    *_, found = plan_for(wide(R), tw.Schedule(threads=2), resolve("amx")).decisions
    assert re.fullmatch(r"a call of 1 row would take \d+% longer in blocks", found.reason)


def test_few_rows_are_one_block() -> None:
    """Otherwise weights are streamed again, and threads have nothing to share."""
    schedule, _ = decided(thin(R))
    (stage, *_) = schedule.stages
    assert stage.rows >= 16
    for rows in (1, 2, 8):
        assert "rows=" not in repr(decided(thin(rows))[0])


def test_what_the_model_chose_can_be_passed_back(cases: Cases) -> None:
    spec = thin(100)
    chosen, plain = tw.compile(spec, tw.Schedule(threads=2)), tw.compile(spec, tw.Stages())
    given, weights = tensors(spec, 100)
    packed = plain.pack(weights)
    wanted = plain(*given, packed)
    for net in (chosen, tw.compile(spec, chosen.schedule)):
        assert net.schedule == chosen.schedule != plain.schedule
        assert net(*given, packed).tobytes() == wanted.tobytes()
    assert "\n  stages  " in chosen.explain()
    cases.count("host", "native", 2)


# -- places ---------------------------------------------------------------------------------------


def placed(x: Any, w: Any) -> Any:
    h = tw.relu(tw.gelu_erf(x @ w.a + w.ba) + 1)
    return nn.softmax(h @ w.b), tw.tanh(h)


def of_places(type_: Any = "f32") -> tw.Network:
    return tw.network(placed).of(x=T(type_, (R, 13)), w={
        "a": T(type_, (13, 40)), "ba": T("f32", 40), "b": T(type_, (40, 21))
    })  # fmt: skip


PLACES = (
    tw.Stages(tw.Stage("a", at={"relu0": "whole"})),
    tw.Stages(tw.Stage("a relu0 b", rows=4, at={"gelu_erf0": "rows", "add0": "accumulators"})),
    tw.Stages(tw.Stage("a relu0", rows=4, at={"add0": "rows", "relu0": "rows"}), threads=2),
)


@pytest.mark.parametrize("type_", ["f32", "bf16"])
def test_places_change_no_bit(type_: Any, cases: Cases) -> None:
    spec = of_places(type_)
    plain, *nets = tw.compile_many([(spec, each, "host") for each in (tw.Stages(), *PLACES)])
    given, weights = tensors(spec, 17)
    packed = plain.pack(weights)
    wanted = plain(*given, packed)
    for net, schedule in zip(nets, PLACES, strict=True):
        made: Any = net.schedule
        assert schedule.stages[0] == made.stages[0]
        assert eval(repr(made), vars(tw)) == made == pickle.loads(pickle.dumps(made))  # noqa: S307
        for one, other in zip(net(*given, packed), wanted, strict=True):
            assert one.tobytes() == other.tobytes(), schedule
    assert "\nwithin    a: add0 gelu_erf0 add1 relu0, in the acc" in plain.explain()
    cases.count("host", "native", len(nets))


def test_threads_finish_a_stage_before_they_begin_the_next() -> None:
    chain = tw.network(lambda x, w: x @ w.a @ w.b @ w.c @ w.d @ w.e)
    spec = chain.of(x=T("f32", (64, 64)), w=dict.fromkeys("abcde", T("f32", (64, 64))))
    isa = tw.compile(SPECS["perceptron"], target="avx2").isa
    program = joined(program_for(plan_for(spec, tw.Stages(threads=2), isa)))
    regions = [node for node in walk(program.nest) if isinstance(node, Beside)]
    assert len(regions) > 1
    for region in regions:
        calls = [node for node in walk(region.body) if isinstance(node, Call)]
        tiles = [(call, program.tile(call.program).parameters) for call in calls]
        written = {
            argument.symbol
            for call, parameters in tiles
            for argument, parameter in zip(call.arguments, parameters, strict=False)
            if parameter.role == "out"
        }
        assert len(written) == 1


ANY: Any = (3,)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: tw.Stage(""), "has the names"),
        (lambda: tw.Stage("a", rows=0), "positive int"),
        (lambda: tw.Stages(*ANY), "tw.Stage"),
        (lambda: tw.Stages(tw.Stage("a b", 3), tw.Stage("b", 4)), "'b' is named twice"),
        (lambda: tw.Stages(products={"a": tw.Schedule(k_split=2)}), "what a network fixes"),
        (lambda: tw.Stages(products={"a": tw.Schedule(threads=2)}), "what a network fixes"),
        (lambda: tw.Stages(products={"a": ANY[0]}), "by name"),
        (lambda: tw.compile(tw.Gemm(2, 3, 4), tw.Stages()), "no stages"),
        (lambda: staged("perceptron", tw.Stage("a d", rows=3)), "nothing called 'd'"),
        (lambda: staged("perceptron", tw.Stage("a c", rows=3)), r"tw\.Stage\('a b c', rows=3\)"),
        (lambda: staged("perceptron", products={"mul0": tw.Schedule()}), "no product 'mul0'"),
        (lambda: staged("layer", tw.Stage("qkv product0", rows=3)), r"Stage\('qkv', rows=3\)"),
        (lambda: staged("square", tw.Stage("product0 a product1", rows=3)), "needs other rows"),
        (lambda: staged("square", tw.Stage("sum0", rows=3)), "not row by row"),
        (lambda: tw.Stage("a", at={"relu0": "registers"}), "'accumulators', 'slice', 'rows'"),
        (lambda: tw.Stage("a", at=ANY), "has a place for a function, by name"),
        (lambda: at("a", relu0="rows"), r"is in Stage\('relu0'\)[^$]*tw.Stage\('a relu0', rows"),
        (lambda: at("a b", 8, relu0="rows"), r"Stage\('a relu0 b', rows=8, at={'relu0': 'rows'}\)"),
        (lambda: at("a", relu0="slice"), "slice of value0[^$]*'relu0' at 'accumulators'"),
        (lambda: at("b mul0", 8, mul0="whole"), "its stage has rows=8[^$]*'mul0' at 'rows'"),
        (lambda: at("a relu0", relu0="rows"), "its stage has no rows=[^$]*'relu0' at 'whole'"),
        (lambda: at("a", a="rows"), "it is a product"),
        (lambda: at("a", nothing="rows"), "nothing called 'nothing'[^$]*a, add0, gelu_erf0, add1"),
        (lambda: at("a", 3, softmax0="rows"), r"is in Stage\('softmax0'\)"),
    ],
)  # fmt: skip
def test_what_no_stages_can_be_is_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(tw.ScheduleError, match=says):
        make()


def staged(name: str, *stages: tw.Stage, **more: Any) -> Any:
    square = tw.network(lambda x, w: (nn.sum(x @ x.T, axis=0), (x @ w.a) @ (x @ w.a).T))
    spec = square.of(x=T("f32", (13, 13)), w={"a": T("f32", (13, 13))})
    return tw.compile(SPECS.get(name, spec), tw.Stages(*stages, **more))


def at(names: str, rows: int | None = None, **places: str) -> Any:
    return tw.compile(of_places(), tw.Stages(tw.Stage(names, rows, at=places)))


def matrix_layers(x: Any, w: Any) -> Any:
    h = tw.relu(x @ w.a).astype("bf16")
    return nn.softmax((h @ w.b).astype("bf16") @ w.c), h


UNIT = {"a": T("bf16", (64, 64)), "b": T("bf16", (64, 64)), "c": T("bf16", (64, 32))}
#: How C enters the unit: AMX's tiles are saved and configured, SME's streaming mode begins. For
#: each schedule, what enters it.
ENTRIES = {
    "amx": (r"^ +tiles_enter\(&before, (.*)\);", (["&tiles0"], ["&tiles0"], ["&tiles0"] * 2)),
    "sme+f64": (r"__arm_locally_streaming .*void (\w+)\(", (["net"], ["net"], ["fork0"])),
}


@pytest.mark.parametrize(("target", "rows"), [("amx", 32), ("amx", R), ("sme+f64", R)])
def test_a_matrix_unit_is_entered_once_for_all_stages(target: str, rows: Any, cases: Cases) -> None:
    spec, isa = tw.network(matrix_layers).of(x=T("bf16", (rows, 64)), w=UNIT), resolve(target)
    names = (step.name for step in plan_for(spec, tw.Stages(), isa).steps)
    one = tw.Stage(" ".join(names), rows=16)
    every = (tw.Stages(), tw.Stages(one), tw.Stages(one, threads=2))
    net, *others = tw.compile_many([(spec, each, target) for each in every[:: 1 + (rows == 32)]])
    pattern, entries = ENTRIES[target]
    for stages, entered in zip(every, entries, strict=True):
        text = generate([Request("net", spec, stages, isa)]).text
        assert re.findall(pattern, text, re.MULTILINE) == entered, stages
        loaded = re.findall(r"tiles_load\(&(tiles\d)\)", text)
        # In each product for the last rows of a block: another configuration, and back.
        blocks = target == "amx" and (rows == R or stages.stages != ())
        assert loaded[:-1] == ["tiles1", "tiles0"] * (3 * blocks)
    for count in (32,) if rows == 32 else (1, 37) if target == "amx" else (37,):
        given, weights = tensors(spec, count)
        packed: Any = net.pack(weights)
        wanted = net(*given, packed)
        for other in others:
            assert [m.tobytes() for m in other(*given, packed)] == [m.tobytes() for m in wanted]
        held = [memory(w) if type(w) is tw.PackedMatrix else w for w in packed.arrays]
        made = [np.zeros_like(each) for each in wanted]
        sizes = [count] if rows == R else []
        interpret_kernel(spec, every[1], isa, [*given, *held, *made], sizes)
        assert [m.tobytes() for m in made] == [each.tobytes() for each in wanted]
    cases.count(target, "interpreted", 1)


def test_blocks_of_more_rows_than_there_are_and_of_no_columns(cases: Cases) -> None:
    few = tw.network(lambda x, w: nn.sum(x @ w.a, keepdims=True))
    none = tw.network(lambda x, w: nn.product((x + 3).astype("u8"), w.a, a_zero=3) * 0.5)
    nets = tw.compile_many([
        (few.of(x=T("f32", (13, 48)), w={"a": T("f32", (48, 2))}),
         tw.Stages(tw.Stage("a sum0", rows=16), threads=2), "host"),
        (none.of(x=T("f32", (0, 3)), w={"a": T("s8", (3, 32))}),
         tw.Stages(tw.Stage("cast0 a", rows=4), threads=2), "host"),
        (tw.network(lambda x: x[:, :, 3:3]).of(x=T("f32", (B, 5, 16))),
         tw.Stages(tw.Stage("copy0", rows=1), threads=2), "host"),
    ])  # fmt: skip
    assert [net.verify(cases=1).cases for net in nets] == [1, 1, 1]
    cases.count("host", "native", 3)
