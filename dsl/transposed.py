"""A transposition's program: tiles of blocks, the grid of tiles, and the exchange in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sympy import Expr

from .program import (
    Active,
    Address,
    Argument,
    BlockLoop,
    Call,
    Load,
    MakeMask,
    MaskRegister,
    NestNode,
    Op,
    Parameter,
    Program,
    Register,
    Store,
    TileProgram,
    WhenSame,
    prune,
)
from .store import transpose
from .symbolic import ONE, ZERO, linear, slots, symbol, value
from .transposition import Block, Part, TransposePlan, parts


def transposition_program(plan: TransposePlan) -> Program:
    """The whole kernel: out of place, and in place where ``out`` may be ``x``."""
    tiles = _Tiles(plan)
    nest = tuple(_apart(tiles))
    if plan.square is not None:
        nest = (WhenSame("out", "x", tuple(_in_place(tiles)), nest),)
    return Program(nest, tuple(tiles.programs.values()))


# --- the grid of tiles -------------------------------------------------------------------------


@dataclass(slots=True)
class _Tiles:
    """The tile programs made so far, each once."""

    plan: TransposePlan
    programs: dict[str, TileProgram] = field(default_factory=dict)

    def get(self, make: Callable[[TransposePlan, int, int], TileProgram], part: tuple[int, int]) -> str:
        program = make(self.plan, *part)
        return self.programs.setdefault(program.name, program).name

    def at(self, name: str, down: Expr, over: Expr) -> Argument:
        """The element of x in row ``down`` and column ``over``, or where it goes in out."""
        strides = self.plan.operands[name].strides
        return Argument(name, down * strides["rows"] + over * strides["cols"])


def _apart(tiles: _Tiles) -> Iterator[NestNode]:
    for down, over in tiles.plan.grid():
        name = tiles.get(_move, (down.size, over.size))
        row, col = _position(down, "i"), _position(over, "j")
        call = Call(name, (tiles.at("x", row, col), tiles.at("out", row, col)))
        yield from _loop("j", over, _loop("i", down, (call,)))


def _position(part: Part, counter: str) -> Expr:
    return part.start if part.count == 1 else part.start + part.size * symbol(counter)


def _loop(counter: str, part: Part, body: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
    if part.count == 1:
        return body
    what = {"i": "rows", "j": "columns"}[counter]
    return (BlockLoop(counter, part.count, body, note=f"{what} by {part.size}"),)


def _in_place(tiles: _Tiles) -> Iterator[NestNode]:
    """Tiles of out on the diagonal by themselves, those below it with those above."""
    assert tiles.plan.square is not None
    cut = list(parts(tiles.plan.sizes["rows"], tiles.plan.square))
    for index, part in enumerate(cut):
        size, here = part.size, _position(part, "i")
        itself = Call(tiles.get(_turn, (size, size)), (tiles.at("out", here, here),))
        body: tuple[NestNode, ...] = (itself,)
        if part.count != 1:
            before = _exchange(tiles, (part, here), (part, part.start + size * symbol("j")))
            body += (BlockLoop("j", symbol("i"), (before,), note="and those before"),)
        yield from _loop("i", part, body)
        for other in cut[index + 1 :]:
            pair = _exchange(tiles, (part, here), (other, _position(other, "j")))
            yield from _loop("i", part, _loop("j", other, (pair,)))


def _exchange(tiles: _Tiles, one: tuple[Part, Expr], other: tuple[Part, Expr]) -> NestNode:
    name = tiles.get(_swap, (one[0].size, other[0].size))
    # out[col, row] is where x[row, col] goes: with rows and columns named as in x.
    upper, lower = tiles.at("out", other[1], one[1]), tiles.at("out", one[1], other[1])
    return Call(name, (upper, lower))


# --- the tiles ---------------------------------------------------------------------------------


def _move(plan: TransposePlan, rows: int, cols: int) -> TileProgram:
    """A tile of x to its place in out."""
    body = _Body(plan)
    for block in plan.cover(rows, cols).blocks:
        body.store("out", block.flipped, body.turned(block, body.load("x", block)))
    return body.program(f"move_{rows}x{cols}", (("x", "in"), ("out", "out")))


def _turn(plan: TransposePlan, rows: int, cols: int) -> TileProgram:
    """A square tile of out, in place: its blocks are exchanged as tiles are."""
    body = _Body(plan)
    for block in plan.cover(rows, cols).blocks:
        if block.row == block.col:
            body.store("out", block.flipped, body.turned(block, body.load("out", block)))
        elif block.row < block.col:
            body.exchange("out", block, "out", block.flipped)
    return body.program(f"turn_{rows}x{cols}", (("out", "out"),))


def _swap(plan: TransposePlan, rows: int, cols: int) -> TileProgram:
    """Two tiles of out that are each other's place."""
    body = _Body(plan)
    for block in plan.cover(rows, cols).blocks:
        body.exchange("upper", block, "lower", block.flipped)
    return body.program(f"swap_{rows}x{cols}", (("upper", "out"), ("lower", "out")))
