"""Write the results of tunings as one self-contained HTML file with tables and SVG pictures."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.explain.cover import cover
from tilewright.explain.picture import Roof, roof
from tilewright.generate import draw_plan, explain_plan, plan_for
from tilewright.plan.routine import routine_of
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.tuned import MEASURED, Database, Result, Subject, Winner
from tilewright.spec.gemm import Gemm
from tilewright.spec.network.value import Network
from tilewright.spec.schedule import Schedule
from tilewright.tuning.race import Ranking, rankings
from tilewright.tuning.workbench import moved

from .measured import speed
from .screen import duration, percent
from .words import schedule_text, sizes_text

#: Maximum number of variants in the table, and in the picture of the ranking.
_ROWS, _BARS = 15, 25
#: The kinds of specs that are tuned.
Tuned = Gemm | Network
_STYLE = (
    "body{font-family:sans-serif;max-width:72em;margin:2em auto;color:#1f2933}"
    "td,th{text-align:right;padding:.2em .8em}td:last-child,th:last-child{text-align:left}"
    "svg{max-width:100%;height:auto}"
)


def write(path: Path, database: Database, specs: Sequence[tuple[Tuned, Subject]]) -> None:
    """Write the stored results of ``specs`` to the HTML file ``path``."""
    parts = [
        "<!DOCTYPE html>",
        "<html lang='en'><head><title>Tuned kernels</title>",
        f"<style>{_STYLE}</style></head><body><h1>Tuned kernels</h1>",
    ]
    if specs:
        subject = specs[0][1]
        parts.append(f"<p>{escape(subject.target)} on {escape(subject.cpu)}</p>")
    for spec, subject in specs:
        winner = database.winner(subject)
        if winner is not None:
            parts += _section(spec, winner, database.results(subject))
    parts.append("</body></html>\n")
    path.write_bytes("\n".join(parts).encode("ascii", "xmlcharrefreplace"))


def _section(spec: Tuned, winner: Winner, results: Sequence[Result]) -> Iterator[str]:
    ranked = rankings(results, Schedule(), moved(spec))
    ranked = [_as_stored(one, winner) for one in ranked]
    ranked.sort(key=lambda one: one.schedule != winner.schedule)
    plan = plan_for(spec, winner.schedule, resolve(winner.subject.target))
    failed = [one for one in results if one.status != MEASURED]
    yield f"<h2>{escape(sizes_text(spec))}</h2><p><code>{escape(repr(spec))}</code></p>"
    yield f"<p>{escape(winner.reason)}, give or take {winner.uncertainty:.3f}. "
    yield f"{len(ranked)} variants measured, {len(failed)} failed.</p>"
    if ranked:
        yield _figure(plan, ranked, winner)
        yield _table(ranked[:_ROWS])
    for one in failed[:_ROWS]:
        said = one.said.partition("\n")[0]
        yield f"<p>{escape(one.status)}: {escape(schedule_text(one.schedule))}: {escape(said)}</p>"
    shown = (
        f"<pre>{escape(explain_plan(plan))}</pre>" if isinstance(spec, Network) else draw_plan(plan)
    )
    yield f"<details><summary>The winner's plan</summary>{shown}</details>"


def _as_stored(one: Ranking, winner: Winner) -> Ranking:
    """Return the figures of a variant.

    Figures of the winner are those that were stored with it: they are from the last comparison
    alone, which decided that it won.
    """
    if one.schedule != winner.schedule:
        return one
    if not winner.gflops:  # the spec has no product
        return replace(one, ratio=winner.ratio, uncertainty=winner.uncertainty)
    median = one.hot.median * one.hot.gflops / winner.gflops
    hot = replace(one.hot, gflops=winner.gflops, median=median)
    return replace(one, ratio=winner.ratio, uncertainty=winner.uncertainty, hot=hot)


def _table(ranked: Sequence[Ranking]) -> str:
    heads = ("x default", "in cache", "of peak", "in memory", "rounds", "schedule")
    rows = ["".join(f"<th>{head}</th>" for head in heads)]
    for one in ranked:
        cells = (
            f"{one.ratio:.3f} ± {one.uncertainty:.3f}",
            f"{speed(one.hot)}, {duration(one.hot.median)}",
            percent(one.hot.of_peak),
            "-" if one.cold is None else speed(one.cold),
            str(one.rounds),
            schedule_text(one.schedule),
        )
        rows.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


# --- pictures ----------------------------------------------------------------------------------


def _figure(plan: Any, ranked: Sequence[Ranking], winner: Winner) -> str:
    """Return an SVG with four pictures: tiles, roofline, ranking, and model against measurement.

    For a network, which has many tiles, it is the ranking alone.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    settings = {"svg.fonttype": "none", "svg.hashsalt": repr(winner.subject), "font.size": 9}
    with mpl.rc_context(settings):
        one = next(iter(routine_of(plan).nests(plan)), None)
        if one is None:
            figure, axes = pyplot.subplots(figsize=(6, 4.5), layout="constrained")
            _ranking(axes, ranked[:_BARS])
        else:
            figure, axes = pyplot.subplots(2, 2, figsize=(12, 9), layout="constrained")
            limits = roof(one) if list(cover(one)) else None
            _tiles(figure, axes[0][0], ranked)
            _roofline(axes[0][1], limits, ranked, winner)
            _ranking(axes[1][0], ranked[:_BARS])
            _model(axes[1][1], limits, ranked)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    drawn = text.getvalue()
    return drawn[drawn.index("<svg") :]


