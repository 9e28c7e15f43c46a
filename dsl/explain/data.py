"""Explain a plan as JSON data for programs; the content is that of ``text.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tilewright.ir.nest import Program
from tilewright.plan.estimate.kernel import Estimate
from tilewright.plan.loops import Decided
from tilewright.plan.routine import routine_of
from tilewright.plan.tiling.tiles import RegisterTile
from tilewright.symbolic import value

from .decisions import text_of
from .estimates import estimated
from .text import (
    formula_text,
    numbers_of_call,
    operations,
    sizes_of_call,
)


def facts(plan: Decided, program: Program, sizes: Mapping[str, int] | None = None) -> Any:
    """Return the plan as JSON values: spec, target, decisions, tiles, operations, estimates.

    Formulas are C text, numbers of cycles are floats. ``sizes`` are those of a call, by their names
    in the signature.
    """
    of_call = sizes_of_call(plan, sizes or {})
    numbers, routine = numbers_of_call(program, of_call), routine_of(plan)
    rows = operations(plan, program, numbers, of_call)
    found = {
        "spec": repr(plan.spec),
        "target": plan.target.name,
        "core": plan.target.core_source,
        "sizes": of_call,
        "decisions": [
            {"what": what, "choice": choice, "reason": reason}
            for what, choice, reason in routine.decisions(plan, program)
        ],
        "tiles": [_tile(tile) for nest in routine.nests(plan) for tile in nest.tiling.tiles],
        "operations": {
            name: formula_text(expr) if value(expr) is None else value(expr) for name, expr in rows
        },
    }
    where = {"in cache": False, "in memory": True}
    estimates = {name: estimated(plan, of_call, cold=cold) for name, cold in where.items()}
    if told := {name: _estimate(one) for name, one in estimates.items() if one is not None}:
        found["estimate"] = told
    return found


def _tile(tile: RegisterTile) -> dict[str, Any]:
    budget = tile.shape.budget
    return {
        "mr": text_of(tile.mr),
        "nr": text_of(tile.nr),
        "steps": text_of(tile.steps),
        "k_split": tile.shape.k_split,
        "k_unroll": tile.unroll.steps,
        "registers": budget._asdict() | {"unit": budget.unit and asdict(budget.unit)},
        "bound": tile.bound,
    }


def _estimate(found: Estimate) -> dict[str, Any]:
    return {
        "cycles": found.cycles,
        "least": found.least,
        "bound": found.bound,
        "work": dict(found.work),
        "arrivals": {
            name: {"bytes": each.bytes, "cycles": each.cycles}
            for name, each in found.arrivals.items()
        },
    }
