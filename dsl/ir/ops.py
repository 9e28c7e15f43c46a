"""Define the operations of tile programs, which templates write as C. ``Op`` is any of them.

Addresses count elements. A field's annotation says how the operation uses the field (``nodes.py``).
``counts`` is the counter that the operation increases. Accesses to memory are counted separately.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from sympy import Expr, Integer

from tilewright.isa.vector import MulAdd, Several, Vector

from .nodes import Body, CounterName, Hints, PointerName, Reads, Sizes, Updates, Writes
from .values import (
    Access,
    Active,
    Address,
    Constant,
    Counted,
    MaskRegister,
    MatrixRegister,
    Operation,
    Register,
    alone,
    count_of,
)

Op: TypeAlias = Operation


@dataclass(frozen=True, slots=True)
class Point(Operation):
    """Define a pointer: ``pointer = base + offset``. Stores may use it if ``written``."""

    kind: ClassVar[str] = "point"
    pointer: Writes[PointerName]
    base: Reads[PointerName]
    offset: Sizes[Expr]
    element: str
    written: bool = False


@dataclass(frozen=True, slots=True)
class PointBatch(Operation):
    """Define a pointer: ``offset`` elements after matrix ``index`` in the batch of ``operand``."""

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
    """Advance a pointer by ``step`` elements: ``pointer += step``."""

    kind: ClassVar[str] = "advance"
    pointer: Updates[PointerName]
    step: Sizes[Expr]


@dataclass(frozen=True, slots=True)
class MakeMask(Operation):
    """Make a mask that later operations use."""

    kind: ClassVar[str] = "make_mask"
    mask: Writes[MaskRegister]


@dataclass(frozen=True, slots=True)
class Zero(Operation):
    """Set all lanes of ``dst`` to 0."""

    kind: ClassVar[str] = "zero"
    dst: Writes[Register]


@dataclass(frozen=True, slots=True)
class Load(Operation):
    """Load the ``active`` lanes of ``dst`` from memory; the other lanes become 0.

    Elements in memory have type ``memory`` ("": the register's). With a ``group``, each lane holds
    the bits of that many elements, and ``active`` counts elements. A load that the vector lacks is
    done through a stack buffer (``access.py``). With ``loose``, the other lanes may hold anything.
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
        """The mask that the load uses; None without one, or if the target lacks such a load."""
        return self.active if isinstance(self.active, MaskRegister) and self.spelling else None

    def accesses(self) -> Iterator[Access]:
        """Yield the access to the elements that are loaded."""
        yield Access("loads", self.element, self.count)

    @property
    def element(self) -> str:
        """The type of the elements in memory."""
        return self.memory or self.dst.vector.element

    @property
    def count(self) -> Expr:
        """The number of elements that the load reads."""
        return count_of(self.active, self.dst, self.group)

    @property
    def spelling(self) -> str:
        """The C expression for this load; "" if the target has no such load."""
        lanes = alone(self.active)
        return self.dst.vector.loading(self.memory, self.group, lanes, loose=self.loose)

    @property
    def seen_as(self) -> str:
        """The type that moves a group of elements at once, for example s32; "" without groups."""
        return self.dst.vector.seen_as(self.memory, self.group)


@dataclass(frozen=True, slots=True)
class LoadSeveral(Operation):
    """Load several whole vectors, which are adjacent in memory, by one instruction."""

    kind: ClassVar[str] = "load_several"
    dst: Writes[tuple[Register, ...]]
    address: Reads[Address]

    def accesses(self) -> Iterator[Access]:
        """Yield the access to the elements of all loaded vectors."""
        vector = self.dst[0].vector
        yield Access("loads", vector.element, Integer(len(self.dst) * vector.lanes))

    @property
    def several(self) -> Several | None:
        """The instruction that loads as many vectors as ``dst`` has; None if there is none."""
        return next((s for s in self.dst[0].vector.several if s.count == len(self.dst)), None)


@dataclass(frozen=True, slots=True)
class Broadcast(Operation):
    """Broadcast one element, or a group of elements, to all lanes.

    The ``group`` elements form one factor, or repeat until they fill the register. ``existing`` of
    them are read (None: all), the others are 0. ``memory`` is their type. With ``begins``, later
    operations add to the register.
    """

    kind: ClassVar[str] = "broadcast"
    dst: Writes[Register]
    address: Reads[Address]
    group: int = 1
    existing: Sizes[Expr | None] = None
    memory: str = ""
    begins: bool = False

    def accesses(self) -> Iterator[Access]:
        """Yield the access to the elements of the group that exist in memory."""
        count = Integer(self.group) if self.existing is None else self.existing
        yield Access("broadcasts", self.element, count)

    @property
    def element(self) -> str:
        """The type of the elements in memory."""
        return self.memory or self.dst.vector.element

    @property
    def spelling(self) -> str:
        """The C expression for this broadcast; "" if the target has no such broadcast."""
        return self.dst.vector.broadcasting(self.memory, self.group)

    @property
    def picked(self) -> bool:
        """True if ``dst`` repeats several elements, of which each multiply-add selects one."""
        vector = self.dst.vector
        return self.element == vector.element and bool(vector.repeating(self.element, self.group))

    @property
    def constant(self) -> bool:
        """True unless later operations change the register, or select single lanes of it."""
        return not (self.picked or self.begins)


@dataclass(frozen=True, slots=True)
class Pick(Constant):
    """Set all lanes to element ``lane`` of ``src``, which repeats a few elements of ``memory``."""

    kind: ClassVar[str] = "pick"
    dst: Writes[Register]
    src: Reads[Register]
    lane: int
    memory: str


@dataclass(frozen=True, slots=True)
class Splat(Constant):
    """Set all lanes of ``dst`` to a number: a literal, a parameter, a size, or a scalar register.

    If lanes hold a ``group`` of elements, a literal is the bits of the group. ``label`` is the
    literal's name in C, "" for the register's name.
    """

    kind: ClassVar[str] = "splat"
    dst: Writes[Register]
    source: Reads[Sizes[float | str | Expr | Register]]
    group: int = 0
    label: str = ""


@dataclass(frozen=True, slots=True)
class MultiplyAdd(Constant):
    """Multiply and add: ``acc += x * y``. y is a register, a lane of one, or a number in memory.

    If a separate instruction adds the products to ``acc``, register ``product`` holds them first.
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
        """Yield the access to y if the instruction reads y from memory."""
        if isinstance(self.y, Address):
            element = self.op.y or self.acc.vector.element
            yield Access("broadcasts", element, Integer(self.op.depth))


@dataclass(frozen=True, slots=True)
class ZeroMatrix(Operation):
    """Set all elements of the matrix register ``dst`` to 0."""

    kind: ClassVar[str] = "zero_matrix"
    dst: Writes[MatrixRegister]


@dataclass(frozen=True, slots=True)
class LoadMatrix(Operation):
    """Load the rows of a matrix register, which are ``stride`` elements apart in memory."""

    kind: ClassVar[str] = "load_matrix"
    dst: Writes[MatrixRegister]
    address: Reads[Address]
    stride: Sizes[Expr]

    def accesses(self) -> Iterator[Access]:
        """Yield the access to all rows of the matrix register."""
        yield Access("loads", self.dst.element, self.dst.columns * self.dst.rows)


@dataclass(frozen=True, slots=True)
class StoreMatrix(Operation):
    """Store the rows of a matrix register, ``stride`` elements apart in memory."""

    kind: ClassVar[str] = "store_matrix"
    address: Writes[Address]
    src: Reads[MatrixRegister]
    stride: Sizes[Expr]

    def accesses(self) -> Iterator[Access]:
        """Yield the access to all rows of the matrix register."""
        yield Access("stores", self.src.element, self.src.columns * self.src.rows)


@dataclass(frozen=True, slots=True)
class MultiplyMatrices(Operation):
    """Multiply matrix registers: ``acc += y x``. x has a row for each group of K."""

    kind: ClassVar[str] = "multiply_matrices"
    counts: ClassVar[Counted] = "multiply_adds"
    op: MulAdd
    acc: Updates[MatrixRegister]
    x: Reads[MatrixRegister]
    y: Reads[MatrixRegister]


@dataclass(frozen=True, slots=True)
class MultiplyBlock(Operation):
    """Multiply vectors: ``acc += y x``. y has a K group for each row of acc, x for each column."""

    kind: ClassVar[str] = "multiply_block"
    counts: ClassVar[Counted] = "multiply_adds"
    op: MulAdd
    acc: Updates[MatrixRegister]
    x: Reads[Register]
    y: Reads[Register]


@dataclass(frozen=True, slots=True)
class ReadRows(Operation):
    """Copy rows (or ``columns``) of a matrix register, from ``first`` on, to vector registers."""

    kind: ClassVar[str] = "read_rows"
    dst: Writes[tuple[Register, ...]]
    src: Reads[MatrixRegister]
    first: Sizes[Expr]
    columns: bool = False


@dataclass(frozen=True, slots=True)
class WriteRow(Operation):
    """Copy vector register ``src`` to one row of matrix register ``dst``; other rows stay."""

    kind: ClassVar[str] = "write_row"
    dst: Writes[MatrixRegister]
    src: Reads[Register]
    row: int


@dataclass(frozen=True, slots=True)
class Interleave(Operation):
    """Interleave blocks of ``block`` elements of x and y: the even, or if ``odd`` the odd ones."""

    kind: ClassVar[str] = "interleave"
    dst: Writes[Register]
    x: Reads[Register]
    y: Reads[Register]
    block: int  # if this is all of x, ``dst`` is twice as wide: x, then y
    odd: bool
    bits: int = 0  # instead, units of so many bits: those of each ``Vector.zips``


@dataclass(frozen=True, slots=True)
class Unzip(Operation):
    """Concatenate blocks of ``block`` elements: the even, or if ``odd`` the odd, of x, then y."""

    kind: ClassVar[str] = "unzip"
    dst: Writes[Register]
    x: Reads[Register]
    y: Reads[Register]
    block: int
    odd: bool


@dataclass(frozen=True, slots=True)
class Unpack(Constant):
    """Extract a low-bit number of type ``type`` from the low byte of each lane.

    A byte holds several numbers; ``index`` 0 is the one in the lowest bits. The number is shifted
    left by ``up`` bits. With a ``table``, the number is an index into this table.
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
        """The key of the operation's C code in ``Vector.fields``, for example ``"u4"``."""
        return f"{self.type}<<{self.up}" if self.up else self.type


@dataclass(frozen=True, slots=True)
class Join(Constant):
    """Combine the bits of two registers: ``dst = x | y``. They have no set bits in common."""

    kind: ClassVar[str] = "join"
    counts: ClassVar[Counted] = "elementary_operations"
    dst: Writes[Register]
    x: Reads[Register]
    y: Reads[Register]


@dataclass(frozen=True, slots=True)
class Table(Constant):
    """Fill ``dst`` with the table ``numbers``, repeated until the register is full."""

    kind: ClassVar[str] = "table"
    dst: Writes[Register]
    numbers: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FillLanes(Constant):
    """Take the first ``active`` lanes from ``src``, and the other lanes from ``other``."""

    kind: ClassVar[str] = "fill_lanes"
    dst: Writes[Register]
    src: Reads[Register]
    other: Reads[Register]
    active: Sizes[Active]

    @property
    def masked_by(self) -> MaskRegister | None:
        """The mask that selects the lanes; None if their number is given."""
        return self.active if isinstance(self.active, MaskRegister) else None


@dataclass(frozen=True, slots=True)
class TakeLanes(Operation):
    """Take lanes ``first`` to ``2 * first - 1`` of ``src``, or lane 0 if ``dst`` is a scalar."""

    kind: ClassVar[str] = "take_lanes"
    dst: Writes[Register]
    src: Reads[Register]
    first: int = 0  # the lanes after those that are taken may hold anything


@dataclass(frozen=True, slots=True)
class SumLanes(Operation):
    """Sum the lanes of ``src`` into the scalar ``dst``."""

    kind: ClassVar[str] = "sum_lanes"
    dst: Writes[Register]
    src: Reads[Register]


@dataclass(frozen=True, slots=True)
class Store(Operation):
    """Store ``active`` lanes of ``src`` as elements of type ``memory``; fields as in ``Load``."""

    kind: ClassVar[str] = "store"
    address: Writes[Address]
    src: Reads[Register]
    active: Sizes[Active] = None
    memory: str = ""
    group: int = 0
    past: Sizes[Expr | None] = None  # if ``past`` > 0, aligned stores bypass the caches

    @property
    def masked_by(self) -> MaskRegister | None:
        """The mask that the store uses; None without one, or if the target lacks such a store."""
        return self.active if isinstance(self.active, MaskRegister) and self.spelling else None

    def accesses(self) -> Iterator[Access]:
        """Yield the access to the elements that are stored."""
        yield Access("stores", self.element, self.count)

    @property
    def element(self) -> str:
        """The type of the elements in memory."""
        return self.memory or self.src.vector.element

    @property
    def count(self) -> Expr:
        """The number of elements that the store writes."""
        return count_of(self.active, self.src, self.group)

    @property
    def spelling(self) -> str:
        """The C statement for this store; "" if the target has no such store."""
        return self.src.vector.storing(self.memory, self.group, alone(self.active))

    @property
    def seen_as(self) -> str:
        """The type that moves a group of elements at once, for example s32; "" without groups."""
        return self.src.vector.seen_as(self.memory, self.group)


@dataclass(frozen=True, slots=True)
class Copy(Operation):
    """Copy ``count`` elements from ``source`` to ``address`` by ``memcpy`` or function ``by``."""

    kind: ClassVar[str] = "copy"
    address: Writes[Address]
    source: Reads[Address]
    element: str
    count: Sizes[Expr]
    by: str = ""

    def accesses(self) -> Iterator[Access]:
        """Yield two accesses: the elements are read, and then written."""
        yield Access("loads", self.element, self.count)
        yield Access("stores", self.element, self.count)


@dataclass(frozen=True, slots=True)
class Apply(Operation):
    """Apply an elementary operation: ``dst = fn(args)``. An int argument is a constant in C."""

    kind: ClassVar[str] = "apply"
    counts: ClassVar[Counted] = "elementary_operations"
    dst: Writes[Register]
    fn: str
    args: Reads[tuple[Register | int, ...]]
    begins: bool = False  # later operations may change ``dst``
    again: bool = False  # ``dst`` has a value, which this one replaces

    @property
    def vector(self) -> Vector:
        """The vector type of the operands; the first operand of ``select`` may have another."""
        return next(arg.vector for arg in reversed(self.args) if isinstance(arg, Register))

    @property
    def constant(self) -> bool:
        """True if C may declare ``dst`` const; clang computes operands of a const scalar twice."""
        changed = self.begins or self.again or self.dst in self.args
        return self.dst.vector.lanes > 1 and not changed


@dataclass(frozen=True, slots=True)
class StackBuffer(Operation):
    """Define a buffer of ``elements`` elements on the stack, filled with 0 if ``zeros``."""

    kind: ClassVar[str] = "stack_buffer"
    name: Writes[PointerName]
    element: str
    elements: int
    zeros: bool = False


@dataclass(frozen=True, slots=True)
class Keep(Operation):
    """A hint to C compilers to keep ``acc``, and ``operands`` that are used again, in registers."""

    kind: ClassVar[str] = "keep"
    acc: Reads[Register]
    operands: Reads[tuple[Register, ...]]


@dataclass(frozen=True, slots=True)
class Hide(Operation):
    """A hint to C compilers not to compute addresses from ``pointer`` in advance."""

    kind: ClassVar[str] = "hide"
    pointer: Updates[PointerName]


@dataclass(frozen=True, slots=True)
class Prefetch(Operation):
    """A hint to the CPU that the memory at ``address`` will be read soon."""

    kind: ClassVar[str] = "prefetch"
    address: Hints[Address]


@dataclass(frozen=True, slots=True)
class Note(Operation):
    """A comment in the C code about the operations that follow."""

    kind: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True, slots=True)
class Loop(Operation):
    """Repeat ``body`` ``trips`` times; ``counter`` counts from 0."""

    kind: ClassVar[str] = "loop"
    counter: Writes[CounterName]
    trips: Sizes[Expr]
    body: Body["tuple[Op, ...]"]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a tile program. Others may read what is written to a ``shared`` one.

    ``in`` and ``out`` point to elements of type ``element`` ("": the tile's own), ``table`` to such
    pointers, ``offsets`` to int64 offsets. ``at`` counts elements. Others are the kernel's numbers.
    """

    name: str
    role: Literal["in", "out", "table", "offsets", "at", "size", "scalar"]
    element: str = ""
    shared: bool = False


@dataclass(frozen=True, slots=True)
class TileProgram:
    """The program of a register tile: ``body`` sums the products, ``end`` updates the matrix C.

    ``mr`` and ``nr`` are the tile's rows and columns of C. ``accumulators`` are the names of its
    registers of sums, arranged as in C. ``planned`` is its number in the plan. These are empty if
    the tile computes no part of C. ``numbers`` gives matrix registers their numbers in C code.
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
