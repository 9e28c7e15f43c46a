"""Row programs: networks of functions of elements, and reductions along one axis."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.explain.decisions import text_of
from tilewright.ir.nest import Program
from tilewright.ir.stages import Stage
from tilewright.isa.target import Target
from tilewright.lower.rows.program import rows_program
from tilewright.plan.routine import Routine, register
from tilewright.plan.rows.plan import RowsPlan, plan_rows
from tilewright.spec.network.value import Network
from tilewright.spec.schedule import Schedule


class RowProgram(Routine[Network, RowsPlan]):
    """Passes over each row, or over the rows of each block of columns."""

    def plan(self, spec: Network, schedule: Schedule, target: Target) -> RowsPlan:
        """Return the plan."""
        return plan_rows(spec, schedule, target)

    def stages(self, plan: RowsPlan) -> tuple[Stage, ...]:
        """Return the only stage: the passes over all rows."""
        return (Stage(rows_program(plan)),)

    def head(self, plan: RowsPlan) -> Iterator[str]:
        """Yield the rows and the expressions."""
        rows, cols = text_of(plan.rows), text_of(plan.cols)
        yield f"rows      {rows} of {cols} columns: {', '.join(map(repr, plan.spec.results))}"

    def resolved(self, plan: RowsPlan, program: Program) -> Schedule | None:
        """Return the schedule, with the tile that was chosen."""
        return plan.resolved

    def converts(self, plan: RowsPlan) -> bool:
        """Return True: elements may be converted by functions on their bits."""
        return True


register(Network, RowsPlan, RowProgram())
