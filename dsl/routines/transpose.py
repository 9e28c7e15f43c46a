"""Transpositions of a matrix, into another matrix or in place."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.explain.decisions import matrix_text
from tilewright.ir.stages import Stage
from tilewright.isa.target import Target
from tilewright.lower.transpose import transposition_program
from tilewright.plan.routine import Routine, register
from tilewright.plan.routines.transpose import TransposePlan, plan_transposition
from tilewright.spec.schedule import Schedule
from tilewright.spec.transpose import Transpose
from tilewright.spec.types import ITEMSIZE


class Transposition(Routine[Transpose, TransposePlan]):
    """A transposition from one matrix to another, or in place."""

    def plan(self, spec: Transpose, schedule: Schedule, target: Target) -> TransposePlan:
        """Return the plan."""
        return plan_transposition(spec, schedule, target)

    def stages(self, plan: TransposePlan) -> tuple[Stage, ...]:
        """Return the only stage: the transposition."""
        return (Stage(transposition_program(plan)),)

    def head(self, plan: TransposePlan) -> Iterator[str]:
        """Yield the layouts of the two matrices."""
        shapes = {"x": ("rows", "cols"), "out": ("cols", "rows")}
        x, out = (
            matrix_text(plan.operands[name], shape, plan.sizes) for name, shape in shapes.items()
        )
        yield f"transpose {x} to {out}, {plan.element}"

    def converts(self, plan: TransposePlan) -> bool:
        """Return True for elements of 8 and 16 bits, which are moved in groups."""
        return ITEMSIZE[plan.element] < 4


register(Transpose, TransposePlan, Transposition())
