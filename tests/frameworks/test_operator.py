"""Specs as operators of PyTorch: results, gradients, ``torch.compile``, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw
from tilewright.errors import ArgumentTypeError, SpecError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.nn import functional  # noqa: E402

import tilewright.torch as tt  # noqa: E402

BIAS = tw.Operand("bias", "f32", per="column")
SCALE = tw.Operand("scale", "f32", per="row")
A, B, ROW, COLUMN = torch.randn(6, 9), torch.randn(9, 8), torch.randn(8), torch.randn(6)

#: An epilogue, its operands, and the same in PyTorch.
EPILOGUES: dict[str, tuple[Any, tuple[Any, ...], Callable[..., Any]]] = {
    "none": (None, (), lambda s: s),
    "bias": (tw.acc + BIAS, (ROW,), lambda s, b: s + b),
    "relu": (tw.relu(tw.acc + BIAS), (ROW,), lambda s, b: torch.relu(s + b)),
    "leaky": (tw.relu(tw.acc, alpha=0.1), (), lambda s: functional.leaky_relu(s, 0.1)),
    "gelu": (tw.gelu_erf(tw.acc), (), functional.gelu),
    "gelu_tanh": (tw.gelu_tanh(tw.acc), (), lambda s: functional.gelu(s, approximate="tanh")),
    "sigmoid": (tw.logistic(tw.acc), (), torch.sigmoid),
    "silu": (tw.silu(tw.acc) * SCALE, (COLUMN,), lambda s, c: functional.silu(s) * c[:, None]),
    "tanh": (tw.tanh(tw.acc) - BIAS, (ROW,), lambda s, b: torch.tanh(s) - b),
    "where": (tw.where(tw.acc > 0, tw.acc, tw.acc * 0.5), (),
              lambda s: torch.where(s > 0, s, s * 0.5)),
    "exp": (tw.exp(tw.acc * 0.1) / 2, (), lambda s: torch.exp(s * 0.1) / 2),
    "hardswish": (tw.hardswish(tw.acc), (), functional.hardswish),
    "elu": (tw.elu(tw.acc), (), functional.elu),
}  # fmt: skip


def grads(function: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    given = [x.clone().requires_grad_() for x in inputs]
    out = function(*given)
    weights = torch.linspace(-1, 1, out.numel()).reshape(out.shape)
    (out.float() * weights).sum().backward()
    return out.detach(), [x.grad for x in given]


@pytest.mark.parametrize("name", EPILOGUES)
def test_results_and_gradients_are_pytorchs(name: str) -> None:
    epilogue, operands, function = EPILOGUES[name]
    op = tt.operator(tw.Gemm(6, 8, 9, epilogue=epilogue))
    given = (A, B, *operands)
    order = [x for x in op.kernel.signature.arrays if x.role == "in"]
    assert len(order) == len(given)
    torch.testing.assert_close(op(*given), function(A @ B, *operands), atol=1e-4, rtol=1e-4)
    out, found = grads(op, given)
    expected, wanted = grads(lambda a, b, *rest: function(a @ b, *rest), given)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("changes", "function"), [
    ({"a": "bf16", "b": "bf16", "d": "bf16"}, torch.matmul),
    ({"order": "F"}, torch.matmul),
    ({"alpha": 2}, lambda a, b: 2 * (a @ b)),
], ids=["bf16", "F", "alpha"])  # fmt: skip
def test_gradients_of_other_products(changes: dict[str, Any], function: Any) -> None:
    op = tt.operator(tw.Gemm(6, 8, 9, **changes))
    a, b = A, B
    if "a" in changes:
        a, b = A.bfloat16(), B.bfloat16()
    if "order" in changes:
        a, b = A.T.contiguous().T, B.T.contiguous().T
    out, found = grads(op, (a, b))
    expected, wanted = grads(function, (a.float(), b.float()))
    loose = {"atol": 0.1, "rtol": 0.05} if "a" in changes else {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(out.float(), expected, **loose)
    for got, want, x in zip(found, wanted, (a, b), strict=True):
        assert got.dtype == x.dtype
        torch.testing.assert_close(got.float(), want, **loose)


def doubles(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(("changes", "shapes"), [
    ({}, [(3, 5), (5, 4)]),
    ({"beta": 0.5, "order": "F"}, [(3, 5), (5, 4), (3, 4)]),
    ({"batch": tw.Strided(2)}, [(2, 3, 5), (2, 5, 4)]),
], ids=["plain", "beta", "summed"])  # fmt: skip
def test_gradients_of_gradients(changes: dict[str, Any], shapes: list[tuple[int, ...]]) -> None:
    """As finite differences have them, of each operand alone too."""
    column, row = tw.Operand("t", "f64", per="column"), tw.Operand("u", "f64", per="row")
    ended = tw.square(tw.acc + column) * row / (1 + tw.square(tw.acc))
    op = tt.operator(tw.Gemm(3, 4, 5, a="f64", b="f64", d="f64", epilogue=ended, **changes))
    given = [doubles(*shape) for shape in [*shapes, (4,), (3,)]]
    if "order" in changes:
        turned = [x.detach().mT.contiguous().mT.requires_grad_() for x in given[:3]]
        given = [*turned, *given[3:]]
    assert torch.autograd.gradgradcheck(op, tuple(given))
    for one in range(len(given)):
        alone = [x.detach().requires_grad_(at == one) for at, x in enumerate(given)]
        assert torch.autograd.gradgradcheck(op, tuple(alone))


def test_stacks_and_sums_of_stacks() -> None:
    a, b = torch.randn(3, 4, 5), torch.randn(3, 5, 6)
    each = tt.operator(tw.Gemm(4, 6, 5, batch=tw.Strided(3, c=None)))
    _, found = grads(each, (a, b))
    _, wanted = grads(torch.matmul, (a, b))
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    summed = tt.operator(tw.Gemm(4, 6, 5, batch=tw.Strided(3), epilogue=tw.relu(tw.acc)))
    out, found = grads(summed, (a, b))
    expected, wanted = grads(lambda a, b: torch.relu((a @ b).sum(0)), (a, b))
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_c_is_read_and_never_written() -> None:
    op = tt.operator(tw.Gemm(6, 8, 9, beta="scalar"))
    c = torch.randn(6, 8)
    before = c.clone()
    torch.testing.assert_close(op(A, B, c, 0.5), A @ B + 0.5 * c, atol=1e-4, rtol=1e-4)
    assert torch.equal(c, before)
    _, found = grads(lambda a, b, c: op(a, b, c, beta=0.5), (A, B, c))
    _, wanted = grads(lambda a, b, c: a @ b + 0.5 * c, (A, B, c))
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_pytorchs_own_check_of_operators() -> None:
    op = tt.operator(tw.Gemm(tw.dim("m"), 8, 9, epilogue=tw.relu(tw.acc + BIAS)))
    assert op(A[:2], B, ROW).shape == (2, 8)
    given = tuple(x.clone().requires_grad_() for x in (A, B, ROW))
    results = torch.library.opcheck(getattr(torch.ops.tilewright, op.kernel.name).default, given)
    assert set(results.values()) == {"SUCCESS"}


def test_no_graph_breaks() -> None:
    op = tt.operator(tw.Gemm(tw.dim("m"), 8, 9, epilogue=tw.gelu_erf(tw.acc + BIAS)))

    def layer(a: Any, b: Any, bias: Any) -> Any:
        return op(a, b, bias=bias) * 2

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    out, found = grads(compiled, (A, B, ROW))
    expected, wanted = grads(lambda a, b, c: functional.gelu(a @ b + c) * 2, (A, B, ROW))
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3)


def test_one_kernel_is_one_operator() -> None:
    assert tt.operator(tw.Gemm(6, 8, 9)) is tt.operator(tw.Gemm(6, 8, 9))


def test_what_has_no_gradient_says_so() -> None:
    needs = A.clone().requires_grad_()
    rounded = tt.operator(tw.Gemm(6, 8, 9, epilogue=tw.round(tw.acc)))
    torch.testing.assert_close(rounded(A, B), torch.round(A @ B))
    with pytest.raises(SpecError, match="round has no derivative"):
        rounded(needs, B)
    scaled = tt.operator(tw.Gemm(6, 8, 9, d="f32", d_scale=0.5))
    with pytest.raises(SpecError, match=r"no gradient(?s:.*)d_scale"):
        scaled(needs, B)


def test_what_is_no_operator_says_so() -> None:
    for spec, said in (
        (tw.Gemm(4, 4, 4, b=tw.Packed("f32")), "one tensor for each operand"),
        (tw.Gemm(4, 4, 4, batch=tw.Addresses(2)), "one tensor for each operand"),
        (tw.Gemm(4, 4, 4, outputs={"most": tw.row_max(tw.acc)}), "one result"),
        (tw.Transpose(4, 4, "f32"), "tw.Gemm"),
    ):
        with pytest.raises(SpecError, match=said):
            tt.operator(spec)  # type: ignore[arg-type]


def test_arguments_are_counted() -> None:
    op = tt.operator(tw.Gemm(6, 8, 9))
    for tensors, named in (((A,), {}), ((A, B, A), {}), ((A, B), {"b": B}), ((A, B), {"x": B})):
        with pytest.raises(ArgumentTypeError, match="not those of the operator"):
            op(*tensors, **named)
