"""Products as operators of PyTorch: any two tensors, and a layer whose weight is read as it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, Literal

import torch
from tilewright.errors import ArgumentValueError
from tilewright.runtime.matmul.product import matmul
from tilewright.runtime.matmul.target_facts import least_parallel
from tilewright.spec.expression import Expression, Operand, acc
from tilewright.spec.postops import (
    gelu_erf,
    gelu_tanh,
    hardswish,
    logistic,
    relu,
    silu,
    tanh,
)
from tilewright.spec.types import TypeName

from .expressions import apart, evaluate

_compiling = torch.compiler.is_dynamo_compiling
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._are_functorch_transforms_active
#: Library in which all of tilewright's operators are registered.
LIBRARY = torch.library.Library("tilewright", "FRAGMENT")
#: Activations of a layer by name, as functions that build the epilogue's expression.
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
#: Element types of layers and products: tilewright's name by PyTorch's type.
LAYER_TYPES: dict[Any, Literal["f32", "bf16"]] = {torch.float32: "f32", torch.bfloat16: "bf16"}


#: Kernels read tensors with any strides, so PyTorch need not copy them.
_TAGS = (torch.Tag.flexible_layout, torch.Tag.pt2_compliant_tag)


def register(
    name: str, schema: str, compute: Any, fake: Any, gradient: tuple[Any, Any] | None = None
) -> None:
    """Register an operator with PyTorch.

    ``compute`` is its function for the CPU, ``fake`` its meta function. ``gradient`` has two
    functions: the backward pass, and the one that saves inputs for it. PyTorch calls an operator
    without ``gradient`` in a fifth of the time.
    """
    LIBRARY.define(f"{name}{schema}", tags=_TAGS)
    LIBRARY.impl(name, compute, "CPU")
    whole = f"tilewright::{name}"
    torch.library.register_fake(whole, fake, lib=LIBRARY)
    if gradient is not None:
        backward, save = gradient
        torch.library.register_autograd(whole, backward, setup_context=save, lib=LIBRARY)


def is_plain() -> bool:
    """Return True if a call here is not traced, and no mode or transform intercepts it."""
    return not (_compiling() or _modes() or _transforms())


def is_transformed() -> bool:
    """Return True if a call here is inside a transform of ``torch.func``, and not traced."""
    return bool(_transforms()) and not (_compiling() or _modes())


# --- any two tensors ---------------------------------------------------------------------------


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` in the type of ``a``, as PyTorch does."""
    plain = a.dim() == 2 == b.dim()
    stack = () if plain else torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = a.new_empty((*stack, a.shape[-2], b.shape[-1]))
    with torch.no_grad():
        matmul(a, b, out)
    return out


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b``, differentiable if gradients are recorded.

    If no gradient is needed, the call skips PyTorch's dispatcher.
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


@lru_cache(maxsize=1024)
def layer_epilogue(bias: TypeName | None, activation: str) -> Expression | None:
    """Return the epilogue of a layer: add a bias, if it has a type, then apply the activation."""
    sums: Expression = acc if bias is None else acc + Operand("bias", bias, per="column")
    epilogue = ACTIVATIONS[activation](sums)
    return None if epilogue is acc else epilogue


def is_parallel(work: int) -> bool:
    """Return True if a layer with ``work`` multiply-adds is faster on several threads."""
    threads: int = torch.get_num_threads()
    return threads > 1 and work >= least_parallel("f32", "f32", "host")


def rows_of(x: torch.Tensor, k: int) -> torch.Tensor:
    """Return ``x``, the inputs of a layer, as a matrix with rows of ``k`` elements.

    Raise ArgumentValueError if the last axis of ``x`` has another length. If PyTorch marks ``x`` as
    negated, it is copied.
    """
    if x.dim() == 0 or x.shape[-1] != k:
        raise ArgumentValueError(
            "a layer takes rows as long as its inputs",
            got=f"x of shape {tuple(x.shape)}",
            expected=f"(..., {k})",
        )
    x = x.resolve_neg()
    return x if x.dim() == 2 else x.reshape(prod(x.shape[:-1]), k)


def shaped_as(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Return ``out``, the rows of a layer's results, with the leading axes of the inputs ``x``."""
    return out if x.dim() == 2 else out.reshape(*x.shape[:-1], out.shape[-1])


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str
) -> torch.Tensor:
    """Compute ``activation(x @ weight.T + bias)`` without recording a gradient.

    ``weight`` is read as it is, without packing it first.
    """
    if torch.is_grad_enabled():
        with torch.no_grad():
            return linear(x, weight, bias, activation)
    rows = rows_of(x, weight.shape[1])
    out = x.new_empty((rows.shape[0], weight.shape[0]))
    ended = layer_epilogue(None if bias is None else LAYER_TYPES[x.dtype], activation)
    threads = 1 if torch.get_num_threads() == 1 else None
    named = {} if bias is None else {"bias": bias.contiguous()}
    matmul(rows, weight.t(), out, epilogue=ended, threads=threads, **named)
    return shaped_as(x, out)


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
        again = torch.is_grad_enabled()  # create_graph=True: the gradient itself is differentiated
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
