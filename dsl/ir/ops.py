"""The whole language between plan and templates: tile operations, and the nest of blocks.

A tile program computes one register tile: operations on registers, and loops over the batch, K or
lines. All nodes are immutable; ``kind`` is what templates dispatch on. Addresses are in elements.

A field says what the operation does with it (``nodes.py``), or is a property of the operation.
``counts`` is what it counts as beside its accesses. (Annotations are objects here, not text.)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from sympy import Expr, Integer

from tilewright.isa.vector import MulAdd, Several, Vector

from .nodes import Body, CounterName, Hints, Node, PointerName, Reads, Sizes, Updates, Writes
from .values import Active, Address, MaskRegister, MatrixRegister, Register, alone, count_of

#: What is counted of operations and accesses: the names of ``Formulas`` and of the interpreter.
Counted: TypeAlias = Literal["multiply_adds", "elementary_operations"]


class Access(NamedTuple):
    """``count`` elements of type ``element`` that are read or written at one address."""

    counts: Literal["loads", "broadcasts", "stores"]
    element: str
    count: Expr


class Operation(Node):
    """What an operation says of itself where it says nothing else."""

    __slots__ = ()
    counts: ClassVar[Counted | None] = None

    @property
    def masked_by(self) -> MaskRegister | None:
        """The mask that it uses."""
        return None

    def accesses(self) -> Iterator[Access]:
        """What it touches in memory, in the order of its addresses; hints touch nothing."""
        return iter(())


@dataclass(frozen=True, slots=True)
class Point(Operation):
    """``pointer = base + offset``, which a loop will advance; ``written``: for writing, too."""

    kind: ClassVar[str] = "point"
    pointer: Writes[PointerName]
    base: Reads[PointerName]
    offset: Sizes[Expr]
    element: str
    written: bool = False


@dataclass(frozen=True, slots=True)
class PointBatch(Operation):
    """``pointer`` = element ``index`` of the batch of ``operand``, plus ``offset``."""

    kind: ClassVar[str] = "point_batch"
    pointer: Writes[PointerName]
    operand: Reads[PointerName]
    index: Reads[CounterName]
    offset: Sizes[Expr]
    element: str
    batch: str
    stride: Sizes[Expr]


@dataclass(frozen=True, slots=True)
class Advance(Operation):
    """``pointer += step``."""

    kind: ClassVar[str] = "advance"
    pointer: Updates[PointerName]
    step: Sizes[Expr]


@dataclass(frozen=True, slots=True)
class MakeMask(Operation):
    """Build a mask before its first use."""

    kind: ClassVar[str] = "make_mask"
    mask: Writes[MaskRegister]


@dataclass(frozen=True, slots=True)
class Zero(Operation):
    """All lanes 0."""

    kind: ClassVar[str] = "zero"
    dst: Writes[Register]


@dataclass(frozen=True, slots=True)
class Load(Operation):
    """``active`` lanes from memory, the others 0; from ``memory``'s type, "" the register's.

    With a ``group`` each lane holds the bits of that many elements of ``memory``, and ``active``
    counts elements. What the vector cannot load alone goes by way of the stack (``access.py``).
    ``loose``: the other lanes may hold anything, as they meet no active one and are not stored.
    """

    kind: ClassVar[str] = "load"
    dst: Writes[Register]
    address: Reads[Address]
    active: Sizes[Active] = None
    memory: str = ""
    group: int = 0
    loose: bool = False

    @property
    def masked_by(self) -> MaskRegister | None:
        """The mask that it uses, if the vector has such a load."""
        return self.active if isinstance(self.active, MaskRegister) and self.spelling else None

    def accesses(self) -> Iterator[Access]:
        """The active elements."""
        yield Access("loads", self.element, self.count)

    @property
    def element(self) -> str:
        """The type of the elements in memory."""
        return self.memory or self.dst.vector.element

    @property
    def count(self) -> Expr:
        """How many elements it touches."""
        return count_of(self.active, self.dst, self.group)

    @property
    def spelling(self) -> str:
        """The vector's expression for it; "" if there is none."""
        lanes = alone(self.active)
        return self.dst.vector.loading(self.memory, self.group, lanes, loose=self.loose)

    @property
    def seen_as(self) -> str:
        """The type as which groups are read; "" where elements are read as what they are."""
        return self.dst.vector.seen_as(self.memory, self.group)


