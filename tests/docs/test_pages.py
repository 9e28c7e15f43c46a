"""Every page's code runs and prints what the page says; links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.prose import blocks, run_page, same
from support.source_tree import ROOT

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
        ROOT / "benchmarks" / "README.md",
    ]
)
RUN = [
    page.relative_to(ROOT).as_posix()
    for page in PAGES
    if {block.language for block in blocks(page)} & {"python", "console"}
]
LINK = re.compile(r"\]\(([^)#\s]+)|(?:src|srcset)=\"([^\"]+)\"")
IMPORT = re.compile(r"^import (torch|numba|jax|onnx|skl2onnx)\b", re.MULTILINE)
MAKE = re.compile(r"^make (\w+)", re.MULTILINE)
#: A page has one purpose, which fits into so many words.
MOST_WORDS = 1500


@pytest.mark.golden
@pytest.mark.parametrize("name", RUN)
def test_a_page_runs_and_prints_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    for module in IMPORT.findall((ROOT / name).read_text()):
        pytest.importorskip(module, reason=f"{module} is not installed")
    if (frontend := sys.modules.get("tilewright.torch")) is not None:
        frontend.history.clear()  # what other tests left: pages print it
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path / "data"))
    run_page(ROOT / name, update=pytestconfig.option.update_golden)


def test_measured_output_is_compared_loosely() -> None:
    assert same("97.2 GFLOPS", "112  GFLOPS", measured=True)
    assert not same("97.2 GFLOPS", "112 GFLOPS", measured=False)
    assert not same("97.2 GFLOPS", "97.2 GOPS", measured=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_commands_exist(page: Path) -> None:
    for link in map("".join, LINK.findall(page.read_text())):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
    makefile = (ROOT / "Makefile").read_text()
    for block in blocks(page):
        for goal in MAKE.findall(block.text if block.language == "sh" else ""):
            assert re.search(rf"^{goal}:", makefile, re.MULTILINE), f"{page.name}: make {goal}"


@pytest.mark.parametrize(
    "page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_a_page_is_short(page: Path) -> None:
    words = len(page.read_text().split())
    assert words <= MOST_WORDS, f"{words} words; split the page by its readers or purposes"


def test_pages_name_both_folders() -> None:
    """Whoever moves one of them learns that the other one stays."""
    folders = ("TILEWRIGHT_CACHE_DIR", "TILEWRIGHT_DATA_DIR")
    for page in PAGES:
        text = page.read_text()
        assert len({folder in text for folder in folders}) == 1, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_command_writes_to_the_folder_of_somebody(page: Path) -> None:
    assert not re.search(r"/tmp/\w+\.json|pip install 'tilewright", page.read_text())


def test_no_source_installs_tilewright_from_pypi() -> None:
    """The package is not there, and a stranger could register the name."""
    folders = ("benchmarks", "cli", "dsl", "examples", "frameworks", "runtime", "targets", "tuning")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    allowed = ROOT / "dsl" / "errors.py"  # says there why not
    wrong = [p for p in sources if "pip install 'tilewright" in p.read_text() and p != allowed]
    assert not wrong and len(sources) > 100


@pytest.mark.parametrize("script", ["scripts.figures", "scripts.picture"])
def test_what_is_made_by_a_script_is_current(script: str) -> None:
    command = [sys.executable, "-m", script, "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
