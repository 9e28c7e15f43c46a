"""The process in which variants are built, checked and timed.

It is started as ``python -m tilewright.tuning.worker``. A variant may crash it or never return:
``child.py`` sees that, and starts another one.
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
    """What the process does with variants, each known by its schedule."""

    def build(self, schedules: list[Schedule]) -> dict[Schedule, str | None]:
        """What is wrong with each after all were compiled together; None if nothing is."""

    def check(self, schedule: Schedule) -> int:
        """The operations of a call; VerificationError if a variant computes something wrong."""

    def hot(self, schedule: Schedule) -> tuple[float, float]:
        """Seconds of a call on data in cache, and those it would take at the peak measured next."""

    def cold(self, schedule: Schedule) -> float:
        """Seconds of a call on data in memory."""


def serve(connection: Connection, made: Callable[[Any, str], Workbench]) -> None:
    """Answer each ``(what, argument, limit)`` with ``(ok, value)`` until the other side is gone.

    A task that takes longer than ``limit`` seconds ends the process, should nobody else do so.
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
    """Serve on the file descriptor that the command line names."""
    with silence():  # whoever started it says how far it is
        serve(Connection(int(sys.argv[1])), made)


if __name__ == "__main__":
    from .workbench import Bench

    main(Bench)
