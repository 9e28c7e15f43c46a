"""The demo's plot: the set beside numpy and the peak, and the variants by rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from .measured import Measured


def plot(path: Path, chapter: Sequence[Measured], ranked: Sequence[float], title: str) -> None:
    """Save the plot; ``ranked`` are the variants' GFLOPS, best expected first."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(15, 6.5), layout="constrained")
    computing = [one for one in chapter if not one.moves]
    _bars(left, computing)
    right.plot(range(1, len(ranked) + 1), ranked, "o", markersize=4)
    right.set_xlabel("the cost model's order, best expected first")
    right.set_ylabel("GFLOPS in a C loop")
    right.set_ylim(bottom=0)
    right.set_title(title)
    peaks = [one.timing.gflops / one.timing.of_peak for one in computing if one.timing.of_peak]
    if peaks:
        left.axvline(median(peaks), color="k", linestyle="--", label="measured peak")
        right.axhline(median(peaks), color="k", linestyle="--", label="measured peak")
        right.legend()
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=4)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _bars(axes: Any, measured: Sequence[Measured]) -> None:
    places = range(len(measured))
    bars = (
        ("in a C loop", "C0", [one.timing.gflops for one in measured]),
        ("called from Python", "C9", [one.work / one.called.ours for one in measured]),
        ("numpy", "0.7", [one.work / one.called.numpy for one in measured]),
    )
    for i, (label, color, gflops) in enumerate(bars):
        axes.barh([p + 0.27 * (i - 1) for p in places], gflops, 0.26, color=color, label=label)
    labels = [f"{one.title}, {one.sizes}" for one in measured]
    axes.set_yticks(list(places), labels)
    axes.invert_yaxis()
    axes.set_xlabel("GFLOPS on one core")
    axes.set_title(f"the chapter's kernels on {measured[0].kernel.target}: C += A B by columns")
