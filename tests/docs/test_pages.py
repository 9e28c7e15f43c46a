"""Every page's code runs and prints what the page says; links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.prose import blocks, run_page
from support.source_tree import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks" / "README.md"])
RUN = (
    "README.md",
    "docs/tutorial.md",
    "docs/architecture.md",
    "docs/low-precision.md",
    "docs/sve.md",
    "docs/sme.md",
    "docs/rvv.md",
    "docs/matrix-unit.md",
    "docs/add-a-target.md",
    "docs/tuning.md",
    "docs/products.md",
    "docs/c-library.md",
    "docs/pytorch.md",
    "docs/quantized.md",
    "docs/jax.md",
    "docs/how-to/quantised-layer.md",
    "docs/how-to/convolution.md",
    "docs/how-to/stacks.md",
    "docs/how-to/threads.md",
    "docs/how-to/own-post-op.md",
    "docs/how-to/edit-the-c.md",
    "docs/numbers.md",
    "docs/reference/README.md",
    "docs/reference/epilogues.md",
    "docs/reference/kernels.md",
    "docs/reference/schedules.md",
)
LINK = re.compile(r"\]\(([^)#]+)")
MAKE = re.compile(r"^make (\w+)", re.MULTILINE)


#: What a page needs beside what the tests install; without it the page is skipped.
NEEDS = {"docs/pytorch.md": ("torch", "numba"), "docs/jax.md": ("jax",)}


@pytest.mark.golden
@pytest.mark.parametrize("name", RUN)
def test_a_page_runs_and_prints_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    for module in NEEDS.get(name, ()):
        pytest.importorskip(module, reason=f"{module} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path / "data"))
    run_page(ROOT / name, update=pytestconfig.option.update_golden)


def test_every_page_with_code_is_run() -> None:
    for page in PAGES:
        languages = {block.language for block in blocks(page)}
        assert "python" not in languages or page.relative_to(ROOT).as_posix() in RUN, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_commands_exist(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
    makefile = (ROOT / "Makefile").read_text()
    for block in blocks(page):
        for goal in MAKE.findall(block.text if block.language == "sh" else ""):
            assert re.search(rf"^{goal}:", makefile, re.MULTILINE), f"{page.name}: make {goal}"


@pytest.mark.parametrize("script", ["scripts.figures", "scripts.picture"])
def test_what_is_made_by_a_script_is_current(script: str) -> None:
    command = [sys.executable, "-m", script, "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
