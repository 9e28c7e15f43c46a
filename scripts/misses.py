"""List the products for which another library is faster, and the speed goals that were missed.

A record of the benchmarks goes in, lines of Markdown come out. The names of a record's figures are
short; here each becomes the product, the peer, and tilewright's speed divided by the peer's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Record = Mapping[str, Any]

#: Names of tilewright's own times in the rows of a record. All other names are peers.
_OURS = ("tilewright", "tw.matmul", "tw.compile", "same bits")
_GROUPS = {"networks and squares": "layers and squares", "thin": "thin products"}
#: Figures in seconds whose names do not say what was timed.
_TIMES = {
    "first tw.matmul of a process": "first `tw.matmul` of a process, with its kernel in the cache,"
}
#: Types for which numpy has no fast products. Their peer is PyTorch.
_CONVERTED = ("bf16", "f16", "s8")


class Miss(NamedTuple):
    """A missed goal: tilewright's speed divided by the peer's, and the wanted ratio."""

    product: str
    peer: str
    ratio: float
    goal: float


def rows_of(record: Record, name: str) -> list[Record]:
    """Return the rows of a section; none if the run left it out."""
    return [row for section in record["sections"] if section["name"] == name
            for row in section["rows"]]  # fmt: skip


def missed_table(record: Record) -> Iterator[str]:
    """Yield how many goals were reached, a table of the missed ones, and the missed times."""
    figures = {f["name"]: f for section in record["sections"] for f in section["figures"]}
    missed = [figure for figure in figures.values() if not _met(figure)]
    yield (
        f"{len(figures) - len(missed)} of {len(figures)} speed goals, which were set beforehand, "
        "were reached. These were missed:"
    )
    yield ""
    yield "| product | peer | times as fast | goal |"
    yield "|---|---|--:|--:|"
    for figure in missed:
        if not figure["unit"]:
            miss = _miss(record, figure)
            yield f"| {miss.product} | {miss.peer} | {miss.ratio:.3g} | {miss.goal:g} |"
    for figure in missed:
        if unit := figure["unit"]:
            name = _TIMES.get(figure["name"], figure["name"])
            yield ""
            yield (
                f"The {name} took {figure['value']:.3g}{unit}; "
                f"the goal was at most {figure['limit']:g}{unit}."
            )


def calls(record: Record) -> dict[str, dict[int, Mapping[str, float]]]:
    """Return microseconds of each library, by form of the call and size n of n x n matrices."""
    found: dict[str, dict[int, Mapping[str, float]]] = {}
    for row in rows_of(record, "small"):
        if "torch" in row["micros"]:  # in the other rows, each form has its own meaning of the size
            found.setdefault(row["name"], {})[row["size"]] = row["micros"]
    return found


def slower(record: Record) -> str:
    """Return the products that a peer computes faster, one item of a list for each kind."""
    return "\n".join(
        [*_slow_calls(record), *_slow_rows(record), *_slow_layers(record), *_slow_stacks(record)]
    )


def _slow_calls(record: Record) -> Iterator[str]:
    for size, micros in calls(record)["a @ b, new"].items():
        if micros["tw.matmul"] > micros["numpy"]:
            yield (
                f"- **One small product with a new result.** `tw.matmul(a, b)` of {size}x{size} in "
                f"f32 takes {micros['tw.matmul']:.2f} us, numpy {micros['numpy']:.2f} us."
            )


def _slow_rows(record: Record) -> Iterator[str]:
    thin = [row for row in rows_of(record, "products") if row["group"] == "thin"]
    ratios = {row["shape"]: row["ratio"] for row in thin if row["types"] == "f32 f32"}
    figures = figures_of(record)
    shapes = [f"{ratios[shape]:.2f} for {shape}" for shape in ("1x2048x2048", "2048x1x2048")]
    least = [figures[f"f32, few {lines}, the least"] for lines in ("rows", "columns")]
    if min(*ratios.values(), *least) < 1:
        yield (
            "- **Few rows or columns times a large f32 matrix.** The speed divided by numpy's is "
            f"{' and '.join(shapes)}. With 1 to 31 rows, the smallest ratio is {least[0]:.2f}; "
            f"with 1 to 31 columns, {least[1]:.2f}."
        )


def _slow_layers(record: Record) -> Iterator[str]:
    said = [_ahead(record, kind) for kind in ("bf16", "s8")]
    if found := [text for text in said if text]:
        yield f"- **Some layers.** PyTorch is faster in {' and in '.join(found)}."


def _slow_stacks(record: Record) -> Iterator[str]:
    for row in rows_of(record, "products"):
        if row["group"] == "stacks" and row["ratio"] < 1:
            size, peer = row["shape"].partition("x")[2], _fastest(row["gflops"])
            yield (
                f"- **Stacks of {size} in {_kind(row['types'])}.** The speed divided by {peer}'s "
                f"is {row['ratio']:.2f}."
            )


def figures_of(record: Record) -> dict[str, float]:
    """Return the value of each figure by its name."""
    return {f["name"]: f["value"] for section in record["sections"] for f in section["figures"]}


def _ahead(record: Record, kind: str) -> str:
    """Return the number of layers and squares in which PyTorch is faster, in words; "" for none."""
    ratios = [
        row["gflops"]["tw.matmul"] / row["gflops"]["torch"]
        for row in rows_of(record, "products")
        if row["group"] == "networks and squares" and _kind(row["types"]) == kind
    ]
    if not (faster := sum(ratio < 1 for ratio in ratios)):
        return ""
    return f"{faster} of {len(ratios)} products in {kind} (smallest ratio {min(ratios):.2f})"


def _met(figure: Record) -> bool:
    value, limit = figure["value"], figure["limit"]
    return bool(value <= limit if figure["at_most"] else value >= limit)


def _miss(record: Record, figure: Record) -> Miss:
    """Return what a figure without a unit compares; ValueError for a name of another form."""
    name, value, limit = figure["name"], figure["value"], figure["limit"]
    if figure["at_most"]:  # a ratio of times
        value, limit = 1 / value, 1 / limit
    for form, named in _FORMS.items():
        if found := re.fullmatch(form, name):
            product, peer = named(record, *found.groups())
            return Miss(product, peer, value, limit)
    raise ValueError(f"scripts/misses.py cannot say what the figure {name!r} compares")


def _group(record: Record, types: str, group: str) -> tuple[str, str]:
    rows = [row for row in rows_of(record, "products")
            if (row["types"], row["group"]) == (types, group)]  # fmt: skip
    least = min(rows, key=lambda row: row["ratio"])
    slowest = f"the slowest of {len(rows)} {_GROUPS[group]}"
    return f"{_kind(types)}, {least['shape']}, {slowest}", _fastest(least["gflops"])


def _kind(types: str) -> str:
    """Return the type of A, for example ``bf16`` of ``bf16 bf16``."""
    return types.partition(" ")[0]


def _stack(
    record: Record, types: str, size: str, fixed: str | None, peer: str | None
) -> tuple[str, str]:
    kernel = "`tw.compile`" if fixed else "`tw.matmul`"
    return f"{_kind(types)}, a stack of {size}, {kernel}", peer or "numpy"


def _few(record: Record, types: str, few: str) -> tuple[str, str]:
    product = f"{types}, 1 to 31 {few}, the slowest case"
    return product, "torch" if types in _CONVERTED else "numpy"


def _calls(record: Record, size: str) -> tuple[str, str]:
    """Return the call from Python that takes longest in comparison with the fastest peer."""

    def ratio(row: Record) -> float:
        micros = row["micros"]
        return float(micros["tw.matmul"] / min(v for n, v in micros.items() if n not in _OURS))

    rows = [row for row in rows_of(record, "small") if row["size"] == int(size)]
    slowest = max((row for row in rows if "torch" in row["micros"]), key=ratio)
    micros = {name: time for name, time in slowest["micros"].items() if name not in _OURS}
    what = slowest["name"].replace(", new", "` with a new result")
    return f"f32, {size}x{size}, one call of `{what}", min(micros, key=lambda name: micros[name])


def _to_numpy(record: Record, what: str) -> tuple[str, str]:
    """Return the kind of call, for example "f32, calls of 4x4 to 32x32 with out=, the slowest"."""
    sizes = re.sub(r"of (\d+) to (\d+)", r"of \1x\1 to \2x\2", what)
    return f"f32, {sizes.replace(' a new', ' with a new')}, the slowest case", "numpy"


def _shape(record: Record, shape: str, count: str | None) -> tuple[str, str]:
    name = f"{shape} ({count})" if count else shape
    row = next(row for row in rows_of(record, "gemm") if row["shape"] == name)
    product = f"f32, {count} products of {shape}, added up" if count else f"f32, {shape}"
    return product, _fastest(row["gflops"])


def _to_f32(record: Record, types: str, shape: str) -> tuple[str, str]:
    return f"{types}, {shape}", "tilewright in f32"


def _fastest(gflops: Mapping[str, float]) -> str:
    peers = {name: speed for name, speed in gflops.items() if name not in _OURS}
    return max(peers, key=lambda name: peers[name])


#: The forms of a figure's name, and the function that says the product and the peer.
_FORMS: dict[str, Any] = {
    r"(\w+ \w+), (networks and squares|thin), the least": _group,
    r"(\w+ \w+), stack of (\d+x\d+)(, compiled for its size)?(?:, to (\w+))?": _stack,
    r"(\w+), few (rows|columns), the least": _few,
    r"small calls of (\d+), the longest to a peer's": _calls,
    r"(calls of .*|vectors, and stacks that are broadcast), the longest to numpy's": _to_numpy,
    r"(\d+x\d+x\d+)(?: \((\d+)\))? to the best peer": _shape,
    r"(\w+) to f32, (\d+x\d+x\d+), .*": _to_f32,
}
