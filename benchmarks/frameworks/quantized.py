"""Weights of few bits beside 8-bit and f32 weights, and beside ggml's and PyTorch's.

In interleaved rounds, on one thread. Rates count two operations for each element of A and column of
B, whatever is computed with them; of one row the bytes of weights that pass are stated as well.
ggml is that of llama.cpp: ``TILEWRIGHT_GGML`` names its folder, with include/ and build/src/.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any

import ml_dtypes
import numpy as np
from rich.progress import track
from rich.table import Table

import tilewright as tw
from benchmarks.measure import machine
from benchmarks.measure.figures import Figure, Section
from benchmarks.measure.native import Effort, library
from benchmarks.measure.operands import WrongResultError
from benchmarks.measure.options import Options

Array = np.ndarray[Any, Any]
#: Rows of A, and (n, k) of weights.
ROWS = (1, 4, 16, 48, 128)
SIZES = ((512, 2048), (768, 3072), (4096, 4096), (14336, 4096), (4096, 14336))
#: The formats by the names of their containers.
FORMATS = {
    "q4_0": tw.Quantized("u4", scale="f16", zero=8, block=32),
    "q4, zeros of 128": tw.Quantized("u4", scale="f16", zero="u4", block=128),
    "mxfp4": tw.Quantized("f4_e2m1", scale="e8m0", block=32),
    "q8_0": tw.Quantized("s8", scale="f16", block=32),
}
#: Seconds that one measurement of a call takes at least.
LEAST = 0.003
#: Seconds of a call that is timed once and not in rounds, as a peer's without fast kernels here.
LONG = 1.0


@dataclass(frozen=True, slots=True)
class Product:
    """One way to multiply, as a call without arguments, and the bytes of its weights.

    ``release`` gives back what it holds in C.
    """

    name: str
    call: Callable[[], object]
    nbytes: int
    release: Callable[[], object] | None = None


def run(options: Options) -> Section:
    """All sizes and rows, each with every format and every peer there is."""
    rows: list[dict[str, object]] = []
    rates_of: dict[tuple[int, int, int], dict[str, float]] = {}
    table = Table(title="Weights of few bits, one thread: GOPS", title_justify="left")
    table.add_column("m x n x k")
    wanted = [(m, n, k) for n, k in SIZES for m in ROWS if _wanted(options, f"{m}x{n}x{k}")]
    for size in track(wanted, "quantized", console=options.console, transient=True):
        taken = _measure(options, *size)
        if not rows:
            for name in taken:
                table.add_column(name, justify="right")
        m, n, k = size
        rates = {name: 2e-9 * m * n * k / seconds for name, (seconds, _) in taken.items()}
        cells = []
        for name, (seconds, nbytes) in taken.items():
            bandwidth = f" {nbytes / seconds * 1e-9:.1f} GB/s" if m == 1 else ""
            cells.append(f"{rates[name]:.0f}{bandwidth}")
        table.add_row(f"{m}x{n}x{k}", *cells)
        rows.append({"size": f"{m}x{n}x{k}", "gops": rates})
        rates_of[size] = rates
    options.console.print(table)
    return Section("quantized", tuple(_figures(rates_of)), tuple(rows))


def _figures(rates: Mapping[tuple[int, int, int], Mapping[str, float]]) -> Iterator[Figure]:
    """How our formats stand to ggml's: many rows, and one."""
    for said, rows, wanted in (
        ("16 rows and more", range(16, 1 << 20), 3.0),
        ("one row", (1,), 1.3),
    ):
        ratios = [
            each[name] / peer
            for (m, _, _), each in rates.items()
            for name in CONTAINERS
            for title, peer in each.items()
            if m in rows and title.removesuffix(" repacked") == f"ggml {name}"
        ]
        if ratios:
            mean = float(np.exp(np.mean(np.log(ratios))))
            yield Figure(f"to ggml, {said}: geometric mean", mean, wanted)
            yield Figure(f"to ggml, {said}: least", min(ratios), wanted / 2)


def _wanted(options: Options, size: str) -> bool:
    return options.only is None or options.only.search(size) is not None


def _measure(options: Options, m: int, n: int, k: int) -> dict[str, tuple[float, int]]:
    """Seconds of one call, and the bytes of its weights, by name."""
    rng = np.random.default_rng(options.seed)
    a = rng.standard_normal((m, k), np.float32)
    w = rng.standard_normal((k, n), np.float32)
    drawn = {name: _drawn(form, k, n, rng) for name, form in FORMATS.items()}
    every = [*_ours(a, w, drawn, rng), *_of_ggml(a, drawn), *_of_torch(a, w)]
    seconds = _rounds([product.call for product in every], options.effort)
    for product in every:
        if product.release is not None:
            product.release()
    return {p.name: (float(t), p.nbytes) for p, t in zip(every, seconds, strict=True)}


