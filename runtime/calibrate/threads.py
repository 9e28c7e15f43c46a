"""Measure the cost of a parallel region, which decides how many threads a product gets."""

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

#: A product that fits in L2 and takes several times as long as starting a parallel region. All its
#: tiles are equal, and two threads get the same number of them.
_SPEC = Gemm(128, 128, 192)
_ALONE = Schedule(loops="mnk", tile=(4, 32))
_TOGETHER = Schedule(loops="Mnk", tile=(4, 32), threads=2)
#: Seconds without a call after which threads sleep; and the maximum number of calls in a round that
#: follow such a pause.
_PAUSE, _AWAKENED = 0.5e-3, 4
#: Minimum cost of a region in cycles. In this time, two cores can exchange a few cache lines.
LEAST = 1 << 11


def region(target: Target, core: Core, clock: Timed, ticks: int, seconds: float) -> int:
    """Return the cycles that a parallel region of two threads costs.

    If the process may use only one CPU, the result is ``core.region``. ``clock`` runs for ``ticks``
    cycles; it converts seconds to cycles. The measurement takes about ``seconds``.
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
    """Return the cost of a region from the cycles of a product on one thread and on two.

    If threads are awake, two threads take half the time of one, plus the cost. After a pause
    ("later") threads sleep. The cost is then the time that the caller loses if they wake too late.
    The larger of the two costs is rounded to a power of two.
    """
    awake = cycles["together"] - cycles["alone"] / 2
    asleep = cycles["together later"] - cycles["alone later"]
    return nearest_power(max(awake, asleep, LEAST))


class _Later:
    """A call after a pause, which is so long that the threads sleep."""

    def __init__(self, call: Timed) -> None:
        self._call = call

    def seconds(self, calls: int) -> float:
        """Return the shortest time of a few calls in seconds, each without the pause before it."""
        found = []
        for _ in range(min(calls, _AWAKENED)):
            sleep(_PAUSE)
            found.append(self._call.seconds(1))
        return min(found)


def nearest_power(number: float) -> int:
    """Return the power of two nearest to ``number``, which is only a rough measurement."""
    return 1 << max(0, round(log2(max(1.0, number))))
