"""Explain the estimated time of a kernel as text, next to the measured time if there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.plan.estimate.caches import PAGE
from tilewright.plan.estimate.kernel import Estimate
from tilewright.plan.loops import Decided
from tilewright.plan.routine import routine_of


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured speed of a call on data in cache.

    ``of_peak`` is a product's share of the peak. A routine that multiplies no matrices has
    ``gb_per_s`` instead. A network that is cut into stages has the seconds of each of its programs.
    """

    seconds: float
    of_peak: float | None = None
    gb_per_s: float | None = None
    stages: tuple[float, ...] = ()


def told(
    plan: Decided, sizes: Mapping[str, int], measured: Measured | None
) -> Iterator[tuple[str, ...]]:
    """Yield rows (title, text): the estimates for data in cache and in memory, the measurement.

    The cost model has no estimate of some routines.
    """
    hot, cold = (estimated(plan, sizes, cold=cold) for cold in (False, True))
    if hot is not None and cold is not None:
        yield "in cache", summary(hot)
        yield "", f"cycles of computing: {_cycles(hot.work)}"
        yield "", f"transfers at the same time: {_arriving(hot)}"
        yield "in memory", summary(cold)
        yield "", f"transfers at the same time: {_arriving(cold)}"
    if measured is not None and not measured.stages:
        yield "measured", _speed(measured, hot)


def _speed(measured: Measured, hot: Estimate | None) -> str:
    if measured.of_peak is None or hot is None:
        moved = "" if measured.gb_per_s is None else f", {measured.gb_per_s:.3g} GB/s"
        return f"{time_text(measured.seconds)} in cache{moved}"
    cycles = hot.least / measured.of_peak
    return (
        f"{count_text(cycles)} cycles in cache, {measured.of_peak:.0%} of peak, "
        f"{time_text(measured.seconds)}; the estimate is {_differs(hot.cycles / cycles)}"
    )


def estimated(plan: Decided, sizes: Mapping[str, int], *, cold: bool) -> Estimate | None:
    """Return the cost model's estimate of a call, for data in memory if ``cold``, else in cache.

    It is None for kinds of routines that have no estimate, and if nothing is summed.
    """
    return routine_of(plan).estimate(plan, sizes, cold=cold)


def summary(found: Estimate) -> str:
    """Return an estimate as one line of text: cycles, share of the peak, and what bounds them."""
    share = found.least / found.cycles if found.cycles else 0.0
    return f"{count_text(found.cycles)} cycles, {share:.0%} of peak, bound by {found.bound}"


def _cycles(each: Mapping[str, float]) -> str:
    parts = [f"{name} {count_text(cycles)}" for name, cycles in each.items() if cycles >= 0.5]
    return ", ".join(parts) or "none"


def _arriving(found: Estimate) -> str:
    parts = [
        f"{bytes_text(each.bytes)} from {name} in {count_text(each.cycles)} cycles"
        for name, each in found.arrivals.items()
        if each.bytes >= 1
    ]
    if found.pages.cycles >= 1:
        parts.append(
            f"{count_text(found.pages.bytes / PAGE)} pages looked up in "
            f"{count_text(found.pages.cycles)} cycles"
        )
    return ", ".join(parts) or "none, all data are in L1"


def _differs(ratio: float) -> str:
    """Return how far an estimate is from the measurement, for example ``3 % too high``."""
    percent = round(100 * (ratio - 1))
    return f"{abs(percent)} % too {'high' if percent > 0 else 'low'}" if percent else "equal to it"


def time_text(seconds: float) -> str:
    """Return a duration in ns, us or ms, for example ``12.5 us``."""
    if seconds < 1e-7:
        return f"{seconds * 1e9:.4g} ns"
    return f"{seconds * 1e6:.4g} us" if seconds < 1e-3 else f"{seconds * 1e3:.4g} ms"


def bytes_text(count: float) -> str:
    """Return a number of bytes in the largest unit that has 10 or more, for example ``48 KiB``."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= 10 * size:
            return f"{count / size:.0f} {unit}"
    return f"{count:.0f} bytes"


def count_text(cycles: float) -> str:
    """Return a number of cycles as text, without digits that an estimate does not have."""
    return f"{cycles:.0f}" if cycles >= 10 else f"{cycles:.2g}"
