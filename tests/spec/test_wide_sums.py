"""What is asked for with sums of 64 bits, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, SpecError
from tilewright.plan.formats.lookup import format_of
from tilewright.runtime.machine.host import resolve


def test_a_c_of_s64_says_it_and_so_do_sums() -> None:
    spec = tw.Gemm(4, 5, 6, a="s16", b="u8", c="s64")
    assert (spec.type, spec.sums, spec.output) == ("s64", "s64", "c")
    assert spec == tw.Gemm(4, 5, 6, a=np.int16, b=np.uint8, c=np.int64)
    assert spec == tw.Gemm(4, 5, 6, a="s16", b="u8", sums="s64")
    assert repr(spec) == "Gemm(4, 5, 6, a='s16', b='u8', c='s64')"
    assert tw.Gemm(4, 5, 6, a="s16").type == "s32"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"a_scale": 0.5}, "a_scale cannot be had"),
        ({"b_scale": "column"}, "b_scale cannot be had"),
        ({"a_zero": 3}, "a_zero cannot be had"),
        ({"epilogue": tw.relu(tw.acc)}, "epilogue cannot be had"),
        ({"outputs": {"most": tw.row_max(tw.acc)}}, "outputs cannot be had"),
        ({"b2": "s16"}, "b2 cannot be had"),
        ({"d": "s32"}, "d cannot be had"),
        ({"alpha": 0.5}, "alpha cannot be had"),
        ({"beta": 2.5}, "beta cannot be had"),
        ({"beta": 2**31}, "beta must fit 32 bits"),
        ({"sums": "s32"}, "cannot be held so"),
        ({"a": "f32"}, "C cannot have this type"),
        ({"c": "s32", "d": "s64"}, "a D of s64 holds sums of 64 bits"),
        ({"c": "s32", "sums": "s64"}, "cannot be held so"),
        ({"a": "s64"}, "A cannot have this type"),
    ],
)  # fmt: skip
def test_what_no_target_makes_of_such_sums_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        tw.Gemm(4, 5, 6, **{"a": "s16", "c": "s64", **given})
    assert caught.value.got is not None


def test_operands_of_expressions_are_not_of_64_bits() -> None:
    with pytest.raises(SpecError, match="operand 'bias' cannot have this type"):
        tw.Operand("bias", "s64")


def test_factors_of_the_call_are_whole_and_of_32_bits() -> None:
    kernel = tw.compile(tw.Gemm(1, 2, 1, a="s16", c="s64", alpha="scalar"), target="scalar")
    a, b = np.full((1, 1), 3, np.int16), np.full((1, 2), -5, np.int16)
    assert kernel(a, b, alpha=2**31 - 1).tolist() == [[-15 * (2**31 - 1)] * 2]
    for alpha in (0.5, 2**31):
        with pytest.raises(ArgumentError, match="alpha must be a whole number"):
            kernel(a, b, alpha=alpha)


def test_a_packed_b_keeps_its_elements_and_has_no_sums() -> None:
    pack, other = (tw.Pack(30, 50, "s16", a="u16", sums=sums) for sums in ("s64", "s32"))
    narrow = format_of(pack, resolve("avx512"))
    assert (narrow.stored, narrow.group, narrow.sums) == ("s16", 1, False)
    assert format_of(other, resolve("avx512")).sums
    assert format_of(tw.Pack(30, 50, "s16", sums="s64"), resolve("sve256")).group == 4


def test_matmul_writes_sums_of_64_bits_where_it_is_given_such() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.choice([-32768, 32767], shape).astype(np.int16) for shape in ((9, 40), (40, 7)))
    want = a.astype(np.int64) @ b
    out = np.empty((9, 7), np.int64)
    assert tw.matmul(a, b, out) is out
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(tw.matmul(a, b, out, alpha=-2, beta=3), want)
    np.testing.assert_array_equal(tw.matmul(a, b, out, epilogue=tw.acc + 1), want + 1)
