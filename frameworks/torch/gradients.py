"""Gradients of a product with an epilogue: dA = dS B^T, dB = A^T dS, with S = A B.

The backward pass computes the sums S again. Then PyTorch computes and differentiates the epilogue,
which gives dS and the gradients of the epilogue's operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tilewright.errors import SpecError
from tilewright.spec.expression import Expression, acc
from tilewright.spec.gemm import Gemm

from .expressions import apart, check_differentiable, evaluate
from .products import product

_FLOATS = ("f32", "f64", "bf16", "f16")


class Gradients:
    """The functions that autograd calls for the operator of one spec.

    The operator's inputs are the tensors ``names``, then the numbers ``scalars``.
    """

    def __init__(self, spec: Any, names: Sequence[str], scalars: Sequence[str]) -> None:
        self.spec: Gemm = spec
        self.names, self.scalars = names, scalars
        self._count, self._known = len(names), False

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the inputs for ``backward``.

        Raise SpecError if an input requires a gradient and the product has none.
        """
        count = self._count
        if not self._known and any(x.requires_grad for x in inputs[:count]):
            _check(self.spec)
            self._known = True
        ctx.save_for_backward(*inputs[:count])
        ctx.numbers = inputs[count:]

    def backward(self, ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        """Return the gradient of each input that needs one, None for the others."""
        given = dict(zip(self.names, ctx.saved_tensors, strict=True))
        numbers = dict(zip(self.scalars, ctx.numbers, strict=True))
        needed = dict(zip(self.names, ctx.needs_input_grad, strict=False))
        alpha, beta = (numbers.get(x, getattr(self.spec, x)) for x in ("alpha", "beta"))
        a, b = given["a"], given["b"]
        sums, found = self._of_epilogue(given, needed, grad, float(alpha), float(beta))
        if needed.get("c"):
            found["c"] = (sums * beta).to(given["c"].dtype)
        if needed["a"]:
            found["a"] = product((sums * alpha).to(a.dtype), b.mT).sum_to_size(a.shape)
        if needed["b"]:
            found["b"] = product(a.mT, (sums * alpha).to(b.dtype)).sum_to_size(b.shape)
        return (*(found.get(name) for name in self.names), *(None for _ in self.scalars))

    def _of_epilogue(
        self, given: dict[str, Any], needed: dict[str, bool], grad: torch.Tensor,
        alpha: float, beta: float,
    ) -> tuple[torch.Tensor, dict[str, Any]]:  # fmt: skip
        """Return the gradient of the sums, and the gradients of the epilogue's operands by name.

        If autograd records this pass (``create_graph=True``), the gradients can be differentiated
        again.
        """
        again = torch.is_grad_enabled()
        epilogue: Expression = acc if self.spec.epilogue is None else self.spec.epilogue
        wide = torch.float64 if self.spec.a.type == "f64" else torch.float32
        grad = grad.to(wide)
        if epilogue == acc:
            return grad, {}
        products = product(given["a"].to(wide), given["b"].to(wide))
        if self._summed:
            products = products.sum(0)
        sums = alpha * products + (beta * given["c"].to(wide) if beta else 0)
        named = {o.name: o for o in self.spec.named if o.name in given}
        with torch.enable_grad():
            values: dict[str, Any] = {"acc": apart(sums, True, again)}
            for name, operand in named.items():
                value = apart(given[name].to(wide), needed[name], again)
                values[name] = value
                if operand.per == "row":
                    values[f"{name} of rows"] = value[:, None]
            seen = {x: values.get(f"{x} of rows", value) for x, value in values.items()}
            result = evaluate(epilogue, seen)
        asked = ["acc", *(name for name in named if needed[name])]
        found = torch.autograd.grad(
            result, [values[x] for x in asked], grad, allow_unused=True, create_graph=again
        )
        grads = {
            name: None if x is None else x.to(given[name].dtype)
            for name, x in zip(asked[1:], found[1:], strict=True)
        }
        return torch.zeros_like(sums) if found[0] is None else found[0], grads

    @property
    def _summed(self) -> bool:
        return self.spec.batch is not None and not self.spec.stacked


def _check(spec: Gemm) -> None:
    """Raise SpecError unless the gradients of ``spec`` are known."""
    scaled = [
        name
        for name in ("a_scale", "b_scale", "d_scale", "a_zero", "b_zero", "d_zero", "b2")
        if getattr(spec, name) is not None
    ]
    types = [spec.a.type, spec.b.type]
    if scaled or any(t not in _FLOATS for t in types):
        raise SpecError(
            "this product has no gradient",
            got=", ".join(scaled) or f"A of {types[0]}, B of {types[1]}",
            expected=f"A and B of {', '.join(_FLOATS)}, without scales, zero points and b2",
            hint="detach the inputs, or call the operator in `with torch.no_grad():`",
        )
    if spec.epilogue is not None:
        check_differentiable(spec.epilogue)
