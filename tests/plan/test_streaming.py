"""Stores past the caches: where the plan has them, what C says of them, and that C is right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import PlanError, ScheduleError
from tilewright.generate import (
    Request,
    explain_plan,
    generate,
    plan_for,
    program_for,
    verified,
)
from tilewright.ir.nodes import walk
from tilewright.ir.ops import Store
from tilewright.runtime.machine.host import resolve
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from tilewright.symbolic import ONE, evaluate

STREAM, CACHED = Schedule(stores="stream"), Schedule(stores="cached")
M, N, K = dim("m"), dim("n"), dim("k")
ZEN4 = "avx512+zen4"


def past(spec: Gemm, schedule: Schedule | None = None, target: str = ZEN4) -> Any:
    return plan_for(spec, schedule or Schedule(), resolve(target)).nest.streams


def said(spec: Gemm, schedule: Schedule, target: str = ZEN4) -> list[str]:
    plan = plan_for(spec, schedule, resolve(target))
    return [f"{d.choice}: {d.reason}" for d in plan.decisions if d.what == "stores"]


def text_of(spec: Gemm, schedule: Schedule, target: str) -> str:
    return generate([Request("k", spec, schedule, resolve(target))]).text


# --- whether -------------------------------------------------------------------------------------


def test_a_c_larger_than_the_caches_goes_past_them() -> None:
    """16 MiB of the last cache are a core's on Zen 4: 2^22 elements of f32."""
    assert past(Gemm(4096, 4096, 16)) == 1
    assert said(Gemm(4096, 4096, 16), Schedule()) == [
        "past the caches: C has 64 MiB, a core's caches hold 16 MiB; whole vectors of aligned lines"
    ]
    assert past(Gemm(1024, 1024, 16)) is None
    assert past(Gemm(4096, 4096, 16), CACHED) is None
    assert past(Gemm(64, 64, 16), STREAM) == 1


def test_sums_that_take_long_need_not() -> None:
    schedule = Schedule(loops="nmk")
    assert past(Gemm(4096, 4096, 32), schedule) == 1
    assert past(Gemm(4096, 4096, 96), schedule) is None


def test_sizes_of_the_call_decide_there() -> None:
    where = past(Gemm(M, N, K, ldc=dim("ldc")))
    assert not evaluate(where, {"m": 2048, "n": 2047})
    assert evaluate(where, {"m": 2048, "n": 2048})
    assert "m * n" in text_of(Gemm(M, N, K), Schedule(), ZEN4)
    few = dim("m", max=127)
    assert past(Gemm(few, 512, 16)) is None, "never so large"


@pytest.mark.parametrize(
    ("spec", "schedule", "target", "words"),
    [
        (Gemm(64, 64, 16), {}, "neon", r"neon has no store of f32"),
        (Gemm(64, 64, 16, beta=1), {}, ZEN4, r"C is read"),
        (Gemm(64, 64, 16, beta="scalar"), {}, ZEN4, r"C is read"),
        (Gemm(64, 64, 64), {"loops": "knmk", "block": {"k": 32}}, ZEN4, r"add to sums in C"),
        (Gemm(64, 64, 64), {"vectorize": "m"}, ZEN4, r"do not lie along the vectors"),
        (Gemm(64, 50, 16), {}, ZEN4, r"begin 200 bytes apart.*multiple of 64"),
        (Gemm(64, 64, 16, d="f16"), {}, ZEN4, r"stored as f16"),
        (Gemm(64, 64, 64, a="bf16"), {}, "amx", r"tdpbf16ps sums in blocks"),
    ],
)
def test_where_it_cannot_be_it_is_refused_with_the_reason(
    spec: Gemm, schedule: dict[str, Any], target: str, words: str
) -> None:
    with pytest.raises(ScheduleError, match=rf"(?s)past the caches.*{words}.*leave stores out"):
        plan_for(spec, Schedule(**schedule, stores="stream"), resolve(target))
    assert past(spec, Schedule(**schedule), target) is None


