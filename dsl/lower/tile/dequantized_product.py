"""K steps of a quantized B with an A of floating point, a block of K each.

B's elements become f32 as they are loaded, by the scales of a block, which are loaded first. Or its
numbers become A's type, which has them exactly, and the sums of a block are scaled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sympy import Integer

from tilewright.ir.ops import Note, Op
from tilewright.symbolic import value

from .dequantize import Dequantizer
from .scaled_product import STRAIGHT, BlockSteps, ScaledProduct

#: Multiply-adds of a block that stand in straight code at most.
MULTIPLY_ADDS = 64


@dataclass(frozen=True, slots=True)
class DequantizedProduct(BlockSteps):
    """Steps of one block of K, whose products are added to C's as others are."""

    def emit(self, index: int, run: int) -> Iterator[Op]:
        """The block's scales, then its products."""
        yield from self._block(index, self.groups)

    def tail(self, index: int) -> Iterator[Op]:
        """The elements of K that fill no block."""
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
        """As many as take so many multiply-adds that a trip costs little beside them."""
        most = MULTIPLY_ADDS // self.shape.multiply_adds
        return max(self.least_groups, min(STRAIGHT, most))

    def load(self, column: int, k: int) -> Iterator[Op]:
        """The elements of a step as f32."""
        made = self._dequantizer(column, k // self.groups)
        yield from made.element(self.vector(column, k), self.stored(column, k))

    def _dequantizer(self, column: int, index: int) -> Dequantizer:
        """What makes elements of a block of a vector of columns f32."""
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
    """Steps of one block of K, whose numbers are summed apart."""

    def emit(self, index: int, run: int) -> Iterator[Op]:
        """The sums of a block, then scaled and added."""
        yield from self._block(index, self.groups, 0)

    def tail(self, index: int) -> Iterator[Op]:
        """The elements of K that fill no block; the last ones may fill no group."""
        left = value(self.tile.k_tail)
        assert left is not None, "the K of a packed B is fixed"
        if left:
            yield Note("The last elements of K, which fill no block.")
            yield from self._block(index, *divmod(left, self.tile.product.group))

    def _block(self, index: int, count: int, existing: int) -> Iterator[Op]:
        """So many K groups of a block, and one of which so many elements exist, if any do."""
        yield from self.looked_up(index).table()
        yield from self.begin(index)
        yield from self.products(index, count)
        if existing:
            yield from self.step(self._behind(index, count), False, Integer(existing))
        yield from self.add(index)

    def _behind(self, index: int, count: int) -> int:
        """The K group behind ``count`` ones of a block, from where pointers stand then."""
        return index * self.groups + (count % self.together if self.looped else count)
