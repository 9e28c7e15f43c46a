"""One register tile as the functions that lower it see it, and the setup of its accumulators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from sympy import Expr

from tilewright.ir.ops import (
    Apply,
    Load,
    MakeMask,
    Note,
    Op,
    Zero,
)
from tilewright.ir.values import Active, Address, MaskRegister, Register
from tilewright.isa.vector import Vector
from tilewright.plan.contraction import Product
from tilewright.plan.operands import Operand
from tilewright.plan.plan import Plan
from tilewright.plan.problem import Staging
from tilewright.plan.tiling.tile_shape import TileShape
from tilewright.plan.tiling.tiles import Phase, RegisterTile
from tilewright.symbolic import ZERO, linear, value


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile to be lowered, and the plan that it belongs to.

    ``here`` has the operands as they are packed where the tile is called.
    """

    plan: Plan
    here: Staging
    chosen: RegisterTile

    @property
    def operands(self) -> Mapping[str, Operand]:
        """The operands as this tile reads and writes them."""
        return self.here.operands

    @property
    def shape(self) -> TileShape:
        """The tile's registers, and how the elements of A and B reach them."""
        return self.chosen.shape

    @property
    def steps(self) -> Expr:
        """The number of whole K groups. One multiply-add sums one K group in each lane."""
        return self.chosen.steps

    @property
    def k_tail(self) -> Expr:
        """The number of elements of K after the last whole K group; they are read one by one."""
        return self.chosen.k_tail

    @property
    def accumulate(self) -> bool:
        """True if the destination already holds a part of the sums."""
        return self.chosen.accumulate

    @property
    def resumes(self) -> bool:
        """True if accumulators start at the stored sums, so that all of K is added in the same
        order.
        """
        adds = self.accumulate and self.phase == "sum"
        return adds and self.plan.staging.unpacks and not self.plan.staging.transposed

    @property
    def phase(self) -> Phase:
        """The part of the work to do: all, only add to the partial sums, or only finish these."""
        return self.chosen.phase

    @property
    def finishes(self) -> bool:
        """True if the end does more than scale the sums and add them to C, for example an
        epilogue.
        """
        later = self.accumulate and not self.plan.partial
        return self.plan.staging.finishes and not (later and self.plan.nest.panel_tile is not None)

    @property
    def across_size(self) -> Expr:
        """The tile's size in C across the vectors, in elements."""
        return self.chosen.mr if self.plan.problem.across == "m" else self.chosen.nr

    @property
    def along_size(self) -> Expr:
        """The tile's size in C along the vectors, in elements."""
        return self.chosen.nr if self.plan.problem.across == "m" else self.chosen.mr

    @property
    def vector(self) -> Vector:
        """The vector type of the tile."""
        return self.shape.vector

    @property
    def sum_along(self) -> str | None:
        """The dimension along which sums are stored as vectors, if vectors run along K.

        The output is contiguous along it. None if there is no such dimension, if the target cannot
        transpose the sums, or if the tile has one element along it, because a masked store of one
        element is slower.
        """
        plan, lengths = self.plan, {self.plan.problem.along: self.shape.vectors}
        lengths[plan.problem.across] = self.shape.rows
        line = next((d for d in lengths if value(plan.staging.output.strides[d]) == 1), "")
        transposes = all(v.transposes for v in plan.staging.vectors)
        return line if transposes and lengths.get(line, 0) > 1 else None

    @property
    def along(self) -> Operand:
        """The input whose consecutive elements fill a vector."""
        return self.here.along

    @property
    def across(self) -> Operand:
        """The input whose elements are each broadcast to all lanes."""
        return self.here.across

    @property
    def product(self) -> Product:
        """The multiply-add of A and B: its types, K group, and block."""
        return self.plan.staging.product

    @property
    def written(self) -> Operand:
        """The operand that the tile writes: the buffer of partial sums, or C or D."""
        return self.operands["sums"] if self.phase == "sum" else self.plan.staging.output

    @property
    def empty(self) -> bool:
        """True if K is empty, so that there is nothing to sum."""
        return bool(self.steps == 0 and self.k_tail == 0)

    def register(self, name: str, vector: Vector | None = None) -> Register:
        """Return the register ``name`` of the tile's vector type, or of ``vector``."""
        return Register(name, vector or self.vector)

    def accumulator(self, across: int, along: int, split: int = 0) -> Register:
        """Return an accumulator. Its name has its row and column of C, counted in vectors."""
        row, col = (along, across) if self.plan.problem.along == "m" else (across, along)
        return self.register(f"c{row}_{col}" + (f"_s{split}" if split else ""))

    def block(self, band: int, column: int, split: int = 0) -> Register:
        """Return the accumulator of one square block of C, for multiply-adds that sum blocks."""
        return self.register(f"s{band}_{column}" + (f"_s{split}" if split else ""))

    def summed(self, split: int) -> Iterator[Register]:
        """Yield the accumulators that the multiply-adds of set ``split`` sum into."""
        shape = self.shape
        if self.product.blocks:
            places = product(range(shape.bands), range(shape.columns))
            yield from (self.block(band, column, split) for band, column in places)
            return
        places = product(range(shape.rows), range(shape.vectors))
        yield from (self.accumulator(across, along, split) for across, along in places)

    def position(self, along: int) -> int:
        """Return the first element of vector ``along``, counted from the start of the tile."""
        size = value(self.along_size)
        if self.chosen.overlapped and along == self.shape.vectors - 1:
            assert size is not None
            return size - self.vector.lanes
        return along * self.vector.lanes

    def active(self, along: int) -> Active:
        """Return the active lanes of vector ``along``: None for all, a constant number, or
        a mask.
        """
        if self.chosen.active is None or along < self.shape.vectors - 1:
            return None
        lanes = value(self.chosen.active)
        if self.vector.mask is not None:
            return MaskRegister("mask", self.vector, self.chosen.active)
        assert lanes is not None
        return lanes

    def loaded(self, along: int) -> Active:
        """Return the lanes of vector ``along`` to load: all if reading past the tile is safe.

        For multiply-adds that sum K groups, the number counts elements of groups.
        """
        active = None if self.chosen.loads_whole else self.active(along)
        if active is None or self.product.depth == 1:
            return active
        columns = value(self.chosen.active or ZERO)
        assert columns is not None, "a packed line of groups has a fixed length"
        return columns * self.product.depth


