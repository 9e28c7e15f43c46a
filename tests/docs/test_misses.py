"""The table of missed goals: each short name of a figure becomes a product and its peer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.source_tree import ROOT

from scripts.figures import of_calls
from scripts.misses import missed_table, rows_of, slower

#: Name and size of the row for one small product with a new result.
NEW = ("a @ b, new", 8)


def _record(name: str, value: float, limit: float, at_most: bool = False) -> dict[str, Any]:
    figure = {"name": name, "value": value, "limit": limit, "at_most": at_most, "unit": ""}
    calls = [
        {"size": 8, "name": "a @ b", "micros": {"tw.matmul": 1.0, "numpy": 2.0}},
        {"size": 8, "name": "a @ b, new", "micros": {"tw.matmul": 2.0, "numpy": 1.6, "torch": 3.0}},
    ]
    layers = [
        {"group": "thin", "types": "f32 f32", "shape": shape, "ratio": ratio,
         "gflops": {"tw.matmul": 10 * ratio, "numpy": 10.0, "torch": 9.0, "same bits": 99.0}}
        for shape, ratio in (("2048x1x2048", 0.9), ("1x2048x2048", 0.8))
    ]  # fmt: skip
    rows = {"small": calls, "products": layers}
    sections = [{"name": section, "rows": rows[section], "figures": []} for section in rows]
    return {"sections": [*sections, {"name": "other", "rows": [], "figures": [figure]}]}


@pytest.mark.parametrize(
    ("name", "value", "limit", "at_most", "row"),
    [
        ("f32 f32, thin, the least", 0.8, 1, False,
         "| f32, 1x2048x2048, the slowest of 2 thin products | numpy | 0.8 | 1 |"),
        ("f64 f64, stack of 16x16, compiled for its size, to LIBXSMM", 0.5, 1, False,
         "| f64, a stack of 16x16, `tw.compile` | LIBXSMM | 0.5 | 1 |"),
        ("bf16, few columns, the least", 0.5, 0.97, False,
         "| bf16, 1 to 31 columns, the slowest case | torch | 0.5 | 0.97 |"),
        ("small calls of 8, the longest to a peer's", 1.25, 1, True,
         "| f32, 8x8, one call of `a @ b` with a new result | numpy | 0.8 | 1 |"),
    ],
)  # fmt: skip
def test_a_missed_goal_names_its_product_and_its_peer(
    name: str, value: float, limit: float, at_most: bool, row: str
) -> None:
    assert [*missed_table(_record(name, value, limit, at_most))][-1] == row


def test_a_figure_that_is_met_is_counted_but_not_listed() -> None:
    lines = [*missed_table(_record("bf16, few columns, the least", 1.0, 0.97))]
    assert lines[0].startswith("1 of 1 speed goals")
    assert lines[-1] == "|---|---|--:|--:|"


def test_a_figure_of_an_unknown_form_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot say what the figure"):
        list(missed_table(_record("something else", 0.5, 1)))


@pytest.mark.parametrize(("micros", "named"), [(1.5, False), (1.7, True)])
def test_only_a_slower_call_is_listed(micros: float, named: bool) -> None:
    """A new record may end a weakness: then the page no longer names it."""
    record = json.loads((ROOT / "benchmarks" / "records" / "zen5.json").read_text())
    (row,) = (row for row in rows_of(record, "small") if (row["name"], row["size"]) == NEW)
    row["micros"].update({"tw.matmul": micros, "numpy": 1.6})
    line = f"of 8x8 in f32 takes {micros:.2f} us, numpy 1.60 us."
    assert (line in slower(record)) is named
    assert f"{micros:.2f} us | 1.60 us" in of_calls(record)


def test_figures_that_compare_only_with_numpy_have_a_form() -> None:
    name = "calls of 4 to 32 a new result, the longest to numpy's"
    row = [*missed_table(_record(name, 1.25, 1, True))][-1]
    what = "f32, calls of 4x4 to 32x32 with a new result, the slowest case"
    assert row == f"| {what} | numpy | 0.8 | 1 |"
