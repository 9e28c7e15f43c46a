"""Explain the estimated time of a kernel as text, next to the measured time if there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from tilewright.plan.estimate.caches import PAGE
from tilewright.plan.estimate.kernel import Estimate
from tilewright.plan.loops import Decided
from tilewright.plan.routine import routine_of
from tilewright.spec.signature import signature
from tilewright.spec.sizes import Dim
from tilewright.symbolic import evaluate


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured speed of a call on data in cache: its seconds, and the share of the peak."""

    seconds: float
    of_peak: float


def told(
    plan: Decided, sizes: Mapping[str, int], measured: Measured | None
) -> Iterator[tuple[str, ...]]:
    """Yield rows (title, text): the estimates for data in cache and in memory, the measurement.

    Nothing is yielded if the cost model has no estimate.
    """
    yield from _parts(plan, sizes)
    hot, cold = (estimated(plan, sizes, cold=cold) for cold in (False, True))
    if hot is None or cold is None:
        return
    yield "in cache", summary(hot)
    yield "", f"cycles of computing: {_cycles(hot.work)}"
    yield "", f"transfers at the same time: {_arriving(hot)}"
    yield "in memory", summary(cold)
    yield "", f"transfers at the same time: {_arriving(cold)}"
    if measured is not None:
        cycles = hot.least / measured.of_peak
        yield (
            "measured",
            f"{_count(cycles)} cycles in cache, {measured.of_peak:.0%} of peak, "
            f"{_time(measured.seconds)}; the estimate is {_differs(hot.cycles / cycles)}",
        )


def _parts(plan: Decided, sizes: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each stage: its estimate for data in cache, and the bytes of its arrays."""
    for name, part, own in routine_of(plan).parts(plan):
        known = {**sizes, **{slot: evaluate(expr, sizes) for slot, expr in own.items()}}
        found = estimated(part, known, cold=False)
        told = "no estimate" if found is None else summary(found)
        dims = {dim.name: known[slot] for slot, dim in part.spec.runtime_sizes() if slot in known}
        nbytes = {"in": 0, "out": 0}
        for array in signature(part.spec).arrays:
            shape = [dims[each.name] if isinstance(each, Dim) else each for each in array.shape]
            nbytes["out" if array.role == "out" else "in"] += prod(shape) * array.itemsize
        yield name, f"{told}; arrays of {_bytes(nbytes['in'])} in, {_bytes(nbytes['out'])} out"


def estimated(plan: Decided, sizes: Mapping[str, int], *, cold: bool) -> Estimate | None:
    """Return the cost model's estimate of a call, for data in memory if ``cold``, else in cache.

    It is None for kinds of routines that have no estimate, and if nothing is summed.
    """
    return routine_of(plan).estimate(plan, sizes, cold=cold)


def summary(found: Estimate) -> str:
    """Return an estimate as one line of text: cycles, share of the peak, and what bounds them."""
    share = found.least / found.cycles if found.cycles else 0.0
    return f"{_count(found.cycles)} cycles, {share:.0%} of peak, bound by {found.bound}"


def _cycles(each: Mapping[str, float]) -> str:
    parts = [f"{name} {_count(cycles)}" for name, cycles in each.items() if cycles >= 0.5]
    return ", ".join(parts) or "none"


def _arriving(found: Estimate) -> str:
    parts = [
        f"{_bytes(each.bytes)} from {name} in {_count(each.cycles)} cycles"
        for name, each in found.arrivals.items()
        if each.bytes >= 1
    ]
    if found.pages.cycles >= 1:
        parts.append(
            f"{_count(found.pages.bytes / PAGE)} pages looked up in "
            f"{_count(found.pages.cycles)} cycles"
        )
    return ", ".join(parts) or "none, all data are in L1"


def _differs(ratio: float) -> str:
    """Return how far an estimate is from the measurement, for example ``3 % too high``."""
    percent = round(100 * (ratio - 1))
    return f"{abs(percent)} % too {'high' if percent > 0 else 'low'}" if percent else "equal to it"


def _time(seconds: float) -> str:
    if seconds < 1e-7:
        return f"{seconds * 1e9:.4g} ns"
    return f"{seconds * 1e6:.4g} us" if seconds < 1e-3 else f"{seconds * 1e3:.4g} ms"


def _bytes(count: float) -> str:
    """Return a number of bytes in the largest unit that has 10 or more, for example ``48 KiB``."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= 10 * size:
            return f"{count / size:.0f} {unit}"
    return f"{count:.0f} bytes"


def _count(cycles: float) -> str:
    return f"{cycles:.0f}" if cycles >= 10 else f"{cycles:.2g}"
