"""The line that a terminal shows while a compiler works."""

from __future__ import annotations

import io
import sys
import threading
from types import SimpleNamespace

import pytest

from tilewright.runtime.store import patience as module
from tilewright.runtime.store.patience import patience, silence


class Terminal(io.StringIO):
    """A stream that says it is a terminal, and when something was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    found = Terminal()
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=found, modules=sys.modules))
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    monkeypatch.delenv("TILEWRIGHT_QUIET", raising=False)
    return found


def test_one_line_is_shown_and_wiped_out(terminal: Terminal) -> None:
    with patience("compiling"):
        assert terminal.written.wait(60)
    line, wiped = "tilewright: compiling ...", terminal.getvalue()
    assert wiped == f"{line}\r{' ' * len(line)}\r"


def test_what_is_quick_says_nothing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 3600.0)
    with patience("compiling"):
        pass
    assert terminal.getvalue() == "" and not module._line.locked()


@pytest.mark.parametrize("why", ["piped", "quiet", "silence"])
def test_nobody_is_told_who_does_not_look(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(threading, "Timer", None)  # none is started
    if why == "piped":
        monkeypatch.setattr(terminal, "isatty", lambda: False)
    if why == "quiet":
        monkeypatch.setenv("TILEWRIGHT_QUIET", "1")
    if why == "silence":
        with silence(), patience("compiling"):
            pass
        return
    with patience("compiling"):
        pass


def test_a_notebook_is_told(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with patience("compiling"):
        assert terminal.written.wait(60)
    assert "tilewright: compiling" in terminal.getvalue()


def test_two_threads_show_one_line(terminal: Terminal) -> None:
    with patience("the first"):
        assert terminal.written.wait(60)
        terminal.written.clear()
        with patience("the second"):
            later = threading.Timer(0, lambda: None)
            later.start()
            later.join()
    assert "the first" in terminal.getvalue() and "the second" not in terminal.getvalue()


def test_an_error_wipes_the_line_out(terminal: Terminal) -> None:
    def fail() -> None:
        with patience("compiling"):
            assert terminal.written.wait(60)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert terminal.getvalue().endswith("\r") and not module._line.locked()
