"""Search the schedule of a network with products: its stages first, then each of its products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from tilewright.errors import TilewrightError
from tilewright.isa.target import Target
from tilewright.plan.routines.network import NetworkPlan, plan_network
from tilewright.spec.network.stages import OPEN, Stages
from tilewright.spec.network.value import Network
from tilewright.spec.schedule import Schedule

from .variants import candidates

#: Number of schedules that are tried for each product, those that the cost model ranks first.
OF_PRODUCT = 8


class Staged:
    """A search that improves one part of a network's schedule after the other.

    It yields the given stages. Then it takes the best ones so far, and yields schedules of one
    product after another in them. What was told before begins as the best.
    """

    def __init__(self, stages: Sequence[Schedule], spec: Network, target: Target) -> None:
        self._spec, self._target = spec, target
        self._known: set[Schedule] = set()
        self._best: tuple[float, Schedule] = 1.0, Schedule()
        self._parts = self._of_parts(stages)

    def ask(self, count: int) -> list[Schedule]:
        """Return at most ``count`` schedules that differ in one part; none after the last part."""
        for part in self._parts:
            new = [schedule for schedule in part if schedule not in self._known][:count]
            if new:
                self._known.update(new)
                return new
        return []

    def tell(self, schedule: Schedule, ratio: float | None) -> None:
        """Take the result of a schedule."""
        self._known.add(schedule)
        if ratio is not None and ratio > self._best[0]:
            self._best = ratio, schedule

    def _of_parts(self, stages: Sequence[Schedule]) -> Iterator[list[Schedule]]:
        """Yield lists of schedules, each of which varies one part of the best one so far."""
        left = list(stages)
        while any(each not in self._known for each in left):
            yield left
        for name in [step.name for step in self._plan(Schedule()).products]:
            tried = [*self._of_product(name)]
            while any(each not in self._known for each in tried):
                yield tried

    def _of_product(self, name: str) -> Iterator[Schedule]:
        """Yield the best schedule so far with other schedules of one product."""
        plan = self._plan(self._best[1])
        step = next(step for step in plan.products if step.name == name)
        assert step.product is not None and isinstance(plan.schedule, Stages)
        stages = plan.schedule
        shared = stages.threads is not None and step.block is None
        found: dict[Stages, None] = {}
        for candidate in candidates(step.product.spec, self._target.name, threads=1):
            own = {each: getattr(candidate.schedule, each) for each in OPEN}
            if shared:  # the planner's loops are those that threads share
                own |= {"loops": None, "block": None, "pack": None}
            own["block"] = {d: size for d, size in dict(own["block"] or ()).items() if d != "k"}
            if "k" in dict(candidate.schedule.block) or candidate.schedule.vectorize == "k":
                continue
            products = {**dict(stages.products), name: Schedule(**own)}
            found[Stages(*stages.stages, products=products, threads=stages.threads)] = None
        yield from islice(filter(self._is_legal, found), OF_PRODUCT)

    def _is_legal(self, stages: Schedule) -> bool:
        try:
            self._plan(stages)
        except TilewrightError:
            return False
        return True

    def _plan(self, schedule: Schedule) -> NetworkPlan:
        return plan_network(self._spec, schedule, self._target)
