"""Networks: row programs, and products with row programs between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sympy import Expr

from tilewright.explain.decisions import flops_of, text_of
from tilewright.ir.nest import Name, Program
from tilewright.ir.stages import Buffer, Stage, embedded, in_order
from tilewright.isa.target import Target
from tilewright.lower.rows.program import rows_program
from tilewright.plan.estimate.kernel import Estimate
from tilewright.plan.estimate.rows import estimate_rows
from tilewright.plan.plan import Plan
from tilewright.plan.routine import Routine, Row, register, routine_of
from tilewright.plan.routines.network import NetworkPlan, Step, plan_network
from tilewright.plan.rows.plan import RowsPlan, plan_rows
from tilewright.spec.expression.nodes import text_of as results_text
from tilewright.spec.network.value import SHARED, Network
from tilewright.spec.schedule import Schedule
from tilewright.symbolic import ZERO, symbol


class RowProgram(Routine[Network, RowsPlan]):
    """Passes over each row, or over the rows of each block of columns."""

    def plan(self, spec: Network, schedule: Schedule, target: Target) -> RowsPlan:
        """Return the plan of a row program, or, for a network with products, a NetworkPlan."""
        # A NetworkPlan has a kind of its own, which ``routine_of`` finds.
        make = plan_network if spec.packed else plan_rows
        return make(spec, schedule, target)  # type: ignore[return-value]

    def stages(self, plan: RowsPlan) -> tuple[Stage, ...]:
        """Return the only stage: the passes over all rows, and buffers too large for the stack."""
        fills = (Buffer(Name(name), plan.real, plan.cols) for name in plan.in_scratch)
        return (Stage(rows_program(plan), tuple(fills)),)

    def head(self, plan: RowsPlan) -> Iterator[str]:
        """Yield the rows and the expressions."""
        rows, cols = text_of(plan.rows), text_of(plan.cols)
        yield f"rows      {rows} of {cols} columns: {', '.join(map(repr, plan.spec.results))}"

    def shown(self, plan: RowsPlan) -> tuple[str, ...]:
        """Return all sizes."""
        return tuple(name for name, _ in plan.spec.runtime_sizes())

    def estimate(self, plan: RowsPlan, sizes: Mapping[str, int], *, cold: bool) -> Estimate:
        """Return the estimate of the passes."""
        return estimate_rows(plan, rows_program(plan), sizes, cold=cold)

    def resolved(self, plan: RowsPlan, program: Program) -> Schedule | None:
        """Return the schedule, with the tile that was chosen."""
        return plan.resolved

    def converts(self, plan: RowsPlan) -> bool:
        """Return True: elements may be converted by functions on their bits."""
        return True


class Layers(Routine[Network, NetworkPlan]):
    """A network with products: each product with what follows it is a stage."""

    def stages(self, plan: NetworkPlan) -> tuple[Stage, ...]:
        """Return the stages in order, with the intermediate tensors as buffers between them."""
        return tuple(
            Stage(_embedded(step, f"stage{number}_"), () if step.buffer is None else (step.buffer,))
            for number, step in enumerate(plan.steps)
        )

    def head(self, plan: NetworkPlan) -> Iterator[str]:
        """Yield the results, and a line for each stage."""
        spec = plan.spec
        yield f"network   {results_text(spec.results, several=spec.several, shared=SHARED)}"
        for number, step in enumerate(plan.steps):
            yield f"stage {number}   {step.written} = {step.said}"
        for step in plan.steps:
            if step.buffer is not None:
                yield f"buffer    {step.written}: {text_of(step.buffer.nbytes)} bytes"

    def decisions(self, plan: NetworkPlan, program: Program) -> Iterator[Row]:
        """Yield the decisions on each stage."""
        for number, step in enumerate(plan.steps):
            for each in step.plan.decisions:
                yield f"{number} {each.what}", each.choice, each.reason

    def shown(self, plan: NetworkPlan) -> tuple[str, ...]:
        """Return all sizes: products give no formulas for sizes that a stage binds."""
        return tuple(name for name, _ in plan.spec.runtime_sizes())

    def flops(self, plan: NetworkPlan) -> Expr:
        """Return the flops of all products."""
        total: Expr = ZERO
        for step in plan.products:
            assert isinstance(step.plan, Plan)
            own = {symbol(name): size for name, size in step.sizes.items()}
            total += flops_of(step.plan).xreplace(own)
        return total

    def resolved(self, plan: NetworkPlan, program: Program) -> Schedule | None:
        """Return the schedule: the plan follows from the spec alone."""
        return plan.schedule

    def converts(self, plan: NetworkPlan) -> bool:
        """Return True: elements of other types may be converted by their bits."""
        return True


def _embedded(step: Step, prefix: str) -> Program:
    one = in_order(routine_of(step.plan).stages(step.plan))
    return embedded(one, prefix, step.operands, step.sizes)


register(Network, RowsPlan, RowProgram())
register(None, NetworkPlan, Layers())
