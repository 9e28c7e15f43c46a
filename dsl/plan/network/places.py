"""Where functions after a product are computed, as the ``at`` of a stage says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from tilewright.errors import ScheduleError
from tilewright.spec.network.stages import Stage, Stages
from tilewright.symbolic import value

from .blocks import Group, numbers_of
from .step import Step


def places_of(stages: Stages, steps: Sequence[Step]) -> Mapping[str, str]:
    """Return the places that the user chose, by name. Raises ScheduleError for unknown names."""
    known = {name for step in steps for name in (*step.names, *step.inside, *step.parts)}
    shown = dict.fromkeys(name for step in steps for name in (step.name, *step.inside))
    found: dict[str, str] = {}
    for stage in stages.stages:
        for name, place in stage.at:
            if name not in known:
                raise ScheduleError(
                    f"the network has nothing called {name!r}", got=stage, expected=", ".join(shown)
                )
            if found.setdefault(name, place) != place:
                raise ScheduleError(
                    f"{name!r} has two places", got=stages, expected="one of them",
                    hint=f"at={{{name!r}: {place!r}}} in one stage",
                )  # fmt: skip
    return found


def away(places: Mapping[str, str], steps: Sequence[Step]) -> set[str]:
    """Return the functions that shall leave the product's stage."""
    products = (step for step in steps if step.product is not None)
    inside = {name for step in products for name in (*step.inside, *step.parts)}
    return {name for name in inside if places.get(name) in ("rows", "whole")}


def check_places(groups: Sequence[Group], steps: Sequence[Step]) -> None:
    """Raise ScheduleError unless each function is at the place that the user chose."""
    makers: dict[str, Sequence[int]] = {}
    for number, step in enumerate(steps):
        makers |= {name: [number] for name in (*step.inside, *step.parts)}
    makers |= numbers_of(steps)
    for stage, _ in groups:
        for name, place in stage.at:
            for number in makers[name]:
                own = next(other for other, numbers in groups if number in numbers)
                _check(stage, own, steps, number, name, place)


def _check(
    stage: Stage, own: Stage, steps: Sequence[Step], number: int, name: str, place: str
) -> None:
    """Check the place of a function that a step of the stage ``own`` computes."""
    step = steps[number]
    nearest = "whole" if own.rows is None else "rows"
    if step.product is not None:
        nearest = "accumulators"
    hint = f"at={{{name!r}: {nearest!r}}}"
    if step.product is not None and name in step.names:
        why, hint = "it is a product, which has no other place", "at= without it"
    elif own is not stage and place != nearest:
        names = " ".join(dict.fromkeys((*stage.names, step.name)))
        why, hint = f"{step.name} is in {own}", f"tw.Stage({names!r}, rows=...)"
    elif place == nearest:
        return
    elif place in ("accumulators", "slice") and (columns := _columns(step, steps, place)):
        _refuse(stage, name, f"{name!r} reads all columns of {columns}", nearest, hint)
    elif place == "slice":
        why = f"no function reads the slice of {step.written} that was just stored"
    elif place == "accumulators":
        why = _not_in_a_tile(step)
    else:
        why = "its stage has no rows=" if own.rows is None else f"its stage has rows={own.rows}"
    _refuse(stage, name, f"{name!r} cannot be at {place!r}: {why}", nearest, hint)


def _refuse(stage: Stage, name: str, problem: str, nearest: str, hint: str) -> NoReturn:
    raise ScheduleError(problem, got=stage, expected=f"{name!r} at {nearest!r}", hint=hint)


def _columns(step: Step, steps: Sequence[Step], place: str) -> str | None:
    """Return the product of which a step needs whole rows, and how many columns a place has.

    The result is text for an error message. It is None if the step needs no whole rows of a
    product, or if the place has them.
    """
    reads = step.row_program
    if reads is None or len(reads.passes) < 2:
        return None
    read = {step.operands[name] for name in reads.matrices}
    for maker in steps:
        plan = maker.nest
        if maker is step or maker.written not in read or plan is None:
            continue
        has = max(
            (tile.shape.vectors * tile.shape.vector.lanes for tile in plan.tiling.tiles), default=0
        )
        if place == "slice":
            has = plan.nest.blocks.get("n", has)
        known = value(plan.problem.sizes["n"])
        if known is None or known > has:
            return f"{maker.name!r}, of which {place!r} has {has}"
    return None


def _not_in_a_tile(step: Step) -> str:
    """Return why no product can compute a stage on a tile of its sums."""
    plan = step.row_program
    if plan is None or len(plan.passes) < 2:
        return "the epilogue of no product can compute it"
    arrays = (step.operands[name] for name in plan.matrices)
    read = ", ".join(dict.fromkeys(str(a).removesuffix("_") for a in arrays if a != step.written))
    return f"it needs whole rows of {read}, of which accumulators have a tile"
