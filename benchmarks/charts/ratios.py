"""Charts of ratios: to the best peer by layer, share of the peak by ISA, few rows or columns."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2
from typing import Any

from .records import Record, newest, printed, records, short_name
from .style import Chart, Mode

#: Types in the order of the charts.
TYPES = ("f32", "f64", "bf16", "f16", "s8")
_LAYERS = "networks and squares"
#: Ratios above this are drawn at it: PyTorch computes f16 one element at a time on some processors.
_MOST = 8.0
_PROCESSORS = ("Zen 3", "Zen 4", "Zen 5", "Emerald Rapids", "Granite Rapids")
_MARKS = dict(zip(_PROCESSORS, "osD^v", strict=True))
_COLOURS = dict(
    zip(_PROCESSORS, ("numpy", "torch", "tilewright", "oneDNN", "LIBXSMM"), strict=True)
)
#: Numbers of rows, columns or steps of K in the heat map.
FEW = (1, 2, 3, 4, 7, 8, 16, 31)


def charts() -> Iterator[Chart]:
    """The three charts of ratios."""
    dots, sources = _layers()
    title = "tw.matmul: times as fast as the best peer (numpy, PyTorch), one core"
    yield Chart("ratios", title, "; ".join(sources), dots, _dots, (7.2, 4.2))
    shares, sources = _shares()
    title = "Share of the peak of the instruction that sums, 64x48x64 in cache"
    yield Chart("share-of-peak", title, "; ".join(sources), shares, _bars, (7.2, 3.6))
    grid, source = _few()
    title = "tw.matmul with few rows, columns or steps of K: times as fast as numpy"
    yield Chart("few", title, source, grid, _heat, (7.2, 4.4))


def _layers() -> tuple[dict[str, dict[str, list[float]]], list[str]]:
    """Ratios by processor and type, with the runs they are from."""
    found: dict[str, dict[str, list[float]]] = {}
    sources = []
    for record in records():
        rows = [r for r in record.sections.get("products", ()) if r["group"] == _LAYERS]
        if rows and record.processor not in found:
            found[record.processor] = {
                types: [r["ratio"] for r in rows if r["types"].split()[0] == types]
                for types in TYPES
            }
            sources.append(_source(record))
    for table in printed("products"):
        name = short_name(table["cpu"])
        if name not in found:
            found[name] = _printed_ratios(table)
            sources.append(f"{name} {table['date']}")
    return found, ["python -m benchmarks products", *sources]


def _source(record: Record) -> str:
    """A run in a caption, with the vectors of numpy's BLAS."""
    vectors = record.vectors("numpy")
    return f"{record.processor} {record.date}" + (f" (numpy: {vectors})" if vectors else "")


def _printed_ratios(table: dict[str, Any]) -> dict[str, list[float]]:
    """Ours over the best peer, for each type's columns of a printed table."""
    columns = table["columns"]
    starts = [i for i, name in enumerate(columns) if name.split()[0] in TYPES]
    ends = [*starts[1:], len(columns)]
    return {
        columns[start].split()[0]: [
            row[start] / max(value for value in row[start + 1 : end] if value)
            for row in table["rows"]
            if row[start]
        ]
        for start, end in zip(starts, ends, strict=True)
    }


def _dots(axes: Any, data: Any, mode: Mode) -> None:
    names = [name for name in _PROCESSORS if name in data]
    for place, name in enumerate(names):
        shift = 0.8 * (place - (len(names) - 1) / 2) / max(1, len(names))
        for at, types in enumerate(TYPES):
            ratios = data[name].get(types, [])
            ys = [min(ratio, _MOST) for ratio in ratios]
            label = name if types == "f32" else None
            axes.plot([at + shift] * len(ys), ys, _MARKS[name], color=mode.colour(_COLOURS[name]),
                      label=label, ms=3.4, alpha=0.75, ls="none")  # fmt: skip
    axes.axhline(1, color=mode.ink, lw=0.8)
    axes.set_xticks(range(len(TYPES)), TYPES)
    axes.set_yscale("log", base=2)
    ticks = (0.5, 0.75, 1, 1.5, 2, 3, 4, 8)
    axes.set_yticks(ticks, [f"{tick:g}" if tick < _MOST else "8 or more" for tick in ticks])
    axes.grid(visible=False, axis="x")
    axes.legend(fontsize=8, ncols=3, loc="upper left")


