"""Convert operands that are contiguous along K into K groups: transpose square blocks in registers.

A *line* is a row of A or a column of B. A tile reads and writes whole cache lines. If rows are a
power of two apart, they share a set of the cache, so a cache line would be evicted before a second
visit. Elements of fewer than 32 bits are transposed as 32-bit words, and extracted afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sympy import Expr, Integer

from tilewright.elementwise.builder import Argument
from tilewright.elementwise.conversions import is_upper_half, widen
from tilewright.ir.access import load
from tilewright.ir.dataflow import prune
from tilewright.ir.emitter import Emitter
from tilewright.ir.interleaving import transpose
from tilewright.ir.nest import NestNode, When, repeated
from tilewright.ir.ops import Load, Prefetch, TileProgram
from tilewright.ir.values import Active, Address, Register
from tilewright.plan.tiling.parts import Part, cut
from tilewright.spec.types import FORMATS, ITEMSIZE, in_word, is_integer, is_signed
from tilewright.symbolic import ONE, div, linear, mod, value

from .conversion import (
    Conversion,
    call_of,
    lanes_of,
    program_of,
    put,
    store_words,
)

#: The factor by which parts shrink when a run-time size is cut: less code than 2, but more steps.
BY = 4


def turnable(c: Conversion) -> bool:
    """True if an operand is contiguous along K and its vectors can be transposed."""
    along = value(c.source.strides["k"]) == 1 and value(c.source.strides[c.line]) != 1
    if not along or c.lanes == 1:
        return False
    element = "s32" if _together(c) > 1 else c.emitter(c.lanes).builder.real
    return c.target.holding(element, c.lanes).transposes


def blocks(
    c: Conversion, extents: dict[str, Expr], at: tuple[Expr, Expr], tiles: dict[str, TileProgram]
) -> Iterator[NestNode]:
    """Yield the nodes that convert a matrix block by block; their tiles are added to ``tiles``."""
    known = value(extents[c.line]) is not None
    for wide in cut(extents[c.line], across(c), by=2 if known else BY):
        body = tuple(along_k(c, wide, extents["k"], at, tiles))
        if wide.count != 1 and (known or wide.units == across(c)):
            yield c.over("lp", wide.count, body, div(extents["k"], c.k_group) + 1)
        else:
            yield from repeated("lp", wide.count, body)


def along_k(
    c: Conversion, wide: Part, depth: Expr, at: tuple[Expr, Expr], tiles: dict[str, TileProgram]
) -> Iterator[NestNode]:
    """Yield the nodes that convert a part of the lines along all of K."""
    if value(depth) is not None:
        for deep in cut(depth, reach(c)):
            yield from repeated("kp", deep.count, _call(c, (wide, deep), at, tiles))
        return
    for deep in _whole_groups(c, depth):
        yield from repeated("kp", deep.count, _call(c, (wide, deep), at, tiles))
    tail = mod(depth, c.k_group)
    nodes: tuple[NestNode, ...] = ()
    for existing in range(1, c.k_group):
        deep = Part(depth - tail, Integer(existing), existing, ONE)
        nodes = (When(tail - (existing - 1), _call(c, (wide, deep), at, tiles), nodes),)
    yield from nodes


def _whole_groups(c: Conversion, depth: Expr) -> Iterator[Part]:
    """Yield parts of K that consist of whole K groups."""
    most = max(1, reach(c) // c.k_group)
    for part in cut(div(depth, c.k_group), most, by=BY):
        units, start, size = (x * c.k_group for x in (part.units, part.start, part.size))
        yield replace(part, units=int(units), start=start, size=size)


def _call(
    c: Conversion,
    parts: tuple[Part, Part],
    at: tuple[Expr, Expr],
    tiles: dict[str, TileProgram],
) -> tuple[NestNode, ...]:
    wide, deep = parts
    program = turned_tile(c, wide.units, deep.units)
    tiles.setdefault(program.name, program)
    return (call_of(c, program, at, wide.at("lp"), deep.at("kp")),)


def reach(c: Conversion) -> int:
    """Return the elements of K in a tile: those of a cache line, or of a vector if that is
    longer.
    """
    vector = c.lanes * _together(c)
    line = c.target.core.line // ITEMSIZE[c.source.type]
    return vector if _many_instructions(c) else max(vector, line)


def across(c: Conversion) -> int:
    """Return the lines in a tile: enough to fill a cache line of the packed form, or a vector.

    For single bytes only half a cache line is filled, because more words would not fit in
    registers.
    """
    written = max(c.k_group * ITEMSIZE[c.packed.type], 2)
    return c.lanes if _many_instructions(c) else max(c.lanes, c.target.core.line // written)


def _many_instructions(c: Conversion) -> bool:
    """Return True if converting one element needs many instructions.

    One block for each tile is then enough code.
    """
    real = c.target.holding(c.emitter(c.lanes).builder.real, c.lanes)
    moved = c.bits or (c.kind == c.source.type and c.kind in real.loads)
    return c.kind in FORMATS and not is_upper_half(c.kind) and not moved


def _together(c: Conversion) -> int:
    """Return the elements transposed in one lane: those of a word if they are easy to extract, else
    1.
    """
    source = c.source.type
    easy = is_integer(source) or is_upper_half(source) or c.bits
    return in_word(source) if easy else 1


@dataclass(frozen=True, slots=True)
class _Lines:
    """Lines that become the lanes of one vector: ``count`` lines, from ``first`` on.

    ``turned`` are their transposed elements so far: one register for each element of K or word.
    """

    first: int
    count: int
    turned: list[Argument] = field(default_factory=list, compare=False)


def turned_tile(c: Conversion, lines: int, depth: int) -> TileProgram:
    """Return the tile of ``lines`` lines and ``depth`` elements of K: one square block after the
    other.

    A K group of adjacent blocks is written at once, so that each cache line is written once.
    """
    emitter, step, lanes = c.emitter(c.lanes), c.lanes * _together(c), c.lanes
    vectors = [_Lines(first, min(lanes, lines - first)) for first in range(0, lines, lanes)]
    written = 0
    for first in range(0, depth, step):
        end = min(first + step, depth)
        for vector in vectors:
            vector.turned.extend(_block(c, emitter, vector, (first, end)))
        ready = depth if end == depth else end // c.k_group * c.k_group
        for k in range(written, ready, c.k_group):
            for vector in vectors:
                _write(c, emitter, vector, (k, min(c.k_group, depth - k)))
        written = ready
    if c.spills:
        for line in range(lines):
            at = linear(((lines + line, c.source.strides[c.line]),))
            emitter.add(Prefetch(Address("x", at)))
    summary = f"{lines} lines, {depth} elements of each, turned"
    return program_of(c, f"turn_{lines}x{depth}", list(emitter.emit()), summary)


def _block(
    c: Conversion, emitter: Emitter, lines: _Lines, within: tuple[int, int]
) -> Iterator[Argument]:
    """Yield transposed elements of K in the range ``within``: one register for each element or
    word.
    """
    first, end = within
    rows = [_row(c, emitter, lines.first + i, first, end - first) for i in range(lines.count)]
    # A single row is passed twice, so that it is interleaved, too: the result must be a new
    # register, because a part of a loaded register may not be stored.
    rows = rows if len(rows) > 1 else 2 * rows
    steps, turned = transpose(c.target, rows, c.lanes, f"t{lines.first}_{first}_")
    turned = turned[: -(-(end - first) // _together(c))]
    emitter.add(*prune(steps, turned))
    yield from (emitter.take(register) for register in turned)


def _row(c: Conversion, emitter: Emitter, line: int, first: int, count: int) -> Register:
    """Load ``count`` elements of a line into a register: one element or word in each lane."""
    together, name = _together(c), f"x{line}_{first}"
    address = Address("x", linear(((line, c.source.strides[c.line]), (first, ONE))))
    whole = count == c.lanes * together
    if together > 1:
        word = emitter.fresh(name, "s32")
        emitter.add(Load(word, address, None if whole else count, c.source.type, together))
        return word
    active: Active = None
    if not whole:
        active, makes = lanes_of(c, count * ONE, emitter)
        if line == 0:
            emitter.add(*makes)
    return emitter.register(load(emitter, address, active, c.source.type, name))


def _write(c: Conversion, emitter: Emitter, lines: _Lines, group: tuple[int, int]) -> None:
    """Store one K group of every line. ``group`` is its first element and the number that exist."""
    (k, existing), turned, packed = group, lines.turned, c.packed.strides
    place = Address("out", linear(((k, packed["k"]), (lines.first, packed[c.line]))))
    together, active = _together(c), None if lines.count == c.lanes or c.spills else lines.count
    if c.moves and c.word_elements == together > 1:
        starts = range(0, c.k_group, together)
        counts = [min(together, max(0, existing - start)) for start in starts]
        words: list[Argument] = [
            c.shifted(emitter, turned[(k + start) // together], count) if count else 0
            for start, count in zip(starts, counts, strict=True)
        ]
        store_words(c, emitter, words, place, active)
        return
    elements = [_element(c, emitter, turned, each) for each in range(k, k + existing)]
    if c.k_group == 1:
        put(c, emitter, elements[0], place, active)
    else:
        store_words(c, emitter, c.words(emitter, elements), place, active)


def _element(c: Conversion, emitter: Emitter, turned: list[Argument], k: int) -> Argument:
    """Return element ``k`` of every line, in the form of ``Conversion.element``."""
    together, source = _together(c), c.source.type
    if together == 1:
        return c.rounded(emitter, turned[k])
    b, bits = emitter.builder, 8 * ITEMSIZE[source]
    above = 32 - bits * (k % together + 1)
    word = turned[k // together]
    word = b("shl", word, above) if above else word
    lane = b("shr" if is_signed(source) else "ushr", word, 32 - bits)
    return lane if (is_integer(source) and not c.mixed) or c.bits else widen(b, lane, source)
