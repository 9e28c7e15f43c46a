"""The plan of a product: every choice with its reason, and values that follow from the choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sympy import Expr

from tilewright.isa.target import Target
from tilewright.isa.vector import Form, Vector
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Packed
from tilewright.spec.schedule import LINES, MANY_ROWS, Schedule
from tilewright.spec.sizes import Dim
from tilewright.spec.types import ITEMSIZE, is_integer
from tilewright.symbolic import ZERO, div, mod, value

from .contraction import Product, converting_lanes
from .formats.lookup import Format, height_of_d
from .formats.packed_b import ALIGNMENT
from .formats.quantized_b import QuantizedFormat, in_panel
from .loops import Decided, Decision
from .operands import BatchPlan, Operand
from .staging import is_empty, same_types
from .tiling.cost_model import FewLines
from .tiling.tiles import Grid, Phase, RegisterTile, Step

#: This number of K elements is unpacked at once, or half of it. Both fill whole bytes: 4 elements
#: of 2 bits share a byte, and 8 elements of 3 bits share three bytes.
UNPACKED = 16
#: If a size is known only at the call, estimates and comparisons of plans assume this size.
NOMINAL = 64


@dataclass(frozen=True, slots=True, repr=False)
class Plan(Decided):
    """A GEMM with every choice that does not depend on the region of C.

    ``vectorize`` is the dimension along the vectors, ``across`` the other one of m and n (n for
    ``k``). ``outer`` are the loops over blocks, ``inner`` those around the accumulators; upper-case
    letters are parallel loops. ``transposed`` is True if the output is contiguous across the
    vectors, so that tiles are transposed before they are stored. ``packs`` are the operands, of
    "ab", that are packed block by block. ``sources`` has the original layout of operands that are
    converted once, before the loops. ``operands`` has the layout of all operands as tiles read
    them. ``padded`` is True if rows of the operand along the vectors may be read past their end, up
    to a whole vector.

    ``panel_tile`` is the register tile (mr, nr) whose size is the width of packed panels; the call
    then computes the sizes of blocks. None if there are no panels. ``summed`` has the most rows or
    columns whose sums over all of K are completed before the next ones; dimensions left out are in
    blocks already. None if C holds partial sums. Stores of C bypass the caches if ``streams`` is
    positive; None means never.
    """

    spec: Gemm
    schedule: Schedule
    target: Target
    product: Product
    vectorize: str
    across: str
    transposed: bool
    outer: str
    inner: str
    blocks: Mapping[str, int] = field(hash=False)
    sizes: Mapping[str, Expr] = field(hash=False)
    operands: Mapping[str, Operand] = field(hash=False)
    sources: Mapping[str, Operand] = field(hash=False)
    batch: BatchPlan | None
    packs: str
    padded: bool
    packed_format: Format | None
    decisions: tuple[Decision, ...]
    passes: Mapping[Phase, Step] = field(default_factory=dict, hash=False)
    tiles: tuple[RegisterTile, ...] = ()
    panel_tile: tuple[int, int] | None = None
    summed: Mapping[str, int] | None = field(default=None, hash=False)
    streams: Expr | None = None

    @property
    def nests(self) -> tuple[Plan, ...]:
        """The plans of all nests: this one."""
        return (self,)

    @property
    def conditions(self) -> tuple[Expr, ...]:
        """The conditions of nests after the first one: none."""
        return ()

    @property
    def unpack_rows(self) -> int | None:
        """The rows of C from which a quantized B is unpacked first; None if loops decide it."""
        return 1 if self.product.unit is not None and self.product.block else None

    @property
    def element(self) -> str:
        """The type of the accumulators."""
        return self.product.accumulator

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """The vector types of the target that this plan can use, widest first."""
        forms: tuple[Form, ...] = ("broadcast", "scalar")
        vectors = tuple(v for v in self.target.of(self.element) if self.product.form(v, *forms))
        if isinstance(self.spec.b, Packed) and self.dot:
            each = self.product.depth * ITEMSIZE[self.operands["b"].type]
            vectors = tuple(v for v in vectors if v.lanes * each <= ALIGNMENT)
        elif isinstance(self.spec.b, Packed):
            assert self.packed_format is not None, "a packed B has a format"
            vectors = tuple(v for v in vectors if v.lanes <= self.packed_format.nb)
        if self.transposed:
            whole = self.bounces or self.finishes
            return tuple(v for v in vectors if v.transposes and (whole or v.cuts_any))
        return tuple(v for v in vectors if v.cuts_any) if self.dot else vectors

    @property
    def asked_tile(self) -> tuple[int, int] | None:
        """The tile (mr, nr) of the schedule or of panels, as extents across and along the
        vectors.
        """
        tile = self.schedule.tile or self.panel_tile
        if tile is None:
            return None
        mr, nr = tile
        return (mr, nr) if self.across == "m" else (nr, mr)

    @property
    def few_across(self) -> FewLines | None:
        """The maximum number of rows across the vectors, if C has few and only the call knows how
        many.

        None if the number may be large, if it is known, or if a matrix unit multiplies. If the
        operand along the vectors is not packed, each tile reads all of it, so that further tiles
        are expensive. The kernel then has a tile for each number of rows: a remainder takes one
        more tile, or two equal ones.
        """
        size = getattr(self.spec, self.across)
        open_ = isinstance(size, Dim) and self.product.unit is None
        if not open_ or size.max is None or size.max >= MANY_ROWS:
            return None
        return FewLines(size.max, self.input_of(self.along).name not in self.packs)

    @property
    def even_across(self) -> bool:
        """True if the kernel has a tile for each number of rows up to a small limit."""
        few = self.few_across
        return few is not None and few.even

    def panel(self, name: str) -> int | None:
        """Return the rows or columns in a panel of packed operand ``name``; None without panels."""
        if self.panel_tile is None or name not in self.packs:
            return None
        return self.panel_tile[0 if name == "a" else 1]

    @property
    def shared(self) -> bool:
        """True if threads share the loops of one product."""
        return self.batch is None and self.outer != self.outer.lower()

    @property
    def unpacks(self) -> bool:
        """True if blocks of a quantized B are unpacked before tiles read them."""
        return "b" in self.packs and self.spec.quantized is not None

    @property
    def k_unit(self) -> int:
        """Blocks of K have a multiple of this number of elements.

        It is the number of elements in a K step. If B is unpacked first, it is the number of
        elements that are unpacked at once (``UNPACKED``), or half of it.
        """
        if not self.unpacks:
            return self.product.step
        return UNPACKED if self.quantized.block % UNPACKED == 0 else UNPACKED // 2

    def factor(self, name: str) -> str:
        """Return the type in which elements of operand ``name``, "a" or "b", are multiplied."""
        along = self.input_of(self.along).name == name
        return self.product.along if along else self.product.across

    @property
    def block_sizes(self) -> dict[str, str]:
        """The names of block sizes that the call computes, by dimension: mc, nc, kc.

        Without panels it is only kc, for a K known only at the call: one tile then serves whole
        blocks and the last one. Blocks of at most ``LINES`` steps are excluded, because their tiles
        have a constant number of steps. With a matrix unit or a quantized B, only panels have such
        names. If a quantized B is unpacked, only dimensions known only at the call have.
        """
        equal, called = [d for d in "mnk" if d in self.blocks], value(self.sizes["k"]) is None
        if self.panel_tile is None:
            vectors = self.product.unit is None and self.spec.quantized is None
            long = called and self.blocks.get("k", 0) > LINES
            return {"k": "kc"} if long and vectors else {}
        return {d: f"{d}c" for d in equal if not self.unpacks or value(self.sizes[d]) is None}

    @property
    def sum_sizes(self) -> dict[str, str]:
        """The names of the sizes of the part of C that is summed over all of K at once."""
        return {d: f"sum_{d}c" for d in self.summed or {}}

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of all sizes that tiles may depend on: the call's, then those of blocks."""
        given = (slot for slot, _ in self.spec.runtime_sizes())
        return (*given, *self.block_sizes.values(), *self.sum_sizes.values())

    @property
    def dot(self) -> bool:
        """True if vectors run along K."""
        return self.vectorize == "k"

    @property
    def bounces(self) -> bool:
        """True if a tail is computed as a whole vector, of which the existing lanes are copied."""
        return self.schedule.tails == "bounce"

    @property
    def finishes(self) -> bool:
        """True if sums need more than scaling and adding to C.

        They are then converted, corrected, or stored as D.
        """
        return self._remakes or self.corrects

    @property
    def _remakes(self) -> bool:
        """True if partial sums cannot be kept in C.

        This is so if sums are scaled in another type than C's, converted, or stored as D.
        """
        spec = self.spec
        whole = not is_integer(spec.type) or is_integer(spec.factor_type)
        # Sums of a narrow type are scaled by alpha and beta, and added to each other, in f32.
        if self.narrow:
            whole = spec.alpha == 1 and spec.beta == 0 and spec.sum_steps is None
        more = spec.d is not None or bool(spec.outputs)
        return not whole or more or spec.c.type != self.element

    @property
    def narrow(self) -> bool:
        """True if sums have a smaller type than the arithmetic after them."""
        return self.element != self.spec.type

    @property
    def partial(self) -> bool:
        """True if sums stay in a buffer until they are complete, because C cannot hold them.

        A correction for zero points alone needs no buffer if there are panels: the first block of K
        stores sums with the correction, and the other blocks add to them.
        """
        corrects = self.corrects and self.panel_tile is None
        apart = self._remakes or corrects or self.unpacks
        return apart and bool(set(self.outer.lower()) & {"b", "k"})

    @property
    def plain(self) -> bool:
        """True if A and B are multiplied without conversion.

        They then have the type of the sums and need no K groups.
        """
        return same_types(self.spec) and not self.product.blocks

    @property
    def corrects(self) -> bool:
        """True if zero points, or the effect of shifts, are subtracted from the sums."""
        zeros = (self.spec.a_zero, self.spec.b_zero)
        if is_empty(self.spec) or self.spec.quantized is not None:
            return False
        return any(self.product.shifts.values()) or any(z not in (None, 0) for z in zeros)

    @property
    def by_panels(self) -> bool:
        """True if A is converted one panel of rows at a time, while the previous panel is
        multiplied.

        Multiply-adds then hide the conversion. It needs a nest with rows outside and no other
        loops. A matrix unit may read rows that do not exist.
        """
        alone = self.batch is None and not self.partial and self.spec.b2 is None
        alone = alone and not self.product.block
        in_rows = "a" in self.sources and value(self.operands["a"].strides["k"]) == 1
        whole = alone and self.columns is None and self.product.unit is None
        return whole and in_rows and self.outer == "mn" and self.across == "m"

    @property
    def in_rows(self) -> bool:
        """True if the loop over tiles in dimension ``across`` is outside the one in ``along``."""
        letters = self.outer.lower()
        return 0 <= letters.rfind(self.across) < letters.rfind(self.along)

    def side_by_side(self, grids: Sequence[Grid]) -> list[tuple[Grid, ...]]:
        """Return ``grids`` in groups. The grids of a group share the loop in dimension ``across``.

        If that loop is the outer one, the adjacent tiles of all grids run one after another. The
        operand across the vectors then stays in cache, and rows of C are written in order.
        Otherwise each grid is its own group. With a matrix unit each grid is its own group, too,
        because the unit would change its configuration too often.
        """
        apart = not self.in_rows or self.product.unit is not None
        if apart or self.along.upper() == self.outer[self.outer.lower().rfind(self.along)]:
            return [(grid,) for grid in grids]
        found: dict[object, tuple[Grid, ...]] = {}
        for index, grid in enumerate(grids):
            key: object = index if grid.across.given else grid.across
            found[key] = (*found.get(key, ()), grid)
        return list(found.values())

    @property
    def lanes(self) -> int:
        """The lanes of the widest vector that sums or converts; buffers are padded to it."""
        return max(self.target.of(self.element)[0].lanes, self.converted)

    @property
    def converted(self) -> int:
        """The lanes of the vectors that convert elements; those of s32 if sums have 64 bits."""
        return converting_lanes(self.target, self.spec.type)

    @property
    def columns(self) -> int | None:
        """The columns in a block of the caller's packed B; None if tiles read only one block."""
        b, form = self.operands["b"], self.packed_format
        read = "pn" in b.strides and not b.packed and not self.unpacks
        return form.nb if form and read else None

    @property
    def rows(self) -> int | None:
        """The rows of a panel of the caller's packed A; None where A is not packed ahead."""
        panels = isinstance(self.spec.a, Packed) and self.spec.quantize is None
        return int(self.operands["a"].strides["k"]) if panels else None

    @property
    def height_of_d(self) -> int | None:
        """The rows of a panel of a packed D, 1 if it is quantized; None if D is not packed."""
        return height_of_d(self.spec, self.target)

    @property
    def quantized(self) -> QuantizedFormat:
        """The format of a quantized B; AssertionError for any other B."""
        assert isinstance(self.packed_format, QuantizedFormat), "B is not quantized"
        return self.packed_format

    @property
    def read_format(self) -> QuantizedFormat:
        """The format in which tiles read a quantized B: in panels if its numbers are unpacked
        first.
        """
        if not (self.unpacks and self.product.partial):
            return self.quantized
        return in_panel(self.quantized, self.product.along, self.panel("b") or self.quantized.nb)

    @property
    def output(self) -> Operand:
        """The operand that is written: C or D."""
        return self.operands[self.spec.output]

    @property
    def along(self) -> str:
        """The dimension of C along the vectors (m for ``k``)."""
        return "m" if self.dot else self.vectorize

    def counted(self, steps: Expr, k_tail: Expr) -> Expr:
        """Return the number of K steps for the cost model; an incomplete step counts as whole."""
        return steps + div(k_tail + (self.product.step - 1), self.product.step)

    def input_of(self, dimension: str) -> Operand:
        """Return the input operand along ``dimension`` of C."""
        return self.outside.input_of(dimension)

    @property
    def outside(self) -> Environment:
        """The operands as tiles would read them outside all loops, where no block is packed."""
        return Environment(self, self.operands)

    def batch_kind(self, operand: Operand) -> str:
        """Return how elements of ``operand``'s batch are found; operands that the kernel packs are
        strided.
        """
        assert self.batch is not None
        return "strided" if operand.packed else self.batch.kind

    def batch_stride(self, operand: Operand) -> Expr:
        """Return the elements from one matrix of the batch to the next, or the unit of its
        offsets.
        """
        assert self.batch is not None
        return operand.strides.get("b", self.batch.strides.get(operand.name, ZERO))