@dataclass(frozen=True, slots=True)
class LoadSeveral(Operation):
    """Whole vectors that lie side by side in memory, by one instruction."""

    kind: ClassVar[str] = "load_several"
    dst: Writes[tuple[Register, ...]]
    address: Reads[Address]

    def accesses(self) -> Iterator[Access]:
        """All their elements."""
        vector = self.dst[0].vector
        yield Access("loads", vector.element, Integer(len(self.dst) * vector.lanes))

    @property
    def several(self) -> Several | None:
        """The vector's load of so many; None if it has none."""
        return next((s for s in self.dst[0].vector.several if s.count == len(self.dst)), None)


@dataclass(frozen=True, slots=True)
class Broadcast(Operation):
    """One element into all lanes; where ``group`` elements are one factor, or repeat, all those.

    Of them ``existing`` are read and the others 0, None for all. ``memory`` is their type.
    ``begins``: other operations add to it.
    """

    kind: ClassVar[str] = "broadcast"
    dst: Writes[Register]
    address: Reads[Address]
    group: int = 1
    existing: Sizes[Expr | None] = None
    memory: str = ""
    begins: bool = False

    def accesses(self) -> Iterator[Access]:
        """One factor, or what exists of it."""
        count = Integer(self.group) if self.existing is None else self.existing
        yield Access("broadcasts", self.element, count)

    @property
    def element(self) -> str:
        """The type of the elements in memory."""
        return self.memory or self.dst.vector.element

    @property
    def spelling(self) -> str:
        """The vector's expression for it; "" if there is none."""
        return self.dst.vector.broadcasting(self.memory, self.group)

    @property
    def picked(self) -> bool:
        """Whether it repeats elements as they are, of which multiply-adds take one."""
        vector = self.dst.vector
        return self.element == vector.element and bool(vector.repeating(self.element, self.group))


@dataclass(frozen=True, slots=True)
class Pick(Operation):
    """One ``lane`` of the elements of type ``memory`` that ``src`` repeats, into all lanes."""

    kind: ClassVar[str] = "pick"
    dst: Writes[Register]
    src: Reads[Register]
    lane: int
    memory: str


@dataclass(frozen=True, slots=True)
class Splat(Operation):
    """A literal, the run-time parameter of that name, a size, or a scalar, into all lanes.

    Where ``group`` elements are one factor the literal is the bits of all those. ``label`` is what
    readers of the C find a literal under, "" its register's name; ``cast`` converts a parameter.
    """

    kind: ClassVar[str] = "splat"
    dst: Writes[Register]
    source: Reads[Sizes[float | str | Expr | Register]]
    group: int = 0
    label: str = ""
    cast: bool = False


@dataclass(frozen=True, slots=True)
class MultiplyAdd(Operation):
    """``acc += x * y``; y is a register, a lane of one, or read from memory by the instruction.

    ``product`` is the register of the products, where they are added by an instruction of their own
    and it matters which.
    """

    kind: ClassVar[str] = "muladd"
    counts: ClassVar[Counted] = "multiply_adds"
    op: MulAdd
    acc: Updates[Register]
    x: Reads[Register]
    y: Reads[Register | Address]
    lane: int | None = None
    product: Writes[Register | None] = None

    def accesses(self) -> Iterator[Access]:
        """The factor that the instruction reads from memory."""
        if isinstance(self.y, Address):
            element = self.op.y or self.acc.vector.element
            yield Access("broadcasts", element, Integer(self.op.depth))


@dataclass(frozen=True, slots=True)
class ZeroMatrix(Operation):
    """All elements 0."""

    kind: ClassVar[str] = "zero_matrix"
    dst: Writes[MatrixRegister]


@dataclass(frozen=True, slots=True)
class LoadMatrix(Operation):
    """The rows of a register from memory, ``stride`` elements apart."""

    kind: ClassVar[str] = "load_matrix"
    dst: Writes[MatrixRegister]
    address: Reads[Address]
    stride: Sizes[Expr]

    def accesses(self) -> Iterator[Access]:
        """The rows that are in use."""
        yield Access("loads", self.dst.element, self.dst.columns * self.dst.rows)


@dataclass(frozen=True, slots=True)
class StoreMatrix(Operation):
    """The rows of a register to memory, ``stride`` elements apart."""

    kind: ClassVar[str] = "store_matrix"
    address: Writes[Address]
    src: Reads[MatrixRegister]
    stride: Sizes[Expr]

    def accesses(self) -> Iterator[Access]:
        """The rows that are in use."""
        yield Access("stores", self.src.element, self.src.columns * self.src.rows)


@dataclass(frozen=True, slots=True)
class MultiplyMatrices(Operation):
    """``acc += y x``: a row of y for each row of acc, a row of x for each group of y's."""

    kind: ClassVar[str] = "multiply_matrices"
    counts: ClassVar[Counted] = "multiply_adds"
    op: MulAdd
    acc: Updates[MatrixRegister]
    x: Reads[MatrixRegister]
    y: Reads[MatrixRegister]


