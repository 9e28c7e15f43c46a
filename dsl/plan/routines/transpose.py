"""The plan of a transposition: tiles of square register blocks, and the grid of tiles.

A block has ``rows`` x ``cols`` elements, each at most a vector's lanes. It is loaded row by row,
transposed by interleaving its registers, and stored. Smaller tiles cover what a grid of equal tiles
leaves. In place, tiles on the diagonal are transposed, and each other tile is exchanged with its
mirror image.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache

from sympy import Expr

from tilewright.errors import ScheduleError, SpecError
from tilewright.ir.dataflow import prune
from tilewright.ir.interleaving import transpose
from tilewright.ir.nest import Name
from tilewright.ir.values import Register
from tilewright.isa.machine import Core
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Dim, Size
from tilewright.spec.transpose import Transpose
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ONE, size_expr, value

from ..loops import Decided, Decision
from ..operands import Operand
from ..tiling.parts import pieces
from .copy import LANES, Layout, Move, exchanged_square, turning

#: A tile has at most ``TILE_OPERATIONS`` operations. A larger tile gains little and fills the
#: instruction cache. If sizes are known only at the call, or the matrix is transposed in place, the
#: limit is ``MANY_TILES_OPERATIONS``, because the kernel has many different tiles.
TILE_OPERATIONS, MANY_TILES_OPERATIONS = 640, 256
#: A tile loses this number of cycles for each row that it writes, because a row begins in another
#: page and in a cache line that was not prefetched.
ROW_START = 2
#: A tile that the cost model chooses has at most this number of rows.
MOST_ROWS = 64
#: A tile that a schedule asks for has at most this number of elements.
TILE_ELEMENTS = 4096

# --- blocks that cover a tile ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """A block of ``rows`` x ``cols`` elements at (``row``, ``col``) of a tile.

    There is one register for each row. With ``halves``, each register holds parts of two rows that
    are half the block apart.
    """

    vector: Vector
    row: int
    col: int
    rows: int
    cols: int
    halves: bool = False

    def moved(self, row: int, col: int) -> Block:
        """Return the block ``row`` rows further down and ``col`` columns to the right."""
        return Block(self.vector, self.row + row, self.col + col, self.rows, self.cols)

    @property
    def flipped(self) -> Block:
        """The block with rows and columns exchanged: its place in the transposed tile."""
        return Block(self.vector, self.col, self.row, self.cols, self.rows)


@dataclass(frozen=True, slots=True)
class Cover:
    """The blocks that together cover one tile, and their cost.

    A load or store of a part of a vector counts as two.
    """

    blocks: tuple[Block, ...]
    loads: int
    stores: int
    interleaves: int

    def cycles(self, core: Core) -> float:
        """Return the cycles of the tile, from the busiest of load, store and shuffle units and
        issue.
        """
        return max(
            self.loads / core.loads,
            self.stores / core.stores,
            self.interleaves / core.shuffles,
            self.operations / core.issue,
        )

    @property
    def operations(self) -> int:
        """The number of loads, stores and interleaves."""
        return self.loads + self.stores + self.interleaves

    def __add__(self, other: Cover) -> Cover:
        return Cover(
            self.blocks + other.blocks,
            self.loads + other.loads,
            self.stores + other.stores,
            self.interleaves + other.interleaves,
        )


_NOTHING = Cover((), 0, 0, 0)


@lru_cache(maxsize=4096)
def interleaves(target: Target, vector: Vector, rows: int, cols: int) -> int:
    """Return the number of operations that transpose ``rows`` registers.

    They are interleaves, or moves through a matrix unit. Only the first ``cols`` lanes are needed.
    """
    registers = [Register(f"r{i}", vector) for i in range(rows)]
    ops, result = transpose(target, registers, vector.lanes, "t")
    return len(prune(ops, result[:cols]))


def _of_blocks(target: Target, vector: Vector, blocks: Sequence[Block]) -> Cover:
    """Return the cover that consists of ``blocks`` of ``vector``, with its cost."""
    loads = stores = moves = 0
    sizes = Counter((block.rows, block.cols) for block in blocks)
    for (rows, cols), count in sizes.items():
        loads += count * rows * (1 if cols == vector.lanes else 2)
        stores += count * cols * (1 if rows == vector.lanes else 2)
        moves += count * interleaves(target, vector, rows, cols)
    return Cover(tuple(blocks), loads, stores, moves)


@lru_cache(maxsize=4096)
def cover(target: Target, element: str, rows: int, cols: int, widest: int | None = None) -> Cover:
    """Return the cheapest cover of a tile by blocks of vectors with at most ``widest`` lanes."""
    if not rows or not cols:
        return _NOTHING
    usable = (
        v
        for v in target.of(element)
        if v.transposes and (widest is None or v.lanes <= widest) and v.lanes < 2 * max(rows, cols)
    )
    found = [c for vector in usable for c in _covers(target, vector, rows, cols)]
    return min(found, key=lambda c: _order(c, target.core))


def turned_blocks(move: Move, rows: int, cols: int) -> tuple[Block, ...]:
    """Return blocks that transpose a tile to another matrix; they may overlap.

    If instructions interleave elements within 128 bits, a register of several such segments is
    loaded whole, or as two halves from rows that are far apart. The elements within the segments
    are transposed first, and then the segments.
    """
    if not move.zipping:
        return apart_blocks(move, rows, cols)
    found, narrowest = list[Block](), move.zipping[-1]
    widths = {v: [w for w in _widths(move, v) if w <= cols] for v in move.zipping}
    heights = {v.lanes * move.together: v for v in widths if widths[v] or v is narrowest}
    for row, height in pieces(rows, heights):
        vector = heights.get(height, narrowest)
        for col, width in pieces(cols, widths[vector]):
            halves = vector is not narrowest and width < height
            found.append(Block(vector, row, col, height, width, halves))
    return tuple(found)


def _widths(move: Move, vector: Vector) -> Iterator[int]:
    """Yield the columns that a block of ``vector`` may have.

    These are the elements of half a register or a whole one. A block fits in all registers.
    """
    width = max(vector.lanes // 2, LANES) * move.together
    while width <= min(vector.lanes * move.together, move.target.registers):
        yield width
        width *= 2


def apart_blocks(move: Move, rows: int, cols: int) -> tuple[Block, ...]:
    """Return blocks that transpose a tile and do not overlap.

    Blocks of small elements are squares of words, and parts of squares at the ends of the tile.
    """
    if move.together == 1:
        return cover(move.target, move.source.type, rows, cols).blocks
    most, vector = move.lanes * move.together, move.target.holding("s32", move.lanes)
    return tuple(
        Block(vector, row, col, min(most, rows - row), min(most, cols - col))
        for row in range(0, rows, most)
        for col in range(0, cols, most)
    )


def square_blocks(move: Move, extent: int) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
    """Return the blocks of a square tile on the diagonal, and those above it."""
    if move.together == 1:
        covered = square_cover(move.target, move.source.type, extent)
        return covered.diagonal.blocks, covered.above.blocks
    return apart_blocks(move, extent, extent), ()  # one square of words


def _order(covered: Cover, core: Core) -> tuple[float, int]:
    return covered.cycles(core), covered.operations


def _covers(target: Target, vector: Vector, rows: int, cols: int) -> Iterator[Cover]:
    """Yield the covers of a tile that use whole blocks of ``vector``.

    The rows and columns after the whole blocks are covered by partial blocks or narrower vectors.
    """
    lanes = vector.lanes
    for height in _heights(vector, rows):
        for width in _heights(vector, cols):
            blocks = [
                Block(vector, row, col, min(lanes, height - row), min(lanes, width - col))
                for row in range(0, height, lanes)
                for col in range(0, width, lanes)
            ]
            narrower = lanes // 2
            below = cover(target, vector.element, rows - height, cols, narrower)
            beside = cover(target, vector.element, height, cols - width, narrower)
            whole = _of_blocks(target, vector, blocks)
            yield whole + _moved(below, height, 0) + _moved(beside, 0, width)


def _heights(vector: Vector, extent: int) -> Iterator[int]:
    """Yield the parts of an extent that blocks of ``vector`` may cover: all, or the whole
    blocks.
    """
    tail = extent % vector.lanes
    if not tail or vector.mask or (tail in vector.partial_load and tail in vector.partial_store):
        yield extent
    if tail and extent > vector.lanes:
        yield extent - tail


def _moved(covered: Cover, row: int, col: int) -> Cover:
    return replace(covered, blocks=tuple(block.moved(row, col) for block in covered.blocks))


@dataclass(frozen=True, slots=True)
class SquareCover:
    """The blocks of a square tile: those on the diagonal and those above it.

    Each block below the diagonal is the mirror image of a block above it.
    """

    diagonal: Cover
    above: Cover

    @property
    def whole(self) -> Cover:
        """The cost of the whole tile in place: blocks above the diagonal count twice."""
        return self.diagonal + self.above + self.above


@lru_cache(maxsize=1024)
def square_cover(
    target: Target, element: str, extent: int, widest: int | None = None
) -> SquareCover:
    """Return the cheapest symmetric cover of ``extent`` x ``extent`` elements."""
    if not extent:
        return SquareCover(_NOTHING, _NOTHING)
    found = []
    for vector in target.of(element):
        if not vector.transposes or (widest is not None and vector.lanes > widest):
            continue
        found += [_symmetric(target, vector, extent, whole) for whole in _heights(vector, extent)]
    return min(found, key=lambda c: _order(c.whole, target.core))


def _symmetric(target: Target, vector: Vector, extent: int, whole: int) -> SquareCover:
    """Return a symmetric cover of a square tile.

    Blocks of ``vector`` cover the first ``whole`` rows and columns. Blocks of narrower vectors
    cover the other ones.
    """
    element, narrower = vector.element, vector.lanes // 2
    corner = square_cover(target, element, extent - whole, narrower)
    diagonal = _moved(corner.diagonal, whole, whole)
    above = _moved(corner.above, whole, whole)
    above += _moved(cover(target, element, whole, extent - whole, narrower), 0, whole)
    for row in range(0, whole, vector.lanes):
        for col in range(row, whole, vector.lanes):
            rows, cols = (min(vector.lanes, whole - at) for at in (row, col))
            block = _of_blocks(target, vector, [Block(vector, row, col, rows, cols)])
            if row == col:
                diagonal += block
            else:
                above += block
    return SquareCover(diagonal, above)


# --- the tile ----------------------------------------------------------------------------------


def _extent(size: Size) -> tuple[int | None, int, int | None]:
    """Return a size as (its value if fixed, a known divisor, its largest value)."""
    if isinstance(size, Dim):
        return None, size.multiple_of, size.max
    return size, 1, size


def _candidates(target: Target, element: str, size: Size, most: int) -> list[int]:
    """Return tile extents to compare: a vector's lanes times powers of 2, and all of a
    small size.
    """
    _, _, largest = _extent(size)
    lanes = (v.lanes for v in target.of(element) if v.transposes)
    found = {lane << k for lane in lanes for k in range(7) if lane << k <= most}
    if largest is not None:
        found = {min(extent, largest) for extent in found}
        found |= {largest} if largest <= MOST_ROWS else set()
    return sorted(found - {0}) or [1]


def _tile_cost(target: Target, element: str, rows: int, cols: int) -> float:
    """Return the cycles of one tile, including its call and a cycle for each cache line."""
    core, itemsize = target.core, ITEMSIZE[element]
    lines = rows * -(-cols * itemsize // core.line) + cols * -(-rows * itemsize // core.line)
    reach = core.fma_latency + lines + ROW_START * cols
    return cover(target, element, rows, cols).cycles(core) + reach


def _cost(target: Target, spec: Transpose, tile: tuple[int, int]) -> float:
    """Return the cycles per element of the whole matrix; unknown sizes count as whole tiles."""
    parts = []
    penalty = 1.0
    for size, extent in zip((spec.rows, spec.cols), tile, strict=True):
        known, multiple, _ = _extent(size)
        if known is None:
            penalty *= 1.1 if multiple > 1 and multiple % extent else 1.0
            parts.append([(extent, 1)])
        else:
            parts.append([(extent, known // extent), (known % extent, 1)])
    cycles, elements = 0.0, 0
    for height, down in parts[0]:
        for width, over in parts[1]:
            if height and width:
                cycles += down * over * _tile_cost(target, spec.type, height, width)
                elements += down * over * height * width
    return penalty * cycles / max(elements, 1)


def _choose(target: Target, spec: Transpose, *, square: bool) -> tuple[int, int]:
    """Return the cheapest tile with few enough operations; ``square`` tiles are exchanged in pairs.

    A tile is as wide as a cache line, so it reads whole cache lines. It writes few rows at a time,
    so their cache lines fit in L1 even if all belong to one set.
    """
    line = target.core.line // ITEMSIZE[spec.type]
    fixed = isinstance(spec.rows, int) and isinstance(spec.cols, int)
    most = TILE_OPERATIONS if fixed and not square else MANY_TILES_OPERATIONS
    found = []
    for rows in _candidates(target, spec.type, spec.rows, MOST_ROWS):
        for cols in _candidates(target, spec.type, spec.cols, line):
            operations = cover(target, spec.type, rows, cols).operations * (1 + square)
            if operations <= most and (rows == cols or not square):
                found.append((_cost(target, spec, (rows, cols)), -rows * cols, (rows, cols)))
    return min(found)[-1]


# --- the plan ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class TransposePlan(Decided):
    """A transposition with every choice made.

    ``tile`` is in rows and columns of x. ``square`` is the extent of the tiles that are exchanged
    if the matrix is transposed in place; None if it cannot be. ``slots`` are the run-time sizes of
    the kernel, in the order of its parameters. Remainders of whole tiles are cut by powers of
    ``by``.
    """

    spec: Transpose
    schedule: Schedule
    target: Target
    sizes: Mapping[str, Expr] = field(hash=False)
    operands: Mapping[str, Operand] = field(hash=False)
    tile: tuple[int, int]
    square: int | None
    decisions: tuple[Decision, ...]
    slots: tuple[str, ...]
    by: int = 2

    @property
    def element(self) -> str:
        """The type of the elements."""
        return self.spec.type


def plan_transposition(spec: Transpose, schedule: Schedule, target: Target) -> TransposePlan:
    """Return the plan; raise ScheduleError if the schedule asks for what a transposition lacks."""
    if ITEMSIZE[spec.type] >= 4 and not target.of(spec.type):
        raise SpecError(f"{target.name} has no vectors of {spec.type}", hint="another target")
    _refuse(schedule)
    sizes = {slot: size_expr(slot, getattr(spec, slot)) for slot in ("rows", "cols")}
    leading = {
        slot: size_expr(slot, given) if (given := getattr(spec, slot)) is not None else sizes[line]
        for slot, line in (("ldx", "cols"), ("ldout", "rows"))
    }
    operands = {
        "x": Operand("x", spec.type, {"rows": leading["ldx"], "cols": ONE}),
        "out": Operand("out", spec.type, {"cols": leading["ldout"], "rows": ONE}),
    }
    small = ITEMSIZE[spec.type] < 4
    tile, why = _small_tile(schedule, operands, target) if small else _tile(spec, schedule, target)
    square = None
    if spec.rows == spec.cols and value(leading["ldx"] - leading["ldout"]) in (None, 0):
        square = (
            exchanged_square(target, spec.type) if small else _choose(target, spec, square=True)[0]
        )
    return TransposePlan(
        spec=spec,
        schedule=schedule,
        target=target,
        sizes=sizes,
        operands=operands,
        tile=tile,
        square=square,
        decisions=(Decision("tile", f"{tile[0]}x{tile[1]}", why),),
        slots=spec.slots,
    )


def move_plan(
    target: Target,
    element: str,
    sizes: tuple[Expr, Expr],
    leading: tuple[Expr, Expr],
    slots: tuple[str, ...],
    by: int = 2,
    most: int | None = None,
) -> TransposePlan:
    """Return a transposition inside another kernel: rows x cols, with leading dimensions of x and
    out.

    Sizes may be expressions of the kernel's run-time sizes, named in ``slots``, and are at most
    ``most``. Remainders of whole tiles are cut by powers of ``by``, 2 or 4.
    """
    fixed = [known if (known := value(size)) is not None else Dim("size") for size in sizes]
    spec = Transpose(fixed[0], fixed[1], element)
    return TransposePlan(
        spec=spec,
        schedule=Schedule(),
        target=target,
        sizes={"rows": sizes[0], "cols": sizes[1]},
        operands={
            "x": Operand("x", element, {"rows": leading[0], "cols": ONE}),
            "out": Operand("out", element, {"cols": leading[1], "rows": ONE}),
        },
        tile=_within(_choose(target, spec, square=False), most),
        square=None,
        decisions=(),
        slots=slots,
        by=by,
    )


def _within(tile: tuple[int, int], most: int | None) -> tuple[int, int]:
    """Return ``tile``, or a tile whose extents are powers of two up to ``most``."""
    if most is None or max(tile) <= most:
        return tile
    power = 1 << (max(most, 1).bit_length() - 1)
    return min(tile[0], power), min(tile[1], power)


def _refuse(schedule: Schedule) -> None:
    default = Schedule()
    for name in (f.name for f in fields(Schedule)):
        if name != "tile" and getattr(schedule, name) != getattr(default, name):
            raise ScheduleError(
                f"a transposition has no {name} to schedule",
                got=f"{name}={getattr(schedule, name)!r}",
                expected="tile, in rows and columns of x, or nothing",
            )


def _small_tile(
    schedule: Schedule, operands: Mapping[str, Operand], target: Target
) -> tuple[tuple[int, int], str]:
    """Return the rows and columns of a tile of elements of 8 or 16 bits."""
    x, out = operands["x"], operands["out"]
    source = Layout(Name("x"), x.type, x.strides["rows"])
    move = turning(target, source, Layout(Name("out"), x.type, out.strides["cols"], along=True), ())
    lines, depth = move.tile
    if schedule.tile is not None:
        raise ScheduleError(
            "tiles of elements of 8 and 16 bits are not scheduled",
            got=f"tile={schedule.tile}",
            expected="no tile",
        )
    return (depth, lines), "words of elements, transposed in registers"


def _tile(spec: Transpose, schedule: Schedule, target: Target) -> tuple[tuple[int, int], str]:
    if schedule.tile is None:
        return _choose(target, spec, square=False), "fewest cycles per element by the cost model"
    rows, cols = (
        asked if known is None or not known else min(asked, known)
        for asked, (known, _, _) in zip(
            schedule.tile, (_extent(spec.rows), _extent(spec.cols)), strict=True
        )
    )
    if rows * cols > TILE_ELEMENTS:
        raise ScheduleError(
            f"tile {rows}x{cols} is too large to be unrolled",
            got=f"{rows * cols} elements",
            expected=f"{TILE_ELEMENTS} or fewer",
            hint="a smaller tile: the loops around it cost little",
        )
    return (rows, cols), "asked for"
