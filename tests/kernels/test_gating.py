"""A second B: its product beside the first one's, by every kind of batch, type and loop."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import Cases, sampled
from support.products.fused import Kernels, Trial, equal, operands, product, same
from support.products.packed import DTYPES

from tilewright.generate import Request, generate
from tilewright.runtime.driver import compile, compile_many
from tilewright.runtime.machine.host import resolve
from tilewright.spec.expression import Operand, acc, acc2
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Addresses, Batch, Matrix, Offsets, Order, Packed, Strided
from tilewright.spec.postops import logistic, maximum, silu
from tilewright.spec.reductions import row_absmax, row_sum
from tilewright.spec.schedule import Schedule
from tilewright.spec.signature import signature
from tilewright.spec.sizes import dim

TARGETS = ("scalar", "avx2", "avx512", "amx", "neon", "neon+dotprod+i8mm+bf16")
every_target = pytest.mark.parametrize("target", TARGETS)
F32 = np.float32
ORDERS: tuple[Order, Order] = ("C", "F")
M, N, K, COUNT = dim("m"), dim("n"), dim("k"), dim("count")
SIZES = {"m": 19, "n": 37, "k": 9, "count": 2}
bias = Operand("bias", "f32", "column")
OUTPUTS = {"amax": row_absmax(acc * acc2), "total": row_sum(acc2)}
TYPES: Any = (
    ("f32", "f32", "f32"),
    ("u8", "s8", "s8"),
    ("bf16", "bf16", "bf16"),
    ("f16", "f16", "f32"),
)


def gated(*sizes: Any, a: Any = "f32", b: Any = "f32", **more: Any) -> Gemm:
    """The larger of ``acc + bias`` and ``acc2``."""
    return Gemm(*sizes, a=a, b=b, **{"b2": b, "epilogue": maximum(acc + bias, acc2), **more})


def tiles(target: str) -> list[Trial]:
    """Orders and types by schedules."""
    tile = (2, 2) if target == "scalar" else (4, 6)
    schedules = (
        Schedule(),
        Schedule(tile=tile, loops="knm", k_unroll=3),
        Schedule(vectorize="m"),
        Schedule(loops="NMk", threads=2),
    )
    found = []
    for index, schedule in enumerate(schedules):
        outputs = {} if schedule.threads else OUTPUTS
        for order in ORDERS:
            for step in range(2):
                a, b, d = TYPES[(index + step + 2 * (order == "F")) % 4]
                sizes = (M, N, K) if step and schedule.tile is None else (13, 21, 17)
                spec = gated(*sizes, order=order, a=a, b=b, d=d, beta=step, outputs=outputs)
                found.append(Trial(spec, schedule, SIZES))
    return found


def batches(_: str) -> list[Trial]:
    """Every kind of batch, inside of the accumulators' loops and outside."""
    kinds: tuple[Batch, ...] = (
        Strided(3), Strided(3, b=0), Strided(COUNT), Strided(0), Addresses(3), Addresses(COUNT),
    )  # fmt: skip
    found = []
    for index, batch in enumerate(kinds):
        for loops in (None, "bnmk"):
            a, b, _ = TYPES[(index + bool(loops)) % 2]
            spec = gated(7, 21, 5, a=a, b=b, d="f32", batch=batch)
            found.append(Trial(spec, Schedule(loops=loops), SIZES))
    return found


def others(_: str) -> list[Trial]:
    """Zero points, factors, vectors along K, few elements, f64, s32."""
    zeros: Any = {"a": "u8", "b": "u8", "d": "s32", "a_zero": 3, "b_zero": 2}
    whole = {**zeros, "epilogue": acc + acc2 - 4, "alpha": 2, "beta": -1}
    found = [Trial(gated(5, 19, 7, **whole)), Trial(gated(5, 19, 7, **zeros, order="F"))]
    for schedule in (Schedule(vectorize="k"), Schedule(vectorize="k", loops="knm", k_unroll=8)):
        b = Matrix("f32", "F")
        found += [Trial(gated(7, 9, 21, b=b, d=Matrix("f32", o)), schedule) for o in ORDERS]
    found += [Trial(gated(*s)) for s in ((0, 9, 3), (9, 0, 3), (9, 5, 0), (1, 9, 3), (9, 1, 3))]
    found.append(Trial(gated(7, 9, 3, a="f64", b="f64", epilogue=acc * acc2 - acc)))
    return found


