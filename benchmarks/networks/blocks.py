"""An MLP-mixer block, a chain of row functions, and DLRM, with the same networks in the peers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import nn

from .graphs import Array, Graph, module
from .peers import EAGER, INDUCTOR, Function, readers, torch_calls
from .transformers import normalized

EPS = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Block(ABC):
    """A network in f32 with weights by name."""

    weights: dict[str, Array]

    name = ""
    rows = 0
    type = "f32"

    @property
    @abstractmethod
    def flops(self) -> dict[str, int]:
        """Additions and multiplications of all products, by the type of their operands."""

    @abstractmethod
    def given(self, rng: np.random.Generator) -> dict[str, Array]:
        """Return random inputs."""

    @abstractmethod
    def right(self, given: Mapping[str, Array]) -> Array:
        """Return the result in float64."""

    @abstractmethod
    def function(self, *given: Any) -> Any:
        """Return the result as an expression, of the inputs and the weights."""

    @abstractmethod
    def torch(self, *given: Any) -> Any:
        """Return the result in PyTorch, of the inputs and the weights."""

    @abstractmethod
    def onnx(self, graph: Graph) -> None:
        """Add the nodes, whose result is y."""

    def ours(self, given: Mapping[str, Array], threads: int) -> Function:
        """Return a call of the compiled network."""
        names = {np.dtype(np.float32): "f32", np.dtype(np.int64): "s64"}
        tensors = {
            name: tw.Tensor(names[array.dtype], array.shape) for name, array in given.items()
        }
        spec = tw.network(self.function).of(**tensors, w=self.weights)
        net = tw.compile(spec, tw.Schedule(threads=threads) if threads > 1 else None)
        arrays: list[Any] = list(given.values())
        arrays += [net.pack(self.weights)] if hasattr(net, "pack") else self.weights.values()
        out = net(*arrays)
        return lambda: net(*arrays, out=out)

    def peers(
        self, given: Mapping[str, Array], threads: int
    ) -> Iterator[tuple[str, Function | str]]:
        """Yield each peer, with a call that returns the result for ``given``."""
        torch = module("torch")
        torch.set_num_threads(threads)

        class Module(torch.nn.Module):  # type: ignore[misc]
            def __init__(self, block: Block) -> None:
                super().__init__()
                self.block = block
                for name, array in block.weights.items():
                    self.register_buffer(name, torch.from_numpy(array))

            def forward(self, *given: Any) -> Any:
                return self.block.torch(*given, dict(self.named_buffers()))

        calls = torch_calls(Module(self).eval(), *map(torch.from_numpy, given.values()))
        yield from zip((EAGER, INDUCTOR), calls, strict=True)
        graph, shape = Graph(self.weights), self.right(given).shape
        self.onnx(graph)
        yield from readers(graph.model(given, shape), given, shape, "f32", threads)


class Mixer(Block):
    """A block of MLP-mixer: 196 tokens, 256 channels; widths 128 and 1024 within."""

    name = "mixer block"
    rows, width, inner, outer = 196, 256, 128, 1024

    @property
    def flops(self) -> dict[str, int]:
        return {"f32": 4 * self.rows * self.width * (self.inner + self.outer)}

    def given(self, rng: np.random.Generator) -> dict[str, Array]:
        return {"x": rng.standard_normal((self.rows, self.width)).astype(np.float32)}

    def right(self, given: Mapping[str, Array]) -> Array:
        w, x = _wide(self.weights), given["x"].astype(np.float64)
        h = normalized(x, EPS) * w["g1"] + w["b1"]
        y = x + (_gelu(h.T @ w["t1"] + w["bt1"]) @ w["t2"] + w["bt2"]).T
        h = normalized(y, EPS) * w["g2"] + w["b2"]
        found: Array = y + _gelu(h @ w["c1"] + w["bc1"]) @ w["c2"] + w["bc2"]
        return found

    def function(self, x: Any, w: Any) -> Any:
        h = nn.layer_norm(x, w.g1, w.b1, EPS).T
        h = nn.linear(tw.gelu_erf(nn.linear(h, w.t1, w.bt1)), w.t2, w.bt2)
        y = x + h.T
        h = nn.layer_norm(y, w.g2, w.b2, EPS)
        return y + nn.linear(tw.gelu_erf(nn.linear(h, w.c1, w.bc1)), w.c2, w.bc2)

    def torch(self, x: Any, w: Any) -> Any:
        f = module("torch").nn.functional
        h = f.layer_norm(x, (self.width,), w["g1"], w["b1"], EPS).T
        y = x + (f.gelu(h @ w["t1"] + w["bt1"]) @ w["t2"] + w["bt2"]).T
        h = f.layer_norm(y, (self.width,), w["g2"], w["b2"], EPS)
        return y + f.gelu(h @ w["c1"] + w["bc1"]) @ w["c2"] + w["bc2"]

    def onnx(self, graph: Graph) -> None:
        h = graph.node("Transpose", graph.norm("x", "g1", "b1", EPS))
        h = graph.linear(graph.node("Gelu", graph.linear(h, "t1", "bt1")), "t2", "bt2")
        y = graph.node("Add", "x", graph.node("Transpose", h))
        h = graph.norm(y, "g2", "b2", EPS)
        h = graph.linear(graph.node("Gelu", graph.linear(h, "c1", "bc1")), "c2", "bc2")
        graph.node("Add", y, h, out="y")


class Chain(Block):
    """Layer norm, gelu and softmax of 512 rows of 768."""

    name = "norm + gelu + softmax"
    rows, width = 512, 768

    @property
    def flops(self) -> dict[str, int]:
        return {}

    def given(self, rng: np.random.Generator) -> dict[str, Array]:
        return {"x": rng.standard_normal((self.rows, self.width)).astype(np.float32)}

    def right(self, given: Mapping[str, Array]) -> Array:
        w, x = _wide(self.weights), given["x"].astype(np.float64)
        h = _gelu(normalized(x, EPS) * w["g"] + w["b"])
        power = np.exp(h - h.max(-1, keepdims=True))
        found: Array = power / power.sum(-1, keepdims=True)
        return found

    def function(self, x: Any, w: Any) -> Any:
        return nn.softmax(tw.gelu_erf(nn.layer_norm(x, w.g, w.b, EPS)))

    def torch(self, x: Any, w: Any) -> Any:
        f = module("torch").nn.functional
        return f.softmax(f.gelu(f.layer_norm(x, (self.width,), w["g"], w["b"], EPS)), -1)

    def onnx(self, graph: Graph) -> None:
        h = graph.node("Gelu", graph.norm("x", "g", "b", EPS))
        graph.node("Softmax", h, axis=-1, out="y")


class Dlrm(Block):
    """DLRM: 13 numbers and 26 indices of embeddings in, the products of all pairs between."""

    name = "DLRM"
    rows, tables, depth, entries = 128, 26, 128, 1000
    bottom, top = (13, 512, 256, 128), (479, 1024, 1024, 512, 256, 1)

    @property
    def flops(self) -> dict[str, int]:
        layers = (*pairwise(self.bottom), *pairwise(self.top))
        products = sum(k * n for k, n in layers) + (self.tables + 1) ** 2 * self.depth
        return {"f32": 2 * self.rows * products}

    def given(self, rng: np.random.Generator) -> dict[str, Array]:
        rows = rng.integers(0, self.entries, (self.rows, self.tables))
        return {
            "x": rng.standard_normal((self.rows, self.bottom[0])).astype(np.float32),
            "rows": rows + self.entries * np.arange(self.tables),
        }

    @property
    def pairs(self) -> Array:
        """The places of the products of pairs: below the diagonal, row by row."""
        count = self.tables + 1
        return np.flatnonzero(np.tri(count, count, -1))

    def right(self, given: Mapping[str, Array]) -> Array:
        w, h = _wide(self.weights), given["x"].astype(np.float64)
        for i in range(len(self.bottom) - 1):
            h = np.maximum(h @ w[f"b{i}"] + w[f"bb{i}"], 0)
        z = np.concatenate([h[:, np.newaxis], w["table"][given["rows"]]], 1)
        products = (z @ z.swapaxes(1, 2)).reshape(self.rows, -1)[:, self.pairs]
        h = np.concatenate([h, products], 1)
        for i in range(last := len(self.top) - 2):
            h = np.maximum(h @ w[f"t{i}"] + w[f"bt{i}"], 0)
        found: Array = h @ w[f"t{last}"] + w[f"bt{last}"]
        return found

    def function(self, x: Any, rows: Any, w: Any) -> Any:
        h = x
        for i in range(len(self.bottom) - 1):
            h = tw.relu(nn.linear(h, w[f"b{i}"], w[f"bb{i}"]))
        z = nn.concat([h[:, None], nn.take(w.table, rows)], axis=1)
        products = z @ z.swapaxes(1, 2)
        h = nn.concat([h, *(products[:, i, :i] for i in range(1, self.tables + 1))], axis=1)
        for i in range(last := len(self.top) - 2):
            h = tw.relu(nn.linear(h, w[f"t{i}"], w[f"bt{i}"]))
        return nn.linear(h, w[f"t{last}"], w[f"bt{last}"])

    def torch(self, x: Any, rows: Any, w: Any) -> Any:
        torch, h = module("torch"), x
        for i in range(len(self.bottom) - 1):
            h = torch.relu(h @ w[f"b{i}"] + w[f"bb{i}"])
        found = torch.nn.functional.embedding(rows, w["table"])
        z = torch.cat([h[:, None], found], 1)
        low, high = torch.tril_indices(self.tables + 1, self.tables + 1, -1)
        h = torch.cat([h, torch.bmm(z, z.transpose(1, 2))[:, low, high]], 1)
        for i in range(last := len(self.top) - 2):
            h = torch.relu(h @ w[f"t{i}"] + w[f"bt{i}"])
        return h @ w[f"t{last}"] + w[f"bt{last}"]

    def onnx(self, graph: Graph) -> None:
        h = "x"
        for i in range(len(self.bottom) - 1):
            h = graph.relu(graph.linear(h, f"b{i}", f"bb{i}"))
        lines = graph.node("Unsqueeze", h, graph.ints(1))
        z = graph.node("Concat", lines, graph.node("Gather", "table", "rows"), axis=1)
        products = graph.node("MatMul", z, graph.node("Transpose", z, perm=[0, 2, 1]))
        products = graph.node("Reshape", products, graph.ints(self.rows, -1))
        products = graph.node("Gather", products, graph.ints(*self.pairs), axis=1)
        h = graph.node("Concat", h, products, axis=1)
        for i in range(last := len(self.top) - 2):
            h = graph.relu(graph.linear(h, f"t{i}", f"bt{i}"))
        graph.linear(h, f"t{last}", f"bt{last}", out="y")


def mixer(rng: np.random.Generator) -> Block:
    """Return a mixer block with random weights."""
    weights = _vectors(rng, Mixer.width, "g1", "b1", "g2", "b2")
    weights |= _layers(rng, "t", (Mixer.rows, Mixer.inner, Mixer.rows), first=1)
    weights |= _layers(rng, "c", (Mixer.width, Mixer.outer, Mixer.width), first=1)
    return Mixer(weights)


def chain(rng: np.random.Generator) -> Block:
    """Return a chain with random weights."""
    return Chain(_vectors(rng, Chain.width, "g", "b"))


def dlrm(rng: np.random.Generator) -> Block:
    """Return a DLRM with random weights."""
    table = rng.standard_normal((Dlrm.tables * Dlrm.entries, Dlrm.depth)).astype(np.float32)
    layers = _layers(rng, "b", Dlrm.bottom) | _layers(rng, "t", Dlrm.top)
    return Dlrm({"table": table, **layers})


def _layers(
    rng: np.random.Generator, name: str, widths: tuple[int, ...], first: int = 0
) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for number, (k, n) in enumerate(pairwise(widths), first):
        found[f"{name}{number}"] = (rng.standard_normal((k, n)) / np.sqrt(k)).astype(np.float32)
        found[f"b{name}{number}"] = rng.standard_normal(n).astype(np.float32)
    return found


def _vectors(rng: np.random.Generator, width: int, *names: str) -> dict[str, Array]:
    return {name: rng.standard_normal(width).astype(np.float32) for name in names}


def _wide(weights: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array.astype(np.float64) for name, array in weights.items()}


def _gelu(x: Array) -> Array:
    from scipy.special import erf

    found: Array = x * (1 + erf(x / np.sqrt(2))) / 2
    return found
