"""K steps of a quantized B: a block of K summed apart, then scaled and added in f32.

A step is one block, whose sums are added up by one FMA for each element, in the order of K. Those
of integers are exact, and begin at what the zero point of B takes from them, which was made when A
was quantized.
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

#: K groups of a block whose sums begin with it that stand in straight code at most.
STRAIGHT = 16
#: The operands that have a value for each block of K.
OF_BLOCKS = ("a_scales", "a_zeros", "a_starts", "a_totals", "b_scales", "b_zeros", "b_totals")


@dataclass(frozen=True, slots=True)
class BlockSteps(OuterProduct):
    """Steps of one block of K; ``scales`` are the pointers to what belongs to blocks, by name."""

    scales: tuple[PointerPlan, ...] = ()

    @classmethod
    def of(cls, tile: Tile) -> Self:
        """The steps of ``tile``, and the pointers that they need."""
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
        """A block."""
        return tile.product.block

    @property
    def pointers(self) -> tuple[PointerPlan, ...]:
        """Those to the operands, and to their scales."""
        return (*self.inputs, *self.scales)

    @property
    def moved(self) -> tuple[PointerPlan, ...]:
        """All of them, but those that the loop within a block moves."""
        return self.scales if self.looped else self.pointers

    @property
    def groups(self) -> int:
        """K groups in a block."""
        return self.tile.product.block // self.tile.product.group

    @property
    def looped(self) -> bool:
        """Whether a block has a loop of its own: it is long, or K is walked at run time."""
        walked = any(pointer.walked for pointer in self.inputs)
        return (self._even and self.groups > self.most_groups) or walked

    @property
    def most_groups(self) -> int:
        """How many K groups stand in straight code at most."""
        return STRAIGHT

    @property
    def _even(self) -> bool:
        """Whether a block ends with a byte of its elements."""
        return self.groups % self.tile.plan.read_format.fields == 0

    @property
    def together(self) -> int:
        """K groups that stand in straight code: all of a short block, else a part of it."""
        if not self.looped or not self._even:
            return self.groups
        least = self.least_groups
        most = range(self.most_groups // least * least, least, -least)
        return next((count for count in most if self.groups % count == 0), least)

    @property
    def least_groups(self) -> int:
        """K groups of which a part of a block has a multiple: those of a byte, and of a load."""
        return lcm(self.tile.plan.read_format.fields, self.shape.group)

    def products(self, index: int, count: int) -> Iterator[Op]:
        """The products of ``count`` K groups; a long block has a loop, which moves the pointers."""
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
        """Where a row's K group lies."""
        block, group = self._place(k)
        pointer = pointer_to(row, self.across)
        at = pointer.address(row, block)
        within = group * self.tile.product.group * pointer.operand.strides["k"]
        return replace(at, offset=linear(((1, at.offset), (1, within))))

    def _place(self, k: int) -> tuple[int, int]:
        """The block and the K group within it, as the pointers see them: a loop has moved them."""
        block, group = divmod(k, self.groups)
        return (0 if self.looped else block), group

    def stored(self, column: int, k: int) -> Bytes:
        """The bytes of a K group's numbers in a vector of columns."""
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
        """Nothing once a trip: each load asks for what one will read that is a few blocks ahead."""
        return None

    def _ahead(self, column: int) -> Expr:
        """How far ahead a load asks for a line, 0 where the vector before it is of that line."""
        plan, distance = self.tile.plan, self.tile.plan.schedule.prefetch
        begins = self.tile.position(column) * plan.read_format.group % plan.target.core.line == 0
        return distance * self.along[0].k_stride if distance and begins else ZERO

    def plane_at(self, column: int, k: int, plane: int) -> Address:
        """Where the bytes with that part of a K group's numbers lie."""
        form = self.tile.plan.read_format
        block, group = self._place(k)
        line, _ = form.place(group, plane)
        first = line * form.nb * form.group + self.tile.position(column) * form.group
        return self.along[0].address(0, block, first)

    def scale_at(self, name: str, row: int, index: int, element: int = 0) -> Address:
        """Where what is called ``name`` lies for block ``index`` of a row, or of columns."""
        own = [p for p in self.scales if p.operand.name == name]
        return pointer_to(row, own).address(row, index, element)

    def of_block(self, name: str, line: int, index: int) -> Register:
        """What belongs to a block of a row or of a vector of columns."""
        return factor(self.tile.operands[name], line, index, self.tile.vector)

    def of_columns(self, index: int) -> Iterator[Op]:
        """The scales of B, and its zero points, of a block."""
        for name in ("b_scales", "b_zeros"):
            if name in self.tile.operands:
                yield from self._columns(name, index, self.tile.vector)

    def _columns(self, name: str, index: int, vector: Vector) -> Iterator[Op]:
        """What is called ``name`` of a block, in all vectors of columns."""
        memory = self.tile.operands[name].type
        for column in range(self.shape.vectors):
            at = self.scale_at(name, 0, index, self.tile.position(column))
            dst = replace(self.of_block(name, column, index), vector=vector)
            yield from read(self.tile.plan.target, dst, at, None, memory)


