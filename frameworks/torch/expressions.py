"""Epilogues computed by PyTorch, which is how they are differentiated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tilewright.errors import SpecError
from tilewright.spec.expression import Call, Expression, Leaf, Number, Operand, walk
from torch.nn import functional

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "neg": torch.neg,
    "abs": torch.abs,
    "square": torch.square,
    "sqrt": torch.sqrt,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "clip": torch.clamp,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "where": lambda condition, x, y: torch.where(condition != 0, x, y),
    "relu": lambda x, alpha: functional.leaky_relu(x, alpha) if alpha else torch.relu(x),
    "hardswish": lambda x, alpha, beta: x * torch.clamp(alpha * x + beta, 0, 1),
    "exp": torch.exp,
    "tanh": torch.tanh,
    "elu": functional.elu,
    "logistic": torch.sigmoid,
    "swish": lambda x, alpha: x * torch.sigmoid(alpha * x),
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_erf": functional.gelu,
    "soft_relu": lambda x, alpha: functional.softplus(alpha * x) / alpha,
    "mish": functional.mish,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "log": torch.log,
    "expm1": torch.expm1,
    "log1p": torch.log1p,
    "sin": torch.sin,
    "cos": torch.cos,
    "copysign": torch.copysign,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "pow": lambda x, alpha, beta: alpha * torch.pow(x, beta),
}


def check_differentiable(expression: Expression) -> None:
    """Raise SpecError if a function of ``expression`` has no known derivative."""
    for node in walk(expression):
        if isinstance(node, Call) and node.fn not in _FUNCTIONS and node.meaning() is None:
            raise SpecError(
                f"the epilogue has no gradient: {node.fn} has no derivative that is known",
                got=expression,
                expected=f"functions of {', '.join(sorted(_FUNCTIONS))}",
                hint="detach the operands, or compute this part of the epilogue in PyTorch",
            )


def evaluate(expression: Expression, values: Mapping[str, Any]) -> Any:
    """Compute ``expression`` with PyTorch.

    ``values`` has a tensor for each leaf and operand, by name.
    """
    match expression:
        case Number(value):
            return torch.tensor(value, device="cpu")
        case Leaf(name) | Operand(name):
            return values[name]
        case Call() as use if use.fn in _FUNCTIONS:
            operands = [evaluate(arg, values) for arg in use.operands]
            return _FUNCTIONS[use.fn](*operands, *use.parameters)
        case Call() as use:
            meaning = use.meaning()
            assert meaning is not None, "check_differentiable comes first"
            return evaluate(meaning, values)
    raise AssertionError(expression)


def apart(value: torch.Tensor, needed: bool, again: bool) -> torch.Tensor:
    """Return ``value`` as a separate tensor for autograd, which requires a gradient if ``needed``.

    If the gradient will be differentiated ``again``, the tensor stays connected to the graph that
    computed ``value``.
    """
    if again and value.requires_grad:
        return value.view_as(value)
    return value.detach().requires_grad_(needed)
