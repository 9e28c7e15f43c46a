"""Multiply-adds that compute square blocks of C: their K steps, and the blocks made vectors again.

A block holds ``height`` rows of lanes / height columns. Both factors are packed in groups along K:
a register holds a group of each of its columns of B, or rows of A.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.ops import Interleave, Load, Op, Register
from tilewright.symbolic import ZERO

from .tile import PointerPlan, Tile, advance, multiplied, pointer_plans


class Squares:
    """Emits K steps of one tile of blocks."""

    def __init__(self, tile: Tile) -> None:
        self.tile, self.shape = tile, tile.shape
        depth = tile.product.depth
        self.along = pointer_plans(tile.along, tile.plan.along, 1, depth)[0]
        self.across = pointer_plans(tile.across, tile.plan.across, 1, depth)[0]
        both = [self.across, self.along]
        self.pointers = both if tile.along.name == "b" else both[::-1]

    def steps(self, count: int) -> list[Op]:
        """``count`` groups of K."""
        ops: list[Op] = []
        for k in range(count):
            ops += self._step(k)
            ops += advance(self.pointers, 1, runtime=True)
        return ops

    def part(self, k: int) -> Iterator[Op]:
        """A group that is not whole: there is none, since both factors are padded."""
        assert self.tile.rest == ZERO, f"a group of K at {k} is cut"
        yield from ()

    def _step(self, k: int) -> Iterator[Op]:
        """The side that is held is loaded first, the other one block at a time."""
        sides = {"along": self.shape.columns, "across": self.shape.bands}
        kept = self.shape.hold
        passed = "across" if kept == "along" else "along"
        stay = [self._load(kept, index, k) for index in range(sides[kept])]
        yield from stay
        for index in range(sides[passed]):
            load = self._load(passed, index, k)
            yield load
            for other, held_ in enumerate(stay):
                factors = {kept: (other, held_.dst), passed: (index, load.dst)}
                yield from self._multiply(factors, k)

    def _load(self, side: str, index: int, k: int) -> Load:
        pointer: PointerPlan = self.along if side == "along" else self.across
        vector = self.tile.product.held(self.tile.plan.target, self.tile.vector, side)
        name = f"{pointer.operand.name}{index}" + (f"_k{k}" if k else "")
        first, active = self._elements(side, index)
        return Load(Register(name, vector), pointer.address(0, k, first), active)

    def _elements(self, side: str, index: int) -> tuple[int, int | None]:
        """Where block ``index`` begins in a row of groups, and how much of it to load.

        In place of a block behind what exists of its vector, the first one of that is loaded.
        """
        depth = self.tile.product.depth
        if side == "across":
            return index * self.shape.height * depth, None
        vector, part = divmod(index, self.shape.parts)
        width = self.tile.vector.lanes // self.shape.parts * depth
        loaded = self.tile.loaded(vector)
        if isinstance(loaded, int) and loaded <= part * width:
            part = 0
        left = loaded - part * width if isinstance(loaded, int) else width
        return self.tile.position(vector) * depth + part * width, left if left < width else None

    def _multiply(self, factors: dict[str, tuple[int, Register]], k: int) -> Iterator[Op]:
        (column, x), (band, y) = factors["along"], factors["across"]
        acc = self.tile.square(band, column, k % self.shape.k_split)
        yield from multiplied(self.tile, self.shape.op, acc, x, y)


def unfold(tile: Tile) -> Iterator[Op]:
    """Blocks side by side as the vectors of C's rows: halves of two registers, taken together."""
    shape = tile.shape
    width = tile.vector.lanes // shape.height
    for split in range(shape.k_split):
        for row in range(shape.rows):
            band, odd = divmod(row, shape.height)
            for vector in range(shape.vectors):
                first, second = (
                    tile.square(band, shape.parts * vector + i, split) for i in range(shape.parts)
                )
                dst = tile.accumulator(row, vector, split)
                yield Interleave(dst, first, second, width, bool(odd))
