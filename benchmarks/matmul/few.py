"""```tw.matmul``` of few rows, columns or steps of K, in every order of A and B, beside numpy.

What passes is then one large matrix, from memory or a cache, and how its lines lie decides. One
core, one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.progress import track
from rich.table import Table

import tilewright as tw
from benchmarks.matmul.products import LEAST, MEAN, Array, rounds_of
from benchmarks.measure.figures import Figure, Section, geometric_mean
from benchmarks.measure.operands import WrongResultError
from benchmarks.measure.options import Options

FEW = (1, 2, 3, 4, 7, 8, 16, 31)
LARGE = ((300, 300), (1000, 1280), (2048, 2048))
ORDERS = tuple(f"{a}{b}" for a in "CF" for b in "CF")
TYPES = {"f32": np.float32, "f64": np.float64}


class Case(NamedTuple):
    """A product of which ``small``, m, n or k, is few; ``orders`` are those of A and B."""

    small: str
    orders: str
    type: str
    large: tuple[int, int]

    def sizes(self, few: int) -> tuple[int, int, int]:
        """m, n and k with so ``few``."""
        x, y = self.large
        return {"m": (few, x, y), "n": (x, few, y), "k": (x, y, few)}[self.small]


class Row(NamedTuple):
    """How many times as fast as numpy a case is with each number of ``FEW``."""

    case: Case
    ratios: tuple[float, ...]


def run(options: Options) -> Section:
    """Time every product that ``--only`` leaves."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        cases = track(_cases(options), "few", console=options.console, transient=True)
        rows = [Row(case, tuple(_ratio(options, case, few) for few in FEW)) for case in cases]
    options.console.print(_table(rows))
    records: list[dict[str, object]] = [
        {**row.case._asdict(), "few": few, "ratio": ratio}
        for row in rows
        for few, ratio in zip(FEW, row.ratios, strict=True)
    ]
    return Section("few", tuple(_figures(rows)), tuple(records))


def _cases(options: Options) -> list[Case]:
    every = (
        Case(small, orders, type_, large)
        for type_ in TYPES
        for small in "mnk"
        for orders in ORDERS
        for large in LARGE
    )
    return [case for case in every if options.wants("x".join(map(str, case.sizes(2))))]


def _ratio(options: Options, case: Case, few: int) -> float:
    m, n, k = case.sizes(few)
    rng, dtype = np.random.default_rng(options.seed), TYPES[case.type]
    a, b = (
        np.array(rng.integers(-2, 3, shape), dtype, order=order)  # type: ignore[call-overload]
        for shape, order in zip(((m, k), (k, n)), case.orders, strict=True)
    )
    out: Array = np.empty((m, n), dtype)
    if (tw.matmul(a, b, out) != a @ b).any():  # whole numbers, which any order of sums gives
        raise WrongResultError(f"tw.matmul of {case} with {few} is wrong")
    seconds = rounds_of(
        {"ours": lambda: tw.matmul(a, b, out), "numpy": lambda: np.matmul(a, b, out=out)},
        options.effort,
    )
    return float(np.median(seconds["numpy"] / seconds["ours"]))


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="tw.matmul, times as fast as numpy", title_justify="left")
    for heading in ("few", "A B", "type", "the others", *map(str, FEW)):
        table.add_column(heading, justify="right")
    for case, ratios in rows:
        large = "x".join(map(str, case.large))
        said = (f"{ratio:.2f}" for ratio in ratios)
        table.add_row(case.small, case.orders, case.type, large, *said)
    return table


def _figures(rows: Sequence[Row]) -> Iterator[Figure]:
    names = {"m": "few rows", "n": "few columns", "k": "few steps of K"}
    for type_ in TYPES:
        for small, name in names.items():
            mine: list[Any] = [r for case, r in rows if (case.type, case.small) == (type_, small)]
            ratios = [ratio for each in mine for ratio in each]
            if ratios:
                yield Figure(f"{type_}, {name}, geometric mean", geometric_mean(ratios), MEAN)
                yield Figure(f"{type_}, {name}, the least", min(ratios), LEAST)
