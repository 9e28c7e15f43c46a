"""The nodes of a nest: a kernel's loops over blocks, and its calls of tile programs.

The annotation of a field says how the node uses the field's value (``nodes.py``).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from sympy import Expr, Integer

from tilewright.isa.matrix_unit import MatrixUnit
from tilewright.isa.vector import Vector
from tilewright.symbolic import slots, symbol, value

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
    """The name of an operand or a buffer in the nest.

    A kernel may have several products. ``product`` is the number of the product to which a B, or
    the sums of a B, belong. ``matrix`` is true for a matrix that a surrounding ``SelectBatch``
    chose.
    """

    text: str
    product: int = 0
    matrix: bool = False

    def __str__(self) -> str:
        """Return the name in C: ``b2_packed`` is the ``b_packed`` of the second product."""
        head, mark, tail = self.text.partition("_")
        number = str(self.product + 1) if self.product else ""
        return f"{head}{number}{mark}{tail}{'_i' if self.matrix else ''}"


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a tile call: ``operand + offset``, or the number ``offset`` without operand.

    ``cast`` is true if the operand's elements have another type than the tile's parameter.
    """

    operand: Reads[Name | None]
    offset: Sizes[Expr]
    cast: bool = False

    @property
    def symbol(self) -> str:
        """The operand's name in C, "" for a number."""
        return "" if self.operand is None else str(self.operand)


@dataclass(frozen=True, slots=True)
class Call(Node):
    """Call a tile program with ``arguments``, then with the sizes and scalars of its parameters."""

    kind: ClassVar[str] = "call"
    program: str
    arguments: tuple[Argument, ...]


def passed(tile: TileProgram) -> list[Parameter]:
    """Return the parameters of ``tile`` that a ``Call`` lists: all except sizes and scalars."""
    return [p for p in tile.parameters if p.role not in ("size", "scalar")]


@dataclass(frozen=True, slots=True)
class BlockLoop(Node):
    """A loop over blocks of a dimension: ``for counter in range(first, trips)``.

    With ``parallel``, iterations may run at the same time, and each writes its own elements of C.
    ``work`` is then the work of one iteration in vector multiply-adds; if it is None, the work of
    the iteration's tiles. ``beside`` is the number of a group, or 0. Parallel loops of one body
    that are in one group write different elements, so all their iterations may run at the same
    time. With ``split``, this also holds for the iterations of the body's first node, which is a
    parallel loop, and the rest of the body.
    """

    kind: ClassVar[str] = "block_loop"
    counter: Writes[CounterName]
    trips: Sizes[Expr]
    body: Body["tuple[NestNode, ...]"]
    first: int = 0
    note: str = ""
    parallel: bool = False
    work: Sizes[Expr | None] = None
    beside: int = 0
    split: bool = False


@dataclass(frozen=True, slots=True)
class Beside(Node):
    """Parallel loops, each possibly in a ``When``, whose iterations may all run at the same time.

    The nest gets such nodes only for the generated C code, which runs all iterations in one
    parallel region.
    """

    kind: ClassVar[str] = "beside"
    body: Body["tuple[NestNode, ...]"]


@dataclass(frozen=True, slots=True)
class Selected:
    """An operand of a batch, and how to find one of its matrices: by stride, offsets or addresses.

    An offset of 1 is ``stride`` elements: one element of a flat array, or one whole packed matrix.
    ``written`` is true for the output of a stack, which has a matrix for each product.
    """

    name: Reads[Name]
    element: str
    batch: str
    stride: Sizes[Expr]
    written: bool = False

    @property
    def offsets(self) -> str:
        """The C name of the operand's array of offsets; a second B uses those of the first."""
        return f"{self.name.text}_offsets"

    @property
    def chosen(self) -> Name:
        """The name of the selected matrix inside the body of the ``SelectBatch``."""
        return replace(self.name, matrix=True)


@dataclass(frozen=True, slots=True)
class SelectBatch(Node):
    """Run ``body`` with matrix number ``index`` of each operand that is a batch."""

    kind: ClassVar[str] = "select_batch"
    index: Sizes[Expr]
    selected: tuple[Selected, ...]
    body: Body["tuple[NestNode, ...]"]


