"""Turn the records of the benchmarks, benchmarks/records/*.json, into the figures of the pages.

    python -m benchmarks --json benchmarks/records/zen5.json
    python -m scripts.figures

A record is one run on one processor. Its name is that of a pair of markers in its page: between
them are the speed beside each peer, the large products, and the goals that were missed. README.md
has the markers ``speed``, for the record named ``SHOWN``.

``--check`` fails when the pages hold other figures.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.charts.records import Record as Run
from benchmarks.pages import placed

ROOT = Path(__file__).resolve().parent.parent
README, EXPLAIN = ROOT / "README.md", ROOT / "docs" / "explain"
RECORDS = ROOT / "benchmarks" / "records"
#: The page of each record, by the record's name.
PAGES = {"zen5": EXPLAIN / "performance.md", "zen3": EXPLAIN / "performance-avx2.md"}
#: The record whose figures README shows.
SHOWN = "zen5"
OURS = "tilewright"
#: BLIS's configurations, and the vectors of their kernels.
_BLIS = {"generic": "portable C", "zen3": "AVX2", "skx": "AVX-512", "zen4": "AVX-512"}
#: A peer that passes this share of the peak in any product cannot have used vectors half as wide.
_SAME_VECTORS = 0.55
_LARGE = "networks and squares"

Record = Mapping[str, Any]


def summary(record: Record) -> str:
    """Return README's lines: the average and the least ratio to the peers that matter."""
    small, low = _beside(_rows(record, "gemm")), _beside(_rows(record, "ukernel"))
    large, f32 = (_of_large(record)[kind] for kind in ("bf16", "f32"))
    ours, theirs = small["LIBXSMM"], small["oneDNN"]
    return "\n".join(
        [
            f"- f32, {len(ours)} sizes up to 256x256x256, data in cache: {_told(ours, 'LIBXSMM')}; "
            f"{_told(theirs, 'oneDNN')}.",
            f"- bf16 and u8 x s8, {len(low['oneDNN'])} sizes, B packed: "
            f"{_told(low['oneDNN'], 'oneDNN')}.",
            f"- `tw.matmul`, {len(large['torch'])} layers and squares: bf16 "
            f"{_told(large['torch'], 'PyTorch')}; f32 {_told(f32['numpy'], 'numpy')}, whose "
            f"OpenBLAS used {_vectors(record, 'OpenBLAS', [])}.",
            "",
            f"One core of a Zen 5, {record['cpu'].rpartition(', ')[0]}, {record['date']}. "
            "[The performance page](docs/explain/performance.md) has all figures and the misses.",
        ]
    )


def page(record: Record) -> str:
    """Return the tables of a record: peers, large products, and missed goals."""
    blocks = [f"Measured on one core of {record['cpu']}, {record['date']}."]
    for section, title in (("gemm", _SMALL), ("ukernel", _LOW)):
        if rows := _rows(record, section):
            blocks += ["", title, "", *_peers(record, rows)]
            blocks += _to_the_same_vectors(record, rows)
    if large := _of_large(record):
        blocks += ["", _LARGE_TITLE, "", *_large(large)]
    blocks += ["", *_missed(record), "", "The run:", "", *_run(record)]
    return "\n".join(blocks) + "\n"


_SMALL = "`C += A B` in f32, sizes up to 256x256x256, data in cache:"
_LOW = "bf16, and u8 x s8, with a packed B, data in cache:"
_LARGE_TITLE = (
    "`tw.matmul` on 24 products: layers of networks, and square matrices. numpy calls OpenBLAS:"
)


def _rows(record: Record, name: str) -> list[Record]:
    """Return the rows of a section; none if the run left it out."""
    return [row for section in record["sections"] if section["name"] == name
            for row in section["rows"]]  # fmt: skip


def _beside(rows: Iterable[Record]) -> dict[str, dict[str, float]]:
    """Return by peer: each product, and tilewright's speed over the peer's."""
    ratios: dict[str, dict[str, float]] = {}
    for row in rows:
        speeds = dict(row["gflops"])
        ours = speeds.pop(OURS)
        what = " ".join(row[part] for part in ("types", "shape") if part in row)
        for name, speed in speeds.items():
            ratios.setdefault(name, {})[what] = ours / speed
    return ratios


def _of_large(record: Record) -> dict[str, dict[str, dict[str, float]]]:
    """Return by type, then by peer: each large product, and tw.matmul's speed over the peer's."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in _rows(record, "products"):
        if row["group"] == _LARGE:
            speeds, by_peer = row["gflops"], found.setdefault(row["types"].split()[0], {})
            for peer in ("numpy", "torch"):
                if peer in speeds:
                    ratio = speeds["tw.matmul"] / speeds[peer]
                    by_peer.setdefault(peer, {})[row["shape"]] = ratio
    return found


def _vectors(record: Record, name: str, rows: Iterable[Record]) -> str:
    """Return the vectors that a peer used, by its version or else by its speed."""
    run = Run(record["cpu"], record["date"], record["command"], record["versions"], {})
    if found := run.vectors(name):
        return found
    if name == "BLIS" and (chosen := re.search(r"\((\w+)\)", run.versions["BLIS"])):
        return _BLIS.get(chosen[1], "not recorded")
    shares = [row["gflops"][name] / row["peak"] for row in rows
              if name in row["gflops"] and row.get("peak")]  # fmt: skip
    return "as tilewright" if shares and max(shares) > _SAME_VECTORS else "not recorded"


def _ours(rows: Iterable[Record]) -> str:
    """Return the vectors of tilewright's own kernels in these rows."""
    return "AVX-512" if any("avx512" in row["target"] for row in rows) else "AVX2"


