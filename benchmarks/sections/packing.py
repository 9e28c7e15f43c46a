"""Packing and transposing: bytes read and written per second, compared with a copy of as many.

The time above that of the copy is the time of the conversion and of the new order. Only
transpositions of small elements in cache have a goal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.progress import track
from rich.table import Table

import tilewright as tw
from benchmarks.measure import machine
from benchmarks.measure.figures import Figure, Section, geometric_mean
from benchmarks.measure.native import Call, Timed, address, library, measure
from benchmarks.measure.operands import WrongResultError, placed
from benchmarks.measure.options import Options
from tilewright.plan.formats.lookup import format_of
from tilewright.runtime.arrays.elements import encode
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.reference.pack_b import packed_bytes
from tilewright.spec.types import ITEMSIZE

COPY, PACK, TRANSPOSE = "copy", "pack", "transpose"
#: Types of A and B, what B is converted from, and its order: rows first, then columns.
KINDS = (
    ("u8", "s8", "s8", "C"), ("u8", "s8", "s8", "F"), ("bf16", "bf16", "bf16", "C"),
    ("bf16", "bf16", "bf16", "F"), ("f16", "f16", "f32", "C"), ("bf16", "bf16", "f32", "C"),
    ("bf16", "bf16", "f32", "F"), ("u8", "s8", "f32", "C"), ("f32", "f32", "f32", "C"),
    ("f32", "f32", "f32", "F"),
)  # fmt: skip
#: K x N: within the first cache, the second, and beyond the last.
SIZES = ((64, 64), (512, 256), (4096, 4096))
#: Types and sizes of the transposed matrices, which are in the first or second cache.
TYPES, SQUARES = ("u8", "bf16", "f32"), (64, 96, 200, 256)
#: Goal for elements of 1 and 2 bytes, relative to a copy.
TRANSPOSED = 0.8


@dataclass(frozen=True, slots=True)
class Row:
    """One packing and a copy of as many bytes, timed in turns."""

    spec: tw.Pack
    target: str
    timed: Timed

    def record(self) -> dict[str, object]:
        """For ``--json``."""
        spec = self.spec
        return {
            "size": f"{spec.k}x{spec.n}",
            "target": self.target,
            "types": f"{spec.source} as {spec.type} for {spec.a}, {spec.order}",
            "gbytes": {name: self.timed.gflops(name) for name in (PACK, COPY)},
            "to_copy": self.timed.ratio(PACK, COPY),
        }


def run(options: Options) -> Section:
    """Time all packings on every target of this processor."""
    rows: list[Row] = []
    for target in machine.native_isas():
        specs = [spec for spec in _specs() if _wanted(options, spec)]
        with machine.every_core():
            kernels = tw.compile_many([(spec, None, target) for spec in specs])
        about = f"{target}: packing"
        for kernel in track(kernels, about, console=options.console, transient=True):
            timed = measure(_calls(kernel, options.seed), options.effort)
            assert isinstance(kernel.spec, tw.Pack)
            rows.append(Row(kernel.spec, target, timed))
        _print(options, [row for row in rows if row.target == target], target)
    turned = _transposed(options)
    figures = tuple(
        Figure(f"transposing {type_}, to a copy", geometric_mean(ratios), TRANSPOSED)
        for type_, ratios in turned.items() if type_ != "f32"
    )  # fmt: skip
    records: list[dict[str, object]] = [row.record() for row in rows]
    records += [{"transposed": type_, "to_copy": ratios} for type_, ratios in turned.items()]
    return Section("packing", figures, tuple(records))


def _transposed(options: Options) -> dict[str, list[float]]:
    """Time transpositions on the host; return the speeds relative to a copy, by type and size."""
    found: dict[str, list[float]] = {}
    table = Table("type", *map(str, SQUARES), title=f"Transposing, {machine.native_isas()[0]}")
    table.caption = "speed relative to a copy"
    for type_ in TYPES:
        found[type_] = []
        for size in SQUARES:
            calls = _transposition(type_, size, options.seed)
            found[type_].append(measure(calls, options.effort).ratio(TRANSPOSE, COPY))
        table.add_row(type_, *(f"{ratio:.2f}" for ratio in found[type_]))
    options.console.print(table)
    return found


def _transposition(type_: Any, size: int, seed: int) -> list[Call]:
    """Return a transposition, checked once, and a copy of as many bytes."""
    kernel = tw.compile(tw.Copy(size, size, type_, tw.Matrix(type_, order="F")))
    moved = size * size * ITEMSIZE[type_]
    a, d = (placed((moved,), at, np.uint8) for at in (0, 21 * 64))
    a[:] = np.random.default_rng(seed).integers(0, 256, moved)
    operands = a.ctypes.data, d.ctypes.data
    call = Call(TRANSPOSE, kernel.address, operands, 2 * moved, (kernel, a, d))
    call.once()
    whole = f"u{ITEMSIZE[type_]}"
    if not np.array_equal(a.view(whole).reshape(size, size).T.ravel(), d.view(whole)):
        raise WrongResultError(f"{kernel.name} transposes wrongly")
    return [call, _copy(a, d, moved)]


def _specs() -> Iterator[tw.Pack]:
    for k, n in SIZES:
        for a, b, source, order in KINDS:
            yield tw.Pack(k, n, b, a=a, nb=n, source=source, order=order)  # type: ignore[arg-type]


def _wanted(options: Options, spec: tw.Pack) -> bool:
    return options.only is None or options.only.search(f"{spec.k}x{spec.n}") is not None


def _calls(kernel: tw.Kernel, seed: int) -> list[Call]:
    """The packing, checked once, and a copy between buffers of half as many bytes as it moves."""
    spec = kernel.spec
    assert isinstance(spec, tw.Pack)
    assert isinstance(spec.k, int) and isinstance(spec.n, int)
    written = format_of(spec, kernel.isa).nbytes
    moved = spec.k * spec.n * ITEMSIZE[spec.source] + written
    b, out = (placed((moved,), at, np.uint8) for at in (0, 21 * 64))
    rng = np.random.default_rng(seed)
    drawn = encode(rng.integers(-100, 100, spec.k * spec.n), spec.source)
    b[: drawn.nbytes] = drawn.view(np.uint8)
    operands = b.ctypes.data, out.ctypes.data
    pack = Call(PACK, kernel.address, operands, moved, (kernel, b, out))
    _check(pack, spec, kernel, drawn, out[:written])
    return [pack, _copy(b, out, moved // 2)]


def _copy(source: Any, to: Any, size: int) -> Call:
    """Return a copy of ``size`` bytes, which are read and written."""
    held = np.array([size], np.int64)
    operands = source.ctypes.data, to.ctypes.data, held.ctypes.data
    copying = address(library("adapters").bench_copy)
    return Call(COPY, copying, operands, 2 * size, (held, source, to))


def _check(call: Call, spec: tw.Pack, kernel: tw.Kernel, drawn: Any, out: Any) -> None:
    shape = (spec.k, spec.n) if spec.order == "C" else (spec.n, spec.k)
    matrix = drawn.reshape(shape) if spec.order == "C" else drawn.reshape(shape).T
    call.once()
    if not np.array_equal(packed_bytes(spec, kernel.isa, [matrix])[0], out):
        raise WrongResultError(f"{kernel.name} packs something else")


def _print(options: Options, rows: Sequence[Row], target: str) -> None:
    title = f"Packing B, {target}: GB/s read and written, to a copy, and stored as which groups"
    table = Table(title=title, title_justify="left")
    table.add_column("from, order, as")
    for k, n in SIZES:
        table.add_column(f"{k}x{n}", justify="right")
    cells: dict[str, list[str]] = {}
    for row in rows:
        spec, form = row.spec, format_of(row.spec, resolve(target))
        what = f"{spec.source}, {spec.order}, {spec.type} for {spec.a}"
        rate, ratio = row.timed.gflops(PACK), row.timed.ratio(PACK, COPY)
        kept = f"{form.stored} by {form.group}"
        cells.setdefault(what, []).append(f"{rate:.1f} {100 * ratio:3.0f}% {kept:>9}")
    for what, found in cells.items():
        table.add_row(what, *found)
    options.console.print(table)
