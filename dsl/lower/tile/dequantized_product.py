"""K steps of a quantized B with a floating-point A: one block of K each.

Either B's elements are converted to f32 with their block's scale as they are loaded. Or B's numbers
are converted to A's type, which represents them exactly, and each block's sums are scaled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sympy import Integer

from tilewright.ir.ops import Note, Op
from tilewright.symbolic import value

from .dequantize import Dequantizer
from .scaled_product import STRAIGHT, BlockSteps, ScaledProduct

#: The most multiply-adds of a block in straight code.
MULTIPLY_ADDS = 64


@dataclass(frozen=True, slots=True)
class DequantizedProduct(BlockSteps):
    """The steps of one block of K whose elements of B are converted to f32 and multiplied
    directly.
    """

    def emit(self, index: int, run: int) -> Iterator[Op]:
        """Load the block's scales, then multiply its elements."""
        yield from self._block(index, self.groups)

    def tail(self, index: int) -> Iterator[Op]:
        """Emit the elements of K that fill no block."""
        left = value(self.tile.k_tail)
        assert left is not None, "the K of a packed B is fixed"
        if left:
            yield Note("The last elements of K, which fill no block.")
            yield from self._block(index, left)

    def _block(self, index: int, count: int) -> Iterator[Op]:
        yield from self.of_columns(index)
        yield from self._dequantizer(0, index).constants()
        yield from self.products(index, count)

    @property
    def most_groups(self) -> int:
        """The most K groups in straight code: enough multiply-adds to make the loop's cost
        small.
        """
        most = MULTIPLY_ADDS // self.shape.multiply_adds
        return max(self.least_groups, min(STRAIGHT, most))

    def load(self, column: int, k: int) -> Iterator[Op]:
        """Load the elements of a step and convert them to f32."""
        made = self._dequantizer(column, k // self.groups)
        yield from made.element(self.vector(column, k), self.stored(column, k))

    def _dequantizer(self, column: int, index: int) -> Dequantizer:
        """Return the conversion to f32 for one block and one vector of columns."""
        tile, there = self.tile, self.tile.operands
        found = (name for name in ("b_scales", "b_zeros") if name in there)
        return Dequantizer(
            target=tile.plan.target,
            form=tile.plan.quantized,
            vector=tile.vector,
            of_block={name: self.of_block(name, column, index) for name in found},
            suffix=f"_k{index}" if index else "",
        )


@dataclass(frozen=True, slots=True)
class ScaledNumbers(ScaledProduct):
    """The steps of one block of K whose numbers are summed separately, then scaled."""

    def emit(self, index: int, run: int) -> Iterator[Op]:
        """Sum one block, scale the sums, and add them to the accumulators."""
        yield from self._block(index, self.groups, 0)

    def tail(self, index: int) -> Iterator[Op]:
        """Emit the elements of K that fill no block. The last of them may fill no K group."""
        left = value(self.tile.k_tail)
        assert left is not None, "the K of a packed B is fixed"
        if left:
            yield Note("The last elements of K, which fill no block.")
            yield from self._block(index, *divmod(left, self.tile.product.group))

    def _block(self, index: int, count: int, existing: int) -> Iterator[Op]:
        """Emit ``count`` whole K groups of a block, then a group with ``existing`` elements, if
        any.
        """
        yield from self.looked_up(index).table()
        yield from self.begin(index)
        yield from self.products(index, count)
        if existing:
            yield from self.step(self._behind(index, count), False, Integer(existing))
        yield from self.add(index)

    def _behind(self, index: int, count: int) -> int:
        """Return the K group after ``count`` groups of a block, relative to the moved pointers."""
        return index * self.groups + (count % self.together if self.looped else count)
