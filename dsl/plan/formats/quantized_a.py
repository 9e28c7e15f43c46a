"""The packed format of a quantized A: rows of integers, each followed by its scales and sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sympy import Expr, Integer, Rational

from tilewright.ir.nest import Name
from tilewright.isa.target import Target
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Packed
from tilewright.spec.pack import QuantizeRows
from tilewright.spec.quantized import Quantize
from tilewright.spec.schedule import Schedule
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ONE, ZERO, size_expr

from ..loops import Decided, Decision, check_unscheduled
from ..operands import Operand
from .low_bit import QuantizedRows
from .quantized_b import quantized_format, quantized_product

#: The form in which the sum of a block's elements is stored. Zero points of B need the negated sum,
#: minima of B the sum times A's scale. Without either, no sum is stored.
_SUMS = {"": "", "zeros": "negated", "minima": "scaled"}


def rows_operands(form: QuantizedRows, buffer: str) -> dict[str, Operand]:
    """Return the parts of A's records as operands inside ``buffer``.

    Strides along K are fractions for values that serve a whole block, and 0 for those of a row.
    """
    found = {}
    for name, (type_, begin, count) in form.parts.items():
        along: Expr = Rational(1, form.block) if count == form.blocks else ZERO
        if name == "a":
            along = ONE
        elif name in ("a_scales", "a_zeros") and form.whole:
            along = ZERO
        steps = {"m": Integer(form.row_bytes // ITEMSIZE[type_]), "k": along, "b": ZERO}
        found[name] = Operand(name, type_, steps, Name(buffer), begin)
    return found


def rows_format(spec: Gemm, target: Target) -> QuantizedRows:
    """Return the format of A, which depends only on target, ``tw.Quantize``, B's type, m and k."""
    how, quantized = spec.quantize, spec.quantized
    assert how is not None and quantized is not None and isinstance(spec.k, int)
    form = quantized_format(spec, target)
    return QuantizedRows(
        integers=quantized_product(spec, target).across,
        m=spec.m if isinstance(spec.m, int) else None,
        k=spec.k,
        block=form.block,
        whole=how.block is None,
        zeros=how.zero is not None,
        bias=form.bias,
        sums=_SUMS[quantized.zeros],
    )


def rows_format_of(spec: QuantizeRows, target: Target) -> QuantizedRows:
    """Return the format that a kernel of ``spec`` writes."""
    return rows_format(Gemm(spec.m, 1, spec.k, a=Packed(spec.a), b=Packed(spec.b)), target)


@dataclass(frozen=True, slots=True, repr=False)
class QuantizeRowsPlan(Decided):
    """The plan of ``pack_a`` for a quantized A. ``operands`` are A and the parts of its records."""

    spec: QuantizeRows
    target: Target
    format: QuantizedRows
    rows: Expr
    operands: Mapping[str, Operand] = field(hash=False)
    decisions: tuple[Decision, ...] = ()
    batch: None = None

    @property
    def how(self) -> Quantize:
        """How A is quantized."""
        return self.spec.a

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the sizes of the call."""
        return self.spec.slots


def plan_rows_of_a(spec: QuantizeRows, schedule: Schedule, target: Target) -> QuantizeRowsPlan:
    """Return the plan; raise ScheduleError for any schedule, because the target decides all."""
    check_unscheduled(schedule)
    form = rows_format_of(spec, target)
    leading = size_expr("lda", spec.lda) if spec.lda is not None else size_expr("k", spec.k)
    given = Operand("x", spec.a.type, {"m": leading, "k": ONE}, Name("a"))
    why = f"{form.row_bytes} bytes for each row, for B of {spec.b.type}"
    return QuantizeRowsPlan(
        spec=spec,
        target=target,
        format=form,
        rows=size_expr("m", spec.m),
        operands={"x": given, **rows_operands(form, "out")},
        decisions=(Decision("format", form.text, why),),
    )
