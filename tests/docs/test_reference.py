"""The reference has every public name, and the examples in their docstrings run."""

from __future__ import annotations

import doctest
import inspect
import os
import re
import shutil
from operator import attrgetter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.source_tree import ROOT, modules

import tilewright as tw
from tilewright import nn
from tilewright.cli import main
from tilewright.plan.estimate import stack, work

#: Values, whose examples stand in the page on epilogues; and a string.
VALUES = {"acc", "acc2", "dst", "__version__"}
#: Every public name.
PUBLIC = {*tw.__all__, *(f"nn.{name}" for name in nn.__all__)}
#: Names whose examples compile what no cache keeps: wrong C, a tile that does not fit, variants.
COMPILING = {"TilewrightError", "ToolchainError", "tune"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
EXTRACTED = re.compile(
    r"^\.\. (?:autofunction|autoclass|autoexception|py:data):: tilewright\.([\w.]+)(?:\(\))?$",
    re.MULTILINE,
)


def documented(name: str) -> Any:
    """What has the docstring of a public name: of a package that is called, its call."""
    found = attrgetter(name)(tw)
    return type(found).__call__ if inspect.ismodule(found) else found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in COMPILING else pytest.mark.twice)
        for name in sorted(PUBLIC - VALUES)
    ],
)
def test_the_example_of_a_name_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path / "data"))
    before = os.environ.get("TILEWRIGHT_CACHE_DIR", "")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", before)  # and put back what an example sets
    text = inspect.getdoc(documented(name)) or ""
    names = {"tw": tw, "np": np, "ml_dtypes": ml_dtypes, "os": os, "Path": Path}
    run_examples(name, text, names)


def run_examples(name: str, text: str, names: dict[str, Any]) -> None:
    """Run the examples in a docstring, and compare what they print."""
    example = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    assert example.examples, f"the docstring of tw.{name} has no example"
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    runner.run(example, out=said.append)
    assert not runner.summarize(verbose=False).failed, "".join(said)


MEMBERS = {
    f"{kind.__name__}.{name}": inspect.getdoc(member) or ""
    for kind in (tw.Kernel, tw.Library)
    for name, member in inspect.getmembers(kind)
    if not name.startswith("_") and ">>>" in (inspect.getdoc(member) or "")
}


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_the_example_of_a_member_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "Kernel.assembly" and not shutil.which("objdump"):
        pytest.skip("no objdump")
    monkeypatch.chdir(tmp_path)
    run_examples(name, MEMBERS[name], {"tw": tw, "np": np})


def test_the_reference_has_every_public_name() -> None:
    pages = sorted((ROOT / "docs" / "reference").glob("*.md"))
    found = [name for page in pages for name in EXTRACTED.findall(page.read_text())]
    names = [name for name in found if "." not in name or name.startswith("nn.")]
    assert sorted(names) == sorted(PUBLIC - {"__version__"})


def test_the_reference_has_every_environment_variable() -> None:
    code = (ROOT / "dsl" / "settings.py").read_text()
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    read = re.findall(r'\("([A-Z_]+)"', code)
    assert len(read) >= 6
    read += [f"TILEWRIGHT_CC_{name}" for name in ("AARCH64", "PPC64LE", "RISCV64")]
    for name in read:
        assert f"`{name}`" in page, name


def test_the_list_of_pages_names_every_page() -> None:
    text = (ROOT / "docs" / "README.md").read_text()
    for page in sorted((ROOT / "docs").rglob("*.md")):
        name = page.relative_to(ROOT / "docs").as_posix()
        if name not in ("README.md", "index.md"):
            assert f"]({name})" in text, f"docs/README.md does not name {name}"


def test_every_bound_that_explain_names_has_a_cure() -> None:
    page = (ROOT / "docs" / "how-to" / "faster.md").read_text()
    source = (ROOT / "dsl" / "plan" / "tiling" / "bounds.py").read_text()
    bounds = set(re.findall(r'^ +(?:found\[)?"([a-zA-Z ,-]+)"(?:\] =|:) ', source, re.MULTILINE))
    bounds |= {work.ENDS, work.LOOP, work.PARTS, work.PACKING, work.CONVERTING, work.CONFIGURING}
    bounds |= {stack.MOVING, "L2", "L3", "memory", "page lookups", "nothing"}
    assert len(bounds) >= 18, bounds
    for bound in bounds:
        assert re.search(rf"^\|.*`{bound}`.*\|$", page, re.MULTILINE), f"no cure for {bound}"


def test_every_command_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    for name in main.commands:
        assert f"`tilewright {name}" in page, f"no row for tilewright {name}"


def test_the_messages_of_the_page_of_errors_are_those_of_the_code() -> None:
    """A reader searches the page for words of a message."""
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    said = [text for module in modules() for text, _ in module.strings()]
    rows = re.findall(r'^\| (".*?") \| ', page, re.MULTILINE)
    quoted = [message for row in rows for message in re.findall(r'"([^"]+)"', row)]
    assert len(quoted) > 30
    assert not [message for message in quoted if not _is_said(message, said)]


def _is_said(message: str, texts: list[str]) -> bool:
    """True if a text contains the message, of which one part may be a hole of the text."""
    ends = range(len("is not "), len(message) + 1)
    parts = [f"{message[:i]}{{}}{message[j:]}" for i in ends for j in ends if i < j]
    return any(part in text for part in (message, *parts) for text in texts)
