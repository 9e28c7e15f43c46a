"""Turns what the benchmarks measured, docs/figures*.json, into the tables of README.md.

    python -m benchmarks --json docs/figures.json
    python -m scripts.figures

Each record has its own pair of markers in README.md, named as the file is: what a run of all
sections found on one processor, and what one of some sections found on another.

``--check`` fails when README.md holds others.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
README, RECORDS = ROOT / "README.md", ROOT / "docs"
OURS, LAST = "tilewright", "256x256x256"
_PER_SHAPE = re.compile(r"(\S+(?: \(\d+\))?) to the best peer")

Record = Mapping[str, Any]


def tables(record: Record) -> str:
    """Markdown: what was measured on what, products in f32 and in low precision, all figures."""
    figures = {f["name"]: f for section in record["sections"] for f in section["figures"]}
    ratios = {found[1]: f["value"] for name, f in figures.items()
              if (found := _PER_SHAPE.fullmatch(name))}  # fmt: skip
    rows = {section["name"]: section["rows"] for section in record["sections"]}
    lines = [_measured_on(record)]
    if rows.get("gemm"):
        lines += ["", _PRODUCTS, "", *_products(rows["gemm"], ratios)]
    if rows.get("low"):
        lines += ["", _LOW, "", *_low(rows["low"])]
    return "\n".join([*lines, "", *_others(figures)]) + "\n"


_PRODUCTS = (
    "`C += A B` in f32, rows contiguous, hot, in GFLOPS; the ratio to the best peer is the median "
    "over rounds of speeds measured in turns. The longer list is in "
    "[docs/figures.json](docs/figures.json), how it is measured in "
    "[benchmarks/](benchmarks/README.md)."
)
_LOW = (
    "`C = A B`, B packed, hot, in 10^9 operations a second; the conversion of A is part of the "
    "call. The peak is that of the instruction that sums."
)


def _measured_on(record: Record) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return (
        f"`{record['command']}` on {record['date']}, {record['cpu']}, one thread; seed "
        f"{record['seed']}.\n{versions}."
    )


def _low(rows: Sequence[Record]) -> Iterator[str]:
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


def _others(figures: Mapping[str, Record]) -> Iterator[str]:
    yield "| figure | measured | demanded |"
    yield "|---|--:|--:|"
    for name, figure in figures.items():
        if not _PER_SHAPE.fullmatch(name):
            sign = "at most" if figure["at_most"] else "at least"
            unit = figure["unit"]
            limit = f"{sign} {figure['limit']:g}{unit}"
            yield f"| {name} | {figure['value']:.3g}{unit} | {limit} |"
    met = [_met(figure) for figure in figures.values()]
    yield ""
    yield f"{sum(met)} of {len(met)} figures are met, those of each shape counted."


def _met(figure: Record) -> bool:
    value, limit = figure["value"], figure["limit"]
    return bool(value <= limit if figure["at_most"] else value >= limit)


def placed(readme: str, name: str, block: str) -> str:
    """``readme`` with ``block`` between the markers of that name."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    head, found, rest = readme.partition(begin)
    _, ended, tail = rest.partition(end)
    if not (found and ended):
        raise SystemExit(f"README.md lacks {begin.strip()} and {end.strip()}")
    return f"{head}{begin}\n{block}\n{end}{tail}"


def main() -> int:
    """Write the tables, or with ``--check`` compare."""
    parser = argparse.ArgumentParser(prog="python -m scripts.figures", description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    before = after = README.read_text(encoding="utf-8")
    for path in sorted(RECORDS.glob("figures*.json")):
        after = placed(after, path.stem, tables(json.loads(path.read_text(encoding="utf-8"))))
    if check:
        if before != after:
            print("README.md is not what docs/figures*.json say; try: python -m scripts.figures")
        return int(before != after)
    README.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
