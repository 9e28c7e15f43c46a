"""The number of threads of a product follows from the price of a parallel region."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import python

import tilewright as tw
from tilewright.generate import Request, generate, plan_for
from tilewright.isa.machine import NEXT_THREAD, Core
from tilewright.plan.estimate.kernel import estimate
from tilewright.plan.estimate.threads import REGION, price_of, threads_of
from tilewright.runtime.machine.host import identify, resolve
from tilewright.runtime.matmul import target_facts
from tilewright.runtime.matmul.classes import Family, Options
from tilewright.runtime.matmul.families import class_of, schedule_of, spec_of
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from tilewright.targets import load

ROWS = (1, 1, 1)
F32 = ("f32",) * 3
SPEC = tw.Gemm(dim("m"), dim("n"), dim("k"), lda=dim("lda"), ldb=dim("ldb"), ldc=dim("ldc"))


def at_price(region: int) -> Any:
    """AVX2 with another price of a region."""
    target = load("avx2")
    return replace(target, core=replace(target.core, region=region))


# --- the decision ------------------------------------------------------------------------------


def test_two_threads_pay_from_twice_their_price() -> None:
    assert [threads_of(2, work, 100, 2) for work in (99, 100, 101)] == [1, 1, 2]
    assert threads_of(1, 10_000, 100, 8) == 1, "one trip is one thread's"
    assert threads_of(1000, 1000, 100, 1) == 1, "no more than there may be"


def test_threads_that_shorten_nothing_are_left_out() -> None:
    """With 8 trips, the busiest of 4 threads has two trips, and so has the busiest of 5 to 7."""
    assert [threads_of(8, 10_000, 80, most) for most in range(1, 10)] == [
        1, 2, 3, 4, 4, 4, 4, 8, 8,
    ]  # fmt: skip


def test_the_more_threads_the_less_another_one_saves() -> None:
    chosen = [threads_of(10_000, work, 1000, 64) for work in (0, 1, 10, 100, 10_000)]
    assert chosen == sorted(chosen)
    assert (chosen[0], chosen[-1]) == (1, 64)
    assert 1 < chosen[1] < 64


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
def test_c_decides_as_the_estimate_does(tmp_path: Path) -> None:
    target = at_price(3000)
    text = generate([Request("f", SPEC, Schedule(loops="NMk"), target)]).text
    found = re.search(r"^static (int64_t region_threads\(.*?^}$)", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    source, library = tmp_path / "pays.c", tmp_path / "pays.so"
    source.write_text(f"#include <stdint.h>\n{found[1]}\n", encoding="utf-8")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    decide = ctypes.CDLL(str(library)).region_threads
    decide.argtypes, decide.restype = [ctypes.c_int64] * 5, ctypes.c_int64
    price = price_of(target.core)
    for trips, work, most in product((0, 1, 2, 3, 7, 64, 500), (0, 1, 999, 9000, 10**6), (1, 2, 5)):
        found = decide(trips, work, price, price // NEXT_THREAD, most)
        assert found == threads_of(trips, work, price, most)


def test_further_threads_are_not_free_of_charge_on_any_core() -> None:
    tiny = Core(fma_latency=4, fma_units=0.25, loads=1, stores=1, issue=2, region=1)
    assert price_of(tiny) // NEXT_THREAD >= 1


# --- products ----------------------------------------------------------------------------------


@pytest.mark.parametrize("region", [1 << 10, 1 << 14, 1 << 18])
def test_a_product_is_offered_to_two_where_half_of_it_costs_more_than_a_region(
    region: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, peak = at_price(region), 16  # AVX2: two multiply-adds of 8 lanes a cycle
    identity = identify("avx2")
    monkeypatch.setattr(type(identity), "description", property(lambda _: target))
    found = target_facts._least_parallel("avx2", "f32", "f32")
    assert found / 2 / peak == region


LINES = """
import os
import numpy as np, tilewright as tw
from dataclasses import replace
from tilewright.isa.core_file import CoreFile
from tilewright.runtime.machine import calibrations, host
found, base = host.resolve("host"), host.identify("host").name.partition("+")[0]
core = replace(found.core, region={region})
file = CoreFile("here", "Here", "a test", (host.cpu().processor,), {{base: core}})
calibrations.keep(host.cpu().processor, "any", file)
count = lambda: len(os.listdir("/proc/self/task"))
a, b = np.ones((64, 160), "f4"), np.ones((160, 96), "f4")
before = count()
more = 0
for _ in range({calls}):
    right = bool((tw.matmul(a, b, threads=2) == 160).all())
    more = max(more, count() - before)
