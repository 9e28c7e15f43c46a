"""Rows of a tensor replaced and added to: ``nn.scatter`` and ``nn.scatter_add``."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cases import Cases

import tilewright as tw
from tilewright import nn, targets
from tilewright.cli.code import spec_of_code
from tilewright.generate import interpret_kernel

N, R, C, LD = tw.dim("n"), tw.dim("r"), tw.dim("c"), tw.dim("ld")
TYPES: dict[str, Any] = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "s32": np.int32, "u8": np.uint8,
}  # fmt: skip


def t(*shape: Any, type: Any = "f32", strides: Any = None) -> tw.Tensor:
    return tw.Tensor(type, shape, strides=strides)


def added(type: str = "f32", **changes: Any) -> tw.Network:
    given = {"base": t(N, C, type=type), "index": t(R, type="s64"), "rows": t(R, C, type=type)}
    return tw.network(nn.scatter_add).of(**(given | changes))


def arrays(n: int, r: int, c: int, type: str = "f32") -> tuple[Any, Any, Any]:
    """A tensor, numbers of rows that repeat and leave it at both ends, and rows."""
    rng = np.random.default_rng(n + 7 * r + 31 * c)
    most = 100 if type in ("s32", "u8") else 3
    base, rows = ((rng.random((k, c)) * most).astype(TYPES[type]) for k in (n, r))
    return base, rng.integers(-n - 2, n + 2, r), rows


def one_by_one(base: Any, index: Any, rows: Any) -> Any:
    """The sums of the rows one after another, each rounded as numpy converts it."""
    wide = np.float64 if base.dtype == np.float64 else np.float32
    found = base.copy()
    for at, row in zip(index, rows, strict=True):
        place = min(max(at + len(base) * (at < 0), 0), len(base) - 1)
        total = found[place].astype(wide) + row.astype(wide)
        if base.dtype.kind in "iu":
            total = total.clip(np.iinfo(base.dtype).min, np.iinfo(base.dtype).max)
        found[place] = total.astype(base.dtype)
    return found


SIZES = [(5, 40, 19), (3, 0, 7), (1, 9, 1), (4, 3, 0)]


@pytest.mark.twice
@pytest.mark.parametrize("target", ["host", "neon", "rvv256"])
def test_sums_have_the_bits_of_one_addition_after_another(target: str, cases: Cases) -> None:
    kernels = tw.compile_many([(added(type), None, target) for type in TYPES])
    for type, kernel in zip(TYPES, kernels, strict=True):
        for size in SIZES if target == "host" else SIZES[:1]:
            given = arrays(*size, type)
            found = kernel(*given)
            assert found.tobytes() == one_by_one(*given).tobytes(), (type, size)
            cases.count(target, "native" if kernel.emulated is None else "qemu", 1)
    base, index, rows = arrays(5, 40, 19, "f64")
    right, inside = base.copy(), np.clip(index, -5, 4)
    np.add.at(right, inside, rows)
    np.testing.assert_array_equal(kernels[1](base, index, rows), right)


@pytest.mark.parametrize("target", targets.NAMES)
def test_the_interpreter_adds_rows_on_all_targets(target: str, cases: Cases) -> None:
    base, index, rows = arrays(5, 9, 19, "bf16")
    made = np.zeros_like(base)
    bits = [each.view(np.uint16) for each in (base, rows, made)]
    spec = added("bf16")
    known = {"n": 5, "r": 9, "c": 19}
    sizes = [known[dim.name] for _, dim in spec.runtime_sizes()]
    given = [bits[0], index, *bits[1:]]
    interpret_kernel(spec, tw.Schedule(), targets.load(target), given, sizes)
    assert made.tobytes() == one_by_one(base, index, rows).tobytes()
    cases.count(target, "interpreted", 1)


@pytest.mark.parametrize("target", ["host", "neon", "rvv256"])
def test_the_last_row_of_a_number_stays(target: str, cases: Cases) -> None:
    """Elements are moved: also integers that are no f32."""
    types = ("f32", "s32", "bf16")
    given = [{"base": t(N, C, type=type), "rows": t(R, C, type=type)} for type in types]
    given.append({"base": t(N, C, type="bf16"), "rows": t(R, C)})
    scatter = tw.network(nn.scatter)
    specs = [scatter.of(**each, index=t(R, type="s32")) for each in given]
    kernels = tw.compile_many([(spec, None, target) for spec in specs])
    for type, spec, kernel in zip((*types, "bf16"), specs, kernels, strict=True):
        base, index, rows = arrays(5, 40, 19, type)
        if type == "s32":
            base, rows = base + 2**30, rows + 2**24 + 1
        if spec is specs[-1]:
            rows = np.random.default_rng(3).random(rows.shape, np.float32)
        right = base.copy()
        for at, row in zip(np.clip(index, -5, 4), rows, strict=True):
            right[at] = row.astype(base.dtype)
        found = kernel(base, index.astype(np.int32), rows)
        assert found.tobytes() == right.tobytes(), type
        cases.count(target, "native" if kernel.emulated is None else "qemu", 1)


def twice(x: Any, i: Any, y: Any) -> Any:
    """Both sums are in the memory of the result, without a copy between them."""
    return nn.scatter_add(nn.scatter_add(tw.relu(x), i, y), i, y * 2).reshape(-1)


def kept(x: Any, i: Any, y: Any) -> Any:
    """The base is a result, and read by others: it must not change."""
    h = tw.tanh(x)
    joined = nn.concat((h, y[:2]))
    return h, nn.scatter_add(h, i, y), nn.scatter_add(joined, i, y) - nn.concat((h, h[:2]))


def cached(q: Any, k: Any, v: Any, keys: Any, values: Any, at: Any) -> Any:
    """A step of decoding: attention over caches, into which new rows are written first."""
    keys, values = nn.scatter(keys, at, k), nn.scatter(values, at, v)
    return nn.attention(q, keys, values), keys, values


def decoded(q: Any, k: Any, v: Any, keys: Any, values: Any, at: Any) -> Any:
    """The same for several heads, which are the second axis."""
    keys, values = nn.scatter(keys, at, k), nn.scatter(values, at, v)
    q, heads, others = (x.swapaxes(0, 1) for x in (q, keys, values))
    return nn.attention(q, heads, others).swapaxes(0, 1), keys, values


def experts(x: Any, i: Any, y: Any, w: Any) -> Any:
    return nn.scatter_add(nn.full((6, 40), 0), i, tw.relu(nn.take(x, i) @ w.up) @ w.down + y)


NINE = {"x": t(6, 40), "i": t(9, type="s32"), "y": t(9, 40)}
#: Networks, and what they compute of arrays with indices that are in order.
NETWORKS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "twice": (twice, NINE),
    "kept": (kept, NINE),
    "cached": (
        cached,
        {"q": t(2, 16), "k": t(2, 16), "v": t(2, 16), "keys": t(24, 16), "values": t(24, 16),
         "at": t(2, type="s32")},
    ),
    "experts": (experts, NINE | {"w": {"up": t(40, 24), "down": t(24, 40)}}),
    "columns": (lambda x, i, y: nn.scatter_add(x.T, i, y.T).T * 2,
                {"x": t(C, 6), "i": t(R, type="u8"), "y": t(C, R, type="f16")}),
    "matrices of rows": (
        lambda x, i, y: nn.concat((nn.scatter_add(x, i, y), x), axis=1),
        {"x": t(4, 3, 8, type="bf16"), "i": t(2, R, type="s32"), "y": t(2, R, 3, 8)},
    ),
    "rows with gaps": (
        nn.scatter_add,
        {"base": t(6, C, strides=(LD, 1)), "index": t(R, type="s32"), "rows": t(R, C),
         "out": t(6, C, strides=(tw.dim("step"), 1))},
    ),
    "numbers that are computed": (
        lambda x, i: nn.scatter_add(x, (i * 0.5).astype("s32"), nn.expand(i[:, None], (R, 5))),
        {"x": t(6, 5, type="s8"), "i": t(R, type="s8")},
    ),
    "rows of weights": (
        lambda x, w: x + nn.scatter_add(w.a, w.i, w.b)[0],
        {"x": t(R, 8), "w": {"a": t(4, 8), "i": t(3, type="s32"), "b": t(3, 8)}},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def specs() -> dict[str, tw.Network]:
    return {name: tw.network(f).of(**given) for name, (f, given) in NETWORKS.items()}


@pytest.mark.parametrize("target", ["host", "neon"])
def test_networks_that_add_rows(specs: dict[str, tw.Network], target: str, cases: Cases) -> None:
    asked = [
        (spec, tw.Schedule(threads=2 if number % 2 else None), target)
        for number, spec in enumerate(specs.values())
    ]
    for name, kernel in zip(specs, tw.compile_many(asked), strict=True):
        assert kernel.verify(cases=2).cases == 2, name
        cases.count(target, "native" if kernel.emulated is None else "qemu", 2)


def test_stages_threads_and_memory(specs: dict[str, tw.Network]) -> None:
    """Rows are added in place; two threads share columns, and change no bit."""
    for name, lines in (("twice", 2), ("kept", 2), ("experts", 1)):
        text = tw.compile(specs[name], target="avx2").explain()
        stages = [line for line in text.splitlines() if "= nn.scatter_add(" in line]
        assert len(stages) == lines, text
        if name == "twice":
            assert "scatter_add1: out = nn.scatter_add(out, i, " in text and "copy" not in text
    spec = added(base=t(64, 768), rows=t(R, 768))
    one, two = tw.compile(spec), tw.compile(spec, tw.Schedule(threads=2))
    assert "2   (in parallel)" in two.explain()
    rng = np.random.default_rng(2)
    base, rows = (rng.random((k, 768)).astype(np.float32) for k in (64, 600))
    given = base, rng.integers(0, 64, 600), rows
    assert two(*given).tobytes() == one(*given).tobytes() == one_by_one(*given).tobytes()
    for kernel in (one, two):
        changed = base.copy()
        assert kernel(changed, *given[1:], out=changed) is changed
        assert changed.tobytes() == one_by_one(*given).tobytes()


@pytest.mark.parametrize("target", ["host", "neon"])
@pytest.mark.parametrize("heads", [(), (3,)], ids=["matrices", "three axes"])
def test_caches_are_updated_in_place(target: str, heads: tuple[int, ...], cases: Cases) -> None:
    """Results in the memory of the caches have the bits of new ones; two may not be exchanged."""
    given = {name: t(2, *heads, 16) for name in "qkv"}
    given |= {name: t(24, *heads, 16) for name in ("keys", "values")} | {"at": t(2, type="s32")}
    spec = tw.network(decoded if heads else cached).of(**given)
    net = tw.compile(spec, tw.Schedule(threads=2), target=target)
    rng = np.random.default_rng(1)
    shapes = [(2, *heads, 16)] * 3 + [(24, *heads, 16)] * 2
    *tensors, keys, values = (rng.random(shape, np.float32) for shape in shapes)
    at = np.array([7, -1], np.int32)
    y, *right = net(*tensors, keys, values, at)
    out = np.empty_like(y)
    refused = [out, values, keys]
    with pytest.raises(tw.ArgumentError, match="out1 shares elements with values"):
        net(*tensors, keys, values, at, out=tuple(refused))
    found = net(*tensors, keys, values, at, out=(out, keys, values))
    assert found[1] is keys and found[2] is values
    for one, other in zip((y, *right), found, strict=True):
        assert one.tobytes() == other.tobytes()
    cases.count(target, "native" if net.emulated is None else "qemu", 2)


def test_an_input_that_others_read_is_not_overwritten() -> None:
    def both(x: Any, i: Any, y: Any) -> Any:
        return nn.scatter(x, i, y), x * 2

    net = tw.compile(tw.network(both).of(**NINE))
    x, y = np.ones((6, 40), np.float32), np.zeros((9, 40), np.float32)
    with pytest.raises(tw.ArgumentError, match="out0 shares elements with x"):
        net(x, np.zeros(9, np.int32), y, out=(x, np.empty_like(x)))
    assert (x == 1).all()


def test_stages_before_change_no_bit_and_adding_is_not_row_by_row(
    specs: dict[str, tw.Network],
) -> None:
    joined = tw.Stages(tw.Stage("up down", rows=2), threads=2)
    one, other = (tw.compile(specs["experts"], each) for each in (None, joined))
    x, y = (np.random.default_rng(k).random((k, 40)).astype(np.float32) for k in (6, 9))
    numbers = np.array([5, 0, 5, 5, -1, 3, 3, 9, 0], np.int32)
    packed = one.pack({"up": np.ones((40, 24), np.float32), "down": np.resize(x, (24, 40))})
    assert other(x, numbers, y, packed).tobytes() == one(x, numbers, y, packed).tobytes()
    apart = tw.Stages(tw.Stage("down full0 scatter_add0", rows=2))
    with pytest.raises(tw.ScheduleError, match="scatter_add0 computes"):
        tw.compile(specs["experts"], apart)


def test_a_network_that_adds_rows_is_a_value(specs: dict[str, tw.Network]) -> None:
    given = {"base": t(N, C), "index": t(R, type="s64"), "rows": t(R, C)}
    replaced = tw.network(nn.scatter).of(**given)
    assert replaced != added() and "nn.scatter(base" in repr(replaced)
    for spec in (added(), replaced, *specs.values()):
        assert spec_of_code(repr(spec)) == spec and pickle.loads(pickle.dumps(spec)) == spec
        assert hash(spec_of_code(repr(spec))) == hash(spec)
    other = tw.network(lambda base, index, rows: nn.scatter_add(base, index, rows + 0))
    assert other.of(**given) != added()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"index": t(R)}, "of integers"),
        ({"base": t(0, C)}, "one or more rows"),
        ({"base": t(N, C, type="s64")}, "of integers"),
        ({"rows": t(R, 1)}, r"rows of shape \(r, c\)"),
        ({"rows": t(C, R)}, r"rows of shape \(r, c\)"),
        ({"index": t(type="s32")}, r"rows of shape \(c,\)"),
        ({"base": t(N, C, type="f64")}, "mixes f64"),
        ({"rows": t(R, C, type="s64")}, "of integers"),
    ],
)
def test_what_is_added_to_no_rows_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(tw.SpecError, match=says):
        added(**changes)


@pytest.mark.parametrize("way", ["np.add.at", "x[i] + y"])
def test_the_ways_of_numpy_are_refused_with_ours(way: str) -> None:
    def function(x: Any, i: Any, y: Any) -> Any:
        if way == "np.add.at":
            np.add.at(x, i, y)
        return x[i] + y

    with pytest.raises(tw.SpecError, match=r"nn\.scatter_add"):
        tw.network(function).of(**NINE)


def test_a_call_without_rows_to_add_to_is_refused() -> None:
    base, index, rows = arrays(3, 2, 4)
    with pytest.raises(tw.ArgumentError, match="n"):
        tw.compile(added())(base[:0], index, rows)
