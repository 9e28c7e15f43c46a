"""A layer of BERT in f32, and the same layer in PyTorch, Inductor, ONNX Runtime and OpenVINO."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import nn

from .models import Array
from .peers import (
    EAGER,
    INDUCTOR,
    OPENVINO,
    ORT,
    Function,
    module,
    onnxruntime_call,
    openvino_call,
    torch_calls,
)

#: Columns of the tensors, heads of attention, and the summand of variances.
WIDTH, HEADS, EPS = 768, 12, 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class Transformer:
    """A layer with weights by name, for a batch of sequences."""

    batch: int
    tokens: int
    weights: dict[str, Array]
    type: str = "f32"

    @property
    def name(self) -> str:
        """The name, with the batch and the tokens of a sequence."""
        return f"BERT layer {self.batch}x{self.tokens}"

    @property
    def rows(self) -> int:
        """The rows of its products with weights."""
        return self.batch * self.tokens

    @property
    def flops(self) -> int:
        """Additions and multiplications of all products."""
        return 2 * self.rows * WIDTH * (12 * WIDTH + 2 * self.tokens)

    def right(self, x: Array) -> Array:
        """The result in float64."""
        from scipy.special import erf

        w = {name: each.astype(np.float64) for name, each in self.weights.items()}
        x = x.astype(np.float64)
        cut = (x @ w["qkv"] + w["bqkv"]).reshape(self.batch, self.tokens, 3, HEADS, -1)
        q, k, v = cut.transpose(2, 0, 3, 1, 4)
        scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        power = np.exp(scores - scores.max(-1, keepdims=True))
        a = power / power.sum(-1, keepdims=True) @ v
        y = x + a.swapaxes(1, 2).reshape(x.shape) @ w["o"] + w["bo"]
        y = _normalized(y) * w["g1"] + w["b1"]
        h = y @ w["up"] + w["bup"]
        y = y + (h * (1 + erf(h / np.sqrt(2))) / 2) @ w["down"] + w["bdown"]
        return _normalized(y) * w["g2"] + w["b2"]

    def ours(self, x: Array, threads: int) -> Function:
        """Return a call of the compiled network."""
        spec = tw.network(_layer).of(x=tw.Tensor("f32", x.shape), w=self.weights)
        net = tw.compile(spec, tw.Schedule(threads=threads) if threads > 1 else None)
        given: Any = x
        packed = net.pack(self.weights)
        out = net(given, packed)
        return lambda: net(given, packed, out=out)

    def peers(self, x: Array, threads: int) -> Iterator[tuple[str, Function]]:
        """Yield each peer, with a call that returns the result for ``x``."""
        yield from zip((EAGER, INDUCTOR), self._torch(x, threads), strict=True)
        model = self._onnx()
        yield ORT, onnxruntime_call(model, x, np.empty_like(x), threads)
        ov = module("openvino")
        read = ov.Core().read_model(model)
        yield OPENVINO, openvino_call(read, x, np.empty_like(x), ov.Type.f32, threads)

    def _torch(self, x: Array, threads: int) -> Iterator[Function]:
        torch = module("torch")
        torch.set_num_threads(threads)
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
        return torch_calls(layer.eval().requires_grad_(False), torch.from_numpy(x))

    def _onnx(self) -> bytes:
        onnx = module("onnx")
        from onnx import TensorProto, helper, numpy_helper

        nodes: list[Any] = []
        constants: list[Any] = []

        def constant(name: str, value: Any) -> str:
            constants.append(numpy_helper.from_array(np.asarray(value), name))
            return name

        def node(kind: str, *inputs: str, out: str = "", **options: Any) -> str:
            made = out or f"t{len(nodes)}"
            nodes.append(helper.make_node(kind, list(inputs), [made], **options))
            return made

        for name, value in self.weights.items():
            constant(name, value)

        def linear(h: str, weight: str, bias: str) -> str:
            return node("Add", node("MatMul", h, weight), bias)

        norm = partial(node, "LayerNormalization", axis=-1, epsilon=EPS)
        depth = WIDTH // HEADS
        shape = constant("cut", np.array([self.batch, self.tokens, 3, HEADS, depth]))
        cut = node("Reshape", linear("x", "qkv", "bqkv"), shape)
        turned = node("Transpose", cut, perm=[2, 0, 3, 1, 4])
        q, k, v = (
            node("Gather", turned, constant(f"part{part}", np.int64(part)), axis=0)
            for part in range(3)
        )
        scores = node("MatMul", q, node("Transpose", k, perm=[0, 1, 3, 2]))
        scores = node("Mul", scores, constant("scale", np.float32(depth**-0.5)))
        a = node(
            "Transpose", node("MatMul", node("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3]
        )
        a = node("Reshape", a, constant("merged", np.array([self.batch, self.tokens, WIDTH])))
        y = norm(node("Add", "x", linear(a, "o", "bo")), "g1", "b1")
        h = node("Gelu", linear(y, "up", "bup"))
        norm(node("Add", y, linear(h, "down", "bdown")), "g2", "b2", out="y")
        sizes = [self.batch, self.tokens, WIDTH]
        given, made = (
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)] for name in "xy"
        )
        graph = helper.make_graph(nodes, "layer", given, made, constants)
        whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        onnx.checker.check_model(whole)
        data: bytes = whole.SerializeToString()
        return data


def transformer(batch: int, tokens: int, rng: np.random.Generator) -> Transformer:
    """Return a layer with random weights."""
    sizes = {
        "qkv": (WIDTH, 3 * WIDTH), "o": (WIDTH, WIDTH),
        "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH),
    }  # fmt: skip
    weights: dict[str, Array] = {}
    for name, (k, n) in sizes.items():
        weights[name] = (rng.standard_normal((k, n)) / np.sqrt(k)).astype(np.float32)
        weights[f"b{name}"] = rng.standard_normal(n).astype(np.float32)
    for name in ("g1", "b1", "g2", "b2"):
        weights[name] = rng.standard_normal(WIDTH).astype(np.float32)
    return Transformer(batch, tokens, weights)


def _layer(x: Any, w: Any) -> Any:
    q, k, v = nn.heads(nn.linear(x, w.qkv, w.bqkv), HEADS, parts=3)
    a = nn.merge(nn.attention(q, k, v))
    y = nn.layer_norm(x + nn.linear(a, w.o, w.bo), w.g1, w.b1, EPS)
    h = tw.gelu_erf(nn.linear(y, w.up, w.bup))
    return nn.layer_norm(y + nn.linear(h, w.down, w.bdown), w.g2, w.b2, EPS)


def _normalized(x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    found: Array = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + EPS)
    return found
