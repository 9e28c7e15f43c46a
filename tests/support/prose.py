"""Pages whose code runs: blocks of Python share one interpreter, and what they print is compared.

``text`` and ``c`` hold what the Python block before them prints; ``console`` is a ``tilewright``
command with its output, which may go through a pipe; ``sh`` is for reading, and ``{name}`` for
Sphinx. A block with a file's name shows that file. Output stands on the page as it was printed. A
block of ``text measured`` or ``console measured`` has output that depends on the machine: there any
number equals any other.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from tilewright.cli import main

FENCE = re.compile(r"^```([\w{}-]*) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OUTPUT = ("text", "c")
SPHINX = ("{eval-rst}", "{include}", "{toctree}")
#: The language of a block that shows a file: its fence is, for example, ``c main.c``.
FILE = "file"
LANGUAGES = ("python", "console", "sh", FILE, *OUTPUT, *SPHINX)
#: Digests in names, numbers, and the rules of tables, which are as long as their numbers.
_NUMBER = re.compile(r"_[0-9a-f]{6,}\b|-?\d[\d.,]*(?:e[-+]?\d+)?|─+")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, its first line's number, where its text lies."""

    language: str
    text: str
    line: int
    span: tuple[int, int]
    measured: bool


def blocks(page: Path) -> list[Block]:
    """Return the page's blocks in order; an output block follows a Python block."""
    text = page.read_text()
    found = [
        Block(
            match[1] if match[2] in ("", "measured") else FILE,
            match[3],
            text[: match.start()].count("\n") + 2,
            match.span(3),
            match[2] == "measured",
        )
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
            _run_console(block, where, stale if update else None)
    assert not said.strip(), f"{page.name}: what is printed last is not shown"
    text = page.read_text()
    for (start, end), output in reversed(stale):
        text = f"{text[:start]}{output}{text[end:]}"
    if stale:
        page.write_text(text)


def same(shown: str, got: str, *, measured: bool) -> bool:
    """True if two outputs agree but for white space and, where ``measured``, for numbers."""
    if measured:
        shown, got = (_NUMBER.sub("0", text) for text in (shown, got))
    return shown.split() == got.split()


def _compare(
    got: str, block: Block, where: str, stale: list[tuple[tuple[int, int], str]] | None
) -> None:
    if same(block.text, got, measured=block.measured):
        return
    assert stale is not None, f"{where} expects\n{block.text}\ngot\n{got}\ntry: make golden"
    stale.append((block.span, "".join(f"{row.rstrip()}\n" for row in got.splitlines())))


def _run_python(page: Path, block: Block, names: dict[str, object]) -> str:
    out = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    with contextlib.redirect_stdout(out):
        exec(code, names)
    return out.getvalue()


def _run_console(block: Block, where: str, stale: list[tuple[tuple[int, int], str]] | None) -> None:
    command, _, _ = block.text.partition("\n")
    command, _, pipe = command.partition(" | ")
    prompt, name, *words = shlex.split(command)
    assert (prompt, name) == ("$", "tilewright"), where
    result = CliRunner().invoke(main, words, prog_name=name)
    assert result.exit_code == 0, result.output
    got = result.stdout
    if pipe:
        sent = subprocess.run(
            ["sh", "-c", pipe], input=got, capture_output=True, text=True, check=True
        )
        got = sent.stdout
    _compare(f"{block.text.partition(chr(10))[0]}\n{got}", block, where, stale)
