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
from tilewright.runtime.bench.peak import Meter
from tilewright.runtime.bench.timing import Filler, Timed, copies, flops
from tilewright.runtime.driver import compile, compile_many
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.reference.arguments import Sample
from tilewright.runtime.reference.verify import Case, cases_of
from tilewright.runtime.tuned import REFUSED, WRONG
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import Schedule

#: Random cases that each variant must compute right.
CASES = 2
#: Copies of the arrays that a cold call takes in turn, and the bytes of all.
_COPIES, _COPIED = 16, 128 << 20


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


class Bench:
    """The workbench: kernels of one spec and target, on arrays that they share."""

    def __init__(self, spec: Gemm, target: str) -> None:
        self._spec, self._target = spec, target
        self._kernels: dict[Schedule, Kernel] = {}
        self._timed: dict[Schedule, Timed] = {}
        self._cases: list[Case] = []
        self._samples: list[Sample] = []
        self._filler: Filler | None = None
        self._meter: Meter | None = None

    def build(self, schedules: list[Schedule]) -> dict[Schedule, str | None]:
        """Compile all into one library; where that fails, one by one to find which it is."""
        try:
            made = compile_many([(self._spec, schedule, self._target) for schedule in schedules])
            self._kernels.update(zip(schedules, made, strict=True))
        except TilewrightError:
            return {schedule: self._alone(schedule) for schedule in schedules}
        return dict.fromkeys(schedules)

    def _alone(self, schedule: Schedule) -> str | None:
        try:
            self._kernel(schedule)
        except TilewrightError as error:
            return str(error)
        return None

    def _kernel(self, schedule: Schedule) -> Kernel:
        if schedule not in self._kernels:
            self._kernels[schedule] = compile(self._spec, schedule, self._target)
        return self._kernels[schedule]

    def check(self, schedule: Schedule) -> int:
        """Compare with what is right, which is computed once for all variants."""
        kernel = self._kernel(schedule)
        if not self._cases:
            self._cases = list(cases_of(kernel, CASES, seed=0))
        for case in self._cases:
            case.run(kernel)
        return flops(kernel, self._arguments(kernel)[0])

    def hot(self, schedule: Schedule) -> tuple[float, float]:
        """Time calls on one copy of the arrays."""
        timed = self._ready(schedule)
        if self._meter is None:
            kernel = self._kernel(schedule)
            self._meter = Meter(kernel.isa, (self._spec.a.type, self._spec.b.type))
        taken = timed.hot()
        work = flops(self._kernel(schedule), self._samples[0])
        return taken, self._meter.seconds() * work / self._meter.loop.flops

    def cold(self, schedule: Schedule) -> float:
        """Time one call on each copy of the arrays, after the caches were filled."""
        timed = self._ready(schedule)
        if self._filler is None:
            self._filler = Filler()
        self._filler.fill()
        return timed.cold()

    def _ready(self, schedule: Schedule) -> Timed:
        if schedule not in self._timed:
            kernel = self._kernel(schedule)
            self._timed[schedule] = Timed(kernel, self._arguments(kernel))
        return self._timed[schedule]

    def _arguments(self, kernel: Kernel) -> list[Sample]:
        """Arrays for all variants, in several copies."""
        if not self._samples:
            self._samples = copies(kernel, _COPIED, _COPIES)
        return self._samples


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


def main(made: Callable[[Any, str], Workbench] = Bench) -> None:
    """Serve on the file descriptor that the command line names."""
    serve(Connection(int(sys.argv[1])), made)


if __name__ == "__main__":
    main()
