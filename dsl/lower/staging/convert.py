"""The loops that convert an operand for its tiles, into K groups or into lines along K.

A *line* is a row of A or a column of B. If adjacent lines are contiguous, a vector of lines is
loaded at a time. If each line is contiguous along K, a block of lines is loaded and transposed in
registers, one K group, or a vector of a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sympy import Expr, Integer

from tilewright.ir.nest import BlockLoop, Call, NestNode, When, repeated, when
from tilewright.ir.ops import Prefetch
from tilewright.ir.values import Address
from tilewright.lower.move import BY, MoveNest
from tilewright.lower.move_tile import MoveTile
from tilewright.lower.vectors import over_vectors
from tilewright.plan.staging import row_elements, widening
from tilewright.plan.tiling.parts import Part, cut
from tilewright.symbolic import ONE, ZERO, div, linear, mod, symbol, value

#: The number of vectors that one call converts.
VECTORS = 4
#: The number of vectors that one call converts if the operand has few lines along K.
BLOCK = 16


@dataclass(slots=True)
class ConversionNest(MoveNest):
    """The loops that convert an operand, or a part of it.

    ``zero_groups`` K groups of zeros follow the last group. If ``zero_lines`` is True, the lines
    that pad a vector are stored as zeros; otherwise their values are arbitrary. If ``overlaps`` is
    True, the last vector of a line along K may overlap the previous one; otherwise lines are padded
    with zeros to whole vectors. If ``exact`` is True, nothing is written past the last line when
    the number of lines is known. If ``shared`` is True, threads share the loops over lines.
    """

    zero_groups: Expr = ZERO
    zero_lines: bool = False
    overlaps: bool = False
    exact: bool = False
    shared: bool = False

    def moves(self) -> Iterator[NestNode]:
        """Yield the loops and calls that convert the matrix and write zeros to its padding."""
        move = self.move
        if move.made.along:
            in_lines = value(move.source.depth_step) == 1
            yield from self.along() if in_lines else self.squares()
            return
        yield from self.turned(move.tile[0]) if move.turned else self.groups()
        if self.zero_groups != 0:
            group = move.made.group
            after = group * (div(move.depth + (group - 1), group) + symbol("gp"))
            body = tuple(self._group(move.lines, after, 0))
            yield BlockLoop("gp", self.zero_groups, body, note="whole steps")

    def panel(self, width: int, *, padded: bool) -> Iterator[NestNode]:
        """Yield the loops that convert a panel of ``width`` lines, or an incomplete panel.

        Up to ``spilled`` elements may be written past the panel, where a later panel or padding is.
        ``padded`` is True if tiles read lines that do not exist; those of a transposed panel are
        set to 0.
        """
        move = self.move
        if not move.turned and width % move.lanes == 0:
            yield from self.groups()
            return
        exact = replace(self, exact=True)
        if padded and move.lines != width:
            body = tuple(exact._group(Integer(width), move.made.group * symbol("gp"), 0))
            count = div(move.depth + (move.made.group - 1), move.made.group)
            yield BlockLoop("gp", count, body, note="lines that pad a vector")
        if move.turned:
            spills = replace(self, move=replace(move, spills=move.lines == width < move.lanes))
            most = min(width, move.tile[0])
            # If only the call knows the number of lines, an incomplete panel has fewer than
            # ``width``. Blocks have the largest power of 4 below that.
            if value(move.lines) is None and most == width > 1:
                most = 1 << ((width - 1).bit_length() - 1) // 2 * 2
            yield from spills.turned(most)
            return
        for part in cut(move.lines, width, by=BY):
            strip = exact.beginning(part.at("sp"), ZERO)
            strip.move = replace(move, lines=Integer(part.units))
            yield from repeated("sp", part.count, strip.groups())

    def spilled(self, width: int) -> int:
        """Return the elements that may be written past the last panel, because whole vectors are
        stored.
        """
        move = self.move
        return max(0, move.lanes - width) * move.made.group if move.turned else 0

    def _over(
        self, counter: str, trips: Expr, body: tuple[NestNode, ...], work: Expr, note: str = ""
    ) -> BlockLoop:
        """Return a loop over lines or K groups; a trip takes ``work`` vector operations."""
        shared = work if self.shared else None
        return BlockLoop(counter, trips, body, note=note, parallel=self.shared, work=shared)

    def _rest(self, tail: Expr, made: Callable[[int], Iterable[NestNode]]) -> Iterator[NestNode]:
        """Yield what ``made`` returns for the last ``tail`` elements of K, less than a group.

        There is a branch for each number of elements, since only the call knows it.
        """
        nodes: tuple[NestNode, ...] = ()
        for there in range(1, self.move.made.group):
            nodes = (When(tail - (there - 1), tuple(made(there)), nodes),)
        yield from nodes

    # --- K group by K group ----------------------------------------------------------------------

    def groups(self) -> Iterator[NestNode]:
        """Yield the conversion of one K group of all lines after another."""
        move, group = self.move, self.move.made.group
        whole, tail = div(move.depth, group), mod(move.depth, group)
        if whole != 0:
            body = tuple(self._group(move.lines, group * symbol("gp"), group))
            work = div(move.lines, move.lanes) + 1
            yield self._over("gp", whole, body, work, f"convert {move.source.name}")
        if value(tail) is None:
            yield from self._rest(tail, lambda k: self._group(move.lines, group * whole, k))
        elif tail != 0:
            yield from self._group(move.lines, group * whole, int(tail))

    def _group(self, lines: Expr, k: Expr, there: int) -> Iterator[NestNode]:
        """Yield one K group of every line: ``there`` elements are read, the others are 0."""
        move = self.move
        apart = there and value(move.source.line_step) != 1
        lanes = 1 if apart else move.lanes
        if not there and not self.exact:
            lines = div(lines + (lanes - 1), lanes) * lanes
        shifts = self.zero_lines and move.made.shift != 0

        def called(first: Expr, vectors: int, tail: Expr | None, lanes: int = lanes) -> Call:
            some = self.exact or (shifts and move.made.group > 1)
            known = value(tail) if tail is not None and some else None
            size = vectors * lanes if tail is None else known if self.exact else "tail"

            def make(tile: MoveTile) -> str:
                tile.block(vectors * lanes if tail is None else tail, there)
                tile.summary = f"{size} lines, {there} elements of each"
                return f"group_{size}" + (f"_{there}" if there < move.made.group else "")

            tiles = replace(self, move=replace(move, lanes=lanes, spills=known is None))
            return tiles.call(make, first, k)

        whole = div(lines, lanes) * lanes
        if value(lines) is None and whole != lines and shifts:
            # A vector would also add the shift to lanes after the last line, which must stay 0.
            # Therefore the lines of the tail are converted one by one.
            yield from over_vectors(whole, lanes, VECTORS, called)
            rest = called(whole + symbol("lt"), 1, None, lanes=1)
            yield BlockLoop("lt", mod(lines, lanes), (rest,))
        else:
            yield from over_vectors(lines, lanes, VECTORS, called)

    # --- blocks that are transposed --------------------------------------------------------------

    def turned(self, most: int) -> Iterator[NestNode]:
        """Yield the conversion of blocks of ``most`` lines along all of K, transposed in registers.

        A tile reads and writes whole cache lines. If lines are a power of two apart, they share a
        set of the cache, so a cache line would be evicted before a second visit.
        """
        move = self.move
        for wide in cut(move.lines, most, by=BY):
            body = tuple(self._blocks(wide))
            if wide.count != 1 and wide.units == most:
                yield self._over("lp", wide.count, body, div(move.depth, move.made.group) + 1)
            else:
                yield from repeated("lp", wide.count, body)

    def _blocks(self, wide: Part) -> Iterator[NestNode]:
        """Yield the conversion of a part of the lines along all of K."""
        depth, group, reach = self.move.depth, self.move.made.group, self.move.tile[1]
        if value(depth) is not None:
            for deep in cut(depth, reach):
                yield from repeated("kp", deep.count, self._block(wide, deep))
            return
        for part in cut(div(depth, group), max(1, reach // group), by=BY):
            units, start, size = (x * group for x in (part.units, part.start, part.size))
            deep = replace(part, units=int(units), start=start, size=size)
            yield from repeated("kp", deep.count, self._block(wide, deep))
        tail = mod(depth, group)
        yield from self._rest(
            tail, lambda there: self._block(wide, Part(depth - tail, ONE * there, there, ONE))
        )

    def _block(self, wide: Part, deep: Part) -> tuple[NestNode, ...]:
        lines, depth = wide.units, deep.units

        def make(tile: MoveTile) -> str:
            tile.block(lines, depth)
            if self.move.spills:
                for line in range(lines):
                    at = linear(((lines + line, self.move.source.line_step),))
                    tile.emitter.add(Prefetch(Address("x", at)))
            tile.summary = f"{lines} lines, {depth} elements of each, turned"
            return f"turn_{lines}x{depth}"

        return (self.call(make, wide.at("lp"), deep.at("kp")),)

    # --- lines along K ---------------------------------------------------------------------------

    def along(self) -> Iterator[NestNode]:
        """Yield the conversion of lines along K into such lines, vector by vector."""
        move, lines = self.move, value(self.move.lines)
        few = lines if lines is not None and lines <= BLOCK and move.lanes > 1 else None
        whole, tail = self._lines(few)
        if few:
            yield from whole
            whole = []
        if each := (*whole, *tail):
            work = div(move.depth, move.lanes) + 1
            yield self._over("lp", move.lines, each, work, f"convert {move.source.name}")

    def _lines(self, few: int | None) -> tuple[list[NestNode], list[NestNode]]:
        """Return the calls that convert whole vectors of a line, and those that convert its tail.

        If ``few`` is given, a call converts whole vectors of all ``few`` lines.
        """
        move, types = self.move, (self.move.source.type, self.move.made.type)
        step, wide = row_elements(move.target, *types, move.lanes), widening(move.target, *types)
        count, tail = div(move.depth, step), mod(move.depth, step)
        whole: list[NestNode] = []

        def called(
            several: int | None, starts: Sequence[int], k: Expr, tail: Expr | None = None
        ) -> Call:
            lines, size = several or 1, "tail" if tail is not None else f"{len(starts) * step}"

            def make(tile: MoveTile) -> str:
                tile.along(lines, starts, step, tail, wide)
                each = "a row" if lines == 1 else f"each of {lines} rows"
                tile.summary = f"{size} elements of {each}"
                return f"row_{size}" if lines == 1 else f"rows_{lines}x{size}"

            return self.call(make, ZERO if several else symbol("lp"), k)

        for part in cut(count, BLOCK // few if few else VECTORS):
            call = called(few, range(0, part.units * step, step), step * part.at("kp"))
            whole += repeated("kp", part.count, (call,))
        if tail == 0:
            return whole, []
        if value(count) and self.overlaps:
            return [*whole, called(few, [0], move.depth - step)], []
        call = called(None, [0], step * count, tail)
        return whole, [*when(tail, (call,))]

    def squares(self) -> Iterator[NestNode]:
        """Yield the conversion of adjacent lines into lines along K, in blocks that are transposed.

        A block has as many lines and words of K as a vector has lanes.
        """
        move, lanes = self.move, self.move.lanes
        step = lanes * move.made.each
        whole, k_tail = div(move.depth, step), mod(move.depth, step)
        lines, line_tail = div(move.lines, lanes), mod(move.lines, lanes)
        for count, there in ((whole, step * ONE), (ONE if k_tail != 0 else ZERO, k_tail)):
            if count == 0:
                continue
            k = step * (symbol("kp") if there == step else whole)
            calls: list[NestNode] = []
            for many, tail in ((lines, None), (ONE if line_tail != 0 else ZERO, line_tail)):
                if many == 0:
                    continue
                call = self._square(tail, there, (symbol("lp") if tail is None else lines, k))
                if tail is None:
                    calls.append(BlockLoop("lp", many, (call,)))
                else:
                    calls += when(tail, (call,))
            if there == step:
                note = f"turn {move.source.name}"
                yield self._over("kp", count, tuple(calls), move.lines + 1, note)
            else:
                yield from when(k_tail, tuple(calls))

    def _square(self, tail: Expr | None, there: Expr, at: tuple[Expr, Expr]) -> Call:
        """Return the call of one block with ``tail`` lines, None for all, and ``there`` elements
        of K. ``at`` is the number of lines before it, in vectors, and the first element of K.
        """
        lanes = self.move.lanes

        def make(tile: MoveTile) -> str:
            tile.lines(lanes * ONE if tail is None else tail, there)
            tile.summary = "a block of lines as rows along K"
            part = "_part" if there != lanes * self.move.made.each else ""
            return f"turn{part}" + ("_tail" if tail is not None else "")

        return self.call(make, lanes * at[0], at[1])
