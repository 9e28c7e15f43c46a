"""Pages whose code runs: blocks of Python share one interpreter, and what they print is compared.

``text`` and ``c`` hold what the Python block before them prints; ``console`` is a ``tilewright``
command with its output; ``sh`` and ``cmake`` are for reading, and ``{name}`` for Sphinx. Output may
hold ``...`` for anything.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from tilewright.cli import main

FENCE = re.compile(r"^```([\w{}-]*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
OUTPUT = ("text", "c")
SPHINX = ("{eval-rst}", "{include}", "{toctree}")
LANGUAGES = ("python", "console", "sh", "cmake", *OUTPUT, *SPHINX)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, its first line's number, where its text lies."""

    language: str
    text: str
    line: int
    span: tuple[int, int]


def blocks(page: Path) -> list[Block]:
    """The page's blocks in order; an output block follows a Python block."""
    text = page.read_text()
    found = [
        Block(match[1], match[2], text[: match.start()].count("\n") + 2, match.span(2))
        for match in FENCE.finditer(text)
    ]
    before = ""
    for block in found:
        where = f"{page.name}:{block.line}"
        assert block.language in LANGUAGES, f"{where}: a block of {block.language or 'nothing'}"
        if block.language in OUTPUT:
            assert before == "python", f"{where}: the output of nothing"
        before = block.language
    return found


def run_page(page: Path, *, update: bool = False) -> None:
    """Run every block; a mismatch fails, or with ``update`` is written into the page."""
    names: dict[str, object] = {"__name__": page.stem}
    said, stale = "", list[tuple[tuple[int, int], str]]()
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        if block.language in OUTPUT:
            _compare(said, block, where, stale if update else None)
            said = ""
        else:
            assert not said.strip(), f"{where}: what is printed before is not shown"
        if block.language == "python":
            said = _run_python(page, block, names)
        elif block.language == "console":
            _run_console(block, where)
    assert not said.strip(), f"{page.name}: what is printed last is not shown"
    text = page.read_text()
    for (start, end), output in reversed(stale):
        text = f"{text[:start]}{output}{text[end:]}"
    if stale:
        page.write_text(text)


def _compare(
    got: str, block: Block, where: str, stale: list[tuple[tuple[int, int], str]] | None
) -> None:
    # A leading "..." would start doctest's continuation; it only compares here.
    if doctest.OutputChecker().check_output(block.text, got, LOOSE):
        return
    assert stale is not None, f"{where} expects\n{block.text}\ngot\n{got}\ntry: make golden"
    stale.append((block.span, got))


def _run_python(page: Path, block: Block, names: dict[str, object]) -> str:
    out = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    with contextlib.redirect_stdout(out):
        exec(code, names)
    return out.getvalue()


def _run_console(block: Block, where: str) -> None:
    command, _, wanted = block.text.partition("\n")
    prompt, name, *words = shlex.split(command)
    assert (prompt, name) == ("$", "tilewright"), where
    result = CliRunner().invoke(main, words, prog_name=name)
    assert result.exit_code == 0, result.output
    _compare(result.stdout, Block("console", wanted, block.line, block.span), where, None)
