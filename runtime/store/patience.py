"""Tell a waiting user what is being compiled, in one line that disappears at the end.

The line is on standard error, after one second. It is not shown if standard error is neither a
terminal nor a notebook, if another display of progress is shown, or if ``TILEWRIGHT_QUIET`` is set.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from tilewright.settings import settings

#: Time in seconds after which the line about compiling is shown.
PATIENCE = 1.0
#: Lock of the thread whose line is shown; other threads then show no line.
_line = threading.Lock()
#: Number of other displays of progress that a line would disturb.
_others = 0


@contextmanager
def silence() -> Iterator[None]:
    """Show no lines in the ``with`` block: another display shows the progress.

    This holds for all threads.
    """
    global _others
    _others += 1
    try:
        yield
    finally:
        _others -= 1


@contextmanager
def patience(what: str) -> Iterator[None]:
    """Show ``what`` while the ``with`` block runs, if it takes more than a second."""
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
    """A line of ``text`` on a stream. One thread shows it, and another clears it."""

    def __init__(self, text: str, stream: TextIO) -> None:
        self._text, self._stream = text, stream
        self._lock, self._shown, self._over = threading.Lock(), False, False

    def show(self) -> None:
        """Write the line, unless another line is shown, or this one was cleared already."""
        with self._lock:
            if not self._over and _line.acquire(blocking=False):
                self._shown = True
                self._write(self._text)

    def clear(self) -> None:
        """Erase the line if it was written. It cannot be shown afterwards."""
        with self._lock:
            self._over = True
            if self._shown:
                self._write(f"\r{' ' * len(self._text)}\r")
                _line.release()

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # The stream has been closed, so the line is not shown.
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