def expected(trial: Trial, given: dict[str, Any]) -> dict[str, Any]:
    """D and the outputs."""
    spec = trial.spec
    zeros = {"a": spec.a_zero or 0, "b": spec.b_zero or 0, "b2": spec.b_zero or 0}
    moved = dict(given)
    for name, zero in zeros.items():
        if zero:
            moved[name] = given[name].astype(np.int64) - zero
    real = np.float64 if spec.type == "f64" else F32
    alpha, beta = float(spec.alpha), float(spec.beta)
    old = beta * given["c"].astype(np.float64) if beta else 0
    one: Any = (alpha * product(trial, moved) + old).astype(real)
    two: Any = (alpha * product(trial, moved, "b2")).astype(real)
    shifted = one + given["bias"] if "bias" in given else one
    value = np.maximum(shifted, two) if "bias" in given else one + two - 4
    if spec.type == "f64":
        value = one * two - one
    assert spec.d is not None
    if spec.d.type == "s8":
        value = np.clip(value, -128, 127)
    values = {"amax": np.abs(one * two).max(axis=1, initial=0), "total": two.sum(axis=1)}
    return {"out": value.astype(DTYPES[spec.d.type]), **values}


@every_target
@pytest.mark.parametrize("which", [tiles, batches, others], ids=["tiles", "batches", "others"])
def test_acc2_is_the_product_with_b2(target: str, which: Any, tmp_path: Path, cases: Cases) -> None:
    kernels = Kernels(target, sampled(target, which(target), 4), tmp_path)
    for i, trial in enumerate(kernels.trials):
        given = operands(trial, np.random.default_rng(i))
        found, right = kernels(i, given), expected(trial, given)
        for name, array in found.items():
            assert equal(array, right[name].astype(array.dtype)), (name, trial)
        cases.count(target, kernels.lab.means)


def test_offsets_of_b_are_those_of_b2(tmp_path: Path) -> None:
    """Matrices apart in one flat array; the first and second offsets of A overlap."""
    rng = np.random.default_rng(0)
    batches_: tuple[Offsets, ...] = (Offsets(2), Offsets(2, a=[3, 8], b=[100, 0]))
    trials = [
        Trial(gated(4, 5, 6, batch=batch), Schedule(loops=loops))
        for batch in batches_
        for loops in ("nmbk", "bnmk")
    ]
    kernels = Kernels("avx2", trials, tmp_path)
    a, b, b2 = (rng.integers(-4, 5, size).astype(F32) for size in (8 + 24, 130, 130))
    at_a, at_b = [3, 8], [100, 0]
    given = {"a": [a], "b": [b], "b2": [b2], "bias": np.zeros(5, F32)}
    given |= {"a_offsets": at_a, "b_offsets": at_b}
    one, two = (
        sum(a[i : i + 24].reshape(4, 6) @ x[j : j + 30].reshape(6, 5)
            for i, j in zip(at_a, at_b, strict=True))
        for x in (b, b2)
    )  # fmt: skip
    for i in range(len(trials)):
        assert equal(kernels(i, given)["out"], np.maximum(one, two)), trials[i]


def test_scales_and_alpha_apply_to_both(tmp_path: Path) -> None:
    spec = gated(6, 17, 5, a="s8", b="s8", d="f32", alpha=0.5, beta=1, a_scale="row",
                 b_scale="column", epilogue=acc * 1024 + acc2)  # fmt: skip
    kernels = Kernels("avx2", [Trial(spec), Trial(spec, Schedule(loops="knm"))], tmp_path)
    for i, trial in enumerate(kernels.trials):
        given = operands(trial, np.random.default_rng(i))
        scale = given["a_scale"][:, None] * given["b_scale"]
        one = (0.5 * product(trial, given) + given["c"]) * scale
        two = 0.5 * product(trial, given, "b2") * scale
        assert equal(kernels(i, given)["out"], (one * 1024 + two).astype(F32))


