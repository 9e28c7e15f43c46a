"""Estimate the cycles of register tiles, and find the cheapest form of a tile of each size.

A request and the numbers of a core go in; tiles and their cycles come out. Each request keeps its
results, because a search asks for most sizes more than once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import NamedTuple

from tilewright.isa.machine import Core
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector
from tilewright.spec.schedule import LINES
from tilewright.spec.types import ITEMSIZE

from .bounds import Rates, rates, step_cycles
from .tile_shape import Budget, TileRequest, TileShape, tile_shapes

#: ``FEEDS``: while multiply-adds run, L2 delivers cache lines at this share of its rate.
#: ``EXPOSED``: for lines of separate rows, multiply-adds wait for this share of the transfer time.
FEEDS, EXPOSED = 0.5, 0.3
#: A cache line that was not prefetched costs as much as this number of prefetched lines. Lines of a
#: panel are prefetched. For example, 49x1280x320 in f64 on Zen 4 reaches 40 GFLOPS in tiles of
#: 4x24, 51 GFLOPS in tiles of 8x24, and 38 GFLOPS in tiles of 28x8.
UNASKED = 4
#: ``NEAR``: a panel stays in L1 if it takes less than this share of L1. The rest is for the other
#: operand and C. ``GONE``: even then, these evict this share of the panel's cache lines.
NEAR, GONE = 0.75, 0.02


def tile_cycles(shape: TileShape, core: Core, request: TileRequest) -> float:
    """Return the cycles of one tile: of all its K steps, and of the work before and after them."""
    own = rates(shape, core)
    step = _fed(shape, core, own, request)
    outputs, core = shape.outputs, own.core
    around = core.idle * own.latency
    if not request.read_once:
        # Stores at the end of a tile take time, unless the core waits for memory anyway.
        around += max(0, outputs - core.hidden) * core.late / core.stores
    around += _sets_cycles(shape, core) if shape.k_split > 1 else 0.0
    if shape.masked:
        around += outputs / core.stores / shape.vectors
    if shape.unit is not None:
        around += shape.unit.latency + outputs / core.stores
    if request.reads_c:
        around += outputs / core.loads
    if shape.vectors * shape.vector.nbytes < request.c_row:
        around += shape.rows * core.line / core.caches[-1].rate
    if request.transposed:
        blocks = -(-shape.rows // shape.vector.lanes) * shape.vector.lanes * shape.vectors
        around += blocks * (shape.vector.lanes.bit_length() - 1) / core.stores
    if request.dot:
        around += 3 * outputs / core.fma_units
        around += own.latency * (shape.vector.lanes.bit_length() - 1)
        return around + -(-request.steps // shape.vector.lanes) * step
    return around + request.steps * step


def _fed(shape: TileShape, core: Core, own: Rates, request: TileRequest) -> float:
    """Return the cycles of a K step, including those in which multiply-adds wait for L2.

    - Vectors come from L2 if L1 cannot keep a panel as wide as the tile until the next tile.
      Vectors of a packed block arrive while multiply-adds run. A wider tile needs more of them.
    - Elements of the operand across the vectors come from L2 for the rows that L1 cannot keep. If
      the row stride of a panel is known only at the call, this is assumed for all rows.
    - If a block exceeds L1 (``exceeds_l1``), each step waits once, however wide the tile is.
    """
    step, late = step_cycles(shape, core, own), core.line / core.second.rate
    if request.unprefetched:
        more = max(0, shape.rows - LINES) + max(0, shape.vectors - LINES)
        return step + more * UNASKED * late
    if request.read_once:
        lines = shape.vectors * shape.vector.nbytes / core.line
        return max(step, lines / FEEDS * late) + EXPOSED * late
    along, across = request.l1_rows
    if request.from_l2:
        return max(step, shape.loads * late) + max(0.0, shape.rows - across) * late
    size = shape.vectors * shape.vector.nbytes
    waits, arrives = max(0.0, shape.rows - across) / shape.group, 0.0
    if along == inf and request.exceeds_l1:
        step += core.overlap * size / core.line * late
    if along < inf:
        lines = size / core.line + (1 if request.stride % core.line else 0)
        near = request.steps <= along and request.steps * size < NEAR * core.caches[0].size
        if near or request.stride:
            arrives = 0.0 if near else lines / FEEDS
            waits += lines * GONE if near else lines if size < request.stride else 0.0
            waits += request.exceeds_l1
        else:
            elements = shape.rows * request.product.depth * ITEMSIZE[request.product.across]
            waits += lines + 1 + UNASKED * elements / core.line
    return max(step, arrives * late) + EXPOSED * waits * late


def _sets_cycles(shape: TileShape, core: Core) -> float:
    """Return the cycles in which the accumulator sets are added to the first set.

    The sets of a matrix unit are stored to memory and loaded from there for this.
    """
    more = shape.outputs * (shape.k_split - 1)
    through = more / core.stores + (shape.outputs + more) / core.loads
    passes = shape.unit is not None and more > 0
    return more / core.fma_units + (through if passes else 0)


#: The size of a tile: its vector type, rows, vectors in a row, and True if the last one is masked.
Size = tuple[Vector, int, int, bool]


class Costed(NamedTuple):
    """A tile, and its cycles on the target's core."""

    shape: TileShape
    cycles: float


