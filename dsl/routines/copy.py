"""Copies between layouts and element types."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.explain.decisions import LINES, text_of
from tilewright.ir.nest import Name, Program, renamed
from tilewright.ir.stages import Stage
from tilewright.isa.target import Target
from tilewright.lower.move import MoveNest
from tilewright.lower.pack_b import pack_program
from tilewright.plan.routine import Routine, register
from tilewright.plan.routines.copy import CopyPlan, plan_copy
from tilewright.spec.operands import Matrix
from tilewright.spec.pack import Copy
from tilewright.spec.schedule import Schedule


class Copying(Routine[Copy, CopyPlan]):
    """A copy of a matrix to another layout, another type, or both."""

    def plan(self, spec: Copy, schedule: Schedule, target: Target) -> CopyPlan:
        """Return the plan."""
        return plan_copy(spec, schedule, target)

    def stages(self, plan: CopyPlan) -> tuple[Stage, ...]:
        """Return one stage."""
        if plan.packing is not None:
            move = plan.move if plan.move.source.fields > 1 else None
            program = pack_program(plan.packing, move)
            names = {Name("b"): Name("a"), Name("out"): Name("d")}
            nodes, tiles = renamed(program.nest, lambda name: names.get(name, name)), program.tiles
        else:
            nest = MoveNest(plan.move)
            nodes, tiles = (*nest.padding(), *nest.moves()), tuple(nest.tiles.values())
        return (Stage(Program(nodes, tiles)),)

    def head(self, plan: CopyPlan) -> Iterator[str]:
        """Yield the types, then both layouts."""
        shape = " x ".join(text_of(plan.sizes[name]) for name in ("rows", "cols"))
        yield f"copy      {shape}, {plan.spec.type_of('a')} to {plan.spec.type_of('d')}"
        for name, side in (("a", plan.move.source), ("d", plan.move.made)):
            given = getattr(plan.spec, name)
            if isinstance(given, Matrix):
                line = LINES[given.order]
                unit = "elements" if side.fields == 1 else "bytes"
                yield f"          {name.upper()} ({line}s {text_of(side.step)} {unit} apart)"
            else:
                yield f"          {name.upper()} (packed)"

    def converts(self, plan: CopyPlan) -> bool:
        """Return True: elements may be converted, or put into groups."""
        return True


register(Copy, CopyPlan, Copying())
