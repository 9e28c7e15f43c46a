"""Packings ahead of use: of an A or B, of a low-bit B, and of an A that is quantized."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.explain.decisions import LINES, text_of
from tilewright.ir.stages import Stage
from tilewright.isa.target import Target
from tilewright.lower.pack_b import pack_program
from tilewright.lower.pack_quantized import quantized_packing
from tilewright.lower.staging.quantize import rows_program
from tilewright.plan.formats.quantized_a import QuantizeRowsPlan, plan_rows_of_a
from tilewright.plan.routine import Routine, register
from tilewright.plan.routines.pack_b import PackPlan, plan_packing
from tilewright.plan.routines.pack_quantized import QuantizedPackPlan, plan_quantized_packing
from tilewright.spec.pack import Pack, PackQuantized, QuantizeRows
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
        if spec.rows:
            turned = LINES["F" if spec.order == "C" else "C"]
            yield (
                f"pack      A {spec.n} x {spec.k} ({turned}s {text_of(apart)} elements apart), "
                f"{spec.source} as {spec.type}, for B of {spec.a}: {plan.format.nbytes} bytes"
            )
            return
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


class RowQuantization(Routine[QuantizeRows, QuantizeRowsPlan]):
    """The quantization of an A ahead of the calls."""

    def plan(self, spec: QuantizeRows, schedule: Schedule, target: Target) -> QuantizeRowsPlan:
        """Return the plan."""
        return plan_rows_of_a(spec, schedule, target)

    def stages(self, plan: QuantizeRowsPlan) -> tuple[Stage, ...]:
        """Return the only stage: all rows."""
        return (Stage(rows_program(plan)),)

    def head(self, plan: QuantizeRowsPlan) -> Iterator[str]:
        """Yield the size of A, its types before and after, and the size of a packed row."""
        spec, form = plan.spec, plan.format
        yield (
            f"quantize  A {spec.m} x {spec.k}, {spec.a.type} as {form.integers} with scales: "
            f"{form.row_bytes} bytes for each row"
        )

    def converts(self, plan: QuantizeRowsPlan) -> bool:
        """Return True: elements may be converted by functions on their bits."""
        return True


register(QuantizeRows, QuantizeRowsPlan, RowQuantization())
register(Pack, PackPlan, Packing())
register(PackQuantized, QuantizedPackPlan, QuantizedPacking())
