"""``tw.matmul`` of few rows, columns or steps of K, in every order of A and B, beside numpy.

What passes is then one large matrix, from memory or a cache, and how its lines lie decides. Few
rows and columns of halves and bytes whose operands lie along K, as in ``x @ w.T``, stand beside
PyTorch. One core, one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from rich.progress import track
from rich.table import Table

import tilewright as tw
from benchmarks.matmul.products import (
    DTYPES,
    LEAST,
    MEAN,
    Array,
    peers_of,
    rounds_of,
    torch_of,
)
from benchmarks.measure.figures import Figure, Section, geometric_mean
from benchmarks.measure.operands import WrongResultError
from benchmarks.measure.options import Options

FEW = (1, 2, 3, 4, 7, 8, 16, 31)
LARGE = ((300, 300), (1000, 1280), (2048, 2048))
ORDERS = tuple(f"{a}{b}" for a in "CF" for b in "CF")
TYPES = "f32", "f64"
#: Those that are converted: their vectors lie along K where both operands do.
CONVERTED, ALONG_K = ("bf16", "f16", "s8"), "CF"


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
    """How many times as fast as its peer a case is with each number of ``FEW``."""

    case: Case
    ratios: tuple[float, ...]


def run(options: Options) -> Section:
    """Time every product that ``--only`` leaves."""
    from threadpoolctl import threadpool_limits

    torch = torch_of()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        cases = track(_cases(options), "few", console=options.console, transient=True)
        rows = [
            Row(case, tuple(_ratio(torch, options, case, few) for few in FEW)) for case in cases
        ]
    options.console.print(_table(rows))
    records: list[dict[str, object]] = [
        {**row.case._asdict(), "few": few, "ratio": ratio}
        for row in rows
        for few, ratio in zip(FEW, row.ratios, strict=True)
    ]
    return Section("few", tuple(_figures(rows)), tuple(records))


def _cases(options: Options) -> list[Case]:
    kinds = [
        *product(TYPES, "mnk", ORDERS),
        *product(CONVERTED, "mn", (ALONG_K,)),
    ]
    every = (Case(small, orders, type_, large) for type_, small, orders in kinds for large in LARGE)
    return [case for case in every if options.wants("x".join(map(str, case.sizes(2))))]


def _ratio(torch: Any, options: Options, case: Case, few: int) -> float:
    m, n, k = case.sizes(few)
    rng, dtype = np.random.default_rng(options.seed), DTYPES[case.type]
    a, b = (
        np.array(rng.integers(-2, 3, shape), dtype, order=order)  # type: ignore[call-overload]
        for shape, order in zip(((m, k), (k, n)), case.orders, strict=True)
    )
    out: Array = tw.matmul(a, b)
    exact = a.astype(np.float64) @ b.astype(np.float64)  # whole numbers, in any order of sums
    if (out != exact).any():
        raise WrongResultError(f"tw.matmul of {case} with {few} is wrong")
    name = "torch" if case.type in CONVERTED else "numpy"
    peer = peers_of(torch, a, b, out, case.type)[name]
    seconds = rounds_of({"ours": lambda: tw.matmul(a, b, out), name: peer}, options.effort)
    return float(np.median(seconds[name] / seconds["ours"]))


def _table(rows: Sequence[Row]) -> Table:
    table = Table(
        title="tw.matmul, times as fast as numpy, or PyTorch where types are converted",
        title_justify="left",
    )
    for heading in ("few", "A B", "type", "the others", *map(str, FEW)):
        table.add_column(heading, justify="right")
    for case, ratios in rows:
        large = "x".join(map(str, case.large))
        said = (f"{ratio:.2f}" for ratio in ratios)
        table.add_row(case.small, case.orders, case.type, large, *said)
    return table


def _figures(rows: Sequence[Row]) -> Iterator[Figure]:
    names = {"m": "few rows", "n": "few columns", "k": "few steps of K"}
    for type_ in (*TYPES, *CONVERTED):
        for small, name in names.items():
            mine: list[Any] = [r for case, r in rows if (case.type, case.small) == (type_, small)]
            ratios = [ratio for each in mine for ratio in each]
            if ratios:
                yield Figure(f"{type_}, {name}, geometric mean", geometric_mean(ratios), MEAN)
                yield Figure(f"{type_}, {name}, the least", min(ratios), LEAST)
