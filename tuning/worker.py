"""The process in which variants are compiled, checked and timed.

It is started as ``python -m tilewright.tuning.worker``. If a variant crashes it or never returns,
``child.py`` starts a new one.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Protocol

from tilewright.errors import TilewrightError, VerificationError
from tilewright.runtime.store.patience import silence
from tilewright.runtime.tuned import REFUSED, WRONG
from tilewright.spec.schedule import Schedule


class Workbench(Protocol):
    """The tasks of this process. Each variant of the spec is identified by its schedule."""

    def build(self, schedules: list[Schedule]) -> dict[Schedule, str | None]:
        """Compile a kernel for each schedule; return its error message, None if it compiled."""

    def check(self, schedule: Schedule) -> int:
        """Return the number of floating-point operations in a call.

        Raise VerificationError if a result is wrong.
        """

    def hot(self, schedule: Schedule) -> tuple[float, float]:
        """Return the seconds of a call on data in cache.

        The second number is the seconds that the call would take at the core's peak.
        """

    def cold(self, schedule: Schedule) -> float:
        """Return the seconds of a call on data in memory."""


def serve(connection: Connection, made: Callable[[Any, str], Workbench]) -> None:
    """Answer each task ``(what, argument, limit)`` until the connection is closed.

    ``what`` is "open" or a method of ``Workbench``. The answer is ``(True, result)``. If the
    task failed, it is ``(False, (status, message))``. A task that takes longer than ``limit``
    seconds ends the process.
    """
    bench: Workbench | None = None
    while True:
        try:
            what, argument, limit = connection.recv()
        except EOFError:
            return
        signal.alarm(int(limit) + 2)
        try:
            if what == "open":
                bench, value = made(*argument), None
            else:
                value = getattr(bench, what)(argument)
            answer: tuple[bool, Any] = True, value
        except VerificationError as error:
            answer = False, (WRONG, str(error))
        except (TilewrightError, MemoryError) as error:
            answer = False, (REFUSED, str(error) or type(error).__name__)
        signal.alarm(0)
        connection.send(answer)


def main(made: Callable[[Any, str], Workbench]) -> None:
    """Answer tasks from the socket whose file descriptor is the argument of the command line."""
    with silence():  # the parent process shows the progress
        serve(Connection(int(sys.argv[1])), made)


if __name__ == "__main__":
    from .workbench import Bench

    main(Bench)
