"""Packings of B ahead of its use: of ordinary elements, and of low-bit elements with scales."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.explain.decisions import LINES, text_of
from tilewright.ir.stages import Stage
from tilewright.isa.target import Target
from tilewright.lower.pack_b import pack_program
from tilewright.lower.pack_quantized import quantized_packing
from tilewright.plan.routine import Routine, register
from tilewright.plan.routines.pack_b import PackPlan, plan_packing
from tilewright.plan.routines.pack_quantized import QuantizedPackPlan, plan_quantized_packing
from tilewright.spec.pack import Pack, PackQuantized
from tilewright.spec.schedule import Schedule


class Packing(Routine[Pack, PackPlan]):
    """The packing of a B, or of a batch of B."""

    def plan(self, spec: Pack, schedule: Schedule, target: Target) -> PackPlan:
        """Return the plan."""
        return plan_packing(spec, schedule, target)

    def stages(self, plan: PackPlan) -> tuple[Stage, ...]:
        """Return the only stage: the packing of all matrices."""
        return (Stage(pack_program(plan)),)

    def head(self, plan: PackPlan) -> Iterator[str]:
        """Yield the size of B, and its types before and after."""
        spec, strides = plan.spec, plan.operands["b"].strides
        apart, line = strides["k" if spec.order == "C" else "n"], LINES[spec.order]
        yield (
            f"pack      B {spec.k} x {spec.n} ({line}s {text_of(apart)} elements apart), "
            f"{spec.source} as {spec.type}, for A of {spec.a}: {plan.format.nbytes} bytes"
        )
        if plan.batch:
            yield f"batch     strided, {text_of(plan.batch.count)} of B"

    def converts(self, plan: PackPlan) -> bool:
        """Return True: elements may be converted or grouped by functions on their bits."""
        return True


class QuantizedPacking(Routine[PackQuantized, QuantizedPackPlan]):
    """The packing of a low-bit B."""

    def plan(self, spec: PackQuantized, schedule: Schedule, target: Target) -> QuantizedPackPlan:
        """Return the plan."""
        return plan_quantized_packing(spec, schedule, target)

    def stages(self, plan: QuantizedPackPlan) -> tuple[Stage, ...]:
        """Return the only stage."""
        return (Stage(quantized_packing(plan)),)

    def head(self, plan: QuantizedPackPlan) -> Iterator[str]:
        """Yield the size of B, and its format."""
        spec, form = plan.spec, plan.format
        yield (
            f"pack      B {spec.k} x {spec.n} ({LINES[spec.order]}s contiguous), "
            f"{spec.type.type} with scales for {form.block} of K: {form.nbytes} bytes"
        )

    def converts(self, plan: QuantizedPackPlan) -> bool:
        """Return True: words of several elements are loaded and stored."""
        return True


register(Pack, PackPlan, Packing())
register(PackQuantized, QuantizedPackPlan, QuantizedPacking())
