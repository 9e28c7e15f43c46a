"""Blocks of K of a quantized B: summed separately, then scaled; or converted as they are loaded.

Blocks are added in the order of K, by one FMA for each element of C.
Integer sums of a block are exact. They start at the correction for B's zero point, which was
computed when A was quantized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from sympy import Integer

from tilewright.ir.ops import (
    Apply,
    Broadcast,
    Join,
    MultiplyAdd,
    Note,
    Op,
    Splat,
    Unpack,
    Zero,
)
from tilewright.ir.values import Register, bits_of_ones
from tilewright.isa.vector import Vector
from tilewright.plan.contraction import Few, few_of
from tilewright.plan.formats.quantized_b import meets_numbers

from .blocks import Blocks
from .dequantize import Dequantizer, Numbers, Part
from .k_loop import held
from .outer_product import Multiplied, vector
from .tile import Tile

#: The most multiply-adds of a block in straight code.
MULTIPLY_ADDS = 64


@dataclass(frozen=True, slots=True)
class BlockSums:
    """Emits the sums of one block of K: their start values, and how they are scaled and added."""

    blocks: Blocks

    @property
    def tile(self) -> Tile:
        """The register tile."""
        return self.blocks.tile

    # --- a block's sums ----------------------------------------------------------------------

    def sum_of(self, row: int, column: int, k: int) -> Register:
        """Return the register that sums the block of K group ``k`` for one row and vector of
        columns.
        """
        acc = self.tile.accumulator(row, column)
        return Register(f"{acc.name.replace('c', 's', 1)}_k{k // self.blocks.groups}", self.summing)

    def begin(
        self, index: int, then: Callable[[int, int], Iterator[Op]] | None = None
    ) -> Iterator[Op]:
        """Start the sums of a block at the corrections for the zero points of B and of A.

        ``then`` follows the start of each row and vector of columns.
        """
        yield from self.totals(index)
        for row in range(self.tile.shape.rows):
            yield from self.zero_of(row, index)
            for column in range(self.tile.shape.vectors):
                yield from self._begin_one(row, column, index)
                yield from () if then is None else then(row, column)

    def _begin_one(self, row: int, column: int, index: int) -> Iterator[Op]:
        """Start the sum of one row and one vector of columns."""
        partial = self.sum_of(row, column, index * self.blocks.groups)
        if "a_starts" in self.tile.operands:
            yield Broadcast(partial, self.blocks.scale_at("a_starts", row, index), begins=True)
        else:
            yield Zero(partial)
        yield from self.less_zeros(partial, row, column, index)

    def totals(self, index: int) -> Iterator[Op]:
        """Load the sums of B's elements in a block if zero points of A multiply them."""
        if "b_totals" in self.tile.operands:
            yield from self.blocks.columns("b_totals", index, self.summing)

    def zero_of(self, row: int, index: int) -> Iterator[Op]:
        """Load the zero point of a row of A in a block, if it has one."""
        if "a_zeros" in self.tile.operands:
            zero = replace(self.blocks.of_block("a_zeros", row, index), vector=self.summing)
            yield Broadcast(zero, self.blocks.scale_at("a_zeros", row, index))

    @property
    def summing(self) -> Vector:
        """The vector type of a block's sums: integers, or f32."""
        plan = self.tile.plan
        return plan.target.holding(plan.staging.product.partial, self.tile.vector.lanes)

    def less_zeros(self, partial: Register, row: int, column: int, index: int) -> Iterator[Op]:
        """Correct ``partial`` for A's zero point: add zero point times B's negated sum of
        elements.
        """
        if "a_zeros" not in self.tile.operands:
            return
        zero, total = (
            replace(self.blocks.of_block(name, line, index), vector=self.summing)
            for name, line in (("a_zeros", row), ("b_totals", column))
        )
        product = replace(partial, name=f"{partial.name}_zero")
        yield Apply(product, "mul", (zero, total))
        yield Apply(partial, "add", (partial, product))

    def load(self, column: int, k: int) -> Iterator[Op]:
        """Load B's elements of K group ``k``. Several K groups may share the same bytes."""
        form, dst = (
            self.tile.here.read_format(self.tile.plan.nest.panel_tile),
            vector(self.tile, column, k),
        )
        if self.meets_numbers:
            yield from self.looked_up(k // self.blocks.groups).element(
                dst, self.blocks.stored(column, k)
            )
            return

        def unpacked(part: Part) -> Iterator[Op]:
            type_ = form.field_type(part.plane)
            yield Unpack(part.dst, part.raw, type_, part.field, part.plane.up)

        yield from self.blocks.stored(column, k).numbers(dst, unpacked, Join)

    @property
    def meets_numbers(self) -> bool:
        """True if multiply-adds read the values of B's numbers, not the integer codes of their
        bits.
        """
        plan = self.tile.plan
        return meets_numbers(
            plan.spec, plan.staging.product, plan.staging.read_format(plan.nest.panel_tile)
        )

    def looked_up(self, index: int) -> Numbers:
        """Return the conversion of B's stored numbers of a block to A's type."""
        plan, suffix = self.tile.plan, f"_k{index}" if index else ""
        return Numbers(
            plan.target,
            plan.staging.read_format(plan.nest.panel_tile),
            held(self.tile, "along"),
            suffix,
        )

    # --- scaled and added --------------------------------------------------------------------

    def add(self, index: int) -> Iterator[Op]:
        """Multiply the sums of a block by the scales of A's row and B's column, and add them to
        C's.
        """
        yield Note("The sums of this block of K, scaled and added.")
        yield from self.blocks.of_columns(index)
        for row in range(self.tile.shape.rows):
            yield from self.of_row(row, index)
            for column in range(self.tile.shape.vectors):
                yield from self.add_one(self.tile.accumulator(row, column), row, column, index)

    def of_row(self, row: int, index: int) -> Iterator[Op]:
        """Load the scale of a row of A in a block, and the sum of its elements."""
        for name in ("a_scales", "a_totals"):
            if name in self.tile.operands:
                dst, at = (
                    self.blocks.of_block(name, row, index),
                    self.blocks.scale_at(name, row, index),
                )
                yield Broadcast(dst, at)
        if self._scales_sums:
            sums, scale = (self.blocks.of_block(of, row, index) for of in ("a_totals", "a_scales"))
            yield Apply(self._sums_of(row, index), "mul", (sums, scale), begins=True)

    @property
    def _scales_sums(self) -> bool:
        """True if the sums of A's elements must be multiplied by A's scales.

        This is so if B's blocks have minima, which multiply these sums, and A's blocks have scales.
        """
        plan = self.tile.plan
        return (
            plan.staging.read_format(plan.nest.panel_tile).minima
            and plan.spec.scales_of_blocks is not None
        )

    def _sums_of(self, row: int, index: int) -> Register:
        """Return the register with the sum of A's elements in block ``index``.

        If ``_scales_sums`` is True, it is the register in which the sum was multiplied by A's
        scale.
        """
        sums = self.blocks.of_block("a_totals", row, index)
        return replace(sums, name=f"{sums.name}_scaled") if self._scales_sums else sums

    def add_one(self, acc: Register, row: int, column: int, index: int) -> Iterator[Op]:
        """Emit ``acc += (sum - zero * sum of A) * scales``; with minima, ``acc += sum * scales +
        min * sum of A``.
        """
        vector = self.tile.vector
        partial = self.sum_of(row, column, index * self.blocks.groups)
        both, real = (Register(f"{partial.name}_{what}", vector) for what in ("scale", "f32"))
        of_b = self.blocks.of_block("b_scales", column, index)
        if "a_scales" in self.tile.operands:
            yield Apply(
                both, "mul", (self.blocks.of_block("a_scales", row, index), of_b), begins=True
            )
        else:
            both = of_b
        if self.tile.product.partial == "f32":
            real = partial
        else:
            yield Apply(real, "to_f32", (partial,))
        if not self.tile.here.read_format(self.tile.plan.nest.panel_tile).zeros:
            yield Apply(acc, "fma", (real, both, acc))
            return
        zeros = self.blocks.of_block("b_zeros", column, index)
        sums = self._sums_of(row, index)
        if not self.tile.here.read_format(self.tile.plan.nest.panel_tile).minima:
            less = replace(real, name=f"{partial.name}_less")
            # A's sums are stored negated, so this FMA subtracts. Its result is exact.
            yield Apply(less, "fma", (sums, zeros, real))
            yield Apply(acc, "fma", (less, both, acc))
        else:
            yield Apply(acc, "fma", (real, both, acc))
            yield Apply(acc, "fma", (sums, zeros, acc))


