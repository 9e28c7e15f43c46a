"""Elements as exact numbers and back, against numpy and ml_dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.runtime.arrays.elements import INTEGERS, decode, encode, epsilon, in_range, nearest
from tilewright.spec.types import TYPES

SMALL: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8_e4m3": ml_dtypes.float8_e4m3fn,
    "f8_e5m2": ml_dtypes.float8_e5m2,
}


def every(dtype: Any) -> np.ndarray[Any, Any]:
    bits = 8 * np.dtype(dtype).itemsize
    return np.arange(1 << bits).astype(f"u{bits // 8}").view(dtype)


@pytest.mark.parametrize(("name", "dtype"), SMALL.items())
def test_every_element_is_decoded(name: str, dtype: Any) -> None:
    numbers = decode(every(dtype), name)
    with np.errstate(invalid="ignore"):
        want = every(dtype).astype(np.float64)
    np.testing.assert_array_equal(numbers, want)
    signs = [np.signbit(array)[~np.isnan(want)] for array in (numbers, want)]
    np.testing.assert_array_equal(signs[0], signs[1])
    bits = every(dtype).view(f"u{np.dtype(dtype).itemsize}")
    if name != "f16":
        np.testing.assert_array_equal(decode(bits, name), numbers)


@pytest.mark.parametrize(("name", "dtype"), SMALL.items())
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_numbers_are_rounded_once(name: str, dtype: Any) -> None:
    """Random f32 of all exponents, and all that lie half-way between two elements or beside."""
    held = decode(every(dtype), name)
    finite = np.sort(held[np.isfinite(held)])
    halves = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    random = np.random.default_rng(0).integers(0, 1 << 32, 100_000, np.uint32).view(np.float32)
    beside = [np.nextafter(halves, np.float32(end)) for end in (-np.inf, np.inf)]
    top = np.float32(finite[-1])
    edges = np.array(
        [np.inf, -np.inf, np.nan, 0.0, -0.0, top, 1.03 * top, 1.1 * top, -2 * top], np.float32
    )
    numbers = np.concatenate([halves, *beside, random[np.isfinite(random)], edges])
    got, want = encode(numbers.astype(np.float64), name), numbers.astype(dtype)
    assert got.dtype == dtype
    same = got.view(f"u{got.itemsize}") == want.view(f"u{got.itemsize}")
    assert np.all(same | np.isnan(numbers))
    assert np.all(np.isnan(decode(got, name)[np.isnan(numbers)]))
    rounded = nearest(numbers.astype(np.float64), name)
    finite_ones = np.isfinite(rounded)
    np.testing.assert_array_equal(rounded[finite_ones], decode(got, name)[finite_ones])
    np.testing.assert_array_equal(in_range(numbers, name), finite_ones)


@pytest.mark.parametrize("name", sorted(INTEGERS.keys() - {"s64"}))
def test_integers_saturate_and_round_half_to_even(name: str) -> None:
    low, high = INTEGERS[name]
    numbers = np.array([0.5, 1.5, 2.5, 3.49, -1e30, 1e30, np.nan, np.inf, -np.inf, 7])
    want = [0, 2, 2, 3, low, high, 0, high, low, 7]
    assert nearest(numbers, name).tolist() == want
    assert encode(numbers, name).tolist() == want
    below = nearest(np.array([-2.5, -0.5, -200.0]), name).tolist()
    assert below == [max(low, x) for x in (-2, 0, -200)]


def test_whole_numbers_stay_whole() -> None:
    wide = np.array([2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1])
    assert nearest(wide, "s32").tolist() == [2**31 - 1, 2**31 - 1, -(2**31), 2**31 - 1]
    assert nearest(wide, "s64").tolist() == wide.tolist()
    assert decode(np.array([255], np.uint8), "u8").dtype == np.int64


def test_the_distance_from_one() -> None:
    for name, dtype in {**SMALL, "f32": np.float32, "f64": np.float64}.items():
        one = np.array([1], dtype)
        after = (one.view(f"u{one.itemsize}") + 1).view(dtype).astype(np.float64)
        assert after[0] - 1 == epsilon(name)
    assert {name for name in TYPES if TYPES[name].kind == "float"} == {*SMALL, "f32", "f64"}
