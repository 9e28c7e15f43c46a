"""Loops in upper case: the same bits as in lower case, from many threads and forked children."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import targets
from tilewright.emit.parallel import forks
from tilewright.errors import PlanError, ScheduleError, TargetError
from tilewright.generate import explain_plan, plan_for, program_for, verified
from tilewright.ir.nest import BlockLoop, NestNode, Pack, Program
from tilewright.ir.nodes import rewritten, walk
from tilewright.runtime.machine.host import means
from tilewright.runtime.reference.arguments import sample
from tilewright.spec.gemm import Gemm
from tilewright.spec.signature import signature

M, N, K = tw.dim("m", max=200), tw.dim("n", max=200), tw.dim("k", max=200)
COUNT = tw.dim("count", max=4)
BOTH = {"m": 64, "n": 48}

#: Specs whose work is worth threads, with a schedule whose loops are partly in upper case.
CASES: list[tuple[Gemm, dict[str, Any]]] = [
    (Gemm(128, 96, 128), {"loops": "NMk"}),
    (Gemm(129, 113, 101), {"loops": "NMk"}),
    (Gemm(129, 113, 101, beta=1), {"loops": "MNk"}),
    (Gemm(129, 113, 101, order="F", alpha=-2, beta=0.5), {"loops": "MNk"}),
    (Gemm(129, 113, 101, a="f64", beta="scalar", ldc=tw.dim("ldc")), {"loops": "nMk"}),
    (Gemm(129, 113, 101), {"loops": "Nmk"}),
    (Gemm(129, 113, 101, alpha="scalar"), {"loops": "NMnmk", "block": BOTH}),
    (Gemm(129, 113, 101, beta=1), {"loops": "NMNMk", "block": BOTH}),
    (Gemm(40, 200, 101), {"loops": "MNmnk", "block": BOTH}),
    (Gemm(129, 113, 101), {"loops": "kNMk", "block": {"k": 50}}),
    (Gemm(129, 113, 101), {"loops": "MkmNk", "block": {"m": 64, "k": 50}}),
    (Gemm(129, 113, 101, beta=1), {"loops": "NknMk", "block": {"n": 48, "k": 50}, "pack": "a"}),
    (Gemm(128, 96, 101), {"loops": "NMk", "pack": "ab"}),
    (Gemm(129, 113, 101), {"loops": "MnmNk", "block": {"m": 32, "n": 48}, "pack": "a"}),
    (Gemm(129, 113, 101, b=tw.Matrix("f32", "F")), {"loops": "NMk", "vectorize": "k"}),
    (Gemm(129, 113, 101), {"loops": "NMk", "tile": (4, 16), "tails": "overlap"}),
    (Gemm(M, N, K), {"loops": "NMk"}),
    (Gemm(M, N, K, lda=tw.dim("lda"), beta="scalar"), {"loops": "MNmnk", "block": BOTH}),
    (Gemm(M, N, K), {"loops": "NMk", "pack": "b"}),
    (Gemm(M, N, K), {"loops": "nkMmnk", "pack": "ab"}),
    (Gemm(M, N, K, b=tw.Matrix("f32", "F"), beta=1), {"loops": "nkMmnk", "pack": "ab"}),
    (Gemm(M, N, K, a="bf16", b="bf16"), {"loops": "nkMmnk", "pack": "ab"}),
    (Gemm(M, N, K, a="f16", b=tw.Matrix("f16", "F")), {"loops": "nkMmnk", "pack": "ab",
                                                       "tile": (4, 8)}),
    (Gemm(M, N, K, batch=tw.Strided(COUNT)), {"loops": "NMbk"}),
    (Gemm(129, 113, 51, batch=tw.Strided(3)), {"loops": "bNMk"}),
    (Gemm(129, 113, 51, batch=tw.Offsets(COUNT)), {"loops": "NMbk"}),
    (Gemm(129, 113, 51, batch=tw.Offsets(COUNT)), {"loops": "NbnMk", "block": {"n": 48}}),
    (Gemm(129, 113, 51, batch=tw.Addresses(COUNT)), {"loops": "bNMk"}),
    (Gemm(129, 113, 51, batch=tw.Addresses(3)), {"loops": "MNbk"}),
    (Gemm(129, 113, 5, batch=tw.Offsets(2, a=(0, 8), b=(4, 0))), {"loops": "NbnMk",
                                                                 "block": {"n": 48}}),
    (Gemm(3, 5, 7), {"loops": "NMk"}),
    (Gemm(M, N, 0), {"loops": "NMk"}),
]  # fmt: skip


SPEC = Gemm(129, 113, 101)


def pair(
    spec: Gemm, said: dict[str, Any], target: str = "host", threads: int | None = 3
) -> tuple[Any, Any]:
    """The requests of a kernel and of the one that does the same on one thread."""
    if "vectorize" not in said:
        said = said | {"vectorize": "n" if spec.c.order == "C" else "m"}
    parallel = tw.Schedule(**said, threads=threads)
    serial = tw.Schedule(**(said | {"loops": said["loops"].lower()}))
    return (spec, parallel, target), (spec, serial, target)


def check_same(one: Any, other: Any, seed: int = 0) -> None:
    """Both kernels write the same bits from the same arguments."""
    held = sample(one.signature, np.random.default_rng(seed), varied=False)
    named = held.named(one)
    out = named[one.signature.output.name]
    before = out.copy()
    expected = other(**named).copy()
    for _ in range(3):
        out[...] = before
        np.testing.assert_array_equal(one(**named), expected)


def product(seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((129, 101), "f4"), rng.standard_normal((101, 113), "f4")


def run_python(text: str) -> str:
    """What a Python of its own prints; it fails after a minute, and when it ends badly."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", text]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.twice
