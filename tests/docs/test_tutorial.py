"""The tutorial runs, and prints what it says."""

from __future__ import annotations

import contextlib
import doctest
import io
import itertools
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilewright.cli import main
from tilewright.errors import TargetError
from tilewright.runtime import host

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and its first line's number."""

    language: str
    text: str
    line: int


def blocks() -> list[Block]:
    text = TUTORIAL.read_text()
    return [
        Block(found[1], found[2], text[: found.start()].count("\n") + 2)
        for found in FENCE.finditer(text)
    ]


def check_output(got: str, wanted: str, line: int) -> None:
    # A leading "..." would start doctest's continuation; it only compares here.
    same = doctest.OutputChecker().check_output(wanted, got, LOOSE)
    assert same, f"{TUTORIAL.name}:{line} expects\n{wanted}\ngot\n{got}"


def run_python(block: Block, names: dict[str, object]) -> str:
    out = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, str(TUTORIAL), "exec")
    with contextlib.redirect_stdout(out):
        exec(code, names)
    return out.getvalue()


def run_console(block: Block) -> None:
    command, _, wanted = block.text.partition("\n")
    prompt, name, *words = shlex.split(command)
    assert (prompt, name) == ("$", "tilewright")
    result = CliRunner().invoke(main, words, prog_name=name)
    assert result.exit_code == 0, result.output
    check_output(result.stdout, wanted, block.line)


def test_every_block_is_run_or_compared() -> None:
    found = blocks()
    assert found[0].language == "python"
    for before, block in itertools.pairwise(found):
        assert block.language in ("python", "text", "console"), block
        if block.language == "text":
            assert before.language == "python", f"line {block.line}: the output of nothing"


def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        host.means(host.resolve("neon"))
    except TargetError:
        pytest.skip("the tutorial runs neon")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "tutorial"}
    said = ""
    for block in blocks():
        if block.language == "python":
            assert not said.strip(), f"line {block.line}: what is printed before is not shown"
            said = run_python(block, names)
        elif block.language == "text":
            check_output(said, block.text, block.line)
            said = ""
        else:
            run_console(block)
    assert not said.strip()
