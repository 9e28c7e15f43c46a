"""The register tiles of a plan with their reasons, the grids of tiles, and the loops around them.

The planner makes them once. The lowering turns them into code, and ``explain`` prints the reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from math import ceil
from typing import Literal

from sympy import Expr

from tilewright.isa.machine import Core
from tilewright.isa.target import Target
from tilewright.symbolic import ONE, Least, Quotient, div, symbol, value

from ..contraction import Product
from ..operands import Operand
from .bounds import bounds, chains_wanted, step_cycles, tightest
from .cost_model import LOOP_OVERHEAD, SHORT, unroll
from .parts import Part
from .tile_costs import Fitting
from .tile_shape import TileShape

#: The work of a tile: "whole" computes C, "sum" only adds to a buffer of partial sums, and "finish"
#: computes C from these sums.
Phase = Literal["whole", "sum", "finish"]


@dataclass(frozen=True, slots=True)
class Unroll:
    """The K loop of a tile: ``count`` steps a trip, or no loop.

    If vectors run along K, a step is a vector of ``lanes`` elements or K groups.
    """

    count: int
    loop: bool
    lanes: int
    reason: str

    @property
    def steps(self) -> int:
        """The K groups in a trip; 0 if there is no loop."""
        return self.count * self.lanes if self.loop else 0


@dataclass(frozen=True, slots=True)
class Search:
    """The reason why the cost model cut a block as it did: its estimate, and the next best cut."""

    estimate: str
    runner_up: str


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """A register tile of ``mr`` x ``nr`` elements of C, with the reasons for its shape.

    ``number`` is its index in the plan. ``active`` are the lanes of the last vector, None for all.
    If ``overlapped``, the last vector is whole and ends at the tile's end. It shares lanes with the
    previous vector; both compute the same values, because C is read before it is written.
    ``loads_whole`` is True if a partial last vector may be loaded whole, because the memory after
    it is padding. ``loads_bands`` is the same for the last rows across, if a multiply-add takes
    several. ``steps`` is the number of whole K groups, ``k_tail`` the elements of an incomplete
    one. ``accumulate`` is True if C or the buffer of sums already holds a part of the sum.

    ``search`` has the reason for the size; it is None if the schedule gave the tile, or for the
    remainder of such a tile. ``bound`` says what bounds the K loop, ``why_split`` why there are so
    many accumulator sets.
    """

    number: int
    shape: TileShape
    mr: Expr
    nr: Expr
    active: Expr | None
    overlapped: bool
    loads_whole: bool
    loads_bands: bool
    steps: Expr
    k_tail: Expr
    accumulate: bool
    phase: Phase
    unroll: Unroll
    search: Search | None
    bound: str
    why_split: str

    def extent(self, dimension: str) -> Expr:
        """Return the tile's elements along a dimension of C."""
        return self.mr if dimension == "m" else self.nr


@dataclass(frozen=True, slots=True)
class Grid:
    """Equal register tiles side by side, along and across the vectors."""

    tile: RegisterTile
    along: Part
    across: Part


# --- the loops around ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """The ``grids`` for one kind of panels of A, ``m``, and of B, ``n``.

    None means all of the block, if the operand is not packed in panels.
    """

    m: Part | None
    n: Part | None
    grids: tuple[Grid, ...]

    @property
    def given(self) -> tuple[tuple[str, Expr], ...]:
        """The named sizes that the call computes for the grids, in order."""
        parts = (part for grid in self.grids for part in (grid.along, grid.across))
        return tuple(dict.fromkeys(each for part in parts for each in part.given))


@dataclass(frozen=True, slots=True)
class Grids:
    """The grids of a block of C, for each kind of panels of the operands.

    ``width`` is the number of columns in a block of the caller's packed B. It is None if there is
    only one block, or if the kernel packs the panels. ``height`` is the number of rows in a panel
    of the caller's packed A.
    """

    width: int | None
    cells: tuple[Cell, ...]
    height: int | None = None


@dataclass(frozen=True, slots=True)
class InOrder:
    """Steps that run one after another, each on another block along dimension ``letter``."""

    letter: str
    parts: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """``body`` if ``count`` is positive at the call, else ``otherwise``. None does nothing."""

    count: Expr
    body: Step | None
    otherwise: Step | None = None


@dataclass(frozen=True, slots=True)
class FirstOrLater:
    """``first`` in the first trip of the loop over K with counter ``counter``, ``later`` in all
    others.
    """

    counter: str
    first: Step
    later: Step


@dataclass(frozen=True, slots=True)
class OneBlock:
    """``body`` for the block of ``extent`` along ``letter``, from element ``start`` on."""

    letter: str
    start: Expr
    extent: Expr
    body: Step


@dataclass(frozen=True, slots=True)
class OverBlocks:
    """``body`` for the whole blocks of ``size`` along ``letter``, from block ``first`` on.

    There are ``trips`` whole blocks, counted from 0.
    """

    letter: str
    counter: str
    first: int
    trips: Expr
    size: int
    parallel: bool
    body: Step


@dataclass(frozen=True, slots=True)
class PackedBlock:
    """``body``, in which tiles read the packed block ``operand`` in place of the operand of that
    name.
    """

    operand: Operand
    body: Step


@dataclass(frozen=True, slots=True)
class SummedBlock:
    """A block of C: ``fill`` computes all of its sums into buffers, ``finish`` computes C from
    them.

    ``sums`` are the buffers, one for each product; they start at the block's first element.
    """

    sums: tuple[Operand, ...]
    fill: Step
    finish: Step


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows of a packed D: ``body`` writes them to a buffer, from which they are packed."""

    body: Step


