"""Measure the price of a parallel region, from which the number of threads follows."""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from time import sleep

from tilewright.isa.machine import Core
from tilewright.isa.target import Target
from tilewright.runtime.driver import compile_many
from tilewright.runtime.machine.host import usable_cpus
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import Schedule

from .ends import Call
from .rounds import Timed, in_cycles

#: A product in L2 that takes several prices of a region. Its tiles are equal, and both threads get
#: as many of them.
_SPEC = Gemm(128, 128, 192)
_ALONE = Schedule(loops="mnk", tile=(4, 32))
_TOGETHER = Schedule(loops="Mnk", tile=(4, 32), threads=2)
#: Seconds without a call, after which threads sleep; and calls after such a pause in a round.
_PAUSE, _AWAKENED = 0.5e-3, 4
#: The least price in cycles. Two cores exchange a few lines in this time.
LEAST = 1 << 11


def region(target: Target, core: Core, clock: Timed, ticks: int, seconds: float) -> int:
    """Return the cycles that a parallel region of two threads costs; ``core``'s with one CPU.

    ``clock`` takes ``ticks`` cycles.
    """
    if usable_cpus() < 2:
        return core.region
    asked = [(_SPEC, schedule, target.name) for schedule in (_ALONE, _TOGETHER)]
    alone, together = map(Call, compile_many(asked))
    calls: dict[str, Timed] = {
        "alone": alone,
        "together": together,
        "alone later": _Later(alone),
        "together later": _Later(together),
    }
    return price(in_cycles(calls, clock, ticks, seconds).cycles)


def price(cycles: Mapping[str, float]) -> int:
    """Return the price of a region from the cycles of a product on one thread and on two.

    With threads that are awake, two take half the time of one, plus the price. After a pause
    ("later") the threads sleep: then the price is what the caller loses if they come too late. The
    larger of the two is rounded to a power of two.
    """
    awake = cycles["together"] - cycles["alone"] / 2
    asleep = cycles["together later"] - cycles["alone later"]
    return nearest_power(max(awake, asleep, LEAST))


class _Later:
    """A call after a pause that is so long that threads sleep."""

    def __init__(self, call: Timed) -> None:
        self._call = call

    def seconds(self, calls: int) -> float:
        """Return the seconds of a call without its pause; the fewest of some."""
        found = []
        for _ in range(min(calls, _AWAKENED)):
            sleep(_PAUSE)
            found.append(self._call.seconds(1))
        return min(found)


def nearest_power(number: float) -> int:
    """Return the power of two nearest to ``number``, which is only a rough measurement."""
    return 1 << max(0, round(log2(max(1.0, number))))
