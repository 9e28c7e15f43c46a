"""From floats to few bits: elements and scales by their definitions; what least squares gains."""

from __future__ import annotations

import warnings
from fractions import Fraction
from math import ceil, log2
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.errors import ArgumentError

Array = np.ndarray[Any, Any]
FORMATS = (
    tw.Quantized("u4", scale="f16", zero=8, block=32),
    tw.Quantized("s4", scale="f32", block=8),
    tw.Quantized("s8", scale="bf16", block=40),
    tw.Quantized("u8", scale="f32", zero=131, block=16),
    tw.Quantized("s2", scale="f16", block=16),
    tw.Quantized("s8", scale="e8m0", block=32),
    tw.Quantized("u4", scale="f16", zero="u4", block=32),
    tw.Quantized("s4", scale="f16", zero="s4", block=64),
    tw.Quantized("u4", scale="f16", zero="f16", block=32),
    tw.Quantized("u2", scale="f32", zero="bf16", block=16),
    tw.Quantized("f4_e2m1", scale="e8m0", block=32),
    tw.Quantized("f4_e2m1", scale="f8_e4m3", block=16),
    tw.Quantized("f4_e2m1", scale="f16", zero="f32", block=40),
)
METHODS: tuple[Literal["nearest", "least_squares"], ...] = ("nearest", "least_squares")
DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8_e4m3": ml_dtypes.float8_e4m3fn,
}
F4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def weights(k: int, n: int, seed: int) -> Array:
    """Columns of different sizes, not around 0; one of zeros, but for an element."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(k, n)) * 2.0 ** rng.integers(-4, 5, n) + rng.normal(size=n)
    w[:, 0] = 0
    w[0, 0] = 1 / 256
    return w.astype(np.float32)


def numbers_of(form: tw.Quantized) -> list[Fraction]:
    """All that an element can be before its scale, a zero point of all subtracted."""
    if form.type == "f4_e2m1":
        return sorted({Fraction(sign * value) for value in F4 for sign in (1, -1)})
    return [Fraction(q - form.offset) for q in range(form.stored.low, form.stored.high + 1)]


def rounded(scale: float, name: str) -> float:
    """To the scale's type, by ml_dtypes; e8m0 upwards."""
    if name == "e8m0":
        return float(2.0 ** min(127, max(-127, ceil(log2(scale))))) if scale else 2.0**-127
    return float(np.asarray(scale, DTYPES[name]))


def covering(least: float, most: float, form: tw.Quantized) -> float:
    """The nearest scale to that which reaches both, or the next where it is half a step short."""
    numbers = [float(number) for number in numbers_of(form)]
    nearest = rounded(max(most / numbers[-1], least / numbers[0]), form.scale)
    low, high = 1.5 * numbers[0] - numbers[1] / 2, 1.5 * numbers[-1] - numbers[-2] / 2
    if nearest * low <= least and most <= nearest * high:
        return nearest
    dtype = DTYPES[form.scale]
    return float(np.nextafter(np.asarray(nearest, dtype), np.asarray(448, dtype)))


def along(form: tw.Quantized) -> int:
    """The elements of a block, which is one of a column."""
    assert form.along is not None and form.columns == 1
    return form.along


def parts(b: tw.QuantizedMatrix, row: int, column: int) -> tuple[Fraction, Fraction]:
    """The scale of an element's block, and what the number 0 stands for there."""
    block = row // along(b.format)
    if b.format.scale == "e8m0":
        scale = Fraction(2) ** (int(b.scales[block, column]) - 127)
    else:
        scale = Fraction(float(b.scales[block, column]))
    if b.zeros is None:
        return scale, Fraction(0)
    zero = Fraction(float(b.zeros[block, column]))
    return scale, zero if b.format.zeros == "minima" else -scale * zero


def assert_within_half_a_step(w: Array, b: tw.QuantizedMatrix) -> None:
    """Each element of ``w`` is at most half a step from its number, exactly."""
    stored = b.format.stored
    if stored.floating:
        every = np.sort(np.unique(decode(np.arange(1 << stored.bits, dtype=np.uint8), b.format)))
    else:
        every = np.arange(stored.low, stored.high + 1.0)
    gaps = np.diff(every[np.isfinite(every)])
    values = decode(b.q, b.format)
    at = np.searchsorted(every[np.isfinite(every)], values)
    padded = np.concatenate([gaps[:1], gaps, gaps[-1:]])
    step = np.maximum(padded[at], padded[at + 1])  # the wider of both sides
    k = len(w)
    scales = decode_scales(b.scales, b.format.scale)
    spread = np.repeat(np.repeat(scales, b.format.block_of(k), 0)[:k], b.format.columns, 1)
    spread = spread[:, : w.shape[1]]
    zeros: Any = float(b.format.offset)
    if b.zeros is not None:
        wide = np.repeat(b.zeros.astype(np.float64), b.format.block_of(k), 0)[:k]
        zeros = np.repeat(wide, b.format.columns, 1)[:, : w.shape[1]]
    minima = zeros if b.format.zeros == "minima" else -spread * zeros
    off = np.abs(spread * values + minima - w.astype(np.float64))
    assert (off <= spread * step / 2 * (1 + 1e-12)).all()


