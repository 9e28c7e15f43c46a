"""Pictures of the pages: made from the committed records and plans, well-formed, in both modes."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from support.source_tree import ROOT

from benchmarks.charts.__main__ import charts
from benchmarks.charts.records import Record, newest, printed, records
from benchmarks.charts.style import MODES, Chart

PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))


@pytest.mark.parametrize("chart", tuple(charts()), ids=lambda chart: chart.name)
def test_a_chart_was_drawn_from_the_records(chart: Chart) -> None:
    assert chart.current(), "try: python -m benchmarks.charts"
    for mode in MODES:
        drawn = chart.path(mode).read_text(encoding="utf-8")
        assert mode.ink in drawn and mode.paper in drawn and chart.title in drawn


def test_pictures_of_plans_are_current() -> None:
    command = [sys.executable, "-m", "scripts.plans", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_well_formed(path: Path) -> None:
    drawn = ET.fromstring(path.read_text(encoding="utf-8"))
    assert drawn.tag.endswith("svg") and drawn.get("viewBox")


def test_each_picture_is_drawn_by_a_command() -> None:
    drawn = {chart.path(mode).name for chart in charts() for mode in MODES}
    assert {path.name for path in PICTURES} == drawn | {"five-loops.svg", "tile.svg"}


def test_records_say_which_vectors_a_peer_ran() -> None:
    versions = {"OpenBLAS": "0.3.31 (Haswell), numpy 2.4.6", "LIBXSMM": "1.17, ISA 1022"}
    record = Record("AMD EPYC (family 26, model 2)", "2026-01-01", "x --json y", versions, {})
    assert record.label("numpy") == "numpy (AVX2)"
    assert record.vectors("LIBXSMM") == "AVX-512" and record.vectors("torch") == ""
    assert record.caption == "Zen 5, 2026-01-01: x"


def test_the_newest_record_with_such_rows_is_taken() -> None:
    assert newest("low").date == max(r.date for r in records() if r.sections.get("low"))
    with pytest.raises(LookupError, match="no record has rows of low"):
        newest("low", shape="none")


def test_printed_tables_have_as_many_cells_as_columns() -> None:
    for section in ("products", "few", "quantized", "small"):
        tables = printed(section)
        assert tables and all(table["date"] and table["command"] for table in tables)
        for table in tables:
            assert {len(row) for row in table["rows"]} == {len(table["columns"])}
