"""What a tile is asked to do, and how its operand across may reach it: a shape for each way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.isa.matrix_unit import MatrixUnit
from tilewright.isa.target import Target
from tilewright.isa.vector import ALIKE, Factors, MulAdd, Vector

from .tile_shape import TileShape

#: Operations that convert an element which no vector spreads.
ALONE = 4


@dataclass(frozen=True, slots=True)
class Work:
    """What a tile is asked to do: the vectors it may use, K steps in all, whether C is read, which
    lane feeds are possible, the accumulator sets allowed, where the vectors lie, how many registers
    are left to the compiler, and whether a tile's last vector may overlap the one before, or is
    computed whole though part of it exists: then nothing is loaded but whole vectors.
    ``depth``: the K steps of one matrix, None when known only at the call. ``source``: what an
    element of the operand across is converted from as it is spread, "" where it is not; with
    ``converts`` one alone takes steps, of either operand; ``stride`` bytes lie between the vectors
    of one step and the next. ``unit`` with its multiply-add ``by`` is the matrix unit that does it,
    ``groups`` of K at each step.
    """

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
    factors: Factors = ALIKE
    source: str = ""
    converts: bool = False
    stride: int = 0
    unit: MatrixUnit | None = None
    by: MulAdd | None = None
    groups: int = 1

    def room(self, target: Target) -> int:
        """The registers that accumulators and factors may take."""
        return (self.unit.registers if self.unit else target.registers) - self.spare

    def most_rows(self, target: Target) -> int:
        """More rows than any tile has."""
        return self.room(target) * (self.unit.rows if self.unit else 1) + 1

    def cut(self, vector: Vector, vectors: int) -> bool:
        """Whether the tail of a tile of ``vectors`` is cut, not overlapped with its neighbour."""
        return not (self.overlaps and vector.prefers_overlap and vectors > 1)

    def with_split(self, split: int) -> Work:
        """The same work with one number of accumulator sets."""
        return replace(self, splits=(split,))


def fed(
    vector: Vector, rows: int, vectors: int, split: int, masked: bool, work: Work
) -> Iterator[TileShape]:
    """The tiles of that size, one for each way in which the operand across may arrive."""
    hold = "along" if vectors <= rows else "across"
    base = TileShape(vector, rows, vectors, split, "broadcast", hold, masked)
    if work.unit is not None and work.by is not None:
        base = replace(base, feed="matrix", unit=work.unit, groups=work.groups, height=work.by.rows)
        yield replace(base, hold="along" if base.columns <= base.bands else "across")
        return
    plain = vector.form("scalar", "broadcast", factors=work.factors)
    assert plain is not None
    base = replace(base, instructions=plain.instructions, latency=plain.latency)
    if work.dot:
        yield replace(base, masked=work.depth is None or work.depth % vector.lanes != 0)
        return
    yield from _spread(replace(base, feed=plain.form), plain, work)
    for feed in work.feeds:
        yield from (
            _repeated(base, plain, work) if feed == "repeat" else _laned(base, feed, plain, work)
        )


def _laned(base: TileShape, feed: str, plain: MulAdd, work: Work) -> Iterator[TileShape]:
    """Several elements across in the lanes of a register, from which multiply-adds take them."""
    vector = base.vector
    cut = feed == "lane_s" and base.rows % vector.lanes != 0
    lane = vector.form("lane", factors=work.factors)
    if lane and vector.lanes > 1 and not (cut and work.padded):
        group = vector.lanes if feed == "lane_k" else 1
        of_lanes = replace(base, feed=feed, hold="along", instructions=lane.instructions)
        yield _blocked(replace(of_lanes, group=group), plain, work)


def _repeated(base: TileShape, plain: MulAdd, work: Work) -> Iterator[TileShape]:
    """A few elements across, converted together: each is spread over another register."""
    few = base.vector.repeats.get(work.source)
    if few is not None and (work.depth is None or work.depth >= few.count):
        shuffles = 1 + few.shuffles / few.count
        shape = replace(base, feed="repeat", hold="along", group=few.count, shuffles=shuffles)
        yield _blocked(shape, plain, work)


def _spread(base: TileShape, plain: MulAdd, work: Work) -> Iterator[TileShape]:
    """Each element across in all lanes of a register, or in memory."""
    shape = replace(_blocked(base, plain, work), converts=work.converts)
    if work.source:
        spread = base.vector.spreads.get(work.source)
        shape = replace(shape, shuffles=ALONE if spread is None else spread.shuffles)
    if work.source and shape.hold == "across":  # one by one, so that conversions are apart, too
        yield replace(shape, hold="along")
    yield shape
    memory = base.vector.form("memory") if work.factors == ALIKE else None
    if base.vectors == 1 and not work.source and memory:
        yield replace(shape, feed="memory", hold="along")


def _blocked(base: TileShape, plain: MulAdd, work: Work) -> TileShape:
    """With the block of C that one multiply-add computes, and how far apart steps lie."""
    parts = base.vector.lanes // plain.cols
    return replace(base, height=plain.rows, parts=parts, stride=work.stride)
