"""From specs to kernels: names, libraries of many, requests, threads that ask for the same."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support.processes import CompilerWatch

import tilewright as tw
from tilewright.errors import SpecError, TargetError
from tilewright.runtime import driver
from tilewright.runtime.store import cache
from tilewright.spec.gemm import Gemm
from tilewright.spec.transpose import Transpose


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (Gemm(64, tw.dim("n"), 3, a="f64", order="F", beta=1), "gemm_f64_64xNx3_fff_beta1_scalar"),
        (Gemm(4, 4, 4, b=tw.Matrix("f32", "F"), beta="scalar"), "gemm_f32_4x4x4_cfc_beta_scalar"),
        (Gemm(4, 4, 4, batch=tw.Strided(3)), "gemm_f32_4x4x4_ccc_s3_scalar"),
        (Gemm(4, 4, 4, batch=tw.Offsets(tw.dim("i"))), "gemm_f32_4x4x4_ccc_oN_scalar"),
        (Gemm(4, 4, 4, batch=tw.Addresses(3)), "gemm_f32_4x4x4_ccc_p3_scalar"),
        (Transpose(8, tw.dim("cols"), "f64"), "transpose_f64_8xC_scalar"),
    ],
)
def test_names_say_what_kernels_are(spec: Any, name: str) -> None:
    made = driver.kernel_name(spec, "scalar", "0123456789abcdef")
    assert made == f"{name}_01234567"


def test_threads_compile_the_same_kernel() -> None:
    found: list[tw.Kernel] = []
    spec = Gemm(3, 5, 7, alpha=0.25)
    threads = [
        threading.Thread(target=lambda: found.append(tw.compile(spec, target="scalar")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.name for one in found}) == 1
    assert len(found) == 4


def test_many_in_one_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    specs = [Gemm(m, 4, 3) for m in range(1, 10)]
    kernels = tw.compile_many([*((s, None, "scalar") for s in specs), (specs[0], None, "scalar")])
    assert [one.spec for one in kernels] == [*specs, specs[0]]
    assert len({one.library for one in kernels}) == 1
    for one in kernels:
        one.verify(cases=1)
        assert one.name in one.source
    watch = CompilerWatch()
    sys.addaudithook(watch.audit)
    again = tw.compile(specs[3], target="scalar")
    assert again.library == kernels[3].library
    mixed = tw.compile_many([(specs[5], None, "scalar"), (Gemm(2, 4, 3), None, "scalar")])
    assert mixed[0].library == kernels[5].library
    assert not watch.started
    (new, old) = tw.compile_many([(Gemm(20, 4, 3), None, "scalar"), (specs[0], None, "scalar")])
    assert new.library != old.library == kernels[0].library
    assert cache.lookup(new._entry.key) is not None


def test_requests_may_be_short() -> None:
    one, two = tw.compile_many([Gemm(2, 2, 2), (Gemm(2, 2, 2), tw.Schedule())])
    assert one.name == two.name
    assert tw.compile_many([]) == []


@pytest.mark.parametrize("request_", [3, (Gemm(2, 2, 2), None, "host", 1), ("gemm", None)])
def test_requests_that_are_none(request_: Any) -> None:
    with pytest.raises(SpecError):
        tw.compile_many([request_])


def test_schedules_are_schedules() -> None:
    with pytest.raises(tw.ScheduleError, match=r"a schedule is a tw\.Schedule"):
        tw.compile(Gemm(2, 2, 2), "nmk")  # type: ignore[arg-type]


def test_unknown_targets() -> None:
    with pytest.raises(TargetError, match="unknown target"):
        tw.compile(Gemm(2, 2, 2), target="avx1024")


def test_a_target_in_the_schedules_place_is_told_so() -> None:
    with pytest.raises(tw.ScheduleError, match=r"target='avx2'"):
        tw.compile(tw.Gemm(4, 4, 4), "avx2")  # type: ignore[arg-type]


def test_a_long_wrong_spec_is_cut() -> None:
    with pytest.raises(tw.SpecError) as caught:
        tw.compile("x" * 5000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 400
