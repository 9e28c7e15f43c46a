"""Blocks of a K that only the call knows: equal ones, which one tile serves, whole and last."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import Cases
from support.products.fused import Kernels, Trial, equal, operands
from support.products.fused import product as exact
from support.products.plans import plan_of

import tilewright as tw
from tilewright.generate import Request, generate
from tilewright.plan.tiling.tiles import OverEqual
from tilewright.runtime.machine.host import resolve
from tilewright.symbolic import evaluate

K = tw.dim("k")
#: The block that is asked for, what else is, and the type of A and B.
ASKED: tuple[tuple[int, dict[str, Any], Any], ...] = (
    (32, {"loops": "knmk"}, "f32"),
    (24, {"loops": "nkmk"}, "f32"),
    (5, {"loops": "knmk", "k_unroll": 3}, "f32"),
    (32, {"loops": "nkmk", "pack": "b"}, "f32"),
    (32, {"loops": "bkmnk"}, "f32"),
    (32, {"loops": "kmbnk"}, "bf16"),
    (6, {"loops": "kmnk"}, "s8"),
)


def trial(block: int, asked: dict[str, Any], type_: Any, k: int) -> Trial:
    batch = tw.Addresses(3) if "b" in asked["loops"] else None
    spec = tw.Gemm(5, 9, K, a=type_, b=type_, batch=batch)
    return Trial(spec, tw.Schedule(block={"k": block}, **asked), {"k": k})


@pytest.mark.parametrize("target", ["avx2", "avx512", "neon"])
def test_blocks_are_exact_wherever_k_ends(target: str, tmp_path: Path, cases: Cases) -> None:
    rng = np.random.default_rng(5)
    trials = [trial(*each, k) for each in ASKED for k in (0, 1, 23, 24, 25, 64, 65, 80)]
    kernels = Kernels(target, trials, tmp_path)
    for index, each in enumerate(trials):
        given = operands(each, rng)
        assert equal(kernels(index, given)["out"].astype(np.float64), exact(each, given) * 1.0)
        cases.count(target, kernels.lab.means)


def test_an_empty_batch_has_no_blocks_of_k() -> None:
    """Nothing would read how large they are, and compilers warn of that."""
    schedules = (
        tw.Schedule(loops="bkmnk", block={"k": 64}),
        tw.Schedule(loops="nkbmmnk", pack="ab"),
        tw.Schedule(loops="bnkmmnk", pack="ab"),
    )
    for schedule, (count, blocks) in product(schedules, ((0, False), (2, True))):
        spec = tw.Gemm(5, 9, K, batch=tw.Addresses(count))
        request = Request("k", spec, schedule, resolve("avx2"))
        assert ("k_blocks" in generate([request]).text) is blocks


def test_one_tile_serves_whole_blocks_and_the_last() -> None:
    """One begins the sums, and one adds to them; a K that is known has a third for what is left."""
    for k, tiles in ((K, 2), (1000, 3)):
        schedule = tw.Schedule(tile=(8, 16), loops="knmk", block={"k": 64})
        request = Request("k", tw.Gemm(64, 64, k), schedule, resolve("avx512"))
        text = generate([request]).text
        assert len(re.findall(r"^static inline void tile", text, re.MULTILINE)) == tiles


def test_blocks_are_whole_trips_of_loops_and_no_larger_than_asked_for() -> None:
    """As few as there can be, of equal size but for the last, and of no more than was asked for."""
    schedule = tw.Schedule(tile=(8, 16), loops="knmk", block={"k": 64})
    plan = plan_of(tw.Gemm(64, 64, K), schedule, "avx512")
    step = plan.tiling.passes["whole"]
    assert isinstance(step, OverEqual)
    for k in range(1, 400):
        blocks = evaluate(step.trips, {"k": k})
        size = evaluate(step.size, {"k": k, step.count: blocks})
        assert blocks == -(-k // 64) and size % 16 == 0
        assert size <= 64 and (blocks - 1) * size < k <= blocks * size
