"""Cut C into register tiles: the schedule's loops over blocks, and the grids of tiles in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import gcd

from sympy import Expr, Integer

from tilewright.errors import ScheduleError
from tilewright.ir.nest import Name
from tilewright.symbolic import ONE, ZERO, div, is_multiple, mod, symbol, value

from ..operands import LINE, Operand, odd_vectors, whole_groups, whole_vectors
from ..plan import Plan
from ..problem import Staging, is_empty
from ..staging import packed_across, packed_along
from .partition import Region, partition
from .parts import Part, panel_parts, whole_and_rest
from .requests import request_at
from .tiles import (
    Cell,
    Either,
    FirstOrLater,
    Grid,
    Grids,
    InOrder,
    OneBlock,
    OverBatch,
    OverBlocks,
    OverEqual,
    PackedBlock,
    PackedRows,
    Phase,
    RegisterTile,
    Step,
    SummedBlock,
    Tiling,
    bound_text,
    k_loop,
    why_split,
)

#: If K is cut into equal blocks, each has a multiple of this number of K steps. An unrolled K loop
#: then has no remainder.
UNROLLED = 16


@dataclass(frozen=True, slots=True)
class _Block:
    """The current block: its extents, and whether C already holds a sum.

    ``here`` has the operands as they are packed at this point; ``packed`` has the names of the
    packed ones. ``first`` is the counter of the blocks of K, all but the first of which add to a
    sum; "" for none. ``stored`` is True if D's rows are packed after the block.
    """

    here: Staging
    extents: Mapping[str, Expr]
    phase: Phase
    accumulate: bool = False
    packed: str = ""
    first: str = ""
    stored: bool = False

    def of(self, letter: str, extent: Expr) -> _Block:
        """Return the block with another extent along ``letter``."""
        return replace(self, extents={**self.extents, letter: extent})


def with_tiles(plan: Plan, first: int = 0) -> Plan:
    """Return ``plan`` with all its register tiles; raise ScheduleError if an asked tile does not
    fit.

    The tiles are numbered from ``first`` on.
    """
    if ZERO in (plan.problem.sizes["m"], plan.problem.sizes["n"]):
        return plan
    phases: list[Phase] = (
        ["sum", "finish"] if plan.partial and plan.nest.summed is None else ["whole"]
    )
    if plan.spec.b2 is not None and not plan.partial:
        phases += ["sum"]
    cutting = _Cutting(plan, first)
    passes = {phase: cutting.through(phase) for phase in phases}
    return replace(plan, tiling=Tiling(passes, tuple(cutting.tiles.values())))


@dataclass(slots=True)
class _Cutting:
    """Cuts C, and keeps each tile once."""

    plan: Plan
    first: int
    tiles: dict[object, RegisterTile] = field(default_factory=dict)

    def through(self, phase: Phase) -> Step:
        """Return one pass through C."""
        plan = self.plan
        extents = {**plan.problem.sizes, "k": ZERO} if is_empty(plan.spec) else plan.problem.sizes
        block = _Block(plan.staging, extents, phase)
        around = "".join(letter for letter in plan.nest.outer if letter not in "bk")
        if phase == "finish":
            return self.cut(around, block, "")
        if plan.nest.summed is not None:
            return self.cut(plan.nest.outer, block, "")
        return self._sums(plan.nest.outer, block)

    def _sums(self, letters: str, block: _Block) -> Step:
        """Return the loops of ``letters``, with a branch for an empty batch if that is possible."""
        batch, step = self.plan.problem.batch, self.cut(letters, block, "")
        if "b" not in letters or batch is None or value(batch.count) is not None:
            return step
        around = "".join(letter for letter in letters if letter not in "bk")
        empty = self.cut(around, block.of("k", ZERO), "")
        return Either(batch.count, step, OneBlock("k", ZERO, ZERO, empty))

    def cut(self, letters: str, block: _Block, names: str) -> Step:
        """Return the loops of the remaining letters; ``names`` has the dimensions of loops
        around.
        """
        plan = self.plan
        if (
            plan.staging.height_of_d
            and not block.stored
            and block.phase != "sum"
            and not self._cuts(letters)
        ):
            return PackedRows(self.cut(letters, replace(block, stored=True), names))
        due = _due(plan.staging, letters.lower(), block)
        if due and block.extents["k"] != 0 and block.phase != "finish":
            operand = packed_block(plan, due, block.extents)
            packed = replace(block, here=block.here.holding(operand), packed=block.packed + due)
            return PackedBlock(operand, self.cut(letters, packed, names))
        if not letters:
            return self._grids(block)
        letter, rest = letters[0], letters[1:]
        if letter in "bk" and block.phase == "whole" and plan.nest.summed is not None:
            return self._summed(letters, block)
        if letter == "b":
            return self._over_batch(rest, block, names)
        if letter == "k":
            steps = plan.staging.product.step * (plan.problem.schedule.k_unroll or 1)
            size = plan.nest.blocks["k"] if "k" in rest + plan.nest.inner else steps
            if letter in plan.block_sizes and block.extents["k"] != 0:
                multiple = (
                    plan.staging.product.step
                    if plan.nest.panel_tile
                    else gcd(size, steps * UNROLLED)
                )
                return self._over_equal(letter, multiple, rest, block)
            return self._over_k(size, rest, block, names)
        if letter.lower() in rest.lower():
            if letter.lower() in plan.block_sizes:
                assert plan.nest.panel_tile is not None
                tile = dict(zip("mn", plan.nest.panel_tile, strict=True))
                return self._over_equal(letter, tile[letter.lower()], rest, block)
            return self._over_blocks(letter, rest, block, names)
        # The last loop over a dimension is a loop over register tiles.
        return self.cut(rest, block, names)

    def _cuts(self, letters: str) -> bool:
        """True if a loop over blocks of rows comes next, which do not cut panels of a packed D."""
        plan = self.plan
        assert plan.staging.height_of_d is not None
        if not letters.startswith(("m", "M")) or "m" not in letters[1:].lower():
            return False
        equal = "m" in plan.block_sizes and plan.nest.panel_tile is not None
        step = plan.nest.panel_tile[0] if equal and plan.nest.panel_tile else plan.nest.blocks["m"]
        return step % plan.staging.height_of_d == 0

    def _over_batch(self, rest: str, block: _Block, names: str) -> Step:
        assert self.plan.problem.batch is not None
        count = self.plan.problem.batch.count
        if value(count) == 0 or block.extents["k"] == 0:
            return self.cut(rest, block.of("k", ZERO), names)
        first = self.cut(rest, block, names)
        later = replace(block, accumulate=True)
        return OverBatch(first, None if count == 1 else self.cut(rest, later, names))

    def _over_blocks(self, letter: str, rest: str, block: _Block, names: str) -> InOrder:
        """Return a loop over whole blocks along m or n, then the tail."""
        parallel, letter = letter.isupper(), letter.lower()
        size, extent = self.plan.nest.blocks[letter], block.extents[letter]
        trips, tail_size = div(extent, size), mod(extent, size)
        counter, taken = f"{letter}{names.count(letter)}", names + letter
        parts: list[Step] = []
        if trips != 0:
            body = self.cut(rest, block.of(letter, Integer(size)), taken)
            parts.append(OverBlocks(letter, counter, 0, trips, size, parallel, body))
        if tail_size != 0:
            last = self.cut(rest, block.of(letter, tail_size), taken)
            tail = OneBlock(letter, size * trips, tail_size, last)
            parts.append(tail if value(tail_size) else Either(tail_size, tail))
        return InOrder(letter, tuple(parts))

    def _over_equal(self, letter: str, multiple: int, rest: str, block: _Block) -> OverEqual:
        """Return a loop over blocks whose size the call computes."""
        parallel, letter = letter.isupper(), letter.lower()
        plan, extent = self.plan, block.extents[letter]
        most = plan.nest.blocks[letter]
        inside = block.of(letter, symbol(plan.block_sizes[letter]))
        if letter == "k" and not block.accumulate:
            inside = replace(inside, first="k0")
        here, body = plan.block_sizes[letter], self.cut(rest, inside, "")
        return OverEqual(letter, extent, most, multiple, parallel, here, letter, body)

    def _summed(self, letters: str, block: _Block) -> Step:
        """Return loops that sum all of K for a part of C in a buffer, and then finish it.

        ``letters`` begin with the letter of K, or of the batch before it. The later loops over m
        and n are limited to what the buffer holds.
        """
        plan = self.plan
        for d, most in (plan.nest.summed or {}).items():
            here = plan.nest.sum_sizes[d]
            if block.extents[d] != symbol(here):
                assert plan.nest.panel_tile is not None
                multiple = plan.nest.panel_tile["mn".index(d)]
                body = self._summed(letters, block.of(d, symbol(here)))
                return OverEqual(d, block.extents[d], most, multiple, False, here, f"sum_{d}", body)
        line = next(d for d in "mn" if value(plan.staging.operands["sums"].strides[d]) == 1)
        extent = block.extents[line]
        if value(extent) is not None:
            # The tail uses the same row stride in the buffer as whole blocks.
            extent = Integer(plan.nest.blocks.get(line, extent))
        leading = whole_vectors(extent, plan.staging.lanes)
        strides = {line: ONE, "n" if line == "m" else "m": leading}
        names = ["sums"] if plan.spec.b2 is None else ["sums", "sums2"]
        sums = tuple(replace(plan.staging.operands[name], strides=strides) for name in names)
        inside = replace(block, here=block.here.holding(*sums))
        fill = self._sums(letters, replace(inside, phase="sum"))
        around = "".join(letter for letter in letters if letter not in "bk")
        finish = self.cut(around, replace(inside, phase="finish"), "")
        return SummedBlock(sums, fill, finish)

    def _over_k(self, size: int, rest: str, block: _Block, names: str) -> InOrder:
        """Return a loop over whole blocks of K, the first of which begins the sums, then
        the tail.
        """
        extent = block.extents["k"]
        trips, tail_size = div(extent, size), mod(extent, size)
        counter, taken = f"k{names.count('k')}", names + "k"
        whole, last = block.of("k", Integer(size)), block.of("k", tail_size)
        known, parts, tail = value(trips), list[Step](), None
        if trips != 0:
            head = OneBlock("k", ZERO, Integer(size), self.cut(rest, whole, taken))
            parts.append(head if known is not None else Either(trips, head))
        if known is None or known > 1:
            body = self.cut(rest, replace(whole, accumulate=True), taken)
            parts.append(OverBlocks("k", counter, 1, trips, size, False, body))
        if tail_size != 0 or trips == 0:
            adding = replace(last, accumulate=block.accumulate or trips != 0)
            tail = OneBlock("k", size * trips, tail_size, self.cut(rest, adding, taken))
        if known is None:
            only = OneBlock("k", size * trips, tail_size, self.cut(rest, last, taken))
            parts.append(Either(trips, tail and Either(tail_size, tail), only))
        elif tail is not None:
            parts.append(tail)
        return InOrder("k", tuple(parts))

    # --- grids -----------------------------------------------------------------------------------

    def _grids(self, block: _Block) -> Step:
        """Return the grids of tiles of a block of C.

        If the caller packed B in blocks of columns, there are grids for each of these blocks.
        """
        if block.first:
            later = replace(block, first="", accumulate=True)
            first = self._grids(replace(block, first=""))
            return FirstOrLater(block.first, first, self._grids(later))
        width, height = self.plan.staging.columns, self.plan.staging.rows
        if width is None and height is None:
            return Grids(None, tuple(self._cells(block)))
        parts: dict[str, list[Part | None]] = {"m": [None], "n": [None]}
        rows = ("m", height, "panels of rows of a packed A", "A in panels of {} rows")
        columns = ("n", width, "blocks of columns of a packed B", "B in blocks of {} columns")
        for d, each, what, which in (rows, columns):
            if each is None:
                continue
            step = self.plan.nest.blocks.get(d, each)
            if step % each and each % step:
                raise ScheduleError(
                    f"{what} would be cut",
                    got=f"block[{d!r}] == {step}, and {which.format(each)}",
                    expected="one to be a multiple of the other",
                )
            parts[d] = [*whole_and_rest(block.extents[d], each)]
        return Grids(width, tuple(self._each(block, parts)), height)

    def _each(self, block: _Block, parts: Mapping[str, Sequence[Part | None]]) -> Iterator[Cell]:
        """Yield a cell for each pair of a part of the rows and a part of the columns.

        The part None stands for all rows or columns of the block.
        """
        for m, n in product(parts["m"], parts["n"]):
            inside = block
            for d, part in (("m", m), ("n", n)):
                inside = inside if part is None else inside.of(d, part.size)
            yield Cell(m, n, self._of(inside))

    def _cells(self, block: _Block) -> Iterator[Cell]:
        """Yield the intersections of A's and B's panels: whole ones, and incomplete ones."""
        parts: dict[str, list[Part | None]] = {}
        for name, d in zip("ab", "mn", strict=True):
            width = self.plan.panel(name) if name in block.packed else None
            parts[d] = [None] if width is None else [*panel_parts(block.extents[d], width)]
        yield from self._each(block, parts)

    def _of(self, block: _Block) -> tuple[Grid, ...]:
        plan, here, extents = self.plan, block.here, block.extents
        steps, k_tail = here.steps(extents["k"], finish=block.phase == "finish")
        request = request_at(here, plan.nest, here.counted(steps, k_tail), block.accumulate)
        regions = partition(
            plan, extents[plan.problem.across], extents[plan.problem.along], request
        )
        return tuple(
            Grid(self._tile(block, region, steps, k_tail), region.along, region.across)
            for region in regions
        )

    def _tile(self, block: _Block, region: Region, steps: Expr, k_tail: Expr) -> RegisterTile:
        """Return the tile of a region; equal tiles are made once."""
        plan, here, shape = self.plan, block.here, region.fitting.shape
        sizes = {plan.problem.along: region.along.size, plan.problem.across: region.across.size}
        strides = tuple(tuple(here.operands[x].strides.values()) for x in "ab")
        room = _loads_whole(plan, here, region), _loads_bands(plan, here, region)
        where = (region.active, region.overlapped, sizes["m"], sizes["n"], *room)
        key = (shape, *where, steps, k_tail, block.accumulate, block.phase, strides)
        if key not in self.tiles:
            asked = plan.problem.schedule
            self.tiles[key] = RegisterTile(
                number=self.first + len(self.tiles),
                shape=shape,
                mr=sizes["m"],
                nr=sizes["n"],
                active=region.active,
                overlapped=region.overlapped,
                loads_whole=room[0],
                loads_bands=room[1],
                steps=steps,
                k_tail=k_tail,
                accumulate=block.accumulate,
                phase=block.phase,
                unroll=k_loop(shape, plan.target, steps, plan.problem.dot, asked.k_unroll),
                search=region.search,
                bound=bound_text(shape, plan.target, plan.staging.product),
                why_split=why_split(region.fitting, plan.target, asked.k_split),
            )
        return self.tiles[key]


def _due(staging: Staging, letters: str, block: _Block) -> str:
    """Return the operand to pack here: no further loop selects another block of it; "" for none."""
    passes = {"a": "n", "b": "m"}
    for name in staging.packs:
        mine = {"m", "n", "k", "b"} - {passes[name]}
        last = {d for d in "mn" if d in letters and letters.count(d) == 1}
        blocks = [letter for letter in letters if letter not in last]
        if name not in block.packed and not any(letter in mine for letter in blocks):
            return name
    return ""


def packed_block(plan: Plan, name: str, extents: Mapping[str, Expr]) -> Operand:
    """Return a packed block of operand ``name``: ``[K][row]`` with rows of whole vectors.

    If vectors run along K it is ``[row][K]``. If the length of a row is known only at the call,
    rows are not padded. In panels it is ``[panel][K][row]``; ``pm`` and ``pn`` are the strides
    added for the first row or column of a panel.
    """
    line, buffer = LINE[name], Name(f"{name}_packed")
    width = plan.panel(name)
    if width is not None:
        group = plan.staging.product.group
        depth = whole_groups(extents["k"], plan.staging.product) * group
        panels = {line: group * ONE, "k": Integer(width), f"p{line}": depth - group}
        type_ = plan.staging.factor(name)
        return Operand(name, type_, panels, buffer)
    if plan.staging.product.unit is not None:
        source, lanes = plan.staging.operands[name], plan.staging.lanes
        if plan.staging.input_of(plan.problem.along).name == name:
            return packed_along(source, plan.staging.product, line, extents, lanes)
        return packed_across(source, plan.staging.product, plan.target, line, extents, lanes)
    if plan.problem.dot:
        width = odd_vectors(extents["k"], plan.staging.lanes)
        return replace(plan.staging.operands[name], strides={line: width, "k": ONE}, buffer=buffer)
    extent, lanes = extents[line], plan.staging.lanes
    leading = extent if value(extent) is None else div(extent + lanes - 1, lanes) * lanes
    strides = {line: ONE, "k": leading}
    return replace(plan.staging.operands[name], strides=strides, buffer=buffer)


def _loads_bands(plan: Plan, here: Staging, region: Region) -> bool:
    """True if the last load of rows across the vectors may read rows past the end of the tile.

    A multiply-add takes ``height`` rows at a time. Reading that many is allowed if the operand is
    packed and each tile begins at a multiple of ``height``, because there is padding after it.
    """
    part, block = region.across, plan.nest.blocks.get(plan.problem.across, 0)
    steps = [part.start, block * ONE, *([] if part.count == 1 else [part.size])]
    height = region.fitting.shape.height
    return here.across.packed and all(mod(step, height) == 0 for step in steps)


def _loads_whole(plan: Plan, here: Staging, region: Region) -> bool:
    """True if a partial last vector of a tile may be loaded whole.

    Packed rows have space for it. Rows of the caller's packed B have space for vectors that begin
    at multiples of their lanes.
    """
    part, block = region.along, plan.nest.blocks.get(plan.problem.along, 0)
    steps = [part.start, block * ONE, *([] if part.single else [part.size])]
    lanes = region.fitting.shape.vector.lanes
    aligned = all(is_multiple(step, lanes) for step in steps)
    return here.padded and (here.along.packed or aligned)