@pytest.mark.parametrize("size", [17, 67, 131])
def test_the_bits_are_those_of_one_thread(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.runtime.reference.arguments._USUAL", size)
    kernels = tw.compile_many([one for spec, said in CASES for one in pair(spec, said)])
    for number, (one, other) in enumerate(zip(kernels[::2], kernels[1::2], strict=True)):
        check_same(one, other, number)


@pytest.mark.twice
@pytest.mark.parametrize("threads", [None, 1, 2, 16])
def test_any_number_of_threads(threads: int | None) -> None:
    one, other = tw.compile_many(pair(SPEC, {"loops": "NMk"}, threads=threads))
    check_same(one, other)


@pytest.mark.twice
@pytest.mark.parametrize("target", ["neon", "scalar", "avx2"])
def test_other_targets_and_emulated_ones(target: str) -> None:
    try:
        means(targets.load(target))
    except TargetError as error:
        pytest.skip(error.problem)
    one, other = tw.compile_many(pair(SPEC, {"loops": "NMk"}, target))
    check_same(one, other)


@pytest.mark.parametrize(
    "compiler", ["gcc", "clang", pytest.param("zig", marks=pytest.mark.xdist_group("zig"))]
)
def test_every_compiler(compiler: str, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if compiler == "zig" and find_spec("ziglang"):
        monkeypatch.setenv("CC", f"{sys.executable} -m ziglang cc")
    elif shutil.which(compiler):
        monkeypatch.setenv("CC", compiler)
    else:
        pytest.skip(f"there is no {compiler}")
    for said in ({"loops": "NMk"}, {"loops": "MNmk", "block": {"m": 64}, "pack": "a"}):
        one, other = tw.compile_many(pair(SPEC, said))
        check_same(one, other)


# -- threads ------------------------------------------------------------------------------------


def test_calls_from_several_threads_at_once() -> None:
    one, other = tw.compile_many(pair(SPEC, {"loops": "NMk"}))
    wrong: list[int] = []

    def work(seed: int) -> None:
        a, b = product(seed)
        expected = other(a, b)
        for _ in range(100):
            if not np.array_equal(one(a, b), expected):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


FIRST_LINES = """
import os, signal, threading, time
import numpy as np, tilewright as tw
one = tw.compile(tw.Gemm(258, 113, 101), tw.Schedule(loops="NMk", threads=3, vectorize="n"))
a, b = np.ones((258, 101), "f4"), np.ones((101, 113), "f4")
count = lambda: len(os.listdir("/proc/self/task"))
right = lambda: bool((one(a, b) == 101).all())
"""
linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts in /proc")


@linux
def test_threads_come_with_the_first_call_and_leave_when_idle() -> None:
    lines = f"""{FIRST_LINES}
def grow():
    more = 0  # threads leave when idle: as often as it takes to see two at once
    while more < 2: right(); more = max(more, count() - before)
    return more
before = count(); during = grow()
while count() > before: time.sleep(0.01)
print(during, count() - before, right(), grow())
"""
    assert run_python(lines) == "2 0 True 2"


@linux
def test_short_calls_start_no_threads() -> None:
    lines = f"""{FIRST_LINES}
short = tw.compile(tw.Gemm(48, 48, 48), tw.Schedule(loops="NMk", threads=3))
before = count(); short(a[:48, :48].copy(), b[:48, :48].copy()); print(count() - before)
"""
    assert run_python(lines) == "0"


@linux
def test_forked_children_have_threads_of_their_own() -> None:
    lines = f"""{FIRST_LINES}
signal.alarm(50)
stop = False
def busy():
    while not stop: right()
threads = [threading.Thread(target=busy) for _ in range(2)]
for t in threads: t.start()
good = 0
for _ in range(40):
    child = os.fork()
    if not child:
        signal.alarm(20)
        before = count()
        fine = all([right() for _ in range(5)]) and count() - before == 2
        grandchild = os.fork()
        if not grandchild: os._exit(0 if right() else 1)
        os._exit(0 if fine and os.waitpid(grandchild, 0)[1] == 0 else 1)
    good += os.waitpid(child, 0)[1] == 0
stop = True
for t in threads: t.join()
print(good, right())
"""
    assert run_python(lines) == "40 True"


def test_the_threads_round_as_the_caller_does() -> None:
    one, other = tw.compile_many(pair(SPEC, {"loops": "NMk"}))
    a, b = product()
    nearest = one(a, b)
    try:
        libm = ctypes.CDLL("libm.so.6")
        upward = {"x86_64": 0x800, "aarch64": 0x400000}[os.uname().machine]
    except (OSError, KeyError):
        pytest.skip("the rounding mode cannot be set here")
    expected = np.empty_like(nearest)
    try:
        assert libm.fesetround(upward) == 0
        other(a, b, expected)
        results = [one(a, b, np.empty_like(expected)) for _ in range(20)]
    finally:
        libm.fesetround(0)
    assert (expected != nearest).any()
    assert all(np.array_equal(result, expected) for result in results)
    np.testing.assert_array_equal(one(a, b), nearest)


# -- what is refused, and what is said ----------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"loops": "NMK"}, ("same elements of C", "'NMk'")),
        ({"loops": "BNmK"}, ("same elements of C", "'BNmk'")),
        ({"loops": "NMx"}, ("outermost first", '"NMk"')),
        ({"loops": "NMnNn"}, ("at most twice",)),
        ({"loops": "nmk", "threads": 2}, ("upper case", "'nMk'")),
        ({"loops": "NMk", "threads": 0}, ("threads must be a positive int",)),
        ({"loops": "NMk", "threads": True}, ("threads must be a positive int",)),
    ],
)
def test_what_is_no_schedule(said: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ScheduleError) as caught:
        tw.Schedule(**said)
    assert all(word in str(caught.value) for word in words)