def decode(codes: Array, form: tw.Quantized) -> Array:
    """What codes or integers are, by ml_dtypes."""
    if form.type == "f4_e2m1":
        found: Array = np.where(codes > 7, -1, 1) * np.array(F4)[codes % 8]
        return found
    types = {"f8_e4m3": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2}
    given = codes.view(types[form.type]) if form.type in types else codes
    return given.astype(np.float64)


def decode_scales(scales: Array, name: str) -> Array:
    """Scales as float64, by numpy and ml_dtypes."""
    if name == "e8m0":
        return np.asarray(np.exp2(scales.astype(np.float64) - 127))
    found: Array = scales.view(DTYPES[name]).astype(np.float64)
    return found


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_each_element_becomes_the_nearest_number(form: tw.Quantized, method: Any) -> None:
    k, n = 2 * along(form) + 5, 4
    w = weights(k, n, 0)
    b = tw.quantize(w, form, method=method)
    numbers = numbers_of(form)
    for row in (*range(0, k, 7), along(form) - 1, 2 * along(form), k - 1):
        for column in range(n):
            scale, least = parts(b, row, column)
            code = int(b.q[row, column])
            sign = -1 if code > 7 else 1
            got = sign * F4[code % 8] if form.type == "f4_e2m1" else code - form.offset
            exact = Fraction(float(w[row, column])) - least
            off = min(abs(scale * number - exact) for number in numbers)
            # float64 decides, so that a tie to its last bit may go either way
            assert abs(scale * Fraction(got) - exact) <= off + abs(scale) * Fraction(2) ** -40


@pytest.mark.parametrize("form", [form for form in FORMATS if not form.zeros], ids=str)
def test_scales_come_of_the_greatest_magnitude(form: tw.Quantized) -> None:
    w = weights(2 * along(form) + 3, 5, 1)
    b = tw.quantize(w, form)
    for block, column in np.ndindex(*b.scales.shape):
        part = w[block * along(form) : (block + 1) * along(form), column].astype(np.float64)
        right = covering(min(part.min(), 0), max(part.max(), 0), form)
        assert parts(b, block * along(form), column)[0] == right


@pytest.mark.parametrize("form", [form for form in FORMATS if form.zeros], ids=str)
def test_blocks_with_zeros_span_their_range(form: tw.Quantized) -> None:
    """No element is farther off than half a step, whatever rounding did to zeros and scales."""
    w = weights(3 * along(form), 6, 2)
    w[:, 5] += 1000  # its minima are rounded by several steps
    w[:, 4] = 0.1
    assert_within_half_a_step(w, tw.quantize(w, form))


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_least_squares_is_never_farther_off(form: tw.Quantized) -> None:
    w = weights(4 * along(form) + 3, 64, 3)
    errors = []
    for method in METHODS:
        off = np.square(tw.quantize(w, form, method=method).dequantize() - w.astype(np.float64))
        edges = range(0, len(w), along(form))
        errors.append(np.add.reduceat(off, edges, axis=0))
    # the sums were compared before dequantize rounded elements to f32
    assert (errors[1] <= errors[0] * (1 + 1e-4) + 1e-12).all()
    assert errors[1].sum() < errors[0].sum()


@pytest.mark.parametrize("zero", [8, "u4", "f16"])
def test_a_block_of_columns_is_quantized_as_one_of_a_column(zero: Any) -> None:
    """The last ones along K and across are smaller."""
    w = weights(70, 11, 5)
    b = tw.quantize(w, tw.Quantized("u4", zero=zero, block=(32, 4)))
    assert b.scales.shape == (3, 3)
    for block, across in np.ndindex(3, 3):
        at = slice(32 * block, 32 * block + 32), slice(4 * across, 4 * across + 4)
        alone = tw.quantize(w[at].reshape(-1, 1), tw.Quantized("u4", zero=zero))
        assert (alone.q[:, 0] == b.q[at].reshape(-1)).all()
        assert alone.scales[0, 0] == b.scales[block, across]
        assert (alone.dequantize()[:, 0] == b.dequantize()[at].reshape(-1)).all()