@dataclass(frozen=True, slots=True, repr=False)
class ByRows(Decided):
    """A product with two nests: the second one is for at least ``unpack_rows`` rows of C."""

    spec: Gemm
    target: Target
    decisions: tuple[Decision, ...]
    unpack_rows: int
    nests: tuple[Plan, ...]

    @property
    def conditions(self) -> tuple[Expr, ...]:
        """The formula that is positive if the second nest runs."""
        return (div(self.nests[0].sizes["m"], self.unpack_rows),)


@dataclass(frozen=True, slots=True)
class Environment:
    """The operands of a plan as tiles read them at one point of its loops.

    A loop that packs a block of an operand, or sums into a buffer, runs its body in another
    environment; the plan stays as it is.
    """

    plan: Plan
    operands: Mapping[str, Operand] = field(hash=False)

    def holding(self, *operands: Operand) -> Environment:
        """Return the environment in which ``operands`` replace those of the same names."""
        return Environment(self.plan, {**self.operands, **{each.name: each for each in operands}})

    def input_of(self, dimension: str) -> Operand:
        """Return the input operand with elements along ``dimension`` of C."""
        return self.operands["a" if dimension == "m" else "b"]

    @property
    def along(self) -> Operand:
        """The input whose consecutive elements fill a vector."""
        return self.input_of(self.plan.along)

    @property
    def across(self) -> Operand:
        """The input whose elements are each broadcast to all lanes."""
        return self.input_of(self.plan.across)

    def steps(self, extent: Expr, *, finish: bool) -> tuple[Expr, Expr]:
        """Return the whole K steps in ``extent``, and the elements of K after them."""
        plan, depth = self.plan, self.plan.product.step
        if finish or is_empty(plan.spec):
            return ZERO, ZERO
        if depth == 1:
            return extent, ZERO
        filled = plan.spec.sums_blocks or not plan.product.block
        if filled and (self.across.packed or isinstance(plan.spec.a, Packed)):
            return div(extent + (depth - 1), depth), ZERO
        return div(extent, depth), mod(extent, depth)

    def recast(self, name: str) -> bool:
        """Return True if operand ``name`` is read in place as another type than the spec's."""
        operand = self.operands[name]
        given = getattr(self.plan.spec, name, None) if name in ("a", "b", "b2") else None
        return given is not None and not operand.packed and operand.type != given.type
