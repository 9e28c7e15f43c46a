"""What a plan holds: every decision, with its reason, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sympy import Expr, Integer

from tilewright.isa.target import Target
from tilewright.isa.vector import Form, Vector
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Packed
from tilewright.spec.schedule import LINES, MANY_ROWS, Schedule
from tilewright.spec.sizes import Dim
from tilewright.spec.types import ITEMSIZE, is_integer
from tilewright.symbolic import ZERO, Least, div, mod, symbol, value

from .contraction import Product, converting_lanes
from .formats.lookup import Format
from .formats.packed_b import ALIGNMENT
from .formats.quantized_b import QuantizedFormat, in_panel
from .loops import Decided, Decision
from .operands import BatchPlan, Operand
from .staging import is_empty, same_types
from .tiling.cost_model import FewLines
from .tiling.tiles import Grid, Phase, RegisterTile, Step

#: Elements of K that are unpacked at once: of 2 bits 4 share a byte, of 3 bits 8 have three.
#: A block of K has a multiple of half as many.
UNPACKED = 16
#: What sizes of the call count as, where plans differ in nothing but conversions.
NOMINAL = 64


@dataclass(frozen=True, slots=True)
class ManyRows:
    """``plan`` takes another one's place from so many ``rows`` of C on."""

    rows: int
    plan: Plan


