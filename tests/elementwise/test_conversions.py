"""Conversions between f32 and the types in memory: all small values, all edges of rounding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.spellings.floats import everywhere, same
from support.spellings.scalar_c import compiled

from tilewright.elementwise.builder import Argument, Builder, Value, run
from tilewright.elementwise.conversions import narrow, saturate, widen

FLOATS = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
INTEGERS: dict[str, Any] = {"s8": np.int8, "u8": np.uint8, "s32": np.int32}
every_float = pytest.mark.parametrize("name", FLOATS)
every_integer = pytest.mark.parametrize("name", INTEGERS)


def program(
    write: Callable[..., Argument], name: str, element: str
) -> tuple[Builder, Value, Value]:
    b = Builder()
    given = b.input(element)
    result = write(b, given, name)
    assert isinstance(result, Value)
    return b, given, result


def converted(write: Callable[..., Argument], name: str, lanes: Any) -> Any:
    element = "f32" if lanes.dtype == np.float32 else "s32"
    b, given, result = program(write, name, element)
    return run(b.steps, {given: lanes})[result]


def codes(dtype: np.dtype[Any]) -> Any:
    """Every value of a type, as its bits."""
    return np.arange(256**dtype.itemsize, dtype=f"u{dtype.itemsize}")


def edges(dtype: np.dtype[Any]) -> Any:
    """Every value of a type, the middle to the next, and their neighbours in f32."""
    with np.errstate(all="ignore"):
        wide = codes(dtype).view(dtype).astype(np.float64)
        wide = np.unique(wide[np.isfinite(wide)])
        step = wide[-1] - wide[-2]
        wide = np.concatenate([wide, [wide[-1] + step, wide[-1] + 2 * step]])
        middles = (wide[1:] + wide[:-1]) / 2
        exact = np.concatenate([wide, middles]).astype(np.float32)
        near = [np.nextafter(exact, np.float32(end)) for end in (-np.inf, np.inf)]
        found = np.concatenate([exact, *near])
        return np.concatenate([found, -found, everywhere(200)])


@every_float
def test_every_small_value_is_widened_exactly(name: str) -> None:
    dtype = FLOATS[name]
    found = converted(widen, name, codes(dtype).astype(np.int32))
    assert same(found, codes(dtype).view(dtype).astype(np.float32)).all()


@pytest.mark.parametrize("name", ["f16", "f8_e4m3", "f8_e5m2"])
def test_no_number_on_the_way_is_subnormal(name: str) -> None:
    """Cores of Intel take some 150 cycles for a product of one."""
    b, given, _ = program(widen, name, "s32")
    values = run(b.steps, {given: codes(FLOATS[name]).astype(np.int32)})
    for step in b.steps:
        found = values[step.dst]
        if step.dst.element == "f32":
            assert not ((abs(found) > 0) & (abs(found) < 2.0**-126)).any(), step


@every_float
def test_narrowing_rounds_to_nearest_even(name: str) -> None:
    dtype, x = FLOATS[name], edges(FLOATS[name])
    with np.errstate(all="ignore"):
        want = x.astype(dtype)
    found = converted(narrow, name, x)
    assert found.min() >= 0 and found.max() < 256**dtype.itemsize, "bits are zero-extended"
    values = found.astype(f"u{dtype.itemsize}").view(dtype)
    nan = np.isnan(want.astype(np.float32))
    assert np.isnan(values.astype(np.float32))[nan].all()
    assert (found == want.view(f"u{dtype.itemsize}"))[~nan].all()
    assert nan.sum() > 100


def test_a_nan_is_quiet_in_bf16() -> None:
    signalling = np.array([0x7F800001, -0x7FFFFF, 0x7FFFFFFF], np.int32).view(np.float32)
    assert (converted(narrow, "bf16", signalling) & 0x40).all()


@every_integer
def test_f32_to_integers_rounds_half_to_even_and_saturates(name: str) -> None:
    info = np.iinfo(INTEGERS[name])
    halves = np.arange(-300, 300, 0.25, dtype=np.float32)
    ends = np.array([info.min, info.max, 2147483520, -(2.0**31), -2147483904], np.float32)
    near = [np.nextafter(ends, np.float32(end)) for end in (-np.inf, np.inf)]
    x = np.concatenate([halves, ends, *near, everywhere(200)])
    with np.errstate(invalid="ignore"):  # signalling NaN
        want = np.clip(np.rint(np.nan_to_num(x.astype(np.float64))), info.min, info.max)
    assert (converted(narrow, name, x) == want).all()


@every_integer
def test_s32_saturates(name: str) -> None:
    info, rng = np.iinfo(INTEGERS[name]), np.random.default_rng(0)
    x = np.concatenate(
        [np.arange(-400, 400), [2**31 - 1, -(2**31)], rng.integers(-(2**31), 2**31, 1000)]
    ).astype(np.int32)
    b = Builder()
    given = b.input("s32")
    result = saturate(b, given, name)
    values = {given: x, **run(b.steps, {given: x})}
    assert isinstance(result, Value)
    assert (values[result] == np.clip(x, info.min, info.max)).all()


@every_integer
def test_integers_are_widened_as_numpy_does(name: str) -> None:
    x = np.random.default_rng(0).integers(-(2**31), 2**31, 10000).astype(np.int32)
    x = np.append(x, [2**24 + 1, 2**24 + 3, 2**31 - 1]).astype(np.int32)
    assert same(converted(widen, name, x), x.astype(np.float32)).all()


def test_f32_is_itself() -> None:
    b = Builder()
    x = b.input()
    assert widen(b, x, "f32") is x and narrow(b, x, "f32") is x


@pytest.mark.parametrize("write", [widen, narrow])
@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_c_gives_the_same_bits(write: Callable[..., Argument], name: str, tmp_path: Path) -> None:
    b, given, result = program(write, name, "s32" if write is widen else "f32")
    samples: dict[Any, Any] = {narrow: everywhere(400), widen: np.arange(2**16, dtype=np.int32)}
    x = samples[write]
    assert same(compiled(b, [given], result, tmp_path)(x), run(b.steps, {given: x})[result]).all()
