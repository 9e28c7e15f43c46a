"""A layer of BERT, and the same layer in PyTorch, Inductor, ONNX Runtime and OpenVINO.

In int8 the four products with weights have activations in u8, with fixed scales, and weights in s8
with a scale for each column. Everything else is computed in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import nn

from .graphs import Array, Graph, dynamically_quantized, module
from .peers import (
    EAGER,
    INDUCTOR,
    OPENVINO,
    ORT,
    Function,
    int8_calls,
    onnxruntime_call,
    openvino_reads,
    readers,
    torch_calls,
)

#: Columns of the tensors, heads of attention, and the summand of variances.
WIDTH, HEADS, EPS = 768, 12, 1e-5
#: The products with weights.
PRODUCTS = ("qkv", "o", "up", "down")


@dataclass(frozen=True, slots=True, eq=False)
class Int8:
    """A weight in s8, its scales, and the scale and the zero point of its input."""

    whole: Array
    scale: Array
    of_input: float
    zero: int


@dataclass(frozen=True, slots=True, eq=False)
class Transformer:
    """A layer with weights by name, for a batch of sequences."""

    batch: int
    tokens: int
    weights: dict[str, Array]
    type: str
    int8: Mapping[str, Int8]

    @property
    def name(self) -> str:
        """The name, with the batch and the tokens of a sequence."""
        return f"BERT layer {self.batch}x{self.tokens}"

    @property
    def rows(self) -> int:
        """The rows of its products with weights."""
        return self.batch * self.tokens

    @property
    def flops(self) -> dict[str, int]:
        """Additions and multiplications of all products, by the type of their operands."""
        weights, attention = 24 * self.rows * WIDTH * WIDTH, 4 * self.rows * WIDTH * self.tokens
        if self.type == "int8":
            return {"int8": weights, "f32": attention}
        return {self.type: weights + attention}

    def given(self, rng: np.random.Generator) -> dict[str, Array]:
        """Return random inputs."""
        x = rng.standard_normal((self.batch, self.tokens, WIDTH)).astype(np.float32)
        return {"x": _short(x) if self.type == "bf16" else x}

    def right(self, given: Mapping[str, Array]) -> Array:
        """Return the result in float64; for int8 with the roundings of the quantization."""

        def product(h: Array, name: str) -> Array:
            if self.type != "int8":
                return h @ self.weights[name].astype(np.float64)
            by = self.int8[name]
            h = np.clip(np.rint(h / by.of_input) + by.zero, 0, 255) - by.zero
            return h * by.of_input @ (by.whole * by.scale.astype(np.float64))

        return _forward(given["x"].astype(np.float64), self.weights, product)

    def ours(self, given: Mapping[str, Array], threads: int) -> Function:
        """Return a call of the compiled network."""
        x: Any = given["x"]
        if self.type == "bf16":
            import ml_dtypes

            x = x.astype(ml_dtypes.bfloat16)
        spec, weights = self.traced()
        net = tw.compile(spec, tw.Schedule(threads=threads) if threads > 1 else None)
        packed = net.pack(weights)
        out = net(x, packed)
        return lambda: net(x, packed, out=out)

    def traced(self) -> tuple[Any, dict[str, Array]]:
        """Return the network, and its weights in the types that it asks for."""
        weights, type_ = dict(self.weights), "f32"
        if self.type == "bf16":
            import ml_dtypes

            type_ = "bf16"
            weights |= {name: weights[name].astype(ml_dtypes.bfloat16) for name in PRODUCTS}
        for name, by in self.int8.items():
            weights[name], weights[f"s{name}"] = by.whole, by.scale

        def layer(x: Any, w: Any) -> Any:
            return _layer(x, w, self)

        x = tw.Tensor(type_, (self.batch, self.tokens, WIDTH))
        return tw.network(layer).of(x=x, w=weights), weights

    def peers(
        self, given: Mapping[str, Array], threads: int
    ) -> Iterator[tuple[str, Function | str]]:
        """Yield each peer, with a call that returns the result, or why it cannot run the layer."""
        torch, shape = module("torch"), given["x"].shape
        torch.set_num_threads(threads)
        layer, x = self._torch(), torch.from_numpy(given["x"])
        if self.type == "int8":
            yield from int8_calls(layer, x)
            model = dynamically_quantized(self._onnx(given, int8=False))
            out = np.empty(shape, np.float32)
            yield ORT, onnxruntime_call(model, given, out, threads)
            model = self._onnx(given, int8=True)
            yield OPENVINO, openvino_reads(model, given, shape, self.type, threads)
            return
        dtype = torch.bfloat16 if self.type == "bf16" else torch.float32
        yield from zip((EAGER, INDUCTOR), torch_calls(layer.to(dtype), x.to(dtype)), strict=True)
        yield from readers(self._onnx(given, int8=False), given, shape, self.type, threads)

    def _torch(self) -> Any:
        torch = module("torch")
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0, activation="gelu", layer_norm_eps=EPS,
            batch_first=True,
        )  # fmt: skip
        places = {
            "self_attn.in_proj_weight": "qkv", "self_attn.in_proj_bias": "bqkv",
            "self_attn.out_proj.weight": "o", "self_attn.out_proj.bias": "bo",
            "linear1.weight": "up", "linear1.bias": "bup",
            "linear2.weight": "down", "linear2.bias": "bdown",
            "norm1.weight": "g1", "norm1.bias": "b1", "norm2.weight": "g2", "norm2.bias": "b2",
        }  # fmt: skip
        state = {
            name: torch.from_numpy(self.weights[ours].T.copy()) for name, ours in places.items()
        }
        layer.load_state_dict(state)
        return layer.eval().requires_grad_(False)

    def _onnx(self, given: Mapping[str, Array], *, int8: bool) -> bytes:
        graph = Graph(self.weights)

        def linear(h: str, name: str) -> str:
            weight = name
            if int8:
                by = self.int8[name]
                h = graph.rounded(h, by.of_input, by.zero)
                weight = graph.by_column(by.whole, by.scale)
            return graph.linear(h, weight, f"b{name}")

        depth = WIDTH // HEADS
        shape = graph.ints(self.batch, self.tokens, 3, HEADS, depth)
        cut = graph.node("Reshape", linear("x", "qkv"), shape)
        turned = graph.node("Transpose", cut, perm=[2, 0, 3, 1, 4])
        q, k, v = (
            graph.node("Gather", turned, graph.constant(f"part{part}", np.int64(part)), axis=0)
            for part in range(3)
        )
        scores = graph.node("MatMul", q, graph.node("Transpose", k, perm=[0, 1, 3, 2]))
        scores = graph.node("Mul", scores, graph.constant("scale", np.float32(depth**-0.5)))
        a = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), v)
        a = graph.node("Transpose", a, perm=[0, 2, 1, 3])
        a = graph.node("Reshape", a, graph.ints(*given["x"].shape))
        y = graph.norm(graph.node("Add", "x", linear(a, "o")), "g1", "b1", EPS)
        h = graph.node("Gelu", linear(y, "up"))
        graph.norm(graph.node("Add", y, linear(h, "down")), "g2", "b2", EPS, out="y")
        return graph.model(given, given["x"].shape)


def transformer(batch: int, tokens: int, type_: str, rng: np.random.Generator) -> Transformer:
    """Return a layer with random weights."""
    sizes = {
        "qkv": (WIDTH, 3 * WIDTH), "o": (WIDTH, WIDTH),
        "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH),
    }  # fmt: skip
    weights: dict[str, Array] = {}
    for name, (k, n) in sizes.items():
        weight = (rng.standard_normal((k, n)) / np.sqrt(k)).astype(np.float32)
        weights[name] = _short(weight) if type_ == "bf16" else weight
        weights[f"b{name}"] = rng.standard_normal(n).astype(np.float32)
    for name in ("g1", "b1", "g2", "b2"):
        weights[name] = rng.standard_normal(WIDTH).astype(np.float32)
    int8 = _scales(weights, rng) if type_ == "int8" else {}
    return Transformer(batch, tokens, weights, type_, int8)


def _scales(weights: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Int8]:
    """Return the weights in s8, and scales of activations from a sample."""
    found: dict[str, Int8] = {}

    def product(h: Array, name: str) -> Array:
        low, high = float(h.min()), float(h.max())
        scale = float(np.float32((high - low) / 255))
        columns = (np.abs(weights[name]).max(axis=0) / 127).astype(np.float32)
        whole = np.rint(weights[name] / columns).astype(np.int8)
        found[name] = Int8(whole, columns, scale, round(-low / scale))
        made: Array = h @ weights[name]
        return made

    _forward(rng.standard_normal((1, 128, WIDTH)).astype(np.float32), weights, product)
    return found


def _forward(x: Array, w: Mapping[str, Array], product: Callable[[Array, str], Array]) -> Array:
    """The layer in numpy; ``product`` multiplies by a weight."""
    from scipy.special import erf

    cut = (product(x, "qkv") + w["bqkv"]).reshape(*x.shape[:2], 3, HEADS, -1)
    q, k, v = cut.transpose(2, 0, 3, 1, 4)
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    power = np.exp(scores - scores.max(-1, keepdims=True))
    a = power / power.sum(-1, keepdims=True) @ v
    y = x + product(a.swapaxes(1, 2).reshape(x.shape), "o") + w["bo"]
    y = normalized(y, EPS) * w["g1"] + w["b1"]
    h = product(y, "up") + w["bup"]
    y = y + product(h * (1 + erf(h / np.sqrt(2))) / 2, "down") + w["bdown"]
    found: Array = normalized(y, EPS) * w["g2"] + w["b2"]
    return found


def _layer(x: Any, w: Any, how: Transformer) -> Any:
    """The layer in tilewright. In bf16, sums and residuals are f32."""
    operand = "bf16" if how.type == "bf16" else "f32"

    def linear(h: Any, name: str) -> Any:
        h, weight = h.astype(operand), w[name]
        if how.int8:
            by = how.int8[name]
            h = nn.dequantize(nn.quantize(h, by.of_input, by.zero, "u8"), by.of_input, by.zero)
            weight = nn.dequantize(weight, w[f"s{name}"])
        return nn.linear(h, weight, w[f"b{name}"], "f32")

    q, k, v = nn.heads(linear(x, "qkv").astype(operand), HEADS, parts=3)
    a = nn.merge(nn.attention(q, k, v))
    y = nn.layer_norm(x + linear(a, "o"), w.g1, w.b1, EPS)
    h = tw.gelu_erf(linear(y, "up"))
    return nn.layer_norm(y + linear(h, "down"), w.g2, w.b2, EPS)


def normalized(x: Array, eps: float) -> Array:
    """Return rows with mean 0 and variance 1."""
    centred = x - x.mean(-1, keepdims=True)
    found: Array = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps)
    return found


def _short(x: Array) -> Array:
    """Return numbers that bf16 has, as f32."""
    return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
