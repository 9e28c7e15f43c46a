"""Buffers in parallel loops that are too large for a stack: each thread has memory of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.products.interpreted import Interpreted
from support.products.space import Case
from support.products.trial import lab

import tilewright as tw
from tilewright import targets
from tilewright.errors import PlanError, TargetError
from tilewright.generate import Request, explain_plan, generate, verified
from tilewright.ir.nest import BlockLoop, NestNode, Pack
from tilewright.ir.nodes import rewritten
from tilewright.runtime.machine.host import resolve

M, N, K = tw.dim("m"), tw.dim("n"), tw.dim("k")
BIAS = tw.acc + tw.Operand("bias", "f32", per="column")
#: A block of B of 76800 bytes in each trip of the loop over n.
PACKED = {"loops": "Nknmk", "pack": "b", "block": {"n": 96, "k": 200}, "vectorize": "n"}
#: Sums of all rows and up to 16 columns.
SUMMED = {"loops": "Nknmk", "pack": "b", "block": {"n": 16, "k": 8}, "vectorize": "n"}


def of_columns(threads: int | None = None) -> tw.Schedule:
    return tw.Schedule(**PACKED, threads=threads)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", ["avx2", "avx512", "neon", "sve256", "rvv128"])
def test_the_interpreter_finds_sums_of_a_block_right(target: str) -> None:
    """Sums of known size beyond 32 KiB, and of rows that only the call knows."""
    for m, more in ((700, {}), (M, {"epilogue": BIAS})):
        spec = tw.Gemm(m, N, K, d="bf16" if m is M else "f32", **more)  # type: ignore[arg-type]
        one = Interpreted(spec, tw.Schedule(**SUMMED), resolve(target))  # type: ignore[arg-type]
        assert one.program.scratch == 0 != one.program.worker_scratch
        assert "in scratch memory of each thread" in " ".join(explain_plan(one.plan).split())
        one.run(one.sample(1, whole=True))
    short = replace(one.program, worker_scratch=one.program.worker_scratch - 64)
    with pytest.raises(PlanError, match="sums does not fit the scratch memory"):
        replaced(one, short).run(one.sample(1, whole=True))


def replaced(one: Interpreted, program: Any) -> Interpreted:
    one.program = program
    return one


def test_memory_of_a_thread_is_only_used_in_parallel_loops_and_within_its_size() -> None:
    spec, target = tw.Gemm(64, 480, 400), targets.load("avx2")
    program = Interpreted(spec, of_columns(), target).program
    assert (program.scratch, program.worker_scratch) == (0, 76800)

    def serial(node: NestNode) -> NestNode:
        return replace(node, parallel=False) if isinstance(node, BlockLoop) else node

    def shared(node: NestNode) -> NestNode:
        return replace(node, of_worker=False) if isinstance(node, Pack) else node

    for change, words in (
        (replace(program, nest=tuple(rewritten(program.nest, serial))), "in a parallel loop"),
        (replace(program, worker_scratch=program.worker_scratch - 64), "within 76736 of scratch"),
        (
            replace(
                program, nest=tuple(rewritten(program.nest, shared)), scratch=program.worker_scratch
            ),
            "write the same place of b_packed",
        ),
    ):
        with pytest.raises(PlanError, match=words):
            verified(change, spec, target)


@pytest.mark.twice
def test_memory_grows_with_the_threads() -> None:
    spec, counts = tw.Gemm(64, 480, 400), (1, 2, 5, None)
    kernels: Sequence[Any] = tw.compile_many([(spec, of_columns(t), "host") for t in counts])
    assert [kernel.scratch_bytes() for kernel in kernels] == [
        76800 * count for count in (1, 2, 5, os.cpu_count() or 1)
    ]
    assert kernels[1].scratch_bytes(3) == 3 * 2 * 76800, "calls at the same time"
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64, 400), "f4"), rng.standard_normal((400, 480), "f4")
    first = kernels[0](a, b)
    np.testing.assert_allclose(first, a @ b, atol=1e-3)
    assert all(np.array_equal(kernel(a, b), first) for kernel in kernels[1:])


def test_each_thread_stays_in_its_memory(tmp_path: Path) -> None:
    """Between guard pages; with no memory for two threads, an error."""
    target = resolve("host")
    spec = tw.Gemm(64, 480, 400)
    cases = [Case(f"by{t}", target, spec, of_columns(t), (), ()) for t in (1, 2, 5)]
    made = [Request(case.name, case.spec, case.schedule, case.target) for case in cases]
    text = generate(made).text
    for case in cases[1:]:
        lab([text], ["by1", "by2", "by5"], target, tmp_path).check(case)
    assert text.count("return 76800 * workers;") == 2
    wrong = text.replace("return 76800 * workers;", "return 76800 * (workers - 2);")
    with pytest.raises(TargetError):
        lab([wrong], ["by1", "by2", "by5"], target, tmp_path).check(cases[1])
