"""K steps of a quantized B: each block of K is summed separately, then scaled and added in f32.

One step is one block of K. Blocks are added in the order of K, by one FMA for each element of C.
Integer sums of a block are exact. They start at the correction for B's zero point, which was
computed when A was quantized.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import lcm
from typing import Self

from sympy import Expr, Integer

from tilewright.ir.access import read
from tilewright.ir.ops import (
    Apply,
    Broadcast,
    Join,
    Loop,
    MultiplyAdd,
    Note,
    Op,
    Splat,
    Unpack,
    Zero,
)
from tilewright.ir.values import Address, Register, bits_of_ones
from tilewright.isa.vector import Vector
from tilewright.plan.contraction import Few, few_of
from tilewright.plan.formats.quantized_b import meets_numbers
from tilewright.symbolic import ZERO, linear

from .dequantize import Bytes, Numbers, Part
from .k_loop import PointerPlan, factor, multiply_add, pointer_plans, pointer_to
from .outer_product import OuterProduct
from .tile import Tile

#: The most K groups of a block that are unrolled into straight code. Longer blocks get a loop.
STRAIGHT = 16
#: The operands that have one value for each block of K, for example scales and zero points.
OF_BLOCKS = ("a_scales", "a_zeros", "a_starts", "a_totals", "b_scales", "b_zeros", "b_totals")


@dataclass(frozen=True, slots=True)
class BlockSteps(OuterProduct):
    """The K steps of a quantized B, one block of K each. ``scales`` are the pointers to the values
    of blocks.
    """

    scales: tuple[PointerPlan, ...] = ()

    @classmethod
    def of(cls, tile: Tile) -> Self:
        """Return the steps of ``tile`` and the pointers that they need."""
        plain = super(BlockSteps, cls).of(tile)
        plan = tile.plan
        found: list[PointerPlan] = []
        for name in OF_BLOCKS:
            if name in tile.operands:
                line = plan.across if name[0] == "a" else plan.along
                rows = tile.shape.rows if name[0] == "a" else 1
                found += pointer_plans(tile.operands[name], line, rows, tile.product.block)
        return replace(plain, scales=tuple(found))

    @staticmethod
    def k_elements(tile: Tile) -> int:
        """Return the number of elements of K in a block."""
        return tile.product.block

    @property
    def pointers(self) -> tuple[PointerPlan, ...]:
        """The pointers to A and B and to the values of their blocks."""
        return (*self.inputs, *self.scales)

    @property
    def moved(self) -> tuple[PointerPlan, ...]:
        """The pointers that move after each block. A loop within a block moves those to A and B
        itself.
        """
        return self.scales if self.looped else self.pointers

    @property
    def groups(self) -> int:
        """The number of K groups in a block."""
        return self.tile.product.block // self.tile.product.group

    @property
    def looped(self) -> bool:
        """True if a block has its own loop: it is long, or the stride of K is known only at the
        call.
        """
        walked = any(pointer.walked for pointer in self.inputs)
        return (self._even and self.groups > self.most_groups) or walked

    @property
    def most_groups(self) -> int:
        """The most K groups that are unrolled into straight code."""
        return STRAIGHT

    @property
    def _even(self) -> bool:
        """True if a block ends with the last element of a byte."""
        return self.groups % self.tile.plan.read_format.fields == 0

    @property
    def together(self) -> int:
        """The number of K groups in straight code: all of a short block, or those of one
        loop trip.
        """
        if not self.looped or not self._even:
            return self.groups
        least = self.least_groups
        most = range(self.most_groups // least * least, least, -least)
        return next((count for count in most if self.groups % count == 0), least)

    @property
    def least_groups(self) -> int:
        """The smallest number of K groups in a trip: whole bytes, and whole loads of A."""
        return lcm(self.tile.plan.read_format.fields, self.shape.group)

    def products(self, index: int, count: int) -> Iterator[Op]:
        """Multiply and add ``count`` K groups. A long block gets a loop, which moves the
        pointers.
        """
        first = index * self.groups
        trips, left = divmod(count, self.together) if self.looped else (0, count)
        if trips:
            body = (*self._straight(first, self.together), *self._moves(self.together))
            yield Loop("kg", Integer(trips), body, "a block of K")
        yield from self._straight(first, left)

    def _straight(self, first: int, count: int) -> Iterator[Op]:
        shared = self.shape.group
        for k in range(first, first + count):
            yield from self.step(k, k // shared * shared + shared <= first + count)

    def _moves(self, groups: int) -> Iterator[Op]:
        elements = groups * self.tile.product.group
        yield from (pointer.advance_by(elements) for pointer in self.inputs)

    def across_at(self, row: int, k: int) -> Address:
        """Return the address of a row's elements in K group ``k``."""
        block, group = self._place(k)
        pointer = pointer_to(row, self.across)
        at = pointer.address(row, block)
        within = group * self.tile.product.group * pointer.operand.strides["k"]
        return replace(at, offset=linear(((1, at.offset), (1, within))))

    def _place(self, k: int) -> tuple[int, int]:
        """Return the block and the K group in it, relative to pointers that a loop has moved."""
        block, group = divmod(k, self.groups)
        return (0 if self.looped else block), group

    def stored(self, column: int, k: int) -> Bytes:
        """Return the bytes that hold the numbers of K group ``k`` in a vector of columns."""
        plan = self.tile.plan
        return Bytes(
            target=plan.target,
            form=plan.read_format,
            index=k % self.groups,
            at=lambda plane: self.plane_at(column, k, plane),
            name=lambda back, plane: f"{self.vector(column, k - back).name}_bytes{plane or ''}",
            ahead=self._ahead(column),
        )

    @property
    def prefetched(self) -> None:
        """None: each load of B prefetches the same place a few blocks later."""
        return None

    def _ahead(self, column: int) -> Expr:
        """Return the prefetch distance in elements, or 0 if the previous vector is in the same
        line.
        """
        plan, distance = self.tile.plan, self.tile.plan.schedule.prefetch
        begins = self.tile.position(column) * plan.read_format.group % plan.target.core.line == 0
        return distance * self.along[0].k_stride if distance and begins else ZERO

    def plane_at(self, column: int, k: int, plane: int) -> Address:
        """Return the address of the bytes that hold one plane of a K group's numbers."""
        form = self.tile.plan.read_format
        block, group = self._place(k)
        line, _ = form.place(group, plane)
        first = line * form.nb * form.group + self.tile.position(column) * form.group
        return self.along[0].address(0, block, first)

    def scale_at(self, name: str, row: int, index: int, element: int = 0) -> Address:
        """Return the address of operand ``name``'s value for block ``index`` of a row or of
        columns.
        """
        own = [p for p in self.scales if p.operand.name == name]
        return pointer_to(row, own).address(row, index, element)

    def of_block(self, name: str, line: int, index: int) -> Register:
        """Return the register that holds operand ``name``'s value for a block of a row or of
        columns.
        """
        return factor(self.tile.operands[name], line, index, self.tile.vector)

    def of_columns(self, index: int) -> Iterator[Op]:
        """Load the scales and zero points of B for one block."""
        for name in ("b_scales", "b_zeros"):
            if name in self.tile.operands:
                yield from self._columns(name, index, self.tile.vector)

    def _columns(self, name: str, index: int, vector: Vector) -> Iterator[Op]:
        """Load operand ``name``'s values of one block for all vectors of columns."""
        memory = self.tile.operands[name].type
        for column in range(self.shape.vectors):
            at = self.scale_at(name, 0, index, self.tile.position(column))
            dst = replace(self.of_block(name, column, index), vector=vector)
            yield from read(self.tile.plan.target, dst, at, None, memory)


