"""The C of representative kernels is the committed one; ``make golden`` writes it anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.compilers import TARGETS, use
from support.source_tree import ROOT
from support.specimens import SPECIMENS, able, specimens

from tilewright import targets
from tilewright.generate import Request, generate
from tilewright.runtime.build.toolchain import compile_library, compiler_flags
from tilewright.runtime.edited import own_file

ALL = [(target, name) for target in targets.NAMES for name in specimens(target)]


@pytest.mark.parametrize(("target", "name"), ALL)
def test_the_c_is_the_committed_one(
    target: str, name: str, golden: Callable[[str, str], None]
) -> None:
    spec, schedule = SPECIMENS[name]
    request = Request(name, spec, schedule, targets.load(target))
    golden(f"{target}/{name}.c", own_file([request]).text)


def test_nothing_else_lies_in_generated() -> None:
    expected = {f"{target}/{name}.c" for target, name in ALL}
    folder = Path(ROOT / "generated")
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*.c")}
    assert found == expected


@pytest.mark.parametrize("target", TARGETS)
def test_no_warning_comes_of_what_optimising_finds(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By gcc; clang's warnings are those of the syntax, which test_readable_c.py asks for."""
    requests = [Request(n, *SPECIMENS[n], targets.load(target)) for n in able(target)]
    compiler = use("gcc", targets.load(target), monkeypatch)
    assert {"-Wall", "-Wextra", "-Werror"} <= set(compiler_flags(targets.load(target), compiler))
    compile_library(generate(requests).text, targets.load(target), compiler, tmp_path, "all")
