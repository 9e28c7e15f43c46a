"""The program of a transposition: tiles of blocks, the grid of tiles, and the in-place exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from sympy import Expr

from tilewright.ir.nest import Argument, BlockLoop, Call, Name, NestNode, Program, WhenSame
from tilewright.ir.ops import Store, TileProgram
from tilewright.plan.routines.copy import Layout, turning
from tilewright.plan.routines.transpose import Block, TransposePlan
from tilewright.plan.tiling.parts import Part, cut
from tilewright.symbolic import ZERO, symbol

from .move_tile import MoveTile


def transposition_program(plan: TransposePlan) -> Program:
    """Return the whole kernel: out of place, and in place if ``out`` may be ``x``."""
    tiles = _Tiles(plan)
    nest = tuple(_apart(tiles))
    if plan.square is not None:
        nest = (WhenSame(Name("out"), Name("x"), tuple(_in_place(tiles)), nest),)
    return Program(nest, tuple(tiles.programs.values()))


def grid_nest(
    plan: TransposePlan, names: tuple[Name, Name], at: tuple[Expr, Expr], prefix: str
) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """Return a transposition inside another kernel, from operand ``names[0]`` to ``names[1]``.

    ``at`` has the first element in each operand.
    """
    both = ("x", "out")
    tiles = _Tiles(
        plan, prefix, dict(zip(both, names, strict=True)), dict(zip(both, at, strict=True))
    )
    return tuple(_apart(tiles)), tuple(tiles.programs.values())


# --- the grid of tiles -------------------------------------------------------------------------


@dataclass(slots=True)
class _Tiles:
    """The tile programs made so far, each once."""

    plan: TransposePlan
    prefix: str = ""
    names: dict[str, Name] = field(default_factory=dict)
    first: dict[str, Expr] = field(default_factory=dict)
    programs: dict[str, TileProgram] = field(default_factory=dict)

    def get(
        self, make: Callable[[TransposePlan, int, int], TileProgram], part: tuple[int, int]
    ) -> str:
        program = make(self.plan, *part)
        program = replace(program, name=self.prefix + program.name)
        return self.programs.setdefault(program.name, program).name

    def at(self, name: str, down: Expr, over: Expr) -> Argument:
        """Return the element of x in row ``down`` and column ``over``, or its place in out."""
        strides = self.plan.operands[name].strides
        offset = down * strides["rows"] + over * strides["cols"]
        place = self.names.get(name, Name(name))
        return Argument(place, offset + self.first.get(name, ZERO))


def _apart(tiles: _Tiles) -> Iterator[NestNode]:
    for down, over in tiles.plan.grid():
        name = tiles.get(_move, (down.units, over.units))
        row, col = down.at("ti"), over.at("tj")
        call = Call(name, (tiles.at("x", row, col), tiles.at("out", row, col)))
        yield from _loop("tj", over, _loop("ti", down, (call,)))


def _loop(counter: str, part: Part, body: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
    if part.count == 1:
        return body
    what = {"ti": "rows", "tj": "columns"}[counter]
    return (BlockLoop(counter, part.count, body, note=f"{what} by {part.units}"),)


def _in_place(tiles: _Tiles) -> Iterator[NestNode]:
    """Yield the in-place transposition: tiles on the diagonal, and pairs of tiles below and above
    it.
    """
    assert tiles.plan.square is not None
    parts = list(cut(tiles.plan.sizes["rows"], tiles.plan.square))
    for index, part in enumerate(parts):
        size, here = part.units, part.at("ti")
        itself = Call(tiles.get(_turn, (size, size)), (tiles.at("out", here, here),))
        body: tuple[NestNode, ...] = (itself,)
        if not part.single:
            before = _exchange(tiles, (part, here), (part, part.at("tj")))
            body += (BlockLoop("tj", symbol("ti"), (before,), note="and those before"),)
        yield from _loop("ti", part, body)
        for other in parts[index + 1 :]:
            pair = _exchange(tiles, (part, here), (other, other.at("tj")))
            yield from _loop("ti", part, _loop("tj", other, (pair,)))


def _exchange(tiles: _Tiles, one: tuple[Part, Expr], other: tuple[Part, Expr]) -> NestNode:
    name = tiles.get(_swap, (one[0].size, other[0].size))
    places = tiles.at("out", other[1], one[1]), tiles.at("out", one[1], other[1])
    return Call(name, places)


# --- the tiles ---------------------------------------------------------------------------------


def _tile(plan: TransposePlan, *, inside: bool = False) -> MoveTile:
    """Return an empty tile; ``inside`` is True if it exchanges blocks of one matrix."""
    read, written = plan.operands["x"].strides["rows"], plan.operands["out"].strides["cols"]
    source = Layout(Name("x"), plan.element, written if inside else read)
    made = Layout(Name("out"), plan.element, written, along=True)
    square = plan.square if inside else None
    return MoveTile(turning(plan.target, source, made, plan.slots, square))


def _program(tile: MoveTile, name: str) -> TileProgram:
    program = tile.program(name)
    stores = (op for op in program.end if isinstance(op, Store))
    vectors = ", ".join(dict.fromkeys(op.src.vector.name for op in stores))
    blocks = f"{tile.networks} blocks" if tile.networks > 1 else "one block"
    return replace(program, summary=f"{blocks}: {vectors}")


def _blocks(plan: TransposePlan, tile: MoveTile, rows: int, cols: int) -> Iterable[Block]:
    """Return blocks that cover a tile: of words, if these have several elements."""
    return tile.squares(cols, rows) if tile.together > 1 else plan.cover(rows, cols).blocks


def _move(plan: TransposePlan, rows: int, cols: int) -> TileProgram:
    """Return the program that transposes a tile of x to its place in out."""
    tile = _tile(plan)
    tile.turn(_blocks(plan, tile, rows, cols))
    return _program(tile, f"move_{rows}x{cols}")


def _turn(plan: TransposePlan, rows: int, cols: int) -> TileProgram:
    """Return the program that transposes a square tile of out in place."""
    tile = _tile(plan, inside=True)
    if tile.together > 1:
        tile.turn(tile.squares(cols, rows), "out")
    else:
        covered = plan.square_cover(rows)
        tile.turn(covered.diagonal.blocks, "out")
        tile.exchange(covered.above.blocks, "out", "out")
    return _program(tile, f"turn_{rows}x{cols}")


def _swap(plan: TransposePlan, rows: int, cols: int) -> TileProgram:
    """Return the program that exchanges two tiles of out, transposing both."""
    tile = _tile(plan, inside=True)
    tile.exchange(_blocks(plan, tile, rows, cols), "one", "other")
    return _program(tile, f"swap_{rows}x{cols}")
