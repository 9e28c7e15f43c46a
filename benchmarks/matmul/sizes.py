"""Squares of 4 to 512 rows: kernels and ``tw.matmul`` over size, beside what else computes them.

The rows are what the charts of speed over size and of time over size are drawn from. Nothing is
demanded of them: the sections ``gemm`` and ``products`` hold the limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.progress import track
from rich.table import Table

from benchmarks.matmul.products import DTYPES, OURS, peers_of, rounds_of, torch_of
from benchmarks.measure import kernels, peak
from benchmarks.measure.figures import Section
from benchmarks.measure.native import measure
from benchmarks.measure.operands import Operands, WrongResultError
from benchmarks.measure.options import Options
from benchmarks.measure.shapes import Shape
from benchmarks.peers.f32 import Peer

#: Rows, columns and steps of K of each square product.
SIZES = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
#: Types of A and B in the calls of ``tw.matmul``.
TYPES = ("f32", "f64", "bf16", "f16", "s8")
Row = dict[str, object]


def run(options: Options, peers: Sequence[Peer]) -> Section:
    """Time kernels in f32 beside ``peers``, then calls from Python in every type."""
    chosen = [size for size in SIZES if options.wants(f"{size}x{size}x{size}")]
    rows = [*_kernels(options, chosen, peers), *_calls(options, chosen)]
    _print(options, rows)
    return Section("sizes", (), tuple(rows))


def _kernels(options: Options, sizes: Sequence[int], peers: Sequence[Peer]) -> Iterator[Row]:
    """GFLOPS of C += A B in f32, called in C on data in cache."""
    rng = np.random.default_rng(options.seed)
    shapes = [Shape(size, size, size) for size in sizes]
    ready = kernels.compiled(shapes, options.target)
    for shape in track(shapes, "kernels", console=options.console, transient=True):
        operands = Operands.random(shape, rng)
        ours = kernels.call(ready[shape], shape, operands)
        calls = [ours, *(peer.call(shape, operands) for peer in peers)]
        for call in calls:
            operands.check(call)
        timed = measure([peak.peak(options.target), *calls], options.effort)
        speeds = {call.name: timed.gflops(call.name) for call in calls}
        yield {"what": "kernel", "types": "f32", "size": shape.m,
               "target": options.target, "peak": timed.gflops(peak.NAME),
               "gflops": speeds}  # fmt: skip


def _calls(options: Options, sizes: Sequence[int]) -> Iterator[Row]:
    """Microseconds of ``tw.matmul(a, b, out)``, beside numpy and PyTorch, one thread for all."""
    from threadpoolctl import threadpool_limits

    torch = torch_of()
    torch.set_num_threads(1)
    cases = [(types, size) for types in TYPES for size in sizes]
    with threadpool_limits(1):
        for types, size in track(cases, OURS, console=options.console, transient=True):
            yield _call(torch, options, types, size)


def _call(torch: Any, options: Options, types: str, size: int) -> Row:
    import tilewright as tw

    rng = np.random.default_rng(options.seed)
    a, b = (rng.integers(-2, 3, (size, size)).astype(DTYPES[types]) for _ in range(2))
    out = tw.matmul(a, b, threads=1)
    if (out != a.astype("f8") @ b.astype("f8")).any():
        raise WrongResultError(f"tw.matmul of {types}, {size} rows, is wrong")
    calls = {OURS: lambda: tw.matmul(a, b, out), **peers_of(torch, a, b, out, types)}
    taken = rounds_of(calls, options.effort)
    micros = {name: float(1e6 * np.median(seconds)) for name, seconds in taken.items()}
    return {"what": "call", "types": types, "size": size, "micros": micros}


def _print(options: Options, rows: Sequence[Row]) -> None:
    table = Table(title="squares: GFLOPS of kernels, us of calls", title_justify="left")
    for heading in ("what", "types", "size", "measured"):
        table.add_column(heading, justify="right" if heading == "size" else "left")
    for row in rows:
        found: Any = row.get("gflops") or row.get("micros")
        told = ", ".join(f"{name} {value:.3g}" for name, value in found.items())
        table.add_row(str(row["what"]), str(row["types"]), str(row["size"]), told)
    options.console.print(table)