@dataclass(frozen=True, slots=True)
class OverBatch:
    """``first`` for the first element of the batch, ``later`` for each further element."""

    first: Step
    later: Step | None


@dataclass(frozen=True, slots=True)
class OverEqual:
    """``body`` for equal blocks along ``letter``, the fewest with at most ``most`` elements each.

    A block's size is rounded up to a multiple of ``multiple``; the last block has the remaining
    elements. The call computes the number of blocks, which is 1 if ``extent`` is 0. ``here`` is the
    name of a block's size at the call. ``label`` begins the names of the other numbers.
    """

    letter: str
    extent: Expr
    most: int
    multiple: int
    parallel: bool
    here: str
    label: str
    body: Step

    @property
    def counter(self) -> str:
        """The name of the counter of blocks."""
        return f"{self.label}0"

    @property
    def count(self) -> str:
        """The name of the number of blocks."""
        return f"{self.label}_blocks"

    @property
    def step(self) -> str:
        """The name, in C, of the size of a whole block."""
        return f"{self.label}_step"

    @property
    def trips(self) -> Expr:
        """The number of blocks."""
        last = self.most - 1
        return div(self.extent + 1 - Least(self.extent, ONE) + last, self.most)

    @property
    def size(self) -> Expr:
        """The elements of a whole block, given the number of blocks."""
        count = symbol(self.count)
        equal = Quotient(self.extent + count - 1, count)
        return div(equal + (self.multiple - 1), self.multiple) * self.multiple

    @property
    def elements(self) -> Expr:
        """The elements of the current block."""
        step = symbol(self.step)
        return Least(step, self.extent - symbol(self.counter) * step)


Step = (
    Grids
    | InOrder
    | Either
    | FirstOrLater
    | OneBlock
    | PackedBlock
    | SummedBlock
    | PackedRows
    | OverBatch
    | OverBlocks
    | OverEqual
)


@dataclass(frozen=True, slots=True)
class Tiling:
    """All register tiles of a plan, and the loops around them for each pass through C."""

    passes: Mapping[Phase, Step] = field(default_factory=dict, hash=False)
    tiles: tuple[RegisterTile, ...] = ()


#: If a matrix register holds a whole block of K, a trip of the K loop has this number of blocks.
#: It has several blocks, because each trip waits at its end for the sums of its last block.
BLOCKS = 4

# --- why -----------------------------------------------------------------------------------------


def k_loop(shape: TileShape, target: Target, steps: Expr, dot: bool, asked: int | None) -> Unroll:
    """Return the K loop of a tile with ``steps`` K steps. ``asked`` is the schedule's ``k_unroll``.

    If K has fewer steps than two trips, all steps are unrolled and there is no loop.
    """
    lanes = shape.vector.lanes if dot else 1
    trips = div(steps, lanes) if dot else steps
    count = _count(shape, target, steps, dot, asked)
    whole = value(trips)
    loop = whole is None or whole >= 2 * count
    if asked:
        return Unroll(count, loop, lanes, "asked for")
    if shape.scaled is not None and shape.unit is not None:
        reason = "the sums of a block are scaled while the next one is multiplied"
        return Unroll(count, loop, lanes, reason if count > 1 else "a block is long")
    if shape.scaled is not None:
        return Unroll(count, loop, lanes, "a block of K hides the loop's own instructions")
    made = Unroll(count, loop, lanes, "")
    return replace(made, reason=_why_unroll(shape, target, made, value(steps) or 1, dot))


