"""K steps of a quantized B. A step is one block of K, which has its own scales and zero points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import lcm
from typing import Protocol, Self

from sympy import Expr, Integer

from tilewright.ir.access import read
from tilewright.ir.ops import Loop, Note, Op
from tilewright.ir.values import Address, Register
from tilewright.isa.vector import Vector
from tilewright.symbolic import ZERO, linear, value

from .dequantize import Bytes
from .k_loop import KStep, PointerPlan, factor, inputs, pointer_plans, pointer_to
from .outer_product import vector
from .tile import Tile

#: The most K groups of a block that are unrolled into straight code. Longer blocks get a loop.
STRAIGHT = 16
#: The operands that have one value for each block of K, for example scales and zero points.
OF_BLOCKS = ("a_scales", "a_zeros", "a_starts", "a_totals", "b_scales", "b_zeros", "b_totals")


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of K of a tile: their addresses, and how long the straight code is.

    ``along`` and ``across`` are the pointers to A and B. ``scales`` are the pointers to scales and
    other values of blocks. At most ``most`` K groups are straight code; None means ``STRAIGHT``.
    """

    tile: Tile
    along: tuple[PointerPlan, ...]
    across: tuple[PointerPlan, ...]
    scales: tuple[PointerPlan, ...]
    most: int | None = None

    @classmethod
    def of(cls, tile: Tile) -> Self:
        """Return the blocks of ``tile`` and the pointers that they need."""
        plan, block = tile.plan, tile.product.block
        found: list[PointerPlan] = []
        for name in OF_BLOCKS:
            if name in tile.operands:
                line = plan.problem.across if name[0] == "a" else plan.problem.along
                rows = tile.shape.rows if name[0] == "a" else 1
                found += pointer_plans(tile.operands[name], line, rows, block)
        along = pointer_plans(tile.along, plan.problem.along, 1, block)
        across = pointer_plans(tile.across, plan.problem.across, tile.shape.rows, block)
        return cls(tile, along, across, tuple(found))

    @property
    def inputs(self) -> tuple[PointerPlan, ...]:
        """The pointers to A, then those to B."""
        return inputs(self.tile, self.along, self.across)

    @property
    def groups(self) -> int:
        """The number of K groups in a block."""
        return self.tile.product.block // self.tile.product.group

    @property
    def looped(self) -> bool:
        """True if a block has its own loop: it is long, or the stride of K is known only at the
        call. A matrix unit has one if a block has several parts.
        """
        if self.tile.product.unit is not None:
            return self.groups > self.part
        walked = any(pointer.walked for pointer in self.inputs)
        return (self._even and self.groups > self.most_groups) or walked

    @property
    def most_groups(self) -> int:
        """The most K groups that are unrolled into straight code."""
        if self.most is None:
            return STRAIGHT
        return max(self.least_groups, min(STRAIGHT, self.most))

    @property
    def part(self) -> int:
        """The number of K groups that a matrix unit multiplies at once."""
        return self.tile.product.depth // self.tile.product.group

    @property
    def _even(self) -> bool:
        """True if a block ends with the last element of a byte."""
        return self.groups % self.tile.here.read_format(self.tile.plan.nest.panel_tile).fields == 0

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
        return lcm(
            self.tile.here.read_format(self.tile.plan.nest.panel_tile).fields, self.tile.shape.group
        )

    def products(
        self, index: int, count: int, straight: Callable[[int, int], Iterator[Op]]
    ) -> Iterator[Op]:
        """Multiply and add ``count`` K groups from a group on; ``straight`` emits some of them.

        A long block gets a loop, which moves the pointers.
        """
        first = index * self.groups
        trips, left = divmod(count, self.together) if self.looped else (0, count)
        if trips:
            body = (*straight(first, self.together), *self.moves(self.together))
            yield Loop("kg", Integer(trips), body, "a block of K")
        yield from straight(first, left)

    def moves(self, groups: int) -> Iterator[Op]:
        """Move the pointers to A and B by some K groups."""
        elements = groups * self.tile.product.group
        yield from (
            pointer.advance_by(elements) for pointer in inputs(self.tile, self.along, self.across)
        )

    def across_at(self, row: int, k: int) -> Address:
        """Return the address of a row's elements in K group ``k``."""
        block, group = self._place(k)
        pointer = pointer_to(row, self.across)
        at = pointer.address(row, block)
        within = group * self.tile.product.group * pointer.operand.strides["k"]
        return replace(at, offset=linear(((1, at.offset), (1, within))))

    def _place(self, k: int) -> tuple[int, int]:
        """Return the block of K group ``k``, which is 0 in a loop, and the group's number in it."""
        block, group = divmod(k, self.groups)
        return (0 if self.looped else block), group

    def stored(self, column: int, k: int) -> Bytes:
        """Return the bytes with the elements of K group ``k`` for a vector of columns."""
        plan = self.tile.plan
        return Bytes(
            target=plan.target,
            form=plan.staging.read_format(plan.nest.panel_tile),
            index=k % self.groups,
            at=lambda plane: self.plane_at(column, k, plane),
            name=lambda back, plane: (
                f"{vector(self.tile, column, k - back).name}_bytes{plane or ''}"
            ),
            ahead=self.ahead(column),
        )

    def ahead(self, column: int) -> Expr:
        """Return the prefetch distance in elements, or 0 if the previous vector is in the same
        line.
        """
        plan, distance = self.tile.plan, self.tile.here.problem.schedule.prefetch
        begins = (
            self.tile.position(column)
            * plan.staging.read_format(plan.nest.panel_tile).group
            % plan.target.core.line
            == 0
        )
        return distance * self.along[0].k_stride if distance and begins else ZERO

    def plane_at(self, column: int, k: int, plane: int) -> Address:
        """Return the address of the bytes that hold one bit plane of a K group."""
        form = self.tile.here.read_format(self.tile.plan.nest.panel_tile)
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
                yield from self.columns(name, index, self.tile.vector)

    def columns(self, name: str, index: int, vector: Vector) -> Iterator[Op]:
        """Load operand ``name``'s values of one block for all vectors of columns."""
        memory = self.tile.operands[name].type
        for column in range(self.tile.shape.vectors):
            at = self.scale_at(name, 0, index, self.tile.position(column))
            dst = replace(self.of_block(name, column, index), vector=vector)
            yield from read(self.tile.plan.target, dst, at, None, memory)


