"""``kernel.numba``: kernels called from code that numba compiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import SpecError

numba = pytest.importorskip("numba", reason="numba is not installed")
RNG = np.random.default_rng(0)
BIAS = tw.Operand("bias", "f32", per="column")


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape, np.float32)


def compiled(kernel: tw.Kernel, numbers: int = 0, arrays: int = 3) -> Any:
    """A function of numba that calls a kernel with so many arguments."""
    function = kernel.numba

    def plain(a: Any, b: Any, c: Any) -> None:
        function(a, b, c)

    def more(a: Any, b: Any, c: Any, x: Any, y: Any) -> None:
        function(a, b, c, x, y)

    return numba.njit(plain if (arrays, numbers) == (3, 0) else more)


@pytest.fixture(scope="module")
def fixed() -> Any:
    return compiled(tw.compile(tw.Gemm(4, 6, 5)))


def test_a_kernel_in_compiled_code(fixed: Any) -> None:
    a, b, c = floats(4, 5), floats(5, 6), np.zeros((4, 6), np.float32)
    fixed(a, b, c)
    np.testing.assert_allclose(c, a @ b, atol=1e-5)
    c[:] = 0
    tw.compile(tw.Gemm(4, 6, 5)).numba(a, b, c)
    np.testing.assert_allclose(c, a @ b, atol=1e-5)


def test_a_parallel_loop() -> None:
    product = tw.compile(tw.Gemm(4, 6, 5)).numba

    @numba.njit(parallel=True)
    def loop(a: Any, b: Any, c: Any) -> None:
        for i in numba.prange(len(a)):
            product(a[i], b[i], c[i])

    a, b, c = floats(50, 4, 5), floats(50, 5, 6), np.zeros((50, 4, 6), np.float32)
    loop(a, b, c)
    np.testing.assert_allclose(c, a @ b, atol=1e-5)


def test_sizes_and_numbers_of_the_call() -> None:
    spec = tw.Gemm(
        tw.dim("m", multiple_of=2, max=8), 6, 5, lda=tw.dim("lda"), alpha="scalar",
        epilogue=tw.relu(tw.acc + BIAS),
    )  # fmt: skip
    call = compiled(tw.compile(spec), 1, 4)
    wide, b, bias = floats(8, 9), floats(5, 6), floats(6)
    for rows in (2, 8):
        out = np.zeros((rows, 6), np.float32)
        call(wide[:rows, :5], b, out, bias, 2.0)
        want = np.maximum(2 * (wide[:rows, :5] @ b) + bias, 0)
        np.testing.assert_allclose(out, want, atol=1e-4)
    for rows in (3, 10):
        with pytest.raises(ValueError, match="beyond the limits"):
            call(floats(rows, 5), b, np.zeros((rows, 6), np.float32), bias, 2.0)


def test_stacks_and_scratch() -> None:
    call = compiled(tw.compile(tw.Gemm(4, 6, 5, batch=tw.Strided(tw.dim("count"), c=None))))
    a, b, c = floats(3, 4, 5), floats(3, 5, 6), np.zeros((3, 4, 6), np.float32)
    call(a, b, c)
    np.testing.assert_allclose(c, a @ b, atol=1e-5)
    with pytest.raises(ValueError, match="batch stride"):
        call(floats(6, 4, 5)[::2], b, c)
    n = 200
    parted = tw.compile(tw.Gemm(n, n, n, a="bf16", b="bf16", d="f32"))
    x = np.ones((n, n), np.uint16) * 0x3F80  # ones of bf16
    out = np.zeros((n, n), np.float32)
    compiled(parted)(x, x, out)
    assert (out == n).all()


@pytest.mark.parametrize(("make", "said"), [
    (lambda a, b, c: (a[:3], b, c), "wrong shape"),
    (lambda a, b, c: (a.T.copy().T, b, c), "not contiguous"),
    (lambda a, b, c: (floats(8, 5)[::2], b, c), "leading dimension"),
    (lambda a, b, c: (c.reshape(-1)[:20].reshape(4, 5), b, c), "shares memory"),
], ids=["shape", "order", "leading", "overlap"])  # fmt: skip
def test_arrays_are_checked(fixed: Any, make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fixed(*make(floats(4, 5), floats(5, 6), np.zeros((4, 6), np.float32)))


def test_types_are_checked_as_the_caller_is_compiled(fixed: Any) -> None:
    a, b, c = floats(4, 5), floats(5, 6), np.zeros((4, 6), np.float32)
    frozen = c.copy()
    frozen.flags.writeable = False
    for given, said in (
        ((a.astype(np.float64), b, c), "a must be of float32"),
        ((a[0], b, c), "a must be a 2-d array"),
        ((a, b, frozen), "c is read-only"),
    ):
        with pytest.raises(numba.TypingError, match=said):
            fixed(*given)


def test_packed_matrices_are_their_bytes() -> None:
    form, given = tw.Quantized("u4", scale="f16", zero=8, block=32), floats(64, 20)
    spec = tw.Gemm(3, 20, 64, a=tw.Quantize(per=("row", 32)), b=tw.Packed(form))
    kernel = tw.compile(spec)
    weights, call = kernel.pack_b(tw.quantize(given, form)), compiled(kernel)
    a, c = floats(3, 64), np.zeros((3, 20), np.float32)
    for function in (call, kernel.numba):
        c[:] = 0
        function(a, weights.data, c)
        assert (c == kernel(a, weights)).all()
    data = weights.data
    whole = np.zeros(data.size + 128, np.uint8)
    odd = whole[65 - whole.ctypes.data % 64 :][: data.size]
    odd.flags.writeable = False  # as those of a packed matrix
    for bytes_, said in ((data[:-1], "wrong shape"), (odd, "multiple of 64 bytes")):
        with pytest.raises(ValueError, match=said):
            call(a, bytes_, c)
    with pytest.raises(numba.TypingError, match="b must be of uint8, the data of a PackedMatrix"):
        call(a, data.view(np.float32), c)


def test_the_packed_matrices_of_a_batch_are_lines() -> None:
    spec = tw.Gemm(2, 20, 64, b=tw.Packed("f32"), batch=tw.Strided(tw.dim("count")))
    kernel = tw.compile(spec)
    a, c = floats(3, 2, 64), np.zeros((2, 20), np.float32)
    weights = kernel.pack_b(floats(3, 64, 20))
    compiled(kernel)(a, weights.data.reshape(3, -1), c)
    assert (c == kernel(a, weights)).all()


def test_what_is_no_array_is_refused() -> None:
    kernel = tw.compile(tw.Gemm(4, 6, 5, b=tw.Packed("f32"), batch=tw.Addresses(2)))
    with pytest.raises(SpecError, match=r"a is not one array(?s:.*)kernel\.address"):
        kernel.numba
