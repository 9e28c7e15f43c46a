"""K steps of tiles whose vectors run along m or n: a vector times an element in all lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sympy import Expr

from tilewright.ir.access import read
from tilewright.ir.ops import (
    Broadcast,
    Load,
    Op,
    Pick,
    Prefetch,
)
from tilewright.ir.values import Address, Register
from tilewright.isa.vector import MulAdd
from tilewright.plan.tiling.tile_shape import TileShape
from tilewright.spec.types import ITEMSIZE

from .k_loop import (
    KStep,
    factor,
    held,
    k_group_tail,
    multiply_add,
    order,
    pointer_to,
)
from .tile import Tile


def vector(tile: Tile, column: int, k: int) -> Register:
    """Return the register of vector ``column`` of the operand along the vectors in step ``k``."""
    return factor(tile.along, column, k, held(tile, "along"))


@dataclass(frozen=True, slots=True)
class Multiplied:
    """Emits steps. A step is one K group: the elements of K that a multiply-add sums in a lane.

    ``load`` loads a vector of the operand along the vectors. ``across_at`` returns the address of a
    row's elements, and ``sum_of`` the register that sums the products of a row and a vector.
    ``op`` is the multiply-add if it is not the tile's.
    """

    tile: Tile
    load: Callable[[int, int], Iterator[Op]]
    across_at: Callable[[int, int], Address]
    sum_of: Callable[[int, int, int], Register]
    op: MulAdd | None = None

    @property
    def shape(self) -> TileShape:
        """The register tile's shape."""
        return self.tile.shape

    def run(self, first: int, count: int) -> Iterator[Op]:
        """Emit ``count`` adjacent steps."""
        shared = self.shape.group
        for k in range(first, first + count):
            yield from self.emit(k, k // shared * shared + shared <= first + count)

    def emit(self, k: int, shared: bool, existing: Expr | None = None) -> Iterator[Op]:
        """Emit one step.

        One load of the operand across the vectors may serve several steps. ``shared`` is True if
        this run contains all of them; otherwise each step loads its own elements.
        """
        form = self.shape.form
        in_lanes = form == "lane_s" or (form == "lane_k" and shared)
        if in_lanes:
            yield from self._load_lanes(k)
        for side, index, products in order(self.tile, self.shape.vectors, self.shape.rows):
            if side == "along":
                yield from self.load(index, k)
            elif form == "repeat" and shared:
                yield from self._pick(index, k)
            elif not in_lanes and form != "memory":
                yield from self._spread(index, k, existing)
            for column, row in products:
                yield from self._multiply(row, column, k, in_lanes)

    # --- the operand across them -----------------------------------------------------------------

    def _spread(self, row: int, k: int, existing: Expr | None = None) -> Iterator[Op]:
        """Broadcast a row's K group to all lanes."""
        address, memory = self.across_at(row, k), self.tile.across.type
        register = self._spread_register(row, k)
        if register.vector.lanes == 1:
            yield from read(self.tile.plan.target, register, address, None, memory)
        else:
            yield Broadcast(register, address, self.tile.product.depth, existing, memory)

    def _spread_register(self, row: int, k: int) -> Register:
        vectors = held(self.tile, "across")
        if self.shape.plain.form == "scalar":
            vectors = self.tile.plan.target.of(self.tile.product.across)[-1]
        return factor(self.tile.across, row, k, vectors)

    def _pick(self, row: int, k: int) -> Iterator[Op]:
        """Broadcast the element of step ``k`` from a register with elements of several steps.

        The first of these steps loads the register.
        """
        shared, memory = self.shape.group, self.tile.across.type
        repeated = self._lanes_register(row, k // shared * shared)
        if k % shared == 0:
            yield Broadcast(repeated, self.across_at(row, k), shared, None, memory)
        yield Pick(self._spread_register(row, k), repeated, k % shared, memory)

    def _load_lanes(self, k: int) -> Iterator[Op]:
        """Load vectors of the operand across the vectors of C, whose lanes multiply-adds then use.

        A vector has elements of one row for this and the next steps, or elements of several rows
        for this step.
        """
        rows, lanes = self.shape.rows, self.shape.lanes
        if self.shape.form == "lane_k":
            if k % self.shape.group == 0:
                for row in range(rows):
                    address = self.across_at(row, k)
                    yield self._fill_lanes(self._lanes_register(row, k), address, None)
            return
        for first in range(0, rows, lanes):
            active = None if rows - first >= lanes else rows - first
            address = self.across_at(first, k)
            yield self._fill_lanes(self._lanes_register(first // lanes, k), address, active)

    def _fill_lanes(self, register: Register, address: Address, active: int | None) -> Op:
        """Load elements into the lanes of a register; repeat them if the register has more
        lanes.
        """
        op = self.shape.op
        if op.lanes == 0:
            return Load(register, address, active)
        assert active is None, "elements that repeat are loaded all"
        return Broadcast(register, address, op.lanes * op.depth, None, self.tile.across.type)

    def _lanes_register(self, index: int, k: int) -> Register:
        return factor(self.tile.across, index, k, held(self.tile, "across"), "v")

    # --- the product -----------------------------------------------------------------------------

    def _multiply(self, row: int, column: int, k: int, in_lanes: bool) -> Iterator[Op]:
        acc = self.sum_of(row, column, k)
        x, lanes, shared = vector(self.tile, column, k), self.shape.lanes, self.shape.group
        if self.shape.form == "memory":
            address = self.across_at(row, k)
            yield from multiply_add(self.tile, self.shape.op, acc, x, address)
        elif not in_lanes:
            y, op = self._spread_register(row, k), self.op or self.shape.plain
            yield from multiply_add(self.tile, op, acc, x, y)
        elif self.shape.form == "lane_k":
            y = self._lanes_register(row, k // shared * shared)
            yield from multiply_add(self.tile, self.shape.op, acc, x, y, k % shared)
        else:
            y = self._lanes_register(row // lanes, k)
            yield from multiply_add(self.tile, self.shape.op, acc, x, y, row % lanes)


@dataclass(frozen=True, slots=True)
class OuterProduct(KStep):
    """The K steps of a tile, each of one K group."""

    @staticmethod
    def lines(tile: Tile) -> tuple[int, int]:
        """Return the numbers of rows that need pointers: 1 along the vectors, each row
        across them.
        """
        return 1, tile.shape.rows

    @property
    def _steps(self) -> Multiplied:
        return Multiplied(self.tile, self._load, self._across_at, self._sum_of)

    def emit(self, index: int, run: int) -> Iterator[Op]:
        """Emit step ``index`` of a run of ``run`` steps.

        Several steps use one load of the operand across the vectors if all of them are in the run.
        """
        shared = self.shape.group
        yield from self._steps.emit(index, index // shared * shared + shared <= run)

    def tail(self, index: int) -> Iterator[Op]:
        """Emit the last K group if it is not whole: missing elements are 0."""
        if self.tile.k_tail != 0:
            last = self._steps.emit(index, False, self.tile.k_tail)
            yield from k_group_tail(self.tile, tuple(last))

    def _sum_of(self, row: int, column: int, k: int) -> Register:
        """Return the accumulator for the product of a row and a vector in step ``k``."""
        return self.tile.accumulator(row, column, self.accumulator_set(k))

    def _across_at(self, row: int, k: int) -> Address:
        """Return the address of a row's elements in step ``k``."""
        return pointer_to(row, self.across).address(row, k)

    def _load(self, column: int, k: int) -> Iterator[Op]:
        """Load vector ``column`` of the operand along the vectors, in step ``k``."""
        first = self.tile.position(column) * self.tile.product.depth
        address, target = self.along[0].address(0, k, first), self.tile.plan.target
        active, memory = self.tile.loaded(column), self.tile.along.type
        yield from self._ask_ahead(column, k)
        yield from read(target, vector(self.tile, column, k), address, active, memory, loose=True)

    @property
    def prefetched(self) -> None:
        """None, so that the K loop prefetches nothing: ``load`` prefetches for a later step."""
        return None

    def _ask_ahead(self, column: int, k: int) -> Iterator[Op]:
        """Prefetch vector ``column`` of a later step, if the schedule has a prefetch distance.

        Nothing is done if the previous vector has the same cache line. Nothing is done for a packed
        operand, because it is in cache already and may be at the end of the stack frame.
        """
        plan, along = self.tile.plan, self.tile.along
        distance, first = (
            plan.problem.schedule.prefetch,
            self.tile.position(column) * self.tile.product.depth,
        )
        begins = first * ITEMSIZE[along.type] % plan.target.core.line == 0
        if distance is not None and begins and not along.packed:
            now = self.along[0].address(0, k, first)
            yield Prefetch(replace(now, offset=now.offset + distance * self.along[0].k_stride))