class TileTable:
    """The cheapest tile of each size for a request on a target, estimated at the first use."""

    def __init__(self, target: Target, request: TileRequest) -> None:
        self.target, self.request, self._free = target, request, request.free(target)
        self._shapes = _shapes(target.registers, request.without_costs)
        self._best: dict[Size, Costed | None] = {}
        self._fits: dict[Size, bool] = {}

    def best(self, vector: Vector, rows: int, vectors: int, masked: bool) -> Costed | None:
        """Return the cheapest legal tile of this size; None if none fits the registers.

        If several tiles cost the same, it is one with the fewest accumulator sets.
        """
        key = vector, rows, vectors, masked
        if key not in self._best:
            self._best[key] = self._cheapest(vector, rows, vectors, masked)
        return self._best[key]

    def _cheapest(self, vector: Vector, rows: int, vectors: int, masked: bool) -> Costed | None:
        key = vector, rows, vectors, masked
        if key not in self._shapes:
            self._shapes[key] = tuple(self._legal(vector, rows, vectors, masked))
        best, least, core = None, (inf, 0), self.target.core
        for shape in self._shapes[key]:
            cycles = tile_cycles(shape, core, self.request)
            if (cycles, shape.k_split) < least:
                best, least = Costed(shape, cycles), (cycles, shape.k_split)
        return best

    def _legal(self, vector: Vector, rows: int, vectors: int, masked: bool) -> Iterator[TileShape]:
        """Yield each tile of this size that fits the registers."""
        for way in self.request.ways(vector):
            limited = way.sizes != "any" or way.one.op.within
            if limited and not way.serves(rows, vectors):
                continue
            taken = way.taken(rows, vectors)
            for split in self.request.splits:
                if split * taken <= self._free:
                    shape = way.shape(rows, vectors, split, masked)
                    if self.holds(shape.budget):
                        yield shape

    def holds(self, budget: Budget) -> bool:
        """Return True if the target has enough registers for ``budget``."""
        accumulators, along, across, masks, registers, unit = budget
        beside = (along + across + masks) * registers
        if (accumulators if unit else accumulators * registers + beside) > self._free:
            return False
        sums = self.request.sums
        taken = sums.aliases * accumulators + beside if sums else 0
        return taken <= self.target.registers - self.request.spare

    def fits(self, vector: Vector, rows: int, vectors: int, masked: bool) -> bool:
        """Return True if a tile of this size fits with the fewest accumulator sets."""
        key = vector, rows, vectors, masked
        if key not in self._fits:
            least = need(vector, rows, vectors, masked, self.request)
            self._fits[key] = self.holds(least)
        return self._fits[key]


@lru_cache(maxsize=512)
def _shapes(registers: int, request: TileRequest) -> dict[Size, tuple[TileShape, ...]]:
    """Return the dictionary in which legal tiles are kept by size. It is empty at first.

    Cores with the same registers share it.
    """
    return {}


@lru_cache(maxsize=512)
def tile_table(target: Target, request: TileRequest) -> TileTable:
    """Return the table of the tiles of a request; each request has one."""
    return TileTable(target, request)


def shape_of(
    target: Target, vector: Vector, rows: int, vectors: int, masked: bool, request: TileRequest
) -> TileShape | None:
    """Return the cheapest legal tile of this size; None if none fits the registers."""
    found = tile_table(target, request).best(vector, rows, vectors, masked)
    return None if found is None else found.shape


@dataclass(frozen=True, slots=True)
class Sets:
    """The chosen tile with another number of accumulator sets, for comparison.

    ``cycles`` are the cycles of the tile with ``count`` sets, None if they do not fit the
    registers. ``registers`` is the number of registers that such a tile needs.
    """

    count: int
    cycles: float | None
    registers: int


@dataclass(frozen=True, slots=True)
class Fitting:
    """The cheapest legal tile of a size, its cycles, and the next best sets of accumulators.

    ``free`` is the number of registers that a tile may use.
    """

    shape: TileShape
    cycles: float
    other: Sets | None
    free: int


def fitting(
    target: Target, vector: Vector, rows: int, vectors: int, masked: bool, request: TileRequest
) -> Fitting | None:
    """Return the tile that ``shape_of`` finds, compared with the next best number of sets.

    The result is None if no tile of this size fits the registers.
    """
    table = tile_table(target, request)
    found: list[tuple[float, int, TileShape]] = []
    least: dict[int, int] = {}
    for split in request.splits:
        for shape in tile_shapes(vector, rows, vectors, split, masked, request):
            registers = shape.budget.total
            least[split] = min(registers, least.get(split, registers))
            if table.holds(shape.budget):
                found.append((tile_cycles(shape, target.core, request), split, shape))
    if not found:
        return None
    cycles, split, shape = min(found, key=lambda each: each[:2])
    more = [each for each in found if each[1] != split]
    others = [each for each in request.splits if each != split]
    other = None
    if more:
        next_best = min(more, key=lambda each: each[0])
        other = Sets(next_best[1], next_best[0], next_best[2].budget.total)
    elif others:
        other = Sets(others[0], None, least[others[0]])
    return Fitting(shape, cycles, other, request.free(target))


def need(vector: Vector, rows: int, vectors: int, masked: bool, request: TileRequest) -> Budget:
    """Return the smallest register budget of a tile of this size, whether it fits or not."""
    shapes = tile_shapes(vector, rows, vectors, min(request.splits), masked, request)
    return min((shape.budget for shape in shapes), key=lambda budget: budget.total)