def test_what_does_not_fit_a_stack_is_packed_into_memory_of_each_thread() -> None:
    schedule = tw.Schedule(loops="Mnmk", block={"m": 128}, pack="a", vectorize="n")
    for spec in (Gemm(256, 256, 256), Gemm(256, 256, K)):
        loops = ("Mnmk", "mnMk", "mnmk")
        asked = [(spec, replace_loops(schedule, each), "host") for each in loops]
        one, outside, serial = tw.compile_many(asked)
        check_same(one, serial)
        check_same(outside, serial)


def replace_loops(schedule: tw.Schedule, loops: str) -> tw.Schedule:
    return tw.Schedule(
        loops=loops, block=dict(schedule.block), pack=schedule.pack, vectorize=schedule.vectorize
    )


def test_a_transposition_has_no_threads() -> None:
    with pytest.raises(ScheduleError, match="no threads"):
        tw.compile(tw.Transpose(64, 64), tw.Schedule(threads=2))


def test_threads_alone_choose_parallel_loops() -> None:
    scalar = targets.load("scalar")
    assert plan_for(SPEC, tw.Schedule(threads=2), scalar).nest.outer in ("NM", "MN")
    assert plan_for(SPEC, tw.Schedule(threads=1), scalar).nest.outer in ("nm", "mn")


def test_explain_tells_what_is_parallel() -> None:
    plan = plan_for(SPEC, tw.Schedule(loops="NMk", threads=2), targets.load("scalar"))
    text = explain_plan(plan)
    assert "in parallel)" in text
    assert "at most 2" in text
    plan = plan_for(SPEC, tw.Schedule(loops="NMk"), targets.load("scalar"))
    assert "one for each CPU" in explain_plan(plan)


def program(loops: str, **said: Any) -> Program:
    schedule = tw.Schedule(loops=loops, vectorize="n", **said)
    return program_for(plan_for(SPEC, schedule, targets.load("avx2")))


def test_two_parallel_loops_are_one() -> None:
    found = forks(program("NMk"), signature(SPEC), "x")
    assert max(len(part.loops) for fork in found for part in fork.parts) == 2
    assert forks(program("nmk"), signature(SPEC), "x") == ()
    assert forks(program("NMk", threads=1), signature(SPEC), "x") == ()