def _rounds(calls: list[Callable[[], object]], effort: Effort) -> Array:
    """Seconds of each call: the median over rounds of the least of the repeats."""
    once = np.array([_warmed(call) for call in calls])
    seconds = np.repeat(once[np.newaxis], effort.rounds, axis=0)
    for i in np.flatnonzero(once < LONG):
        seconds[:, i] = np.inf
    for row in seconds:
        for _ in range(effort.repeats):
            for i in np.flatnonzero(once < LONG):
                loops = max(1, round(LEAST / once[i]))
                row[i] = min(row[i], _seconds(calls[i], loops))
    found: Array = np.median(seconds, axis=0)
    return found


def _warmed(call: Callable[[], object]) -> float:
    """Seconds of the second call, or of the first if that is long."""
    first = _seconds(call, 1)
    return first if first >= LONG else _seconds(call, 1)


def _seconds(call: Callable[[], object], loops: int) -> float:
    start = perf_counter()
    for _ in range(loops):
        call()
    return (perf_counter() - start) / loops


# --- ours --------------------------------------------------------------------------------------


def _ours(
    a: Array, w: Array, drawn: Mapping[str, tw.QuantizedMatrix], rng: Any
) -> Iterator[Product]:
    """Each format with A quantized by the kernel, q4_0 and q8_0 with A of bf16, 8 bits, and f32."""
    (m, k), n = a.shape, w.shape[1]
    halves = a.astype(ml_dtypes.bfloat16)
    asked: list[tuple[str, Any, Any, Mapping[str, Any]]] = []
    for name, b in drawn.items():
        quantized = tw.Quantize("f32", per=b.format.per)
        asked.append((name, a, b, {"a": quantized, "b": tw.Packed(b.format)}))
    for name in ("q4_0", "q8_0"):
        b = drawn[name]
        asked.append((f"{name} x bf16", halves, b, {"a": "bf16", "b": tw.Packed(b.format)}))
    whole = rng.integers(-128, 128, (k, n)).astype(np.int8)
    ones = rng.integers(0, 256, (m, k)).astype(np.uint8)
    asked.append(("u8 x s8", ones, whole, {"a": "u8", "b": tw.Packed("s8")}))
    asked.append(("f32", a, w, {"b": tw.Packed("f32")}))
    specs = [tw.Gemm(tw.dim("m"), n, k, **given) for _, _, _, given in asked]
    with machine.every_core():
        kernels = tw.compile_many(specs)
    for (name, left, right, _), kernel in zip(asked, kernels, strict=True):
        packed = kernel.pack_b(right)
        yield Product(name, kernel.bind(left, packed, kernel(left, packed)), packed.nbytes)


def _drawn(form: tw.Quantized, k: int, n: int, rng: Any) -> tw.QuantizedMatrix:
    """Elements of all numbers, with scales near 1/64."""
    stored, blocks = form.stored, form.blocks(k, n)
    kind = np.int8 if stored.unpacked == "s8" else np.uint8
    q = rng.integers(stored.low, stored.high + 1, (k, n)).astype(kind)
    scales = rng.uniform(0.5, 1, blocks).astype(np.float32) / 64
    zeros = rng.integers(0, 16, blocks).astype(np.uint8) if form.zeros else None
    if form.scale == "e8m0":
        return tw.QuantizedMatrix(form, q, np.full(blocks, 121, np.uint8), zeros)
    return tw.QuantizedMatrix(form, q, scales, zeros)


# --- ggml's ------------------------------------------------------------------------------------

#: The containers that ggml multiplies by.
CONTAINERS = ("q4_0", "mxfp4", "q8_0")
#: By how much of the greatest element ggml's results may differ: each quantizes A its own way.
APART = 0.05


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


def _of_ggml(a: Array, drawn: Mapping[str, tw.QuantizedMatrix]) -> Iterator[Product]:
    """Its containers, A of f32: it is quantized inside, as ours is."""
    ggml = _ggml()
    if ggml is None:
        return
    for name in CONTAINERS:
        b = drawn[name]
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
        yield Product(f"ggml {name}{repacked}", run, data.nbytes, release)


# --- PyTorch's ---------------------------------------------------------------------------------


def _of_torch(a: Array, w: Array) -> Iterator[Product]:
    """4-bit weights in groups of 32 with bf16, 8-bit integers, and f32."""
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)
    (m, k), n = a.shape, w.shape[1]
    left, right = torch.from_numpy(a), torch.from_numpy(w)
    numbers = torch.randint(0, 16, (n, k), dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, 1)
    scales = torch.rand(k // 32, n, 2, dtype=torch.bfloat16) / 64
    halves = left.bfloat16()
    int4 = torch.ops.aten._weight_int4pack_mm_for_cpu
    nbytes = packed.numel() * packed.element_size() + scales.numel() * 2
    yield Product("torch int4", lambda: int4(halves, packed, 32, scales), nbytes)
    if m > 16:  # it takes no fewer
        bytes_ = torch.randint(-128, 128, (m, k), dtype=torch.int8)
        whole = torch.randint(-128, 128, (k, n), dtype=torch.int8)
        yield Product("torch int8", lambda: torch._int_mm(bytes_, whole), n * k)
    out = torch.empty(m, n)
    yield Product("torch f32", lambda: torch.mm(left, right, out=out), 4 * n * k)
