"""The nest of loops over blocks around calls of tile programs: a kernel as a whole.

As operations do, nodes say of each field what they do with it (``nodes.py``).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from sympy import Expr, Integer

from tilewright.isa.matrix_unit import MatrixUnit
from tilewright.isa.vector import Vector
from tilewright.symbolic import slots

from .nodes import (
    Body,
    CounterName,
    Node,
    Reads,
    Role,
    Sizes,
    Space,
    Writes,
    finder,
    mapped,
    rewritten,
    walk,
)
from .ops import Parameter, Store, TileProgram


@dataclass(frozen=True, slots=True)
class Name:
    """What an operand or a buffer is called in the nest.

    A kernel may have several products: ``product`` says whose B, and whose sums, it is. ``matrix``:
    the one of a batch that a ``SelectBatch`` around it chose.
    """

    text: str
    product: int = 0
    matrix: bool = False

    def __str__(self) -> str:
        """What C calls it: ``b2_packed`` is the ``b_packed`` of the second product."""
        head, mark, tail = self.text.partition("_")
        number = str(self.product + 1) if self.product else ""
        return f"{head}{number}{mark}{tail}{'_i' if self.matrix else ''}"


@dataclass(frozen=True, slots=True)
class Argument:
    """``operand + offset``, or the number ``offset`` when there is no operand.

    ``cast``: the elements are of another type there, that of the parameter.
    """

    operand: Reads[Name | None]
    offset: Sizes[Expr]
    cast: bool = False

    @property
    def symbol(self) -> str:
        """What C calls the operand, "" for a number."""
        return "" if self.operand is None else str(self.operand)


@dataclass(frozen=True, slots=True)
class Call(Node):
    """Run a tile program; sizes and scalars follow the arguments under their own names."""

    kind: ClassVar[str] = "call"
    program: str
    arguments: tuple[Argument, ...]


def passed(tile: TileProgram) -> list[Parameter]:
    """The parameters that a call has arguments for; sizes and scalars follow by their names."""
    return [p for p in tile.parameters if p.role not in ("size", "scalar")]


@dataclass(frozen=True, slots=True)
class BlockLoop(Node):
    """``for counter in range(first, trips)`` over blocks of a dimension.

    ``parallel``: trips may run at the same time; each writes elements of C of its own. ``work`` is
    what a trip then does, in vector multiply-adds; None where that follows from its tiles.
    """

    kind: ClassVar[str] = "block_loop"
    counter: Writes[CounterName]
    trips: Sizes[Expr]
    body: Body["tuple[NestNode, ...]"]
    first: int = 0
    note: str = ""
    parallel: bool = False
    work: Sizes[Expr | None] = None


@dataclass(frozen=True, slots=True)
class Selected:
    """An operand and how its batch is found: by ``stride``, by ``offsets``, or by addresses.

    Offsets count ``stride`` elements each: 1 of a flat array, those of a matrix that is packed.
    ``written``: each product of a stack has one of its own.
    """

    name: Reads[Name]
    element: str
    batch: str
    stride: Sizes[Expr]
    written: bool = False

    @property
    def offsets(self) -> str:
        """What the offsets are called: every B of a kernel has those of the first."""
        return f"{self.name.text}_offsets"

    @property
    def chosen(self) -> Name:
        """What its element is called within the body."""
        return replace(self.name, matrix=True)


@dataclass(frozen=True, slots=True)
class SelectBatch(Node):
    """Within ``body`` the operands are those of batch element ``index``."""

    kind: ClassVar[str] = "select_batch"
    index: Sizes[Expr]
    selected: tuple[Selected, ...]
    body: Body["tuple[NestNode, ...]"]


@dataclass(frozen=True, slots=True)
class Pack(Node):
    """Within ``body``, ``buffer`` holds a packed block, which ``fill`` wrote.

    It has room for ``elements``, on the stack, or ``scratch`` bytes into the scratch memory.
    """

    kind: ClassVar[str] = "pack"
    buffer: Writes[Name]
    element: str
    elements: Sizes[Expr]
    scratch: Sizes[Expr | None]
    fill: Body["tuple[NestNode, ...]"]
    body: Body["tuple[NestNode, ...]"]


@dataclass(frozen=True, slots=True)
class When(Node):
    """``body`` if ``count`` is positive, else ``otherwise``."""

    kind: ClassVar[str] = "when"
    count: Sizes[Expr]
    body: Body["tuple[NestNode, ...]"]
    otherwise: Body["tuple[NestNode, ...]"] = ()


@dataclass(frozen=True, slots=True)
class Bound(Node):
    """A size that is computed in the nest: ``value``, from sizes, counters and sizes before it."""

    kind: ClassVar[str] = "bound"
    name: Writes[CounterName]
    value: Sizes[Expr]


@dataclass(frozen=True, slots=True)
class Bind(Node):
    """Within ``body`` there are the sizes ``bound`` beside those of the call."""

    kind: ClassVar[str] = "bind"
    bound: tuple[Bound, ...]
    body: Body["tuple[NestNode, ...]"]


@dataclass(frozen=True, slots=True)
class Configuration:
    """How the registers of a matrix unit are used: rows, and bytes of a row, by their numbers."""

    unit: MatrixUnit
    shapes: Sizes[tuple[tuple[Expr, int], ...]]

    @property
    def fixed(self) -> bool:
        """Whether it is the same in every call."""
        return all(rows.is_Integer for rows, _ in self.shapes)


@dataclass(frozen=True, slots=True)
class Configure(Node):
    """From here on the registers of the matrix unit are used as configuration ``index`` says."""

    kind: ClassVar[str] = "configure"
    index: int
    configuration: Configuration


@dataclass(frozen=True, slots=True)
class WhenSame(Node):
    """``body`` if the operands ``one`` and ``other`` are one array, else ``otherwise``."""

    kind: ClassVar[str] = "when_same"
    one: Reads[Name]
    other: Reads[Name]
    body: Body["tuple[NestNode, ...]"]
    otherwise: Body["tuple[NestNode, ...]"]


NestNode = Call | BlockLoop | Bind | SelectBatch | Pack | When | WhenSame | Configure


#: The operands that a node is given, or asks for; its formulas; and the counter that it counts.
_operands = finder(Name, frozenset((Role.READS,)))
_expressions: Callable[[Node], tuple[Expr, ...]] = finder(Expr, frozenset((Role.SIZES,)))
counters = finder(Space.COUNTER, frozenset((Role.WRITES,)))


def names_used(node: NestNode) -> set[str]:
    """What C names in a node, its bodies aside: operands, offsets, scratch, sizes and counters."""
    used = {str(name) for name in _operands(node)}
    used = used.union(*(slots(expr) for expr in _expressions(node)))
    match node:
        case Bind():
            used -= {each.name for each in node.bound}
        case SelectBatch():
            used.update(each.offsets for each in node.selected if each.batch == "offsets")
        case Pack() if node.scratch is not None:
            used.add("scratch")
    return used


def defined(node: NestNode) -> dict[str, str]:
    """The operands and buffers that a node defines for its bodies, and their element types."""
    match node:
        case SelectBatch():
            return {str(each.chosen): each.element for each in node.selected}
        case Pack():
            return {str(node.buffer): node.element}
    return {}


def chosen_inputs(node: NestNode) -> set[str]:
    """The matrices that a node chooses from batches that are only read, as C calls them."""
    if not isinstance(node, SelectBatch):
        return set()
    return {str(each.chosen) for each in node.selected if not each.written}


def of_batch(
    index: Expr, selected: tuple[Selected, ...], body: tuple[NestNode, ...]
) -> SelectBatch:
    """``body``, whose calls take whole batches, for element ``index`` of those ``selected``."""
    chosen = {each.name: each.chosen for each in selected}

    def inside(node: NestNode) -> NestNode:
        taken = isinstance(node, Call)
        return mapped(node, Name, lambda name: chosen.get(name, name)) if taken else node

    return SelectBatch(index, selected, tuple(rewritten(body, inside)))


def operands_of(nodes: tuple[NestNode, ...]) -> set[Name]:
    """The operands and buffers that nodes and all inside of them are given."""
    return {name for node in walk(nodes) for name in _operands(node)}


def renamed(nodes: tuple[NestNode, ...], change: Callable[[Name], Name]) -> tuple[NestNode, ...]:
    """``nodes`` with other operands and buffers: the same tiles."""
    return mapped(nodes, Name, change)


NO_BYTES = Integer(0)


def repeated(
    counter: str, trips: Expr, body: Iterable[NestNode], note: str = ""
) -> tuple[NestNode, ...]:
    """``body`` in a loop of so many trips; as it is where there is one."""
    nodes = tuple(body)
    return nodes if trips == 1 else (BlockLoop(counter, trips, nodes, note=note),)


@dataclass(frozen=True, slots=True)
class Program:
    """All of a kernel: the nest, the tile programs it calls by name, its scratch in bytes.

    ``configurations`` are those of the matrix unit; the nest says where it changes among them, if
    one does not do for all.
    """

    nest: Body[tuple[NestNode, ...]]
    tiles: tuple[TileProgram, ...]
    scratch: Expr = NO_BYTES
    configurations: tuple[Configuration, ...] = ()

    @property
    def named(self) -> frozenset[str]:
        """What C calls the operands and buffers that the nest takes."""
        return frozenset(str(name) for name in operands_of(self.nest))

    @property
    def streaming(self) -> tuple[Vector, ...]:
        """The vectors that are stored past the caches, once for each store."""
        return tuple(op.src.vector for op in self._past_caches())

    @property
    def past(self) -> Expr:
        """Where that is positive they are; 0 where none are."""
        return next((op.past for op in self._past_caches() if op.past is not None), NO_BYTES)

    def _past_caches(self) -> Iterator[Store]:
        stores = (op for tile in self.tiles for op in walk(tile.end) if isinstance(op, Store))
        return (op for op in stores if op.past is not None)

    def tile(self, name: str) -> TileProgram:
        """The tile program called ``name``."""
        return next(tile for tile in self.tiles if tile.name == name)
