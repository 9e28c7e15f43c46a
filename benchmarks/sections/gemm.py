"""f32 products against the FMA peak and against every peer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.measure import kernels, machine, peak
from benchmarks.measure.figures import Figure, Section, geometric_mean
from benchmarks.measure.native import Call, Timed, measure
from benchmarks.measure.operands import Operands
from benchmarks.measure.options import Options
from benchmarks.measure.shapes import BATCH, ROUND, TABLE, UKERNEL, Shape, random_shapes
from benchmarks.peers.f32 import Peer

# No kernel may be faster than the peak: a row above this says that the measurement is wrong.
ABOVE_PEAK = 1.01
OF_PEAK = {"6x16x64": 0.75, "1x64x64": 0.70}
OF_BEST_PEER, MEAN_TABLE, MEAN_ALL = 0.97, 1.05, 1.10
ROUND_OF_PEAK, BATCH_OF_PEAK = 0.97, 0.95


@dataclass(frozen=True, slots=True)
class Row:
    """One shape on one target, timed with all that compute it."""

    shape: Shape
    target: str
    timed: Timed
    peers: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All that was timed but the peak."""
        return tuple(call.name for call in self.timed.calls if call.name != peak.NAME)

    def of_peak(self, name: str = kernels.NAME) -> float:
        """Fraction of the FMA peak, median of the rounds."""
        return self.timed.ratio(name, peak.NAME)

    @property
    def best(self) -> str:
        """The fastest peer."""
        return max(self.peers, key=self.timed.gflops)

    @property
    def ratio(self) -> float:
        """Speed relative to the peer that comes closest or beats it."""
        return min(self.timed.ratio(kernels.NAME, peer) for peer in self.peers)

    def record(self) -> dict[str, object]:
        """For ``--json``."""
        return {
            "shape": str(self.shape),
            "target": self.target,
            "peak": self.timed.gflops(peak.NAME),
            "gflops": {name: self.timed.gflops(name) for name in self.names},
            "of_peak": {name: self.of_peak(name) for name in self.names},
        }


def run(options: Options, peers: Sequence[Peer]) -> Section:
    """Measure all lists; the peers on the widest ISA, the peak fractions on each."""
    chosen = random_shapes(options.seed)
    shapes = list(dict.fromkeys((*TABLE, *UKERNEL, BATCH, *chosen)))
    rows = _measure(options, options.target, [s for s in shapes if options.wants(s)], peers)
    _print(options.console, rows, options.target)
    if options.peers_only:
        return Section("gemm", (), tuple(row.record() for row in rows))
    others = [isa for isa in machine.native_isas() if isa != options.target]
    for isa in others:
        wanted = [shape for shape in ROUND if options.wants(shape)]
        more = _measure(options, isa, wanted, ())
        _print(options.console, more, isa)
        rows += more
    figures = [*_peaks(rows), *_against_peers(rows, options, chosen)]
    return Section("gemm", tuple(figures), tuple(row.record() for row in rows))


def _measure(
    options: Options, target: str, shapes: Sequence[Shape], peers: Sequence[Peer]
) -> list[Row]:
    rng = np.random.default_rng(options.seed)
    ready = {} if options.peers_only else kernels.compiled(shapes, target)
    rows = []
    for shape in track(shapes, f"{target}: timing", console=options.console, transient=True):
        operands = Operands.random(shape, rng)
        calls: list[Call] = [peer.call(shape, operands) for peer in peers]
        if shape in ready:
            calls.append(kernels.call(ready[shape], shape, operands))
        for call in calls:
            operands.check(call)
        timed = measure([peak.peak(target), *calls], options.effort)
        rows.append(Row(shape, target, timed, tuple(peer.name for peer in peers)))
    return rows


def _peaks(rows: Sequence[Row]) -> Iterable[Figure]:
    for row in rows:
        limit = OF_PEAK.get(str(row.shape)) if row.peers else None
        if row.shape in ROUND:
            limit = ROUND_OF_PEAK
        elif row.shape == BATCH and row.target.startswith("avx512"):
            limit = BATCH_OF_PEAK
        if limit is not None:
            yield Figure(f"{row.shape} of peak, {row.target}", row.of_peak(), limit)
    fastest = max((row.of_peak(name) for row in rows for name in row.names), default=0.0)
    yield Figure("fastest of all, of peak", fastest, ABOVE_PEAK, at_most=True)


def _against_peers(
    rows: Sequence[Row], options: Options, chosen: Sequence[Shape]
) -> Iterable[Figure]:
    ratios = {row.shape: row.ratio for row in rows if row.peers}
    for shape in (*TABLE, *UKERNEL):
        if shape in ratios:
            yield Figure(f"{shape} to the best peer", ratios[shape], OF_BEST_PEER)
    if options.only is None:
        table = [ratios[shape] for shape in TABLE]
        listed = [ratios[shape] for shape in (*TABLE, *UKERNEL)]
        yield Figure("geometric mean, first table", geometric_mean(table), MEAN_TABLE)
        yield Figure("geometric mean, both tables", geometric_mean(listed), MEAN_TABLE)
        everything = [*listed, *(ratios[shape] for shape in chosen)]
        yield Figure("geometric mean, with random sizes", geometric_mean(everything), MEAN_ALL)


def _print(console: Console, rows: Sequence[Row], target: str) -> None:
    if not rows:
        return
    names = list(rows[0].names)
    table = Table(title=f"C += A B, f32, {target}: GFLOPS and % of peak", title_justify="left")
    table.add_column("m x n x k (batch)")
    headings = ["peak", *names]
    compared = kernels.NAME in names and bool(rows[0].peers)
    headings += ["to best peer", "±"] if compared else []
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [f"{row.timed.gflops(peak.NAME):.0f}"]
        for name in names:
            bold = "[bold]" if row.peers and name == row.best else ""
            cells.append(f"{bold}{row.timed.gflops(name):.1f} {100 * row.of_peak(name):3.0f}%")
        if compared:
            colour = "[green]" if row.ratio >= 1 else "[red]" if row.ratio < OF_BEST_PEER else ""
            cells += [
                f"{colour}{row.ratio:.3f}",
                f"{row.timed.spread(kernels.NAME, row.best):.3f}",
            ]
        table.add_row(str(row.shape), *cells)
    console.print(table)