def _tiles(figure: Any, axes: Any, ranked: Sequence[Ranking]) -> None:
    """Draw a heat map with the best share of the peak for each tile, with data in cache."""
    best: dict[tuple[int, int], float] = {}
    for one in ranked:
        if one.schedule.tile is not None:
            tile = one.schedule.tile
            best[tile] = max(best.get(tile, 0.0), 100 * (one.hot.of_peak or 0))
    rows, columns = (sorted({tile[i] for tile in best}) for i in (0, 1))
    grid = np.full((len(rows), len(columns)), np.nan)
    for (mr, nr), share in best.items():
        grid[rows.index(mr), columns.index(nr)] = share
    axes.set_title("the best of each register tile, in % of peak")
    if not best:
        return
    image = axes.imshow(grid, origin="lower", aspect="auto", cmap="viridis")
    axes.set_xticks(range(len(columns)), map(str, columns), rotation=90 if len(columns) > 12 else 0)
    axes.set_yticks(range(len(rows)), map(str, rows))
    axes.set_xlabel("nr, columns of C")
    axes.set_ylabel("mr, rows of C")
    figure.colorbar(image, ax=axes)


def _roofline(axes: Any, limits: Roof | None, ranked: Sequence[Ranking], winner: Winner) -> None:
    """Draw the roofline: the peak, cache bandwidths, the default schedule and the winner."""
    axes.set_title("roofline")
    shares = [one.hot.gflops / one.hot.of_peak for one in ranked if one.hot.of_peak]
    if limits is None or not shares:
        return
    peak = float(np.median(shares))
    clock = peak / limits.peak
    reach = np.logspace(-1, 3, 60)
    for name, rate in limits.slopes.items():
        label = f"{name}: {rate:g} bytes a cycle, by the target's data"
        axes.loglog(reach, np.minimum(peak, rate * clock * reach), label=label, linewidth=1)
    axes.axhline(peak, color="k", linestyle="--", linewidth=1, label="measured peak")
    for schedule, name, mark in ((Schedule(), "default", "o"), (winner.schedule, "winner", "^")):
        found = next((one for one in ranked if one.schedule == schedule), None)
        if found is None:
            continue
        at = [limits.intensity]
        axes.plot(at, [found.hot.gflops], mark, color="C3", label=f"{name}, in cache")
        if found.cold is not None:
            axes.plot(at, [found.cold.gflops], mark, color="C0", label=f"{name}, in memory")
    axes.set_xlabel("flops for each byte of the operands")
    axes.set_ylabel("GFLOPS")
    axes.legend(fontsize=7)


def _ranking(axes: Any, ranked: Sequence[Ranking]) -> None:
    """Draw how many times as fast as the default each variant is, with twice the standard error."""
    places = range(1, len(ranked) + 1)
    ratios, errors = [one.ratio for one in ranked], [2 * one.uncertainty for one in ranked]
    axes.errorbar(places, ratios, yerr=errors, fmt="o", markersize=3, capsize=2)
    axes.axhline(1, color="k", linestyle="--", linewidth=1, label="default")
    axes.set_title("the ranking, with twice the standard error")
    axes.set_xlabel("rank; the winner of the last comparison first")
    axes.set_ylabel("times as fast as the default")
    axes.legend(fontsize=7)


def _model(axes: Any, limits: Roof | None, ranked: Sequence[Ranking]) -> None:
    """Draw the cycles that the cost model estimates against the measured cycles."""
    told = [one for one in ranked if one.cycles and one.hot.of_peak]
    axes.set_title("model against measurement")
    if limits is None or len(told) < 2:
        return
    work = told[0].hot.gflops * told[0].hot.median * 1e9
    expected = np.array([one.cycles for one in told])
    measured = np.array([work / ((one.hot.of_peak or 1) * limits.peak) for one in told])
    axes.loglog(expected, measured, "o", markersize=3)
    ends = [min(expected.min(), measured.min()), max(expected.max(), measured.max())]
    axes.plot(ends, ends, "k--", linewidth=1)
    axes.set_title(
        f"model against measurement: rank correlation {_correlation(expected, measured):.2f}"
    )
    axes.set_xlabel("cycles, estimated")
    axes.set_ylabel("cycles, measured")


def _correlation(one: Any, other: Any) -> float:
    """Return Spearman's rank correlation of two arrays of numbers."""
    first, second = (np.argsort(np.argsort(values)) for values in (one, other))
    return float(np.corrcoef(first, second)[0, 1])