@every_target
def test_swiglu(target: str, tmp_path: Path) -> None:
    """What gating is for: ``silu(A B) * (A B2)``, and the same written out, in bf16."""
    written = acc * logistic(acc) * acc2
    specs = [
        Gemm(5, 33, 16, a="bf16", b="bf16", d="f32", b2="bf16", epilogue=e)
        for e in (silu(acc) * acc2, written)
    ]
    kernels = Kernels(target, [Trial(spec) for spec in specs], tmp_path)
    given = operands(kernels.trials[0], np.random.default_rng(0))
    one, two = product(kernels.trials[0], given), product(kernels.trials[0], given, "b2")
    exact = one / (1 + np.exp(-one)) * two
    for i in range(2):
        found = kernels(i, given)["out"]
        assert np.all(np.abs(found - exact) <= 1e-6 * np.abs(exact) + 1e-30)


STACKS: tuple[dict[str, Any], ...] = (
    {"a": "f32", "b": "f32", "order": "F"},
    {"a": "bf16", "b": Packed("bf16", 16), "beta": 1},
    {"a": "u8", "b": Packed("s8"), "b_scale": "column"},
    {"a": "f32", "b": "f32", "lda": dim("lda"), "ldb": dim("ldb")},
)


@every_target
def test_each_product_of_a_stack_has_a_b2_of_its_own(target: str, cases: Cases) -> None:
    batches = Strided(3, c=None), Strided(COUNT, c=dim("stride_c")), Strided(2, b=0, c=None)
    specs = []
    for index, more in enumerate(STACKS):
        batch = batches[index % 2 if isinstance(more["b"], str) else 0]
        specs.append(gated(M, 37, 9, **more, d="f32", batch=batch))
    specs.append(gated(5, 17, 8, d="f32", batch=batches[2]))
    for kernel in compile_many([(spec, None, target) for spec in specs]):
        kernel.verify(cases=3)
        cases.count(target, kernel.emulated or "native", 3)


def test_a_product_that_nothing_uses_is_a_parameter_all_the_same() -> None:
    spec = Gemm(6, 17, 5, b2="f32", d="f32", epilogue=acc2 * 2)
    compile(spec, target="avx2").verify()


def test_b2_follows_b_among_the_parameters() -> None:
    names = [p.name for p in signature(gated(4, 5, 6, beta=1, d="f32", a_scale="row")).arrays]
    assert names == ["a", "b", "b2", "c", "d", "a_scale", "bias"]
    spec = Gemm(4, 5, 6, b2="f32", epilogue=acc * acc2 + bias, outputs={"amax": row_sum(acc)})
    assert [p.name for p in signature(spec).arrays] == ["a", "b", "b2", "d", "amax", "bias"]


def test_both_products_share_their_tiles_where_sums_lie_in_buffers() -> None:
    schedule = Schedule(loops="knm", k_unroll=8, tile=(4, 16))
    request = Request("k", gated(8, 16, 16, d="f32"), schedule, resolve("avx2"))
    text = generate([request]).text
    called: dict[str, set[str]] = {}
    for name, operand in re.findall(r"^ +(tile\w+)\(a[^,]*, (b2?)\b", text, re.MULTILINE):
        called.setdefault(name, set()).add(operand)
    assert list(called.values()) == [{"b", "b2"}] * 2, "the first block of K, and the others"


def test_an_unused_product_changes_nothing(tmp_path: Path) -> None:
    plain = Gemm(6, 17, 5, epilogue=acc + bias)
    idle = gated(6, 17, 5, epilogue=acc + bias + 0 * acc2)
    kernels = Kernels("avx2", [Trial(plain), Trial(idle)], tmp_path)
    given = operands(kernels.trials[1], np.random.default_rng(0))
    assert same(kernels(0, given)["out"], kernels(1, given)["out"])
