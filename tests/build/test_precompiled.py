"""Precompiled headers: used where they are whole and fitting, and never the reason of a failure."""

from __future__ import annotations

import ctypes
import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import filelock
import pytest

from tilewright.errors import ToolchainError
from tilewright.isa.target import Target
from tilewright.runtime.build import precompiled, toolchain
from tilewright.runtime.build.precompiled import MANIFEST, OUTPUT, PREAMBLE, READS, find, preamble
from tilewright.runtime.build.compilers import Compiler, find_compiler, run_tool
from tilewright.runtime.build.toolchain import compile_library, disassemble
from tilewright.runtime.machine import host
from tilewright.runtime.store import cache, folders
from tilewright.targets import load


@pytest.fixture(autouse=True)
def fresh(empty_cache: Path) -> Path:
    """An empty cache for each test."""
    return empty_cache


HEADER = "immintrin.h" if host.machine() == "x86_64" else "arm_neon.h"
BEGIN = f"#include <stdint.h>\n#include <{HEADER}>\n"
TWICE = BEGIN + "\nint32_t twice(int32_t x);\nint32_t twice(int32_t x)\n{\n    return 2 * x;\n}\n"
COMPILERS = {"gcc": "gcc", "clang": "clang", "zig": f"{sys.executable} -m ziglang cc"}


def target() -> Target:
    return load("avx2" if host.machine() == "x86_64" else "neon")


