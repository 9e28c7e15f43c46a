"""Sums in f16: only where a spec asks for them, in the order that is promised, and no worse."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.compilers import FAMILIES, use
from support.products.interpreted import Interpreted

import tilewright as tw
from benchmarks.measure.spills import functions
from tilewright.errors import ScheduleError, SpecError
from tilewright.generate import Request, generate, plan_for
from tilewright.runtime.build.toolchain import compile_library, disassemble
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.reference.gemm import expected

Array = np.ndarray[Any, Any]
HALF = "avx512+fp16"
BIAS = tw.Operand("bias", "f32", per="row")
#: The order in which sums are added is known where there is one set of them.
ONE = tw.Schedule(k_split=1)


def halves(*sizes: Any, **more: Any) -> tw.Gemm:
    return tw.Gemm(*sizes, **{"a": "f16", "c": "f16", **more})


def drawn(m: int, n: int, k: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    return a.astype(np.float16), b.astype(np.float16)


def step_by_step(a: Array, b: Array, start: int = 0, stop: int | None = None) -> Array:
    """Sums in f16, in the order of K, each product rounded once with its sum."""
    sums = np.zeros((len(a), b.shape[1]), np.float16)
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(a.shape[1])[start:stop]:
            exact = a[:, [k]].astype(np.float64) * b[[k]] + sums
            sums = exact.astype(np.float16)
    return sums


# --- what a spec says ----------------------------------------------------------------------------


def test_sums_in_f16_are_asked_for() -> None:
    assert halves(4, 4, 4).sums == tw.Gemm(4, 4, 4, a="f16", sums="f16").sums == "f16"
    assert tw.Gemm(4, 4, 4, a="f16", sums="f16").c.type == "f16"
    for spec in (
        tw.Gemm(4, 4, 4, a="f16"),
        tw.Gemm(4, 4, 4, a="f16", d="f16"),
        tw.Gemm(4, 4, 4, a="f16", b="f32", c="f16"),
        tw.Gemm(4, 4, 4, a="bf16", c="f16"),
        halves(4, 4, 4, sums="f32"),
    ):
        assert spec.sums == "f32"
    assert tw.Gemm(4, 4, 4, a="s8").sums == "s32" and tw.Gemm(4, 4, 4, a="f64").sums == "f64"
    third = halves(4, 4, 4, sums=("f16", 8))
    for spec in (halves(4, 4, 4), halves(4, 4, 4, sums="f32"), third, halves(4, 4, 4, c="bf16",
                 sums="f16"), tw.Gemm(4, 4, 4, a="f16", c="f32", sums="f16")):  # fmt: skip
        assert eval(repr(spec), {"Gemm": tw.Gemm, "Matrix": tw.Matrix}) == spec  # noqa: S307


@pytest.mark.parametrize("sums", ["bf16", "s32", ("f16",), ("f16", 0), ("f32", 8), ("f16", 8.0), 8])
def test_no_others_are(sums: Any) -> None:
    with pytest.raises(SpecError, match="sums of products of f16 and f16 cannot be held so"):
        halves(4, 4, 4, sums=sums)
    with pytest.raises(SpecError, match="take an A and a B of f16"):
        tw.Gemm(4, 4, 4, a="bf16", sums="f16")


@pytest.mark.parametrize("loops", ["nmk", "mnk", "knmk"])
def test_a_schedule_that_sums_longer_is_refused(loops: str) -> None:
    schedule = tw.Schedule(loops=loops, block={"k": 32} if loops[0] == "k" else None)
    with pytest.raises(ScheduleError, match="sums of more than 16 elements of K would be held"):
        plan_for(halves(8, 32, 64, sums=("f16", 16)), schedule, resolve(HALF))
    assert plan_for(halves(8, 32, 16, sums=("f16", 16)), schedule.__class__(loops="nmk"),
                    resolve(HALF)).staging.element == "f16"  # fmt: skip


@pytest.mark.parametrize("target", ["avx512", "avx10.2", "scalar"])
def test_where_they_are_no_faster_sums_are_f32s(target: str) -> None:
    for sums in ("f16", ("f16", 16)):
        assert plan_for(
            halves(8, 32, 64, sums=sums), tw.Schedule(), resolve(target)
        ).staging.element == ("f32")
    assert plan_for(halves(8, 32, 64), tw.Schedule(), resolve(HALF)).staging.element == "f16"
    assert (
        plan_for(halves(8, 32, 64, sums="f32"), tw.Schedule(), resolve(HALF)).staging.element
        == "f32"
    )


# --- what they are -------------------------------------------------------------------------------


def test_whole_numbers_are_exact_up_to_2048() -> None:
    """f16 has 11 bits for a number: it holds 2048, but not 2049."""
    for k, exact in ((2048, True), (2050, False)):
        a, b = np.ones((1, k), np.float16), np.ones((k, 1), np.float16)
        assert step_by_step(a, b)[0, 0] == 2048
        right = expected(halves(1, 1, k), {"a": [a], "b": [b], "out": np.zeros((1, 1))})
        assert not right.wrong(np.full((1, 1), k, np.float16))
        assert right.wrong(np.full((1, 1), k - 2, np.float16)) == exact


@pytest.mark.twice
def test_the_order_is_that_of_k() -> None:
    for m, n, k in ((5, 37, 40), (1, 100, 7), (26, 33, 3)):
        a, b = drawn(m, n, k)
        kernel = tw.compile(halves(m, n, k), ONE, HALF)
        assert (kernel(a, b) == step_by_step(a, b)).all()
        packed = tw.compile(halves(m, n, k, b=tw.Packed("f16")), ONE, HALF)
        assert (packed(a, packed.pack_b(b)) == step_by_step(a, b)).all()


@pytest.mark.twice
def test_parts_are_added_in_f32() -> None:
    a, b = drawn(6, 40, 50)
    kernel = tw.compile(tw.Gemm(6, 40, 50, a="f16", sums=("f16", 16)), ONE, HALF)
    parts = [step_by_step(a, b, first, first + 16).astype(np.float32) for first in (0, 16, 32, 48)]
    assert (kernel(a, b) == parts[0] + parts[1] + parts[2] + parts[3]).all()


@pytest.mark.twice
def test_shorter_sums_are_more_exact() -> None:
    a, b = drawn(16, 64, 256)
    right = a.astype(np.float64) @ b.astype(np.float64)
    size = np.abs(a).astype(np.float64) @ np.abs(b)
    asked: Any = ("f16", ("f16", 64), ("f16", 16), "f32")
    errors = []
    for sums in asked:
        kernel = tw.compile(tw.Gemm(16, 64, 256, a="f16", sums=sums, c="f32"), target=HALF)
        errors.append(float((np.abs(kernel(a, b) - right) / size).max()))
    assert all(less < more / 2 for more, less in pairwise(errors))
    assert errors[0] < 256 * 2.0**-10 and errors[2] < 20 * 2.0**-10 and errors[3] < 1e-6


@pytest.mark.twice
@pytest.mark.parametrize("sums", ["f16", ("f16", 2)])
def test_denormals_overflow_and_nan(sums: Any) -> None:
    tiny, big = 2.0**-24, 60000.0
    a = np.array([[tiny, tiny, 0], [big, big, -big], [np.nan, 1, 1], [np.inf, -1, 1]], np.float16)
    b = np.array([[2.0], [1], [1]], np.float16)
    b[0, 0] = 1
    kernel = tw.compile(tw.Gemm(4, 1, 3, a="f16", c="f16", sums=sums), ONE, HALF)
    assert np.array_equal(
        kernel(a, b), np.array([[2 * tiny], [np.inf], [np.nan], [np.inf]], np.float16), True
    )
    half = tw.compile(tw.Gemm(4, 1, 3, a="f16", sums="f32"), target=HALF)
    assert half(a, b)[1, 0] == np.float32(np.float16(big)), "f32 has room for it"
    kernel.verify(), half.verify()


SPECS: dict[str, tuple[Any, tw.Schedule]] = {
    "across": (halves(13, 40, 9, order="F"), tw.Schedule()),
    "both ends": (halves(7, 50, 11, alpha=2, beta=-1, lda=tw.dim("lda")), tw.Schedule()),
    "long end": (halves(9, 40, 8, epilogue=tw.gelu_tanh(tw.acc + BIAS), d="s8"), tw.Schedule()),
    "turned": (halves(tw.dim("m"), 6, 20, order="F", d="f32", a_scale="row"), tw.Schedule()),
    "outputs": (halves(5, 33, 6, outputs={"most": tw.row_absmax(tw.acc)}), tw.Schedule()),
    "batch": (halves(4, 32, 8, batch=tw.Strided(3), beta=1), tw.Schedule(loops="bnmk")),
    "gated": (halves(3, 40, 8, b2="f16", d="f16", epilogue=tw.acc * tw.acc2), tw.Schedule()),
    "stack": (halves(tw.dim("m"), 8, 16, batch=tw.Strided(2, c=None)), tw.Schedule()),
    "parts": (
        tw.Gemm(9, 40, tw.dim("k"), a="f16", sums=("f16", 4), batch=tw.Strided(2), d="bf16"),
        tw.Schedule(),
    ),
    "parts, turned": (halves(11, 9, 30, order="F", sums=("f16", 8), beta="scalar"), tw.Schedule()),
    "threads": (
        halves(24, 64, 16, sums=("f16", 8), alpha="scalar", d="f16"), tw.Schedule(threads=2)
    ),
    "column": (halves(9, 1, 70, b=tw.Packed("f16"), alpha=3), tw.Schedule()),
}  # fmt: skip


@pytest.mark.twice
@pytest.mark.parametrize("name", SPECS)
def test_compiled_and_interpreted(name: str) -> None:
    spec, schedule = SPECS[name]
    tw.compile(spec, schedule, HALF).verify(cases=4)
    one = Interpreted(spec, schedule, resolve(HALF))
    for seed in range(2):
        one.run(one.sample(seed, whole=seed == 0))


# --- machine code --------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_elements_of_a_are_spread_by_the_multiply_add(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = resolve(HALF)
    compiler = use(family, target, monkeypatch)
    spec = halves(64, 96, 256, b=tw.Packed("f16"))
    text = generate([Request("kernel", spec, tw.Schedule(), target)]).text
    library = compile_library(text, target, compiler, tmp_path, "kernels")
    found = functions(disassemble(library, compiler))
    loops = [region for function in found for region in function.regions() if region.looped]
    assert loops and not any(f.spills_in(region) for f in found for region in f.regions())
    for loop in loops:
        adds = [one for one in loop.instructions if "vfmadd231ph" in str(one)]
        assert len(adds) >= 16 and all(re.search("1to32|BCST", str(one)) for one in adds)
        loads = [one for one in loop.instructions if "vmov" in str(one)]
        assert len(loads) <= len(adds) // 16, "a load of B's row for each step of K"
        rest = len(loop.instructions) - len(adds) - len(loads)
        assert rest <= 5, "pointers, a comparison, and the branch"
