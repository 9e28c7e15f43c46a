"""The program that packs a low-bit B: its elements, several of which share a byte, and its scales.

All bytes are set to 0 first. Elements are then moved as in a copy. Elements that share a byte are
joined in registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import cast

from sympy import Expr

from tilewright.elementwise.builder import Argument as Element
from tilewright.elementwise.builder import Value
from tilewright.elementwise.conversions import look_up
from tilewright.ir.nest import NestNode, Program, repeated
from tilewright.ir.ops import Splat, Store
from tilewright.ir.values import Address
from tilewright.plan.routines.pack_quantized import QuantizedPackPlan
from tilewright.plan.tiling.parts import Part, cut
from tilewright.symbolic import ONE, ZERO, div, value

from .move import MoveNest
from .move_tile import MoveTile


def quantized_packing(plan: QuantizedPackPlan) -> Program:
    """Return the program that packs elements, scales, zero points and sums."""
    elements = MoveNest(plan.elements)
    nodes = [
        *elements.fill(elements.out(ZERO), ONE * plan.format.nbytes),
        *_elements(plan, elements),
    ]
    tiles = elements.tiles
    for name, move in plan.blocks:
        nest = MoveNest(move, prefix=f"{name}_")
        nodes += nest.moves()
        tiles |= nest.tiles
    return Program(tuple(nodes), tuple(tiles.values()))


def _elements(plan: QuantizedPackPlan, nest: MoveNest) -> Iterator[NestNode]:
    """Yield the loops over blocks of columns, blocks of K, and vectors of columns."""
    form = plan.format
    for strip in nest.strips():
        blocks: list[NestNode] = []
        for block in cut(ONE * form.k, form.block):
            vectors: list[NestNode] = []
            for wide in cut(strip.size, plan.elements.lanes):
                line = strip.at("pt") + wide.at("lp")
                nodes = _vector(plan, nest, block, line, wide.units)
                vectors += repeated("lp", wide.count, nodes, f"{wide.units} columns")
            blocks += repeated("kb", block.count, vectors, "blocks of K")
        yield from repeated("pt", strip.count, blocks, "blocks of columns")


def _vector(
    plan: QuantizedPackPlan, nest: MoveNest, block: Part, line: Expr, lines: int
) -> Iterator[NestNode]:
    """Yield the calls that pack a block of K for a vector of columns."""
    form = plan.format
    number = div(block.at("kb"), form.block)
    others = {"sums": plan.sums.place(line, number)} if form.sums else {}
    if form.sums:
        yield nest.call(partial(_start, start=plan.start, lines=lines), line, ZERO, **others)
    for part in cut(block.size, plan.depth):
        run = _run(plan, part)
        rows = number * form.lines(plan.groups) + div(part.at("kp"), plan.unit) * form.lines(
            form.fields
        )
        call = nest.call(
            partial(_fields, plan=plan, run=run, lines=lines),
            line,
            block.at("kb") + part.at("kp"),
            out=plan.elements.made.place(line, rows * form.group),
            **others,
        )
        yield from repeated("kp", part.count, (call,), f"{run.depth} of K")


@dataclass(frozen=True, slots=True)
class _Run:
    """The ``groups`` K groups of a block from number ``at`` on: ``depth`` elements of B."""

    at: int
    groups: int
    depth: int


def _run(plan: QuantizedPackPlan, part: Part) -> _Run:
    """Return the run of K groups whose bytes hold the elements of ``part``."""
    at = (value(part.start) or 0) // plan.format.group
    whole = -(-part.units // plan.unit) * plan.format.fields
    return _Run(at, min(whole, plan.groups - at), part.units)


def _start(tile: MoveTile, start: int, lines: int) -> str:
    """Store the start values of the sums of ``lines`` columns; return the tile's name."""
    register, active = tile.emitter.fresh("start", "s32"), tile.active("s32", lines)
    tile.emitter.add(Splat(register, start), Store(Address("sums", ZERO), register, active))
    return f"start_{lines}"


def _fields(tile: MoveTile, plan: QuantizedPackPlan, run: _Run, lines: int) -> str:
    """Pack elements of ``lines`` columns into shared bytes; return the tile's name."""
    elements = tile.read_elements(0, lines, run.depth)
    if plan.format.sums:
        elements = _summed(tile, plan, lines, elements)
    made = _bytes(tile, plan, run, elements)
    for _ in tile.writing_elements(0, lines, len(made), made):
        pass
    layout = plan.format.lines(run.groups) * plan.format.group
    return f"pack_{lines}x{run.depth}_in_{layout}"


def _summed(
    tile: MoveTile, plan: QuantizedPackPlan, lines: int, elements: Iterable[Element]
) -> Iterator[Element]:
    """Yield ``elements`` unchanged, and add them to the sums of ``lines`` columns."""
    values, total = plan.spec.type.stored.integers, cast(Element, 0)
    for element in elements:
        number = look_up(tile.builder, element, values) if values else element
        total = tile.builder("add", total, number)
        yield element
    tile.add_to_sums(total, 0, lines)


def _bytes(
    tile: MoveTile, plan: QuantizedPackPlan, run: _Run, elements: Iterable[Element]
) -> list[Element]:
    """Return the bytes of each column that hold ``elements``."""
    form, b = plan.format, tile.builder
    first = form.lines(run.at)
    made: list[Element] = [0] * ((form.lines(run.at + run.groups) - first) * form.group)
    for k, element in enumerate(elements):
        group, inside = divmod(k, form.group)
        for number, plane in enumerate(form.planes):
            row, field = form.place(run.at + group, number)
            bits = b("ushr", element, plane.up) if plane.up else element
            bits = b("and", bits, (1 << plane.bits) - 1) if len(form.planes) > 1 else bits
            bits = b("shl", bits, plane.bits * field) if field else bits
            place = (row - first) * form.group + inside
            before = made[place]
            made[place] = b("or", before, bits) if isinstance(before, Value) else bits
    return made