@pytest.mark.parametrize(("order", "counter"), [("C", "kp"), ("F", "pp")])
def test_a_block_that_all_threads_read_is_packed_by_all(order: Any, counter: str) -> None:
    spec = Gemm(M, N, K, b=tw.Matrix("f32", order))
    schedule = tw.Schedule(loops="nkMmnk", pack="ab", vectorize="n", threads=2)
    planned = program_for(plan_for(spec, schedule, targets.load("avx2")))
    found = forks(planned, signature(spec), "x")
    # Each thread packs the rows of A that it multiplies.
    assert [fork.parts[0].loops[0].counter for fork in found] == [counter, "m0"]


@pytest.mark.parametrize(("columns", "counters"), [(8, ["m0"]), (16, ["pp", "m0"])])
def test_panels_that_are_written_beyond_their_ends_are_packed_in_order(
    columns: int, counters: list[str]
) -> None:
    """A panel of 8 columns is stored in vectors of 16, which reach into the next one."""
    spec = Gemm(M, N, K, a="f16", b=tw.Matrix("f16", "F"))
    schedule = tw.Schedule(
        loops="nkMmnk", pack="ab", vectorize="n", threads=2, tile=(4, columns)
    )  # fmt: skip
    planned = program_for(plan_for(spec, schedule, targets.load("avx512")))
    found = forks(planned, signature(spec), "x")
    assert [fork.parts[0].loops[0].counter for fork in found] == counters


def test_a_loop_whose_trips_write_the_same_place_is_refused() -> None:
    honest = program("kNmk", block={"k": 50})
    target = targets.load("avx2")
    verified(honest, SPEC, target)

    def all_parallel(node: NestNode) -> NestNode:
        if isinstance(node, BlockLoop):
            body = tuple(map(all_parallel, node.body))
            return replace(node, body=body, parallel=True, first=0)
        return node

    wrong = replace(honest, nest=tuple(map(all_parallel, honest.nest)))
    with pytest.raises(PlanError, match="write the same place of c"):
        verified(wrong, SPEC, target)
    late = BlockLoop("nt", honest.nest[0].trips, (), 1, parallel=True)  # type: ignore[union-attr]
    with pytest.raises(PlanError, match="begin at 0"):
        verified(Program((late,), ()), SPEC, target)


def test_a_panel_is_cut_only_before_tiles_of_other_rows() -> None:
    spec = Gemm(M, N, K, b=tw.Packed("f32"))
    target = targets.load("avx2")
    honest = program_for(plan_for(spec, tw.Schedule(loops="NMk", threads=2), target))
    split = [x for x in walk(honest.nest) if isinstance(x, BlockLoop) and x.split]
    assert [loop.counter for loop in split] == ["pn"]
    verified(honest, spec, target)

    def twice(node: NestNode) -> NestNode:
        if isinstance(node, BlockLoop) and node.split:
            return replace(node, body=(*node.body, node.body[0]))
        return node

    wrong = replace(honest, nest=tuple(rewritten(honest.nest, twice)))
    with pytest.raises(PlanError, match=r"the first loop and the rest in .* pn write the same"):
        verified(wrong, spec, target)


@pytest.mark.parametrize(("operand", "columns"), [("a", 16), ("b", 8), ("b", 16)])
def test_a_loop_whose_trips_write_beyond_their_ends_is_refused(operand: str, columns: int) -> None:
    """All begin at places of their own; panels narrower than a vector are stored as whole ones."""
    spec = Gemm(M, N, K, a="f16", b=tw.Matrix("f16", "F"))
    schedule = tw.Schedule(loops="nkmmnk", pack="ab", vectorize="n", tile=(4, columns))
    target = targets.load("avx512")
    packed = verified(program_for(plan_for(spec, schedule, target)), spec, target)

    def shared(node: NestNode) -> NestNode:
        """The panels of the operand, in parallel."""
        if not isinstance(node, Pack) or not str(node.buffer).startswith(operand):
            return node
        first, *others = node.fill
        assert isinstance(first, BlockLoop)
        assert first.counter == "pp"
        return replace(node, fill=(replace(first, parallel=True), *others))

    wrong = replace(packed, nest=tuple(rewritten(packed.nest, shared)))
    if columns == 16 and operand == "b":
        verified(wrong, spec, target)
        return
    with pytest.raises(PlanError, match=f"trips 0 and 1 of .* pp write .* of {operand}_packed"):
        verified(wrong, spec, target)
