"""Files kept beside kernels or templates: read only as written, and only from safe directories."""

from __future__ import annotations

import sys
from pathlib import Path

import jinja2
import pytest

import tilewright as tw
from tilewright.emit import render
from tilewright.runtime.call import dispatch_build
from tilewright.runtime.store import cache
from tilewright.runtime.store.compiled import CompiledTemplates
from tilewright.runtime.store.shelf import TEMPLATES, Shelf

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(TEMPLATES)


def test_what_is_written_is_read(shelf: Shelf) -> None:
    assert shelf.read("a") is None
    shelf.write("a", b"first")
    shelf.write("b", b"")
    assert shelf.read("a") == b"first" and shelf.read("b") == b""
    shelf.write("a", b"second")
    assert shelf.read("a") == b"second"
    assert shelf.path("a").stat().st_mode & 0o777 == 0o600
    assert len(list(shelf.path("a").parent.iterdir())) == 2
    assert cache.clear() == 0 and shelf.read("a") is None


def test_another_version_has_its_own(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.write("a", b"first")
    monkeypatch.setattr(cache, "sources_digest", lambda: "another")
    assert shelf.read("a") is None


@pytest.mark.parametrize("data", [b"", b"x", b"\0" * 32, b"\0" * 40])
def test_an_altered_file_is_not_taken(shelf: Shelf, data: bytes) -> None:
    shelf.write("a", b"first")
    shelf.path("a").write_bytes(data)
    assert shelf.read("a") is None
    shelf.write("a", b"first")
    assert shelf.read("a") == b"first"


def test_what_others_can_write_is_not_taken(shelf: Shelf, fresh: Path) -> None:
    shelf.write("a", b"first")
    for path in (shelf.path("a"), fresh / TEMPLATES, fresh):
        mode = path.stat().st_mode
        path.chmod(0o777)
        assert shelf.read("a") is None
        path.chmod(mode)
        assert shelf.read("a") == b"first"


def test_nothing_is_written_where_others_can_write(shelf: Shelf, fresh: Path) -> None:
    shelf.write("a", b"first")
    (fresh / TEMPLATES).chmod(0o777)
    shelf.write("b", b"second")
    (fresh / TEMPLATES).chmod(0o700)
    assert shelf.read("b") is None


def test_a_directory_that_takes_no_files(shelf: Shelf, fresh: Path) -> None:
    (fresh / TEMPLATES).write_text("a file")
    shelf.write("a", b"first")
    assert shelf.read("a") is None


# -- templates ----------------------------------------------------------------------------------


@pytest.fixture(params=["beside", "shelf"])
def anew(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Templates are compiled, or read, as in a new process. Returns the folder that keeps them.

    They are kept like Python's modules, or in the cache directory if Python keeps none.
    """
    monkeypatch.setattr(sys, "dont_write_bytecode", request.param == "shelf")
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "bytecode"))
    monkeypatch.setattr(render, "_environment", render._environment.__wrapped__)
    monkeypatch.setattr(render._compiled, "shelf", None)
    if request.param == "shelf":
        return Shelf(TEMPLATES).path("").parent
    return tmp_path / "bytecode"


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_templates_are_compiled_once(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tw.compile(tw.Gemm(2, 2, 2), target="scalar")
    dispatch = dispatch_build.source()
    assert len(files(anew)) > 5

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a template was compiled again")

    monkeypatch.setattr(jinja2.Environment, "compile", never)
    assert tw.compile(tw.Gemm(2, 2, 3), target="scalar").source
    render._compiled.shelf = None
    assert dispatch_build.source() == dispatch
    for path in files(anew):
        path.write_bytes(b"altered" * 20)
    with pytest.raises(AssertionError, match="compiled again"):
        tw.compile(tw.Gemm(2, 2, 4), target="scalar")


@pytest.mark.usefixtures("anew")
def test_the_text_is_the_same() -> None:
    texts = []
    for shelf in (None, CompiledTemplates(), CompiledTemplates()):
        render._compiled.shelf = shelf
        texts.append(render.render("emulation/x86.h.j2"))
    assert texts[0] == texts[1] == texts[2] != ""
