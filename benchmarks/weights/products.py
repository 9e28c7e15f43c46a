"""What is timed: our kernels, peaks, and the products of ggml and PyTorch, as calls."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import tilewright as tw
from benchmarks.measure import machine
from benchmarks.measure.native import library, seconds
from benchmarks.measure.operands import WrongResultError
from benchmarks.measure.peak import peak

Array = np.ndarray[Any, Any]

#: Formats by name, of which the first ones meet integers that A becomes in the kernel.
INTEGERS = {
    "q4_0": tw.Quantized("u4", scale="f16", zero=8, block=32),
    "q4, zeros of 128": tw.Quantized("u4", scale="f16", zero="u4", block=128),
    "mxfp4": tw.Quantized("f4_e2m1", scale="e8m0", block=32),
    "q8_0": tw.Quantized("s8", scale="f16", block=32),
}
#: Those that meet an A of bf16, by the format's name.
HALVES = {
    "q4_0 x bf16": INTEGERS["q4_0"],
    "q8_0 x bf16": INTEGERS["q8_0"],
    "w8a16": tw.Quantized("s8", scale="f32", block=128),
}
#: Those that meet an A of f32.
SINGLES = {"q4_0 x f32": INTEGERS["q4_0"]}
FORMATS = {**INTEGERS, "w8a16": HALVES["w8a16"]}
#: A quantized before the call, products without scales, and what bounds both.
READY, BYTES, BF16, F32 = "q4_0, A ready", "u8 x s8", "bf16", "f32"
PEAKS = {"int8 peak": ("u8", "s8"), "bf16 peak": ("bf16", "bf16"), "f32 peak": ("f32", "f32")}
INT8_PEAK, BF16_PEAK, F32_PEAK = PEAKS
STORES = "stores"
#: Multiply-adds of a peak are so many calls in a loop of C.
_CALLS = 1024
#: Bytes that are stored for the rate of memory, at least.
_STORED = 1 << 27
#: Of how many columns each result is compared with one in f64, and by how much of the greatest
#: element it may be off: A is rounded to 8 bits, and by others in another way.
_CHECKED, APART = 64, 0.05


@dataclass(frozen=True, slots=True)
class Product:
    """A product by name: a call, the operations it counts, the bytes of its weights, and an end."""

    name: str
    call: Callable[[], object]
    work: int
    nbytes: int = 0
    release: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """B of one size: drawn in each format, packed for kernels that take any number of rows.

    ``exact`` are the numbers in some columns of what each kernel multiplies by.
    """

    n: int
    k: int
    floats: Array
    drawn: Mapping[str, tw.QuantizedMatrix]
    kernels: Mapping[str, tuple[tw.Kernel, tw.PackedMatrix]]
    exact: Mapping[str, Array]

    def check(self, name: str, a: Array, found: Array) -> None:
        """WrongResultError if a kernel's product with ``a`` is not near the exact one."""
        columns = _columns(self.n)
        right = a @ self.exact[name]
        if np.abs(found[:, columns] - right).max() > APART * np.abs(right).max():
            raise WrongResultError(f"{name} computes something else")


def weights_of(n: int, k: int, rng: Any) -> Weights:
    """Elements of all numbers, compiled and packed."""
    floats = rng.standard_normal((k, n), np.float32)
    drawn = {name: draw(form, k, n, rng) for name, form in FORMATS.items()}
    made = {**{name: drawn[name] for name in INTEGERS}, READY: drawn["q4_0"]}
    made |= {name: drawn[name.partition(" x ")[0]] for name in (*HALVES, *SINGLES)}
    whole = rng.integers(-128, 128, (k, n)).astype(np.int8)
    others = {BYTES: whole, BF16: floats.astype(ml_dtypes.bfloat16), F32: floats}
    specs = [_spec(name, n, k) for name in (*made, *others)]
    with machine.every_core():
        kernels = tw.compile_many(specs)
    packed = [
        kernel.pack_b(b)
        for kernel, b in zip(kernels, [*made.values(), *others.values()], strict=True)
    ]
    pairs = dict(zip((*made, *others), zip(kernels, packed, strict=True), strict=True))
    exact = {name: _some_columns(b).dequantize() for name, b in made.items()}
    exact |= {name: b[:, _columns(n)] for name, b in others.items()}
    in_f64 = {name: b.astype(np.float64) for name, b in exact.items()}
    return Weights(n, k, floats, drawn, pairs, in_f64)