@dataclass(frozen=True, slots=True)
class ScaledProduct(BlockSteps):
    """The K steps of a quantized B whose blocks are summed separately, then scaled."""

    def emit(self, index: int, run: int) -> Iterator[Op]:
        """Sum one block, scale the sums, and add them to the accumulators."""
        yield from self.begin(index)
        yield from self.products(index, self.groups)
        yield from self.add(index)

    def tail(self, index: int) -> Iterator[Op]:
        """Emit nothing: both operands are padded to whole blocks."""
        assert self.tile.k_tail == 0, f"block {index} is not whole"
        yield from ()

    # --- a block's sums ----------------------------------------------------------------------

    def sum_of(self, row: int, column: int, k: int) -> Register:
        """Return the register that sums the block of K group ``k`` for one row and vector of
        columns.
        """
        acc = self.tile.accumulator(row, column)
        return Register(f"{acc.name.replace('c', 's', 1)}_k{k // self.groups}", self.summing)

    def begin(self, index: int) -> Iterator[Op]:
        """Start the sums of a block at the corrections for the zero points of B and of A."""
        yield from self.totals(index)
        for row in range(self.shape.rows):
            yield from self.zero_of(row, index)
            for column in range(self.shape.vectors):
                yield from self.begin_one(row, column, index)

    def begin_one(self, row: int, column: int, index: int) -> Iterator[Op]:
        """Start the sum of one row and one vector of columns."""
        partial = self.sum_of(row, column, index * self.groups)
        if "a_starts" in self.tile.operands:
            yield Broadcast(partial, self.scale_at("a_starts", row, index), begins=True)
        else:
            yield Zero(partial)
        yield from self.less_zeros(partial, row, column, index)

    def totals(self, index: int) -> Iterator[Op]:
        """Load the sums of B's elements in a block if zero points of A multiply them."""
        if "b_totals" in self.tile.operands:
            yield from self._columns("b_totals", index, self.summing)

    def zero_of(self, row: int, index: int) -> Iterator[Op]:
        """Load the zero point of a row of A in a block, if it has one."""
        if "a_zeros" in self.tile.operands:
            zero = replace(self.of_block("a_zeros", row, index), vector=self.summing)
            yield Broadcast(zero, self.scale_at("a_zeros", row, index))

    @property
    def summing(self) -> Vector:
        """The vector type of a block's sums: integers, or f32."""
        plan = self.tile.plan
        return plan.target.holding(plan.product.partial, self.tile.vector.lanes)

    def less_zeros(self, partial: Register, row: int, column: int, index: int) -> Iterator[Op]:
        """Correct ``partial`` for A's zero point: add zero point times B's negated sum of
        elements.
        """
        if "a_zeros" not in self.tile.operands:
            return
        zero, total = (
            replace(self.of_block(name, line, index), vector=self.summing)
            for name, line in (("a_zeros", row), ("b_totals", column))
        )
        product = replace(partial, name=f"{partial.name}_zero")
        yield Apply(product, "mul", (zero, total))
        yield Apply(partial, "add", (partial, product))

    def load(self, column: int, k: int) -> Iterator[Op]:
        """Load B's elements of a K group. Several K groups share the same bytes."""
        form, dst = self.tile.plan.read_format, self.vector(column, k)
        if self.meets_numbers:
            yield from self.looked_up(k // self.groups).element(dst, self.stored(column, k))
            return

        def unpacked(part: Part) -> Iterator[Op]:
            type_ = form.field_type(part.plane)
            yield Unpack(part.dst, part.raw, type_, part.field, part.plane.up)

        yield from self.stored(column, k).numbers(dst, unpacked, Join)

    @property
    def meets_numbers(self) -> bool:
        """True if multiply-adds read the values of B's numbers, not the integer codes of their
        bits.
        """
        plan = self.tile.plan
        return meets_numbers(plan.spec, plan.product, plan.read_format)

    def looked_up(self, index: int) -> Numbers:
        """Return the conversion of B's stored numbers of a block to A's type."""
        plan, suffix = self.tile.plan, f"_k{index}" if index else ""
        return Numbers(plan.target, plan.read_format, self.held("along"), suffix)

    # --- scaled and added --------------------------------------------------------------------

    def add(self, index: int) -> Iterator[Op]:
        """Multiply the sums of a block by the scales of A's row and B's column, and add them to
        C's.
        """
        yield Note("The sums of this block of K, scaled and added.")
        yield from self.of_columns(index)
        for row in range(self.shape.rows):
            yield from self.of_row(row, index)
            for column in range(self.shape.vectors):
                yield from self.add_one(self.tile.accumulator(row, column), row, column, index)

    def of_row(self, row: int, index: int) -> Iterator[Op]:
        """Load the scale of a row of A in a block, and the sum of its elements."""
        for name in ("a_scales", "a_totals"):
            if name in self.tile.operands:
                dst, at = self.of_block(name, row, index), self.scale_at(name, row, index)
                yield Broadcast(dst, at)
        if self._scales_sums:
            sums, scale = (self.of_block(of, row, index) for of in ("a_totals", "a_scales"))
            yield Apply(self._sums_of(row, index), "mul", (sums, scale), begins=True)

    @property
    def _scales_sums(self) -> bool:
        """True if the sums of A's elements must be multiplied by A's scales.

        This is so if B's blocks have minima, which multiply these sums, and A's blocks have scales.
        """
        plan = self.tile.plan
        return plan.read_format.minima and plan.spec.scales_of_blocks is not None

    def _sums_of(self, row: int, index: int) -> Register:
        """Return the register with the sum of A's elements in block ``index``.

        If ``_scales_sums`` is True, it is the register in which the sum was multiplied by A's
        scale.
        """
        sums = self.of_block("a_totals", row, index)
        return replace(sums, name=f"{sums.name}_scaled") if self._scales_sums else sums

    def add_one(self, acc: Register, row: int, column: int, index: int) -> Iterator[Op]:
        """Emit ``acc += (sum - zero * sum of A) * scales``; with minima, ``acc += sum * scales +
        min * sum of A``.
        """
        vector = self.tile.vector
        partial = self.sum_of(row, column, index * self.groups)
        both, real = (Register(f"{partial.name}_{what}", vector) for what in ("scale", "f32"))
        of_b = self.of_block("b_scales", column, index)
        if "a_scales" in self.tile.operands:
            yield Apply(both, "mul", (self.of_block("a_scales", row, index), of_b), begins=True)
        else:
            both = of_b
        if self.tile.product.partial == "f32":
            real = partial
        else:
            yield Apply(real, "to_f32", (partial,))
        if not self.tile.plan.read_format.zeros:
            yield Apply(acc, "fma", (real, both, acc))
            return
        zeros = self.of_block("b_zeros", column, index)
        sums = self._sums_of(row, index)
        if not self.tile.plan.read_format.minima:
            less = replace(real, name=f"{partial.name}_less")
            # A's sums are stored negated, so this FMA subtracts. Its result is exact.
            yield Apply(less, "fma", (sums, zeros, real))
            yield Apply(acc, "fma", (less, both, acc))
        else:
            yield Apply(acc, "fma", (real, both, acc))
            yield Apply(acc, "fma", (sums, zeros, acc))


@dataclass(frozen=True, slots=True)
class RunsOfProducts(ScaledProduct):
    """The steps of one block of K whose products are first summed in lanes of half the width.

    A run is as many K groups as a lane of half the width sums without overflow. A multiply-add with
    ones then adds the run's sum to the block's sum. If a block is a single run, the block's sum
    starts just before this.
    """

    def emit(self, index: int, run: int) -> Iterator[Op]:
        """Sum the runs of a block, scale the block's sums, and add them to the accumulators."""
        few = self._few
        yield Splat(self._ones(index), bits_of_ones(few.then.y, few.then.depth), few.then.depth)
        if self._one:
            yield from self._zeros(index * self.groups)
        else:
            yield from self.begin(index)
        yield from self.products(index, self.groups)
        if self._one:
            yield self._note()
            yield from self.begin(index)
        yield from self.add(index)

    @staticmethod
    def _note() -> Note:
        return Note("The sums of this run, which fit lanes of 16 bits, added up in 32.")

    @property
    def _one(self) -> bool:
        """True if a block is one run."""
        return self.groups <= self.tile.product.few

    def begin_one(self, row: int, column: int, index: int) -> Iterator[Op]:
        """Start the sum of one row and one vector of columns. If the block is one run, add the
        run's sum.
        """
        yield from ScaledProduct.begin_one(self, row, column, index)
        if self._one:
            yield from self._widened(row, column, index * self.groups)

    def _straight(self, first: int, count: int) -> Iterator[Op]:
        if self._one:
            yield from ScaledProduct._straight(self, first, count)
            return
        for start in range(first, first + count, self.tile.product.few):
            yield from self._zeros(start)
            groups = min(self.tile.product.few, first + count - start)
            yield from ScaledProduct._straight(self, start, groups)
            yield self._note()
            for row, column in self._every:
                yield from self._widened(row, column, start)

    @property
    def _every(self) -> Iterator[tuple[int, int]]:
        """All pairs of a row and a vector of columns."""
        return product(range(self.shape.rows), range(self.shape.vectors))

    def _zeros(self, k: int) -> Iterator[Op]:
        yield from (Zero(self._sum_of_run(row, column, k)) for row, column in self._every)

    def _multiply(self, row: int, column: int, k: int, in_lanes: bool) -> Iterator[Op]:
        acc, x, y = (
            self._sum_of_run(row, column, k),
            self.vector(column, k),
            self._spread_register(row, k),
        )
        yield from multiply_add(self.tile, self._few.first, acc, x, y)

    def _widened(self, row: int, column: int, k: int) -> Iterator[Op]:
        """Add the sum of the run that contains K group ``k`` to the sum of its block."""
        run, by = self._sum_of_run(row, column, k), self._ones(k // self.groups)
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
        block, group = divmod(k, self.groups)
        start = block * self.groups + group // few * few
        return Register(f"{acc.name.replace('c', 'p', 1)}_k{start}", self._few.vector)