def masks(tile: Tile) -> Iterator[Op]:
    """Make the tile's masks, once."""
    active = tile.active(tile.shape.vectors - 1)
    if isinstance(active, MaskRegister):
        yield MakeMask(active)


def zeros(tile: Tile) -> Iterator[Op]:
    """Set all accumulators to 0, or load the sums of earlier blocks of K."""
    yield Note("Accumulators, named by their row and column of vectors in this tile of C.")
    if tile.resumes:
        yield from _sums_before(tile)
        return
    for split in range(tile.shape.k_split):
        yield from (Zero(acc) for acc in tile.summed(split))


def _sums_before(tile: Tile) -> Iterator[Op]:
    """Load all accumulators with the sums of earlier blocks of K."""
    strides, plan = tile.written.strides, tile.plan
    for row, column in product(range(tile.shape.rows), range(tile.shape.vectors)):
        places = (
            (row, strides[plan.problem.across]),
            (tile.position(column), strides[plan.problem.along]),
        )
        at = Address(tile.written.name, linear(places))
        yield Load(tile.accumulator(row, column), at, tile.active(column))


def sum_splits(tile: Tile) -> Iterator[Op]:
    """Add all accumulator sets pairwise into the first set."""
    shape = tile.shape
    if shape.k_split == 1:
        return
    places = product(range(shape.rows), range(shape.vectors))
    yield Note("Add the sets of accumulators that K was split over.")
    yield from add_sets(
        [[tile.accumulator(*place, split) for split in range(shape.k_split)] for place in places]
    )


def add_sets(sums: Sequence[Sequence[Register]]) -> Iterator[Op]:
    """Add the registers of each element of ``sums`` pairwise into its first register."""
    left = len(sums[0])
    while left > 1:
        distance = (left + 1) // 2
        for sets in sums:
            for low in range(left - distance):
                yield Apply(sets[low], "add", (sets[low], sets[low + distance]))
        left = distance
