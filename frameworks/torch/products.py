"""Products as operators of PyTorch: any two tensors, and a layer's weight that is packed once."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from threading import Lock
from typing import Any, Literal, NamedTuple

import torch
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
from tilewright.spec.types import TypeName
from torch.multiprocessing.reductions import StorageWeakRef

from .expressions import apart, evaluate

_compiling = torch.compiler.is_dynamo_compiling
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._are_functorch_transforms_active
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
LAYER_TYPES: dict[Any, Literal["f32", "bf16"]] = {torch.float32: "f32", torch.bfloat16: "bf16"}


#: Kernels read tensors as they lie, so nobody needs to copy one for them.
_TAGS = (torch.Tag.flexible_layout, torch.Tag.pt2_compliant_tag)


def register(
    name: str, schema: str, compute: Any, fake: Any, gradient: tuple[Any, Any] | None = None
) -> None:
    """Make an operator: what computes it, what is known of its result, and what saves for its
    gradient and computes it. Without one PyTorch calls it in a fifth of the time.
    """
    LIBRARY.define(f"{name}{schema}", tags=_TAGS)
    LIBRARY.impl(name, compute, "CPU")
    whole = f"tilewright::{name}"
    torch.library.register_fake(whole, fake, lib=LIBRARY)
    if gradient is not None:
        backward, save = gradient
        torch.library.register_autograd(whole, backward, setup_context=save, lib=LIBRARY)


def is_plain() -> bool:
    """Whether calls are just calls: nothing is traced, no mode and no transform sees them."""
    return not (_compiling() or _modes() or _transforms())


# --- any two tensors ---------------------------------------------------------------------------


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` in the type of ``a``, as PyTorch has it."""
    plain = a.dim() == 2 == b.dim()
    stack = () if plain else torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = a.new_empty((*stack, a.shape[-2], b.shape[-1]))
    with torch.no_grad():
        matmul(a, b, out)
    return out


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same, differentiable where gradients are recorded; without PyTorch's dispatcher where
    nothing but the result is asked for.
    """
    made: torch.Tensor
    if torch.is_grad_enabled():
        made = torch.ops.tilewright.matmul(a, b)
    elif not is_plain():
        made = torch.ops.tilewright.matmul_of_constants(a, b)
    else:
        made = _matmul(a, b)
    return made


def _matmul_fake(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    torch._check(a.shape[-1] == b.shape[-2])
    stack = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*stack, a.shape[-2], b.shape[-1]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _matmul_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    needed = ctx.needs_input_grad
    return (
        product(grad, b.mT).sum_to_size(a.shape) if needed[0] else None,
        product(a.mT, grad).sum_to_size(b.shape) if needed[1] else None,
    )


_MATMUL = "(Tensor a, Tensor b) -> Tensor"
register("matmul", _MATMUL, _matmul, _matmul_fake, (_matmul_backward, _save))
register("matmul_of_constants", _MATMUL, _matmul, _matmul_fake)


# --- a layer -----------------------------------------------------------------------------------


class LayerKind(NamedTuple):
    """Layers that one kernel serves: sizes, the type of all its arrays, and what ends it."""

    k: int
    n: int
    type: Literal["f32", "bf16", "s8", "u8"]
    has_bias: bool
    activation: str


def layer_epilogue(bias: TypeName | None, activation: str) -> Expression | None:
    """What a layer makes of its sums: plus a bias of that type, None for none, then activated."""
    sums: Expression = acc if bias is None else acc + Operand("bias", bias, per="column")
    epilogue = ACTIVATIONS[activation](sums)
    return None if epilogue is acc else epilogue


@lru_cache(maxsize=1024)
def layer_kernel(kind: LayerKind, parallel: bool) -> Kernel:
    """The kernel of a layer, for any number of rows."""
    spec = Gemm(
        dim("m"), kind.n, kind.k, a=kind.type, b=Packed(kind.type), d=kind.type, lda=dim("lda"),
        epilogue=layer_epilogue(kind.type if kind.has_bias else None, kind.activation),
    )  # fmt: skip
    return compile(spec, layer_schedule(parallel))


def run_layer(kernel: Kernel, packed: PackedMatrix, x: Any, bias: Any) -> torch.Tensor:
    """A layer of a matrix of rows, whose gradient nobody asks for."""
    inputs = (x, packed) if bias is None else (x, packed, bias)
    made: torch.Tensor | None = kernel.attempt_new(inputs)
    if made is not None:
        return made
    with torch.no_grad():
        x = x if x.stride(-1) == 1 else x.contiguous()
        return kernel(x, packed, **({} if bias is None else {"bias": bias}))


def is_parallel(work: int) -> bool:
    """Whether a layer of so many multiply-adds is worth several threads, which there are.

    Layers follow each other, so that threads are awake: a million for each of a few is enough.
    """
    threads: int = torch.get_num_threads()
    return threads > 1 and work >= min(PARALLEL_WORK, threads << 20)


def layer_schedule(parallel: bool) -> Schedule:
    """How a layer is computed: threads share out its columns, so that each reads its part of the
    weight alone, which is the larger matrix.
    """
    return Schedule(loops="NMk") if parallel else Schedule(threads=1)


# --- weights, packed once ----------------------------------------------------------------------


class _Held(NamedTuple):
    """A packed weight, and what tells that the weight is still the one that was packed."""

    storage: StorageWeakRef
    seen: tuple[Any, ...]
    packed: PackedMatrix


#: By the address of their first element.
_weights: dict[int, _Held] = {}
_lock = Lock()


def packed_weight(
    weight: torch.Tensor,
    pack: Callable[[], PackedMatrix],
    beside: tuple[torch.Tensor, ...] = (),
    how: tuple[Any, ...] = (),
) -> PackedMatrix:
    """What ``pack`` makes of a layer's weight: once, until elements of it or of ``beside`` change.

    ``how`` says what it is packed as. An inference tensor does not count its changes, and is packed
    at each call.
    """
    if weight.is_inference():
        return pack()
    seen: tuple[Any, ...] = (weight._version, weight.dtype, weight.shape, weight.stride(), how)
    for tensor in beside:
        seen += (tensor.data_ptr(), None if tensor.is_inference() else tensor._version)
    held = _weights.get(weight.data_ptr())
    if held is not None and held.seen == seen and not held.storage.expired():
        return held.packed
    made = _Held(StorageWeakRef(weight.untyped_storage()), seen, pack())
    with _lock:
        for old in [at for at, held in _weights.items() if held.storage.expired()]:
            del _weights[old]
        _weights[weight.data_ptr()] = made
    return made.packed


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str
) -> torch.Tensor:
    """``activation(x @ weight.T + bias)``, which records no gradient."""
    n, k = weight.shape
    kind = LayerKind(k, n, LAYER_TYPES[x.dtype], bias is not None, activation)
    packed = packed_weight(weight, lambda: layer_kernel(kind, False).pack_b(weight.detach().t()))
    rows = x if x.dim() == 2 else x.reshape(-1, k)
    out = run_layer(layer_kernel(kind, is_parallel(rows.shape[0] * n * k)), packed, rows, bias)
    return out if x.dim() == 2 else out.reshape(*x.shape[:-1], n)


def _linear_fake(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str
) -> torch.Tensor:
    torch._check(x.shape[-1] == weight.shape[1])
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _save_linear(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, bias, ctx.activation = inputs
    ctx.save_for_backward(x, weight, bias)


def _linear_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, weight, bias = ctx.saved_tensors
    if ctx.activation:
        again = torch.is_grad_enabled()  # create_graph: this gradient is to be differentiated
        sums = product(x, weight.t())
        sums = sums if bias is None else sums + bias
        with torch.enable_grad():
            sums = apart(sums, True, again)
            ended = evaluate(ACTIVATIONS[ctx.activation](acc), {"acc": sums})
            (grad,) = torch.autograd.grad(ended, [sums], grad, create_graph=again)
    lines, rows = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
    needed = ctx.needs_input_grad
    return (
        product(grad, weight) if needed[0] else None,
        product(lines.t(), rows) if needed[1] else None,
        lines.sum(0) if needed[2] else None,
        None,
    )


_LINEAR = "(Tensor x, Tensor weight, Tensor? bias, str activation) -> Tensor"
register("linear", _LINEAR, linear, _linear_fake, (_linear_backward, _save_linear))
register("linear_of_constants", _LINEAR, linear, _linear_fake)
