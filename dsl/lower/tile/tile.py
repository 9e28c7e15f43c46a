"""One register tile as a program: K loop, batch loop, update of C."""

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
from tilewright.plan.plan import Environment, Plan
from tilewright.plan.tiling.tile_shape import TileShape
from tilewright.plan.tiling.tiles import Phase, RegisterTile
from tilewright.symbolic import ZERO, linear, value


@dataclass(frozen=True, slots=True)
class Tile:
    """What lowering one register tile needs: its place in the plan, and the plan.

    ``here`` has the operands as they are packed where the tile is called.
    """

    here: Environment
    chosen: RegisterTile

    @property
    def plan(self) -> Plan:
        """The plan of the product."""
        return self.here.plan

    @property
    def operands(self) -> Mapping[str, Operand]:
        """The operands as this tile reads and writes them."""
        return self.here.operands

    @property
    def shape(self) -> TileShape:
        """Its registers, and how factors reach them."""
        return self.chosen.shape

    @property
    def steps(self) -> Expr:
        """Groups of K as deep as the multiply-add."""
        return self.chosen.steps

    @property
    def k_tail(self) -> Expr:
        """Elements of one group more, which are read one by one."""
        return self.chosen.k_tail

    @property
    def accumulate(self) -> bool:
        """Whether what is written already holds a part of the sum."""
        return self.chosen.accumulate

    @property
    def resumes(self) -> bool:
        """Whether accumulators begin at what is written, in the order of K as without blocks."""
        adds = self.accumulate and self.phase == "sum"
        return adds and self.plan.unpacks and not self.plan.transposed

    @property
    def phase(self) -> Phase:
        """Whether it only sums up into the buffer of partial sums, or only finishes those."""
        return self.chosen.phase

    @property
    def finishes(self) -> bool:
        """Whether it does more with sums than scale them and add them to C."""
        later = self.accumulate and not self.plan.partial
        return self.plan.finishes and not (later and self.plan.panel_tile is not None)

    @property
    def across_size(self) -> Expr:
        """Elements of C across the vectors."""
        return self.chosen.mr if self.plan.across == "m" else self.chosen.nr

    @property
    def along_size(self) -> Expr:
        """Elements of C along the vectors."""
        return self.chosen.nr if self.plan.across == "m" else self.chosen.mr

    @property
    def vector(self) -> Vector:
        """The vectors of the tile."""
        return self.shape.vector

    @property
    def sum_along(self) -> str | None:
        """For vectors along K: the dimension of C along which sums are stored as vectors.

        None where the tile has one element along it: a masked store of one takes longer.
        """
        line = self.plan.sum_along
        length = self.shape.rows if line == self.plan.across else self.shape.vectors
        return line if length > 1 else None

    @property
    def along(self) -> Operand:
        """The input whose elements lie along the vectors."""
        return self.here.along

    @property
    def across(self) -> Operand:
        """The input whose elements are spread over the lanes."""
        return self.here.across

    @property
    def product(self) -> Product:
        """What is multiplied."""
        return self.plan.product

    @property
    def written(self) -> Operand:
        """Where the tile's elements go."""
        return self.operands["sums"] if self.phase == "sum" else self.plan.output

    @property
    def empty(self) -> bool:
        """Whether there is nothing to sum."""
        return bool(self.steps == 0 and self.k_tail == 0)

    def register(self, name: str, vector: Vector | None = None) -> Register:
        """A register of the tile's vector, or another."""
        return Register(name, vector or self.vector)

    def accumulator(self, across: int, along: int, split: int = 0) -> Register:
        """Named by row and column of C in units of the tile."""
        row, col = (along, across) if self.plan.along == "m" else (across, along)
        return self.register(f"c{row}_{col}" + (f"_s{split}" if split else ""))

    def block(self, band: int, column: int, split: int = 0) -> Register:
        """The block of C in that row and column of blocks, where multiply-adds sum such."""
        return self.register(f"s{band}_{column}" + (f"_s{split}" if split else ""))

    def summed(self, split: int) -> Iterator[Register]:
        """What the multiply-adds of one set sum into."""
        shape = self.shape
        if self.product.blocks:
            places = product(range(shape.bands), range(shape.columns))
            yield from (self.block(band, column, split) for band, column in places)
            return
        places = product(range(shape.rows), range(shape.vectors))
        yield from (self.accumulator(across, along, split) for across, along in places)

    def position(self, along: int) -> int:
        """Where vector ``along`` starts in the tile, in elements."""
        size = value(self.along_size)
        if self.chosen.overlapped and along == self.shape.vectors - 1:
            assert size is not None
            return size - self.vector.lanes
        return along * self.vector.lanes

    def active(self, along: int) -> Active:
        """What of vector ``along`` exists: all, a constant number of lanes, or a mask."""
        if self.chosen.active is None or along < self.shape.vectors - 1:
            return None
        lanes = value(self.chosen.active)
        if self.vector.mask is not None:
            return MaskRegister("mask", self.vector, self.chosen.active)
        assert lanes is not None
        return lanes

    def loaded(self, along: int) -> Active:
        """What of vector ``along`` is loaded: all, where there is room for it.

        Where multiply-adds sum groups, the elements of these are counted.
        """
        active = None if self.chosen.loads_whole else self.active(along)
        if active is None or self.product.depth == 1:
            return active
        columns = value(self.chosen.active or ZERO)
        assert columns is not None, "a packed line of groups has a fixed length"
        return columns * self.product.depth


def masks(tile: Tile) -> Iterator[Op]:
    """The masks of a tile, made once."""
    active = tile.active(tile.shape.vectors - 1)
    if isinstance(active, MaskRegister):
        yield MakeMask(active)


def zeros(tile: Tile) -> Iterator[Op]:
    """All accumulators at zero, or at the sums of the blocks of K before."""
    yield Note("Accumulators, named by their row and column of vectors in this tile of C.")
    if tile.resumes:
        yield from _sums_before(tile)
        return
    for split in range(tile.shape.k_split):
        yield from (Zero(acc) for acc in tile.summed(split))


def _sums_before(tile: Tile) -> Iterator[Op]:
    """All accumulators at what the blocks of K before have summed."""
    strides, plan = tile.written.strides, tile.plan
    for row, column in product(range(tile.shape.rows), range(tile.shape.vectors)):
        places = (row, strides[plan.across]), (tile.position(column), strides[plan.along])
        at = Address(tile.written.name, linear(places))
        yield Load(tile.accumulator(row, column), at, tile.active(column))


def sum_splits(tile: Tile) -> Iterator[Op]:
    """Add the accumulator sets pairwise into the first."""
    shape = tile.shape
    if shape.k_split == 1:
        return
    places = product(range(shape.rows), range(shape.vectors))
    yield Note("Add the sets of accumulators that K was split over.")
    yield from add_sets(
        [[tile.accumulator(*place, split) for split in range(shape.k_split)] for place in places]
    )


def add_sets(sums: Sequence[Sequence[Register]]) -> Iterator[Op]:
    """Add what each of ``sums`` has in several sets pairwise into its first."""
    left = len(sums[0])
    while left > 1:
        distance = (left + 1) // 2
        for sets in sums:
            for low in range(left - distance):
                yield Apply(sets[low], "add", (sets[low], sets[low + distance]))
        left = distance