@dataclass(frozen=True, slots=True)
class ScaledProduct(BlockSteps):
    """Steps of one block of K, summed apart."""

    def emit(self, index: int, run: int) -> Iterator[Op]:
        """The sums of a block, then scaled and added."""
        yield from self.begin(index)
        yield from self.products(index, self.groups)
        yield from self.add(index)

    def tail(self, index: int) -> Iterator[Op]:
        """There is none: both operands are filled up to whole blocks."""
        assert self.tile.k_tail == 0, f"block {index} is not whole"
        yield from ()

    # --- a block's sums ----------------------------------------------------------------------

    def sum_of(self, row: int, column: int, k: int) -> Register:
        """The sum of a block of K."""
        acc = self.tile.accumulator(row, column)
        return Register(f"{acc.name.replace('c', 's', 1)}_k{k // self.groups}", self.summing)

    def begin(self, index: int) -> Iterator[Op]:
        """Each row's sums at what zero points take from them: B's, and A's own."""
        yield from self.totals(index)
        for row in range(self.shape.rows):
            yield from self.zero_of(row, index)
            for column in range(self.shape.vectors):
                yield from self.begin_one(row, column, index)

    def begin_one(self, row: int, column: int, index: int) -> Iterator[Op]:
        """The sum of a row and a vector."""
        partial = self.sum_of(row, column, index * self.groups)
        if "a_starts" in self.tile.operands:
            yield Broadcast(partial, self.scale_at("a_starts", row, index), begins=True)
        else:
            yield Zero(partial)
        yield from self.less_zeros(partial, row, column, index)

    def totals(self, index: int) -> Iterator[Op]:
        """The sums of B's elements in a block, where zero points of A multiply them."""
        if "b_totals" in self.tile.operands:
            yield from self._columns("b_totals", index, self.summing)

    def zero_of(self, row: int, index: int) -> Iterator[Op]:
        """The zero point of a row of A in a block, if it has one."""
        if "a_zeros" in self.tile.operands:
            zero = replace(self.of_block("a_zeros", row, index), vector=self.summing)
            yield Broadcast(zero, self.scale_at("a_zeros", row, index))

    @property
    def summing(self) -> Vector:
        """The vector of a block's sums, which may be of f32."""
        plan = self.tile.plan
        return plan.target.holding(plan.product.partial, self.tile.vector.lanes)

    def less_zeros(self, partial: Register, row: int, column: int, index: int) -> Iterator[Op]:
        """``partial`` less the zero point of A times the sum of B's elements: that is negative."""
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
        """The factors of a K group, which share their bytes with those of other groups."""
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
        """Whether factors of B are its numbers, not what its bits count."""
        plan = self.tile.plan
        return meets_numbers(plan.spec, plan.product, plan.read_format)

    def looked_up(self, index: int) -> Numbers:
        """What makes B's numbers of a block those of A's type."""
        plan, suffix = self.tile.plan, f"_k{index}" if index else ""
        return Numbers(plan.target, plan.read_format, self.held("along"), suffix)

    # --- scaled and added --------------------------------------------------------------------

    def add(self, index: int) -> Iterator[Op]:
        """Sums of a block times the scales of its row of A and column of B, added to C's."""
        yield Note("The sums of this block of K, scaled and added.")
        yield from self.of_columns(index)
        for row in range(self.shape.rows):
            yield from self.of_row(row, index)
            for column in range(self.shape.vectors):
                yield from self.add_one(self.tile.accumulator(row, column), row, column, index)

    def of_row(self, row: int, index: int) -> Iterator[Op]:
        """The scale of a row of A, and the sum of its elements, of a block."""
        for name in ("a_scales", "a_totals"):
            if name in self.tile.operands:
                dst, at = self.of_block(name, row, index), self.scale_at(name, row, index)
                yield Broadcast(dst, at)
        if self._scales_sums:
            sums, scale = (self.of_block(of, row, index) for of in ("a_totals", "a_scales"))
            yield Apply(self._sums_of(row, index), "mul", (sums, scale), begins=True)

    @property
    def _scales_sums(self) -> bool:
        """Whether sums of A's elements, which minima multiply, still lack the scales of a call."""
        plan = self.tile.plan
        return plan.read_format.minima and plan.spec.scales_of_blocks is not None

    def _sums_of(self, row: int, index: int) -> Register:
        """The sum of a block of A's elements, scaled where minima multiply it."""
        sums = self.of_block("a_totals", row, index)
        return replace(sums, name=f"{sums.name}_scaled") if self._scales_sums else sums

    def add_one(self, acc: Register, row: int, column: int, index: int) -> Iterator[Op]:
        """``acc += (sum - zero * sum of A) * scales``, or with what the minimum adds behind it."""
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
            yield Apply(less, "fma", (sums, zeros, real))  # sums of -A: exact
            yield Apply(acc, "fma", (less, both, acc))
        else:
            yield Apply(acc, "fma", (real, both, acc))
            yield Apply(acc, "fma", (sums, zeros, acc))


@dataclass(frozen=True, slots=True)
class RunsOfProducts(ScaledProduct):
    """Steps of one block of K, whose products are summed in runs, in lanes half as wide.

    Such a sum holds a run exactly. It is added to the block's by a multiply-add with ones; where a
    block is one run, that has just begun then.
    """

    def emit(self, index: int, run: int) -> Iterator[Op]:
        """The sums of runs and of a block, then scaled and added."""
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
        """Whether a block is one run."""
        return self.groups <= self.tile.product.few

    def begin_one(self, row: int, column: int, index: int) -> Iterator[Op]:
        """The sum of a row and a vector; that of its only run is there already."""
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
        """The rows and columns of vectors."""
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
        """The sum of the run with K group ``k``, added to its block's."""
        run, by = self._sum_of_run(row, column, k), self._ones(k // self.groups)
        yield MultiplyAdd(self._few.then, self.sum_of(row, column, k), run, by)

    @property
    def _few(self) -> Few:
        """The instructions of both steps."""
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