@dataclass(frozen=True, slots=True)
class Pack(Node):
    """Write a packed block to ``buffer`` by ``fill``, then run ``body``, which reads it.

    The buffer has space for ``elements`` elements. It is on the stack, or begins ``scratch`` bytes
    after the beginning of the call's scratch memory. With ``of_worker``, it begins ``scratch``
    bytes after the beginning of the scratch memory of the thread (the worker) that runs the node.
    Such a node is in a parallel loop.
    """

    kind: ClassVar[str] = "pack"
    buffer: Writes[Name]
    element: str
    elements: Sizes[Expr]
    scratch: Sizes[Expr | None]
    fill: Body["tuple[NestNode, ...]"]
    body: Body["tuple[NestNode, ...]"]
    of_worker: bool = False

    @property
    def private(self) -> bool:
        """True if each thread has a buffer of its own: on its stack, or in its scratch memory."""
        return self.scratch is None or self.of_worker


@dataclass(frozen=True, slots=True)
class When(Node):
    """Run ``body`` if ``count`` is positive, else ``otherwise``."""

    kind: ClassVar[str] = "when"
    count: Sizes[Expr]
    body: Body["tuple[NestNode, ...]"]
    otherwise: Body["tuple[NestNode, ...]"] = ()


def when(
    count: Expr, body: tuple["NestNode", ...], otherwise: tuple["NestNode", ...] = ()
) -> tuple["NestNode", ...]:
    """Return ``body`` if ``count`` is known to be positive, ``otherwise`` if it is known not to be.

    If only the call knows, return a ``When``.
    """
    known = value(count)
    if known is None:
        return (When(count, body, otherwise),)
    return body if known > 0 else otherwise


@dataclass(frozen=True, slots=True)
class Bound(Node):
    """A size that the nest computes, for example a block's, from other sizes and loop counters."""

    kind: ClassVar[str] = "bound"
    name: Writes[CounterName]
    value: Sizes[Expr]


@dataclass(frozen=True, slots=True)
class Bind(Node):
    """Compute the sizes ``bound``, then run ``body``, which may use them."""

    kind: ClassVar[str] = "bind"
    bound: tuple[Bound, ...]
    body: Body["tuple[NestNode, ...]"]


