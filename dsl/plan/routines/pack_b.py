"""The plan of packing a B ahead: its format, and how it is cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sympy import Expr

from tilewright.ir.nest import Name
from tilewright.isa.target import Target
from tilewright.spec.operands import Packed
from tilewright.spec.pack import Pack, QuantizeRows
from tilewright.spec.schedule import Schedule
from tilewright.spec.types import ITEMSIZE, accumulator
from tilewright.symbolic import ONE, size_expr, value

from ..contraction import Product, choose_product, held_as
from ..formats.layout import ALIGNMENT, PackedFormat
from ..formats.lookup import PlainFormat, format_of, packing_of_d
from ..formats.packed_b import packed_a_product, packed_product
from ..formats.quantized_a import QuantizeRowsPlan, plan_rows_of_a, rows_operands
from ..loops import Decided, Decision, check_unscheduled
from ..operands import BatchPlan, Operand, packed_by_caller
from ..plan import Plan

#: Columns are summed after every ``CHUNK_BYTES`` packed bytes, because L1 still holds these then.
CHUNK_BYTES = 16 * 1024
#: If columns of B are contiguous, ``STRIP_VECTORS`` vectors of columns are packed together, and
#: ``COLUMN_BYTES`` packed bytes of each column at a time. With more columns, a core would read too
#: many streams and write too many cache lines at once.
STRIP_VECTORS, COLUMN_BYTES = 16, 128


@dataclass(frozen=True, slots=True, repr=False)
class PackPlan(Decided):
    """A packing with every choice made.

    ``format`` is the format of one matrix, with formulas for sizes that only the call knows.
    ``operands`` are the given B and the packed ``out``. ``strip`` columns of a block are packed
    together, ``chunk`` elements of K at a time. ``summing`` is the multiply-add that sums columns,
    by a product with ones. ``slots`` are the run-time sizes.
    """

    spec: Pack
    target: Target
    product: Product
    summing: Product
    format: PackedFormat[Expr]
    operands: Mapping[str, Operand] = field(hash=False)
    batch: BatchPlan | None
    strip: int
    chunk: int
    decisions: tuple[Decision, ...]
    slots: tuple[str, ...]

    @property
    def element(self) -> str:
        """The type of the elements that are written."""
        return self.format.stored

    @property
    def sums(self) -> str:
        """The type of sums of products with B."""
        return accumulator(self.spec.a, self.spec.type)

    @property
    def shift(self) -> int:
        """What is added to each element."""
        return self.product.shifts["a" if self.spec.rows else "b"]

    @property
    def lanes(self) -> int:
        """The columns in a vector; for a single column, the K groups that fit the alignment."""
        vectors, form = self.target.of(self.sums), self.format
        if form.rows:
            return next(v.lanes for v in vectors if form.nb % v.lanes == 0)
        if not form.column:
            return vectors[0].lanes
        each = max(ITEMSIZE[self.sums], form.group * form.itemsize)
        return next(v.lanes for v in vectors if v.lanes * each <= ALIGNMENT)


def plan_packing(spec: Pack, schedule: Schedule, target: Target) -> PackPlan:
    """Return the plan; raise ScheduleError for any schedule, because the target decides
    the format.
    """
    check_unscheduled(schedule)
    k, n = (size_expr(slot, getattr(spec, slot)) for slot in "kn")
    format_ = format_of(spec, target).of(k, n)
    held = held_as(target, spec.a, spec.type, spec.sums)
    if spec.rows:
        product = packed_a_product(target, spec.type, spec.a, spec.sums)
    else:
        product = packed_product(target, spec.a, Packed(spec.type, spec.nb), spec.n, held)
    out = packed_by_caller(format_, None)
    strip, chunk = _pieces(spec, format_, target)
    strides = {"n" if d == "m" else d: step for d, step in out.strides.items()}
    given, written = _given(spec), Operand("out", out.type, strides)
    if format_.column and value(given.strides["k"]) != 1:
        given, written = group_by_group(given, written)
    operands = {"b": given, "out": written}
    return PackPlan(
        spec=spec,
        target=target,
        product=product,
        summing=_summing(target, product, format_.stored, rows=spec.rows),
        format=format_,
        operands=operands,
        batch=_batch(spec),
        strip=strip,
        chunk=chunk,
        decisions=tuple(_decisions(format_of(spec, target), product)),
        slots=spec.slots,
    )


def plan_of_d(plan: Plan) -> PackPlan | QuantizeRowsPlan:
    """Return the plan that packs rows of a product's D from the buffer that its tiles fill."""
    packing, rows = packing_of_d(plan.spec, plan.target), plan.staging.operands["d"]
    if isinstance(packing, QuantizeRows):
        quantized = plan_rows_of_a(packing, Schedule(), plan.target)
        given = Operand("x", rows.type, rows.strides, rows.buffer)
        return replace(quantized, operands={"x": given, **rows_operands(quantized.format, "d")})
    found = plan_packing(packing, Schedule(), plan.target)
    form = found.format.family.of(plan.problem.sizes["n"], plan.problem.sizes["m"])
    out = packed_by_caller(form, None)
    strides = {"n" if d == "m" else d: step for d, step in out.strides.items()}
    given = Operand("b", rows.type, {"n": rows.strides["m"], "k": ONE}, rows.buffer)
    operands = {"b": given, "out": Operand("out", out.type, strides, Name("d"))}
    return replace(found, format=form, operands=operands, slots=plan.slots)