def _count(shape: TileShape, target: Target, steps: Expr, dot: bool, asked: int | None) -> int:
    group = max(shape.k_split, shape.group)
    if shape.scaled is not None:
        long = shape.unit is None or shape.scaled.groups > shape.groups
        return asked or (1 if long else min(BLOCKS, value(steps) or BLOCKS))
    if dot:
        made = shape.multiply_adds
        wanted = -(-(asked or 0) // group) * group
        lanes = shape.vector.lanes
        count = -(-wanted // lanes) if asked else ceil(2 * target.core.fma_latency / made)
        return -(-max(1, count) // shape.k_split) * shape.k_split
    if asked is not None:
        return -(-asked // group) * group
    return unroll(shape, target, value(steps), group)


def _why_unroll(shape: TileShape, target: Target, made: Unroll, steps: int, dot: bool) -> str:
    """Return text for what a trip must hide, or why there is no loop."""
    core = target.core
    if shape.unit is not None:
        if shape.k_split == 1:
            return "a step keeps the matrix unit longer than the loop's own instructions take"
        trip = "a step for each set of accumulators"
        if made.loop:
            return f"an iteration has {trip}"
        return f"K is less than two iterations, each of {trip}"
    if not made.loop:
        done = -(-steps // made.lanes) * shape.issued
        most = SHORT * core.issue
        if dot or done > most:
            return f"K is less than two iterations of a loop, {done:.0f} operations"
        return f"K is short, {done:.0f} operations of at most {most:g}"
    if dot:
        adds = made.count * shape.multiply_adds
        return f"{adds} multiply-adds take at least twice the latency of {core.fma_latency:g}"
    if shape.several:
        most = shape.several[0]
        return f"loads read up to {most} vectors, and as many steps share the loop's own work"
    taken, issue = _trip(shape, core, made.count)
    loop = f"the loop's {LOOP_OVERHEAD}"
    why = f"one iteration takes {taken} cycles; issuing its operations and {loop} takes {issue}"
    if shape.form == "memory" and made.count > 1:
        return (
            f"{why}: steps whose multiply-adds read memory are short, {made.count} share the loop"
        )
    fewer = made.count - max(shape.k_split, shape.group)
    if not fewer:
        return f"{why}: more steps would not be faster"
    taken, issue = _trip(shape, core, fewer)
    return f"{why}; with {fewer} steps {taken}, and {issue}"


def _trip(shape: TileShape, core: Core, steps: int) -> tuple[str, str]:
    """Return two numbers of cycles as text: those of a trip, and those for issuing its
    instructions.
    """
    issued = steps * shape.issued + LOOP_OVERHEAD
    return f"{steps * step_cycles(shape, core):.3g}", f"{issued / core.issue:.3g}"


def why_split(fitting: Fitting, target: Target, asked: int | None) -> str:
    """Return the reason for a tile's number of accumulator sets, as text.

    The text compares the number of multiply-add chains with the number that hides the latency, and
    the tile with one that has another number of sets.
    """
    shape = fitting.shape
    chains, wanted = shape.multiply_adds, chains_wanted(shape, target.core)
    if asked:
        return f"asked for: {chains * shape.k_split} chains; {wanted} hide the latency"
    why = f"{chains} chain{'s' if chains > 1 else ''} of multiply-adds, "
    if chains >= wanted:
        why += f"enough to hide the latency, which takes {wanted}"
        why += ", but more sets take fewer cycles" if shape.k_split > 1 else ""
    elif shape.k_split > 1:
        why += f"too few to hide the latency, which takes {wanted}"
    else:
        why += f"though {wanted} hide the latency: adding up more sets would cost more"
    return f"{why}; {_other_sets(fitting)}"


def _other_sets(fitting: Fitting) -> str:
    """Return text for the tile's cycles, and those with the next best number of
    accumulator sets.
    """
    own, other = f"{fitting.cycles:.0f} cycles a tile", fitting.other
    if other is None:
        return f"{own}; K is too short for more"
    if other.cycles is not None:
        return f"{own}, {other.cycles:.0f} with {other.count}"
    return f"{own}; {other.count} sets need {other.registers} of {fitting.free} registers"


def bound_text(shape: TileShape, target: Target, product: Product) -> str:
    """Return text for what bounds the K loop, the share of the peak, and all bounds."""
    each = bounds(shape, target.core)
    share = each["multiply-add units"] / max(each.values())
    cycles = ", ".join(f"{name} {count:.3g}" for name, count in each.items())
    step = steps_text(product, 1)
    return f"{tightest(each)}: {share:.0%} of peak in the K loop (cycles per {step}: {cycles})"


def steps_text(product: Product, count: int) -> str:
    """Return the name of what the K loop counts: steps, blocks, or K groups of the multiply-add."""
    if product.unit is not None:
        return f"step{'s' if count > 1 else ''} of {product.depth} K"
    if product.block:
        return f"block{'s' if count > 1 else ''} of {product.block} K"
    what = f"group of {product.depth} K" if product.depth > 1 else "K step"
    return what if count == 1 else what.replace("group", "groups").replace("step", "steps")


def grids_of(step: Step) -> Iterator[Grid]:
    """Yield all grids within ``step``, in the order of the calls."""
    if isinstance(step, Grids):
        yield from (grid for cell in step.cells for grid in cell.grids)
        return
    for held in (getattr(step, part.name) for part in fields(step)):
        for each in held if isinstance(held, tuple) else (held,):
            if isinstance(each, Step):
                yield from grids_of(each)