@dataclass(frozen=True, slots=True)
class Lookup(Node):
    """Read a number from element ``at`` of ``indices``, then run ``body``, which may use it.

    The number counts from the end if it is negative, and is then limited to 0 to ``count`` - 1.
    """

    kind: ClassVar[str] = "lookup"
    name: Writes[CounterName]
    indices: Reads[Name]
    at: Sizes[Expr]
    count: Sizes[Expr]
    body: Body["tuple[NestNode, ...]"]


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration of a matrix unit: rows, and bytes of a row, that each register uses."""

    unit: MatrixUnit
    shapes: Sizes[tuple[tuple[Expr, int], ...]]

    @property
    def fixed(self) -> bool:
        """True if the configuration is the same in every call."""
        return all(rows.is_Integer for rows, _ in self.shapes)


@dataclass(frozen=True, slots=True)
class Configure(Node):
    """Load configuration ``index`` of the matrix unit, which holds until the next ``Configure``."""

    kind: ClassVar[str] = "configure"
    index: int
    configuration: Configuration


@dataclass(frozen=True, slots=True)
class WhenSame(Node):
    """Run ``body`` if operands ``one`` and ``other`` are the same array, else ``otherwise``."""

    kind: ClassVar[str] = "when_same"
    one: Reads[Name]
    other: Reads[Name]
    body: Body["tuple[NestNode, ...]"]
    otherwise: Body["tuple[NestNode, ...]"]


@dataclass(frozen=True, slots=True)
class Stamp(Node):
    """Note the time, as time number ``number`` of the call.

    Such nodes are between the stages of a kernel that is profiled.
    """

    kind: ClassVar[str] = "stamp"
    number: int


NestNode = (
    Call
    | BlockLoop
    | Beside
    | Bind
    | Lookup
    | SelectBatch
    | Pack
    | When
    | WhenSame
    | Configure
    | Stamp
)


#: Three functions that take a node. They return the operands that the node uses, the formulas in
#: its fields, and the loop counters that it defines.
_operands = finder(Name, frozenset((Role.READS,)))
_expressions: Callable[[Node], tuple[Expr, ...]] = finder(Expr, frozenset((Role.SIZES,)))
counters = finder(Space.COUNTER, frozenset((Role.WRITES,)))


def names_used(node: NestNode) -> set[str]:
    """Return the C names that a node uses outside its bodies: operands, offsets, sizes etc."""
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
    """Return the operands and buffers that a node defines for its bodies, with their types."""
    match node:
        case SelectBatch():
            return {str(each.chosen): each.element for each in node.selected}
        case Pack():
            return {str(node.buffer): node.element}
    return {}


def chosen_inputs(node: NestNode) -> set[str]:
    """Return the C names of the matrices that a node selects from batches of inputs."""
    if not isinstance(node, SelectBatch):
        return set()
    return {str(each.chosen) for each in node.selected if not each.written}


def of_batch(
    index: Expr, selected: tuple[Selected, ...], body: tuple[NestNode, ...]
) -> SelectBatch:
    """Return ``body`` in a SelectBatch, with its calls changed to take matrix number ``index``."""
    chosen = {each.name: each.chosen for each in selected}

    def inside(node: NestNode) -> NestNode:
        taken = isinstance(node, Call)
        return mapped(node, Name, lambda name: chosen.get(name, name)) if taken else node

    return SelectBatch(index, selected, tuple(rewritten(body, inside)))


def operands_of(nodes: tuple[NestNode, ...]) -> set[Name]:
    """Return the operands and buffers that nodes and their bodies use."""
    return {name for node in walk(nodes) for name in _operands(node)}


def renamed(nodes: tuple[NestNode, ...], change: Callable[[Name], Name]) -> tuple[NestNode, ...]:
    """Return ``nodes`` with each operand and buffer renamed; tile programs stay as they are."""
    return mapped(nodes, Name, change)


NO_BYTES = Integer(0)
#: In formulas of scratch memory: the number of the thread that runs an iteration of a parallel
#: loop, and the most threads that a call of the kernel uses.
WORKER, WORKERS = symbol("worker"), symbol("workers")


def repeated(
    counter: str, trips: Expr, body: Iterable[NestNode], note: str = ""
) -> tuple[NestNode, ...]:
    """Return ``body`` in a loop of ``trips`` iterations; without a loop if there is only one."""
    nodes = tuple(body)
    return nodes if trips == 1 else (BlockLoop(counter, trips, nodes, note=note),)


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel: its nest, the tile programs that the nest calls, and its scratch memory in bytes.

    ``scratch`` is the memory that all threads of a call share. ``worker_scratch`` is the memory
    that each thread has for itself; it follows the shared memory. ``configurations`` are those of
    the matrix unit. If there are several, the nest loads them by ``Configure``. ``kept`` is the
    number of one that is loaded when the program, or a thread of it, begins, and again after each
    part that loads others; None if the nest loads all of them.
    """

    nest: Body[tuple[NestNode, ...]]
    tiles: tuple[TileProgram, ...]
    scratch: Expr = NO_BYTES
    configurations: tuple[Configuration, ...] = ()
    worker_scratch: Expr = NO_BYTES
    kept: int | None = None

    @property
    def whole_scratch(self) -> Expr:
        """The scratch memory of a call in bytes. It depends on the number of threads, WORKERS."""
        return self.scratch + WORKERS * self.worker_scratch

    @property
    def stamps(self) -> int:
        """The number of times that a call notes; 0 unless the kernel is profiled."""
        return sum(isinstance(node, Stamp) for node in walk(self.nest))

    @property
    def named(self) -> frozenset[str]:
        """Names in C of the operands and buffers that the nest uses."""
        return frozenset(str(name) for name in operands_of(self.nest))

    @property
    def streaming(self) -> tuple[Vector, ...]:
        """The vectors of all stores that may bypass the caches; one entry for each store."""
        return tuple(op.src.vector for op in self._past_caches())

    @property
    def past(self) -> Expr:
        """A formula that is positive if stores bypass the caches in a call; 0 if no store may."""
        return next((op.past for op in self._past_caches() if op.past is not None), NO_BYTES)

    def _past_caches(self) -> Iterator[Store]:
        stores = (op for tile in self.tiles for op in walk(tile.end) if isinstance(op, Store))
        return (op for op in stores if op.past is not None)

    def tile(self, name: str) -> TileProgram:
        """Return the tile program called ``name``."""
        return next(tile for tile in self.tiles if tile.name == name)