def test_what_stores_may_be() -> None:
    with pytest.raises(ScheduleError, match=r"unknown stores\n  got: past"):
        Schedule(stores="past")  # type: ignore[arg-type]
    assert repr(STREAM) == "Schedule(stores='stream')"


# --- what C says ---------------------------------------------------------------------------------


def test_whole_vectors_alone_go_past_and_a_fence_follows() -> None:
    text = text_of(Gemm(5, 80, 16, ldc=96), STREAM, "avx512")
    assert text.count("_mm512_stream_ps(") == 1, "in one function"
    assert text.count("_mm_sfence();") == 1
    program = program_for(plan_for(Gemm(M, N, K), STREAM, resolve("avx512")))
    stores = [op for tile in program.tiles for op in walk(tile.end) if isinstance(op, Store)]
    assert {op.past is not None for op in stores} == {True, False}
    assert all(op.active is None for op in stores if op.past is not None)


def test_tiles_that_end_within_a_line_do_not() -> None:
    """Vectors of half a line, three side by side: the next tile writes the rest much later."""
    schedule = Schedule(tile=(4, 24), loops="nmk", stores="stream")
    assert "stream_f32x8(c" not in text_of(Gemm(8, 48, 16), schedule, "avx2")
    assert "stream_f32x8(c" in text_of(
        Gemm(8, 48, 16), Schedule(tile=(4, 16), stores="stream"), "avx2"
    )


def test_each_thread_has_a_fence() -> None:
    text = text_of(Gemm(64, 96, 16), Schedule(stores="stream", threads=2), "avx512")
    fork = text[text.index("static void fork") :]
    assert fork[: fork.index("\n}")].count("_mm_sfence();") == 1


def test_it_is_explained_and_resolved() -> None:
    plan = plan_for(Gemm(64, 96, 16), STREAM, resolve("avx512"))
    assert "stores" in explain_plan(plan)
    assert "past the caches" in explain_plan(plan)
    assert (
        "stores='stream'" in text_of(Gemm(4096, 4096, 16), Schedule(), ZEN4).split("Resolved:")[1]
    )


def test_a_vector_that_does_not_stream_is_refused() -> None:
    spec, target = Gemm(4, 8, 4), resolve("neon")
    program = program_for(plan_for(spec, Schedule(), target))
    tile, *others = program.tiles
    end = tuple(replace(op, past=ONE) if isinstance(op, Store) else op for op in tile.end)
    wrong = replace(program, tiles=(replace(tile, end=end), *others))
    with pytest.raises(PlanError, match=r"past the caches"):
        verified(wrong, spec, target)


# --- numbers -------------------------------------------------------------------------------------


@pytest.mark.twice
@pytest.mark.parametrize(
    ("target", "type_"), [("avx2", "f32"), ("avx512", "f64"), ("avx512", "s8")]
)
def test_numbers_are_right_wherever_c_lies(target: str, type_: str, cases: Any) -> None:
    kernel = tw.compile(Gemm(M, N, K, a=type_, ldc=dim("ldc")), STREAM, target=target)  # type: ignore[arg-type]
    element = {"f32": np.float32, "f64": np.float64, "s8": np.int32}[type_]
    given = np.int8 if type_ == "s8" else element
    rng = np.random.default_rng(3)
    for offset, (m, n, k, ldc) in enumerate([(5, 96, 3, 96), (7, 35, 4, 48), (3, 64, 1, 80)]):
        a, b = (rng.integers(-4, 5, shape).astype(given) for shape in ((m, k), (k, n)))
        room = np.full(m * ldc + 64, 9, element)
        start = -room.ctypes.data % 64 // np.dtype(element).itemsize + (0, 4, 1)[offset]
        c = room[start : start + m * ldc].reshape(m, ldc)[:, :n]
        kernel(a, b, out=c)
        np.testing.assert_array_equal(c, a.astype(np.int64) @ b.astype(np.int64))
        assert (room[start + n : start + ldc] == 9).all(), "nothing beside C is written"
        cases.count(target, "native" if kernel.emulated is None else "header", 1)
