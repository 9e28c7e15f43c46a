"""Charts over size: speed of kernels and of calls, and the time of a call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .records import Record, newest
from .style import Chart, Mode

OURS = ("tilewright", "tw.matmul")
#: Peers of the kernels that the chart shows.
SHOWN = ("tilewright", "OpenBLAS", "oneDNN", "LIBXSMM")
_TICKS = (4, 8, 16, 32, 64, 128, 256, 512)
_TYPES = ("f64", "bf16", "f16", "s8")


def charts() -> Iterator[Chart]:
    """Speed over size for each type, and time over size in f32."""
    record = newest("sizes", what="kernel")
    caption = f"{record.caption}; one core"
    rows = record.sections["sizes"]
    title = "f32, C += A B of n x n matrices in cache, one core"
    yield Chart("gflops-f32", title, caption, _kernels(record, rows), _speeds)
    for types in _TYPES:
        title = f"{types}, tw.matmul of n x n matrices into out, one core"
        yield Chart(f"gflops-{types}", title, caption, _calls(record, rows, types), _speeds)
    title = "f32, n x n: time of one call from Python that writes into out"
    yield Chart("call-time", title, caption, _times(record, rows), _micros)


def _unit(types: str) -> str:
    return "GOPS" if types == "s8" else "GFLOPS"


def _kernels(record: Record, rows: list[dict[str, Any]]) -> dict[str, Any]:
    found = [row for row in rows if row["what"] == "kernel"]
    lines = {
        ("numpy's " if name == "OpenBLAS" else "") + record.label(name): [
            row["gflops"][name] for row in found
        ]
        for name in SHOWN
        if all(name in row["gflops"] for row in found)
    }
    peak = [row["peak"] for row in found]
    return {"sizes": [r["size"] for r in found], "lines": lines, "peak": peak, "unit": "GFLOPS"}


def _calls(record: Record, rows: list[dict[str, Any]], types: str) -> dict[str, Any]:
    found = [row for row in rows if row["what"] == "call" and row["types"] == types]
    lines = {
        record.label(name): [2e-3 * row["size"] ** 3 / row["micros"][name] for row in found]
        for name in found[0]["micros"]
    }
    return {"sizes": [row["size"] for row in found], "lines": lines, "unit": _unit(types)}


def _times(record: Record, rows: list[dict[str, Any]]) -> dict[str, Any]:
    found = [row for row in rows if row["what"] == "call" and row["types"] == "f32"]
    names = found[0]["micros"]
    lines = {record.label(name): [row["micros"][name] for row in found] for name in names}
    return {"sizes": [row["size"] for row in found], "lines": lines}


def _speeds(axes: Any, data: Any, mode: Mode) -> None:
    if "peak" in data:
        axes.plot(data["sizes"], data["peak"], "--", color=mode.colour("peak"), label="peak of FMA")
    _lines(axes, data, mode)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(data["unit"])


def _micros(axes: Any, data: Any, mode: Mode) -> None:
    _lines(axes, data, mode)
    axes.set_yscale("log")
    axes.set_ylabel("microseconds")


def _lines(axes: Any, data: Any, mode: Mode) -> None:
    for name, values in data["lines"].items():
        ours = name.split(" (")[0] in OURS
        colour = mode.colour(name.removeprefix("numpy's "))
        width = 2.2 if ours else 1.3
        axes.plot(data["sizes"], values, "o-", color=colour, label=name, lw=width, ms=3.2)
    axes.set_xscale("log", base=2)
    axes.set_xticks(_TICKS, [str(tick) for tick in _TICKS])
    axes.set_xlabel("n")
    axes.legend(fontsize=8)
