"""Read the schedule's loop letters: outer loops over blocks, and inner loops of a tile."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from tilewright.errors import ScheduleError
from tilewright.isa.target import Target
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.operands import Addresses
from tilewright.spec.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Decision:
    """One resolved choice, as ``explain`` prints it."""

    what: str
    choice: str
    reason: str


class Decided:
    """Base class of all plans: a spec, a target and decisions.

    ``repr`` shows only these, because the formulas of a plan would fill many screens.
    """

    __slots__ = ()

    decisions: tuple[Decision, ...]
    if TYPE_CHECKING:  # fields of most plans, properties of others

        @property
        def spec(self) -> Spec: ...  # noqa: D102
        @property
        def target(self) -> Target: ...  # noqa: D102

    def __repr__(self) -> str:
        said = ", ".join(f"{each.what}={each.choice!r}" for each in self.decisions)
        return f"<{type(self).__name__} of {self.spec!r} on {self.target.name}: {said}>"


def check_unscheduled(schedule: Schedule, what: str = "packing") -> None:
    """Raise ScheduleError if the schedule of a packing or a copy is not empty."""
    for name in (f.name for f in fields(Schedule)):
        if getattr(schedule, name) != getattr(Schedule(), name):
            raise ScheduleError(
                f"a {what} has nothing to schedule", got=f"{name}={getattr(schedule, name)!r}"
            )


def outer_length(loops: str) -> int:
    """Return the number of letters that are loops around a tile: all up to the last m or n."""
    return max(map(loops.lower().rfind, "mn")) + 1


def read_loops(
    spec: Gemm, schedule: Schedule, along: str, packs: str, panels: bool = False
) -> tuple[str, str, str]:
    """Return the loop letters around a tile, the loop letters inside it, and the reason.

    They are the schedule's letters, or defaults if it has none. ``panels`` is True if the defaults
    should convert A one panel of rows at a time.
    """
    loops, reason = schedule.loops, "asked for"
    if loops is None:
        grid = "nm" if along == "n" else "mn"
        if (schedule.threads or 1) > 1:
            grid = "Mn" if spec.outputs else grid.upper()
        inside = f"{grid}bk" if spec.batch else f"{grid}k"
        loops = f"b{grid}k" if spec.batch and (packs or _scattered(spec)) else inside
        reason = (
            "a panel of B stays in cache while all rows of C are computed"
            if along == "n"
            else "a panel of A stays in cache while all columns of C are computed"
        )
        if panels and schedule.threads is None and spec.batch is None:
            loops, reason = "mnk", "rows of A are converted beside the tiles before; B stays cached"
    cut = outer_length(loops)
    outer, inner = loops[:cut], loops[cut:]
    _check_batch(spec, loops)
    _check_inner(spec, loops, packs)
    _check_outer(spec, schedule, loops)
    return outer, inner, reason


def _legal(spec: Gemm) -> str:
    """Return loops that are legal in any schedule of ``spec``."""
    return "bnmk" if spec.batch else "nmk"


def _check_batch(spec: Gemm, loops: str) -> None:
    """Raise ScheduleError if the loop over the batch is missing, not allowed, or parallel."""
    if "B" in loops:
        raise ScheduleError(
            "b runs in parallel where each product has its own C: here all add to the same one",
            got=loops,
            hint=f"{loops.replace('B', 'b')!r}, or tw.Strided(count, c=None) for a stack",
        )
    if ("b" in loops) != (spec.batch is not None):
        raise ScheduleError(
            "loops must name b exactly when the spec has a batch",
            got=loops,
            hint=f'"{_legal(spec)}"',
        )


def _check_inner(spec: Gemm, loops: str, packs: str) -> None:
    """Raise ScheduleError for letters that are not allowed after the last m or n."""
    inner, legal = loops[outer_length(loops) :], _legal(spec)
    if inner not in ("", "b", "k", "bk"):
        raise ScheduleError(
            "right of the last m or n only b and k may stand, b first", got=loops, hint=f'"{legal}"'
        )
    if "b" in inner and _scattered(spec):
        raise ScheduleError(
            "the scales of a B that is found by its address are found once for each matrix",
            got=f"loops={loops!r}, with batch={spec.batch!r}",
            expected="the batch loop left of m and n",
            hint=f'"{legal}"',
        )
    if "b" in inner and packs:
        raise ScheduleError(
            "packing needs the batch loop left of m and n",
            got=f"loops={loops!r}, pack={packs!r}",
            hint=f'"{legal}"',
        )


def _check_outer(spec: Gemm, schedule: Schedule, loops: str) -> None:
    """Raise ScheduleError for parallel loops that are not allowed, and for blocks without two
    loops.
    """
    if spec.outputs and "N" in loops[: outer_length(loops)] and schedule.threads != 1:
        raise ScheduleError(
            "outputs reduce rows, whose columns cannot be computed in parallel",
            got=f"loops={loops!r}, outputs {', '.join(dict(spec.outputs))}",
            expected="parallel loops over m alone",
            hint=f'"{_legal(spec).replace("nm", "Mn")}"',
        )
    for letter in dict(schedule.block):
        if loops.lower().count(letter) < 2:
            raise ScheduleError(
                f"block[{letter!r}] is the step of the first of two loops over {letter}",
                got=f"loops={loops!r}, block={dict(schedule.block)}",
                hint=f"name {letter} twice and give its block, or neither",
            )


def _scattered(spec: Gemm) -> bool:
    """True if B has a low-bit type and the batch gives its matrices by address."""
    return isinstance(spec.batch, Addresses) and spec.quantized is not None


def threads_decision(schedule: Schedule, outer: str) -> tuple[Decision, ...]:
    """Return the decision on the number of threads, if any loop is parallel."""
    if outer == outer.lower():
        return ()
    if schedule.threads is None:
        return (Decision("threads", "at most one for each CPU", "as many as the process may use"),)
    return (Decision("threads", f"at most {schedule.threads}", "asked for"),)
