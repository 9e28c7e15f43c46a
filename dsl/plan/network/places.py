"""Where functions after a product are computed, as the ``at`` of a stage says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.errors import ScheduleError
from tilewright.spec.network.stages import Stage, Stages

from ..rows.plan import RowsPlan
from .blocks import Group
from .step import Step


def places_of(stages: Stages, steps: Sequence[Step]) -> Mapping[str, str]:
    """Return the places that the user chose, by name. Raises ScheduleError for unknown names."""
    known = [name for step in steps for name in (step.name, *step.inside)]
    found: dict[str, str] = {}
    for stage in stages.stages:
        for name, place in stage.at:
            if name not in known:
                raise ScheduleError(
                    f"the network has nothing called {name!r}", got=stage, expected=", ".join(known)
                )
            if found.setdefault(name, place) != place:
                raise ScheduleError(
                    f"{name!r} has two places", got=stages, expected="one of them",
                    hint=f"at={{{name!r}: {place!r}}} in one stage",
                )  # fmt: skip
    return found


def away(places: Mapping[str, str], steps: Sequence[Step]) -> set[str]:
    """Return the functions that shall leave the product's stage."""
    inside = {name for step in steps if step.is_product for name in step.inside}
    return {name for name in inside if places.get(name) in ("rows", "whole")}


def check_places(groups: Sequence[Group], steps: Sequence[Step]) -> None:
    """Raise ScheduleError unless each function is at the place that the user chose."""
    maker = {name: number for number, step in enumerate(steps) for name in step.inside}
    maker |= {step.name: number for number, step in enumerate(steps)}
    for stage, _ in groups:
        for name, place in stage.at:
            number = maker[name]
            own = next(other for other, numbers in groups if number in numbers)
            _check(stage, own, steps[number], name, place)


def _check(stage: Stage, own: Stage, step: Step, name: str, place: str) -> None:
    """Check the place of a function that ``step`` computes in the stage ``own``."""
    nearest = "whole" if own.rows is None else "rows"
    if step.is_product:
        nearest = "accumulators"
    hint = f"at={{{name!r}: {nearest!r}}}"
    if step.is_product and name == step.name:
        why, hint = "it is a product, which has no other place", "at= without it"
    elif own is not stage and place != nearest:
        names = " ".join(dict.fromkeys((*stage.names, step.name)))
        why, hint = f"{step.name} is in {own}", f"tw.Stage({names!r}, rows=...)"
    elif place == nearest:
        return
    elif place == "slice":
        why = f"no function reads the slice of {step.written} that was just stored"
    elif place == "accumulators":
        why = _not_in_a_tile(step)
    else:
        why = "its stage has no rows=" if own.rows is None else f"its stage has rows={own.rows}"
    problem = f"{name!r} cannot be at {place!r}: {why}"
    raise ScheduleError(problem, got=stage, expected=f"{name!r} at {nearest!r}", hint=hint)


def _not_in_a_tile(step: Step) -> str:
    """Return why no product can compute a stage on a tile of its sums."""
    plan = step.plan
    if not isinstance(plan, RowsPlan) or len(plan.passes) < 2:
        return "the epilogue of no product can compute it"
    arrays = (step.operands[name] for name in plan.matrices)
    read = ", ".join(dict.fromkeys(str(a).rstrip("_") for a in arrays if a != step.written))
    return f"it needs whole rows of {read}, of which accumulators have a tile"
