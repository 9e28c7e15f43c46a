"""What is said on a terminal or in a notebook while a compiler works: one line, then nothing.

It goes to standard error after a second, and is wiped out at the end. Nothing is said where nobody
looks, where another line of progress is shown, or with ``TILEWRIGHT_QUIET``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from tilewright.settings import settings

#: Seconds after which something is said.
PATIENCE = 1.0
#: Held by the thread whose line is shown; no other one writes then.
_line = threading.Lock()
#: How many displays of progress there are that a line would disturb.
_others = 0


@contextmanager
def silence() -> Iterator[None]:
    """Within it nothing is said, in any thread: something else shows how far it is."""
    global _others
    _others += 1
    try:
        yield
    finally:
        _others -= 1


@contextmanager
def patience(what: str) -> Iterator[None]:
    """Say ``what`` takes its time, if it takes more than a second and somebody looks."""
    stream = sys.stderr
    if _others or not _is_watched(stream) or settings().quiet:
        yield
        return
    shown = _Line(f"tilewright: {what} ...", stream)
    timer = threading.Timer(PATIENCE, shown.show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        shown.clear()


class _Line:
    """A line of ``text`` on a stream, shown by one thread and wiped out by another."""

    def __init__(self, text: str, stream: TextIO) -> None:
        self._text, self._stream = text, stream
        self._lock, self._shown, self._over = threading.Lock(), False, False

    def show(self) -> None:
        """Write the line, unless another one is shown or it is over."""
        with self._lock:
            if not self._over and _line.acquire(blocking=False):
                self._shown = True
                self._write(self._text)

    def clear(self) -> None:
        """Wipe out the line if it was written; it is not written afterwards."""
        with self._lock:
            self._over = True
            if self._shown:
                self._write(f"\r{' ' * len(self._text)}\r")
                _line.release()

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # closed meanwhile
            pass


def _is_watched(stream: Any) -> bool:
    """Return True if a person sees what is written now: on a terminal or in a notebook."""
    try:
        if stream is None or stream.isatty():
            return stream is not None
    except (AttributeError, ValueError):
        return False
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")
