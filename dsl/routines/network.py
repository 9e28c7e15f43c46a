"""Networks: row programs, and products with row programs between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from math import prod
from operator import attrgetter
from typing import Any

from sympy import Expr

from tilewright.errors import PlanError
from tilewright.explain.decisions import text_of
from tilewright.ir.nest import Argument, BlockLoop, Lookup, Name, Program, WhenSame, names_used
from tilewright.ir.nodes import mapped, walk
from tilewright.ir.stages import Buffer, Stage, embedded, in_order, in_own_memory
from tilewright.isa.target import Target
from tilewright.lower.rows.program import row_work, rows_program
from tilewright.plan.estimate.kernel import Estimate
from tilewright.plan.estimate.rows import estimate_rows
from tilewright.plan.network.blocks import numbers_of
from tilewright.plan.network.step import FOUND, Step
from tilewright.plan.routine import Routine, Row, StageFacts, register, routine_of
from tilewright.plan.routines.network import NetworkPlan, plan_network
from tilewright.plan.rows.plan import RowsPlan, plan_rows
from tilewright.spec.expression.nodes import text_of as results_text
from tilewright.spec.network.value import SHARED, Network
from tilewright.spec.schedule import Schedule
from tilewright.symbolic import ONE, ZERO, symbol

from .row_blocks import at_most, in_blocks, whole, with_space
from .stage_facts import stage_facts


class RowProgram(Routine[Network, RowsPlan]):
    """Passes over each row, or over the rows of each block of columns."""

    def plan(self, spec: Network, schedule: Schedule, target: Target) -> RowsPlan:
        """Return the plan of a row program, or, for a network with products, a NetworkPlan."""
        # A NetworkPlan has a kind of its own, which ``routine_of`` finds.
        make = plan_network if spec.staged else plan_rows
        try:
            return make(spec, schedule, target)  # type: ignore[return-value]
        except RecursionError:
            raise PlanError(
                "functions of a network are nested too deeply",
                got=f"{spec.words()[0]} of {len(spec.inputs)} tensors",
                hint="several networks, each called with the results of the one before",
            ) from None

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
        return plan.spec.slots

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

    keeps = True

    def stages(self, plan: NetworkPlan) -> tuple[Stage, ...]:
        """Return the stages in order, with the intermediate tensors as buffers between them."""
        programs: dict[Any, tuple[str, Program]] = {}
        found: list[Stage] = []
        for block, steps in groupby(plan.steps, attrgetter("block")):
            stages = [
                Stage(_embedded(step, programs), () if step.buffer is None else (step.buffer,))
                for step in steps
            ]
            found += stages if block is None else [in_blocks(block, stages)]
        return tuple(found)

    def head(self, plan: NetworkPlan) -> Iterator[str]:
        """Yield the results, and a line for each stage."""
        spec = plan.spec
        yield f"network   {results_text(spec.results, several=spec.several, shared=SHARED)}"
        for weight, constant in spec.constants.items():
            yield f"constant  {weight!r} = {constant!r}, computed by pack"
        for number, step in enumerate(plan.steps):
            yield f"stage {number}   {step.name}: {step.written} = {step.said}"
        for name, numbers in numbers_of(plan.steps).items():
            if numbers[1:]:
                yield f"stages    {name}: {' '.join(plan.steps[n].name for n in numbers)}"
        for step in plan.steps:
            if step.inside:
                where = "in the accumulators" if step.product is not None else "in the same passes"
                yield f"within    {step.name}: {' '.join(step.inside)}, {where}"
        for block, steps in groupby(plan.steps, attrgetter("block")):
            if block is not None:
                these = f"stages {block.first} to {block.first + len(tuple(steps)) - 1}"
                shared = f", in equal shares for {block.threads} threads" if block.parallel else ""
                count = prod((loop.trips for loop in block.stack), start=ONE)
                of = "" if count == 1 else f" of each of {text_of(count)} matrices"
                yield f"blocks    {block.said}{of} at a time: {these}{shared}"
                if block.height is None and block.sharing > 1:
                    inside = ", whose loops threads share" if block.inner else ""
                    yield f"          a call of at most {block.single} rows has one block{inside}"
        for step in plan.steps:
            if step.buffer is not None:
                nbytes, note = step.buffer.nbytes, ""
                if step.block is not None and step.written in step.block.private:
                    nbytes, note = at_most(nbytes, plan.steps), ", for one block of rows"
                yield f"buffer    {step.written}: {text_of(nbytes)} bytes{note}"
        if plan.steps[1:]:
            program = in_order(self.stages(plan))
            scratch = at_most(program.scratch, plan.steps)
            yield f"scratch   {text_of(scratch)} bytes, in which the buffers are in turn"
            if program.worker_scratch != 0:
                each = at_most(program.worker_scratch, plan.steps)
                yield f"thread    {text_of(each)} bytes of scratch for each thread"

    def decisions(self, plan: NetworkPlan, program: Program) -> Iterator[Row]:
        """Yield the decisions on the network, and on each stage."""
        for each in plan.decisions:
            yield each.what, each.choice, each.reason
        for number, step in enumerate(plan.steps):
            for each in step.plan.decisions:
                yield f"{number} {each.what}", each.choice, each.reason

    def shown(self, plan: NetworkPlan) -> tuple[str, ...]:
        """Return all sizes: products give no formulas for sizes that a stage binds."""
        return plan.spec.slots

    def flops(self, plan: NetworkPlan) -> Expr:
        """Return the flops of all products."""
        total: Expr = ZERO
        for step in plan.products:
            own = {symbol(name): size for name, size in whole(step).items()}
            one = routine_of(step.plan).flops(step.plan).xreplace(own)
            around = step.loops if step.block is None else step.block.stack
            total += prod((loop.trips for loop in around), start=one)
        return total

    def facts(self, plan: NetworkPlan, sizes: Mapping[str, int]) -> Iterator[StageFacts]:
        """Yield numbers of the stages in order."""
        return stage_facts(plan, sizes)

    def resolved(self, plan: NetworkPlan, program: Program) -> Schedule | None:
        """Return the schedule: the plan follows from the spec alone."""
        return plan.schedule

    def converts(self, plan: NetworkPlan) -> bool:
        """Return True: elements of other types may be converted by their bits."""
        return True


def _embedded(step: Step, programs: dict[Any, tuple[str, Program]]) -> Program:
    """Return the program of a stage, with the names of the network and the loops around it.

    Equal stages have one entry in ``programs``: the start of its tiles' names, and its program.
    """
    plan = step.plan
    key = (step.in_place, *(getattr(plan, name, None) for name in ("spec", "schedule", "leading")),
           *(nest.problem.schedule for nest in getattr(plan, "nests", ())))  # fmt: skip
    if key not in programs:
        one = in_order(routine_of(plan).stages(plan))
        one = in_own_memory(one) if step.in_place else one
        programs[key] = f"stage{len(programs)}_", one
    prefix, program = programs[key]

    def shifted(argument: Argument) -> Argument:
        shift = step.shifts.get(argument.symbol, ZERO)
        return replace(argument, offset=argument.offset + shift) if shift != 0 else argument

    if step.shifts:
        program = replace(program, nest=mapped(program.nest, Argument, shifted))
    found = embedded(program, prefix, step.operands, step.sizes)
    if step.block is not None:
        found = with_space(found, step)
    nest = found.nest
    if not nest:
        return found
    each = step.found
    if each is not None and FOUND.name in set[str]().union(*map(names_used, walk(nest))):
        nest = (Lookup(FOUND.name, each.indices, each.at, each.count, nest),)
    for place, loop in reversed(list(enumerate(step.loops))):
        parallel, work = step.parallel and place == 0, None
        if parallel and each is not None:
            work = prod((one.trips for one in step.loops[1:]), start=row_work(program.tiles))
        nest = (BlockLoop(loop.counter, loop.trips, nest, parallel=parallel, work=work),)
    if step.unless is not None:
        nest = (WhenSame(step.written, step.unless, (), nest),)
    return replace(found, nest=nest)


register(Network, RowsPlan, RowProgram())
register(None, NetworkPlan, Layers())
