"""The tiles of a move: load a block, convert its elements, store it in another layout.

A line is a row or a column; its elements are along the depth. A block is read in one of three ways:
vectors across lines, K groups, or vectors along the depth, which are transposed in registers. It is
written in one of the same ways. If the types agree, 32-bit words of elements are moved without a
conversion. Otherwise each lane holds one element of another line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TypeVar

from sympy import Expr, Integer

from tilewright.elementwise.builder import Argument as Element
from tilewright.ir.access import load
from tilewright.ir.dataflow import (
    prune,
)
from tilewright.ir.interleaving import transpose, zip_rows
from tilewright.ir.ops import Interleave, Load, Splat, Store, Zero
from tilewright.ir.values import Address, Register
from tilewright.isa.vector import Vector
from tilewright.lower.vectors import known
from tilewright.plan.routines.copy import LANES, Layout
from tilewright.plan.routines.transpose import Block, turned_blocks
from tilewright.spec.types import ITEMSIZE, is_integer
from tilewright.symbolic import ONE, div, linear, value

from .move_access import MoveAccess

T = TypeVar("T")


class MoveTile(MoveAccess):
    """The operations of one tile: loads from ``x``, conversions, and stores to ``out``."""

    # --- whole tiles ---------------------------------------------------------------------------

    def row(self, size: Expr, depth: int = 1) -> str:
        """Copy ``size`` neighbours of ``depth`` rows; return the tile's name."""
        known = value(size)
        for k in range(depth):
            for vector, first, left in self._cover(size):
                read = self._at("x", self.move.source, first, k)
                write = self._at("out", self.move.made, first, k)
                name = f"x{k}_{first}" if k else f"x{first}"
                if vector is not None:
                    register = Register(f"x{k}_{first}", vector)
                    active = None if left is None else self._lanes(vector, left)
                    self.emitter.add(Load(register, read, active), Store(write, register, active))
                elif self.move.same:
                    word = self._load_word(read, left, self.together, name)
                    self._store_word(write, word, left, self.together)
                else:
                    self._put(self._converted(self._loaded(read, left, name)), write, left)
        rows = f"{depth}x" if depth > 1 else ""
        return f"copy_{rows}{'tail' if known is None else known}"

    def _cover(self, size: Expr) -> Iterator[tuple[Vector | None, int, Expr | None]]:
        """Yield for each vector of a row its first element, and its number of elements if not full.

        If elements of 32 or 64 bits are copied, narrower vectors copy the last ones; the vector
        type is None otherwise.
        """
        known, whole = value(size), self.move.same and self.together == 1
        if known is None or not whole:
            step = self.lanes * (self.together if self.move.same else 1)
            for first in range(0, step if known is None else known, step):
                part = None if known is not None and known - first >= step else size - first
                yield None, first, part
            return
        first = 0
        for vector in self.move.target.of(self.move.source.type):
            while known - first >= vector.lanes:
                yield vector, first, None
                first += vector.lanes
            if first < known and vector.cuts(known - first):
                yield vector, first, Integer(known - first)
                return

    def block(self, lines: int | Expr, depth: int) -> str:
        """Move a block of ``lines`` lines and a part of the depth; return the tile's name.

        If only the call knows the number of lines, there are fewer than lanes. A depth of 0 is a
        group of zeros.
        """
        if self.move.words and self.move.turns:
            self.turn(turned_blocks(self.move, depth, lines))
            return f"move_{lines}x{depth}"
        moving = self._moving_words if self.move.words else self._moving_elements
        known = value(ONE * lines)
        parts = [(0, lines)]
        if known is not None:
            self.block_lines = known
            parts = [(at, min(self.lanes, known - at)) for at in range(0, known, self.lanes)]
        vectors = (moving(first, some, depth) for first, some in parts)
        for _ in zip(*vectors, strict=True):  # store a group of every line, then the next group
            pass
        return f"move_{lines}x{depth}"

    def along(
        self, lines: int, starts: Sequence[int], step: int, left: Expr | None, wide: Vector | None
    ) -> None:
        """Move ``step`` elements from each of ``starts`` on, of lines that are contiguous.

        If ``left`` is given, only so many are there; the others are stored as 0. ``wide`` is the
        vector type that loads a whole vector of elements as the wider type, if there is one.
        """
        source, made, each = self.move.source, self.move.made, step // self.lanes
        for index, (start, line) in enumerate(product(starts, range(lines))):
            read, write = self._at("x", source, line, start), self._at("out", made, line, start)
            if wide is not None:
                register = Register(f"wx{index}", wide)
                self.emitter.add(Load(register, read, known(left), source.type))
                self.emitter.add(Store(write, register))
            elif each > 1:
                word = self._load_word(read, left, each, f"x{index}")
                flipped = self.emitter.register(self._flipped(self.emitter.take(word), each))
                if made.shift and left is not None:  # elements that are not there must stay 0
                    self._store_word(write, self.emitter.register(0), None, each)
                    self._store_word(write, flipped, left, each)
                else:
                    self._store_word(write, flipped, None, each)
            else:
                self._put(self._converted(self._loaded(read, left, f"x{index}")), write, None)

    def lines(self, lines: Expr, depth: Expr) -> None:
        """Move a square of words to contiguous lines; only ``lines`` and ``depth`` are there.

        Whole vectors are stored. Elements that are not there are 0.
        """
        each, words = self.move.made.each, list[Register]()
        most = self.lanes * each
        for first in range(0, most, each):
            elements = []
            for k in range(first, first + each):
                there = lines * div(depth + (most - 1 - k), most)  # no elements beyond the depth
                if there == 0:
                    break
                active = None if there == self.lanes else known(there)
                address = self._at("x", self.move.source, 0, k)
                found = load(self.emitter, address, active, self._memory, f"x{k}")
                elements.append(self._converted(found))
            words.append(self.emitter.register(self._word_of(elements)))
        for line, row in enumerate(self._transposed(words, self.lanes)):
            self._store_word(self._at("out", self.move.made, line, 0), row, None, each)

    def fill(self, vectors: int, left: Expr | None, start: Expr | float) -> str:
        """Store ``start`` to all elements of ``vectors`` vectors; return the tile's name.

        If ``left`` is given, there is a single vector, of which only so many elements exist.
        """
        made, (vector, each) = self.move.made.type, self.move.filling
        register, number = Register("zero" if start == 0 else "start", vector), start
        if isinstance(start, Expr) and value(start) is not None:
            number = (int(start) + 2**31) % 2**32 - 2**31
        self.emitter.add(Zero(register) if start == 0 else Splat(register, number))
        memory, group = ("", 0) if vector.element == made else (made, each)
        for index in range(vectors):
            at = Address("out", index * vector.lanes * each * ONE)
            self.emitter.add(Store(at, register, known(left), memory, group))
        size = vectors * vector.lanes * each if left is None else value(left) or "tail"
        return f"{'zeros' if start == 0 else 'fill'}_{size}"

    # --- words that are moved as they are ------------------------------------------------------

    def turn(self, blocks: Iterable[Block], pointer: str = "x") -> None:
        """Transpose blocks: vectors across lines become vectors along the depth.

        A block's columns are lines, and its rows are elements of the depth.
        """
        for block in blocks:
            for line, row in self._turned(block, self._rows(pointer, block)):
                self._row("out", block.flipped, line, row)

    def exchange(self, blocks: Iterable[Block], pointer: str, other: str) -> None:
        """Exchange blocks at ``pointer`` and their mirror images at ``other``, transposing both.

        A row of the image is read just before it is overwritten.
        """
        for block in blocks:
            mirror, rows = block.flipped, dict[int, Register]()
            for line, row in self._turned(block, self._rows(pointer, block)):
                rows[line] = self._row(other, mirror, line)
                self._row(other, mirror, line, row)
            for line, row in self._turned(mirror, [rows[line] for line in sorted(rows)]):
                self._row(pointer, block, line, row)

    def _rows(self, pointer: str, block: Block) -> list[Register]:
        """Load the rows of a block.

        With ``halves``, each register is half of one row and half of another, half the block below.
        """
        rows = range(block.row, block.row + block.rows)
        if not block.halves:
            return [self._row(pointer, block, row) for row in rows]
        lanes, found = block.vector.lanes // 2, list[Register]()
        half = replace(block, vector=self.move.target.holding("s32", lanes))
        for row in rows[: block.rows // 2]:
            low, high = (self._row(pointer, half, at) for at in (row, row + block.rows // 2))
            found.append(Register(f"{low.name}_{high.name}", block.vector))
            self.emitter.add(Interleave(found[-1], low, high, lanes, odd=False))
        return found

    def _row(
        self, pointer: str, block: Block, row: int, stored: Register | None = None
    ) -> Register:
        """Load a row of a block, or store the register ``stored`` there."""
        move, each = self.move, self.together
        step = move.source.step if pointer == "x" else move.made.step
        address = Address(pointer, linear(((row, step), (block.col, Integer(1)))))
        left = None if block.cols == block.vector.lanes * each else Integer(block.cols)
        if stored is not None:
            self._store_word(address, stored, left, each)
            return stored
        name = f"{pointer}{row}_{block.col}"
        self.read[name] += 1
        name += f"_{self.read[name]}" if self.read[name] > 1 else ""  # blocks may overlap
        register = Register(name, block.vector)
        return self._load_word(address, left, each, register)

    def _turned(self, block: Block, rows: list[Register]) -> Iterator[tuple[int, Register]]:
        """Yield the lines of a block of ``rows``, each as adjacent elements of the depth."""
        if 32 // self.together in block.vector.zips:
            yield from self._zipped_lines(block, rows)
            return
        each = self.together
        parts = [self._mixed(rows[at : at + each]) for at in range(0, block.rows, each)]
        for place in range(min(each, block.cols)):
            lines = range(block.col + place, block.col + block.cols, each)
            words = [part[place] for part in parts]
            found = self._network(words, block.vector.lanes, len(lines))
            yield from zip(lines, found, strict=True)

    def _zipped_lines(self, block: Block, rows: list[Register]) -> Iterator[tuple[int, Register]]:
        """Yield the lines of a block whose elements are transposed within 128 bits first."""
        bits, count, parts = 32 // self.together, LANES * self.together, list[list[Register]]()
        segments = block.vector.lanes // LANES // (2 if block.halves else 1)
        for at in range(0, len(rows), count):
            self.networks += 1
            ops, turned = zip_rows(rows[at : at + count], bits, f"t{self.networks}_")
            self.emitter.add(*prune(ops, turned[: block.cols]))
            parts.append(turned)
        for place in range(min(count, block.cols)):
            lines = range(block.col + place, block.col + block.cols, count)
            words = [part[place] for part in parts]
            found = self._network(words, segments, len(lines), LANES)
            yield from zip(lines, found, strict=True)

    def _mixed(self, rows: list[Register]) -> list[Register]:
        """Transpose elements within words: a word has as many elements as there are rows.

        Each word of result ``i`` holds element ``i`` of the words of all rows, in their order.
        """
        rows = [*rows, *rows[:1] * (self.together - len(rows))]
        b, size = self.builder, 32 // self.together
        values: list[Element] = [self.emitter.take(row) for row in rows]
        half = 1
        while half < self.together:
            bits = size * half
            low = sum(((1 << bits) - 1) << at for at in range(0, 32, 2 * bits))
            for i in range(self.together):
                if i & half:
                    continue
                x, y = values[i], values[i + half]
                if 2 * bits == 32:
                    values[i] = b("or", b("and", x, low), b("shl", y, bits))
                    values[i + half] = b("or", b("ushr", x, bits), b("and", y, low << bits))
                else:
                    kept, moved = b("and", x, low), b("shl", b("and", y, low), bits)
                    values[i] = b("or", kept, moved)
                    moved = b("and", b("ushr", x, bits), low)
                    values[i + half] = b("or", moved, b("and", y, low << bits))
            half *= 2
        return [self.emitter.register(each) for each in values]

    def _moving_words(self, first: int, some: int, depth: int) -> Iterator[None]:
        """Move words of the depth between groups, and lines along the depth."""
        words = self._read_words(first, some, depth)
        if self.move.made.shift:
            counts = (min(self.together, depth - at) for at in range(0, depth, self.together))
            flipped = map(self._flipped, map(self.emitter.take, words), counts)
            words = map(self.emitter.register, flipped)
        yield from self._writing(first, some, depth, words)

    def _read_words(self, first: int, some: int, depth: int) -> Iterator[Register]:
        """Yield the words of a few lines, each of them as a register with a lane for each line."""
        source, each = self.move.source, self.together
        if not source.along:
            for k in range(0, depth, source.group):
                yield from self._load_group(source, first, some, k)
            return
        block = self.lanes * each
        for start in range(0, depth, block):
            there = min(block, depth - start)
            left = None if there == block else Integer(there)
            rows = [
                self._load_word(self._at("x", source, line, start), left, each, f"x{line}_{start}")
                for line in range(first, first + some)
            ]
            yield from self._transposed(rows, -(-there // each))

    def _writing(
        self, first: int, some: int, depth: int, words: Iterable[Register]
    ) -> Iterator[None]:
        """Store words of a few lines, each of them a register with a lane for each line.

        Yield after each group, or after whole lines.
        """
        made, each = self.move.made, self.move.made.each
        if not made.along:
            groups = _parts(words, made.group // each) if depth else [[]]
            for number, group in enumerate(groups):
                self._store_group(made, first, some, number * made.group, group)
                yield
            return
        block = self.lanes * each
        for start, part in zip(range(0, depth, block), _parts(words, self.lanes), strict=False):
            left = None if depth - start >= block else Integer(depth - start)
            for line, row in enumerate(self._transposed(part, some), first):
                self._store_word(self._at("out", made, line, start), row, left, each)
        yield

    def _load_group(self, side: Layout, first: int, some: int, k: int) -> list[Register]:
        """Load the words of a group of each of ``some`` lines, a register for each word."""
        each = side.each
        count = side.group // each
        found: list[Register] = []
        for number in range(count):
            left = min(self.lanes, some * count - number * self.lanes)
            if left <= 0:
                found.append(found[0])
                continue
            address = self._at("x", side, first, k, number * self.lanes * each)
            part = None if left == self.lanes else Integer(left * each)
            name = f"x{first}_{k}" + (f"_{number}" if number else "")
            found.append(self._load_word(address, part, each, name, side.type))
        return self._zipped(found, apart=True) if count > 1 else found

    def _store_group(
        self, side: Layout, first: int, some: int, k: int, words: list[Register]
    ) -> None:
        """Store the words of a group of each of ``some`` lines."""
        each = side.each
        count = side.group // each
        while len(words) < count:
            zero = self.emitter.unnamed("s32" if ITEMSIZE[side.type] < 4 else side.type)
            self.emitter.add(Zero(zero))
            words = [*words, zero]
        if count > 1:
            words = self._zipped(words, apart=False)
        some = self.lanes if self.move.spills else some
        for number, word in enumerate(words):
            left = min(self.lanes, some * count - number * self.lanes)
            if left > 0:
                address = self._at("out", side, first, k, number * self.lanes * each)
                part = None if left == self.lanes else Integer(left * each)
                self._store_word(address, word, part, each)

    def _zipped(self, pair: list[Register], *, apart: bool) -> list[Register]:
        """Interleave the lanes of two registers; with ``apart``, undo this."""
        x, y = pair
        blocks = [1 << i for i in range((self.lanes - 1).bit_length())]
        for block in reversed(blocks) if apart else blocks:
            even, odd = (self.emitter.unnamed(x.vector.element) for _ in range(2))
            self.emitter.add(Interleave(even, x, y, block, odd=False))
            self.emitter.add(Interleave(odd, x, y, block, odd=True))
            x, y = even, odd
        return [x, y]

    def _transposed(self, rows: list[Register], count: int) -> list[Register]:
        """Return the first ``count`` rows of the transpose of a block of registers."""
        if self.lanes == 1:
            return rows
        # The result must be a new register: a register that was loaded may not be stored unchanged.
        # A single row is therefore interleaved with itself.
        return self._network(rows if len(rows) > 1 else 2 * rows, self.lanes, count)

    def _network(
        self, rows: list[Register], lanes: int, count: int, width: int = 1
    ) -> list[Register]:
        """Return the first ``count`` rows of the transpose, as ``transpose`` makes them."""
        self.networks += 1
        ops, turned = transpose(self.move.target, rows, lanes, f"t{self.networks}_", width)
        self.emitter.add(*prune(ops, turned[:count]))
        return turned[:count]

    # --- elements that are converted -----------------------------------------------------------

    def _moving_elements(self, first: int, some: int, depth: int) -> Iterator[None]:
        """Move one element of each line at a time, and convert it."""
        elements = map(self._converted, self.read_elements(first, some, depth))
        yield from self.writing_elements(first, some, depth, elements)

    def writing_elements(
        self, first: int, some: int, depth: int, elements: Iterable[Element]
    ) -> Iterator[None]:
        """Store elements of the depth, each of them with a lane for each line.

        Yield after each group, or after whole lines.
        """
        made = self.move.made
        left = None if some == self.lanes or self.move.spills else ONE * some
        if not made.along and made.group == 1:
            elements = elements if depth else [0 if is_integer(made.type) else 0.0]
            for k, found in enumerate(elements):
                self._put(found, self._at("out", made, first, k), left)
                yield
            return
        words = map(self.emitter.register, map(self._word_of, _parts(elements, made.each)))
        yield from self._writing(first, some, depth, words)

    def read_elements(self, first: int, some: int, depth: int) -> Iterator[Element]:
        """Yield one element of the depth after the other, a lane for each line."""
        source = self.move.source
        left = None if some == self.lanes else ONE * some
        if source.fields > 1:
            yield from self._read_fields(first, some, depth)
        elif source.along and self.lanes > 1 and not self.move.easy:
            yield from self._read_turned(first, some, depth)
        elif source.along and self.lanes > 1:
            for number, word in enumerate(self._read_words(first, some, depth)):
                at = number * self.together
                yield from (
                    self._extracted(word, k) for k in range(at, min(depth, at + self.together))
                )
        elif source.group == 1:
            for k in range(depth):
                yield self._loaded(self._at("x", source, first, k), left, f"x{first}_{k}")
        else:
            for start in range(0, depth, source.group):
                words = self._load_group(source, first, some, start)
                for k in range(min(source.group, depth - start)):
                    yield self._extracted(words[k // source.each], k % source.each)

    def _read_fields(self, first: int, some: int, depth: int) -> Iterator[Element]:
        """Yield elements of which several share a byte."""
        source, fields = self.move.source, self.move.source.fields
        if source.along:
            each = fields * self.together
            for number, word in enumerate(self._read_words(first, some, -(-depth // fields))):
                there = min(each, depth - number * each)
                for place in range(there):
                    yield self._field(self.emitter.take(word), place)
            return
        for k in range(depth):
            if self.lanes == 1:
                byte, place = divmod(first, fields)
                found = self._loaded(self._at("x", source, byte, k), None, f"x{first}_{k}")
                yield self._field(found, place)
                continue
            if first % (2 * self.lanes) == 0:
                self.pairs[first, k] = self._pair(first, k)
            both = self.pairs[first // (2 * self.lanes) * 2 * self.lanes, k]
            yield self.emitter.take(both[first // self.lanes % 2])

    def _pair(self, first: int, k: int) -> list[Register]:
        """Return an element of each line from ``first`` on, in two vectors across lines."""
        count = -(-min(2 * self.lanes, self.block_lines - first) // 2)
        left = None if count == self.lanes else Integer(count)
        found = self._loaded(self._at("x", self.move.source, first // 2, k), left, f"x{first}_{k}")
        fields = [self.emitter.register(self._field(found, place)) for place in range(2)]
        return self._zipped(fields, apart=False)

    def _read_turned(self, first: int, some: int, depth: int) -> Iterator[Element]:
        """Yield elements that are converted by loads along the depth, and transposed then."""
        source = self.move.source
        for start in range(0, depth, self.lanes):
            there = min(self.lanes, depth - start)
            left = None if there == self.lanes else Integer(there)
            rows = []
            for line in range(first, first + some):
                found = self._loaded(self._at("x", source, line, start), left, f"x{line}_{start}")
                rows.append(self.emitter.register(found))
            yield from map(self.emitter.take, self._transposed(rows, there))


def _parts(elements: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield ``elements`` in lists of ``size``, the last of them shorter."""
    part: list[T] = []
    for element in elements:
        part.append(element)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part