class Way(Protocol):
    """A way to multiply blocks of K, for example to sum integers and then scale the sums."""

    @property
    def blocks(self) -> Blocks:
        """The blocks that are multiplied."""

    def emit(self, index: int, run: int, left: int = 0) -> Iterator[Op]:
        """Emit block ``index`` of ``run`` in straight code; ``left`` elements if it is not
        whole.
        """


@dataclass(frozen=True, slots=True)
class BlockSteps(KStep):
    """The K steps of a quantized B, one block of K each, multiplied in one ``way``."""

    way: Way

    @classmethod
    def by(cls, way: Callable[[Blocks], Way], tile: Tile) -> Self:
        """Return the steps of ``tile``, whose blocks are multiplied by ``way``."""
        blocks = Blocks.of(tile)
        return cls(tile, blocks.along, blocks.across, way(blocks))

    @property
    def blocks(self) -> Blocks:
        """The blocks that are multiplied."""
        return self.way.blocks

    @property
    def pointers(self) -> tuple[PointerPlan, ...]:
        """The pointers to A and B and to the values of their blocks."""
        return (*self.inputs, *self.blocks.scales)

    @property
    def moved(self) -> tuple[PointerPlan, ...]:
        """The pointers that move after each block. A loop within a block moves those to A and B
        itself.
        """
        return self.blocks.scales if self.blocks.looped else self.pointers

    @property
    def prefetched(self) -> None:
        """None: each load of B prefetches the same place a few blocks later."""
        return None

    def emit(self, index: int, run: int) -> Iterator[Op]:
        """Emit block ``index``."""
        yield from self.way.emit(index, run)

    def tail(self, index: int) -> Iterator[Op]:
        """Emit the elements of K that fill no block."""
        left = value(self.tile.k_tail)
        assert left is not None, "the K of a packed B is fixed"
        if left:
            yield Note("The last elements of K, which fill no block.")
            yield from self.way.emit(index, 1, left)
