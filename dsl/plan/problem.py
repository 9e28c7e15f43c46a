"""The first two values of a plan: the problem with its orientation, and its staged operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sympy import Expr

from tilewright.isa.target import Target
from tilewright.isa.vector import Form, Vector
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Packed
from tilewright.spec.schedule import MANY_ROWS, Schedule
from tilewright.spec.sizes import Dim
from tilewright.spec.types import ITEMSIZE, is_integer
from tilewright.symbolic import ONE, ZERO, div, mod, value

from .contraction import Product, converting_lanes
from .formats.layout import ALIGNMENT
from .formats.lookup import Format, height_of_d
from .formats.low_bit import QuantizedFormat, in_panel
from .operands import BatchPlan, Operand
from .tiling.cost_model import FewLines

#: This number of K elements is unpacked at once, or half of it. Both fill whole bytes: 4 elements
#: of 2 bits share a byte, and 8 elements of 3 bits share three bytes.
UNPACKED = 16
#: If a size is known only at the call, estimates and comparisons of plans assume this size.
NOMINAL = 64


@dataclass(frozen=True, slots=True)
class Problem:
    """What to compute, for which target, and the dimension along which vectors run.

    ``vectorize`` is the dimension along the vectors, m, n or k. ``sizes`` are m, n and k.
    """

    spec: Gemm
    schedule: Schedule
    target: Target
    vectorize: str
    sizes: Mapping[str, Expr] = field(hash=False)
    batch: BatchPlan | None

    @property
    def dot(self) -> bool:
        """True if vectors run along K."""
        return self.vectorize == "k"

    @property
    def along(self) -> str:
        """The dimension of C along the vectors (m for ``k``)."""
        return "m" if self.dot else self.vectorize

    @property
    def across(self) -> str:
        """The dimension of C across the vectors (n for ``k``)."""
        return "m" if self.vectorize == "n" else "n"

    @property
    def matrices(self) -> Expr:
        """The number of products in the batch; 1 without a batch."""
        return ONE if self.batch is None else self.batch.count

    def lanes_of(self, vector: Vector) -> int:
        """Return the elements of C in ``vector``: one if vectors run along K."""
        return 1 if self.dot else vector.lanes

    def multiple(self, d: str) -> int:
        """Return a number that divides the size along ``d``; 1 if nothing is known of it."""
        size = getattr(self.spec, d)
        return 1 if isinstance(size, int) else int(size.multiple_of)

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the sizes of the call."""
        return self.spec.slots

    @property
    def bounces(self) -> bool:
        """True if a tail is computed as a whole vector, of which the existing lanes are copied."""
        return self.schedule.tails == "bounce"


