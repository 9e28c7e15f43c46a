"""The plan of a network with products: stages in order, and the buffers between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tilewright.errors import ScheduleError
from tilewright.isa.target import Target
from tilewright.spec.network.stages import Stage, Stages
from tilewright.spec.network.value import Network
from tilewright.spec.schedule import Schedule

from ..loops import Decided, Decision
from ..network.attention import stages_of_attention
from ..network.blocks import blocked, grouped, in_blocks, openings, resolved, users_of
from ..network.chosen import chosen, ways
from ..network.cutter import Cuts
from ..network.places import away, check_places, places_of
from ..network.step import Opening, Step
from ..plan import Plan


@dataclass(frozen=True, slots=True, repr=False)
class NetworkPlan(Decided):
    """Every choice for a network with products."""

    spec: Network
    schedule: Schedule
    target: Target
    decisions: tuple[Decision, ...]
    steps: tuple[Step, ...] = field(hash=False)

    @property
    def products(self) -> Iterator[Step]:
        """The stages that are products."""
        return (step for step in self.steps if isinstance(step.plan, Plan))


def plan_network(spec: Network, schedule: Schedule, target: Target) -> NetworkPlan:
    """Return the plan of a network with products."""
    stages = schedule if isinstance(schedule, Stages) else Stages(threads=schedule.threads)
    if stages is not schedule and schedule != Schedule(threads=schedule.threads):
        raise ScheduleError(
            "a network with products has no schedule to choose but its stages and threads",
            got=schedule,
            expected="tw.Stages(...), tw.Schedule(threads=2), or none",
        )
    cuts = Cuts(spec, target, stages)
    first = cuts.of({})
    steps, decisions = first.steps(), tuple[Decision, ...]()
    if stages is not schedule:
        given = _of_attention(stages, steps, cuts.steps, target)
        stages, decisions = chosen(spec, steps, cuts.steps, given, stages.threads, target.core)
    elif places := places_of(stages, steps):
        made = first.namer.made
        cuts = Cuts(spec, target, stages, made, first.namer.numbers(away(places, steps)))
        steps = cuts.steps({})
    groups = grouped(stages, steps)
    check_places(groups, steps)
    if opened := openings(groups, steps):
        steps = blocked(groups, cuts.steps(opened), stages.threads)
    return NetworkPlan(spec, resolved(stages, groups), target, decisions, steps)


def stages_to_try(spec: Network, target: Target, threads: int | None) -> list[tuple[float, Stages]]:
    """Return stages of a network that are worth measuring, and the estimated cycles they save."""
    cuts = Cuts(spec, target, Stages(threads=threads))
    return list(ways(spec, cuts.steps({}), cuts.steps, threads, target.core))


def _of_attention(
    stages: Stages,
    steps: Sequence[Step],
    cut: Callable[[Mapping[int, Opening]], Sequence[Step]],
    target: Target,
) -> dict[Stage, str]:
    """Return the stages of attention in blocks of queries if the user chooses none, and why."""
    reasons = dict(stages_of_attention(steps, stages.threads or 1, target.core))
    groups = [each for each in grouped(Stages(*reasons), steps) if each[0].rows is not None]
    if not groups:
        return {}
    opened, legal = cut(openings(groups, steps)), list[Stage]()
    users = users_of(opened)
    for stage, numbers in groups:
        with suppress(ScheduleError):
            in_blocks(stage, numbers, [opened[number] for number in numbers], users, 1)
            legal.append(stage)
    return {stage: reasons[stage] for stage in legal}
