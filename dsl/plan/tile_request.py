"""What a tile is asked to do, and how its operand across may reach it: a shape for each way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from tilewright.isa.matrix_unit import MatrixUnit
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector

from .contraction import Product
from .tile_shape import TileShape

#: Operations that convert an element which no vector spreads.
ALONE = 4


@dataclass(frozen=True)
class Work:
    """What a tile is asked to do, as far as its cost depends on it.

    ``product`` is the multiply-add, ``unit`` the matrix unit if it is one's; ``vectors`` are those
    it may use; ``steps`` are K steps in all, ``depth`` those of one matrix, None when known only at
    the call. ``feeds`` are the lane feeds that are possible, ``splits`` the numbers of accumulator
    sets allowed, ``spare`` the registers left to the compiler. ``dot``: vectors lie along K;
    ``transposed``: C is contiguous across them. ``overlaps``: a tile's last vector may overlap the
    one before; ``padded``: it is computed whole though part of it exists, and nothing is loaded but
    whole vectors. ``source``: what an element of the operand across is converted from as it is
    spread, "" where it is not; with ``converts`` one alone takes steps, of either operand.
    ``stride`` bytes lie between the vectors of one step and the next.
    """

    product: Product
    vectors: tuple[Vector, ...]
    steps: int
    reads_c: bool
    feeds: tuple[str, ...]
    splits: tuple[int, ...]
    dot: bool = False
    transposed: bool = False
    depth: int | None = None
    spare: int = 0
    overlaps: bool = False
    padded: bool = False
    source: str = ""
    converts: bool = False
    stride: int = 0
    unit: MatrixUnit | None = None

    def room(self, target: Target) -> int:
        """The registers that accumulators and factors may take."""
        return (self.unit.registers if self.unit else target.registers) - self.spare

    def most_rows(self, target: Target) -> int:
        """More rows than any tile has."""
        return self.room(target) * (self.unit.rows if self.unit else 1) + 1

    def cut(self, vector: Vector, vectors: int) -> bool:
        """Whether the tail of a tile of ``vectors`` is cut, not overlapped with its neighbour."""
        return not (self.overlaps and vector.prefers_overlap and vectors > 1)

    def ways(self, vector: Vector) -> tuple[Way, ...]:
        """How tiles of ``vector`` may be fed; found once."""
        if vector not in self._ways:
            self._ways[vector] = tuple(_ways(vector, self))
        return self._ways[vector]

    @cached_property
    def _ways(self) -> dict[Vector, tuple[Way, ...]]:
        return {}

    def tallest(self, target: Target, vector: Vector, vectors: int) -> int:
        """Rows beyond which a tile's accumulators alone take more registers than there are."""
        one = self.ways(vector)[0].one
        bands = self.room(target) // (vectors * one.parts * min(self.splits))
        return min(bands * one.height, self.most_rows(target) - 1)

    def with_split(self, split: int) -> Work:
        """The same work with one number of accumulator sets."""
        return replace(self, splits=(split,))


def fed(
    vector: Vector, rows: int, vectors: int, split: int, masked: bool, work: Work
) -> Iterator[TileShape]:
    """The tiles of that size, one for each way in which the operand across may arrive."""
    for way in work.ways(vector):
        if way.serves(rows, vectors):
            yield way.shape(rows, vectors, split, masked)


@dataclass(frozen=True, slots=True)
class Way:
    """How the operand across may arrive in tiles of any size, all of one vector.

    ``one`` is the tile of one row and one vector. ``hold`` is the side that a K step keeps in
    registers, "" for the one that takes fewer. ``sizes`` says which tiles there are: ``wide`` ones
    have more vectors than rows, ``single`` ones one vector, ``whole`` ones a multiple of the
    vector's lanes as rows. ``masked`` is said where it does not depend on the tile's place.
    """

    one: TileShape
    hold: Literal["", "along"] = ""
    sizes: Literal["any", "wide", "single", "whole"] = "any"
    masked: bool | None = None

    def serves(self, rows: int, vectors: int) -> bool:
        """True if a tile of ``rows`` x ``vectors`` can be fed this way."""
        match self.sizes:
            case "wide":
                return vectors > rows
            case "single":
                return vectors == 1
            case "whole":
                return rows % self.one.vector.lanes == 0
        return True

    def shape(self, rows: int, vectors: int, split: int, masked: bool) -> TileShape:
        """The tile of that size; written out, as a search for a tile makes thousands."""
        one = self.one
        bands = rows if one.unit is None else -(-rows // one.height)
        return TileShape(
            vector=one.vector,
            rows=rows,
            vectors=vectors,
            k_split=split,
            feed=one.feed,
            hold=self.hold or ("along" if vectors <= bands else "across"),
            masked=masked if self.masked is None else self.masked,
            op=one.op,
            plain=one.plain,
            instructions=one.instructions,
            height=one.height,
            parts=one.parts,
            unit=one.unit,
            groups=one.groups,
            group=one.group,
            shuffles=one.shuffles,
            latency=one.latency,
            converts=one.converts,
            stride=one.stride,
        )


def _ways(vector: Vector, work: Work) -> Iterator[Way]:
    product = work.product
    plain = product.form(vector, "scalar", "broadcast")
    assert plain is not None, f"{vector!r} has no multiply-add of these factors"
    one = TileShape(vector, 1, 1, 1, "broadcast", "along", False, op=plain, plain=plain)
    if work.unit is not None:
        groups = product.depth // product.group
        one = replace(one, feed="matrix", unit=work.unit, groups=groups, height=plain.rows)
        yield Way(one)
        return
    one = replace(one, instructions=plain.instructions, latency=plain.latency)
    if work.dot:
        one = replace(one, op=product.form(vector, "broadcast") or plain)
        yield Way(one, masked=work.depth is None or work.depth % vector.lanes != 0)
        return
    blocks = replace(one, height=plain.rows, parts=vector.lanes // plain.cols, stride=work.stride)
    yield from _spread(replace(blocks, feed=plain.form), work)
    for feed in work.feeds:
        yield from _repeated(blocks, work) if feed == "repeat" else _laned(blocks, feed, work)


def _laned(one: TileShape, feed: str, work: Work) -> Iterator[Way]:
    """Several elements across in the lanes of a register, from which multiply-adds take them."""
    vector = one.vector
    lane = work.product.form(vector, "lane")
    if lane and vector.lanes > 1:
        group = vector.lanes if feed == "lane_k" else 1
        shape = replace(one, feed=feed, group=group, op=lane, instructions=lane.instructions)
        yield Way(shape, "along", "whole" if feed == "lane_s" and work.padded else "any")


def _repeated(one: TileShape, work: Work) -> Iterator[Way]:
    """A few elements across, converted together: each is spread over another register."""
    few = one.vector.repeats.get(work.source)
    if few is not None and (work.depth is None or work.depth >= few.count):
        shuffles = 1 + few.shuffles / few.count
        yield Way(replace(one, feed="repeat", group=few.count, shuffles=shuffles), "along")


def _spread(one: TileShape, work: Work) -> Iterator[Way]:
    """Each element across in all lanes of a register, or in memory."""
    shape = replace(one, converts=work.converts)
    if work.source:
        spread = one.vector.spreads.get(work.source)
        shape = replace(shape, shuffles=ALONE if spread is None else spread.shuffles)
        # One by one, so that conversions are apart, too.
        yield Way(shape, "along", "wide")
    yield Way(shape)
    memory = work.product.form(one.vector, "memory") if work.product.alike else None
    if not work.source and memory:
        yield Way(replace(shape, feed="memory", op=memory), "along", "single")
