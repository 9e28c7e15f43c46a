"""Measure the cost of a parallel region, and from it how much work makes one more thread pay."""

from __future__ import annotations

from math import log2

from tilewright.isa.machine import Core
from tilewright.isa.target import Target
from tilewright.runtime.driver import compile_many
from tilewright.runtime.machine.host import usable_cpus
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import Schedule

from .ends import Call
from .rounds import Timed, in_cycles

#: Spec of the product that is timed on one thread and on two. It takes much longer than waking a
#: thread.
_SPEC = Gemm(384, 384, 256)
_ALONE, _TOGETHER = Schedule(loops="mnk"), Schedule(loops="Mnk", threads=2)


def worth(target: Target, core: Core, clock: Timed, ticks: int, seconds: float) -> int:
    """Return the least number of multiply-adds for which one more thread pays.

    With a single CPU nothing is measured, and the result is ``core.worth``.

    Two threads take half the time of one thread, plus the cost of the parallel region. They pay
    when the saved half is longer than that cost.
    """
    if usable_cpus() < 2:
        return core.worth
    asked = [(_SPEC, schedule, target.name) for schedule in (_ALONE, _TOGETHER)]
    alone, together = compile_many(asked)
    calls: dict[str, Timed] = {"alone": Call(alone), "together": Call(together)}
    found = in_cycles(calls, clock, ticks, seconds).cycles
    region = found["together"] - found["alone"] / 2
    if region <= 0:
        return core.worth
    return nearest_power(region * core.fma_units)


def nearest_power(number: float) -> int:
    """Return the power of two nearest to ``number``, which is only a rough measurement."""
    return 1 << max(0, round(log2(max(1.0, number))))
