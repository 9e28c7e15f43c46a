"""Layers: ``Linear`` with an activation in its kernel, and those of weights of 8 and fewer bits."""

from __future__ import annotations

from typing import Any, get_args

import torch
from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.runtime.quantized.matrix import QuantizedMatrix
from tilewright.runtime.quantized.quantize import Method, quantize
from tilewright.spec.quantized import Quantized

from . import blocks, products, quantized
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
        self.activation: str = _activation(activation)

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


class _Inference(torch.nn.Module):
    """A layer whose buffers keep their types: ``.to(torch.bfloat16)`` is of its inputs alone."""

    activation: str
    in_features: int
    out_features: int

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype != old.dtype:
                self._buffers[name] = old.to(new.device)
        return self

    def extra_repr(self) -> str:
        """What is printed of it."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, {self._shown()}, activation={self.activation or None}"

    def _shown(self) -> str:
        raise NotImplementedError


def _bias_of(linear: torch.nn.Linear) -> torch.Tensor | None:
    return None if linear.bias is None else linear.bias.detach().float().clone()


def _own_activation(linear: torch.nn.Linear, given: str | None) -> str | None:
    """The activation asked for, or that of a layer that has one."""
    return given or getattr(linear, "activation", None) or None


class QuantizedLinear(_Inference):
    """``activation(x @ weight.T + bias)`` in 8-bit integers, whose products are summed exactly.

    The weight is int8 with a scale for each output. Without ``input_scale`` each row of ``x`` is
    made int8 with a scale of its own; with it ``x`` is made uint8, ``x / input_scale +
    input_zero``. For inference: it has no gradient. ``BlockQuantizedLinear`` has fewer bits.
    """

    def __init__(
        self, weight: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None = None,
        *, activation: str | None = None, input_scale: float | None = None, input_zero: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.activation = _activation(activation)
        fixed = input_scale is not None
        for name, value in (
            ("weight", weight), ("weight_scale", weight_scale), ("bias", bias),
            ("input_scale", torch.tensor(float(input_scale or 0)) if fixed else None),
            ("input_zero", torch.tensor(input_zero, dtype=torch.int32) if fixed else None),
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
        bias, activation = _bias_of(linear), _own_activation(linear, activation)
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

    def _shown(self) -> str:
        return f"inputs={'int8 by rows' if self.input_scale is None else 'uint8'}"


class BlockQuantizedLinear(_Inference):
    """``activation(x @ weight.T + bias)`` with a weight of few bits and a scale for each block.

    ``matrix`` is the transposed weight, in_features x out_features, as ``tw.quantize``,
    ``tw.from_gguf``, ``from_gptq`` and their kin make it. ``inputs`` says what ``x`` becomes in the
    kernel: "blocks" are integers of 8 bits with a scale for each block of a row, as long as the
    weight's, "rows" with one for each row; "float" leaves it as it is. Without it that is "blocks",
    or "float" where the weight's numbers are f8. ``x`` is float32, bfloat16 or float16, as the
    result is. For inference: it has no gradient.

    The buffers ``weight``, ``scales`` and ``zeros`` hold the numbers of the matrix, elements of 2
    and 4 bits sharing bytes; they are packed for the CPU when they are first used, and whenever
    they have changed. A state is loaded into a layer of the same format alone.
    """

    def __init__(
        self, matrix: QuantizedMatrix, bias: torch.Tensor | None = None, *,
        activation: str | None = None, inputs: blocks.Inputs | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        _check_matrix(matrix)
        (self.in_features, self.out_features), self.format = matrix.shape, matrix.format
        self.activation = _activation(activation)
        if inputs not in (None, *get_args(blocks.Inputs)):
            raise ArgumentValueError(
                "inputs are made something else", got=inputs,
                expected=" or ".join(map(repr, get_args(blocks.Inputs))),
            )  # fmt: skip
        integers = self.format.stored.unpacked in ("s8", "u8")
        self.inputs: blocks.Inputs = inputs or ("blocks" if integers else "float")
        self._text = blocks.format_text(self.format)
        _check_bias(bias, self.out_features)
        blocks.block_spec(
            blocks.BlockKind(
                self.in_features, self.out_features, self.format, self.inputs, "f32",
                bias is not None, self.activation,
            )
        )  # fmt: skip
        for name, value in (*blocks.Stored.of(matrix)._asdict().items(), ("bias", bias)):
            self.register_buffer(name, value)

    @classmethod
    def from_float(
        cls, linear: torch.nn.Linear, format: Quantized, *, activation: str | None = None,
        inputs: blocks.Inputs | None = None, method: Method = "nearest",
    ) -> BlockQuantizedLinear:  # fmt: skip
        """``linear`` with its weight quantized to ``format``, by ``tw.quantize`` and its method."""
        matrix = quantize(linear.weight.detach().float().t(), format, method=method)
        activation = _own_activation(linear, activation)
        return cls(matrix, _bias_of(linear), activation=activation, inputs=inputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` is (..., in_features) in floating point, which the result has too."""
        if x.dtype not in blocks.INPUT_TYPES or x.shape[-1:] != (self.in_features,):
            raise ArgumentTypeError(
                "a layer takes rows of its inputs in floating point",
                got=f"{x.dtype} tensor of shape {tuple(x.shape)}",
                expected=f"(..., {self.in_features}), float32, bfloat16 or float16",
            )
        compute = torch.ops.tilewright.block_linear
        if products.is_plain() and x.device.type == "cpu":
            compute = blocks.block_linear
        found: torch.Tensor = compute(
            x, self.weight, self.scales, self.zeros, self.bias, self._text, self.inputs,
            self.activation,
        )  # fmt: skip
        return found

    def get_extra_state(self) -> torch.Tensor:
        """The format, which says what the numbers of a state mean."""
        return torch.frombuffer(bytearray(self._text.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """ArgumentValueError for a state of another format."""
        text = bytes(state.tolist()).decode()
        if text != self._text:
            raise ArgumentValueError(
                "the state is one of weights of another format", got=text, expected=self._text,
                hint="BlockQuantizedLinear of a matrix of that tw.Quantized(*...)",
            )  # fmt: skip

    def _shown(self) -> str:
        return f"format={self.format}, inputs={self.inputs}"


def _check_matrix(matrix: Any) -> None:
    if not isinstance(matrix, QuantizedMatrix) or matrix.ndim != 2:
        raise ArgumentTypeError(
            "a layer takes one matrix of few bits", got=matrix, expected="tw.QuantizedMatrix",
            hint="tt.BlockQuantizedLinear.from_float(linear, tw.Quantized(...))",
        )  # fmt: skip


def _check_bias(bias: torch.Tensor | None, n: int) -> None:
    if bias is not None and tuple(bias.shape) != (n,):
        raise ArgumentValueError(
            "the bias has the wrong shape", got=tuple(bias.shape), expected=f"({n},)"
        )