def _shares() -> tuple[dict[str, dict[str, float]], list[str]]:
    """Share of the peak by ISA and type."""
    found: dict[str, dict[str, float]] = {}
    sources = []
    for record in records():
        rows = [row for row in record.sections.get("low", ()) if row["shape"] == "64x48x64"]
        for row in rows:
            name = f"{row['target'].rpartition('+')[0]}, {record.processor}"
            found.setdefault(name, dict(row["of_peak"]))
        if rows:
            sources.append(f"{record.processor} {record.date}")
    return found, ["python -m benchmarks low", *sources]


def _bars(axes: Any, data: Any, mode: Mode) -> None:
    types = list(next(iter(data.values())))
    colours = ("tilewright", "numpy", "oneDNN", "torch", "LIBXSMM", "MKL")
    width = 0.8 / len(data)
    for i, (name, shares) in enumerate(data.items()):
        xs = [at + (i - (len(data) - 1) / 2) * width for at in range(len(types))]
        ys = [100 * shares.get(kind, 0) for kind in types]
        axes.bar(xs, ys, 0.9 * width, color=mode.colour(colours[i % len(colours)]), label=name)
    axes.set_xticks(range(len(types)), types)
    axes.set_ylabel("% of peak")
    axes.set_ylim(0, 100)
    axes.grid(visible=False, axis="x")
    axes.legend(fontsize=7, ncols=3, loc="lower center", bbox_to_anchor=(0.5, -0.3))


def _few() -> tuple[dict[str, list[float]], str]:
    """Rows of the heat map, from a record or from a printed table."""
    try:
        record = newest("few", type="f32")
    except LookupError:
        table = printed("few")[0]
        rows = {f"{r[0]}, {r[1]}, {r[2]}": r[3:] for r in table["rows"]}
        return rows, f"{short_name(table['cpu'])}, {table['date']}: {table['command']}"
    return _recorded_few(record), record.caption


def _recorded_few(record: Record) -> dict[str, list[float]]:
    """Geometric means over the large sizes."""
    logs: dict[str, dict[int, list[float]]] = {}
    for row in record.sections["few"]:
        if row["type"] in ("f32", "f64"):
            name = f"{row['small']}, {row['type']}, {row['orders']}"
            logs.setdefault(name, {}).setdefault(row["few"], []).append(log2(row["ratio"]))
    return {name: [2 ** (sum(of[few]) / len(of[few])) for few in FEW] for name, of in logs.items()}


def _heat(axes: Any, data: Any, mode: Mode) -> None:
    from matplotlib.colors import TwoSlopeNorm

    grid = [[log2(value) for value in row] for row in data.values()]
    norm = TwoSlopeNorm(0, vmin=-1, vmax=2.5)
    axes.imshow(grid, cmap="RdBu", norm=norm, aspect="auto")
    for y, row in enumerate(data.values()):
        for x, value in enumerate(row):
            dark = value > 3 or value < 0.65
            axes.text(x, y, f"{value:.1f}", ha="center", va="center", fontsize=6.5,
                      color="#ffffff" if dark else "#1f2933")  # fmt: skip
    axes.set_xticks(range(len(FEW)), [str(few) for few in FEW])
    axes.set_yticks(range(len(data)), list(data), fontsize=7)
    axes.set_xlabel("number of rows (m), columns (n) or steps of K (k)")
    axes.set_ylabel("few of, type, order of A and B")
    axes.grid(visible=False)
    axes.tick_params(colors=mode.ink)
