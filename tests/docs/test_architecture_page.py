"""The page on architecture shows the tree as it is, and the glossary the words in use."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from support.source_tree import ROOMS, ROOT, modules, room_file, templates

PATH_OF_PAGE = ROOT / "docs" / "maintainers" / "architecture.md"
PAGE = PATH_OF_PAGE.read_text()
WORD = re.compile(r"^\| ([a-z][^|`]*) \| (.+) \|$", re.MULTILINE)
#: Paths that pages name, without what stands for a part of a name.
PATH = re.compile(
    r"`((?:dsl|targets|templates|runtime|tuning|cli|tests|benchmarks|scripts)/[\w/.]*)"
)
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "CONTRIBUTING.md", ROOT / "README.md"])
#: Words that were given up, and what is said in their place.
GIVEN_UP = {
    "prepack": "convert, or pack",
    "linesums": "line sums",
    "epilog": "epilogue",
    "fringe": "tail",
    "leftover": "tail",
    "microkernel": "micro-kernel",
    "ukernels": "micro-kernels",
    "micropanel": "panel",
    "zeropoint": "zero point",
}
#: Names that were given up, in code and where a page or a template quotes code.
NAMES_GIVEN_UP = {
    "Room": "StackBuffer",
    "Work": "TileRequest",
    "Hold": "CompilerHints",
    "Feeding": "Staging",
    "feed": "stage_operands, or form",
    "feeding": "staging",
    "feeds": "lane_forms",
    "feeder": "input_of",
    "fed": "tile_shapes",
    "has_room": "has_space",
}


def test_the_page_fits() -> None:
    assert len(PAGE.splitlines()) <= 200


@pytest.mark.golden
def test_every_room_is_in_the_table_with_its_own_sentence(pytestconfig: pytest.Config) -> None:
    rooms = {}
    for room in ROOMS:
        file = room_file(room)
        path = file.parent if file.name == "__init__.py" else file
        name = path.relative_to(ROOT).as_posix() + ("/" if path.is_dir() else "")
        doc = ast.get_docstring(ast.parse(file.read_text())) or ""
        rooms[name] = doc.splitlines()[0].rstrip(".")
    table = "| room | in one sentence |\n|---|---|\n"
    table += "".join(f"| `{name}` | {sentence} |\n" for name, sentence in rooms.items())
    if pytestconfig.option.update_golden:
        shown = re.sub(r"\| room \|.*?\n(?=\n)", lambda _: table, PAGE, flags=re.DOTALL)
        PATH_OF_PAGE.write_text(shown)
        return
    assert table in PAGE, "a room's sentence is the first line of its docstring; try: make golden"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    for path in PATH.findall(page.read_text()):
        assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_the_glossary_is_short_and_in_use() -> None:
    words = WORD.findall((ROOT / "docs" / "reference" / "glossary.md").read_text())
    words = [entry for entry in words if entry != ("word", "meaning")]
    assert 30 <= len(words) <= 60
    sources = "\n".join(
        path.read_text().lower()
        for folder in ("dsl", "targets", "templates", "docs")
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".j2", ".md") and path.name != "glossary.md"
    )
    flat = re.sub(r"\s+|[_-]", " ", sources)
    for entry, _ in words:
        for word in entry.split(", "):
            assert re.search(rf"\b{re.escape(word.replace('-', ' ').lower())}", flat), (
                f"nobody says {word}"
            )


@pytest.mark.parametrize("word", GIVEN_UP)
def test_words_that_were_given_up_are_not_used(word: str) -> None:
    folders = ("dsl", "targets", "templates", "runtime", "tuning", "cli", "docs", "generated")
    for folder in folders:
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in (".py", ".j2", ".md", ".c"):
                found = re.search(rf"(?<![A-Za-z]){word}(?![A-Za-z])", path.read_text())
                assert not found, f"{path.relative_to(ROOT)}: say {GIVEN_UP[word]}"


def test_names_that_were_given_up_are_not_used() -> None:
    for module in modules():
        for name, line in module.names():
            assert name not in NAMES_GIVEN_UP, (
                f"{module.path.relative_to(ROOT)}:{line}: {name} is {NAMES_GIVEN_UP[name]}"
            )


@pytest.mark.parametrize("name", NAMES_GIVEN_UP)
def test_names_that_were_given_up_are_not_quoted(name: str) -> None:
    for path in (*PAGES, *templates(), *(module.path for module in modules())):
        found = re.search(rf"(?:`|see ){name}\b", path.read_text())
        assert not found, f"{path.relative_to(ROOT)}: say {NAMES_GIVEN_UP[name]}"
