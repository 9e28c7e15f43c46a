"""The packed format of a quantized A: rows of integers, each followed by its scales and sums."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

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
from .quantized_b import ROW_UNIT, quantized_format, quantized_product

#: The form in which the sum of a block's elements is stored. Zero points of B need the negated sum,
#: minima of B the sum times A's scale. Without either, no sum is stored.
_SUMS = {"": "", "zeros": "negated", "minima": "scaled"}
_TEXT = re.compile(
    r"(?P<integers>[su](?:8|16|32)) rows with f32 scales(?P<zeros> and s32 zeros)? "
    r"for each (?P<per>row|block)(?:, sums times (?P<bias>-?[0-9]{1,9}))?"
    r"(?:, (?P<sums>negated|scaled) sums)?"
    r", blocks of (?P<block>[0-9]{1,9}), "
    r"(?P<m>[0-9]{1,19}|any m)x(?P<k>[0-9]{1,19})"
)


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """The layout of an m x k A that was quantized ahead: a record of ``row_bytes`` for each row.

    A record has these parts, in this order:

    - the row's integers, of type ``integers``, padded to whole blocks of K;
    - f32 scales, one for each block, or one for the row if ``whole``;
    - as many s32 zero points, negated, if ``zeros``;
    - for each block the s32 sum of its integers times ``-bias``, if the packed elements of B exceed
      their values by ``bias``;
    - for each block the f32 sum of its integers, "negated" or "scaled", if B has zero points or
      minima;
    - zeros.

    ``m`` is None if it is known only at the call.
    """

    integers: str
    m: Any
    k: int
    block: int
    whole: bool
    zeros: bool
    bias: int
    sums: str

    #: The kernel's pointer to a packed A counts in bytes.
    stored, itemsize = "u8", 1

    @property
    def text(self) -> str:
        """The format as one line of text. Equal formats have equal texts, others different ones."""
        zeros = " and s32 zeros" if self.zeros else ""
        sums = f", sums times {-self.bias}" if self.bias else ""
        sums += f", {self.sums} sums" if self.sums else ""
        rows, each = "any m" if self.is_open else self.m, "row" if self.whole else "block"
        return (
            f"{self.integers} rows with f32 scales{zeros} for each {each}{sums}, "
            f"blocks of {self.block}, {rows}x{self.k}"
        )

    @property
    def is_open(self) -> bool:
        """True if only the call knows the number of rows."""
        return self.m is None

    @property
    def shape(self) -> tuple[Any, int]:
        """The sizes m and k."""
        return self.m, self.k

    @property
    def family(self) -> QuantizedRows:
        """The same format for any number of rows."""
        return replace(self, m=None)

    def of(self, k: int, n: Any) -> QuantizedRows:
        """Return the same format for ``n`` rows."""
        return replace(self, m=n)

    @property
    def blocks(self) -> int:
        """The number of blocks of K in a row."""
        return -(-self.k // self.block)

    @property
    def parts(self) -> dict[str, tuple[str, int, int]]:
        """For each part of a record: its type, its first byte, and the number of its elements.

        The names are those of the operands of a product.
        """
        own = 1 if self.whole else self.blocks
        numbers = {
            "a": (self.integers, self.blocks * self.block),
            "a_scales": ("f32", own),
            "a_zeros": ("s32", own if self.zeros else 0),
            "a_starts": ("s32", self.blocks if self.bias else 0),
            "a_totals": ("f32", self.blocks if self.sums else 0),
        }
        found, begin = {}, 0
        for name, (type_, count) in numbers.items():
            if count:
                found[name] = type_, begin, count
                begin += ITEMSIZE[type_] * count
        return found

    @property
    def used(self) -> int:
        """The bytes of a record without the zeros at its end."""
        type_, begin, count = list(self.parts.values())[-1]
        return begin + ITEMSIZE[type_] * count

    @property
    def row_bytes(self) -> int:
        """The size of a record, an odd number of cache lines, so that rows use all sets of L1."""
        return (-(-self.used // ROW_UNIT) | 1) * ROW_UNIT

    @property
    def nbytes(self) -> Any:
        """The size of the matrix in bytes."""
        return self.m * self.row_bytes

    def operands(self, buffer: str) -> dict[str, Operand]:
        """Return the parts of the records as operands inside ``buffer``.

        Strides along K are fractions for values that serve a whole block, and 0 for those of a row.
        """
        found = {}
        for name, (type_, begin, count) in self.parts.items():
            along: Expr = Rational(1, self.block) if count == self.blocks else ZERO
            if name == "a":
                along = ONE
            elif name in ("a_scales", "a_zeros") and self.whole:
                along = ZERO
            steps = {"m": Integer(self.row_bytes // ITEMSIZE[type_]), "k": along, "b": ZERO}
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


def rows_format_named(text: str) -> QuantizedRows | None:
    """Return the format whose ``text`` this is, or None."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    form = QuantizedRows(
        integers=found["integers"],
        m=None if found["m"] == "any m" else int(found["m"]),
        k=int(found["k"]),
        block=int(found["block"]),
        whole=found["per"] == "row",
        zeros=found["zeros"] is not None,
        bias=-int(found["bias"] or 0),
        sums=found["sums"] or "",
    )
    return form if form.block and form.text == text else None


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
        return tuple(slot for slot, _ in self.spec.runtime_sizes())


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
        operands={"x": given, **form.operands("out")},
        decisions=(Decision("format", form.text, why),),
    )
