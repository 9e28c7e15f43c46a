"""D, and what is passed by name: scales, zero points, operands of an epilogue, numbers."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.runtime.kernel import Kernel
from tilewright.spec.expression import Operand, acc, dst
from tilewright.spec.gemm import Gemm, Spec

F32, F64, S32 = np.float32, np.float64, np.int32
COLUMN: dict[str, Any] = {"a": "u8", "b": "s8", "d": "u8"}

STEPS = np.array([1, 2, 0, 0], F32)

SPECS: dict[str, Spec] = {
    "column": Gemm(6, 4, 8, **COLUMN, b_scale="column", d_zero="scalar"),
    "row": Gemm(6, 4, 8, a="u8", b="s8", a_zero="row", a_scale="row", d="f32"),
    "one": Gemm(6, 4, 8, a="u8", b="s8", b_zero="scalar"),
    "d": Gemm(6, 4, 8, d="bf16"),
    "beta": Gemm(6, 4, 8, beta=1, d="f32"),
    "both": Gemm(6, 4, 8, beta="scalar", d="f32", d_scale="scalar"),
    "steps": Gemm(6, 4, 8, d_scale="column"),
    "scaled": Gemm(6, 4, 8, a_scale="scalar", b_scale="column"),
    "scaled f64": Gemm(6, 4, 8, a="f64", b="f64", b_scale="scalar"),
    "c": Gemm(6, 4, 8),
    "whole": Gemm(6, 4, 8, a="u8", b="s8", alpha="scalar", beta="scalar"),
    "bias": Gemm(6, 4, 8, epilogue=acc * Operand("slope", "f16") + Operand("bias", "s8", "column")),
    "full": Gemm(6, 4, 8, epilogue=acc + Operand("full", "bf16", "full")),
    "old": Gemm(6, 4, 8, epilogue=acc + 2 * dst),
    "rows": Gemm(6, 4, 8, outputs={"most": tw.row_max(acc), "total": tw.row_sum(acc)}),
    "gate": Gemm(6, 4, 8, b2="f32", epilogue=acc * tw.acc2),
    "dims": Gemm(tw.dim("m"), tw.dim("n"), 8, b_scale="column", a_scale="row", ldd=tw.dim("ldd")),
    "network": tw.network(tw.nn.softmax).of(x=tw.Tensor("f32", (6, 8))),
    "copy": tw.Copy(6, 8),
}  # fmt: skip


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    built = tw.compile_many([(spec, None, "scalar") for spec in SPECS.values()])
    return dict(zip(SPECS, built, strict=True))


def ones(*shape: int, dtype: Any = F32) -> np.ndarray[Any, Any]:
    return np.ones(shape, dtype)


A, B, C = ones(6, 8), ones(8, 4), ones(6, 4)
U8, S8 = ones(6, 8, dtype=np.uint8), ones(8, 4, dtype=np.int8)
SCALE = ones(4)

#: (kernel, arguments, named arguments, what the message says)
FAULTS: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    # vectors
    ("column", (U8, S8), {"b_scale": SCALE}, r"d_zero is missing.*kernel\(a, b, out=\.\.\., "
     r"b_scale=\.\.\., d_zero=\.\.\.\)"),
    ("column", (U8, S8), {"b_scale": ones(6), "d_zero": 0}, r"b_scale has the wrong shape.*\(6,\)"
     r".*\(4,\): n is 4"),
    ("column", (U8, S8), {"b_scale": ones(4, 1), "d_zero": 0}, r"b_scale must be a 1-d array.*2-d"
     r".*axes n.*b_scale\.reshape\(-1\)"),
    ("column", (U8, S8), {"b_scale": ones(8)[::2], "d_zero": 0}, "b_scale must be contiguous"),
    ("column", (U8, S8), {"b_scale": ones(4, dtype=F64), "d_zero": 0}, "b_scale has the wrong "
     r"dtype.*float64.*float32.*np\.float32"),
    ("column", (U8, S8), {"b_scale": 0.5, "d_zero": 0}, r"b_scale must be a numpy array\n"),
    ("column", (U8, S8), {"b_scale": [1.0] * 4, "d_zero": 0}, "must be a numpy array.*list"),
    ("column", (U8, S8), {"b_scale": SCALE.astype(">f4"), "d_zero": 0}, "wrong byte order"),
    ("column", (U8, S8, SCALE), {"d_zero": 0}, "too many arguments.*2: a, b.*out= takes"),
    ("column", (U8, S8), {"b_scale": SCALE, "d_zero": 0, "b_zero": 0}, r'no argument .b_zero.'
     r'.*b_zero="scalar"'),
    ("row", (U8, S8), {"a_zero": ones(4, dtype=S32), "a_scale": ones(6)}, r"a_zero has the wrong "
     r"shape.*\(6,\): m is 6"),
    ("row", (U8, S8), {"a_zero": ones(6, dtype=np.uint8), "a_scale": ones(6)}, "a_zero has the "
     "wrong dtype.*uint8.*int32"),
    ("dims", (A, B), {"b_scale": SCALE, "a_scale": ones(5)}, r"m is 6, from a\.shape\[0\]"),
    # one value
    ("one", (U8, S8), {"b_zero": 0.5}, "must be a whole number of type s32.*0.5.*2147483647"),
    ("one", (U8, S8), {"b_zero": 2**31}, "b_zero must be a whole number of type s32"),
    ("one", (U8, S8), {"b_zero": np.nan}, "b_zero must be a whole number of type s32"),
    ("one", (U8, S8), {"b_zero": -np.inf}, "b_zero must be a whole number of type s32"),
    ("one", (U8, S8), {"b_zero": True}, "b_zero must be a numpy array or a number.*bool"),
    ("one", (U8, S8), {"b_zero": "1"}, "b_zero must be a numpy array or a number.*str"),
    ("one", (U8, S8), {"b_zero": ones(2, dtype=S32)}, r"wrong shape.*\(2,\).*\(1,\)"),
    ("one", (U8, S8), {"b_zero": np.array([[1]], S32)}, r"b_zero must be a 1-d array.*2-d"),
    ("both", (A, B, C), {"beta": 1, "d_scale": 1e39}, "d_scale is too large for f32"),
    ("both", (A, B, C), {"beta": 1, "d_scale": 10**400}, "d_scale is too large"),
    ("both", (A, B, C), {"beta": 1, "d_scale": 1j}, "d_scale must be a numpy array or a number"),
    ("both", (A, B, C), {"beta": 1, "d_scale": 0}, "d_scale divides.*d_scale == 0.0.*5.877"),
    ("both", (A, B, C), {"beta": 1, "d_scale": 2.0**-128}, "d_scale divides"),
    ("both", (A, B, C), {"beta": 1, "d_scale": -np.inf}, "d_scale divides.*d_scale == -inf"),
    ("both", (A, B, C), {"beta": 1, "d_scale": np.array([np.nan], F32)}, "d_scale == nan"),
    ("scaled", (A, B), {"a_scale": np.nan, "b_scale": ones(4)},
     "a_scale must be a finite number of f32.*a_scale == nan.*finite"),
    ("scaled", (A, B), {"a_scale": np.array([-np.inf], F32), "b_scale": ones(4)},
     "a_scale == -inf"),
    ("scaled f64", (A.astype(F64), B.astype(F64)), {"b_scale": np.inf},
     "b_scale must be a finite number of f64"),
    ("steps", (A, B), {"d_scale": STEPS}, r"d_scale divides.*d_scale\[2\] == 0.0"),
    ("bias", (A, B), {"bias": ones(4, dtype=np.int8), "slope": 1e6}, "slope is too large for f16"),
    ("bias", (A, B), {"bias": ones(4, dtype=np.uint8), "slope": 1}, "bias has the wrong dtype"),
    ("full", (A, B), {"full": ones(6, 4)}, r"full has the wrong dtype.*float32"
     r".*ml_dtypes\.bfloat16, or its bits as uint16"),
    ("full", (A, B), {"full": ones(4, 6, dtype=np.uint16)}, r"full has the wrong shape.*\(4, 6\)"),
    # alpha and beta of integers
    ("whole", (U8, S8, ones(6, 4, dtype=S32)), {"alpha": 0.5, "beta": 1}, "alpha must be a whole "
     "number of type s32"),
    ("whole", (U8, S8, ones(6, 4, dtype=S32)), {"alpha": 1, "beta": 2**31}, "beta must be a whole"),
    ("whole", (U8, S8, ones(6, 4, dtype=S32)), {"alpha": "1", "beta": 1}, "alpha must be a Python"),
    # C and D
    ("d", (A, B, C), {}, "too many arguments.*out= takes the array for D"),
    ("d", (A, B), {"c": C}, "no argument 'c'.*beta is 0, so C is not read"),
    ("d", (A, B), {"out": C}, "d has the wrong dtype.*float32.*bfloat16"),
    ("d", (A, B), {"out": ones(4, 6, dtype=np.uint16)}, "d has the wrong shape"),
    ("d", (A, B), {"out": np.broadcast_to(np.uint16(0), (6, 4))}, "d is read-only"),
    ("d", (A, B), {"out": ones(12, 4, dtype=np.uint16)[::2]}, r'd is a strided view.*ldd=tw\.dim'),
    ("beta", (A, B), {}, r"c is missing.*kernel\(a, b, c, out=\.\.\.\)"),
    ("beta", (A, B), {"out": C}, "c is missing"),
    ("beta", (A, B, C, C), {}, "too many arguments.*3: a, b, c"),
    ("beta", (A, B, C), {"c": C}, "c is given twice"),
    ("beta", (A, B, C), {"out": B[:6]}, "d shares elements with b"),
    ("c", (A, B), {"d": C}, "no argument 'd'.*out= takes"),
    # outputs, and a second B
    ("rows", (A, B), {"most": ones(4), "total": ones(6)}, r"most has the wrong shape.*m is 6"),
    ("rows", (A, B), {"most": 1.0, "total": ones(6)}, "most must be a numpy array"),
    ("rows", (A, B), {"most": np.broadcast_to(F32(0), 6), "total": ones(6)}, "most is read-only"),
    ("rows", (A, B, C), {"most": C.reshape(-1)[:6], "total": ones(6)}, "c shares .* with most"),
    ("rows", (A, B), {"most": B[0:2].reshape(-1)[:6], "total": ones(6)}, "most shares .* with b"),
    ("gate", (A, B), {}, r"b2 is missing.*kernel\(a, b, b2=\.\.\., out=\.\.\.\)"),
    ("gate", (A, B), {"b2": ones(4, 8)}, r"b2 has the wrong shape"),
    ("gate", (A, B, B), {}, "too many arguments"),
    ("old", (A, B), {}, r"d is missing.*kernel\(a, b, out=\.\.\.\)"),
    # no product: nothing of C, beta and scales
    ("network", (A,), {"c": C}, r"no argument 'c'.*kernel\(x, out\)(?!.*try:)"),
    ("network", (A,), {"d": C}, "no argument 'd'.*out= takes the array that is written"),
    ("copy", (A,), {"b_scale": 1}, r"no argument 'b_scale'(?!.*try:)"),
    ("copy", (A, A), {}, "too many arguments.*out= takes the array that is written"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "named", "says"), FAULTS, ids=range(len(FAULTS)))
def test_a_fault_is_explained(
    kernels: dict[str, Kernel],
    name: str,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    says: str,
) -> None:
    given = [a for a in (*arguments, *named.values()) if isinstance(a, np.ndarray)]
    before = [array.copy() for array in given]
    for call in (kernels[name], kernels[name].bind):
        with pytest.raises(ArgumentError) as caught:
            call(*arguments, **named)
        assert re.search(says, str(caught.value), re.DOTALL), str(caught.value)
        assert "test_named.py" in str(caught.value)
    for array, old in zip(given, before, strict=True):
        np.testing.assert_array_equal(array, old)


def test_numbers_where_one_value_is_taken(kernels: dict[str, Kernel]) -> None:
    want = U8.astype(S32) @ (S8.astype(S32) - 3)
    for three in (3, 3.0, np.int8(3), F32(3), np.array([3], S32)):
        np.testing.assert_array_equal(kernels["one"](U8, S8, b_zero=three), want)
    for half in (0.5, np.float16(0.5), F64(0.5), np.array([0.5], F32)):
        np.testing.assert_array_equal(kernels["both"](A, B, C, beta=2, d_scale=half), 20)
    smallest = kernels["both"](0 * A, B, 0 * C, beta=2, d_scale=-(2.0**-127))
    np.testing.assert_array_equal(smallest, 0)
    with pytest.raises(ArgumentError):
        kernels["both"](A, B, C, beta=2, d_scale=Fraction(1, 2))


def test_scales_that_multiply(kernels: dict[str, Kernel]) -> None:
    """One number is finite, also 0; arrays are data, in which NaN and Inf are allowed."""
    columns = np.array([0, np.inf, np.nan, -2], F32)
    for one in (0, -0.5, 2.0**100, np.array([2.0**-149], F32)):
        found = kernels["scaled"](A, B, a_scale=one, b_scale=columns)
        with np.errstate(invalid="ignore", over="ignore"):
            np.testing.assert_array_equal(found[0], F32(8) * (F32(one) * columns))
    found = kernels["scaled f64"](A.astype(F64), B.astype(F64), b_scale=2.0**1000)
    assert (found == 2.0**1003).all()


def test_every_way_to_give_d(kernels: dict[str, Kernel]) -> None:
    kernel, c = kernels["beta"], np.arange(24, dtype=F32).reshape(6, 4)
    before, want = c.copy(), c + 8
    for call in (
        lambda d: kernel(A, B, c, out=d),
        lambda d: kernel(A, B, c=c, out=d),
        lambda d: kernel(a=A, b=B, c=c, out=d),
        lambda d: kernel(A, B, c, d=d),
    ):
        d = np.full((6, 4), np.nan, F32)
        assert call(d) is d
        np.testing.assert_array_equal(d, want)
    for made in (kernel(A, B, c), kernel(A, B, c=c, out=None)):
        assert made is not c
        np.testing.assert_array_equal(made, want)
    np.testing.assert_array_equal(c, before)
    assert kernel(A, B, c, out=c) is c
    np.testing.assert_array_equal(c, want)
    bound = kernel.bind(A, B, c, out=c)
    assert bound() == 0
    np.testing.assert_array_equal(c, want + 8)
    d = np.zeros((6, 4), np.uint16)
    assert kernels["d"](A, B, None, out=d) is d
    assert kernels["d"](A, B, c=None, out=d) is d
    np.testing.assert_array_equal(d.view(ml_dtypes.bfloat16).astype(F32), 8)


def test_d_is_made_for_the_sizes_of_the_call(kernels: dict[str, Kernel]) -> None:
    made = kernels["dims"](A, B, a_scale=np.arange(6, dtype=F32), b_scale=SCALE)
    assert made.shape == (6, 4)
    np.testing.assert_array_equal(made, np.outer(8 * np.arange(6), np.ones(4)))


def test_what_d_was(kernels: dict[str, Kernel]) -> None:
    d = np.arange(24, dtype=F32).reshape(6, 4)
    assert kernels["old"](A, B, out=d) is d
    np.testing.assert_array_equal(d, 8 + 2 * np.arange(24).reshape(6, 4))


def test_operands_of_an_epilogue(kernels: dict[str, Kernel]) -> None:
    bias = np.arange(-2, 2, dtype=np.int8)
    got = kernels["bias"](A, B, bias=bias, slope=0.5)
    np.testing.assert_array_equal(got, np.broadcast_to(4 + bias, (6, 4)))
    full = np.arange(24).reshape(6, 4).astype(ml_dtypes.bfloat16)
    for given in (full, full.view(np.uint16)):
        np.testing.assert_array_equal(kernels["full"](A, B, full=given), 8 + full.astype(F32))


@pytest.mark.parametrize("name", SPECS)
def test_all_of_them_are_right(kernels: dict[str, Kernel], name: str) -> None:
    assert kernels[name].verify(cases=5).cases == 5


def test_outputs_of_rows(kernels: dict[str, Kernel]) -> None:
    b = B * np.arange(4, dtype=F32)
    for c in (None, np.full((6, 4), np.nan, F32)):
        most, total = ones(6), ones(6)
        got = kernels["rows"](A, b, c, most=most, total=total)
        assert c is None or got is c
        np.testing.assert_array_equal(got, A @ b)
        np.testing.assert_array_equal(most, 24)
        np.testing.assert_array_equal(total, 48)


def test_a_second_b(kernels: dict[str, Kernel]) -> None:
    np.testing.assert_array_equal(kernels["gate"](A, B, b2=2 * B), 8 * 16)
    np.testing.assert_array_equal(kernels["gate"](b2=B, a=A, b=B), 64)
