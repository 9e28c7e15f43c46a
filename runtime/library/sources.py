"""Generate the C of one kernel for one target, with the facts that the library's other files
need.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from tilewright.generate import Request, generate
from tilewright.runtime.build.toolchain import flags_notes
from tilewright.runtime.machine.host import resolve
from tilewright.spec.gemm import Spec
from tilewright.spec.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Order:
    """A C file to be generated: the kernel, its C name, spec, schedule, target and caller."""

    kernel: str
    symbol: str
    spec: Spec
    schedule: Schedule
    target: str
    caller: str


@dataclass(frozen=True, slots=True)
class Made:
    """A generated C file: its text, and facts about its kernel.

    ``seconds`` is the time that generating it took. ``Defined`` describes the other fields.
    """

    text: str
    scratch: bool
    configures: bool
    stack: int
    formula: str
    resolved: str
    seconds: float


def make(order: Order) -> Made:
    """Generate one C file; PlanError, ScheduleError or TargetError if the kernel is impossible."""
    begun = time.perf_counter()
    target = resolve(order.target)
    request = Request(order.symbol, order.spec, order.schedule, target)
    notes = (*flags_notes(target), f"Called by: {order.caller}")
    source = generate([request], notes, asks_at_load=False)
    (kernel,) = source.kernels
    return Made(
        text=source.text,
        scratch=kernel.scratch,
        configures=kernel.configures,
        stack=kernel.stack,
        formula=kernel.formula,
        resolved=repr(kernel.schedule),
        seconds=time.perf_counter() - begun,
    )
