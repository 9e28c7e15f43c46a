"""A decoder layer of a language model with weights of four bits: prompt, then token after token.

    python examples/decoder_layer.py [small] [threads]        (by default: the shape of an 8B model)

The layer has grouped-query attention, in plain steps of numpy, and a gated network whose two
products, silu between them, are one kernel. Weights are random and quantized here. Printed are
the tokens a second of a prompt of 512 and of single tokens behind it, beside the same layer in
PyTorch with bf16 and with its own four bits where it is installed, and by how much each format is
off from the layer in float64; build/decoder_layer.svg has a picture of that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import tilewright as tw

Array = np.ndarray[Any, Any]
#: Formats of the weights by name: that of the layer that is timed comes first.
FORMATS = {
    "q4_0": tw.Quantized("u4", scale="f16", zero=8, block=32),
    "q4, zeros": tw.Quantized("u4", scale="f16", zero="u4", block=32),
    "mxfp4": tw.Quantized("f4_e2m1", scale="e8m0", block=32),
    "q8_0": tw.Quantized("s8", scale="f16", block=32),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a layer: ``heads`` of queries share ``groups`` of keys and values."""

    width: int
    heads: int
    groups: int
    between: int
    prompt: int

    @property
    def head(self) -> int:
        """Elements of one head."""
        return self.width // self.heads

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """K and N of the weights by name."""
        mixed = self.width + 2 * self.groups * self.head
        return {
            "qkv": (self.width, mixed),
            "out": (self.width, self.width),
            "gate": (self.width, self.between),
            "up": (self.width, self.between),
            "down": (self.between, self.width),
        }


SHAPES = {
    "8B": Shape(width=4096, heads=32, groups=8, between=14336, prompt=512),
    "small": Shape(width=256, heads=8, groups=2, between=512, prompt=32),
}
#: Two inputs to one output: a product, or the gated one.
Products = Mapping[str, Callable[[Array], Array]]


def weights_of(shape: Shape, seed: int = 0) -> dict[str, Array]:
    """Random weights, K x N, of a size that keeps values in their range."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(size, np.float32) / np.float32(np.sqrt(size[0]))
        for name, size in shape.sizes.items()
    }


def quantized_products(weights: Mapping[str, Array], form: tw.Quantized, threads: int) -> Products:
    """The layer's products with weights of that format; kernels quantize what meets them."""
    schedule = tw.Schedule(threads=threads) if threads > 1 else tw.Schedule()
    a, b = tw.Quantize("f32", per=form.per), tw.Packed(form)

    def kernel(k: int, n: int, **more: Any) -> tw.Kernel:
        return tw.compile(tw.Gemm(tw.dim("m"), n, k, a=a, b=b, **more), schedule)

    made: dict[str, Callable[[Array], Array]] = {}
    for name in ("qkv", "out", "down"):
        plain = kernel(*weights[name].shape)
        packed = plain.pack_b(tw.quantize(weights[name], form))
        made[name] = lambda x, plain=plain, packed=packed: plain(x, packed)  # type: ignore[misc]
    gated = kernel(*weights["gate"].shape, b2=b, epilogue=tw.silu(tw.acc) * tw.acc2)
    gate, up = (gated.pack_b(tw.quantize(weights[name], form)) for name in ("gate", "up"))
    made["gated"] = lambda x: gated(x, gate, b2=up)
    return made


def exact_products(weights: Mapping[str, Array]) -> Products:
    """The layer's products in float64, with the weights that there were."""
    wide = {name: w.astype(np.float64) for name, w in weights.items()}

    def gated(x: Array) -> Array:
        gate = x @ wide["gate"]
        found: Array = gate / (1 + np.exp(-gate)) * (x @ wide["up"])
        return found

    return {
        "qkv": lambda x: x @ wide["qkv"],
        "out": lambda x: x @ wide["out"],
        "down": lambda x: x @ wide["down"],
        "gated": gated,
    }


class Layer:
    """One layer, and the keys and values of the tokens that it has seen."""

    def __init__(self, shape: Shape, products: Products, dtype: Any = np.float32) -> None:
        self.shape, self.products = shape, products
        room = (shape.groups, 2 * shape.prompt, shape.head)
        self.keys, self.values = np.zeros(room, dtype), np.zeros(room, dtype)
        self.seen = 0

    def __call__(self, x: Array) -> Array:
        """Tokens x width, behind those seen before."""
        x = x + self.products["out"](self._attention(self.products["qkv"](_normed(x))))
        found: Array = x + self.products["down"](self.products["gated"](_normed(x)))
        return found

    def _attention(self, mixed: Array) -> Array:
        shape, tokens = self.shape, len(mixed)
        parts = mixed.reshape(tokens, shape.heads + 2 * shape.groups, shape.head).swapaxes(0, 1)
        queries, keys, values = np.split(parts, [shape.heads, shape.heads + shape.groups])
        behind = slice(self.seen, self.seen + tokens)
        self.keys[:, behind], self.values[:, behind] = keys, values
        self.seen += tokens
        queries = queries.reshape(shape.groups, -1, tokens, shape.head)
        every = self.keys[:, None, : self.seen].swapaxes(-1, -2)
        scores = queries @ every / queries.dtype.type(np.sqrt(shape.head))
        later = np.arange(self.seen) > np.arange(self.seen - tokens, self.seen)[:, None]
        scores = np.where(later, -np.inf, scores)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        heads = (shares @ self.values[:, None, : self.seen]).reshape(shape.heads, tokens, -1)
        return np.ascontiguousarray(heads.swapaxes(0, 1)).reshape(tokens, shape.width)


