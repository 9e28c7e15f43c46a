"""The site in a browser: its front page, a class page, and a phone's width."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.source_tree import ROOT

SITE = ROOT / "build" / "site"
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    not (SITE / "index.html").exists() or CHROMIUM is None,
    reason="no site (make docs), or no chromium",
)
#: Options under which Chromium runs as root, without a network, a screen or a profile of its own.
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-quic",
)  # fmt: skip
#: Pixels of a phone, and of a desk.
PHONE, DESK = (390, 844), (1280, 900)
#: Put into a copy of a page: leaves the widths of the page and of the window in its title.
MEASURE = (
    "<script>addEventListener('load', () => {"
    "document.title = document.documentElement.scrollWidth + ' of ' + innerWidth})</script>"
)


def opened(page: Path, size: tuple[int, int], tmp_path: Path) -> str:
    """The document that Chromium makes of a page in a window of this size."""
    command = [
        str(CHROMIUM), *OPTIONS, f"--user-data-dir={tmp_path / 'profile'}",
        f"--window-size={size[0]},{size[1]}", "--virtual-time-budget=3000", "--dump-dom",
        page.as_uri(),
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def test_the_front_page_shows_chart_code_and_cards(tmp_path: Path) -> None:
    shown = opened(SITE / "index.html", DESK, tmp_path)
    cards = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").count("{grid-item-card}")
    assert shown.count("sd-card-title") == cards >= 6
    assert "tw.matmul" in re.sub(r"<[^>]+>", "", shown) and "gflops-f32-light" in shown
    assert "copybtn" in shown


def test_a_class_page_begins_with_the_class_and_its_fields(tmp_path: Path) -> None:
    shown = opened(SITE / "reference" / "specs.html", DESK, tmp_path)
    text = " ".join(re.sub(r"<[^>]+>", " ", shown).split())
    assert "Parameters" in text and text.index("Parameters") < text.index("Examples")
    assert "_checked" not in text and "attempt_new" not in text


@pytest.mark.parametrize("page", ["index.html", "reference/specs.html", "explain/performance.html"])
def test_a_page_fits_a_phone(page: str, tmp_path: Path) -> None:
    source = SITE / page
    copy = source.with_name(f"phone-{source.name}")
    copy.write_text(source.read_text(encoding="utf-8").replace("</head>", f"{MEASURE}</head>"))
    try:
        shown = opened(copy, PHONE, tmp_path)
    finally:
        copy.unlink()
    title = re.search(r"<title>(\d+) of (\d+)</title>", shown)
    assert title is not None, shown[:500]
    assert int(title[1]) <= int(title[2]), "the page is wider than the window"
