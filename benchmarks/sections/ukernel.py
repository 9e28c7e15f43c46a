"""bf16 and u8 x s8 with a packed B against oneDNN's ukernel, and what else multiplies them here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.measure import kernels, machine, typed
from benchmarks.measure.figures import Figure, Section, geometric_mean
from benchmarks.measure.native import Timed, measure
from benchmarks.measure.options import Options
from benchmarks.measure.shapes import LOW, Shape, odd_shapes
from benchmarks.measure.typed import Operands, Product
from benchmarks.peers.typed import ONEDNN, load

KINDS = (("bf16", "bf16"), ("u8", "s8"))
OF_ONEDNN, MEAN = 0.97, 1.10
#: What the same kernel is called between ``_configure()`` and ``_release()``.
CONFIGURED = f"{kernels.NAME}, configured"


@dataclass(frozen=True, slots=True)
class Row:
    """One product, timed with all that compute it."""

    product: Product
    target: str
    timed: Timed
    peers: tuple[str, ...]

    @property
    def own(self) -> tuple[str, ...]:
        """The ways in which the kernel itself was timed."""
        return tuple(call.name for call in self.timed.calls if call.name not in self.peers)

    def ratio(self, peer: str) -> float:
        """Speed relative to a peer: beside oneDNN, which keeps its tiles configured, so too."""
        return self.timed.ratio(self.own[-1] if peer == ONEDNN else kernels.NAME, peer)

    def record(self) -> dict[str, object]:
        """For ``--json``."""
        return {
            "shape": str(self.product.shape),
            "types": self.product.types,
            "target": self.target,
            "gflops": {name: self.timed.gflops(name) for name in (*self.own, *self.peers)},
            "to_peer": {name: self.ratio(name) for name in self.peers},
        }


def run(options: Options) -> Section:
    """Measure the ukernel's table and random sizes, on the best vectors of this processor."""
    target = machine.targets()[0]
    shapes = dict.fromkeys((*LOW, *odd_shapes(options.seed)))
    wanted = [shape for shape in shapes if options.wants(shape)]
    rows: list[Row] = []
    for kind in KINDS:
        found = list(_measured(options, target, kind, wanted))
        _print(options.console, found)
        rows += found
    figures = list(_figures(rows, whole=options.only is None))
    if not figures:
        options.console.print("Nothing is demanded beside other peers than oneDNN's ukernel.")
    return Section("ukernel", tuple(figures), tuple(row.record() for row in rows))


def _measured(
    options: Options, target: str, kind: tuple[str, str], shapes: Sequence[Shape]
) -> Iterator[Row]:
    rng = np.random.default_rng(options.seed)
    products = [Product(shape, *kind) for shape in shapes]
    with machine.every_core():
        peers, refusals = load(kind)
    for text in refusals:
        options.console.print(text)
    ready = typed.compiled(products, target)
    about = f"{target}: {products[0].types if products else ''}"
    for product in track(products, about, console=options.console, transient=True):
        operands = Operands.random(product, rng)
        calls = [peer.call(operands) for peer in peers]
        own = typed.call(ready[product], operands, kernels.NAME)
        kept = kernels.configured(own, ready[product], CONFIGURED)
        calls += [own] if kept is None else [own, kept]
        for call in calls:
            operands.check(call)
        timed = measure(calls, options.effort)
        yield Row(product, target, timed, tuple(peer.name for peer in peers))


def _figures(rows: Sequence[Row], whole: bool) -> Iterator[Figure]:
    """Against oneDNN's ukernel, where it takes the types."""
    compared = [row for row in rows if ONEDNN in row.peers]
    for row in compared:
        name = f"{row.product.types}, {row.product.shape} to oneDNN"
        yield Figure(name, row.ratio(ONEDNN), OF_ONEDNN)
    for types in dict.fromkeys(row.product.types for row in compared):
        if whole:
            ratios = [row.ratio(ONEDNN) for row in compared if row.product.types == types]
            yield Figure(f"geometric mean, {types} to oneDNN", geometric_mean(ratios), MEAN)


def _print(console: Console, rows: Sequence[Row]) -> None:
    if not rows:
        return
    first = rows[0]
    title = f"C = A B, {first.product.types}, B packed, {first.target}: GOPS"
    table = Table(title=title, title_justify="left")
    table.add_column("m x n x k (batch)")
    for heading in (*first.own, *first.peers, *(f"to {name}" for name in first.peers)):
        table.add_column(heading, justify="right")
    for row in rows:
        speeds = [row.timed.gflops(name) for name in (*row.own, *row.peers)]
        ratios = [row.ratio(name) for name in row.peers]
        cells = [f"{speed:.1f}" for speed in speeds] + [f"{ratio:.3f}" for ratio in ratios]
        table.add_row(str(row.product.shape), *cells)
    means = [geometric_mean(row.ratio(name) for row in rows) for name in first.peers]
    blank = [""] * len((*first.own, *first.peers))
    table.add_row("geometric mean", *blank, *(f"{mean:.3f}" for mean in means))
    console.print(table)
