"""Turn the records of the benchmarks, benchmarks/records/*.json, into the figures of the pages.

    python -m benchmarks --json benchmarks/records/zen5.json
    python -m scripts.figures

A record is one run on one processor; a section that was measured again later holds that ``run``
(date, command, seed). The record's name is that of a pair of markers in its page: between
them are the speed beside each peer, the large products, and the goals that were missed. The record
named ``SHOWN`` also fills other markers: ``speed`` in README.md, ``slower`` and ``calls`` in its
page, and ``stacks`` in the page on stacks.

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

from benchmarks.charts.records import Record as Run
from benchmarks.pages import placed

from .misses import Record, calls, figures_of, missed_table, rows_of, slower

ROOT = Path(__file__).resolve().parent.parent
README, EXPLAIN = ROOT / "README.md", ROOT / "docs" / "explain"
STACKS = ROOT / "docs" / "how-to" / "stacks.md"
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


def summary(record: Record) -> str:
    """Return README's lines: the average and the smallest ratio to the peers that matter."""
    small, low = _beside(rows_of(record, "gemm")), _beside(rows_of(record, "ukernel"))
    large, f32 = (_of_large(record)[kind] for kind in ("bf16", "f32"))
    new = calls(record)["a @ b, new"][8]
    return "\n".join(
        [
            "One thread on a Zen 5. Ratios are averages; in brackets is the slowest product:",
            "",
            f"- Kernels, data in cache: f32 {_told(small['LIBXSMM'], 'LIBXSMM')} and "
            f"{_told(small['oneDNN'], 'oneDNN')}; bf16 and u8 x s8 "
            f"{_told(low['oneDNN'], 'oneDNN')}.",
            f"- `tw.matmul`, {len(large['torch'])} layers and squares: f32 "
            f"{_told(f32['numpy'], 'numpy')}, whose OpenBLAS used "
            f"{_vectors(record, 'OpenBLAS', [])}; bf16 "
            f"{_told(large['torch'], 'PyTorch')}.",
            f"- One 8x8 product with a new result: `tw.matmul` {new['tw.matmul']:.2f} us, numpy "
            f"{new['numpy']:.2f} us.",
            "",
            "[Where tilewright is slower](docs/explain/performance.md#where-tilewright-is-slower) "
            "lists the exceptions. `make bench` measures your machine.",
        ]
    )


def of_calls(record: Record) -> str:
    """Return a table of single calls with small matrices: microseconds of tw.matmul and numpy."""
    lines = ["| f32 | `tw.matmul` | numpy |", "|---|--:|--:|"]
    for name, what in (("a @ b, new", "new result"), ("a @ b", "`out=`")):
        for size, micros in calls(record)[name].items():
            times = f"{micros['tw.matmul']:.2f} us | {micros['numpy']:.2f} us"
            lines.append(f"| {size}x{size}, {what} | {times} |")
    return "\n".join(lines)


def of_stacks(record: Record) -> str:
    """Return a table of stacks: the speed of ``tw.matmul`` divided by that of each peer."""
    lines = ["| products | types | numpy | LIBXSMM |", "|---|---|--:|--:|"]
    figures = figures_of(record)
    for row in rows_of(record, "products"):
        if row["group"] == "stacks":
            size, types = row["shape"].partition("x")[2], row["types"]
            name = f"{types}, stack of {size}"
            ratios = f"{figures[name]:.3g} | {figures[name + ', to LIBXSMM']:.3g}"
            lines.append(f"| {row['count']} of {size} | {types.partition(' ')[0]} | {ratios} |")
    return "\n".join(lines)


def page(record: Record) -> str:
    """Return the tables of a record: peers, large products, and missed goals."""
    blocks = [f"Measured on one core of {record['cpu']}, {record['date']}."]
    for section, title in (("gemm", _SMALL), ("ukernel", _LOW)):
        if rows := rows_of(record, section):
            blocks += ["", title, "", *_peers(record, rows)]
            blocks += _to_the_same_vectors(record, rows)
    if large := _of_large(record):
        blocks += ["", _LARGE_TITLE, "", *_large(large)]
    blocks += ["", *missed_table(record), "", "The run:", "", *_run(record)]
    return "\n".join(blocks) + "\n"


_SMALL = "`C += A B` in f32, sizes up to 256x256x256, data in cache:"
_LOW = "bf16, and u8 x s8, with a packed B, data in cache:"
_LARGE_TITLE = (
    "`tw.matmul` on 24 products: layers of networks, and square matrices. numpy calls OpenBLAS:"
)


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
    for row in rows_of(record, "products"):
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
    if shares and max(shares) > _SAME_VECTORS:
        return _ours(rows)
    return "not recorded"


def _ours(rows: Iterable[Record]) -> str:
    """Return the vectors of tilewright's own kernels in these rows."""
    return "AVX-512" if any("avx512" in row["target"] for row in rows) else "AVX2"


def _peers(record: Record, rows: list[Record]) -> Iterator[str]:
    yield "| peer | its vectors | products | average | smallest | largest | the peer is faster |"
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
            if _vectors(record, name, rows) == _ours(rows)}  # fmt: skip
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
    yield "| type | peer | average | smallest | the peer is faster |"
    yield "|---|---|--:|--:|---|"
    for kind, by_peer in large.items():
        for peer, ratios in by_peer.items():
            ahead = ", ".join(what for what, ratio in ratios.items() if ratio < 1)
            figures = f"{_mean(ratios):.2f} | {min(ratios.values()):.2f}"
            yield f"| {kind} | {peer} | {figures} | {ahead} |"


def _mean(ratios: Mapping[str, float]) -> float:
    return exp(fmean(map(log, ratios.values())))


def _told(ratios: Mapping[str, float], peer: str) -> str:
    """Return the average ratio to a peer, and the smallest one, in words."""
    return f"{_mean(ratios):.2f} times as fast as {peer} ({min(ratios.values()):.2f})"


def _run(record: Record) -> Iterator[str]:
    """Yield the command of a record, without the file that it wrote, and all versions."""
    command = re.sub(r" --json \S+", "", record["command"])
    yield "| part | value |"
    yield "|---|---|"
    yield f"| command | `{command}`, seed {record['seed']} |"
    for section in record["sections"]:
        if run := section.get("run"):
            again = f"measured again {run['date']}, `{run['command']}`, seed {run['seed']}"
            yield f"| section `{section['name']}` | {again} |"
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
    shown = PAGES[SHOWN]
    pages[shown] = placed(pages[shown], "slower", f"\n{slower(records[SHOWN])}\n\n")
    pages[shown] = placed(pages[shown], "calls", f"\n{of_calls(records[SHOWN])}\n\n")
    pages[STACKS] = placed(_text(STACKS), "stacks", f"\n{of_stacks(records[SHOWN])}\n\n")
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
