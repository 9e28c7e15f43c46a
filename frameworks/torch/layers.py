"""Layers: ``Linear`` with an activation in its kernel, ``QuantizedLinear`` of 8-bit integers."""

from __future__ import annotations

from typing import Any

import torch
from tilewright.errors import ArgumentTypeError, ArgumentValueError

from . import products, quantized
from .products import ACTIVATIONS, LAYER_TYPES, is_plain


def _activation(name: str | None) -> str:
    """The name of an activation as operators take it; ArgumentValueError for another."""
    if name not in (None, *ACTIVATIONS):
        raise ArgumentValueError(
            "a layer has no such activation",
            got=name,
            expected=f"None, {', '.join(filter(None, ACTIVATIONS))}",
            hint="an activation of your own behind a layer without one",
        )
    return name or ""


class Linear(torch.nn.Linear):
    """``activation(x @ weight.T + bias)`` in one kernel, with the weight packed.

    As ``torch.nn.Linear``, of float32 or bfloat16, on the CPU; ``activation`` is None, "relu",
    "gelu", "gelu_tanh", "silu", "sigmoid", "tanh" or "hardswish". The weight is packed when it is
    first used and whenever it has changed; what is saved is the weight itself. Differentiable.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True,
        activation: str | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(in_features, out_features, bias, **options)
        self.activation = _activation(activation)

    @classmethod
    def from_float(cls, linear: torch.nn.Linear, activation: str | None = None) -> Linear:
        """A layer that has the weight and the bias of ``linear``, the same parameters."""
        made = cls(
            linear.in_features, linear.out_features, linear.bias is not None, activation,
            device="meta",
        )  # fmt: skip
        made.weight, made.bias = linear.weight, linear.bias
        made.train(linear.training)
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` is (..., in_features) and of the weight's type; the result (..., out_features)."""
        if x.dtype != self.weight.dtype or x.dtype not in LAYER_TYPES or x.device.type != "cpu":
            _refuse(x, self.weight)
        if is_plain() and not self._is_recorded(x):
            return products.linear(x, self.weight, self.bias, self.activation)
        found: torch.Tensor = torch.ops.tilewright.linear(
            x, self.weight, self.bias, self.activation
        )
        return found

    def _is_recorded(self, x: torch.Tensor) -> bool:
        """Whether autograd records the layer."""
        if not torch.is_grad_enabled():
            return False
        bias = self.bias
        return (
            x.requires_grad or self.weight.requires_grad
            or (bias is not None and bias.requires_grad)
        )  # fmt: skip

    def extra_repr(self) -> str:
        """What is printed of it."""
        return f"{super().extra_repr()}, activation={self.activation or None}"


def _refuse(x: torch.Tensor, weight: torch.Tensor) -> None:
    raise ArgumentTypeError(
        "a layer takes tensors of its weight's type on the CPU",
        got=f"x of {x.dtype} on {x.device}, weight of {weight.dtype}",
        expected=f"both of {' or both of '.join(map(str, LAYER_TYPES))}",
        hint="layer.to(x.dtype), or x.to(layer.weight.dtype)",
    )


class QuantizedLinear(torch.nn.Module):
    """``activation(x @ weight.T + bias)`` in 8-bit integers, whose products are summed exactly.

    The weight is int8 with a scale for each output. Without ``input_scale`` each row of ``x`` is
    made int8 with a scale of its own; with it ``x`` is made uint8, ``x / input_scale +
    input_zero``. For inference: it has no gradient.
    """

    def __init__(
        self, weight: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None = None,
        *, activation: str | None = None, input_scale: float | None = None, input_zero: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.activation, self.input_zero = _activation(activation), input_zero
        scale = None if input_scale is None else torch.tensor(float(input_scale))
        for name, value in (
            ("weight", weight), ("weight_scale", weight_scale), ("bias", bias),
            ("input_scale", scale),
        ):  # fmt: skip
            self.register_buffer(name, value)

    @classmethod
    def from_float(
        cls, linear: torch.nn.Linear, *, activation: str | None = None,
        input_range: tuple[float, float] | None = None,
    ) -> QuantizedLinear:  # fmt: skip
        """``linear`` quantised: each row of its weight to int8 by its largest magnitude.

        ``input_range`` are the least and the largest element of ``x`` that shall not saturate;
        without it rows are quantised as they come.
        """
        weight = linear.weight.detach().float()
        codes, scale = quantized.quantize_rows(weight)
        bias = None if linear.bias is None else linear.bias.detach().float().clone()
        activation = activation or getattr(linear, "activation", None) or None
        if input_range is None:
            return cls(codes, scale, bias, activation=activation)
        low, high = min(float(input_range[0]), 0.0), max(float(input_range[1]), 0.0)
        if not low < high:
            raise ArgumentValueError(
                "input_range is the least and the largest input", got=input_range
            )
        step = (high - low) / 255
        zero = round(-low / step)
        return cls(
            codes, scale, bias, activation=activation, input_scale=step, input_zero=zero
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` is (..., in_features) in floating point, which the result has too."""
        found: torch.Tensor = torch.ops.tilewright.quantized_linear(
            x, self.weight, self.weight_scale, self.bias, self.input_scale, self.input_zero,
            self.activation,
        )  # fmt: skip
        return found

    def extra_repr(self) -> str:
        """What is printed of it."""
        inputs = "int8 by rows" if self.input_scale is None else "uint8"
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, inputs={inputs}, activation={self.activation or None}"
