"""Drive a worker process that compiles and times variants; it is restarted if it crashes or
hangs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from tilewright.errors import TuningError
from tilewright.runtime.tuned import CRASHED, HUNG, REFUSED
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Spec

_WORKER = (sys.executable, "-m", "tilewright.tuning.worker")


#: Two factors that extend time limits; see ``Limits``.
FIRST, LATER = 10, 20


class Failure(NamedTuple):
    """The reason why a variant could not be measured.

    ``status`` is one of the constants of ``runtime/tuned.py``. ``said`` is the error message.
    """

    status: str
    said: str


class Limits(NamedTuple):
    """Seconds that the child process may take to start, to compile, to check, and to time.

    The first task of each kind may take ``FIRST`` times the limit. A later task may take the limit,
    or ``LATER`` times as long as the first task of its kind took, whichever is more.
    """

    start: float = 60.0
    build: float = 300.0
    check: float = 60.0
    time: float = 30.0


class Child:
    """A process that compiles and times variants of ``spec``; leaving the ``with`` block stops it.

    ``flops`` is the number of floating-point operations in a call. It is 0 until a variant was
    checked.
    """

    def __init__(
        self,
        spec: Spec,
        target: str,
        limits: Limits | None = None,
        command: Sequence[str] = _WORKER,
    ) -> None:
        self.limits, self.flops = limits or Limits(), 0
        self._subject, self._command = (spec, target), tuple(command)
        self._took: dict[str, float] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def build(self, schedules: Iterable[Schedule]) -> dict[Schedule, Failure | None]:
        """Compile variants into one library. Return each one's failure, None if it compiled."""
        wanted = list(schedules)
        answer = self._ask("build", wanted, self.limits.build)
        if isinstance(answer, Failure):  # the process died or hung: compile each variant separately
            if len(wanted) == 1:
                return {wanted[0]: answer}
            return {one: self.build([one])[one] for one in wanted}
        return {s: None if said is None else Failure(REFUSED, said) for s, said in answer.items()}

    def check(self, schedule: Schedule) -> Failure | None:
        """Compare a variant's results with the right ones; return a failure, None if it passed."""
        answer = self._ask("check", schedule, self.limits.check)
        if isinstance(answer, Failure):
            return answer
        self.flops = int(answer)
        return None

    def hot(self, schedule: Schedule) -> tuple[float, float] | Failure:
        """Return the seconds of a call on data in cache.

        The second number is the seconds that the call would take at the core's peak.
        """
        answer: tuple[float, float] | Failure = self._ask("hot", schedule, self.limits.time)
        return answer

    def cold(self, schedule: Schedule) -> float | Failure:
        """Return the seconds of a call on data in memory."""
        answer: float | Failure = self._ask("cold", schedule, self.limits.time)
        return answer

    # --- the process ---------------------------------------------------------------------------

    def _ask(self, what: str, argument: Any, limit: float) -> Any:
        """Let the process run a task, and return the result or a Failure.

        The process is started if it does not run.
        """
        if self._process is None:
            self._start()
        first = what not in self._took
        limit = FIRST * limit if first else max(limit, LATER * self._took[what])
        begun = time.monotonic()
        answer = self._answer(what, argument, limit)
        if first and not isinstance(answer, Failure):
            self._took[what] = time.monotonic() - begun
        return answer

    def _answer(self, what: str, argument: Any, limit: float) -> Any:
        assert self._connection is not None
        try:
            self._connection.send((what, argument, limit))
            if not self._connection.poll(limit):
                self._end()
                return Failure(HUNG, f"{what}: no answer within {limit:g} s")
            right, value = self._connection.recv()
        except (EOFError, OSError):
            return Failure(CRASHED, f"{what}: the process ended by {self._end()}")
        return value if right else Failure(*value)

    def _start(self) -> None:
        mine, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [*self._command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C must reach only the parent, which ends the child
            )
        self._connection = mine
        found = self._answer("open", self._subject, self.limits.start)
        if isinstance(found, Failure):
            self._end()
            raise TuningError(
                "the process that measures variants does not start",
                got=f"{found.status}: {found.said}",
                hint=" ".join(self._command),
            )

    def _end(self) -> str:
        """Stop the process if it still runs.

        Return what ended it: a signal's name, its exit status, or "our hand" if it still ran.
        """
        if self._process is None:
            return "nothing"
        status = self._process.poll()
        if status is None and self._connection is not None:
            try:  # it may have closed its connection and not yet exited
                status = self._process.wait(0.2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None
        if status is None:
            return "our hand"
        return signal.Signals(-status).name if status < 0 else f"status {status}"
