"""Row programs: right, within bounds, and the same to the bit on every target."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from support.cases import Cases
from support.spellings.arithmetic import halfway

import tilewright as tw
from tilewright import nn, targets
from tilewright.generate import interpret_kernel
from tilewright.ir.nest import When
from tilewright.ir.nodes import walk
from tilewright.ir.ops import Point, Prefetch
from tilewright.lower.rows.program import rows_program
from tilewright.plan.rows.plan import plan_rows
from tilewright.runtime.arrays.elements import encode
from tilewright.runtime.call.bound_sizes import value_of
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.reference.network import expected_of
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.network.value import slot
from tilewright.spec.sizes import Dim, Size
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import size_expr

ROWS, COLS = tw.dim("rows"), tw.dim("cols")


def normed(x: Any, w: Any, b: Any) -> Any:
    """Three passes, values of rows, operands of columns; a value that is held between passes."""
    y = tw.gelu_erf(nn.layer_norm(nn.softmax(x) * 8, w, b))
    return y, nn.max(y, keepdims=True)


def of_columns(x: Any, s: Any) -> Any:
    y = x - nn.mean(x, axis=0)
    return y * s, nn.max(abs(y), axis=0), nn.sum(y * y, axis=0)


def halved(x: Any, w: Any, b: Any) -> Any:
    return (nn.rms_norm(x, w) + b).astype("s8"), nn.min(x.astype("f32") * 3)


def wide(x: Any) -> Any:
    return x / tw.sqrt(nn.sum(x * x, keepdims=True) + 1), nn.max(x)


def narrowed(x: Any, y: Any) -> Any:
    """Arithmetic in f32 of an input of f64; results of f64, one of them an input of bytes."""
    z = nn.softmax(x.astype("f32"))
    return (tw.tanh(z) * y).astype("f64"), nn.sum(z * z).astype("f64"), y.astype("f64")


def widened(x: Any) -> Any:
    """Arithmetic in f64 of an input of f32, and results of f32."""
    z = nn.layer_norm(x.astype("f64"))
    return z.astype("f32"), nn.sum(z * z).astype("f32"), nn.max(z)


def tensors(rows: Any, cols: Any, type_: Any = "f32") -> dict[str, tw.Tensor]:
    full, column = tw.Tensor(type_, (rows, cols)), tw.Tensor("f32", cols)
    return {"x": full, "w": column, "b": column}


def _specs() -> dict[str, tuple[tw.Network, tuple[int, int]]]:
    single = tw.Tensor("f32", (ROWS, 1))
    return {
        "whole": (tw.network(normed).of(**tensors(2, 64)), (2, 64)),
        "tails": (tw.network(normed).of(**tensors(2, 85)), (2, 85)),
        "few": (tw.network(normed).of(**tensors(ROWS, 3)), (2, 3)),
        "dims": (tw.network(normed).of(**tensors(ROWS, COLS)), (2, 150)),
        "columns": (
            tw.network(of_columns).of(x=tw.Tensor("f32", (ROWS, COLS)), s=single), (6, 75)
        ),
        "bf16": (tw.network(halved).of(**tensors(ROWS, 70, "bf16")), (2, 70)),
        "f64": (tw.network(wide).of(x=tw.Tensor("f64", (ROWS, COLS))), (2, 77)),
        "from f64": (
            tw.network(narrowed).of(x=tw.Tensor("f64", (ROWS, 85)), y=tw.Tensor("u8", (ROWS, 85))),
            (2, 85),
        ),
        "in f64": (tw.network(widened).of(x=tw.Tensor("f32", (ROWS, COLS))), (2, 77)),
    }  # fmt: skip


SPECS = _specs()
#: The bits that the first target gave for each spec.
FIRST: dict[str, list[bytes]] = {}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("target", targets.NAMES)
def test_all_targets_give_the_same_bits(target: str, name: str, cases: Cases) -> None:
    spec, (rows, cols) = SPECS[name]
    known = {"rows": rows, "cols": cols}
    rng = np.random.default_rng(7)
    given = [
        encode(rng.standard_normal(_shape(each.shape, known)) * 3, each.type)
        for each in spec.inputs
    ]
    types = [result.tensor for result in spec.results if result.tensor is not None]
    made = [np.zeros(_shape(each.shape, known), DTYPES[each.type]) for each in types]
    sizes = [known[dim.name] for _, dim in spec.runtime_sizes()]
    interpret_kernel(spec, tw.Schedule(), targets.load(target), [*given, *made], sizes)
    cases.count(target, "interpreted", 1)
    assert [one.tobytes() for one in made] == FIRST.setdefault(name, [m.tobytes() for m in made])
    named = dict(zip((each.name for each in spec.inputs), given, strict=True))
    for one, right in zip(made, expected_of(spec, named, known).values(), strict=True):
        assert not right.wrong(one).any()


def _shape(sizes: Sequence[Size], known: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(value_of(size, known) for size in sizes)


def compiled(function: Callable[..., Any], schedule: Any = None, target: str = "host",
             **given: tw.Tensor) -> tw.Kernel:  # fmt: skip
    return tw.compile(tw.network(function).of(**given), schedule, target)


@pytest.mark.twice
@pytest.mark.parametrize("target", ["host", "avx2", "neon"])
def test_compiled_programs_are_verified(target: str, cases: Cases) -> None:
    kernels = tw.compile_many([(spec, None, target) for spec, _ in SPECS.values()])
    for kernel in kernels:
        assert kernel.verify(cases=3).max_error < 1
    cases.count(target, "native" if kernels[0].emulated is None else "qemu", 3 * len(kernels))


@pytest.mark.parametrize(("axis", "count", "target"), [(0, 12, "avx2"), (1, 24, "scalar")])
def test_more_values_may_be_alive_than_a_target_has_registers(
    axis: int, count: int, target: str
) -> None:

    def deep(x: Any) -> Any:
        values = [tw.abs(x - 0.25 * number) for number in range(count)]
        ends = values[0]
        for each in (*values, *values):
            ends = each / (1 + abs(ends))
        return ends, *(nn.sum(each, axis) for each in values)

    kernel = compiled(deep, target=target, x=tw.Tensor("f32", (ROWS, COLS)))
    assert kernel.verify(cases=1).cases == 1


def test_names_of_tensors_are_free() -> None:
    """One has the name of a function, and two end as names in C do."""

    def named(exp: Any, x: Any, x_: Any, out_: Any) -> Any:
        return tw.exp(x * x_ - exp) * exp + nn.max(out_, keepdims=True) - out_

    x = tw.Tensor("f32", (ROWS, 20))
    assert compiled(named, exp=x, x=x, x_=x, out_=x).verify(cases=1).cases == 1


@pytest.mark.parametrize("type_", ["f16", "bf16", "f8_e4m3", "f8_e5m2", "s8", "u8", "s32"])
def test_types_go_in_and_out(type_: Any) -> None:
    def requantized(x: Any) -> Any:
        return tw.clip(x * 1.5 + 1, -90, 90).astype(type_), nn.max(x).astype(type_), nn.sum(x)

    kernel = compiled(requantized, x=tw.Tensor(type_, (ROWS, 53)))
    assert kernel.verify(cases=3).cases == 3


def test_casts_between_f32_and_f64_round_as_numpy_does() -> None:
    x = halfway()[:4200].reshape(-1, 42)
    narrow = compiled(lambda x: x.astype("f32"), x=tw.Tensor("f64", (ROWS, 42)))(x)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(narrow, x.astype(np.float32))
    total = compiled(
        lambda x: nn.sum(x.astype("f64")).astype("f32"), x=tw.Tensor("f32", (ROWS, 42))
    )
    y = np.where(np.abs(narrow) < 1e9, narrow, np.float32(1 / 3))
    right = [math.fsum(row) for row in y.astype(np.float64).tolist()]
    np.testing.assert_allclose(total(y), right, rtol=2**-23, atol=1e-6)
    assert not np.array_equal(total(y), y.sum(1)), "numpy sums in f32"


@pytest.mark.parametrize("size", [40, COLS])
def test_results_of_one_axis_and_of_none_are_made(size: Any) -> None:
    x = np.arange(120, dtype=np.float32).reshape(3, 40)
    kernel = compiled(
        lambda x: (nn.mean(x, axis=0), nn.sum(x, axis=0)), x=tw.Tensor("f32", (3, size))
    )
    np.testing.assert_array_equal(kernel(x)[0], x.mean(axis=0))
    np.testing.assert_array_equal(kernel(x)[1], x.sum(axis=0))
    vector = compiled(lambda x, s: nn.sum(x * s), x=tw.Tensor("f32", size), s=tw.Tensor("f32", ()))
    assert vector(x[0], 2) == 2 * x[0].sum()


def test_nan_infinity_and_no_elements_are_as_in_numpy() -> None:
    x = np.zeros((4, 40), np.float32)
    x[0, 39], x[1, 7], x[2] = np.nan, np.inf, -np.inf
    kernel = compiled(lambda x: (nn.max(x), nn.min(x), nn.sum(x)), x=tw.Tensor("f32", (ROWS, COLS)))
    with np.errstate(invalid="ignore"):
        for found, right in zip(kernel(x), (x.max(1), x.min(1), x.sum(1)), strict=True):
            np.testing.assert_array_equal(found, right)
    total = compiled(nn.sum, x=tw.Tensor("f32", (ROWS, COLS)))
    np.testing.assert_array_equal(total(np.ones((3, 0), np.float32)), np.zeros(3))
    with pytest.raises(tw.ArgumentError, match="no elements"):
        kernel(np.ones((3, 0), np.float32))


#: Arguments of exp where it begins to be subnormal, 0, or infinite, and beyond.
EDGES = (-np.inf, -3e38, -177.0, -176.0, -104.0, -103.9, -95.0, -87.4, -87.3, -0.0, 0.0, 1.0, 88.0,
         88.73, 1e30, np.inf, np.nan)  # fmt: skip


@pytest.mark.parametrize("target", targets.NAMES)
def test_exp_is_the_same_at_its_edges_on_every_target(target: str) -> None:
    def both(x: Any) -> Any:
        return tw.exp(x), nn.softmax(x)

    x = np.array([[edge, 2, -1] for edge in EDGES], np.float32)
    spec = tw.network(both).of(x=tw.Tensor("f32", x.shape))
    made = [np.zeros_like(x), np.zeros_like(x)]
    interpret_kernel(spec, tw.Schedule(), targets.load(target), [x, *made], [])
    with np.errstate(all="ignore"):
        right = np.exp(x.astype(np.float64))
        shifted = np.exp(x - x.max(1, keepdims=True).astype(np.float64))
        share = shifted / shifted.sum(1, keepdims=True)
        # Two units in the last place; a subnormal number has a fixed one.
        for found, want in zip(made, (right, share), strict=True):
            np.testing.assert_allclose(found, want.astype(np.float32), rtol=4e-7, atol=3e-45)
    bits = [np.where(np.isnan(one), np.float32(np.nan), one).tobytes() for one in made]
    assert bits == FIRST.setdefault("edges", bits)


def test_results_go_where_the_call_says() -> None:
    step = tw.dim("step")
    kernel = compiled(nn.softmax, x=tw.Tensor("f32", (ROWS, 90)))
    x = np.random.default_rng(0).standard_normal((5, 90)).astype(np.float32)
    right = kernel(x)
    assert kernel(x=x, out=x) is x
    np.testing.assert_array_equal(x, right)
    strided = compiled(nn.softmax, x=tw.Tensor("f32", (ROWS, 90), (step, 1)))
    np.testing.assert_array_equal(strided(np.tile(right, 2)[:, :90]), kernel(right))
    with pytest.raises(tw.ArgumentError, match=r'strides=\(tw\.dim\("x_step"\), 1\)'):
        kernel(np.tile(right, 2)[:, :90])

    both = compiled(lambda x: (x * 2, nn.max(x)), x=tw.Tensor("f32", (ROWS, 90)))
    outs = np.empty_like(right), np.empty(5, np.float32)
    assert all(a is b for a, b in zip(both(right, out=outs), outs, strict=True))
    np.testing.assert_array_equal(outs[1], both(right)[1])
    with pytest.raises(tw.ArgumentError, match="a tuple with an array for each"):
        both(right, out=outs[0])


@pytest.mark.parametrize("schedule", [tw.Schedule(threads=2), tw.Schedule(tile=(1, 16))])
@pytest.mark.parametrize("function", [nn.softmax, lambda x: nn.sum(x, axis=0)])
def test_schedules_keep_the_bits(function: Any, schedule: tw.Schedule) -> None:
    x = np.random.default_rng(1).standard_normal((70, 1000)).astype(np.float32)
    first, other = (
        compiled(function, how, x=tw.Tensor("f32", (ROWS, COLS))) for how in (None, schedule)
    )
    np.testing.assert_array_equal(first(x), other(x))
    assert other.schedule.tile is not None
    assert "Pass over" in other.source
    assert "cut at the reductions" in other.explain(rows=70)


@pytest.mark.parametrize(
    ("function", "shape", "type_", "together", "prefetching"),
    [
        (nn.softmax, (4096, 512), "f32", 4, 1),  # exp, in the pass that sums
        (nn.softmax, (4096, 4096), "f32", 1, 1),  # a row fills the first cache
        (nn.softmax, (4096, 512), "bf16", 4, 1),  # the pass does not visit the result
        (nn.softmax, (ROWS, COLS), "f32", 1, 1),
        (nn.softmax, (1, 512), "f32", 1, None),
        (nn.rms_norm, (64, 512), "f32", 4, None),  # in L2, little arithmetic
        (nn.rms_norm, (4096, 512), "f32", 1, None),  # in memory
        (lambda x: tw.gelu_tanh(nn.rms_norm(x)), (4096, 512), "f32", 4, 1),
    ],
)
def test_rows_of_the_next_block_are_prefetched_if_arithmetic_hides_the_transfers(
    function: Any, shape: tuple[Size, Size], type_: Any, together: int, prefetching: int | None
) -> None:
    spec, target = tw.network(function).of(x=tw.Tensor(type_, shape)), resolve("avx512+zen4")
    plan = plan_rows(spec, tw.Schedule(), target)
    assert (plan.together, plan.prefetching) == (together, prefetching)
    found: dict[str, list[Any]] = {}
    ops = [op for tile in rows_program(plan).tiles for op in walk(tile.end)]
    for op in ops:
        if isinstance(op, Prefetch):
            found.setdefault(op.address.pointer, []).append(op.address.offset)
    arrays = {op.base for op in ops if isinstance(op, Point) and op.pointer in found}
    assert arrays == (set() if prefetching is None else {"x_", "out"})
    ahead, line = together * size_expr(slot(shape[1]), shape[1]), 64 // ITEMSIZE[type_]
    trip = plan.unroll(plan.passes[1]) * plan.periods(plan.passes[1])
    columns = range(0, trip * plan.vector.lanes, line)
    for offsets in found.values():
        assert set(offsets) == {ahead + column for column in columns}


def test_an_estimate_grows_with_the_rows_and_names_its_bound() -> None:
    kernel = compiled(nn.softmax, x=tw.Tensor("f32", (ROWS, 96)))
    said = [
        kernel.explain(rows=rows).rpartition("Estimate of one call with")[2] for rows in (40, 400)
    ]
    found = [re.search(r"in cache +(\d+) cycles, \d+% of peak, bound by (.*)", one) for one in said]
    few, many = (int(one[1]) for one in found if one)
    assert 9.5 < many / few < 10.5
    assert "rows_ = 400" in said[1]


@pytest.mark.parametrize("cols", [5, 85, tw.dim("cols")])
def test_only_sizes_of_the_call_are_compared(cols: Any) -> None:
    """The last columns have a condition only if the call decides whether there are any."""
    spec = tw.network(lambda x: nn.sum(x, axis=0)).of(x=tw.Tensor("f32", (7, cols)))
    program = rows_program(plan_rows(spec, tw.Schedule(), resolve("avx2")))
    conditions = [node.count for node in walk(program.nest) if isinstance(node, When)]
    assert len(conditions) == isinstance(cols, Dim)


def test_variants_are_the_widths_that_a_schedule_may_have() -> None:
    spec = tw.network(nn.softmax).of(x=tw.Tensor("f32", (ROWS, COLS)))
    found = list(tw.variants(spec, "avx2", threads=2))
    assert {one.tile for one in found} == {(1, 8), (1, 16), (1, 32), (1, 64)}
    assert {one.threads for one in found} == {None, 2}
