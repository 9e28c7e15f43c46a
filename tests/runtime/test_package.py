"""What the package offers beside kernels: targets told, the share of the peak."""

from __future__ import annotations

import tilewright as tw
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