def _peers(record: Record, rows: list[Record]) -> Iterator[str]:
    yield "| peer | its vectors | products | average | least | most | where the peer is faster |"
    yield "|---|---|--:|--:|--:|--:|---|"
    for name, ratios in sorted(_beside(rows).items(), key=lambda item: _mean(item[1])):
        least, most = min(ratios.values()), max(ratios.values())
        ahead = ", ".join(what for what, ratio in ratios.items() if ratio < 1)
        figures = f"{_mean(ratios):.2f} | {least:.2f} | {most:.2f}"
        vectors = _vectors(record, name, rows)
        yield f"| {name} | {vectors} | {len(ratios)} | {figures} | {ahead} |"


def _to_the_same_vectors(record: Record, rows: list[Record]) -> list[str]:
    """Return a sentence: the ratio to the best peer that used vectors as wide."""
    same = {name: ratios for name, ratios in _beside(rows).items()
            if _vectors(record, name, rows) in ("as tilewright", _ours(rows))}  # fmt: skip
    if not same:
        return []
    products = next(iter(same.values()))
    best = {what: min(ratios[what] for ratios in same.values()) for what in products}
    *most, last = sorted(same)
    named = f"{', '.join(most)} and {last}" if most else last
    return [
        "",
        f"{named} used {_ours(rows)}, as tilewright does. On average over the products, tilewright "
        f"is {_mean(best):.2f} times as fast as the fastest of them. "
        f"The smallest ratio is {min(best.values()):.2f}.",
    ]


def _large(large: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[str]:
    yield "| type | peer | average | least | where the peer is faster |"
    yield "|---|---|--:|--:|---|"
    for kind, by_peer in large.items():
        for peer, ratios in by_peer.items():
            ahead = ", ".join(what for what, ratio in ratios.items() if ratio < 1)
            figures = f"{_mean(ratios):.2f} | {min(ratios.values()):.2f}"
            yield f"| {kind} | {peer} | {figures} | {ahead} |"


def _missed(record: Record) -> Iterator[str]:
    figures = {f["name"]: f for section in record["sections"] for f in section["figures"]}
    missed = {name: figure for name, figure in figures.items() if not _met(figure)}
    reached = f"{len(figures) - len(missed)} of {len(figures)} speed goals"
    yield f"{reached}, which were set beforehand, were reached. These were missed:"
    yield ""
    yield "| goal | measured | wanted |"
    yield "|---|--:|--:|"
    for name, figure in missed.items():
        sign = "at most" if figure["at_most"] else "at least"
        unit = figure["unit"]
        yield f"| {name} | {figure['value']:.3g}{unit} | {sign} {figure['limit']:g}{unit} |"


def _met(figure: Record) -> bool:
    value, limit = figure["value"], figure["limit"]
    return bool(value <= limit if figure["at_most"] else value >= limit)


def _mean(ratios: Mapping[str, float]) -> float:
    return exp(fmean(map(log, ratios.values())))


def _told(ratios: Mapping[str, float], peer: str) -> str:
    """Return the average ratio to a peer, and the least one, in words."""
    least = min(ratios.values())
    return f"{_mean(ratios):.2f} times as fast as {peer} on average, {least:.2f} at least"


def _run(record: Record) -> Iterator[str]:
    """Yield the command of a record, without the file that it wrote, and all versions."""
    command = re.sub(r" --json \S+", "", record["command"])
    yield "| part | value |"
    yield "|---|---|"
    yield f"| command | `{command}`, seed {record['seed']} |"
    for name, version in record["versions"].items():
        yield f"| {name} | {version} |"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def main() -> int:
    """Write the pages, or with ``--check`` compare."""
    parser = argparse.ArgumentParser(prog="python -m scripts.figures", description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    records = {name: json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
               for name in PAGES}  # fmt: skip
    pages = {README: placed(_text(README), "speed", f"\n{summary(records[SHOWN])}\n\n")}
    for name, path in PAGES.items():
        pages[path] = placed(_text(path), name, f"\n{page(records[name])}\n")
    if check:
        stale = [path.name for path, text in pages.items()
                 if _text(path) != text]  # fmt: skip
        for name in stale:
            print(f"{name} differs from benchmarks/records; try: python -m scripts.figures")
        return int(bool(stale))
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
