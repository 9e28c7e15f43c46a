"""A network of two layers on handwritten digits, in f32, in bf16 and in 8-bit integers.

    python examples/digits.py                              (needs scikit-learn)

The 8x8 images that scikit-learn carries, 1297 to learn from and 500 to be tried on. numpy trains
64 -> 64 -> 10 in seconds. Then the network runs three times, each layer one kernel with its bias
and relu inside:

    f32     weights as they are
    bf16    weights and activations in bf16, sums in f32
    int8    pixels and activations u8, weights s8 with a scale for each column, sums in s32;
            the first layer quantises its own output

and once as numpy would: ``np.maximum(x @ w + b, 0) @ v + c``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tilewright as tw

Array = NDArray[Any]

IMAGES, PIXELS, HIDDEN, CLASSES = 500, 64, 64, 10


@dataclass(frozen=True, slots=True)
class Network:
    """Weights in f32: ``w`` (64, 64), ``v`` (64, 10), and their biases."""

    w: Array
    b: Array
    v: Array
    c: Array


def digits() -> tuple[Array, Array, Array, Array]:
    """Images as (n, 64) in 0 to 1 and labels: to learn from, then to be tried on."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images = (images[order] / 16).astype(np.float32)
    labels = labels[order]
    return images[IMAGES:], labels[IMAGES:], images[:IMAGES], labels[:IMAGES]


def train(images: Array, labels: Array, epochs: int = 60) -> Network:
    """Gradient descent on the cross entropy, with momentum, in batches of 32."""
    rng = np.random.default_rng(1)
    shapes = ((PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
    weights = [
        rng.standard_normal(s) / np.sqrt(s[0]) if len(s) > 1 else np.zeros(s) for s in shapes
    ]
    speed = [np.zeros(s) for s in shapes]
    wanted = np.eye(CLASSES)[labels]
    for _ in range(epochs):
        for rows in np.array_split(rng.permutation(len(images)), len(images) // 32):
            x = images[rows].astype(np.float64)
            hidden = np.maximum(x @ weights[0] + weights[1], 0)
            logits = hidden @ weights[2] + weights[3]
            share = np.exp(logits - logits.max(1, keepdims=True))
            error = (share / share.sum(1, keepdims=True) - wanted[rows]) / len(rows)
            back = (error @ weights[2].T) * (hidden > 0)
            slopes = (x.T @ back, back.sum(0), hidden.T @ error, error.sum(0))
            for i, slope in enumerate(slopes):
                speed[i] = 0.9 * speed[i] - 0.1 * slope
                weights[i] = weights[i] + speed[i]
    return Network(*(weight.astype(np.float32) for weight in weights))


# --- the three networks ------------------------------------------------------------------------

Run = Callable[[Array], Array]


def by_numpy(network: Network) -> Run:
    """f32, as numpy does it."""
    n = network
    return lambda x: np.maximum(x @ n.w + n.b, 0) @ n.v + n.c


def layers(*specs: tw.Gemm) -> list[tw.Kernel]:
    """One kernel for each layer, in one library."""
    return tw.compile_many(specs)


def in_f32(network: Network) -> Run:
    """Each layer a product with its bias, the first with relu."""
    bias = tw.Operand("bias", "f32", per="column")
    first, second = layers(
        tw.Gemm(IMAGES, HIDDEN, PIXELS, epilogue=tw.relu(tw.acc + bias)),
        tw.Gemm(IMAGES, CLASSES, HIDDEN, epilogue=tw.acc + bias),
    )
    return lambda x: second(first(x, network.w, bias=network.b), network.v, bias=network.c)


def in_bf16(network: Network) -> Run:
    """Images and the hidden layer in bf16, weights packed in it."""
    bias = tw.Operand("bias", "f32", per="column")
    types: dict[str, Any] = {"a": "bf16", "b": tw.Packed("bf16")}
    first, second = layers(
        tw.Gemm(IMAGES, HIDDEN, PIXELS, **types, d="bf16", epilogue=tw.relu(tw.acc + bias)),
        tw.Gemm(IMAGES, CLASSES, HIDDEN, **types, epilogue=tw.acc + bias),
    )
    w, v = first.pack_b(to_bf16(network.w)), second.pack_b(to_bf16(network.v))
    return lambda x: second(first(x, w, bias=network.b), v, bias=network.c)


def in_int8(network: Network, images: Array) -> Run:
    """Images in steps of 1/255, the hidden layer in steps that reach the largest value seen."""
    bias = tw.Operand("bias", "f32", per="column")
    hidden = np.maximum(images @ network.w + network.b, 0)
    step = float(hidden.max()) / 255
    types: dict[str, Any] = {"a": "u8", "b": tw.Packed("s8"), "b_scale": "column"}
    first, second = layers(
        tw.Gemm(
            IMAGES, HIDDEN, PIXELS, **types, a_scale=1 / 255, d="u8", d_scale=step,
            epilogue=tw.relu(tw.acc + bias),
        ),
        tw.Gemm(
            IMAGES, CLASSES, HIDDEN, **types, a_scale=step, d="f32", epilogue=tw.acc + bias
        ),
    )  # fmt: skip
    (w, w_scale), (v, v_scale) = (quantised(each) for each in (network.w, network.v))
    w, v = first.pack_b(w), second.pack_b(v)

    def run(x: Array) -> Array:
        middle = first(x, w, b_scale=w_scale, bias=network.b)
        logits: Array = second(middle, v, b_scale=v_scale, bias=network.c)
        return logits

    return run


def quantised(weights: Array) -> tuple[Any, Array]:
    """s8 weights and the f32 scale of each column."""
    scale = np.abs(weights).max(axis=0) / 127
    return np.rint(weights / scale).astype(np.int8), scale.astype(np.float32)


def to_bf16(x: Array) -> Array:
    """The bits of bf16, rounded to nearest even, as uint16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded: Array = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype(np.uint16)


# --- the comparison ----------------------------------------------------------------------------


def seconds(run: Run, x: Array, repeats: int) -> float:
    """The median time of one run."""
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run(x)
        taken.append(time.perf_counter() - begin)
    return float(np.median(taken))


def main(repeats: int = 200) -> int:
    """Train, run all four, and print the accuracy and time of each."""
    learn, learn_labels, images, labels = digits()
    network = train(learn, learn_labels)
    runs = {
        "numpy, f32": (by_numpy(network), images),
        "f32": (in_f32(network), images),
        "bf16": (in_bf16(network), to_bf16(images)),
        "int8": (in_int8(network, learn), np.rint(images * 255).astype(np.uint8)),
    }
    right = {name: int(np.sum(run(x).argmax(1) == labels)) for name, (run, x) in runs.items()}
    times = {name: seconds(run, x, repeats) for name, (run, x) in runs.items()}
    print(f"{IMAGES} digits that were not learned from")
    for name, taken in times.items():
        ratio = times["numpy, f32"] / taken
        print(f"{name:12}{right[name] / IMAGES:8.1%} {1e6 * taken:8.0f} us {ratio:6.2f}x numpy")
    return int(min(right.values()) < right["numpy, f32"] - IMAGES // 100)


if __name__ == "__main__":
    sys.exit(main())
