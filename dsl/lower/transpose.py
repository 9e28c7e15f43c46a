"""The program of a transposition: tiles of blocks, the grid of tiles, and the in-place exchange."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from sympy import Expr

from tilewright.ir.nest import BlockLoop, Name, NestNode, Program, WhenSame
from tilewright.ir.ops import TileProgram
from tilewright.plan.routines.copy import Layout, turning
from tilewright.plan.routines.transpose import (
    Block,
    TransposePlan,
    apart_blocks,
    square_blocks,
    turned_blocks,
)
from tilewright.plan.tiling.parts import Part, cut
from tilewright.symbolic import ZERO, symbol

from .move import MoveNest
from .move_tile import MoveTile


def transposition_program(plan: TransposePlan) -> Program:
    """Return the whole kernel: out of place, and in place if ``out`` may be ``x``."""
    tiles = _nest(plan, (Name("x"), Name("out")))
    nest = tuple(_apart(plan, tiles))
    if plan.square is not None:
        nest = (WhenSame(Name("out"), Name("x"), tuple(_in_place(plan, tiles)), nest),)
    return Program(nest, tuple(tiles.tiles.values()))


def grid_nest(
    plan: TransposePlan, names: tuple[Name, Name], at: tuple[Expr, Expr], prefix: str
) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """Return a transposition inside another kernel, from operand ``names[0]`` to ``names[1]``.

    ``at`` has the first element in each operand.
    """
    tiles = replace(_nest(plan, names), prefix=prefix, first=at)
    return tuple(_apart(plan, tiles)), tuple(tiles.tiles.values())


def _nest(plan: TransposePlan, names: tuple[Name, Name]) -> MoveNest:
    """Return the mover of x, whose columns are lines, to ``out``, with these operands."""
    read, written = plan.operands["x"].strides["rows"], plan.operands["out"].strides["cols"]
    source = Layout(names[0], plan.element, read)
    made = Layout(names[1], plan.element, written, along=True)
    return MoveNest(turning(plan.target, source, made, plan.slots))


# --- the grid of tiles -------------------------------------------------------------------------


def _apart(plan: TransposePlan, tiles: MoveNest) -> Iterator[NestNode]:
    sizes = zip((plan.sizes["rows"], plan.sizes["cols"]), plan.tile, strict=True)
    for down, over in product(*(tiles.move.parts(size, most, plan.by) for size, most in sizes)):
        move = partial(_move, rows=down.units, cols=over.units)
        call = tiles.call(move, over.at("tj"), down.at("ti"))
        yield from _loop("tj", over, _loop("ti", down, (call,)))


def _loop(counter: str, part: Part, body: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
    if part.count == 1:
        return body
    what = {"ti": "rows", "tj": "columns"}[counter]
    return (BlockLoop(counter, part.count, body, note=f"{what} by {part.units}"),)


def _in_place(plan: TransposePlan, tiles: MoveNest) -> Iterator[NestNode]:
    """Yield the in-place transposition: tiles on the diagonal, and pairs of tiles below and above
    it.
    """
    assert plan.square is not None
    move = tiles.move
    source = replace(move.source, step=move.made.step)
    move = turning(plan.target, source, move.made, plan.slots, plan.square)
    tiles = replace(tiles, move=move)
    parts = list(cut(plan.sizes["rows"], plan.square))
    for index, part in enumerate(parts):
        here = part.at("ti")
        body: tuple[NestNode, ...] = (tiles.call(partial(_turn, size=part.units), here, here),)
        if not part.single:
            before = _exchange(tiles, (part, here), (part, part.at("tj")))
            body += (BlockLoop("tj", symbol("ti"), (before,), note="and those before"),)
        yield from _loop("ti", part, body)
        for other in parts[index + 1 :]:
            pair = _exchange(tiles, (part, here), (other, other.at("tj")))
            yield from _loop("ti", part, _loop("tj", other, (pair,)))


def _exchange(tiles: MoveNest, one: tuple[Part, Expr], other: tuple[Part, Expr]) -> NestNode:
    made = tiles.move.made
    places = {"one": made.place(one[1], other[1]), "other": made.place(other[1], one[1])}
    swap = partial(_swap, rows=one[0].units, cols=other[0].units)
    return tiles.call(swap, ZERO, ZERO, **places)


# --- the tiles ---------------------------------------------------------------------------------


def _named(tile: MoveTile, name: str, blocks: Sequence[Block]) -> str:
    """Return a tile's name; its summary has the vectors that move its ``blocks``."""
    vectors = ", ".join(dict.fromkeys(block.vector.name for block in blocks))
    count = f"{tile.networks} blocks" if tile.networks > 1 else "one block"
    tile.summary = f"{count}: {vectors}"
    return name


def _move(tile: MoveTile, rows: int, cols: int) -> str:
    """Transpose a tile of x to its place in out; return the tile's name."""
    blocks = turned_blocks(tile.move, rows, cols)
    tile.turn(blocks)
    return _named(tile, f"move_{rows}x{cols}", blocks)


def _turn(tile: MoveTile, size: int) -> str:
    """Transpose a square tile of out in place; return the tile's name."""
    blocks, above = square_blocks(tile.move, size)
    tile.turn(blocks, "out")
    tile.exchange(above, "out", "out")
    return _named(tile, f"turn_{size}x{size}", (*blocks, *above))


def _swap(tile: MoveTile, rows: int, cols: int) -> str:
    """Exchange two tiles of out, transposing both; return the tile's name."""
    blocks = apart_blocks(tile.move, rows, cols)
    tile.exchange(blocks, "one", "other")
    return _named(tile, f"swap_{rows}x{cols}", blocks)
