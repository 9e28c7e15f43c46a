"""Explain a kernel that is compiled: its plan, with measured times, and the threads that run it."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING, Any, Protocol

from tilewright.errors import SpecError
from tilewright.runtime.reference.arguments import Sampled

from .profile import Profile, Stamped, profile
from .timing import bench, compare

if TYPE_CHECKING:
    from tilewright.explain.estimates import Measured
    from tilewright.plan.loops import Decided
    from tilewright.plan.routine import StageFacts

#: About how long stages are measured for an explanation, in seconds.
_SECONDS = 0.2


class Explained(Stamped, Protocol):
    """The part of a kernel that explanations use."""

    emulated: str | None

    @property
    def edited(self) -> Any:
        """Hand-edited C, which has a path; None if there is none."""

    @property
    def plan(self) -> Decided:
        """The plan."""

    @property
    def source(self) -> str:
        """The C text of the library."""

    def _again(self, *, stamped: bool = False) -> Stamped:
        """Return the kernel that is generated, or one that notes the times of its stages."""


def explained(kernel: Explained, sizes: Mapping[str, int], *, measure: bool) -> str:
    """Return the plan of ``kernel`` in words; if ``measure``, with the time of a call.

    ``sizes`` are sizes of the call, by the names of their C parameters.
    """
    from tilewright.generate import explain_plan

    measured = _measured(kernel, sizes) if measure else None
    edited = ""
    if kernel.edited is not None:
        edited = f"edited     {kernel.edited.path}; this is the generated C's plan\n"
    return edited + explain_plan(kernel.plan, sizes, measured) + _threads(kernel)


def profiled(kernel: Explained, seconds: float, sizes: Mapping[str, int]) -> Profile:
    """Return the times of the stages of ``kernel``, measured for about ``seconds``."""
    facts = _facts(kernel, sizes)
    if not facts:
        hint = "kernel.bench(), which times the whole call"
        raise SpecError("only networks that are cut into stages have a profile",
                        got=kernel.spec, hint=hint)  # fmt: skip
    if kernel.edited is not None:
        raise SpecError(
            "the stages of edited C cannot be timed",
            got=kernel.edited.path,
            hint="kernel.bench(), or the profile of the kernel without source=",
        )
    return profile(kernel._again(stamped=True), facts, seconds, sizes)


def _facts(kernel: Explained, sizes: Mapping[str, int]) -> list[StageFacts]:
    """Return the numbers of the stages of a call; none for a routine without stages."""
    from tilewright.explain.text import sizes_of_call
    from tilewright.plan.routine import routine_of

    plan = kernel.plan
    return list(routine_of(plan).facts(plan, sizes_of_call(plan, sizes)))


def _measured(kernel: Explained, sizes: Mapping[str, int]) -> Measured:
    from tilewright.explain.estimates import Measured

    if not _facts(kernel, sizes):
        timing = bench(kernel, sizes=sizes)
        return Measured(timing.median, timing.of_peak, timing.gb_per_s)
    found = profiled(kernel, _SECONDS, sizes)
    return Measured(found.seconds, stages=tuple(stage.seconds for stage in found))


def compared(generated: Sampled, edited: Sampled) -> str:
    """Return the times of a kernel and its edited version, measured in turns, as text."""
    found = compare(generated, edited)
    low, high = found.quartiles
    return (
        f"generated {found.first * 1e9:.1f} ns a call, edited {found.second * 1e9:.1f} ns: "
        f"{found.ratio:.3f} times as fast ({low:.3f} to {high:.3f})"
    )


def _threads(kernel: Explained) -> str:
    """Return text on the threads that run the kernel's parallel loops; "" if it has none."""
    if kernel.emulated is not None or "run_parallel(" not in kernel.source:
        return ""
    from tilewright.runtime.threads.words import choice

    text = fill(f"  {choice()}", 100, subsequent_indent=" " * 12, break_on_hyphens=False)
    return f"\n\nThreads here\n{text}"
