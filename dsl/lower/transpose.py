"""The program of a transposition: tiles of blocks, the grid of tiles, and the in-place exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from sympy import Expr

from tilewright.ir.dataflow import prune, stored_in_parts, without_idle_masks
from tilewright.ir.interleaving import transpose
from tilewright.ir.nest import Argument, BlockLoop, Call, Name, NestNode, Program, WhenSame
from tilewright.ir.ops import (
    Load,
    MakeMask,
    Op,
    Parameter,
    Store,
    TileProgram,
)
from tilewright.ir.values import Active, Address, MaskRegister, Register
from tilewright.plan.routines.copy import Layout, turning
from tilewright.plan.routines.transpose import Block, TransposePlan
from tilewright.plan.tiling.parts import Part, cut
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ONE, ZERO, linear, slots, symbol

from .move_tile import MoveTile

Role = Literal["in", "out"]
Maker = Callable[[TransposePlan, int, int], TileProgram]


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


def _small(plan: TransposePlan, square: int | None = None) -> MoveTile:
    """The tile of a matrix of elements of 8 or 16 bits: words of them are transposed."""
    leading = plan.operands["x"].strides["rows"], plan.operands["out"].strides["cols"]
    source = Layout(Name("x"), plan.element, leading[0])
    made = Layout(Name("out"), plan.element, leading[1], along=True)
    return MoveTile(turning(plan.target, source, made, plan.slots, square))


def _move(plan: TransposePlan, rows: int, cols: int) -> TileProgram:
    """Return the program that transposes a tile of x to its place in out."""
    if ITEMSIZE[plan.element] < 4:
        tile = _small(plan)
        tile.block(cols, rows)
        return tile.program(f"move_{rows}x{cols}")
    body = _Body(plan)
    for block in plan.cover(rows, cols).blocks:
        body.store("out", block.flipped, body.turned(block, body.load("x", block)))
    return body.program(f"move_{rows}x{cols}", (("x", "in"), ("out", "out")))


def _turn(plan: TransposePlan, rows: int, cols: int) -> TileProgram:
    """Return the program that transposes a square tile of out in place."""
    if ITEMSIZE[plan.element] < 4:
        tile = _small(plan, plan.square)
        tile.exchange((cols, rows), "out", "out")
        return tile.program(f"turn_{rows}x{cols}")
    covered, body = plan.square_cover(rows), _Body(plan)
    for block in covered.diagonal.blocks:
        body.store("out", block.flipped, body.turned(block, body.load("out", block)))
    for block in covered.above.blocks:
        body.exchange("out", block, "out")
    return body.program(f"turn_{rows}x{cols}", (("out", "out"),))


def _swap(plan: TransposePlan, rows: int, cols: int) -> TileProgram:
    """Return the program that exchanges two tiles of out, transposing both."""
    if ITEMSIZE[plan.element] < 4:
        tile = _small(plan, plan.square)
        tile.exchange((cols, rows), "one", "other")
        return tile.program(f"swap_{rows}x{cols}")
    body = _Body(plan)
    for block in plan.cover(rows, cols).blocks:
        body.exchange("one", block, "other")
    return body.program(f"swap_{rows}x{cols}", (("one", "out"), ("other", "out")))


class _Body:
    """Collects a tile's operations, block after block."""

    def __init__(self, plan: TransposePlan) -> None:
        self.plan = plan
        self.ops: list[Op] = []
        self.masks: set[str] = set()
        self.networks = 0

    def load(self, pointer: str, block: Block) -> list[Register]:
        """Load the rows of a block."""
        return [self._load(pointer, block, row) for row in range(block.rows)]

    def turned(self, block: Block, rows: list[Register]) -> list[Register]:
        """Transpose the rows of a block in registers."""
        self.networks += 1
        steps, result = transpose(self.plan.target, rows, block.vector.lanes, f"t{self.networks}_")
        self.ops += prune(steps, result[: block.cols])
        return result[: block.cols]

    def store(self, pointer: str, block: Block, rows: list[Register]) -> None:
        """Store the rows of a block."""
        for row, register in enumerate(rows):
            self._store(pointer, block, row, register)

    def exchange(self, pointer: str, block: Block, other: str) -> None:
        """Exchange a block and its mirror image; a row of the image is read just before it is
        overwritten.
        """
        mirror, rows = block.flipped, []
        for row, register in enumerate(self.turned(block, self.load(pointer, block))):
            rows.append(self._load(other, mirror, row))
            self._store(other, mirror, row, register)
        self.store(pointer, block, self.turned(mirror, rows))

    def program(self, name: str, pointers: tuple[tuple[str, Role], ...]) -> TileProgram:
        """Return the tile's program, with the run-time sizes it depends on."""
        accesses = [op for op in self.ops if isinstance(op, (Load, Store))]
        used = frozenset[str]().union(*(slots(op.address.offset) for op in accesses))
        parameters = [Parameter(pointer, role) for pointer, role in pointers]
        parameters += [Parameter(slot, "size") for slot in self.plan.slots if slot in used]
        vectors = dict.fromkeys(op.src.vector.name for op in accesses if isinstance(op, Store))
        return TileProgram(
            name=name,
            element=self.plan.element,
            parameters=tuple(parameters),
            body=without_idle_masks(tuple(stored_in_parts(self.ops))),
            end=(),
            summary=f"{self.networks} blocks: {', '.join(vectors)}"
            if self.networks > 1
            else f"one block: {', '.join(vectors)}",
        )

    def _load(self, pointer: str, block: Block, row: int) -> Register:
        active = self._active(block)
        name = f"{pointer}{block.row + row}_{block.col}"
        register = Register(name, block.vector)
        self.ops.append(Load(register, self._address(pointer, block, row), active))
        return register

    def _store(self, pointer: str, block: Block, row: int, register: Register) -> None:
        active = self._active(block)
        self.ops.append(Store(self._address(pointer, block, row), register, active))

    def _address(self, pointer: str, block: Block, row: int) -> Address:
        operands = self.plan.operands
        leading = (
            operands["x"].strides["rows"] if pointer == "x" else operands["out"].strides["cols"]
        )
        return Address(pointer, linear(((block.row + row, leading), (block.col, ONE))))

    def _active(self, block: Block) -> Active:
        """Return the active lanes of a block's rows: None for all, a mask, or a constant number."""
        vector, count = block.vector, block.cols
        if count == vector.lanes:
            return None
        if vector.mask is None:
            return count
        mask = MaskRegister(f"{vector.name}_{count}", vector, count * ONE)
        if mask.name not in self.masks:
            self.masks.add(mask.name)
            self.ops.append(MakeMask(mask))
        return mask
