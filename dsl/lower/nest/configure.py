"""Choose the configurations of the matrix unit, and load each before the loops that need it.

Tiles share a configuration as long as the shapes of all their matrices fit the unit's registers. If
one configuration suffices for the kernel, it is loaded once. Otherwise it is loaded before each
loop that uses it. If it depends on sizes of the call, it is loaded inside the loop that runs only
if such rows exist. A network keeps one configuration: it is loaded again after each loop or
condition that needs another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sympy import Expr

from tilewright.ir.dataflow import matrices_of
from tilewright.ir.nest import (
    BlockLoop,
    Call,
    Configuration,
    Configure,
    NestNode,
    Pack,
    Program,
    When,
)
from tilewright.ir.nodes import walk, within
from tilewright.ir.ops import TileProgram
from tilewright.ir.values import MatrixRegister
from tilewright.plan.tiling.configurations import numbered as numbered_in
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import slots

Shape = tuple[Expr, int]


def configured(program: Program, *, keeps: bool = False) -> Program:
    """Return ``program`` with configurations and the numbers of its tiles' matrix registers.

    If it ``keeps`` one, that is the first that does not depend on sizes of the call.
    """
    found: list[Configuration] = []
    tiles: list[TileProgram] = []
    uses: dict[str, int] = {}
    for tile in program.tiles:
        if used := _registers(tile):
            uses[tile.name], numbers = _fit(used, found)
            tile = replace(tile, numbers=numbers)
        tiles.append(tile)
    if not found:
        return program
    nest = program.nest
    kept = next((i for i, each in enumerate(found) if each.fixed), None) if keeps else None
    if kept is not None or len(found) > 1 or not found[0].fixed or any(map(_parallel, nest)):
        nest = _Placer(found, uses, kept).place(nest, kept)[0]
    made = replace(program, nest=nest, tiles=tuple(tiles), configurations=tuple(found))
    return replace(made, kept=kept)


def _registers(tile: TileProgram) -> list[MatrixRegister]:
    """Return the matrix registers of a tile that need a configuration."""
    return [register for register in _matrices(tile) if register.unit.template]


def numbered(tile: TileProgram) -> TileProgram:
    """Return ``tile`` with numbers for its matrix registers, unless it has numbers already."""
    named = [register.name for register in _matrices(tile) if not register.unit.ctype]
    numbers = tuple((name, number) for number, name in enumerate(named))
    return tile if tile.numbers else replace(tile, numbers=numbers)


def _matrices(tile: TileProgram) -> dict[MatrixRegister, None]:
    """Return the matrix registers of a tile, each once."""
    every = (register for op in walk(tile.body + tile.end) for register in matrices_of(op))
    return dict.fromkeys(every)


def _fit(
    registers: Sequence[MatrixRegister], found: list[Configuration]
) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Return the index of a configuration for ``registers``, and their numbers.

    A known configuration is extended if possible; otherwise a new one is appended to ``found``.
    """
    unit = registers[0].unit
    shapes = [(register.rows, _row_bytes(register)) for register in registers]
    names = [register.name for register in registers]
    fixed = all(rows.is_Integer for rows, _ in shapes)
    for index, known in enumerate(found):
        numbers = numbered_in(shapes, known.shapes, unit.most)
        if numbers is not None and known.fixed == fixed:
            pairs = zip(numbers, shapes, strict=True)
            more = (shape for number, shape in pairs if number >= len(known.shapes))
            found[index] = replace(known, shapes=(*known.shapes, *more))
            return index, tuple(zip(names, numbers, strict=True))
    found.append(Configuration(unit, tuple(shapes)))
    return len(found) - 1, tuple((name, number) for number, name in enumerate(names))


def _row_bytes(register: MatrixRegister) -> int:
    return register.columns * ITEMSIZE[register.element]


def _parallel(node: NestNode) -> bool:
    return any(isinstance(each, BlockLoop) and each.parallel for each in walk((node,)))


class _Placer:
    """Inserts changes of the configuration before the nodes that need them.

    The configuration ``kept`` is loaded at the beginning and at the end of each body, unless it is
    None.
    """

    def __init__(
        self, configurations: Sequence[Configuration], uses: Mapping[str, int], kept: int | None
    ) -> None:
        self.configurations, self.uses, self.kept = configurations, uses, kept

    def place(
        self, nodes: Sequence[NestNode], loaded: int | None
    ) -> tuple[tuple[NestNode, ...], int | None]:
        """Return ``nodes`` with changes, and the configuration loaded at the end; None if it is
        unknown.
        """
        placed: list[NestNode] = []
        for node in nodes:
            needed = set(self._needed(node))
            if not needed:
                placed.append(node)
                continue
            index = needed.pop()
            if needed or _parallel(node) or self._guarded(node, index):
                placed += self._back(loaded)
                placed.append(self._within(node, loaded if self.kept is None else self.kept))
                loaded = self.kept
                continue
            if loaded != index:
                placed.append(Configure(index, self.configurations[index]))
            placed.append(node)
            loaded = index
        if self.kept is not None:
            placed += self._back(loaded)
            loaded = self.kept
        return tuple(placed), loaded

    def _back(self, loaded: int | None) -> Iterator[Configure]:
        """Yield the change back to the configuration that is kept, if another one is loaded."""
        if self.kept is not None and loaded != self.kept:
            yield Configure(self.kept, self.configurations[self.kept])

    def _needed(self, node: NestNode) -> Iterator[int]:
        for each in walk((node,)):
            if isinstance(each, Call) and each.program in self.uses:
                yield self.uses[each.program]

    def _guarded(self, node: NestNode, index: int) -> bool:
        """True if a loop or condition inside ``node`` tests sizes of the configuration."""
        rows = self.configurations[index].shapes
        depends = frozenset[str]().union(*(slots(each) for each, _ in rows))
        asked = (
            each.trips if isinstance(each, BlockLoop) else each.count
            for each in walk((node,))
            if isinstance(each, (BlockLoop, When))
        )
        return any(depends & slots(expr) for expr in asked)

    def _within(self, node: NestNode, loaded: int | None) -> NestNode:
        """Return ``node`` with changes inside. Nothing is known to be loaded when a loop body
        begins.
        """
        begin = self.kept if isinstance(node, BlockLoop) else loaded

        def placed(body: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
            nonlocal begin
            after, behind = self.place(body, begin)
            # the two bodies run one after the other
            begin = behind if isinstance(node, Pack) else begin
            return after

        return within(node, placed)
