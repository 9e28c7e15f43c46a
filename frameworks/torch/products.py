"""Products as operators of PyTorch: any two tensors, and a layer's weight that is packed once."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from threading import Lock
from typing import Any, Literal, NamedTuple

import torch
from tilewright.runtime.arrays.kinds import torch_type
from tilewright.runtime.call.packed_matrix import PackedMatrix
from tilewright.runtime.driver import compile
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.matmul.families import PARALLEL_WORK
from tilewright.runtime.matmul.product import matmul
from tilewright.spec.expression import Expression, Operand, acc
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Packed
from tilewright.spec.postops import (
    gelu_erf,
    gelu_tanh,
    hardswish,
    logistic,
    relu,
    silu,
    tanh,
)
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from torch.multiprocessing.reductions import StorageWeakRef

from .expressions import evaluate

#: Where all of tilewright's operators are registered.
LIBRARY = torch.library.Library("tilewright", "FRAGMENT")
#: What a layer may do to its sums, by name.
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "": lambda x: x,
    "relu": relu,
    "gelu": gelu_erf,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "sigmoid": logistic,
    "tanh": tanh,
    "hardswish": hardswish,
}
#: Element types by PyTorch's: those of layers and of products.
LAYER_TYPES = {torch.float32: "f32", torch.bfloat16: "bf16"}


# --- any two tensors ---------------------------------------------------------------------------

#: Kernels read tensors as they lie, so nobody needs to copy one for them.
_TAGS = (torch.Tag.flexible_layout, torch.Tag.pt2_compliant_tag)
LIBRARY.define("matmul(Tensor a, Tensor b) -> Tensor", tags=_TAGS)


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` in the type of ``a``, as PyTorch has it; it is differentiated by its own kernels."""
    stack = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = a.new_empty((*stack, a.shape[-2], b.shape[-1]))
    with torch.no_grad():
        matmul(a, b, out)
    return out


def _matmul_fake(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    torch._check(a.shape[-1] == b.shape[-2])
    stack = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*stack, a.shape[-2], b.shape[-1]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _matmul_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    product = torch.ops.tilewright.matmul
    needed = ctx.needs_input_grad
    return (
        product(grad, b.mT).sum_to_size(a.shape) if needed[0] else None,
        product(a.mT, grad).sum_to_size(b.shape) if needed[1] else None,
    )


LIBRARY.impl("matmul", _matmul, "CPU")
torch.library.register_fake("tilewright::matmul", _matmul_fake, lib=LIBRARY)
torch.library.register_autograd(
    "tilewright::matmul", _matmul_backward, setup_context=_save, lib=LIBRARY
)


# --- a layer -----------------------------------------------------------------------------------


class LayerKind(NamedTuple):
    """Layers that one kernel serves: sizes, the type of all its arrays, and what ends it."""

    k: int
    n: int
    type: str
    has_bias: bool
    activation: str


@lru_cache(maxsize=1024)
def layer_kernel(kind: LayerKind, parallel: bool) -> Kernel:
    """The kernel of a layer, for any number of rows."""
    epilogue: Expression = acc
    if kind.has_bias:
        epilogue = epilogue + Operand("bias", kind.type, per="column")
    epilogue = ACTIVATIONS[kind.activation](epilogue)
    spec = Gemm(
        dim("m"), kind.n, kind.k, a=kind.type, b=Packed(kind.type), d=kind.type, lda=dim("lda"),
        epilogue=None if epilogue is acc else epilogue,
    )  # fmt: skip
    threads: Literal[1] | None = None if parallel else 1
    return compile(spec, Schedule(loops="MNk" if parallel else None, threads=threads))


def run_layer(kind: LayerKind, packed: PackedMatrix, x: Any, bias: Any) -> torch.Tensor:
    """A layer of a matrix of rows, whose gradient nobody asks for."""
    m = x.shape[0]
    parallel = m * kind.n * kind.k >= PARALLEL_WORK and torch.get_num_threads() > 1
    kernel = layer_kernel(kind, parallel)
    if x.stride(-1) != 1 and kind.k > 1:
        x = x.contiguous()
    out = torch.empty((m, kind.n), dtype=torch_type(torch, kind.type))
    arrays = (x, packed, out, bias) if kind.has_bias else (x, packed, out)
    if not kernel.attempt(arrays):
        kernel(x, packed, out=out, **({"bias": bias} if kind.has_bias else {}))
    return out


# --- weights, packed once ----------------------------------------------------------------------


class _Held(NamedTuple):
    """A packed weight, and what tells that the weight is still the one that was packed."""

    storage: StorageWeakRef
    version: int
    packed: PackedMatrix


_weights: dict[tuple[Any, ...], _Held] = {}
_lock = Lock()


def packed_weight(weight: torch.Tensor, kernel: Callable[[], Kernel]) -> PackedMatrix:
    """The weight of a layer, (n, k) as PyTorch has it, packed for a kernel of the layer.

    It is packed once, until its elements change. An inference tensor does not count its changes,
    and is packed at each call.
    """
    key = (weight.data_ptr(), weight.dtype, weight.shape, weight.stride())
    counted = not weight.is_inference()
    held = _weights.get(key) if counted else None
    if held is not None and held.version == weight._version and not held.storage.expired():
        return held.packed
    packed = kernel().pack_b(weight.detach().t())
    if counted:
        made = _Held(StorageWeakRef(weight.untyped_storage()), weight._version, packed)
        with _lock:
            for old in [key for key, held in _weights.items() if held.storage.expired()]:
                del _weights[old]
            _weights[key] = made
    return packed


LIBRARY.define(
    "linear(Tensor x, Tensor weight, Tensor? bias, str activation) -> Tensor", tags=_TAGS
)


def _linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str
) -> torch.Tensor:
    n, k = weight.shape
    kind = LayerKind(k, n, LAYER_TYPES[x.dtype], bias is not None, activation)
    with torch.no_grad():
        packed = packed_weight(weight, lambda: layer_kernel(kind, False))
        out = run_layer(kind, packed, x.reshape(-1, k), bias)
    return out.reshape(*x.shape[:-1], n)


def _linear_fake(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str
) -> torch.Tensor:
    torch._check(x.shape[-1] == weight.shape[1])
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


LIBRARY.impl("linear", _linear, "CPU")
torch.library.register_fake("tilewright::linear", _linear_fake, lib=LIBRARY)


def _save_linear(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, bias, ctx.activation = inputs
    ctx.save_for_backward(x, weight, bias)


def _linear_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, weight, bias = ctx.saved_tensors
    product = torch.ops.tilewright.matmul
    if ctx.activation:
        sums = product(x, weight.t())
        sums = (sums if bias is None else sums + bias).detach().requires_grad_()
        with torch.enable_grad():
            ended = evaluate(ACTIVATIONS[ctx.activation](acc), {"acc": sums})
            (grad,) = torch.autograd.grad(ended, [sums], grad)
    lines, rows = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
    needed = ctx.needs_input_grad
    return (
        product(grad, weight) if needed[0] else None,
        product(lines.t(), rows) if needed[1] else None,
        lines.sum(0) if needed[2] else None,
        None,
    )


torch.library.register_autograd(
    "tilewright::linear", _linear_backward, setup_context=_save_linear, lib=LIBRARY
)