def _summing(target: Target, product: Product, stored: str, *, rows: bool) -> Product:
    """Return the multiply-add that sums columns, by a product with ones.

    It is ``product`` if this leaves a sum in each lane of a vector. Otherwise vectors sum in the
    same K groups: if a matrix unit multiplies, or for rows of A, which are across the vectors.
    """
    matrices = product.op.form in ("matrix", "block")
    if not (matrices or rows) or product.accumulator != "s32":
        return product
    vectors = replace(target, matrix=None)
    others = ("u8", "s8") if stored in ("u8", "s8") else (stored,)
    found = (choose_product(vectors, {"a": a, "b": stored}, "b") for a in others)
    return next(each for each in found if not each.shifts["b"])


def _given(spec: Pack) -> Operand:
    lines, line = ("k", "n") if spec.order == "C" else ("n", "k")
    return Operand("b", spec.source, {lines: _leading(spec), line: ONE})


def _leading(spec: Pack) -> Expr:
    if spec.ldb is not None:
        return size_expr("ldb", spec.ldb)
    return size_expr("n" if spec.order == "C" else "k", spec.contiguous_size)


def group_by_group(given: Operand, written: Operand) -> tuple[Operand, Operand]:
    """Return both operands for a B with one column that is not contiguous.

    Elements of the column take the place of columns: a step along n then moves down the column, so
    that vectors do not read the neighbouring columns in memory.
    """
    apart = given.strides["k"]
    return (
        replace(given, strides={"k": apart, "n": apart}),
        replace(written, strides={**written.strides, "n": ONE}),
    )


def _batch(spec: Pack) -> BatchPlan | None:
    if spec.batch is None:
        return None
    stride = spec.batch.b
    if stride is None:
        lines = size_expr("k", spec.k) if spec.order == "C" else size_expr("n", spec.n)
        step = lines * _leading(spec)
    else:
        step = size_expr("stride_b", stride)
    return BatchPlan("strided", size_expr("count", spec.batch.count), {"b": step}, {})


def _pieces(spec: Pack, format_: PackedFormat[Expr], target: Target) -> tuple[int, int]:
    """Return the columns that are packed together, and the elements of K.

    Contiguous rows are read from end to end. Contiguous columns are read in whole cache lines,
    several columns at a time, so that a written row also has several cache lines.
    """
    if spec.order == "C":
        group = format_.group * format_.nb * ITEMSIZE[format_.stored]
        return format_.nb, format_.group * max(1, CHUNK_BYTES // group)
    lanes = target.of(accumulator(spec.a, spec.type))[0].lanes
    line = target.core.line // ITEMSIZE[spec.source]
    return STRIP_VECTORS * lanes, max(line, COLUMN_BYTES // ITEMSIZE[format_.stored])


def _decisions(format_: PlainFormat, product: Product) -> list[Decision]:
    name = product.mnemonic or "multiply, add"
    how = "an element" if product.unit else "a lane"
    found = [Decision("format", format_.text, f"{name} sums {product.depth} products {how}")]
    name = "a" if format_.rows else "b"
    if shift := product.shifts[name]:
        why = f"so that {name.upper()} has the sign it multiplies"
        found.append(Decision("shift", f"{shift:+d}", why))
    return found