@pytest.fixture(params=COMPILERS)
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    family = request.param
    if not (find_spec("ziglang") if family == "zig" else shutil.which(family)):
        pytest.skip(f"{family} is not installed")
    monkeypatch.setenv("CC", COMPILERS[family])
    return find_compiler(target(), emulated=False)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that run from now on."""
    ran: list[list[str]] = []
    run = run_tool

    def noted(command: list[str], directory: Path | None) -> object:
        ran.append(command)
        return run(command, directory)

    monkeypatch.setattr(toolchain, "run_tool", noted)
    return ran


def built(compiler: Compiler, folder: Path, stem: str, text: str = TWICE) -> Path:
    return compile_library(text, target(), compiler, folder, stem)


def doubles(library: Path) -> bool:
    return bool(ctypes.CDLL(str(library)).twice(21) == 42)


def kept() -> list[Path]:
    return [path.parent for path in folders.cache_directory().glob(f"headers/*/{MANIFEST}")]


def shortcuts(commands: list[list[str]]) -> int:
    """How many commands took a precompiled header."""
    return sum("-include" in command or "-include-pch" in command for command in commands)


# -- preambles ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("int x;\n#include <stdint.h>\n", ""),
        ("#define A\n", ""),
        ("/* a\n#include <b.h>\n */\n\n#include <c.h>\nint x;\n", "#include <c.h>\n"),
        ("#define A\n# include <b.h>\n#define B\nint x;", "#define A\n# include <b.h>\n"),
        ("#ifdef A\n#include <b.h>\n#endif\nint x;", "#ifdef A\n#include <b.h>\n#endif\n"),
        ("#include <a.h>\n#ifdef A\n#include <b.h>\nint x;\n#endif\n", "#include <a.h>\n"),
        ("#include <a.h>\n#define A \\\n    b\n#include <c.h>\n", "#include <a.h>\n"),
    ],
)
def test_a_preamble_is_whole_directives_up_to_an_include(text: str, expected: str) -> None:
    assert preamble(text) == expected


# -- with compilers -----------------------------------------------------------------------------


def test_the_second_compile_makes_it_and_the_code_is_the_same(
    compiler: Compiler, tmp_path: Path, commands: list[list[str]]
) -> None:
    plain = built(compiler, tmp_path, "first")
    assert not kept() and not shortcuts(commands)
    built(compiler, tmp_path, "second")
    assert len(kept()) == 1 and shortcuts(commands) == 1
    commands.clear()
    library = built(compiler, tmp_path, "third")
    assert len(commands) == 2 and shortcuts(commands) == 1
    assert doubles(library)
    texts = [disassemble(path, compiler).partition("\n\n")[2] for path in (plain, library)]
    assert texts[0] == texts[1]
    left = sorted(path.suffix for path in tmp_path.iterdir() if path.is_file())
    assert left == [".c"] * 3 + [".so"] * 3


def test_other_options_have_their_own(compiler: Compiler, tmp_path: Path) -> None:
    for stem in ("first", "second"):
        built(compiler, tmp_path, stem)
    for stem in ("third", "fourth"):
        compile_library(TWICE, target(), compiler, tmp_path, stem, ["-DSOMETHING"])
        assert len(kept()) == 1 + (stem == "fourth")


def test_an_altered_one_is_made_anew(
    compiler: Compiler, tmp_path: Path, commands: list[list[str]]
) -> None:
    for stem in ("first", "second"):
        built(compiler, tmp_path, stem)
    (folder,) = kept()
    whole = (folder / OUTPUT).read_bytes()
    (folder / OUTPUT).write_bytes(whole[: len(whole) // 2])
    commands.clear()
    assert doubles(built(compiler, tmp_path, "third"))
    assert any("c-header" in command for command in commands) and shortcuts(commands) == 1
    assert kept() == [folder] and len((folder / OUTPUT).read_bytes()) >= len(whole) // 2


def test_one_that_the_compiler_refuses_costs_a_compile_and_goes(
    compiler: Compiler, tmp_path: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for stem in ("first", "second"):
        built(compiler, tmp_path, stem)
    for _ in range(precompiled.TRIES):
        (folder,) = kept()
        (folder / OUTPUT).write_bytes(b"gpch of another compiler")
        manifest = json.loads((folder / MANIFEST).read_text())
        manifest["sha256"] = precompiled._digest(folder / OUTPUT)
        (folder / MANIFEST).write_text(json.dumps(manifest))
        commands.clear()
        assert doubles(built(compiler, tmp_path, "third"))
        assert len(commands) == 3 and shortcuts(commands) == 1 and not kept()
        commands.clear()
        built(compiler, tmp_path, "fourth")
    assert not kept() and shortcuts(commands) == 0 and len(commands) == 2


def test_wrong_c_is_reported_as_without(compiler: Compiler, tmp_path: Path) -> None:
    for stem in ("first", "second"):
        built(compiler, tmp_path, stem)
    with pytest.raises(ToolchainError, match="nowhere") as caught:
        built(compiler, tmp_path, "wrong", TWICE.replace("2 * x", "nowhere"))
    assert "wrong.c:7" in str(caught.value) and "headers" not in str(caught.value)
    assert len(kept()) == 1


def test_text_without_the_intrinsics_has_none(compiler: Compiler, tmp_path: Path) -> None:
    text = TWICE.replace(f"#include <{HEADER}>\n", "")
    for stem in ("first", "second", "third"):
        assert doubles(built(compiler, tmp_path, stem, text))
    assert not (folders.cache_directory() / "headers").exists()


# -- the folder ---------------------------------------------------------------------------------


class Made:
    """A maker that writes two files and counts its calls."""

    def __init__(self, header: Path) -> None:
        self.header = header
        self.calls = 0
        header.write_text("int x;\n")

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        assert (folder / PREAMBLE).read_text() == BEGIN
        (folder / OUTPUT).write_bytes(b"state of the compiler")
        (folder / READS).write_text(f"out.gch: {PREAMBLE} \\\n {self.header}\n")

    def find(self, *made_by: str) -> Path | None:
        return find(BEGIN, made_by, self)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "header.h")


def ready(made: Made) -> Path:
    assert made.find() is None and made.calls == 0
    folder = made.find()
    assert folder is not None and made.calls == 1 and made.find() == folder
    assert made.calls == 1
    return folder


def test_a_changed_header_makes_it_anew(made: Made) -> None:
    folder = ready(made)
    made.header.write_text("int x, y;\n")
    assert made.find() == folder and made.calls == 2
    made.header.unlink()
    assert made.find() is None


@pytest.mark.parametrize("name", [MANIFEST, OUTPUT, PREAMBLE])
def test_what_others_can_write_is_not_used(made: Made, name: str) -> None:
    folder = ready(made)
    (folder / name).chmod(0o666)
    assert made.find() == folder and made.calls == 2
    assert (folder / name).stat().st_mode & 0o022 == 0


def test_directories_that_others_can_write_are_not_used(made: Made, fresh: Path) -> None:
    ready(made)
    for folder in (fresh, fresh / "headers"):
        folder.chmod(0o777)
        assert made.find() is None and made.calls == 1
        folder.chmod(0o700)
    assert made.find() is not None and made.calls == 1


@pytest.mark.parametrize("text", ["", "[]", "{", '{"sha256": 1, "reads": 2}', "null"])
def test_a_manifest_that_says_nothing(made: Made, text: str) -> None:
    folder = ready(made)
    (folder / MANIFEST).write_text(text)
    assert made.find() == folder and made.calls == 2


def test_a_file_in_place_of_the_folder(made: Made, fresh: Path) -> None:
    (fresh / "headers").write_text("")
    assert made.find() is None and made.find() is None and made.calls == 0


def test_while_another_process_makes_it_one_goes_without(made: Made, fresh: Path) -> None:
    made.find()
    (seen,) = fresh.glob("headers/*.seen")
    with filelock.FileLock(seen.with_suffix(".lock")):
        assert made.find() is None and made.calls == 0
    assert made.find() is not None


def test_one_that_cannot_be_made_is_given_up(tmp_path: Path, fresh: Path) -> None:
    calls: list[Path] = []

    def fails(folder: Path) -> None:
        calls.append(folder)
        raise ToolchainError("no room")

    assert [find(BEGIN, (), fails) for _ in range(5)] == [None] * 5
    assert len(calls) == precompiled.TRIES and not calls[0].exists()


def test_the_oldest_go(made: Made, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precompiled, "KEPT", 2)
    folders = []
    for name in "abc":
        made.find(name)
        folders.append(made.find(name))
    assert [folder is not None and folder.exists() for folder in folders] == [False, True, True]


def test_clearing_the_cache_removes_them(made: Made, fresh: Path) -> None:
    ready(made)
    assert cache.clear() == 0
    assert not (fresh / "headers").exists()