@dataclass(frozen=True, slots=True, repr=False)
class Plan(Decided):
    """A GEMM with every choice made that does not depend on the region.

    ``vectorize`` is the dimension along the vectors, ``across`` the other one of m and n (for
    ``k``: n). ``outer`` are the loops over blocks, ``inner`` those around the accumulators;
    upper case runs in parallel.
    ``transposed``: what is written is contiguous across the vectors, so tiles are transposed
    before. ``packs``: the operands, of "ab", that are packed block by block. ``sources``: the
    original layout of operands that are converted once, before the loops; ``operands``: the layout
    of all as the tiles read them. ``padded``: lines of the operand along the vectors are followed
    by elements that may be read, up to a whole vector.
    ``panel_tile``: blocks are packed in panels as wide as this register tile, (mr, nr), and have
    sizes that the call computes; None where they are packed as they lie, or not at all. ``summed``:
    at most so many rows or columns are summed over all of K before the next ones; what is left out
    is in blocks already. None where C holds sums of a part of K. ``streams``: C is written past
    the caches where that is positive; None: never. ``many`` is what serves many rows better.
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
    many: ManyRows | None = None

    @property
    def element(self) -> str:
        """The type of the accumulators."""
        return self.product.accumulator

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """The target's vectors that can do what this plan asks of them, widest first."""
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
        """The tile that the schedule asks for, (mr, nr), as its extents across and along."""
        tile = self.schedule.tile or self.panel_tile
        if tile is None:
            return None
        mr, nr = tile
        return (mr, nr) if self.across == "m" else (nr, mr)

    @property
    def few_across(self) -> FewLines | None:
        """How many elements C has at most across its vectors, where only the call knows, but few.

        None where it may have many, is known, or a matrix unit takes as many as are left. Where
        the other operand is not packed each tile reads all of it: there is one for each number of
        elements, so that what is left takes one more, or two that are even.
        """
        size = getattr(self.spec, self.across)
        open_ = isinstance(size, Dim) and self.product.unit is None
        if not open_ or size.max is None or size.max >= MANY_ROWS:
            return None
        return FewLines(size.max, self.input_of(self.along).name not in self.packs)

    @property
    def even_across(self) -> bool:
        """Whether there is a tile for each number of few elements across."""
        few = self.few_across
        return few is not None and few.even

    def panel(self, name: str) -> int | None:
        """The rows or columns of a panel of packed operand ``name``; None if it has no panels."""
        if self.panel_tile is None or name not in self.packs:
            return None
        return self.panel_tile[0 if name == "a" else 1]

    @property
    def shared(self) -> bool:
        """Whether threads share the loops of one product."""
        return self.batch is None and self.outer != self.outer.lower()

    @property
    def unpacks(self) -> bool:
        """Whether blocks of a quantized B are unpacked before tiles read them."""
        return "b" in self.packs and self.spec.quantized is not None

    @property
    def k_unit(self) -> int:
        """Of what blocks of K have a multiple: a step's elements, or what is unpacked at once."""
        if not self.unpacks:
            return self.product.step
        return UNPACKED if self.quantized.block % UNPACKED == 0 else UNPACKED // 2

    def factor(self, name: str) -> str:
        """The type of the elements of operand ``name``, "a" or "b", as they are multiplied."""
        along = self.input_of(self.along).name == name
        return self.product.along if along else self.product.across

    @property
    def block_sizes(self) -> dict[str, str]:
        """What the sizes of blocks are called that the call computes, by dimension: mc, nc, kc.

        Without panels, and where a quantized B is unpacked, these are of dimensions that only the
        call knows. Without panels it is K: one tile then serves whole blocks and the last one. Of
        blocks of ``LINES`` steps or less the tiles of whole ones do not count them. What a matrix
        unit or a quantized B reads has steps of its own in what whole blocks leave over.
        """
        equal, called = [d for d in "mnk" if d in self.blocks], value(self.sizes["k"]) is None
        if self.panel_tile is None:
            vectors = self.product.unit is None and self.spec.quantized is None
            long = called and self.blocks.get("k", 0) > LINES
            return {"k": "kc"} if long and vectors else {}
        return {d: f"{d}c" for d in equal if not self.unpacks or value(self.sizes[d]) is None}

    @property
    def sum_sizes(self) -> dict[str, str]:
        """What the sizes are called of what is summed over all of K before the next."""
        return {d: f"sum_{d}c" for d in self.summed or {}}

    @property
    def slots(self) -> tuple[str, ...]:
        """All sizes that tiles may depend on: those of the call, then those of blocks."""
        given = (slot for slot, _ in self.spec.runtime_sizes())
        return (*given, *self.block_sizes.values(), *self.sum_sizes.values())

    def at_most(self, elements: Expr, *, whole: bool = False) -> Expr:
        """What ``elements`` of a block never exceed, by the sizes of the call.

        ``whole``: by those of a whole block, whatever the call's are.
        """
        named = ((self.block_sizes, self.blocks), (self.sum_sizes, self.summed or {}))
        least = {
            symbol(name): Integer(most[d]) if whole else Least(self.sizes[d], most[d])
            for names, most in named
            for d, name in names.items()
        }
        return elements.xreplace(least)

    @property
    def dot(self) -> bool:
        """Whether the vectors lie along K."""
        return self.vectorize == "k"

    @property
    def bounces(self) -> bool:
        """Whether the tail of a tile is computed as a whole vector, and part of it copied."""
        return self.schedule.tails == "bounce"

    @property
    def finishes(self) -> bool:
        """Whether sums are more than scaled and added to C: converted, corrected, or made D."""
        return self._remakes or self.corrects

    @property
    def _remakes(self) -> bool:
        """Whether C does not hold sums: they are scaled as another type, converted, or made D."""
        spec = self.spec
        whole = not is_integer(spec.type) or is_integer(spec.factor_type)
        if self.narrow:  # alpha and beta act in f32, and so does what adds parts of the sums
            whole = spec.alpha == 1 and spec.beta == 0 and spec.sum_steps is None
        more = spec.d is not None or bool(spec.outputs)
        return not whole or more or spec.c.type != self.element

    @property
    def narrow(self) -> bool:
        """Whether sums are held in a smaller type than what is done with them."""
        return self.element != self.spec.type

    @property
    def partial(self) -> bool:
        """Whether sums lie in a buffer of their own until all are there: C must not hold them.

        Of blocks in panels the first one corrects for all of K what it stores, others add to that.
        """
        corrects = self.corrects and self.panel_tile is None
        apart = self._remakes or corrects or self.unpacks
        return apart and bool(set(self.outer.lower()) & {"b", "k"})

    @property
    def plain(self) -> bool:
        """Whether A and B are multiplied as they lie: of the sums' type, not in blocks."""
        return same_types(self.spec) and not self.product.blocks

    @property
    def corrects(self) -> bool:
        """Whether zero points, or shifts that do their work, are subtracted from the sums."""
        zeros = (self.spec.a_zero, self.spec.b_zero)
        if is_empty(self.spec) or self.spec.quantized is not None:
            return False
        return any(self.product.shifts.values()) or any(z not in (None, 0) for z in zeros)

    @property
    def by_panels(self) -> bool:
        """Whether A is converted a tile's rows at a time, while the rows before are multiplied.

        The multiply-adds of one panel then hide the conversion of the next. It takes a nest with
        rows outside, and nothing else around. A matrix unit reads more rows than there are.
        """
        alone = self.batch is None and not self.partial and self.spec.b2 is None
        alone = alone and not self.product.block
        in_rows = "a" in self.sources and value(self.operands["a"].strides["k"]) == 1
        whole = alone and self.columns is None and self.product.unit is None
        return whole and in_rows and self.outer == "mn" and self.across == "m"

    @property
    def in_rows(self) -> bool:
        """Whether the loop over tiles across the vectors stands outside of the one along them."""
        letters = self.outer.lower()
        return 0 <= letters.rfind(self.across) < letters.rfind(self.along)

    def side_by_side(self, grids: Sequence[Grid]) -> list[tuple[Grid, ...]]:
        """``grids`` in groups, of which each has one loop across: around those of its grids along.

        Where that loop is the outer one the tiles of all grids that lie side by side follow each
        other: what they read across is near, and lines of C are written from end to end. Each grid
        is a group of its own else, and of a matrix unit, which is told of other tiles too often.
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
        """The lanes of the widest vector, of sums or of what is converted: what buffers have room
        for whole ones of.
        """
        return max(self.target.of(self.element)[0].lanes, self.converted)

    @property
    def converted(self) -> int:
        """The lanes of the vectors by which elements are converted: of what is computed with, and
        where sums are of 64 bits, of s32.
        """
        return converting_lanes(self.target, self.spec.type)

    @property
    def columns(self) -> int | None:
        """The columns of a block of the caller's packed B; None where tiles read one block."""
        b, form = self.operands["b"], self.packed_format
        read = "pn" in b.strides and not b.packed and not self.unpacks
        return form.nb if form and read else None

    @property
    def rows(self) -> int | None:
        """The rows of a panel of the caller's packed A; None where A is not packed ahead."""
        return int(self.operands["a"].strides["k"]) if isinstance(self.spec.a, Packed) else None

    @property
    def quantized(self) -> QuantizedFormat:
        """The format of a B of few bits; AssertionError where it is of another kind."""
        assert isinstance(self.packed_format, QuantizedFormat), "B is not quantized"
        return self.packed_format

    @property
    def read_format(self) -> QuantizedFormat:
        """That format as tiles find it: in panels, where its numbers are unpacked before."""
        if not (self.unpacks and self.product.partial):
            return self.quantized
        return in_panel(self.quantized, self.product.along, self.panel("b") or self.quantized.nb)

    @property
    def output(self) -> Operand:
        """What is written: C, or D."""
        return self.operands[self.spec.output]

    @property
    def sum_elements(self) -> Expr:
        """The elements of a buffer that holds all sums."""
        m, n = (self.operands["sums"].strides[d] for d in "mn")
        rows, columns = self.sizes["m"], self.sizes["n"]
        if m == n == 1:
            return rows * columns
        return rows * m if n == 1 else columns * n

    @property
    def sum_along(self) -> str | None:
        """For vectors along K: the dimension of C along which sums are stored as vectors."""
        if not all(v.transposes for v in self.vectors):
            return None
        strides = self.output.strides
        return next((d for d in (self.along, self.across) if value(strides[d]) == 1), None)

    @property
    def along(self) -> str:
        """The dimension of C whose tile size counts vectors (for ``k``: m, one row a vector)."""
        return "m" if self.dot else self.vectorize

    def counted(self, steps: Expr, k_tail: Expr) -> Expr:
        """Steps as the cost model counts them: one of ``k_tail`` elements takes as long as any."""
        return steps + div(k_tail + (self.product.step - 1), self.product.step)

    def input_of(self, dimension: str) -> Operand:
        """The input operand that lies along ``dimension`` of C."""
        return self.outside.input_of(dimension)

    @property
    def outside(self) -> Environment:
        """The operands outside of all loops."""
        return Environment(self, self.operands)

    def batch_kind(self, operand: Operand) -> str:
        """How elements of the batch of ``operand`` are found: what is packed here is strided."""
        assert self.batch is not None
        return "strided" if operand.packed else self.batch.kind

    def batch_stride(self, operand: Operand) -> Expr:
        """The elements from one matrix of the batch to the next; or those that an offset counts."""
        assert self.batch is not None
        return operand.strides.get("b", self.batch.strides.get(operand.name, ZERO))


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
        """The input whose elements lie along the vectors."""
        return self.input_of(self.plan.along)

    @property
    def across(self) -> Operand:
        """The input whose elements are spread over the lanes."""
        return self.input_of(self.plan.across)

    def steps(self, extent: Expr, *, finish: bool) -> tuple[Expr, Expr]:
        """Return the K steps in ``extent``, and the elements of one more that is not read whole."""
        plan, depth = self.plan, self.plan.product.step
        if finish or is_empty(plan.spec):
            return ZERO, ZERO
        if depth == 1:
            return extent, ZERO
        filled = plan.spec.sums_blocks or not plan.product.block
        if filled and (self.across.packed or plan.rows is not None):
            return div(extent + (depth - 1), depth), ZERO
        return div(extent, depth), mod(extent, depth)

    def recast(self, name: str) -> bool:
        """Return True if an operand's type in C is not the type that it was packed as."""
        operand = self.operands[name]
        given = getattr(self.plan.spec, name, None) if name in ("a", "b", "b2") else None
        return given is not None and not operand.packed and operand.type != given.type
