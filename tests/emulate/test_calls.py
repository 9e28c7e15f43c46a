"""Calls of every kind of argument through a runner process, and timings of them in this one."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import TargetError
from tilewright.runtime.emulate.calls import span
from tilewright.runtime.machine import host
from tilewright.targets import load

EMULATED = "neon" if host.machine() != "aarch64" else "avx2"
QUANTISED: dict[str, Any] = {"a": "u8", "d": "s8", "a_zero": "scalar", "b_scale": "column"}
SPECS = [
    tw.Gemm(5, 7, 9, b="s8", **QUANTISED),
    tw.Gemm(5, 7, 9, b=tw.Packed("s8"), batch=tw.Strided(2), **QUANTISED),
    tw.Gemm(5, 7, 9, b=tw.Packed("s8"), batch=tw.Addresses(2), beta=1, **QUANTISED),
    tw.Gemm(5, 7, 9, a="f8_e5m2", b="bf16", c="f16", d="f8_e5m2", beta=1, ldd=tw.dim("ldd")),
    tw.Gemm(5, 7, 9, epilogue=tw.relu(tw.acc + tw.Operand("bias", "bf16", "row")) - tw.dst),
]


@pytest.fixture(scope="module")
def emulated() -> list[tw.Kernel]:
    try:
        host.means(load(EMULATED))
    except TargetError:
        pytest.skip(f"nothing here runs {EMULATED}")
    return tw.compile_many([(spec, None, EMULATED) for spec in SPECS])


@pytest.mark.parametrize("number", range(len(SPECS)))
def test_every_argument_travels(emulated: list[tw.Kernel], number: int) -> None:
    assert emulated[number].emulated
    assert emulated[number].verify(cases=4).cases == 4


def test_d_may_be_c_there_too(emulated: list[tw.Kernel]) -> None:
    spec = tw.Gemm(4, 3, 2, beta=2, d="f32", ldc=tw.dim("ldc"), ldd=tw.dim("ldd"))
    kernel = tw.compile(spec, target=EMULATED)
    wide = np.full((4, 5), 7, np.float32)
    a, b, c = np.ones((4, 2), np.float32), np.ones((2, 3), np.float32), wide[:, :3]
    assert kernel(a, b, c, out=c) is c
    np.testing.assert_array_equal(c, 16)
    np.testing.assert_array_equal(wide[:, 3:], 7)
    d = kernel(a, b, c)
    np.testing.assert_array_equal(d, 34)
    np.testing.assert_array_equal(c, 16)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, np.float64, np.int8])
def test_the_span_of_an_array_is_bytes(dtype: Any) -> None:
    whole = np.arange(24).astype(dtype).reshape(4, 6)
    view = whole[1:3, 2:5]
    np.testing.assert_array_equal(span(view).view(dtype), whole.reshape(-1)[8:17])
    assert span(view).data.nbytes == 9 * whole.itemsize


@pytest.mark.parametrize("cold", [False, True])
def test_every_argument_is_timed(cold: bool) -> None:
    for spec in SPECS[:3]:
        timing = tw.compile(spec, target="scalar").bench(cold=cold, seconds=0.01)
        assert timing.median > 0
        assert timing.of_peak is not None