def test_least_squares_takes_a_negative_scale_where_one_end_is_longer() -> None:
    form = tw.Quantized("s4", scale="f32", block=32)
    w = np.zeros((32, 2), np.float32)
    w[:8] = [[value, -value] for value in (8, 7, 6, 5, 4, 3, 2, -7)]
    b = tw.quantize(w, form, method="least_squares")
    assert b.scales.tolist() == [[-1, 1]] and (b.dequantize() == w).all()


@pytest.mark.parametrize("type_", ["s4", "u4", "s8", "f4_e2m1", "f8_e4m3"])
def test_without_a_zero_point_nothing_is_subtracted(type_: Any) -> None:
    """None says what 0 says: the format is the same one, and 0 stands for 0."""
    form = tw.Quantized(type_, scale="f16", zero=None, block=32)
    assert form == tw.Quantized(type_, scale="f16", zero=0, block=32)
    assert form == tw.Quantized(type_, scale="f16", block=32) and form.zero == 0
    assert repr(form) == repr(tw.Quantized(type_, scale="f16", block=32))
    w = np.random.default_rng(6).normal(size=(64, 3)).astype(np.float32)
    w = np.abs(w) if type_ == "u4" else w
    w[3] = 0
    b = tw.quantize(w, form)
    assert b.zeros is None and not b.dequantize()[3].any()
    assert_within_half_a_step(w, b)
    again = tw.quantize(b.dequantize(), form)
    assert (again.dequantize() == b.dequantize()).all()


def test_halfway_goes_to_the_even_code() -> None:
    form = tw.Quantized("f4_e2m1", scale="f32", block=32)
    w = np.zeros((32, 1), np.float32)
    w[:9, 0] = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -5]
    assert tw.quantize(w, form).q[:9, 0].tolist() == [7, 0, 2, 2, 4, 4, 6, 6, 14]


def test_zeros_are_exact_and_stay_so() -> None:
    for form in FORMATS:
        w = np.zeros((along(form), 3), np.float32)
        for method in METHODS:
            assert not tw.quantize(w, form, method=method).dequantize().any()


def test_all_types_and_orders_of_floats_are_taken() -> None:
    form = FORMATS[0]
    w = np.random.default_rng(0).integers(-50, 50, (2, 70, 9)).astype(np.float32)
    right = tw.quantize(w, form)
    for dtype in (np.float64, np.float16, ml_dtypes.bfloat16):
        got = tw.quantize(w.astype(dtype), form)
        assert (got.q == right.q).all() and (got.scales == right.scales).all()
    other = tw.quantize(np.asfortranarray(w), form)
    assert (other.q == right.q).all()
    assert (tw.quantize(w[1], form).q == right.q[1]).all()
    assert tw.quantize(w[:, :, :0], form).shape == (2, 70, 0)


def test_a_large_matrix_is_what_its_parts_are() -> None:
    """More than is quantized at once: blocks and columns are cut, and none depends on others."""
    rng = np.random.default_rng(4)
    w = rng.normal(size=(1 << 6, 1 << 12)).astype(np.float32)
    for block in (8, 64):
        form = tw.Quantized("u4", zero="u4", block=block)
        whole = tw.quantize(w, form)
        for at in (0, 1000, 4095):
            one = tw.quantize(w[:, at : at + 1], form)
            assert (one.q[:, 0] == whole.q[:, at]).all()
            assert (one.scales[:, 0] == whole.scales[:, at]).all()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([form for form in FORMATS if form.scale in ("f32", "bf16")]),
    st.sampled_from(METHODS),
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=8, max_size=48),
)
def test_any_finite_weights_have_a_block(form: tw.Quantized, method: Any, some: Any) -> None:
    """Subnormal, huge and mixed: no element is farther off than the range of its block."""
    w = np.array(some, np.float32)[:, None]
    b = tw.quantize(w, form, method=method)
    wide = b.dequantize().astype(np.float64) - w
    for start in range(0, len(w), along(form)):
        part = w[start : start + along(form)].astype(np.float64)
        span = max(part.max(), 0) - min(part.min(), 0)
        assert np.abs(wide[start : start + along(form)]).max() <= span * 1.02 + 1e-40


