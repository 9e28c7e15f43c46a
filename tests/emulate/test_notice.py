"""An emulated kernel says so: once for each target, at the caller's line, and not in checks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.emulate import notice
from tilewright.runtime.machine import host

TARGET = "neon" if host.machine() != "aarch64" else "avx2"
ONE = np.ones((4, 4), np.float32)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> tw.Kernel:
    monkeypatch.setattr(notice, "_told", set())
    try:
        return tw.compile(tw.Gemm(4, 4, 4), target=TARGET)
    except tw.TargetError as error:
        pytest.skip(error.problem)


@pytest.mark.twice
def test_the_first_call_warns_and_no_other(kernel: tw.Kernel) -> None:
    assert f"on {TARGET}, emulated through {kernel.emulated}>" in repr(kernel)
    with pytest.warns(tw.EmulationWarning) as said:
        kernel(ONE, ONE)
    (one,) = said
    for part in (TARGET, str(kernel.emulated), "hundred times", "leave target out"):
        assert part in str(one.message)
    assert one.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel(ONE, ONE)


@pytest.mark.twice
def test_checks_and_explanations_do_not_warn(kernel: tw.Kernel) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel.verify(cases=1)
        kernel.explain()
        tw.compile(tw.Gemm(4, 4, 4))(ONE, ONE)
    with pytest.warns(tw.EmulationWarning):
        kernel(ONE, ONE)
