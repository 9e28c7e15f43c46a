"""The models: multi-layer perceptrons with relu between the layers, in f32, bf16 and int8.

In int8, activations are u8 and weights s8 with a scale for each column. The scales are fixed: the
largest element of a weight's column is 127, and activations cover the range that a sample has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import nn

from .graphs import Array, Graph, module
from .peers import EAGER, INDUCTOR, Function, int8_calls, readers, torch_calls

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
    """A perceptron of these widths, the rows of a call, and the type of its arithmetic."""

    widths: tuple[int, ...]
    rows: int
    type: Any
    layers: tuple[Layer, ...]

    @property
    def name(self) -> str:
        """The widths as text."""
        return "-".join(map(str, self.widths))

    @property
    def flops(self) -> dict[str, int]:
        """Additions and multiplications of all products."""
        return {self.type: 2 * self.rows * sum(k * n for k, n in pairwise(self.widths))}

    def given(self, rng: np.random.Generator) -> dict[str, Array]:
        """Return random inputs."""
        return {"x": rng.standard_normal((self.rows, self.widths[0])).astype(np.float32)}

    def right(self, given: Mapping[str, Array]) -> Array:
        """The result in float64, for int8 with the roundings of the quantization."""
        h: Array = given["x"].astype(np.float64)
        for number, layer in enumerate(self.layers):
            weight: Array = layer.weight.astype(np.float64)
            if self.type == "int8":
                zero = 0 if number else ZERO
                h = np.clip(np.rint(h / layer.of_input) + zero, 0, 255) - zero
                h, weight = h * layer.of_input, layer.whole * layer.scale.astype(np.float64)
            h = h @ weight + layer.bias
            h = np.maximum(h, 0) if number + 1 < len(self.layers) else h
        return h

    def ours(self, given: Mapping[str, Array], threads: int) -> Function:
        """Return a call of the compiled network."""
        array: Any = given["x"]
        weights: dict[str, Array] = {}
        for number, layer in enumerate(self.layers):
            weights[f"w{number}"] = layer.weight
            weights[f"b{number}"] = layer.bias
            if self.type == "int8":
                weights[f"w{number}"], weights[f"s{number}"] = layer.whole, layer.scale
            elif self.type == "bf16":
                import ml_dtypes

                weights[f"w{number}"] = layer.weight.astype(ml_dtypes.bfloat16)
                array = array.astype(ml_dtypes.bfloat16)
        x = tw.Tensor("bf16" if self.type == "bf16" else "f32", (ROWS, self.widths[0]))
        spec = tw.network(self._function).of(x=x, w=weights)
        net = tw.compile(spec, tw.Schedule(threads=threads) if threads > 1 else None)
        packed = net.pack(weights)
        out = net(array, packed)
        return lambda: net(array, packed, out=out)

    def peers(
        self, given: Mapping[str, Array], threads: int
    ) -> Iterator[tuple[str, Function | str]]:
        """Yield each peer, with a call that returns the result, or why it cannot run this."""
        torch, x = module("torch"), given["x"]
        torch.set_num_threads(threads)
        dtype = torch.bfloat16 if self.type == "bf16" else torch.float32
        layers, tensor = self._torch().to(dtype), torch.from_numpy(x).to(dtype)
        if self.type == "int8":
            yield from int8_calls(layers, tensor)
        else:
            yield from zip((EAGER, INDUCTOR), torch_calls(layers, tensor), strict=True)
        yield from readers(self._onnx(x), given, (len(x), self.widths[-1]), self.type, threads)

    def _torch(self) -> Any:
        torch, parts = module("torch"), list[Any]()
        for layer in self.layers:
            linear = torch.nn.Linear(*layer.weight.shape)
            linear.weight.data = torch.from_numpy(layer.weight.T.copy())
            linear.bias.data = torch.from_numpy(layer.bias)
            parts += [linear, torch.nn.ReLU()]
        return torch.nn.Sequential(*parts[:-1]).eval().requires_grad_(False)

    def _onnx(self, x: Array) -> bytes:
        """The model in ONNX; in int8 with QuantizeLinear and DequantizeLinear."""
        graph, last, h = Graph({}), len(self.layers) - 1, "x"
        for i, layer in enumerate(self.layers):
            if self.type == "int8":
                h = graph.rounded(h, layer.of_input, 0 if i else ZERO)
                weight = graph.by_column(layer.whole, layer.scale)
            else:
                weight = graph.constant(f"w{i}", layer.weight)
            bias = graph.constant(f"b{i}", layer.bias)
            h = graph.linear(h, weight, bias, out="" if i < last else "y")
            h = graph.relu(h) if i < last else h
        return graph.model({"x": x}, [len(x), self.widths[-1]])

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


def model(widths: Sequence[int], rows: int, type_: str, rng: np.random.Generator) -> Model:
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
    return Model(tuple(widths), rows, type_, tuple(layers))