def _normed(x: Array) -> Array:
    """Rows divided by the root of their mean square."""
    mean = np.mean(x * x, axis=1, keepdims=True)
    found: Array = x / np.sqrt(mean + x.dtype.type(1e-6))
    return found


# --- figures -----------------------------------------------------------------------------------


def errors(shape: Shape, weights: Mapping[str, Array], threads: int) -> dict[str, float]:
    """By how much of its size the layer's output is off, with each format of its weights."""
    x = np.random.default_rng(1).standard_normal((16, shape.width)).astype(np.float32)
    right = Layer(shape, exact_products(weights), np.float64)(x.astype(np.float64))
    found = {}
    for name, form in FORMATS.items():
        off = Layer(shape, quantized_products(weights, form, threads))(x) - right
        found[name] = float(np.linalg.norm(off) / np.linalg.norm(right))
    return found


def speeds(make: Callable[[], Layer], prompt: Array, token: Array) -> tuple[float, float]:
    """Tokens a second of a prompt, and of single tokens behind it: the best of some."""
    first, later = np.inf, np.inf
    for _ in range(3):
        layer = make()
        start = perf_counter()
        layer(prompt)
        first = min(first, perf_counter() - start)
        for _ in range(5):
            start = perf_counter()
            layer(token)
            later = min(later, perf_counter() - start)
    return len(prompt) / first, 1 / later


def of_torch(shape: Shape, weights: Mapping[str, Array], threads: int) -> dict[str, Any]:
    """The products of PyTorch in bf16 and in its four bits, by name; none where it is missing."""
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(threads)

    def products(multiply: Mapping[str, Callable[[Any], Any]]) -> Products:
        def called(name: str) -> Callable[[Array], Array]:
            def product(x: Array) -> Array:
                found = multiply[name](torch.from_numpy(x).bfloat16()).float().numpy()
                return np.asarray(found)

            return product

        def gated(x: Array) -> Array:
            given = torch.from_numpy(x).bfloat16()
            gate = torch.nn.functional.silu(multiply["gate"](given))
            return np.asarray((gate * multiply["up"](given)).float().numpy())

        return {name: called(name) for name in ("qkv", "out", "down")} | {"gated": gated}

    halves = {name: torch.from_numpy(w).bfloat16() for name, w in weights.items()}
    bf16 = {name: lambda x, w=w: x @ w for name, w in halves.items()}
    int4 = {}
    for name, (k, n) in shape.sizes.items():
        q = torch.randint(0, 16, (n, k), dtype=torch.int32)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q, 1)
        scales = torch.full((k // 32, n, 2), 0.01, dtype=torch.bfloat16)
        multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
        int4[name] = lambda x, p=packed, s=scales, f=multiply: f(x, p, 32, s)
    return {"PyTorch bf16": products(bf16), "PyTorch int4": products(int4)}


def draw(found: Mapping[str, float], path: Path) -> None:
    """The errors as bars."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3))
    axes.bar(list(found), [100 * each for each in found.values()], color="#4477aa")
    axes.set_ylabel("error of the output, %")
    axes.set_title("A decoder layer with quantized weights and activations")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)


def main(size: str = "8B", threads: int = 1) -> dict[str, float]:
    """Print speeds and errors; the errors by format are returned."""
    shape = SHAPES[size]
    weights = weights_of(shape)
    rng = np.random.default_rng(2)
    prompt = rng.standard_normal((shape.prompt, shape.width)).astype(np.float32)
    name, form = next(iter(FORMATS.items()))
    products = {f"tilewright {name}": quantized_products(weights, form, threads)}
    print(f"tokens a second, {threads} thread{'s' if threads > 1 else ''}: prompt, then one by one")
    for title, each in {**products, **of_torch(shape, weights, threads)}.items():
        first, later = speeds(partial(Layer, shape, each), prompt, prompt[:1])
        print(f"  {title:18}{first:9.1f}{later:9.1f}")
    found = errors(shape, weights, threads)
    print("off from the layer in float64, of the output's size")
    for title, off in found.items():
        print(f"  {title:18}{100 * off:8.2f}%")
    draw(found, Path("build/decoder_layer.svg"))
    return found


if __name__ == "__main__":
    sizes = [word for word in sys.argv[1:] if word in SHAPES]
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    main(sizes[0] if sizes else "8B", numbers[0] if numbers else 1)
