"""What the package offers beside kernels: targets told, matmul, the share of the peak."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.runtime import host
from tilewright.targets import NAMES


def test_a_kernel_stays_below_the_peak() -> None:
    kernel = tw.compile(tw.Gemm(64, 48, 64))
    of_peak = kernel.bench(seconds=0.05).of_peak
    assert of_peak is not None
    assert 0.2 < of_peak < 1.05
    assert tw.compile(tw.Transpose(8, 8)).bench(seconds=0.01).of_peak is None


def test_targets_are_told() -> None:
    told = tw.targets()  # type: ignore[operator]
    assert told.keys() == set(NAMES)
    assert told["scalar"] == told[host.resolve("host").name] == "native"
    import tilewright.targets as package

    assert package.load("scalar").name == "scalar"


def test_matmul() -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        a, b = rng.random((12, 9)).astype(dtype), rng.random((9, 7)).astype(dtype)
        for x in (a, np.asfortranarray(a), np.repeat(a, 2, 0)[::2], np.repeat(a, 2, 1)[:, ::2]):
            np.testing.assert_allclose(tw.matmul(x, b), a @ b, rtol=1e-5)
            np.testing.assert_allclose(tw.matmul(b.T, x.T), b.T @ a.T, rtol=1e-5)
        wide = np.zeros((12, 11), dtype)
        out = wide[:, 2:9]
        assert tw.matmul(a, b, out) is out
        np.testing.assert_allclose(out, a @ b, rtol=1e-5)
        np.testing.assert_allclose(tw.matmul(a[::-1], b), a[::-1] @ b, rtol=1e-5)
    with pytest.raises(ArgumentError, match="do not fit"):
        tw.matmul(a, a)
    with pytest.raises(ArgumentError, match="arrays of one type"):
        tw.matmul(a, b.astype(np.float32))
    with pytest.raises(ArgumentError, match=r"matmul's b must be a 2-d array.*"):
        tw.matmul(a, b[0])