def _columns(n: int) -> Array:
    """The first and the last ones."""
    half = np.arange(_CHECKED // 2)
    return np.concatenate((half, half + n - len(half)))


def _some_columns(b: tw.QuantizedMatrix) -> tw.QuantizedMatrix:
    """Those alone."""
    columns = _columns(b.shape[1])
    zeros = None if b.zeros is None else b.zeros[:, columns]
    return tw.QuantizedMatrix(b.format, b.q[:, columns], b.scales[:, columns], zeros)


def _spec(name: str, n: int, k: int) -> tw.Gemm:
    m = tw.dim("m")
    if name == READY:
        return tw.Gemm(m, n, k, a="s8", a_scale=("row", 32), b=tw.Packed(FORMATS["q4_0"]))
    if name in (*INTEGERS, *HALVES, *SINGLES):
        return of_format(name, n, k)
    if name == BYTES:
        return tw.Gemm(m, n, k, a="u8", b=tw.Packed("s8"))
    if name == BF16:
        return tw.Gemm(m, n, k, a="bf16", b=tw.Packed("bf16"))
    return tw.Gemm(m, n, k, b=tw.Packed("f32"))


def of_format(name: str, n: int, k: int) -> tw.Gemm:
    """A format by name, with the A that meets it."""
    m = tw.dim("m")
    if name in HALVES:
        return tw.Gemm(m, n, k, a="bf16", b=tw.Packed(HALVES[name]))
    if name in SINGLES:
        return tw.Gemm(m, n, k, b=tw.Packed(SINGLES[name]))
    form = INTEGERS[name]
    return tw.Gemm(m, n, k, a=tw.Quantize("f32", per=form.per), b=tw.Packed(form))


def draw(form: tw.Quantized, k: int, n: int, rng: Any) -> tw.QuantizedMatrix:
    """Elements of all numbers, with scales near 1/64."""
    stored, blocks = form.stored, form.blocks(k, n)
    kind = np.int8 if stored.unpacked == "s8" else np.uint8
    q = rng.integers(stored.low, stored.high + 1, (k, n)).astype(kind)
    scales = rng.uniform(0.5, 1, blocks).astype(np.float32) / 64
    zeros = rng.integers(0, 16, blocks).astype(np.uint8) if form.zeros else None
    if form.scale == "e8m0":
        return tw.QuantizedMatrix(form, q, np.full(blocks, 121, np.uint8), zeros)
    return tw.QuantizedMatrix(form, q, scales, zeros)


def products(weights: Weights, m: int, rng: Any) -> Iterator[Product]:
    """All of m rows: ours, what bounds them, and the peers."""
    a = rng.standard_normal((m, weights.k), np.float32)
    yield from _ours(weights, a, rng)
    yield from _bounds()
    yield from _of_ggml(weights, a)
    yield from _of_torch(weights, a)


def _ours(weights: Weights, a: Array, rng: Any) -> Iterator[Product]:
    m, work = len(a), 2 * len(a) * weights.n * weights.k
    halves = a.astype(ml_dtypes.bfloat16)
    for name, (kernel, packed) in weights.kernels.items():
        left: Array = halves if name in (*HALVES, BF16) else a
        named: dict[str, Array] = {}
        if name == BYTES:
            left = rng.integers(0, 256, (m, weights.k)).astype(np.uint8)
        if name == READY:
            left = rng.integers(-127, 128, (m, weights.k)).astype(np.int8)
            named["a_scale"] = rng.uniform(0.5, 1, (m, weights.k // 32)).astype(np.float32)
        out = kernel(left, packed, **named)
        scales = np.repeat(named.get("a_scale", np.ones((m, 1))), 32 if named else 1, axis=1)
        weights.check(name, left.astype(np.float64) * scales, out)
        yield Product(name, kernel.bind(left, packed, out, **named), work, packed.nbytes)


def _bounds() -> Iterator[Product]:
    """The peaks of the instructions that sum, and how fast bytes are stored."""
    for name, types in PEAKS.items():
        found = peak("host", types)
        yield Product(name, partial(_calls, found), _CALLS * found.flops)
    buffer = np.zeros(_STORED, np.uint8)
    yield Product(STORES, partial(buffer.fill, 0), _STORED)


def _calls(call: Any) -> float:
    return seconds(call, _CALLS)


# --- ggml's ------------------------------------------------------------------------------------

#: The containers that ggml multiplies by.
CONTAINERS = ("q4_0", "mxfp4", "q8_0")


@cache
def _ggml() -> ctypes.CDLL | None:
    """``benchmarks/programs/ggml.c`` with the ggml that the environment names."""
    named = os.environ.get("TILEWRIGHT_GGML")
    if not named:
        return None
    folder = Path(named)
    built = folder / "build" / "src"
    flags = [f"-I{folder / 'include'}", f"-L{built}", f"-Wl,-rpath,{built}"]
    found = library("ggml", *flags, "-lggml", "-lggml-cpu", "-lggml-base")
    found.bench_ggml_make.restype = ctypes.c_void_p
    return found


def _of_ggml(weights: Weights, a: Array) -> Iterator[Product]:
    """Its containers, A of f32: it is quantized inside, as ours is."""
    ggml = _ggml()
    if ggml is None:
        return
    for name in CONTAINERS:
        b = weights.drawn[name]
        data = np.ascontiguousarray(tw.to_gguf(b, name))
        sizes = (ctypes.c_int64(size) for size in (len(a), b.shape[1], b.shape[0]))
        bytes_ = ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(data.nbytes)
        rows = ctypes.c_void_p(a.ctypes.data)
        made = ctypes.c_void_p(ggml.bench_ggml_make(name.encode(), *sizes, *bytes_, rows))
        ggml.bench_ggml_run(made)
        found = np.empty((len(a), b.shape[1]), np.float32)
        ggml.bench_ggml_read(made, ctypes.c_void_p(found.ctypes.data))
        right = a @ b.dequantize()
        if np.abs(found - right).max() > APART * np.abs(right).max():
            raise WrongResultError(f"ggml's {name} computes something else")
        repacked = " repacked" if ggml.bench_ggml_repacked(made) else ""
        run, release = (partial(getattr(ggml, f"bench_ggml_{do}"), made) for do in ("run", "free"))
        work = 2 * len(a) * weights.n * weights.k
        yield Product(f"ggml {name}{repacked}", run, work, data.nbytes, release)


# --- PyTorch's ---------------------------------------------------------------------------------


def _of_torch(weights: Weights, a: Array) -> Iterator[Product]:
    """4-bit weights in groups of 32 with bf16, 8-bit integers, and f32."""
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)
    m, n, k = len(a), weights.n, weights.k
    work = 2 * m * n * k
    left, right = torch.from_numpy(a), torch.from_numpy(weights.floats)
    numbers = torch.randint(0, 16, (n, k), dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, 1)
    scales = torch.rand(k // 32, n, 2, dtype=torch.bfloat16) / 64
    halves = left.bfloat16()
    int4 = torch.ops.aten._weight_int4pack_mm_for_cpu
    nbytes = packed.numel() * packed.element_size() + scales.numel() * 2
    yield Product("torch int4", lambda: int4(halves, packed, 32, scales), work, nbytes)
    if m > 16:  # it takes no fewer
        bytes_ = torch.randint(-128, 128, (m, k), dtype=torch.int8)
        whole = torch.randint(-128, 128, (k, n), dtype=torch.int8)
        yield Product("torch int8", lambda: torch._int_mm(bytes_, whole), work, n * k)
    out = torch.empty(m, n)
    yield Product("torch f32", lambda: torch.mm(left, right, out=out), work, 4 * n * k)
