"""A worker of tunings that measures nothing: schedules say by their tiles what becomes of them.

Started as a script. Tiles of 7 rows crash it, of 9 hang, of 11 compute something wrong, of 13 are
refused by the compiler; the fewer rows beyond that, the faster; the default takes as long as 8.
"""

from __future__ import annotations

import os
import signal
import time

from tilewright.errors import VerificationError
from tilewright.spec.schedule import Schedule
from tilewright.tuning import worker

CRASHES, HANGS, WRONG, REFUSED = 7, 9, 11, 13
FLOPS = 1000


def seconds(schedule: Schedule) -> float:
    """What a call is said to take."""
    return 1e-6 * (8 if schedule.tile is None else schedule.tile[0])


class Fake:
    """The workbench."""

    def __init__(self, spec: object, target: str) -> None:
        self.asked = (spec, target)

    def build(self, schedules: list[Schedule]) -> dict[Schedule, str | None]:
        return {s: "no" if s.tile and s.tile[0] == REFUSED else None for s in schedules}

    def check(self, schedule: Schedule) -> int:
        if schedule.tile and schedule.tile[0] == WRONG:
            raise VerificationError("it is wrong")
        return FLOPS

    def hot(self, schedule: Schedule) -> tuple[float, float]:
        if schedule.tile and schedule.tile[0] == CRASHES:
            os.kill(os.getpid(), signal.SIGSEGV)
        if schedule.tile and schedule.tile[0] == HANGS:
            time.sleep(600)
        return seconds(schedule), 1e-7

    def cold(self, schedule: Schedule) -> float:
        return 10 * seconds(schedule)


if __name__ == "__main__":
    worker.main(Fake)