SCALES: Any = ("f32", "f16", "bf16", "e8m0", "f8_e4m3")
TYPES: Any = ("s8", "u8", "s6", "u5", "s4", "u4", "s3", "s2", "u2", "f4_e2m1", "f8_e4m3", "f8_e5m2")


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(TYPES),
    st.sampled_from(SCALES),
    st.sampled_from(["none", "zeros", "f32", "f16", "bf16"]),
    st.sampled_from([16, (16, 2)]),
    st.integers(0, 2**32 - 1),
    st.floats(-30, 14),
    st.sampled_from([0.0, 1.0, 30.0]),
)
def test_no_element_is_farther_off_than_half_a_step(
    type_: Any, scale: Any, zero: Any, block: Any, seed: int, size: float, shift: float
) -> None:
    """Of any size that the scale's type reaches: scales may not be rounded down too far."""
    point = {"none": 0, "zeros": type_}.get(zero, zero)
    if type_[0] == "f" and zero == "zeros":
        point = 0
    form = tw.Quantized(type_, scale=scale, zero=point, block=block)
    rng = np.random.default_rng(seed)
    w = (rng.normal(size=(32, 4)) + shift * rng.normal(size=4)) * 2.0**size
    w = np.abs(w) if type_[0] == "u" and zero == "none" else w
    w = w.astype(np.float32)
    greatest = 2.0 ** min({"f8_e4m3": 8, "f16": 14}.get(name, 100) for name in (scale, zero))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="elements become 0")
        warnings.filterwarnings("error", message="elements are beyond")
        if np.abs(w).max() <= greatest:
            assert_within_half_a_step(w, tw.quantize(w, form))


def test_scales_are_not_rounded_down_by_steps() -> None:
    """The nearest f8 scale to 1.09 / 127 would cut 1.09 off at 0.992."""
    w = np.zeros((32, 1), np.float32)
    w[:2, 0] = 1.09, -1.09
    for type_, scale in (("s8", "f8_e4m3"), ("s6", "f8_e4m3"), ("s8", "bf16"), ("u8", "bf16")):
        form: Any = tw.Quantized(type_, scale=scale, zero=type_, block=32)  # type: ignore[arg-type]
        for each in (form, tw.Quantized(type_, scale=scale, block=32)):  # type: ignore[arg-type]
            given = w if each.zeros or type_[0] == "s" else np.abs(w)
            assert_within_half_a_step(given, tw.quantize(given, each))


def test_a_scale_that_underflows_is_the_least_one() -> None:
    form = tw.Quantized("s8", scale="f16", block=32)
    w = np.full((32, 1), 2e-6, np.float32)
    b = tw.quantize(w, form)
    assert b.scales[0, 0] == np.float16(2.0**-24) and (b.q == round(2e-6 * 2**24)).all()


def test_what_no_scale_serves_is_warned_of() -> None:
    w = np.full((64, 2), 1.0, np.float32)
    w[40, 1] = 455 * 127  # 448 is the greatest scale, and 455 is rounded to it
    form = tw.Quantized("s8", scale="f8_e4m3", block=32)
    with pytest.warns(
        RuntimeWarning,
        match=r"beyond what scales of f8_e4m3 reach: blocks 1, first "
        r"57785 at w\[40, 1\]; try scale",
    ):
        b = tw.quantize(w, form)
    assert b.q[40, 1] == 127 and b.scales[1, 1] == 448
    w[32:, 1] = 1e-5
    with pytest.warns(RuntimeWarning, match=r"become 0[\s\S]*f8_e4m3[\s\S]*blocks 1, first 1e-05"):
        assert not tw.quantize(w, form).q[32:, 1].any()


# --- what is refused ---------------------------------------------------------------------------


def test_what_cannot_be_quantized_is_refused() -> None:
    form = FORMATS[0]
    w = np.ones((2, 40, 5), np.float32)
    bad = w.copy()
    bad[1, 33, 2] = np.nan
    huge = w.astype(np.float64)
    huge[0, 39, 4] = 1e300
    quantize: Any = tw.quantize
    cases: Any = (
        (lambda: quantize(bad, form), r"nan at w\[33, 2\] of matrix 1"),
        (lambda: quantize(huge, form), r"1e\+300 at w\[39, 4\]"),
        (lambda: quantize(-w, tw.Quantized("u4")), "no number of this sign"),
        (lambda: quantize(w, tw.Quantized("s4", zero=7)), "no number of this sign"),
        (lambda: quantize(w * 1e6, form), "the scale of a block is beyond f16"),
        (lambda: quantize(w * 1e6, FORMATS[8]), "the minimum of a block is beyond f16"),
        (lambda: quantize(w.astype(np.int8), form), "must be floating point"),
        (lambda: quantize(w.astype(np.uint16), form), "must be floating point"),
        (lambda: quantize([[1.0]], form), "must be an array"),
        (lambda: quantize(w[0, 0], form), "wrong shape"),
        (lambda: quantize(w, "u4"), "no low-bit format"),
        (lambda: quantize(w, form, method="best"), "unknown method"),
    )
    for make, said in cases:
        with pytest.raises(ArgumentError, match=said):
            make()
