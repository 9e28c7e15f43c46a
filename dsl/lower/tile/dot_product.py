"""K steps of tiles whose vectors run along K, and the sums of their accumulators' lanes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from sympy import Expr, Integer

from tilewright.ir.access import read
from tilewright.ir.interleaving import sum_tree
from tilewright.ir.ops import (
    Loop,
    MakeMask,
    Note,
    Op,
    SumLanes,
)
from tilewright.ir.values import Active, MaskRegister, Register
from tilewright.isa.vector import Vector
from tilewright.plan.operands import Operand
from tilewright.symbolic import div, mod, value

from .epilogue import Output
from .k_loop import KStep, Side, factor, held, multiply_add, order, pointer_to
from .store import from_sums, write
from .tile import Tile

#: For each vector type, the number of elements of K to load; types not listed load whole vectors.
Existing = Mapping[Vector, Active]


@dataclass(frozen=True, slots=True)
class DotProduct(KStep):
    """The steps of one vector along K of each row of A and column of B."""

    note: ClassVar[str] = "K vectors left"

    @staticmethod
    def k_elements(tile: Tile) -> int:
        """Return the elements of K in a step: one K group for each lane."""
        return tile.vector.lanes * tile.product.depth

    @staticmethod
    def lines(tile: Tile) -> tuple[int, int]:
        """Return the numbers of rows along and across that need pointers: all of them."""
        return tile.shape.vectors, tile.shape.rows

    @property
    def count(self) -> Expr:
        """The number of whole vectors along K."""
        return div(self.tile.steps, self.tile.vector.lanes)

    def emit(self, index: int, run: int) -> Iterator[Op]:
        """Multiply a vector along K of each row of A by that of each column of B."""
        yield from self._step(index, {})

    def leave(self, run: int) -> Iterator[Op]:
        """Move the pointers past straight code; the tail begins there."""
        if run:
            yield from (p.advance(run) for p in self.moved)

    def tail(self, index: int) -> Iterator[Op]:
        """Emit the elements of K that fill no vector: with masks, or in parts of
        decreasing size.
        """
        tail, known = self._left, value(self._left)
        if known == 0:
            return
        sides: list[Side] = ["along", "across"]
        vectors = dict.fromkeys(self._vector(side) for side in sides if not self._padded(side))
        if all(vector.mask is not None for vector in vectors):
            masks = {v: MaskRegister(f"k_mask{i or ''}", v, tail) for i, v in enumerate(vectors)}
            yield from map(MakeMask, masks.values())
            yield from self._step(0, masks, "t")
        elif known is not None:
            yield from self._step(0, dict.fromkeys(vectors, known), "t")
        else:
            yield from self._halving(vectors, tail)

    def _halving(self, vectors: Iterable[Vector], tail: Expr) -> Iterator[Op]:
        """Emit a run-time tail by loads of 2^i elements, each in a loop of 0 or 1 trips."""
        size = self.k_elements(self.tile)
        while size := size // 2:
            trips, tail = div(tail, size), mod(tail, size)
            existing = dict.fromkeys(vectors, size)
            step = *self._step(0, existing, "t"), *(p.advance_by(size) for p in self.moved)
            yield Loop("kt", trips, step, f"{size} elements of K")

    def _step(self, k: int, existing: Existing, suffix: str = "") -> Iterator[Op]:
        for side, index, products in order(self.tile, self.shape.vectors, self.shape.rows):
            yield from self._load(side, index, k, existing, suffix)
            for along, across in products:
                acc = self.tile.accumulator(across, along, self.accumulator_set(k))
                x = self._register("across", across, k, suffix)
                y = self._register("along", along, k, suffix)
                op, whole = self.shape.op, not existing
                yield from multiply_add(self.tile, op, acc, x, y, whole=whole)

    def _operand(self, side: Side) -> Operand:
        return self.tile.along if side == "along" else self.tile.across

    def _vector(self, side: Side) -> Vector:
        """Return the vector type for the factors of ``side``.

        The multiply-add names A's type "across" and B's type "along", whichever side A is on.
        """
        return held(self.tile, "across" if self._operand(side).name == "a" else "along")

    @property
    def _left(self) -> Expr:
        """The number of elements of K after the last whole vector."""
        tile = self.tile
        return mod(tile.steps, tile.vector.lanes) * tile.product.depth + tile.k_tail

    def _padded(self, side: Side) -> bool:
        """True if the kernel packed the operand itself, padded with finite elements to whole
        vectors.

        Whole vectors are then loaded. Elements past the end of K are multiplied by zeros: the other
        operand is loaded with only its existing elements. If K is known only at the call, a row may
        end without padding, so this is False.
        """
        plan, operand = self.tile.plan, self._operand(side)
        turned, ends = operand.name in plan.staging.packs, value(self._left) is not None
        return ends and "k" not in plan.nest.outer.lower() and operand.packed and not turned

    def _register(self, side: Side, index: int, k: int, suffix: str) -> Register:
        return factor(self._operand(side), index, k, self._vector(side), suffix)

    def _load(
        self, side: Side, index: int, k: int, existing: Existing, suffix: str
    ) -> Iterator[Op]:
        pointer = pointer_to(index, self.along if side == "along" else self.across)
        register, memory = self._register(side, index, k, suffix), self._operand(side).type
        active = None if self._padded(side) else existing.get(register.vector)
        yield from read(self.tile.plan.target, register, pointer.address(index, k), active, memory)


def store_dots(tile: Tile) -> Iterator[Op]:
    """Sum the lanes of every accumulator and update C, with vectors of sums if possible."""
    shape, lanes, line = tile.shape, tile.vector.lanes, tile.sum_along
    if line is None:
        yield from _store_scalars(tile)
        return
    lines, length = shape.rows, shape.vectors
    if line == tile.here.problem.across:
        lines, length = length, lines
    runs = [range(first, min(first + lanes, length)) for first in range(0, length, lanes)]
    actives = {len(run): _active(tile, len(run)) for run in runs}
    masks = (active for active in actives.values() if isinstance(active, MaskRegister))
    yield from map(MakeMask, masks)
    outputs: list[Output] = []
    for index, run in product(range(lines), runs):
        ops, output = _summed(tile, (line, index, run), actives[len(run)])
        yield from ops
        outputs.append(output)
    yield from write(tile, outputs)


def _active(tile: Tile, count: int) -> Active:
    """Return the first ``count`` lanes as a mask, or as a number if there are no masks; None for
    all.
    """
    if count == tile.vector.lanes:
        return None
    masked = tile.vector.mask is not None
    return MaskRegister(f"mask{count}", tile.vector, Integer(count)) if masked else count


def _summed(tile: Tile, at: tuple[str, int, range], active: Active) -> tuple[list[Op], Output]:
    """Return operations that sum the lanes of adjacent accumulators into one vector, and its
    output.

    ``at`` has the dimension along which they are adjacent, the index across it, and the indices
    along it.
    """
    line, index, run = at
    accumulators = [
        tile.accumulator(index, i)
        if line == tile.here.problem.along
        else tile.accumulator(i, index)
        for i in run
    ]
    tree, total = sum_tree(accumulators, f"sum{index}_{run.start}")
    ops: list[Op] = []
    if tile.phase != "finish":
        ops.append(Note(f"Sum the lanes of {', '.join(acc.name for acc in accumulators)}."))
        ops += tree
    output = Output.of(total, line, run.start, index, active)
    return [*ops, *from_sums(tile, output)], output


def _store_scalars(tile: Tile) -> Iterator[Op]:
    plan, shape = tile.plan, tile.shape
    scalar = plan.target.of(plan.staging.element)[-1]
    outputs = []
    yield Note("Sum the lanes of each accumulator.")
    for row in range(shape.vectors):
        for column in range(shape.rows):
            total = Register(f"sum{row}_{column}", scalar)
            outputs.append(Output(total, "n", row, column, None))
            if tile.phase != "finish":
                yield SumLanes(total, tile.accumulator(column, row))
            yield from from_sums(tile, outputs[-1])
    yield from write(tile, outputs)
