"""Describe operands: types, strides in elements, and how the matrices of a batch are found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sympy import Expr, Integer

from tilewright.ir.nest import Name
from tilewright.spec.expression import Operand as Named
from tilewright.spec.gemm import QUANTITIES, SHAPES, Gemm, stride_slot
from tilewright.spec.operands import Addresses, Batch, Offsets, Strided
from tilewright.spec.scalars import quantity_type
from tilewright.spec.signature import symbol_of
from tilewright.spec.sums import rounded_type
from tilewright.symbolic import ONE, ZERO, div, size_expr, value

from .contraction import Product
from .formats.layout import PackedFormat

#: The dimension of C along which rows of A and columns of B are packed.
LINE = {"a": "m", "b": "n"}
#: The default of ``Operand.buffer``. An operand that is not packed replaces it by its own name.
NOWHERE = Name("")


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand's type and strides in elements, by dimension.

    ``buffer`` names the memory, which is the operand itself if it is not packed. For a packed
    operand, ``b`` is the stride between elements of the batch. ``at`` is the byte at which the
    operand begins in another operand of the caller; None if it is an operand or buffer of its own.
    ``rounded`` is the type to which elements are rounded before they are multiplied, "" for none.
    """

    name: str
    type: str
    strides: Mapping[str, Expr] = field(hash=False)
    buffer: Name = NOWHERE
    at: int | None = None
    rounded: str = ""

    def __post_init__(self) -> None:
        if self.buffer == NOWHERE:
            object.__setattr__(self, "buffer", Name(self.name))

    @property
    def packed(self) -> bool:
        """True if the operand is in a buffer of the kernel."""
        return str(self.buffer) != self.name and self.at is None


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The batch: its kind, count, strides if it is strided, and constant offsets."""

    kind: str
    count: Expr
    strides: Mapping[str, Expr] = field(hash=False)
    static: Mapping[str, tuple[int, ...]] = field(hash=False)


def operand_of(spec: Gemm, name: str) -> Operand:
    """Return operand ``name`` of ``spec`` in the caller's layout."""
    rows, cols = SHAPES[name]
    operand = getattr(spec, name)
    leading_slot = f"ld{name[0]}"
    given = getattr(spec, leading_slot)
    contiguous = cols if operand.order == "C" else rows
    if given is None:
        leading = size_expr(contiguous, getattr(spec, contiguous))
    else:
        leading = size_expr(leading_slot, given)
    in_c = operand.order == "C"
    strides = {rows: leading, cols: ONE} if in_c else {rows: ONE, cols: leading}
    rounded = rounded_type(spec.math, operand.type) if rows == "k" or cols == "k" else operand.type
    return Operand(name, operand.type, strides, rounded="" if rounded == operand.type else rounded)


def vectors_of(spec: Gemm) -> dict[str, Operand]:
    """Return scales, zero points, named operands and outputs, with stride 0 along shared
    dimensions.
    """
    found = {}
    for name in QUANTITIES:
        per = getattr(spec, name)
        if isinstance(per, str):
            steps = {"m": ONE if per == "row" else ZERO, "n": ONE if per == "column" else ZERO}
            found[name] = Operand(name, quantity_type(name, spec.type), steps)
    for operand in spec.named:
        symbol = symbol_of(operand.name)
        found[symbol] = Operand(symbol, operand.type, _steps(spec, operand))
    for name, _ in spec.outputs:
        found[symbol_of(name)] = Operand(symbol_of(name), "f32", {"m": ONE, "n": ZERO})
    return found


def _steps(spec: Gemm, operand: Named) -> dict[str, Expr]:
    per = operand.per
    if per == "full":
        in_c = spec.order == "C"
        line = "n" if in_c else "m"
        leading = size_expr(line, getattr(spec, line))
        return {"m": leading if in_c else ONE, "n": ONE if in_c else leading}
    return {"m": ONE if per == "row" else ZERO, "n": ONE if per == "column" else ZERO}


def batch_of(spec: Gemm) -> BatchPlan | None:
    """Return the batch of ``spec``, or None."""
    batch = spec.batch
    if batch is None:
        return None
    count = size_expr("count", batch.count)
    match batch:
        case Strided():
            strides = {name: batch_stride(spec, name) for name in "ab"}
            return BatchPlan("strided", count, strides, {})
        case Offsets():
            given = {name: getattr(batch, name) for name in "ab"}
            static = {name: offsets for name, offsets in given.items() if offsets is not None}
            return BatchPlan("offsets", count, {"a": ONE, "b": ONE}, static)
        case Addresses():
            return BatchPlan("addresses", count, {}, {})


def batch_stride(spec: Gemm, name: str) -> Expr:
    """Return the elements from one matrix of operand ``name`` to the next in a strided batch."""
    given = spec.stride(name)
    if given is not None:
        return size_expr(stride_slot(name), given)
    rows, cols = SHAPES[name]
    lines = rows if getattr(spec, name).order == "C" else cols
    return size_expr(lines, getattr(spec, lines)) * operand_of(spec, name).strides[lines]


def whole_groups(extent: Expr, product: Product) -> Expr:
    """Return the number of K groups in ``extent`` elements of K, padded to whole steps."""
    depth = product.depth
    return extent if depth == 1 else div(extent + (depth - 1), depth) * (depth // product.group)


def whole_vectors(extent: Expr, lanes: int) -> Expr:
    """Return ``extent`` rounded up to whole vectors."""
    return div(extent + (lanes - 1), lanes) * lanes


def odd_vectors(extent: Expr, lanes: int) -> Expr:
    """Return ``extent`` rounded up to an odd number of vectors, so that rows do not share cache
    sets.
    """
    return (2 * div(div(extent + (lanes - 1), lanes), 2) + 1) * lanes


def packed_by_caller(form: PackedFormat[Expr], batch: Batch | None) -> Operand:
    """Return the B, or A, that the caller packed in this format, as tiles read it.

    If B may have several blocks of columns, the stride ``pn`` is added for each column before the
    current block. For panels of A's rows, this stride is ``pm``.
    """
    line = "m" if form.rows else "n"
    shared = isinstance(batch, Strided) and batch.b == 0
    strides = {
        line: form.block_elements if form.nb == 1 else Integer(form.group),
        "k": Integer(form.nb),
        "b": ZERO if shared else form.elements,
    }
    if value(form.blocks) not in (0, 1) and form.nb != 1:
        strides[f"p{line}"] = form.groups * form.group - form.group
    return Operand("a" if form.rows else "b", form.stored, strides)
