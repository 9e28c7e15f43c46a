"""Arrays of other libraries in calls: the same elements, the same checks, results of their kind."""

from __future__ import annotations

import array
import ctypes
import gc
import weakref
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.runtime.arrays.views import as_array

A = np.arange(20, dtype=np.float32).reshape(4, 5)
B: Any = np.ones((5, 3), np.float32)


class Exporter:
    """A library's array that speaks DLPack, through numpy's; ``versions``: of which age."""

    def __init__(
        self, held: Any, *, versions: bool = True, device: tuple[int, int] = (1, 0)
    ) -> None:
        self.held, self.versions, self.device = held, versions, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **asked: Any) -> Any:
        if not self.versions:
            if asked:
                raise TypeError("an old library")
            return self.held.__dlpack__()
        return self.held.__dlpack__(**asked)


class Namespaced(Exporter):
    """One whose library has the array standard's names: here numpy's, marked."""

    def __array_namespace__(self) -> Any:
        class Names:
            @staticmethod
            def from_dlpack(made: Any) -> Any:
                return "theirs", made

        return Names


class Table:
    """What a data frame is to a kernel."""

    def to_numpy(self) -> Any:
        return A


@pytest.fixture(scope="module")
def kernel() -> tw.Kernel:
    return tw.compile(tw.Gemm(4, 3, 5), target="scalar")


@pytest.mark.parametrize("wrap", [
    Exporter,
    lambda x: Exporter(x, versions=False),
    memoryview,
    lambda x: memoryview(bytes(x)).cast("f", x.shape),
    lambda x: (ctypes.c_float * 5 * 4).from_buffer(bytearray(x.tobytes())),
], ids=["dlpack", "dlpack without versions", "buffer", "bytes", "ctypes"])  # fmt: skip
def test_inputs_of_any_library(kernel: tw.Kernel, wrap: Any) -> None:
    assert np.array_equal(kernel(wrap(A), B), A @ B)
    assert np.array_equal(tw.matmul(wrap(A), B), A @ B)


def test_strides_are_those_of_the_array() -> None:
    wide = np.arange(40, dtype=np.float32).reshape(4, 10)
    loose = tw.compile(tw.Gemm(4, 3, 5, lda=tw.dim("lda")), target="scalar")
    assert np.array_equal(loose(Exporter(wide[:, :5]), B), wide[:, :5] @ B)
    assert np.array_equal(tw.matmul(Exporter(wide[::-1, ::2]), B), wide[::-1, ::2] @ B)


def test_an_output_is_written_where_it_lies_and_returned_itself(kernel: tw.Kernel) -> None:
    held = np.zeros((4, 3), np.float32)
    out = Exporter(held)
    assert kernel(A, B, out) is out
    assert np.array_equal(held, A @ B)
    held[:] = 0
    assert tw.matmul(A, B, out) is out
    assert np.array_equal(held, A @ B)


def test_what_cannot_be_written_is_refused(kernel: tw.Kernel) -> None:
    for out in (
        memoryview(bytes(48)).cast("f", (4, 3)),
        Exporter(np.zeros((4, 3), "f4"), versions=False),
    ):
        with pytest.raises(ArgumentValueError, match="read-only"):
            kernel(A, B, out)
        with pytest.raises(ArgumentValueError, match="read-only"):
            tw.matmul(A, B, out)


def test_results_are_of_the_kind_of_a(kernel: tw.Kernel) -> None:
    kind, made = kernel(Namespaced(A), B)
    assert kind == "theirs"
    assert np.array_equal(made, A @ B)
    assert tw.matmul(Namespaced(A), B)[0] == "theirs"
    assert type(kernel(A, Namespaced(B))) is np.ndarray


def test_a_batch_of_matrices_and_a_packed_b() -> None:
    pairs = tw.compile(tw.Gemm(4, 3, 5, batch=tw.Addresses(2)), target="scalar")
    assert np.array_equal(pairs([Exporter(A), A], [B, memoryview(B)]), 2 * (A @ B))
    packs = tw.compile(tw.Gemm(4, 3, 5, b=tw.Packed("f32")), target="scalar")
    assert np.array_equal(packs(A, packs.pack_b(Exporter(B))), A @ B)
    assert np.array_equal(tw.matmul(A, tw.pack(memoryview(B))), A @ B)


def test_a_view_keeps_its_owner_alive(kernel: tw.Kernel) -> None:
    memory = np.array(A)
    exporter = Exporter(memory)
    alive = weakref.ref(memory)
    view = as_array(exporter, "a")
    del exporter, memory
    gc.collect()
    assert alive() is not None
    assert np.array_equal(view, A)
    del view
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(("given", "said"), [
    (Table(), r"a must be a numpy array(?s:.*)a\.to_numpy\(\)"),
    (np.ma.masked_array(A), r"masked(?s:.*)a\.filled\(0\)"),
    ([[1.0]], r"list(?s:.*)np\.asarray\(a"),
    (Exporter(A, device=(2, 0)), "a lies on another device(?s:.*)CPU"),
    (array.array("d", range(20)), "wrong dtype"),
    (array.array("f", range(20)), "2-d"),
], ids=lambda x: type(x).__name__)  # fmt: skip
def test_what_is_no_array_is_told_what_it_is(kernel: tw.Kernel, given: Any, said: str) -> None:
    with pytest.raises((ArgumentTypeError, ArgumentValueError), match=said):
        kernel(given, B)


def test_bound_arguments_are_those_that_were_given(kernel: tw.Kernel) -> None:
    out = Exporter(np.zeros((4, 3), np.float32))
    bound = kernel.bind(A, Exporter(B), out)
    assert bound() == 0
    assert bound.out is out  # type: ignore[attr-defined]
    assert np.array_equal(out.held, A @ B)


def test_arrays_of_jax(kernel: tw.Kernel) -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    a, b = jax.numpy.asarray(A), jax.numpy.asarray(B)
    out = kernel(a, b)
    assert isinstance(out, jax.Array)
    assert np.array_equal(np.asarray(out), A @ B)
    with pytest.raises(ArgumentValueError, match="read-only"):
        kernel(A, B, jax.numpy.zeros((4, 3)))
    half = tw.compile(tw.Gemm(4, 3, 5, a="bf16", b="bf16", d="bf16"), target="scalar")
    assert half(a.astype("bfloat16"), b.astype("bfloat16")).dtype == "bfloat16"
