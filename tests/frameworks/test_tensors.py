"""Tensors of PyTorch in calls of kernels, ``tw.matmul`` and ``tw.pack``."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentTypeError, ArgumentValueError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
A, B = torch.randn(4, 5), torch.randn(5, 3)
TYPES: dict[Any, Any] = {
    "f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
    "f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2,
}  # fmt: skip


@pytest.fixture(scope="module")
def kernel() -> tw.Kernel:
    return tw.compile(tw.Gemm(4, 3, 5))


def fast(kernel: tw.Kernel, *arrays: Any) -> bool:
    """Whether C decides a call, as it does once it knows the type."""
    return kernel.attempt(arrays)


def test_a_tensor_comes_out_where_tensors_went_in(kernel: tw.Kernel) -> None:
    for _ in range(2):  # decided in Python, then in C
        out = kernel(A, B)
        assert type(out) is torch.Tensor
        torch.testing.assert_close(out, A @ B)
        torch.testing.assert_close(tw.matmul(A, B), A @ B)
    assert kernel(A, B, out) is out
    assert kernel(A, B, out=out) is out
    assert tw.matmul(A, B, out) is out
    assert fast(kernel, A, B, out)
    assert kernel(A, B).data_ptr() % 64 == 0


def test_kinds_may_be_mixed(kernel: tw.Kernel) -> None:
    assert type(kernel(A, B.numpy())) is torch.Tensor
    assert type(kernel(A.numpy(), B)) is np.ndarray
    assert type(tw.matmul(A.numpy(), B)) is np.ndarray
    assert fast(kernel, A, B.numpy(), torch.empty(4, 3))


@pytest.mark.parametrize("type_", TYPES)
def test_types(type_: Any) -> None:
    a, b = (torch.randint(-3, 4, size).to(TYPES[type_]) for size in ((4, 8), (8, 4)))
    expected = (a.double() @ b.double()).to(TYPES[type_])
    kernel = tw.compile(tw.Gemm(4, 4, 8, a=type_, b=type_, d=type_))
    for _ in range(2):
        out = kernel(a, b)
        assert out.dtype == TYPES[type_]
        assert torch.equal(out.double(), expected.double())
    assert fast(kernel, a, b, out)
    assert tw.matmul(a, b).dtype == (torch.float64 if type_ == "f64" else torch.float32)


@pytest.mark.parametrize(("a_type", "out"), [("u8", torch.int32), ("s8", torch.int32)])
def test_integers(a_type: Any, out: Any) -> None:
    dtype = {"u8": torch.uint8, "s8": torch.int8}[a_type]
    a, b = torch.randint(0, 100, (4, 8)).to(dtype), torch.randint(-100, 100, (8, 4)).to(torch.int8)
    kernel = tw.compile(tw.Gemm(4, 4, 8, a=a_type, b="s8"))
    for _ in range(2):
        assert torch.equal(kernel(a, b), (a.long() @ b.long()).to(out))


def test_shapes_and_strides_are_checked_as_numpys(kernel: tw.Kernel) -> None:
    kernel(A, B)
    wide = torch.randn(4, 10)
    with pytest.raises(ArgumentValueError, match="strided view"):
        kernel(wide[:, :5], B)
    with pytest.raises(ArgumentValueError, match="wrong shape"):
        kernel(A.T, B)
    with pytest.raises(ArgumentTypeError, match=r"a\.to\(torch\.float32\)"):
        kernel(A.double(), B)
    square = torch.randn(4, 4)
    with pytest.raises(ArgumentValueError, match="shares elements"):
        tw.compile(tw.Gemm(4, 4, 4))(square, torch.randn(4, 4), square)
    loose = tw.compile(tw.Gemm(tw.dim("m"), 3, 5, lda=tw.dim("lda")))
    torch.testing.assert_close(loose(wide[:, :5], B), wide[:, :5] @ B)
    torch.testing.assert_close(loose(wide[:2, :5], B), wide[:2, :5] @ B)
    assert loose(wide[:0, :5], B).shape == (0, 3)
    torch.testing.assert_close(tw.matmul(wide.flip(0)[:, ::2], B), wide.flip(0)[:, ::2] @ B)
    stack = torch.randn(2, 3, 4, 5)
    torch.testing.assert_close(tw.matmul(stack, B), stack @ B)
    torch.testing.assert_close(
        tw.matmul(stack[:, :1].expand(2, 3, 4, 5), B), stack[:, :1].expand(2, 3, 4, 5) @ B
    )


def test_orders_of_new_tensors() -> None:
    kernel = tw.compile(tw.Gemm(4, 3, 5, order="F"))
    a, b = A.T.contiguous().T, B.T.contiguous().T
    for _ in range(2):
        out = kernel(a, b)
        torch.testing.assert_close(out, A @ B)
        assert out.stride() == (1, 4)


def test_named_operands_and_packed_b() -> None:
    bias = tw.Operand("bias", "f32", per="column")
    kernel = tw.compile(
        tw.Gemm(4, 3, 5, b=tw.Packed("f32"), b_scale="scalar", epilogue=tw.relu(tw.acc + bias))
    )
    packed, row = kernel.pack_b(B), torch.randn(3)
    expected = torch.relu(0.5 * (A @ B) + row)
    for scale in (0.5, torch.tensor(0.5), torch.tensor([0.5])):
        torch.testing.assert_close(kernel(A, packed, b_scale=scale, bias=row), expected)
    torch.testing.assert_close(tw.matmul(A, tw.pack(B)), A @ B)


GRAD = torch.nn.Parameter(A.clone())


@pytest.mark.parametrize(("given", "said"), [
    (lambda: GRAD, r"requires grad(?s:.*)detach\(\)"),
    (lambda: A.to("meta"), "another device(?s:.*)meta"),
    (A.to_sparse, r"sparse(?s:.*)to_dense\(\)"),
    (lambda: torch.complex(A, A).conj().imag, r"negates(?s:.*)resolve_neg"),
    (lambda: torch.complex(A, A).conj().imag[:, :1].expand(4, 5), "negates"),
], ids=["grad", "meta", "sparse", "negative", "negative, no neighbours"])  # fmt: skip
def test_tensors_that_cannot_be_read(kernel: tw.Kernel, given: Any, said: str) -> None:
    kernel(A, B)
    assert not fast(kernel, given(), B, torch.empty(4, 3))
    with pytest.raises(ArgumentTypeError, match=said):
        kernel(given(), B)
    with pytest.raises(ArgumentTypeError, match=said):
        tw.matmul(given(), B)


def test_a_column_that_negates_is_refused() -> None:
    """Its leading dimension is all that a kernel looks at, and any would do."""
    kernel = tw.compile(tw.Gemm(4, 3, 1, lda=tw.dim("lda")))
    kernel(A[:, :1], B[:1])
    column = torch.complex(A, A).conj().imag[:, :1]
    with pytest.raises(ArgumentTypeError, match="negates"):
        kernel(column, B[:1])


def test_gradients_count_where_they_are_recorded(kernel: tw.Kernel) -> None:
    kernel(A, B)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(kernel(GRAD, B), A @ B)
        assert fast(kernel, GRAD, B, torch.empty(4, 3))
    with torch.inference_mode():
        torch.testing.assert_close(kernel(GRAD, B), A @ B)


def test_tensors_without_memory_of_their_own(kernel: tw.Kernel) -> None:
    kernel(A, B)
    with pytest.raises(ArgumentTypeError, match="without memory"):
        torch.func.vmap(lambda x: kernel(x, B))(torch.randn(2, 4, 5))
    fake = pytest.importorskip("torch._subclasses").FakeTensorMode()
    with fake:
        x = torch.empty(4, 5)
    with pytest.raises(ArgumentTypeError, match="a kind of its own"):
        kernel(x, B)


def test_results_outlive_everything_else(kernel: tw.Kernel) -> None:
    made = [kernel(A, B) for _ in range(100)]
    kept = made[50].view(-1)[1:]
    del made
    torch.testing.assert_close(kept, (A @ B).view(-1)[1:])


def test_from_several_threads(kernel: tw.Kernel) -> None:
    wrong = []

    def work() -> None:
        for _ in range(200):
            if not torch.allclose(kernel(A, B), A @ B, atol=1e-5):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused(kernel: tw.Kernel, layout: Any) -> None:
    nested = torch.nested.nested_tensor([A, A[:2]], layout=layout)
    tw.matmul(A, B)
    for call in (lambda: kernel(nested, B), lambda: tw.matmul(nested, B),
                 lambda: tw.matmul(A, nested)):  # fmt: skip
        with pytest.raises(ArgumentTypeError, match="nested tensor"):
            call()


def test_tensors_of_functionalize_are_refused(kernel: tw.Kernel) -> None:
    for call in (lambda x: kernel(x, B), lambda x: tw.matmul(x, B)):
        with pytest.raises(ArgumentTypeError, match="without memory of its own"):
            torch.func.functionalize(call)(A)


class Exporter:
    """An array that speaks DLPack, badly."""

    def __init__(self, device: Any, capsule: Any) -> None:
        self.device, self.capsule = device, capsule

    def __dlpack_device__(self) -> Any:
        return self._given(self.device)

    def __dlpack__(self, **_: Any) -> Any:
        return self._given(self.capsule)

    @staticmethod
    def _given(value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value


@pytest.mark.parametrize(("device", "capsule", "said"), [
    ((1, 0), KeyError("gone"), "KeyError: 'gone'"),
    ((1, 0), OSError("closed"), "OSError: closed"),
    ((1, 0), ZeroDivisionError(), "ZeroDivisionError"),
    (RuntimeError("moved"), None, "RuntimeError: moved"),
    (1, None, "TypeError"),
    ((1, 0), 3, "returned a int, not its capsule"),
], ids=str)  # fmt: skip
def test_an_exporter_that_fails_is_quoted(device: Any, capsule: Any, said: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"(?s)a cannot be read where it lies.*{said}"):
        tw.matmul(Exporter(device, capsule), B)
