"""The demo's plot: this machine beside numpy and the peak, a chapter's set, variants by rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from .measured import Measured


def plot(
    path: Path,
    products: Sequence[Measured],
    chapter: Sequence[Measured],
    ranked: Sequence[float],
    title: str,
) -> None:
    """Save the plot; ``ranked`` are the variants' GFLOPS, best expected first."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(21, 6.5), layout="constrained")
    left, middle, right = panels
    computing = [one for one in chapter if not one.moves]
    target = products[0].kernel.target
    _bars(left, products, f"{target}\nthe model's schedules: C = A B by rows")
    _bars(middle, computing, "a chapter on Neon\nits fixed blocks and loops: C += A B by columns")
    right.plot(range(1, len(ranked) + 1), ranked, "o", markersize=4)
    right.set_xlabel("the cost model's order, best expected first")
    right.set_ylabel("GFLOPS in a C loop")
    right.set_ylim(bottom=0)
    right.set_title(title)
    measured = [*products, *computing]
    peaks = [one.timing.gflops / one.timing.of_peak for one in measured if one.timing.of_peak]
    if peaks:
        for axes in (left, middle):
            axes.axvline(median(peaks), color="k", linestyle="--", label="measured peak")
        right.axhline(median(peaks), color="k", linestyle="--", label="measured peak")
        right.legend()
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=4)
    figure.savefig(path, dpi=100, pil_kwargs={"compress_level": 1})
    pyplot.close(figure)


def _bars(axes: Any, measured: Sequence[Measured], title: str) -> None:
    """A group for each kernel; how many times as fast as numpy it is stands beside."""
    places = range(len(measured))
    called = [one.work / one.called.ours for one in measured]
    bars = (
        ("in a C loop", "C0", [one.timing.gflops for one in measured]),
        ("called from Python", "C9", called),
        ("numpy", "0.7", [one.work / one.called.numpy for one in measured]),
    )
    for i, (label, color, gflops) in enumerate(bars):
        axes.barh([p + 0.27 * (i - 1) for p in places], gflops, 0.26, color=color, label=label)
    for place, one, end in zip(places, measured, called, strict=True):
        axes.annotate(
            f"{one.called.ratio:.1f} x numpy",
            (end, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "linewidth": 0},
        )
    axes.set_yticks(list(places), [", ".join(filter(None, (o.title, o.sizes))) for o in measured])
    axes.invert_yaxis()
    axes.margins(x=0.2)  # for what stands beside the longest bar
    axes.set_xlabel("GFLOPS on one core")
    axes.set_title(title)
