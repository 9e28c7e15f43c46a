"""Weights of few bits beside 8-bit, bf16 and f32 weights, and beside ggml's and PyTorch's.

In interleaved rounds, on one thread. Rates count two operations for each element of A and column of
B, whatever is computed with them. ggml is that of llama.cpp: ``TILEWRIGHT_GGML`` names its folder,
with include/ and build/src/. Then one row by weights that lie in memory, by one thread and by all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from rich.progress import track
from rich.table import Table

from benchmarks.measure.figures import Figure, Section, geometric_mean
from benchmarks.measure.options import Options
from benchmarks.measure.rounds import rounds

from . import memory
from .memory import FromMemory
from .products import (
    BF16,
    BF16_PEAK,
    CONTAINERS,
    F32,
    F32_PEAK,
    HALVES,
    INT8_PEAK,
    INTEGERS,
    READY,
    SINGLES,
    STORES,
    Weights,
    products,
    weights_of,
)  # fmt: skip

#: Rows of A, and (n, k) of weights.
ROWS = (1, 2, 4, 8, 16, 48, 128, 512)
SIZES = ((512, 2048), (768, 3072), (1024, 4096), (4096, 4096), (14336, 4096), (4096, 14336))
#: Rows from which arithmetic is the bound.
MANY = 16
#: Shares of peaks and of memory's rate; times of ggml's speed; what quantizing A may take.
OF_INT8, OF_FLOATS, OF_MEMORY, PRICE = 0.65, 0.90, 0.90, 1.05
GGML_MANY, GGML_LEAST, GGML_ONE = 3.0, 1.5, 1.3

Size = tuple[int, int, int]
#: Operations a second by name: multiply-adds count two, stores a byte.
Rates = Mapping[str, float]


def run(options: Options) -> Section:
    """All sizes and rows, each with every format and every peer there is."""
    rng = np.random.default_rng(options.seed)
    wanted = {
        (n, k): rows
        for n, k in SIZES
        if (rows := [m for m in ROWS if options.wants(f"{m}x{n}x{k}")])
    }
    rates: dict[Size, Rates] = {}
    for (n, k), rows in track(wanted.items(), "quantized", console=options.console, transient=True):
        weights = weights_of(n, k, rng)
        for m in rows:
            rates[m, n, k] = _rates(options, weights, m, rng)
    far = [
        memory.measure(size, threads, options.effort, rng)
        for size in memory.SIZES
        if options.wants(f"1x{size[0]}x{size[1]}")
        for threads in sorted({1, memory.all_threads()})
    ]
    _print(options, rates, far)
    rows_of: list[dict[str, object]] = [
        {"size": "x".join(map(str, size)), "gops": {name: 1e-9 * x for name, x in each.items()}}
        for size, each in rates.items()
    ]
    rows_far: list[dict[str, object]] = [
        {"size": each.size, "threads": each.threads, "bytes_per_second": each.rates} for each in far
    ]
    figures = (*_figures(rates), *_of_memory(far))
    return Section("quantized", figures, (*rows_of, *rows_far))


def _rates(options: Options, weights: Weights, m: int, rng: np.random.Generator) -> Rates:
    every = list(products(weights, m, rng))
    seconds = rounds([product.call for product in every], options.effort)
    for product in every:
        if product.release is not None:
            product.release()
    return {p.name: p.work / float(t) for p, t in zip(every, seconds, strict=True)}


# --- what is demanded --------------------------------------------------------------------------


def _figures(rates: Mapping[Size, Rates]) -> Iterator[Figure]:
    """Of each kind the mean and the worst."""
    many = {size: each for size, each in rates.items() if size[0] >= MANY}
    one = {size: each for size, each in rates.items() if size[0] == 1}
    ahead = list(_to_ggml(many))
    yield from _two("to ggml, 16 rows and more", ahead, GGML_MANY, GGML_LEAST)
    yield from _two("to ggml, one row", list(_to_ggml(one)), GGML_ONE, GGML_ONE)
    for peak, names, limit in (
        (INT8_PEAK, INTEGERS, OF_INT8),
        (BF16_PEAK, HALVES, OF_FLOATS),
        (F32_PEAK, SINGLES, OF_FLOATS),
    ):
        shares = [each[name] / each[peak] for each in many.values() for name in names]
        yield from _two(f"of the {peak}, 16 rows and more", shares, limit, limit)
    first = [ratio for size, each in rates.items() for ratio in _to_unpacking(size, each)]
    yield from _two("to unpacking all of B first", first, 1.0, 1.0)
    prices = [each[READY] / each["q4_0"] for (_, n, _), each in many.items() if n == 4096]
    if prices:
        name = "quantizing A, n of 4096: times as long"
        yield Figure(f"{name}, mean", geometric_mean(prices), PRICE, at_most=True)
        yield Figure(f"{name}, most", max(prices), PRICE, at_most=True)


def _two(said: str, ratios: Sequence[float], mean: float, least: float = 0.0) -> Iterator[Figure]:
    if ratios:
        yield Figure(f"{said}: geometric mean", geometric_mean(ratios), mean)
        if least:
            yield Figure(f"{said}: least", min(ratios), least)


def _to_ggml(rates: Mapping[Size, Rates]) -> Iterator[float]:
    for each in rates.values():
        for name in CONTAINERS:
            for title, peer in each.items():
                if title.removesuffix(" repacked") == f"ggml {name}":
                    yield each[name] / peer


def _to_unpacking(size: Size, each: Rates) -> Iterator[float]:
    """Beside a B that is unpacked to bytes, or to A's type, at no cost but its stores."""
    m, n, k = size
    work = 2 * m * n * k
    ways = dict.fromkeys(INTEGERS, ("q8_0", 1)) | dict.fromkeys(HALVES, (BF16, 2))
    for name, (unpacked, nbytes) in (ways | dict.fromkeys(SINGLES, (F32, 4))).items():
        if name != unpacked:
            seconds = work / each[unpacked] + nbytes * n * k / each[STORES]
            yield seconds * each[name] / work


def _of_memory(far: Sequence[FromMemory]) -> Iterator[Figure]:
    for threads in sorted({each.threads for each in far}):
        shares = [
            each.share(name)
            for each in far
            if each.threads == threads
            for name in each.rates
            if name != memory.READS
        ]
        said = f"one row from memory, of plain reads, {threads} thread{'s' * (threads > 1)}"
        yield from _two(said, shares, OF_MEMORY, OF_MEMORY)


# --- how it is said ----------------------------------------------------------------------------


def _print(options: Options, rates: Mapping[Size, Rates], far: Sequence[FromMemory]) -> None:
    table = Table(title="Weights of few bits, one thread: GOPS", title_justify="left")
    table.add_column("m x n x k")
    names = dict.fromkeys(name for each in rates.values() for name in each if name != STORES)
    for name in names:
        table.add_column(name, justify="right")
    for size, each in rates.items():
        cells = (f"{1e-9 * each[name]:.0f}" if name in each else "" for name in names)
        table.add_row("x".join(map(str, size)), *cells)
    options.console.print(table)
    table = Table(title="One row by weights from memory: GB/s", title_justify="left")
    for heading in ("n x k", "threads", *(far[0].rates if far else ())):
        table.add_column(heading, justify="right")
    for row in far:
        cells = (f"{1e-9 * rate:.1f}" for rate in row.rates.values())
        table.add_row("x".join(map(str, row.size)), str(row.threads), *cells)
    options.console.print(table)