print(more, right)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts in /proc")
@pytest.mark.parametrize(("region", "more"), [(1 << 11, 1), (1 << 20, 0)])
def test_a_calibration_decides_how_many_threads_start(
    region: int, more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short product starts a thread only if a region costs little."""
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert python(LINES.format(region=region, calls=3)).split() == [str(more), "True"]


# --- equal work --------------------------------------------------------------------------------


def of(schedule: Schedule, sizes: tuple[int, int, int], threads: int) -> float:
    """Estimated cycles of a product on Zen 4."""
    plan = plan_for(SPEC, schedule, resolve("avx512+zen4"))
    return estimate(plan, dict(zip("mnk", sizes, strict=True)), threads=threads).cycles


def test_the_busiest_thread_is_what_counts() -> None:
    """Three panels of rows for two threads: one has two of them."""
    schedule = Schedule(loops="Mnk", tile=(4, 16))
    plan = plan_for(SPEC, schedule, at_price(100))
    for rows, gain in ((16, 2.0), (12, 1.5), (4, 1.0)):
        one, two = (
            estimate(plan, {"m": rows, "n": 96, "k": 256}, threads=threads).cycles
            for threads in (1, 2)
        )
        assert one / two == pytest.approx(gain, rel=0.1), rows


def test_each_region_has_its_price() -> None:
    target = at_price(1000)
    plan = plan_for(SPEC, Schedule(loops="nkMmnk", pack="ab"), target)
    sizes = {"m": 256, "n": 1000, "k": 1000}
    alone, shared = (estimate(plan, sizes, threads=threads) for threads in (1, 2))
    assert REGION not in alone.work
    regions = shared.work[REGION] / target.core.region
    blocks = -(-1000 // plan.nest.blocks["n"]) * -(-1000 // plan.nest.blocks["k"])
    assert regions == 2 * blocks, "each block is packed in a region, and multiplied in another"


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize(
    "sizes", [(64, 2048, 2048), (128, 768, 768), (200, 2048, 2048), (512, 768, 768), (2048,) * 3]
)
def test_large_products_gain_what_the_threads_are(
    sizes: tuple[int, int, int], threads: int
) -> None:
    options = Options(threads=threads)
    family = Family(F32, ROWS, class_of(*sizes, F32, options, ROWS), options)
    assert spec_of(family) == SPEC
    made = schedule_of(family)
    rows = Schedule(loops="nkMmnk", pack="ab", threads=threads)
    chosen, others = (of(schedule, sizes, threads) for schedule in (made, rows))
    assert of(made, sizes, 1) / chosen > 0.9 * threads
    assert chosen < 1.1 * others


@pytest.mark.parametrize("loops", ["NMk", "MNk"])
def test_tiles_and_tails_are_one_region(loops: str) -> None:
    target = load("avx2")
    text = generate([Request("f", SPEC, Schedule(loops=loops), target)]).text
    assert text.count("&with,") == 1, "one call that runs a loop in parallel"


@pytest.mark.parametrize("sizes", [(49, 160, 576), (33, 161, 300), (1000, 31, 65), (7, 9, 400)])
@pytest.mark.parametrize("loops", ["NMk", "MNk"])
def test_tails_beside_tiles_write_all_of_c(loops: str, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype("f4") for shape in ((m, k), (k, n)))
    kernel = tw.compile(SPEC, Schedule(loops=loops, threads=3, vectorize="n"))
    found = np.full((m, n), np.nan, "f4")
    np.testing.assert_array_equal(kernel(a, b, out=found), a.astype("f8") @ b)
