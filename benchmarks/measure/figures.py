"""A figure is a number with a limit; the run fails when one is missed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """``value`` must be at least ``limit``, or at most where ``at_most``."""

    name: str
    value: float
    limit: float
    at_most: bool = False
    unit: str = ""

    @property
    def met(self) -> bool:
        """Whether it holds; never for a NaN."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit


@dataclass(frozen=True, slots=True)
class Section:
    """What one part of the run found: its figures and the rows behind them, for ``--json``."""

    name: str
    figures: tuple[Figure, ...]
    rows: tuple[dict[str, object], ...] = ()


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean; NaN of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def show(console: Console, figures: Iterable[Figure]) -> None:
    """Print figures, their limits, and which are missed."""
    table = Table(title="Figures", title_justify="left")
    for heading in ("figure", "measured", "demanded", ""):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    for figure in figures:
        sign = "<=" if figure.at_most else ">="
        verdict = "[green]met[/]" if figure.met else "[bold red]missed[/]"
        limit = f"{sign} {figure.limit:g}{figure.unit}"
        table.add_row(figure.name, f"{figure.value:.3f}{figure.unit}", limit, verdict)
    console.print(table)
