"""The nest of loops over blocks around calls of tile programs: a kernel as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from sympy import Expr, Integer

from tilewright.isa.matrix_unit import MatrixUnit

from .ops import TileProgram


@dataclass(frozen=True, slots=True)
class Argument:
    """``operand + offset``, or the number ``offset`` when there is no operand.

    ``cast``: the elements are of another type there, that of the parameter.
    """

    operand: str | None
    offset: Expr
    cast: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """Run a tile program; sizes and scalars follow the arguments under their own names."""

    kind: ClassVar[str] = "call"
    program: str
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class BlockLoop:
    """``for counter in range(first, trips)`` over blocks of a dimension.

    ``parallel``: trips may run at the same time; each writes elements of C of its own.
    """

    kind: ClassVar[str] = "block_loop"
    counter: str
    trips: Expr
    body: tuple[NestNode, ...]
    first: int = 0
    note: str = ""
    parallel: bool = False


@dataclass(frozen=True, slots=True)
class Selected:
    """An operand and how its batch is found: by ``stride``, by ``offsets``, or by addresses."""

    name: str
    element: str
    batch: str
    stride: Expr

    @property
    def offsets(self) -> str:
        """What the offsets are called: B2 has those of B."""
        return f"{self.name[0]}_offsets"

    @property
    def chosen(self) -> str:
        """What its element is called within the body."""
        return f"{self.name}_i"


@dataclass(frozen=True, slots=True)
class SelectBatch:
    """Within ``body`` the operands are those of batch element ``index``."""

    kind: ClassVar[str] = "select_batch"
    index: Expr
    selected: tuple[Selected, ...]
    body: tuple[NestNode, ...]


@dataclass(frozen=True, slots=True)
class Pack:
    """Within ``body``, ``buffer`` holds a packed block, which ``fill`` wrote.

    It has room for ``elements``, on the stack, or ``scratch`` bytes into the scratch memory.
    """

    kind: ClassVar[str] = "pack"
    buffer: str
    element: str
    elements: Expr
    scratch: Expr | None
    fill: tuple[NestNode, ...]
    body: tuple[NestNode, ...]


@dataclass(frozen=True, slots=True)
class When:
    """``body`` if ``count`` is positive, else ``otherwise``."""

    kind: ClassVar[str] = "when"
    count: Expr
    body: tuple[NestNode, ...]
    otherwise: tuple[NestNode, ...] = ()


@dataclass(frozen=True, slots=True)
class Configuration:
    """How the registers of a matrix unit are used: rows, and bytes of a row, by their numbers."""

    unit: MatrixUnit
    shapes: tuple[tuple[Expr, int], ...]

    @property
    def fixed(self) -> bool:
        """Whether it is the same in every call."""
        return all(rows.is_Integer for rows, _ in self.shapes)


@dataclass(frozen=True, slots=True)
class Configure:
    """From here on the registers of the matrix unit are used as configuration ``index`` says."""

    kind: ClassVar[str] = "configure"
    index: int
    configuration: Configuration


@dataclass(frozen=True, slots=True)
class WhenSame:
    """``body`` if the operands ``one`` and ``other`` are one array, else ``otherwise``."""

    kind: ClassVar[str] = "when_same"
    one: str
    other: str
    body: tuple[NestNode, ...]
    otherwise: tuple[NestNode, ...]


NestNode = Call | BlockLoop | SelectBatch | Pack | When | WhenSame | Configure


def inside(node: NestNode) -> tuple[NestNode, ...]:
    """The nodes of its bodies."""
    match node:
        case Pack():
            return node.fill + node.body
        case When() | WhenSame():
            return node.body + node.otherwise
        case BlockLoop() | SelectBatch():
            return node.body
        case _:
            return ()


def operands_of(nodes: tuple[NestNode, ...]) -> Iterator[str]:
    """The operands that calls are given."""
    for node in nodes:
        if isinstance(node, Call):
            yield from (argument.operand for argument in node.arguments if argument.operand)
        yield from operands_of(inside(node))


NO_BYTES = Integer(0)


@dataclass(frozen=True, slots=True)
class Program:
    """All of a kernel: the nest, the tile programs it calls by name, its scratch in bytes.

    ``configurations`` are those of the matrix unit; the nest says where it changes among them, if
    one does not do for all.
    """

    nest: tuple[NestNode, ...]
    tiles: tuple[TileProgram, ...]
    scratch: Expr = NO_BYTES
    configurations: tuple[Configuration, ...] = ()

    def tile(self, name: str) -> TileProgram:
        """The tile program called ``name``."""
        return next(tile for tile in self.tiles if tile.name == name)