@dataclass(frozen=True, slots=True)
class Staging:
    """The multiply-add, and what happens to the operands before it reads them.

    - ``operands``: the layout of all operands as tiles read them. In a loop that packs a block or
      sums into a buffer, it has the block or the buffer instead (``holding``).
    - ``sources``: the original layout of operands that are converted once, before the loops.
    - ``packs``: the operands, of "ab", that are packed block by block.
    - ``padded``: True if rows of the operand along the vectors may be read past their end, up to a
      whole vector.
    - ``form``: the format of a B that the caller packed.
    """

    problem: Problem
    product: Product
    operands: Mapping[str, Operand] = field(hash=False)
    sources: Mapping[str, Operand] = field(hash=False)
    padded: bool
    reason: str
    packs: str = ""
    form: Format | None = None

    # --- operands --------------------------------------------------------------------------------

    def holding(self, *operands: Operand) -> Staging:
        """Return the staging in which ``operands`` replace those of the same names."""
        return replace(self, operands={**self.operands, **{each.name: each for each in operands}})

    def input_of(self, dimension: str) -> Operand:
        """Return the input operand with elements along ``dimension`` of C."""
        return self.operands["a" if dimension == "m" else "b"]

    @property
    def along(self) -> Operand:
        """The input whose consecutive elements fill a vector."""
        return self.input_of(self.problem.along)

    @property
    def across(self) -> Operand:
        """The input whose elements are each broadcast to all lanes."""
        return self.input_of(self.problem.across)

    @property
    def output(self) -> Operand:
        """The operand that is written: C or D."""
        return self.operands[self.problem.spec.output]

    @property
    def transposed(self) -> bool:
        """True if the output is contiguous across the vectors: tiles are transposed and stored."""
        line = self.problem.vectorize
        return line != "k" and value(self.output.strides[line]) != 1

    def factor(self, name: str) -> str:
        """Return the type in which elements of operand ``name``, "a" or "b", are multiplied."""
        return self.product.along if self.along.name == name else self.product.across

    def recast(self, name: str) -> bool:
        """Return True if operand ``name`` is read in place as another type than the spec's."""
        operand = self.operands[name]
        given = getattr(self.problem.spec, name, None) if name in ("a", "b", "b2") else None
        return given is not None and not operand.packed and operand.type != given.type

    def batch_kind(self, operand: Operand) -> str:
        """Return how elements of ``operand``'s batch are found; operands that the kernel packs are
        strided.
        """
        assert self.problem.batch is not None
        return "strided" if operand.packed else self.problem.batch.kind

    def batch_stride(self, operand: Operand) -> Expr:
        """Return the elements from one matrix of the batch to the next, or the unit of its
        offsets.
        """
        assert self.problem.batch is not None
        return operand.strides.get("b", self.problem.batch.strides.get(operand.name, ZERO))

    # --- formats of packed operands --------------------------------------------------------------

    @property
    def quantized(self) -> QuantizedFormat:
        """The format of a quantized B; AssertionError for any other B."""
        assert isinstance(self.form, QuantizedFormat), "B is not quantized"
        return self.form

    def read_format(self, tile: tuple[int, int] | None) -> QuantizedFormat:
        """The format in which tiles read a quantized B: in panels as wide as ``tile`` if its
        numbers are unpacked first.
        """
        form, product = self.quantized, self.product
        if not (self.unpacks and product.partial):
            return form
        return in_panel(form, product.along, form.nb if tile is None else tile[1])

    @property
    def unpacks(self) -> bool:
        """True if blocks of a quantized B are unpacked before tiles read them."""
        return "b" in self.packs and self.problem.spec.quantized is not None

    @property
    def unpack_rows(self) -> int | None:
        """The least rows of C with which a quantized B is unpacked first; None if loops decide."""
        return 1 if self.product.unit is not None and self.product.block else None

    @property
    def columns(self) -> int | None:
        """The columns in a block of the caller's packed B; None if tiles read only one block."""
        b = self.operands["b"]
        read = "pn" in b.strides and not b.packed and not self.unpacks
        return self.form.nb if self.form and read else None

    @property
    def rows(self) -> int | None:
        """The rows of a panel of the caller's packed A; None where A is not packed ahead."""
        spec = self.problem.spec
        panels = isinstance(spec.a, Packed) and spec.quantize is None
        return int(self.operands["a"].strides["k"]) if panels else None

    @property
    def height_of_d(self) -> int | None:
        """The rows of a panel of a packed D, 1 if it is quantized; None if D is not packed."""
        return height_of_d(self.problem.spec, self.problem.target)

    # --- steps of K ------------------------------------------------------------------------------

    @property
    def k_unit(self) -> int:
        """Blocks of K have a multiple of this number of elements.

        It is the number of elements in a K step. If B is unpacked first, it is the number of
        elements that are unpacked at once (``UNPACKED``), or half of it.
        """
        if not self.unpacks:
            return self.product.step
        return UNPACKED if self.quantized.block % UNPACKED == 0 else UNPACKED // 2

    def steps(self, extent: Expr, *, finish: bool = False) -> tuple[Expr, Expr]:
        """Return the whole K steps in ``extent``, and the elements of K after them."""
        spec, depth = self.problem.spec, self.product.step
        if finish or is_empty(spec):
            return ZERO, ZERO
        if depth == 1:
            return extent, ZERO
        filled = spec.sums_blocks or not self.product.block
        if filled and (self.across.packed or isinstance(spec.a, Packed)):
            return div(extent + (depth - 1), depth), ZERO
        return div(extent, depth), mod(extent, depth)

    def counted(self, steps: Expr, k_tail: Expr) -> Expr:
        """Return the number of K steps for the cost model; an incomplete step counts as whole."""
        return steps + div(k_tail + (self.product.step - 1), self.product.step)

    # --- vectors and sums ------------------------------------------------------------------------

    @property
    def element(self) -> str:
        """The type of the accumulators."""
        return self.product.accumulator

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """The vector types of the target that tiles can use, widest first."""
        forms: tuple[Form, ...] = ("broadcast", "scalar")
        problem, product = self.problem, self.product
        vectors = tuple(v for v in problem.target.of(self.element) if product.form(v, *forms))
        if isinstance(problem.spec.b, Packed) and problem.dot:
            each = product.depth * ITEMSIZE[self.operands["b"].type]
            vectors = tuple(v for v in vectors if v.lanes * each <= ALIGNMENT)
        elif isinstance(problem.spec.b, Packed):
            assert self.form is not None, "a packed B has a format"
            vectors = tuple(v for v in vectors if v.lanes <= self.form.nb)
        if self.transposed:
            whole = problem.bounces or self.finishes
            return tuple(v for v in vectors if v.transposes and (whole or v.cuts_any))
        return tuple(v for v in vectors if v.cuts_any) if problem.dot else vectors

    @property
    def lanes(self) -> int:
        """The lanes of the widest vector that sums or converts; buffers are padded to it."""
        return max(self.problem.target.of(self.element)[0].lanes, self.converted)

    @property
    def converted(self) -> int:
        """The lanes of the vectors that convert elements; those of s32 if sums have 64 bits."""
        return converting_lanes(self.problem.target, self.problem.spec.type)

    @property
    def few_across(self) -> FewLines | None:
        """The maximum number of rows across the vectors, if C has few and only the call knows how
        many.

        None if the number may be large, if it is known, or if a matrix unit multiplies. If the
        operand along the vectors is not packed, each tile reads all of it, so that further tiles
        are expensive. The kernel then has a tile for each number of rows: a remainder takes one
        more tile, or two equal ones.
        """
        size = getattr(self.problem.spec, self.problem.across)
        open_ = isinstance(size, Dim) and self.product.unit is None
        if not open_ or size.max is None or size.max >= MANY_ROWS:
            return None
        return FewLines(size.max, self.along.name not in self.packs)

    @property
    def even_across(self) -> bool:
        """True if the kernel has a tile for each number of rows up to a small limit."""
        few = self.few_across
        return few is not None and few.even

    @property
    def plain(self) -> bool:
        """True if A and B are multiplied without conversion.

        They then have the type of the sums and need no K groups.
        """
        return same_types(self.problem.spec) and not self.product.blocks

    @property
    def finishes(self) -> bool:
        """True if sums need more than scaling and adding to C.

        They are then converted, corrected, or stored as D.
        """
        return self.remakes or self.corrects

    @property
    def remakes(self) -> bool:
        """True if partial sums cannot be kept in C.

        This is so if sums are scaled in another type than C's, converted, or stored as D.
        """
        spec = self.problem.spec
        whole = not is_integer(spec.type) or is_integer(spec.factor_type)
        # Sums of a narrow type are scaled by alpha and beta, and added to each other, in f32.
        if self.narrow:
            whole = spec.alpha == 1 and spec.beta == 0 and spec.sum_steps is None
        more = spec.d is not None or bool(spec.outputs)
        return not whole or more or spec.c.type != self.element

    @property
    def narrow(self) -> bool:
        """True if sums have a smaller type than the arithmetic after them."""
        return self.element != self.problem.spec.type

    @property
    def corrects(self) -> bool:
        """True if zero points, or the effect of shifts, are subtracted from the sums."""
        spec = self.problem.spec
        if is_empty(spec) or spec.quantized is not None:
            return False
        zeros = (spec.a_zero, spec.b_zero)
        return any(self.product.shifts.values()) or any(z not in (None, 0) for z in zeros)


def same_types(spec: Gemm) -> bool:
    """True if A and B have the accumulators' type, and B is not packed."""
    alike = spec.a.type == spec.b.type == spec.type and spec.math is None
    return alike and not spec.is_packed


def is_empty(spec: Gemm) -> bool:
    """True if nothing is summed, or if neither D nor an output uses the sums.

    A and B are then not read.
    """
    return spec.k == 0 or (spec.batch is not None and spec.batch.count == 0) or not spec.reads_sums
