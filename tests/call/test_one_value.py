"""Operands, scales and factors of one value: every kind of number, and arrays without axes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.runtime.kernel import Kernel

F32, BF16 = np.float32, ml_dtypes.bfloat16
ONES = np.ones((4, 4), F32)


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    specs = {
        "scales": tw.Gemm(4, 4, 4, epilogue=tw.acc * tw.Operand("s", "f32"), d_scale="scalar"),
        "factors": tw.Gemm(4, 4, 4, alpha="scalar", beta="scalar"),
        "small": tw.Gemm(4, 4, 4, epilogue=tw.acc * tw.Operand("s", "bf16")),
        "zero": tw.Gemm(4, 4, 4, a="u8", b="s8", a_zero="scalar"),
        "f64": tw.Gemm(4, 4, 4, a="f64", b="f64", epilogue=tw.acc * tw.Operand("s", "f64")),
    }
    built = tw.compile_many([(spec, None, "scalar") for spec in specs.values()])
    return dict(zip(specs, built, strict=True))


TWOS = [
    2, 2.0, np.float16(2), np.float32(2), np.int8(2), BF16(2), ml_dtypes.float8_e4m3fn(2),
    ml_dtypes.int4(2), np.array(2), np.array(2.0), np.array(2, F32), np.array(2, BF16),
    np.array([2, 3], F32)[0:1].reshape(()),
]  # fmt: skip


@pytest.mark.parametrize("two", TWOS, ids=lambda two: f"{type(two).__name__}-{two!r}")
def test_every_number_is_taken(kernels: dict[str, Kernel], two: Any) -> None:
    for again in range(2):  # the second time by the recipe of the first
        got = kernels["scales"](ONES, ONES, s=two, d_scale=1)
        np.testing.assert_array_equal(got, 8, err_msg=f"{again}")
        np.testing.assert_array_equal(kernels["scales"](ONES, ONES, s=1, d_scale=two), 2)
        c = np.full((4, 4), 3, F32)
        np.testing.assert_array_equal(kernels["factors"](ONES, ONES, c, alpha=two, beta=two), 14)
        np.testing.assert_array_equal(kernels["small"](ONES, ONES, s=two), 8)
        whole = ONES.astype(np.uint8), ONES.astype(np.int8)
        np.testing.assert_array_equal(kernels["zero"](*whole, a_zero=two), -4)
        wide = ONES.astype(np.float64)
        np.testing.assert_array_equal(kernels["f64"](wide, wide, s=two), 8)


def test_an_array_without_axes_is_an_array_of_its_type(kernels: dict[str, Kernel]) -> None:
    """Bits are bits, and what is read is what it holds when the kernel runs."""
    bits = np.array(0x4000, np.uint16)
    np.testing.assert_array_equal(kernels["small"](ONES, ONES, s=bits), 8)
    np.testing.assert_array_equal(kernels["small"](ONES, ONES, s=bits.reshape(1)), 8)
    scale = np.array(2, F32)
    out = np.zeros((4, 4), F32)
    bound = kernels["scales"].bind(ONES, ONES, out=out, s=scale, d_scale=1)
    scale[()] = 5
    bound()
    np.testing.assert_array_equal(out, 20)


@pytest.mark.parametrize(
    "other",
    [True, np.True_, np.array(True), "2", None, 2j, np.array(2j), np.array("2"), [2],
     np.datetime64(2, "s"), np.void(b"2"), np.ma.array(2.0)],
    ids=repr,
)  # fmt: skip
def test_what_is_no_number_is_refused(kernels: dict[str, Kernel], other: Any) -> None:
    for name, given in (
        ("scales", {"s": other, "d_scale": 1}),
        ("scales", {"s": 1, "d_scale": other}),
        ("small", {"s": other}),
        ("factors", {"alpha": other, "beta": 0, "c": ONES.copy()}),
    ):
        with pytest.raises(ArgumentError):
            kernels[name](ONES, ONES, **given)


@pytest.mark.parametrize("value", [2.5, BF16(2.5), np.array(2.5), BF16(np.nan), np.array(np.inf)])
def test_whole_numbers_stay_whole(kernels: dict[str, Kernel], value: Any) -> None:
    whole = ONES.astype(np.uint8), ONES.astype(np.int8)
    with pytest.raises(ArgumentError, match="a_zero must be a whole number"):
        kernels["zero"](*whole, a_zero=value)
