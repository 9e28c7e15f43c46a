"""Weights of few bits beside 8-bit and f32 weights, and beside PyTorch's, in interleaved rounds.

One thread. Rates count two operations for each element of A and column of B, whatever is computed
with them; of one row the bytes of the weights that pass are stated as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import ml_dtypes
import numpy as np
from rich.progress import track
from rich.table import Table

import tilewright as tw
from benchmarks.measure import machine
from benchmarks.measure.figures import Section
from benchmarks.measure.native import Effort
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


@dataclass(frozen=True, slots=True)
class Product:
    """One way to multiply, as a call without arguments, and the bytes of its weights."""

    name: str
    call: Callable[[], object]
    nbytes: int


def run(options: Options) -> Section:
    """All sizes and rows, each with every format and every peer there is."""
    rows: list[dict[str, object]] = []
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
    options.console.print(table)
    return Section("quantized", (), tuple(rows))


def _wanted(options: Options, size: str) -> bool:
    return options.only is None or options.only.search(size) is not None


def _measure(options: Options, m: int, n: int, k: int) -> dict[str, tuple[float, int]]:
    """Seconds of one call, and the bytes of its weights, by name."""
    rng = np.random.default_rng(options.seed)
    a = rng.standard_normal((m, k), np.float32)
    w = rng.standard_normal((k, n), np.float32)
    every = [*_ours(a, w, rng), *_of_torch(a, w)]
    seconds = _rounds([product.call for product in every], options.effort)
    return {p.name: (float(t), p.nbytes) for p, t in zip(every, seconds, strict=True)}


def _rounds(calls: list[Callable[[], object]], effort: Effort) -> Array:
    """Seconds of each call: the median over rounds of the least of the repeats."""
    loops = [_loops(call) for call in calls]
    seconds = np.full((effort.rounds, len(calls)), np.inf)
    for row in seconds:
        for _ in range(effort.repeats):
            for i, call in enumerate(calls):
                start = perf_counter()
                for _ in range(loops[i]):
                    call()
                row[i] = min(row[i], (perf_counter() - start) / loops[i])
    found: Array = np.median(seconds, axis=0)
    return found


def _loops(call: Callable[[], object]) -> int:
    call()
    start = perf_counter()
    call()
    return max(1, round(LEAST / (perf_counter() - start)))


# --- ours --------------------------------------------------------------------------------------


def _ours(a: Array, w: Array, rng: Any) -> Iterator[Product]:
    """Each format with A quantized by the kernel, q4_0 and q8_0 with A of bf16, 8 bits, and f32."""
    (m, k), n = a.shape, w.shape[1]
    drawn = {name: _drawn(form, k, n, rng) for name, form in FORMATS.items()}
    halves = a.astype(ml_dtypes.bfloat16)
    asked: list[tuple[str, Any, Any, Mapping[str, Any]]] = []
    for name, b in drawn.items():
        quantized = tw.Quantize("f32", per=("row", b.format.block))
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
    stored, blocks = form.stored, (form.blocks(k), n)
    kind = np.int8 if stored.unpacked == "s8" else np.uint8
    q = rng.integers(stored.low, stored.high + 1, (k, n)).astype(kind)
    scales = rng.uniform(0.5, 1, blocks).astype(np.float32) / 64
    zeros = rng.integers(0, 16, blocks).astype(np.uint8) if form.zeros else None
    if form.scale == "e8m0":
        return tw.QuantizedMatrix(form, q, np.full(blocks, 121, np.uint8), zeros)
    return tw.QuantizedMatrix(form, q, scales, zeros)


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
