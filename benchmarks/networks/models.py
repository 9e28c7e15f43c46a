"""The models: multi-layer perceptrons with relu between the layers, in f32, bf16 and int8.

In int8, activations are u8 and weights s8 with a scale for each column. The scales are fixed: the
largest element of a weight's column is 127, and activations cover the range that a sample has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import nn

Array = np.ndarray[Any, Any]
ROWS = tw.dim("rows")
#: The integer that stands for 0 in the first layer's input.
ZERO = 128


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A layer: weight (k, n) and bias in f32, the weight in s8, its scales, its input's scale."""

    weight: Array
    bias: Array
    whole: Array
    scale: Array
    of_input: float


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A perceptron of these widths, and the type of its arithmetic."""

    widths: tuple[int, ...]
    type: Any
    layers: tuple[Layer, ...]

    @property
    def name(self) -> str:
        """The widths as text."""
        return "-".join(map(str, self.widths))

    def flops(self, rows: int) -> int:
        """Additions and multiplications of all products."""
        return 2 * rows * sum(k * n for k, n in pairwise(self.widths))

    def right(self, x: Array) -> Array:
        """The result in float64, for int8 with the roundings of the quantization."""
        h = x.astype(np.float64)
        for number, layer in enumerate(self.layers):
            weight: Array = layer.weight.astype(np.float64)
            if self.type == "int8":
                zero = 0 if number else ZERO
                h = np.clip(np.rint(h / layer.of_input) + zero, 0, 255) - zero
                h, weight = h * layer.of_input, layer.whole * layer.scale.astype(np.float64)
            h = h @ weight + layer.bias
            h = np.maximum(h, 0) if number + 1 < len(self.layers) else h
        return h

    def kernel(self, threads: int) -> tuple[Any, Any]:
        """The compiled network, and its packed weights."""
        weights: dict[str, Array] = {}
        for number, layer in enumerate(self.layers):
            weights[f"w{number}"] = layer.weight
            weights[f"b{number}"] = layer.bias
            if self.type == "int8":
                weights[f"w{number}"], weights[f"s{number}"] = layer.whole, layer.scale
            elif self.type == "bf16":
                import ml_dtypes

                weights[f"w{number}"] = layer.weight.astype(ml_dtypes.bfloat16)
        x = tw.Tensor("bf16" if self.type == "bf16" else "f32", (ROWS, self.widths[0]))
        spec = tw.network(self._function).of(x=x, w=weights)
        net = tw.compile(spec, tw.Schedule(threads=threads) if threads > 1 else None)
        return net, net.pack(weights)

    def _function(self, x: Any, w: Any) -> Any:
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            weight: Any = w[f"w{number}"]
            kept: Any = None
            if self.type == "int8":
                zero = 0 if number else ZERO
                q = nn.quantize(x, layer.of_input, zero, "u8")
                x = nn.dequantize(q, layer.of_input, zero)
                weight = nn.dequantize(weight, w[f"s{number}"])
            else:
                kept = "f32"
            x = nn.linear(x, weight, w[f"b{number}"], kept)
            x = tw.relu(x) if number < last else x
            x = x.astype("bf16") if self.type == "bf16" else x
        return x


def model(widths: Sequence[int], type_: str, rng: np.random.Generator) -> Model:
    """A perceptron with random weights."""
    layers: list[Layer] = []
    h = rng.standard_normal((256, widths[0]))
    for number, (k, n) in enumerate(pairwise(widths)):
        weight = (rng.standard_normal((k, n)) / np.sqrt(k)).astype(np.float32)
        if type_ == "bf16":
            weight = (weight.view(np.uint32) & 0xFFFF0000).view(np.float32)
        bias = rng.standard_normal(n).astype(np.float32)
        scale = (np.abs(weight).max(axis=0) / 127).astype(np.float32)
        whole = np.rint(weight / scale).astype(np.int8)
        of_input = float(np.float32(np.abs(h).max() / (255 if number else 127)))
        layers.append(Layer(weight, bias, whole, scale, of_input))
        h = np.maximum(h @ weight + bias, 0)
    return Model(tuple(widths), type_, tuple(layers))
