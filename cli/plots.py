"""The demo's plot: the set beside numpy and the peak, and the variants by rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .measured import Measured


def plot(path: Path, chapter: Sequence[Measured], ranked: Sequence[float], title: str) -> None:
    """Save the plot; ``ranked`` are the variants' GFLOPS, best expected first."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(15, 6), layout="constrained")
    bars = [one for one in chapter if not one.moves]
    places = range(len(bars))
    left.barh([p - 0.2 for p in places], [b.rate for b in bars], 0.38, label="tilewright")
    left.barh(
        [p + 0.2 for p in places],
        [b.rate / b.ratio for b in bars],
        0.38,
        color="0.7",
        label="numpy's share of that, both called from Python",
    )
    left.set_yticks(list(places), [b.title for b in bars])
    left.invert_yaxis()
    left.set_xlabel("GFLOPS")
    left.set_title(f"the chapter's kernels on {bars[0].kernel.target}")
    peaks = [b.rate / b.of_peak for b in bars if b.of_peak]
    right.plot(range(1, len(ranked) + 1), ranked, "o", markersize=4)
    right.set_xlabel("place in the cost model's order")
    right.set_ylabel("GFLOPS")
    right.set_ylim(bottom=0)
    right.set_title(title)
    if peaks:
        peak = sorted(peaks)[len(peaks) // 2]
        left.axvline(peak, color="k", linestyle="--", label="measured peak")
        right.axhline(peak, color="k", linestyle="--", label="measured peak")
        right.legend()
    left.legend(loc="lower right")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