@dataclass(frozen=True, slots=True)
class MultiplyBlock(Operation):
    """``acc += y x``: of vectors, a group of y for each row of acc, one of x for each column."""

    kind: ClassVar[str] = "multiply_block"
    counts: ClassVar[Counted] = "multiply_adds"
    op: MulAdd
    acc: Updates[MatrixRegister]
    x: Reads[Register]
    y: Reads[Register]


@dataclass(frozen=True, slots=True)
class ReadRows(Operation):
    """``dst`` = as many rows of ``src``, from row ``first`` on, or with ``columns`` columns."""

    kind: ClassVar[str] = "read_rows"
    dst: Writes[tuple[Register, ...]]
    src: Reads[MatrixRegister]
    first: Sizes[Expr]
    columns: bool = False


@dataclass(frozen=True, slots=True)
class WriteRow(Operation):
    """Row ``row`` of ``dst`` = ``src``; the other rows stay as they are."""

    kind: ClassVar[str] = "write_row"
    dst: Writes[MatrixRegister]
    src: Reads[Register]
    row: int


@dataclass(frozen=True, slots=True)
class Add(Operation):
    """``dst = x + y``."""

    kind: ClassVar[str] = "add"
    dst: Writes[Register]
    x: Reads[Register]
    y: Reads[Register]


@dataclass(frozen=True, slots=True)
class Multiply(Operation):
    """``dst = x * y``."""

    kind: ClassVar[str] = "mul"
    dst: Writes[Register]
    x: Reads[Register]
    y: Reads[Register]


@dataclass(frozen=True, slots=True)
class Interleave(Operation):
    """Half a 2x2 block transposition: the even or odd blocks of ``block`` elements of x and y."""

    kind: ClassVar[str] = "interleave"
    dst: Writes[Register]
    x: Reads[Register]
    y: Reads[Register]
    block: int
    odd: bool


@dataclass(frozen=True, slots=True)
class Unzip(Operation):
    """The even or odd blocks of ``block`` elements of x, and then those of y."""

    kind: ClassVar[str] = "unzip"
    dst: Writes[Register]
    x: Reads[Register]
    y: Reads[Register]
    block: int
    odd: bool


@dataclass(frozen=True, slots=True)
class Unpack(Operation):
    """``dst`` = the numbers of ``type`` in field ``index`` of the low byte of each lane.

    They are moved ``up`` so many bits; of a ``table`` those are found that they count.
    """

    kind: ClassVar[str] = "unpack"
    counts: ClassVar[Counted] = "elementary_operations"
    dst: Writes[Register]
    src: Reads[Register]
    type: str
    index: int
    up: int = 0
    table: Reads[Register | None] = None

    @property
    def field(self) -> str:
        """What the vector calls such fields."""
        return f"{self.type}<<{self.up}" if self.up else self.type


@dataclass(frozen=True, slots=True)
class Join(Operation):
    """``dst`` = the bits of ``x`` and of ``y``, integers that have none in common."""

    kind: ClassVar[str] = "join"
    counts: ClassVar[Counted] = "elementary_operations"
    dst: Writes[Register]
    x: Reads[Register]
    y: Reads[Register]


@dataclass(frozen=True, slots=True)
class Table(Operation):
    """``dst`` = ``numbers``, one behind the other and again from the first, until it is full."""

    kind: ClassVar[str] = "table"
    dst: Writes[Register]
    numbers: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SumLanes(Operation):
    """The sum over the lanes of ``src`` into the scalar ``dst``."""

    kind: ClassVar[str] = "sum_lanes"
    dst: Writes[Register]
    src: Reads[Register]


@dataclass(frozen=True, slots=True)
class Store(Operation):
    """``active`` lanes to memory, as ``memory``'s type; ``group`` and ``active`` as in a load."""

    kind: ClassVar[str] = "store"
    address: Writes[Address]
    src: Reads[Register]
    active: Sizes[Active] = None
    memory: str = ""
    group: int = 0
    past: Sizes[Expr | None] = None  # positive: past the caches, where the address is aligned

    @property
    def masked_by(self) -> MaskRegister | None:
        """The mask it uses; a store that converts copies the lanes that there are."""
        return self.active if isinstance(self.active, MaskRegister) and self.spelling else None

    def accesses(self) -> Iterator[Access]:
        """The active elements."""
        yield Access("stores", self.element, self.count)

    @property
    def element(self) -> str:
        """The type of the elements in memory."""
        return self.memory or self.src.vector.element

    @property
    def count(self) -> Expr:
        """How many elements it touches."""
        return count_of(self.active, self.src, self.group)

    @property
    def spelling(self) -> str:
        """The vector's statement for it; "" if there is none."""
        return self.src.vector.storing(self.memory, self.group, alone(self.active))

    @property
    def seen_as(self) -> str:
        """The type as which groups are written; "" where elements are written as what they are."""
        return self.src.vector.seen_as(self.memory, self.group)


