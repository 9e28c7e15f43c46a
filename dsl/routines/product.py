"""Products: ``Gemm`` as one product or a batch-reduce, and as a stack of products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from sympy import Expr

from tilewright.explain import reasons
from tilewright.explain.decisions import flops_of, head_of_product, head_of_stack, rows_of_product
from tilewright.explain.resolved import schedule_of
from tilewright.ir.nest import Program
from tilewright.ir.stages import Stage
from tilewright.isa.target import Target
from tilewright.lower.nest.build import make_program
from tilewright.lower.stack import stack_program
from tilewright.plan.by_rows import plan_product
from tilewright.plan.epilogues import check_length
from tilewright.plan.estimate.kernel import Estimate, estimate
from tilewright.plan.estimate.stack import estimate_stack
from tilewright.plan.plan import ByRows, Plan
from tilewright.plan.routine import Routine, Row, register
from tilewright.plan.routines.stack import StackPlan, plan_stack
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import Schedule

_SIZES = ("m", "n", "k", "count")


class Product(Routine[Gemm, Plan | ByRows]):
    """A product, or the sum of the products of a batch."""

    sizes = _SIZES
    drawn = True

    def plan(self, spec: Gemm, schedule: Schedule, target: Target) -> Plan | ByRows:
        """Return the plan of a product, or, for a stack of products, a StackPlan."""
        check_length(spec)
        # A StackPlan has a kind of its own, which ``routine_of`` finds.
        make = plan_stack if spec.stacked else plan_product
        return make(spec, schedule, target)  # type: ignore[return-value]

    def stages(self, plan: Plan | ByRows) -> tuple[Stage, ...]:
        """Return the only stage: the whole product."""
        return (Stage(make_program(plan)),)

    def head(self, plan: Plan | ByRows) -> Iterator[str]:
        """Yield the formula, the matrices and the batch."""
        return head_of_product(plan.nests[0])

    def decisions(self, plan: Plan | ByRows, program: Program) -> Iterator[Row]:
        """Yield the plan's decisions, those on each operand, then those on tiles."""
        yield from super().decisions(plan, program)
        yield from _reasons(plan, program)

    def nests(self, plan: Plan | ByRows) -> tuple[Plan, ...]:
        """Return the plan itself, or those of its two nests."""
        return plan.nests

    def flops(self, plan: Plan | ByRows) -> Expr:
        """Return the flops of all products of the batch."""
        problem = plan.nests[0].problem
        return flops_of(plan.spec, problem.sizes, problem.matrices)

    def estimate(
        self, plan: Plan | ByRows, sizes: Mapping[str, int], *, cold: bool
    ) -> Estimate | None:
        """Return the estimate; None if there is nothing to sum."""
        return estimate(plan, sizes, cold=cold) if _sums(plan) else None

    def resolved(self, plan: Plan | ByRows, program: Program) -> Schedule | None:
        """Return the schedule with the choices for the largest tile."""
        return schedule_of(plan, program)

    def converts(self, plan: Plan | ByRows) -> bool:
        """Return True if elements are converted, or sums become an output."""
        return _converts(plan)

    def static_offsets(self, plan: Plan | ByRows) -> Mapping[str, tuple[int, ...]]:
        """Return the offsets of ``tw.Offsets`` that the spec gives."""
        batch = plan.nests[0].problem.batch
        return batch.static if batch else {}


class Stack(Routine[Gemm, StackPlan]):
    """A stack of products, each with its own C."""

    sizes = _SIZES
    drawn = True

    def stages(self, plan: StackPlan) -> tuple[Stage, ...]:
        """Return the only stage: all products."""
        return (Stage(stack_program(plan)),)

    def head(self, plan: StackPlan) -> Iterator[str]:
        """Yield the formula, the matrices and the number of products."""
        return head_of_stack(plan)

    def decisions(self, plan: StackPlan, program: Program) -> Iterator[Row]:
        """Yield the plan's decisions; if products follow each other, also those on each."""
        yield from super().decisions(plan, program)
        if plan.each is not None:
            yield from _reasons(plan.each, program)

    def nests(self, plan: StackPlan) -> tuple[Plan, ...]:
        """Return the plans of each product's nests; none if several products share vectors."""
        return plan.each.nests if plan.each is not None else ()

    def flops(self, plan: StackPlan) -> Expr:
        """Return the flops of all products."""
        return flops_of(plan.spec, plan.sizes, plan.batch.count)

    def estimate(self, plan: StackPlan, sizes: Mapping[str, int], *, cold: bool) -> Estimate | None:
        """Return the estimate; None if there is nothing to sum."""
        summed = plan.each is None or _sums(plan.each)
        return estimate_stack(plan, sizes, cold=cold) if summed else None

    def resolved(self, plan: StackPlan, program: Program) -> Schedule | None:
        """Return the schedule of each product, with a loop over the products around it."""
        threads = plan.schedule.threads
        if plan.each is None:
            return Schedule(tile=plan.tile, vectorize="b", threads=threads)
        one = schedule_of(plan.each, program)
        loop = "B" if plan.parallel else "b"
        return one and replace(one, loops=f"{loop}{one.loops}", threads=threads)

    def converts(self, plan: StackPlan) -> bool:
        """Return True if each product converts elements."""
        return plan.each is not None and _converts(plan.each)

    def static_offsets(self, plan: StackPlan) -> Mapping[str, tuple[int, ...]]:
        """Return no offsets: the matrices of a stack are a fixed distance apart."""
        return plan.batch.static


def _reasons(plan: Plan | ByRows, program: Program) -> Iterator[Row]:
    yield from rows_of_product(plan.nests[0])
    yield from reasons.decisions(plan.nests, program)


def _sums(plan: Plan | ByRows) -> bool:
    return any(tile.steps != 0 for tile in plan.nests[0].tiling.tiles)


def _converts(plan: Plan | ByRows) -> bool:
    return any(nest.staging.finishes or not nest.staging.plain for nest in plan.nests)


register(Gemm, Plan, Product())
register(None, ByRows, Product())
register(None, StackPlan, Stack())
