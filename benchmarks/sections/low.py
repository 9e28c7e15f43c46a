"""Low precision with a packed B, hot: against the peak of its instruction, and type against type.

On every target of this processor, with and without its features: all types of a size take turns
with the peaks of their instructions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.measure import machine, peak, typed
from benchmarks.measure.figures import Figure, Section
from benchmarks.measure.native import Timed, measure
from benchmarks.measure.options import Options
from benchmarks.measure.shapes import DEEP, ROUND, Shape
from benchmarks.measure.typed import Operands, Product
from tilewright.runtime.machine.host import resolve

#: A and B. The sums of each are taken by one instruction; s8 x s8 by u8 x s8's, where shifted.
KINDS = (("f32", "f32"), ("f16", "f16"), ("bf16", "bf16"), ("u8", "s8"), ("s8", "s8"))
OF_PEAK = {"vdpbf16ps": 0.95, "vpdpbusd": 0.93}
#: Of the peak of a matrix unit's products, on what keeps it busy.
OF_MATRICES = 0.9
#: How much of the speed of another type is demanded: s8 x s8 of u8 x s8, f16 and bf16 of f32: not
#: less, as far as a run can tell. f32 itself differs by so much from run to run.
SIGNED, HALVES = 0.95, 0.995
#: f32 once more, on arrays of its own: what a ratio of 1 is measured as.
AGAIN = "f32 again"
ABOVE_PEAK = 1.01


@dataclass(frozen=True, slots=True)
class Row:
    """All types of one size on one target."""

    shape: Shape
    target: str
    timed: Timed

    def of_peak(self, kind: tuple[str, str]) -> float:
        """Fraction of the peak of what sums the products of ``kind``."""
        return self.timed.ratio(_name(kind), peak.name(self.target, kind))

    def to(self, kind: tuple[str, str], other: tuple[str, str]) -> float:
        """Speed relative to another type."""
        return self.timed.ratio(_name(kind), _name(other))

    def record(self) -> dict[str, object]:
        """For ``--json``."""
        return {
            "shape": str(self.shape),
            "target": self.target,
            "instruction": {_name(kind): peak.instruction(self.target, kind) for kind in KINDS},
            "gflops": {_name(kind): self.timed.gflops(_name(kind)) for kind in KINDS},
            "of_peak": {_name(kind): self.of_peak(kind) for kind in KINDS},
            "again": self.timed.ratio(AGAIN, _name(KINDS[0])),
        }


def run(options: Options) -> Section:
    """Measure the round sizes on each target."""
    rows: list[Row] = []
    for target in machine.targets():
        deep = DEEP if resolve(target).matrix is not None else ()
        shapes = [shape for shape in (*ROUND, *deep) if options.wants(shape)]
        rows += _measured(options, target, shapes)
    for row in rows:
        _print(options.console, row)
    if not _amd():
        options.console.print(
            f"{machine.vendor()}: what s8 x s8 costs beside u8 x s8 is said, and not demanded."
        )
    figures = [figure for row in rows for figure in _figures(row)]
    return Section("low", tuple(figures), tuple(row.record() for row in rows))


def _measured(options: Options, target: str, shapes: Sequence[Shape]) -> Iterator[Row]:
    rng = np.random.default_rng(options.seed)
    products = {(shape, kind): Product(shape, *kind) for shape in shapes for kind in KINDS}
    ready = typed.compiled(list(products.values()), target)
    peaks = {peak.name(target, kind): peak.peak(target, kind) for kind in reversed(KINDS)}
    about = f"{target}: low precision"
    for shape in track(shapes, about, console=options.console, transient=True):
        calls = []
        for kind in KINDS:
            product = products[shape, kind]
            operands = Operands.random(product, rng)
            calls.append(typed.call(ready[product], operands, _name(kind)))
            operands.check(calls[-1])
        plain = products[shape, KINDS[0]]
        calls.append(typed.call(ready[plain], Operands.random(plain, rng), AGAIN))
        yield Row(shape, target, measure([*peaks.values(), *calls], options.effort))


def _figures(row: Row) -> Iterator[Figure]:
    where = f"{row.shape}, {row.target}"
    plain = peak.instruction(row.target, ("f32", "f32"))
    for kind in KINDS:
        instruction = peak.instruction(row.target, kind)
        demanded = OF_PEAK.get(instruction) if kind[0] != "s8" else None
        if instruction.startswith("tdp") and row.shape in DEEP:
            demanded = OF_MATRICES
        if demanded is not None:
            name = f"{_name(kind)} of {instruction}'s peak, {where}"
            yield Figure(name, row.of_peak(kind), demanded)
        if kind[0] in ("f16", "bf16") and instruction == plain:
            yield Figure(f"{_name(kind)} to f32, {where}", row.to(kind, KINDS[0]), HALVES)
    if _amd():
        yield Figure(f"s8 x s8 to u8 x s8, {where}", row.to(KINDS[4], KINDS[3]), SIGNED)
    fastest = max(row.of_peak(kind) for kind in KINDS)
    yield Figure(f"fastest of peak, {where}", fastest, ABOVE_PEAK, at_most=True)


def _amd() -> bool:
    return machine.vendor() == "AuthenticAMD"


def _name(kind: tuple[str, str]) -> str:
    return Product(ROUND[0], *kind).types


def _print(console: Console, row: Row) -> None:
    title, plain = f"C = A B, B packed, {row.shape}, {row.target}", _name(KINDS[0])
    table = Table(title=title, title_justify="left")
    for heading in ("types", "summed by", "peak", "GOPS", "of peak", "to f32", "±"):
        table.add_column(heading, justify="left" if heading in ("types", "summed by") else "right")
    for kind in KINDS:
        name, of = _name(kind), peak.name(row.target, kind)
        table.add_row(
            name,
            peak.instruction(row.target, kind),
            f"{row.timed.gflops(of):.0f}",
            f"{row.timed.gflops(name):.1f}",
            f"{100 * row.of_peak(kind):.1f}%",
            f"{row.to(kind, KINDS[0]):.3f}",
            f"{row.timed.spread(name, plain):.3f}",
        )
    again = row.timed.ratio(AGAIN, plain), row.timed.spread(AGAIN, plain)
    table.add_row(AGAIN, "", "", "", "", *(f"{x:.3f}" for x in again))
    console.print(table)
