"""``kernel.numba``: kernels called from code that numba compiles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
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

    def four(a: Any, b: Any, c: Any, x: Any) -> None:
        function(a, b, c, x)

    return numba.njit({3: plain, 4: four}.get(arrays + numbers, more))


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
    (lambda a, b, c: (np.concatenate([a, a], 1)[:, :5], b, c), "leading dimension, expected 5"),
    (lambda a, b, c: (c.reshape(-1)[:20].reshape(4, 5), b, c), "c is written and shares"),
    (lambda a, b, c: (a, c.reshape(-1)[-1:].repeat(30).reshape(5, 6)[::-1], c), "leading"),
], ids=["shape", "order", "leading", "wide", "overlap", "negative"])  # fmt: skip
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


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("static", [None, (20, 0, 40)], ids=["call", "static"])
def test_operands_with_offsets(packed: bool, static: tuple[int, ...] | None) -> None:
    """Offsets count elements, or whole packed matrices; those beyond the operand are refused."""
    b = tw.Packed("f32") if packed else tw.Matrix("f32")
    count = tw.dim("count") if static is None else 3
    batch = tw.Offsets(count, a=static, b=None)
    kernel = tw.compile(tw.Gemm(2, 20, 10, a=tw.Matrix("f32", order="F"), b=b, batch=batch))
    call, c = compiled(kernel, 0, len(kernel.signature.arrays)), np.zeros((2, 20), np.float32)
    a, bs, at = floats(60), floats(4, 10, 20), np.array([20, 0, 40])
    stack = kernel.pack_b(bs) if packed else bs.reshape(-1)
    data = stack.data.reshape(4, -1) if packed else stack
    chosen = np.array([3, 0, 3])
    b_at = chosen if packed else 200 * chosen
    by_name = {"b_offsets": b_at} if static else {"a_offsets": at, "b_offsets": b_at}
    right = sum(a[i : i + 20].reshape(10, 2).T @ bs[j] for i, j in zip(at, chosen, strict=True))
    for function in (call, kernel.numba):
        c[:] = 0
        function(a, data, c, *by_name.values())
        np.testing.assert_array_equal(c, kernel(a, stack, **by_name))
        np.testing.assert_allclose(c, right, atol=1e-4)
    for wrong in (-1, b_at[0] + 1):
        worse = np.array([0, wrong, 0])
        with pytest.raises(ValueError, match="an offset of b " + ("counts" if packed else "lies")):
            call(a, data, c, *(at,) * (static is None), worse)
    with pytest.raises(ValueError, match="an offset of a lies outside"):
        call(a[:59], data, c, *by_name.values())
    with pytest.raises(numba.TypingError, match="b_offsets must be of int64"):
        call(a, data, c, *(at,) * (static is None), b_at.astype(np.int32))


def test_what_is_no_array_is_refused() -> None:
    kernel = tw.compile(tw.Gemm(4, 6, 5, b=tw.Packed("f32"), batch=tw.Addresses(2)))
    with pytest.raises(SpecError, match=r"a is not one array(?s:.*)kernel\.address"):
        kernel.numba


def test_a_stack_of_single_rows_has_the_leading_dimension_of_the_kernel() -> None:
    """One row has no leading dimension of its own: the next matrix shows it."""
    tight = compiled(tw.compile(tw.Gemm(1, 6, 5, lda=9, batch=tw.Strided(3, c=None))))
    loose = compiled(tw.compile(tw.Gemm(1, 6, 5, lda=tw.dim("lda"), batch=tw.Strided(3, c=None))))
    wide, b, c = floats(3, 1, 9), floats(3, 5, 6), np.zeros((3, 1, 6), np.float32)
    for call in (tight, loose):
        c[:] = 0
        call(wide[:, :, :5], b, c)
        np.testing.assert_allclose(c, wide[:, :, :5] @ b, atol=1e-5)
    with pytest.raises(ValueError, match="batch stride"):
        tight(floats(3, 1, 5), b, c)


def test_numbers_are_real(fixed: Any) -> None:
    call = compiled(tw.compile(tw.Gemm(4, 6, 5, alpha="scalar", beta="scalar")), 2)
    a, b, c = floats(4, 5), floats(5, 6), np.ones((4, 6), np.float32)
    call(a, b, c, 2, np.float32(0.5))
    np.testing.assert_allclose(c, 2 * (a @ b) + 0.5, atol=1e-5)
    with pytest.raises(numba.TypingError, match="alpha must be a real number, got complex128"):
        call(a, b, c, 2j, 0.5)


def test_a_call_allocates_nothing() -> None:
    """The checks are compiled into the caller, and need no memory."""
    kernel = tw.compile(tw.Gemm(4, 6, tw.dim("k")), tw.Schedule(vectorize="n"))
    assert kernel.scratch_bytes(k=5) == 0
    product = kernel.numba

    @numba.njit
    def calls(a: Any, b: Any, c: Any, count: int) -> None:
        for _ in range(count):
            product(a, b, c)

    from numba.core.runtime import _nrt_python, rtsys

    a, b, c = floats(4, 5), floats(5, 6), np.zeros((4, 6), np.float32)

    def allocated(count: int) -> int:
        before = rtsys.get_allocation_stats().alloc
        calls(a, b, c, count)
        return int(rtsys.get_allocation_stats().alloc - before)

    _nrt_python.memsys_enable_stats()
    try:
        assert allocated(100) == allocated(1)  # those of numba, for arrays that come from Python
    finally:
        _nrt_python.memsys_disable_stats()
    np.testing.assert_allclose(c, a @ b, atol=1e-5)


_CACHED = """
import sys
import numba, numpy as np
import tilewright as tw
from tilewright.runtime.store import cache

if "update" in sys.argv:
    cache.sources_digest = lambda: "another tilewright"
product = None if "late" in sys.argv else tw.compile(tw.Gemm(4, 4, 4)).numba
rows = int(sys.argv[1])

@numba.njit(cache=True)
def plain(a, b, c):
    product(a, b, c)

def around(product):
    @numba.njit(cache=True)
    def closed(a, b, c):
        product(a, b, c)
    return closed

functions = [plain]
if "update" not in sys.argv:
    functions.append(around(tw.compile(tw.Gemm(tw.dim("m"), 4, rows)).numba))
for function, k in zip(functions, (4, rows)):
    a, b, c = np.ones((4, k), np.float32), np.ones((k, 4), np.float32), np.zeros((4, 4), np.float32)
    function(a, b, c)
    print(c[0, 0], sum(function.stats.cache_hits.values()))
"""


def test_numbas_cache_keeps_callers_across_processes(tmp_path: Path) -> None:
    script = tmp_path / "cached.py"
    script.write_text(_CACHED)

    def run(*options: str) -> list[str]:
        command = [sys.executable, "-W", "error", str(script), *options]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    assert run("4") == ["4.0", "0", "4.0", "0"]
    # A kernel that a closure holds is part of numba's key.
    assert run("3") == ["4.0", "1", "3.0", "0"]
    # Reading the compiled code makes the kernel that it calls.
    assert run("4", "late") == ["4.0", "1", "4.0", "1"]
    # Code that calls a kernel of another version is compiled anew.
    assert run("4", "update") == ["4.0", "0"]