@dataclass(frozen=True, slots=True)
class ScaledProduct(BlockSums):
    """Blocks that are summed separately, then scaled."""

    def emit(self, index: int, run: int, left: int = 0) -> Iterator[Op]:
        """Sum a block, scale the sums, and add them to the accumulators.

        The last of ``left`` elements may fill no K group.
        """
        blocks = self.blocks
        count, existing = divmod(left, blocks.tile.product.group) if left else (blocks.groups, 0)
        steps = Multiplied(blocks.tile, self.load, blocks.across_at, self.sum_of)
        if self.meets_numbers:
            yield from self.looked_up(index).table()
        yield from self.begin(index)
        yield from blocks.products(index, count, steps.run)
        if existing:
            # The number of the next K group, counted from where the pointers are now.
            behind = index * blocks.groups + (count % blocks.together if blocks.looped else count)
            yield from steps.emit(behind, False, Integer(existing))
        yield from self.add(index)


@dataclass(frozen=True, slots=True)
class RunsOfProducts(BlockSums):
    """Blocks whose products are first summed in lanes of half the width.

    A run is as many K groups as a lane of half the width sums without overflow. A multiply-add with
    ones then adds the run's sum to the block's sum. If a block is a single run, the block's sum
    starts just before this.
    """

    def emit(self, index: int, run: int, left: int = 0) -> Iterator[Op]:
        """Sum the runs of a block, scale the block's sums, and add them to the accumulators."""
        assert not left, f"block {index} is not whole"
        few = self._few
        yield Splat(self._ones(index), bits_of_ones(few.then.y, few.then.depth), few.then.depth)
        blocks = self.blocks
        if self._one:
            yield from self._zeros(index * blocks.groups)
        else:
            yield from self.begin(index)
        yield from blocks.products(index, blocks.groups, self._straight)
        if self._one:
            yield self._note()
            first = index * blocks.groups
            yield from self.begin(index, lambda row, column: self._widened(row, column, first))
        yield from self.add(index)

    @staticmethod
    def _note() -> Note:
        return Note("The sums of this run, which fit lanes of 16 bits, added up in 32.")

    @property
    def _one(self) -> bool:
        """True if a block is one run."""
        return self.blocks.groups <= self.tile.product.few

    def _straight(self, first: int, count: int) -> Iterator[Op]:
        steps = Multiplied(
            self.tile, self.load, self.blocks.across_at, self._sum_of_run, self._few.first
        )
        if self._one:
            yield from steps.run(first, count)
            return
        for start in range(first, first + count, self.tile.product.few):
            yield from self._zeros(start)
            groups = min(self.tile.product.few, first + count - start)
            yield from steps.run(start, groups)
            yield self._note()
            for row, column in self._every:
                yield from self._widened(row, column, start)

    @property
    def _every(self) -> Iterator[tuple[int, int]]:
        """All pairs of a row and a vector of columns."""
        return product(range(self.tile.shape.rows), range(self.tile.shape.vectors))

    def _zeros(self, k: int) -> Iterator[Op]:
        yield from (Zero(self._sum_of_run(row, column, k)) for row, column in self._every)

    def _widened(self, row: int, column: int, k: int) -> Iterator[Op]:
        """Add the sum of the run that contains K group ``k`` to the sum of its block."""
        run, by = self._sum_of_run(row, column, k), self._ones(k // self.blocks.groups)
        yield MultiplyAdd(self._few.then, self.sum_of(row, column, k), run, by)

    @property
    def _few(self) -> Few:
        """The instructions that sum a run and that add a run's sum to a block's."""
        found = few_of(self.tile.plan.target, self.summing)
        assert found is not None, f"{self.summing!r} has no sums of few products"
        return found

    def _ones(self, index: int) -> Register:
        return Register("ones" + (f"_k{index}" if index else ""), self._few.vector)

    def _sum_of_run(self, row: int, column: int, k: int) -> Register:
        acc, few = self.tile.accumulator(row, column), self.tile.product.few
        block, group = divmod(k, self.blocks.groups)
        start = block * self.blocks.groups + group // few * few
        return Register(f"{acc.name.replace('c', 'p', 1)}_k{start}", self._few.vector)


@dataclass(frozen=True, slots=True)
class DequantizedProduct:
    """Blocks whose elements of B are converted to f32 and multiplied directly."""

    given: Blocks

    @property
    def blocks(self) -> Blocks:
        """The blocks, with enough multiply-adds in straight code to make a loop's cost small."""
        return replace(self.given, most=MULTIPLY_ADDS // self.given.tile.shape.multiply_adds)

    @property
    def tile(self) -> Tile:
        """The register tile."""
        return self.given.tile

    def emit(self, index: int, run: int, left: int = 0) -> Iterator[Op]:
        """Load the block's scales, then multiply its elements."""
        blocks = self.blocks
        yield from blocks.of_columns(index)
        yield from self._dequantizer(0, index).constants()
        steps = Multiplied(self.tile, self._load, blocks.across_at, self._sum_of)
        yield from blocks.products(index, left or blocks.groups, steps.run)

    def _load(self, column: int, k: int) -> Iterator[Op]:
        """Load the elements of a step and convert them to f32."""
        made = self._dequantizer(column, k // self.blocks.groups)
        yield from made.element(vector(self.tile, column, k), self.blocks.stored(column, k))

    def _sum_of(self, row: int, column: int, k: int) -> Register:
        """Return the accumulator for the product of a row and a vector in K group ``k``."""
        return self.tile.accumulator(row, column, k % self.tile.shape.k_split)

    def _dequantizer(self, column: int, index: int) -> Dequantizer:
        """Return the conversion to f32 for one block and one vector of columns."""
        tile, there = self.tile, self.tile.operands
        found = (name for name in ("b_scales", "b_zeros") if name in there)
        return Dequantizer(
            target=tile.plan.target,
            form=tile.here.quantized,
            vector=tile.vector,
            of_block={name: self.blocks.of_block(name, column, index) for name in found},
            suffix=f"_k{index}" if index else "",
        )