@dataclass(frozen=True, slots=True)
class Copy(Operation):
    """``count`` elements from ``source`` to ``address``: by ``memcpy``, or the function ``by``."""

    kind: ClassVar[str] = "copy"
    address: Writes[Address]
    source: Reads[Address]
    element: str
    count: Sizes[Expr]
    by: str = ""

    def accesses(self) -> Iterator[Access]:
        """The elements, read and written."""
        yield Access("loads", self.element, self.count)
        yield Access("stores", self.element, self.count)


@dataclass(frozen=True, slots=True)
class Apply(Operation):
    """``dst = fn(args)``: an elementary operation of ``vector``; an int is a constant of C."""

    kind: ClassVar[str] = "apply"
    counts: ClassVar[Counted] = "elementary_operations"
    dst: Writes[Register]
    fn: str
    args: Reads[tuple[Register | int, ...]]
    vector: Vector


@dataclass(frozen=True, slots=True)
class StackBuffer(Operation):
    """The pointer ``name`` to ``elements`` elements on the stack: zeros, or undefined values."""

    kind: ClassVar[str] = "stack_buffer"
    name: Writes[PointerName]
    element: str
    elements: int
    zeros: bool = False


@dataclass(frozen=True, slots=True)
class Keep(Operation):
    """The accumulator stays in its register, and so do ``operands``, which are used again."""

    kind: ClassVar[str] = "keep"
    acc: Reads[Register]
    operands: Reads[tuple[Register, ...]]


@dataclass(frozen=True, slots=True)
class Hide(Operation):
    """From here on only this tile knows where ``pointer`` points."""

    kind: ClassVar[str] = "hide"
    pointer: Updates[PointerName]


@dataclass(frozen=True, slots=True)
class Prefetch(Operation):
    """A hint that ``address`` will be read."""

    kind: ClassVar[str] = "prefetch"
    address: Hints[Address]


@dataclass(frozen=True, slots=True)
class Note(Operation):
    """A comment in the C: what the operations that follow compute."""

    kind: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True, slots=True)
class Loop(Operation):
    """``body`` repeated ``trips`` times; ``counter`` runs from 0."""

    kind: ClassVar[str] = "loop"
    counter: Writes[CounterName]
    trips: Sizes[Expr]
    body: Body["tuple[Op, ...]"]
    note: str = ""


Op = (
    Point | PointBatch | Advance | MakeMask | Zero | Load | Broadcast | Pick | Splat | MultiplyAdd
    | Add | Multiply | Apply | Interleave | Unzip | SumLanes | Store | Copy | StackBuffer | Keep
    | Hide | Prefetch | Note | Loop | ZeroMatrix | LoadMatrix | StoreMatrix | MultiplyMatrices
    | MultiplyBlock | ReadRows | WriteRow | Unpack | Join | Table | LoadSeveral
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tile program's parameter.

    ``role``: ``in`` and ``out`` point to elements of type ``element`` ("": the tile's own),
    ``table`` to pointers to such, ``offsets`` to int64 offsets; ``at`` is an offset in elements;
    ``size`` and ``scalar`` are the kernel's own run-time sizes and numbers.
    """

    name: str
    role: Literal["in", "out", "table", "offsets", "at", "size", "scalar"]
    element: str = ""


@dataclass(frozen=True, slots=True)
class TileProgram:
    """One register tile: ``body`` sums the products, ``end`` updates C; ``summary`` in words.

    ``numbers`` are those of the matrix registers in C. ``mr`` and ``nr`` are its rows and columns
    of C, ``accumulators`` the names of the registers that hold them, where they lie in C;
    ``planned`` is its number in the plan. None, or none, where no part of C is computed.
    """

    name: str
    element: str
    parameters: tuple[Parameter, ...]
    body: Body[tuple[Op, ...]]
    end: Body[tuple[Op, ...]]
    summary: str
    mr: Expr | None = None
    nr: Expr | None = None
    accumulators: tuple[tuple[str, ...], ...] = ()
    planned: int | None = None
    numbers: tuple[tuple[str, int], ...] = ()
