"""Turns what the benchmarks measured, docs/figures*.json, into the tables of the pages.

    python -m benchmarks --json docs/figures.json
    python -m scripts.figures

Each record, a run on one processor, has its own pair of markers in README.md, named as the file
is: there stand its geometric means, and how many figures are met. docs/peers.md has the same
markers: there stands what each peer reached beside tilewright. The products and all figures, with
those that were missed, are in docs/figures.md.

``--check`` fails when the pages hold others.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.pages import placed

ROOT = Path(__file__).resolve().parent.parent
README, RECORDS = ROOT / "README.md", ROOT / "docs"
FIGURES, PEERS = RECORDS / "figures.md", RECORDS / "peers.md"
OURS, LAST = "tilewright", "256x256x256"
_PER_SHAPE = re.compile(r"(\S+(?: \(\d+\))?) to the best peer")

Record = Mapping[str, Any]


def summary(record: Record) -> str:
    """Markdown: what was measured on what, the means, and how many figures are met."""
    figures = _figures(record)
    met = sum(map(_met, figures.values()))
    told = f"{met} of {len(figures)} [figures](docs/figures.md) are met."
    return "\n".join([_measured_on(record), "", *_means(figures), told]) + "\n"


def tables(record: Record) -> Iterator[str]:
    """Markdown: products of all types.

    Low precision on the processor's best vectors; all targets are among the figures.
    """
    figures = _figures(record)
    ratios = {found[1]: f["value"] for name, f in figures.items()
              if (found := _PER_SHAPE.fullmatch(name))}  # fmt: skip
    rows = {section["name"]: section["rows"] for section in record["sections"]}
    if rows.get("gemm"):
        yield from (_PRODUCTS, "", *_products(rows["gemm"], ratios), "")
    if rows.get("low"):
        best = rows["low"][0]["target"]
        yield from (_LOW, "", *_low(row for row in rows["low"] if row["target"] == best), "")
    yield from _means(figures)


def page(records: Iterable[Record]) -> str:
    """Markdown: every figure of every record, beside what is demanded."""
    lines = ["# Figures", "", "Written by `python -m scripts.figures`."]
    for record in records:
        about = [_measured_on(record), _versions(record)]
        lines += ["", f"## {record['cpu']}", "", *about, "", *tables(record)]
        lines += [f"### All figures of {record['cpu']}", "", *_all(_figures(record))]
    return "\n".join(lines) + "\n"


def peers(record: Record) -> str:
    """Markdown: for each peer how many times as fast tilewright is, and where it is not."""
    rows = {section["name"]: section["rows"] for section in record["sections"]}
    lines = [_measured_on(record)]
    for section, title in (("gemm", _PEERS), ("ukernel", _UKERNEL)):
        ratios = _beside_peers(rows.get(section, ()))
        if ratios:
            lines += ["", title, "", *_beside(ratios)]
    return "\n".join(lines) + "\n"


_PEERS = "`C += A B` in f32, hot, one thread, sizes up to 256x256x256: how many times as fast"
_UKERNEL = "bf16, and u8 x s8, with a packed B, hot, one thread: how many times as fast"


def _beside_peers(rows: Iterable[Record]) -> dict[str, dict[str, float]]:
    """By peer: what was multiplied, and tilewright's speed over the peer's."""
    ratios: dict[str, dict[str, float]] = {}
    for row in rows:
        speeds = dict(row["gflops"])
        ours = speeds.pop(OURS)
        what = " ".join(row[part] for part in ("types", "shape") if part in row)
        for name, speed in speeds.items():
            ratios.setdefault(name, {})[what] = ours / speed
    return ratios


def _beside(ratios: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    yield "| peer | products | geometric mean | least | most | where the peer is ahead |"
    yield "|---|--:|--:|--:|--:|---|"
    for name, found in sorted(ratios.items(), key=lambda item: _mean(item[1])):
        least, most = min(found.values()), max(found.values())
        ahead = ", ".join(what for what, ratio in found.items() if ratio < 1)
        figures = f"{_mean(found):.2f} | {least:.2f} | {most:.2f}"
        yield f"| {name} | {len(found)} | {figures} | {ahead} |"


def _mean(ratios: Mapping[str, float]) -> float:
    return exp(fmean(map(log, ratios.values())))


def _figures(record: Record) -> dict[str, Record]:
    return {f["name"]: f for section in record["sections"] for f in section["figures"]}


_MEAN = "geometric mean, "
_PRODUCTS = (
    "`C += A B` in f32, rows contiguous, hot, in GFLOPS; the ratio to the best peer is the median "
    "over rounds of speeds measured in turns."
)
_LOW = (
    "`C = A B`, B packed, hot, in 10^9 operations a second; the conversion of A is part of the "
    "call. The peak is that of the instruction that sums."
)


def _measured_on(record: Record) -> str:
    return (
        f"`{record['command']}` on {record['date']}, {record['cpu']}, one thread; seed "
        f"{record['seed']}."
    )


def _versions(record: Record) -> str:
    return ", ".join(f"{name} {version}" for name, version in record["versions"].items()) + "."


def _means(figures: Mapping[str, Record]) -> Iterator[str]:
    """The geometric means of speeds, to those of the best peer or of the one that is named."""
    means = {name.removeprefix(_MEAN): f for name, f in figures.items() if name.startswith(_MEAN)}
    if means:
        told = "; ".join(f"{name} {figure['value']:.2f}" for name, figure in means.items())
        yield from (
            f"Geometric means of the ratios to the best peer, or to the one named: {told}.",
            "",
        )


def _low(rows: Iterable[Record]) -> Iterator[str]:
    yield "| m x n x k | target | A x B | summed by | GOPS | of peak |"
    yield "|---|---|---|---|--:|--:|"
    for row in rows:
        for types, speed in row["gflops"].items():
            cells = row["shape"], row["target"], types, row["instruction"][types]
            share = row["of_peak"][types]
            yield f"| {' | '.join(cells)} | {speed:.1f} | {share:.0%} |"


def _products(rows: Sequence[Record], ratios: Mapping[str, float]) -> Iterator[str]:
    yield f"| m x n x k | target | {OURS} | of peak | best peer | ratio |"
    yield "|---|---|--:|--:|--:|--:|"
    first = next(i for i, row in enumerate(rows) if row["shape"] == LAST) + 1
    for row in [*rows[:first], *(row for row in rows[first:] if len(row["gflops"]) == 1)]:
        speeds = dict(row["gflops"])
        ours, share = speeds.pop(OURS), row["of_peak"][OURS]
        best, ratio = "", ""
        if speeds:
            name = max(speeds, key=speeds.__getitem__)
            best, ratio = f"{name} {speeds[name]:.1f}", f"{ratios[row['shape']]:.2f}"
        yield f"| {row['shape']} | {row['target']} | {ours:.1f} | {share:.0%} | {best} | {ratio} |"


def _all(figures: Mapping[str, Record]) -> Iterator[str]:
    yield "| figure | measured | demanded | |"
    yield "|---|--:|--:|---|"
    for name, figure in figures.items():
        told = " | ".join(_told(figure))
        yield f"| {name} | {told} | {'met' if _met(figure) else '**missed**'} |"


def _told(figure: Record) -> tuple[str, str]:
    """What was measured, and what is demanded."""
    sign = "at most" if figure["at_most"] else "at least"
    return f"{figure['value']:.4g}{figure['unit']}", f"{sign} {figure['limit']:g}{figure['unit']}"


def _met(figure: Record) -> bool:
    value, limit = figure["value"], figure["limit"]
    return bool(value <= limit if figure["at_most"] else value >= limit)


def main() -> int:
    """Write the pages, or with ``--check`` compare."""
    parser = argparse.ArgumentParser(prog="python -m scripts.figures", description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    records = {path.stem: json.loads(path.read_text(encoding="utf-8"))
               for path in sorted(RECORDS.glob("figures*.json"))}  # fmt: skip
    readme, beside = (path.read_text(encoding="utf-8") for path in (README, PEERS))
    for name, record in records.items():
        readme = placed(readme, name, f"\n{summary(record)}\n")
        beside = placed(beside, name, f"\n{peers(record)}\n")
    pages = {README: readme, PEERS: beside, FIGURES: page(records.values())}
    if check:
        stale = [path.name for path, text in pages.items()
                 if not path.exists() or path.read_text(encoding="utf-8") != text]  # fmt: skip
        for name in stale:
            print(f"{name} is not what docs/figures*.json say; try: python -m scripts.figures")
        return int(bool(stale))
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
