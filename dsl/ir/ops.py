"""The whole language between plan and templates: tile operations, and the nest of blocks.

A tile program computes one register tile: straight operations on vector registers and at most
two loops (batch, K). A nest is the loops over blocks around calls of tile programs. All nodes are
immutable; ``kind`` is the name templates dispatch on. Addresses are in elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from sympy import Expr

from tilewright.isa.matrix_unit import MatrixUnit
from tilewright.isa.vector import MulAdd, Vector

# --- what operations act on ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Register:
    """A vector register seen as ``vector``."""

    name: str
    vector: Vector


@dataclass(frozen=True, slots=True)
class MatrixRegister:
    """A register of the matrix unit, in use for ``rows`` rows of ``columns`` elements."""

    name: str
    unit: MatrixUnit
    element: str
    rows: Expr
    columns: int


@dataclass(frozen=True, slots=True)
class Address:
    """``pointer + offset`` in elements."""

    pointer: str
    offset: Expr


@dataclass(frozen=True, slots=True)
class MaskRegister:
    """The predicate of the first ``active`` lanes."""

    name: str
    vector: Vector
    active: Expr


#: How much of a register an access touches: all, a number of lanes, or a mask's.
Active: TypeAlias = int | Expr | MaskRegister | None

# --- operations of a tile program ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Point:
    """``pointer = base + offset``: a pointer that the K loop will advance."""

    kind: ClassVar[str] = "point"
    pointer: str
    base: str
    offset: Expr
    element: str


@dataclass(frozen=True, slots=True)
class PointBatch:
    """``pointer`` = element ``index`` of the batch of ``operand``, plus ``offset``."""

    kind: ClassVar[str] = "point_batch"
    pointer: str
    operand: str
    index: str
    offset: Expr
    element: str
    batch: str
    stride: Expr


@dataclass(frozen=True, slots=True)
class Advance:
    """``pointer += step``."""

    kind: ClassVar[str] = "advance"
    pointer: str
    step: Expr


@dataclass(frozen=True, slots=True)
class MakeMask:
    """Build a mask before its first use."""

    kind: ClassVar[str] = "make_mask"
    mask: MaskRegister


@dataclass(frozen=True, slots=True)
class Zero:
    """All lanes 0."""

    kind: ClassVar[str] = "zero"
    dst: Register


@dataclass(frozen=True, slots=True)
class Load:
    """``active`` lanes from memory, the others 0; from ``memory``'s type, "" the register's.

    With a ``group`` each lane holds the bits of that many elements of ``memory``, and ``active``
    counts elements.
    """

    kind: ClassVar[str] = "load"
    dst: Register
    address: Address
    active: Active = None
    memory: str = ""
    group: int = 0


@dataclass(frozen=True, slots=True)
class Broadcast:
    """One element into all lanes; where ``group`` elements are one factor, or repeat, all those.

    Of them ``existing`` are read and the others 0, None for all. ``memory`` is their type.
    """

    kind: ClassVar[str] = "broadcast"
    dst: Register
    address: Address
    group: int = 1
    existing: Expr | None = None
    memory: str = ""


@dataclass(frozen=True, slots=True)
class Pick:
    """One ``lane`` of the elements of type ``memory`` that ``src`` repeats, into all lanes."""

    kind: ClassVar[str] = "pick"
    dst: Register
    src: Register
    lane: int
    memory: str


@dataclass(frozen=True, slots=True)
class Splat:
    """A literal, the run-time parameter of that name, a size, or a scalar, into all lanes.

    Where ``group`` elements are one factor the literal is the bits of all those.
    """

    kind: ClassVar[str] = "splat"
    dst: Register
    source: float | str | Expr | Register
    group: int = 0


@dataclass(frozen=True, slots=True)
class MultiplyAdd:
    """``acc += x * y``; y is a register, a lane of one, or read from memory by the instruction.

    ``product`` is the register of the products, where they are added by an instruction of their own
    and it matters which.
    """

    kind: ClassVar[str] = "muladd"
    op: MulAdd
    acc: Register
    x: Register
    y: Register | Address
    lane: int | None = None
    product: Register | None = None


@dataclass(frozen=True, slots=True)
class ZeroMatrix:
    """All elements 0."""

    kind: ClassVar[str] = "zero_matrix"
    dst: MatrixRegister


@dataclass(frozen=True, slots=True)
class LoadMatrix:
    """The rows of a register from memory, ``stride`` elements apart."""

    kind: ClassVar[str] = "load_matrix"
    dst: MatrixRegister
    address: Address
    stride: Expr


@dataclass(frozen=True, slots=True)
class StoreMatrix:
    """The rows of a register to memory, ``stride`` elements apart."""

    kind: ClassVar[str] = "store_matrix"
    address: Address
    src: MatrixRegister
    stride: Expr


@dataclass(frozen=True, slots=True)
class MultiplyMatrices:
    """``acc += y x``: a row of y for each row of acc, a row of x for each group of y's."""

    kind: ClassVar[str] = "multiply_matrices"
    op: MulAdd
    acc: MatrixRegister
    x: MatrixRegister
    y: MatrixRegister


@dataclass(frozen=True, slots=True)
class Add:
    """``dst = x + y``."""

    kind: ClassVar[str] = "add"
    dst: Register
    x: Register
    y: Register


@dataclass(frozen=True, slots=True)
class Multiply:
    """``dst = x * y``."""

    kind: ClassVar[str] = "mul"
    dst: Register
    x: Register
    y: Register


@dataclass(frozen=True, slots=True)
class Interleave:
    """Half a 2x2 block transposition: the even or odd blocks of ``block`` elements of x and y."""

    kind: ClassVar[str] = "interleave"
    dst: Register
    x: Register
    y: Register
    block: int
    odd: bool


@dataclass(frozen=True, slots=True)
class SumLanes:
    """The sum over the lanes of ``src`` into the scalar ``dst``."""

    kind: ClassVar[str] = "sum_lanes"
    dst: Register
    src: Register


@dataclass(frozen=True, slots=True)
class Store:
    """``active`` lanes to memory, as ``memory``'s type; ``group`` as in a load.

    What exists of a vector may go by way of room on the stack, called by the register and ``part``.
    """

    kind: ClassVar[str] = "store"
    address: Address
    src: Register
    active: Active = None
    memory: str = ""
    group: int = 0
    part: str = "part"


@dataclass(frozen=True, slots=True)
class Apply:
    """``dst = fn(args)``: an elementary operation of ``vector``; an int is a constant of C."""

    kind: ClassVar[str] = "apply"
    dst: Register
    fn: str
    args: tuple[Register | int, ...]
    vector: Vector


@dataclass(frozen=True, slots=True)
class Room:
    """The pointer ``name`` to ``elements`` elements on the stack, whose values are undefined."""

    kind: ClassVar[str] = "room"
    name: str
    element: str
    elements: int


@dataclass(frozen=True, slots=True)
class Keep:
    """The accumulator stays in its register, and so do ``operands``, which are used again."""

    kind: ClassVar[str] = "keep"
    acc: Register
    operands: tuple[Register, ...]


@dataclass(frozen=True, slots=True)
class Hide:
    """From here on only this tile knows where ``pointer`` points."""

    kind: ClassVar[str] = "hide"
    pointer: str


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A hint that ``address`` will be read."""

    kind: ClassVar[str] = "prefetch"
    address: Address


@dataclass(frozen=True, slots=True)
class Loop:
    """``body`` repeated ``trips`` times; ``counter`` runs from 0."""

    kind: ClassVar[str] = "loop"
    counter: str
    trips: Expr
    body: tuple[Op, ...]
    note: str = ""


Op = (
    Point | PointBatch | Advance | MakeMask | Zero | Load | Broadcast | Pick | Splat | MultiplyAdd
    | Add | Multiply | Apply | Interleave | SumLanes | Store | Room | Keep | Hide | Prefetch | Loop
    | ZeroMatrix | LoadMatrix | StoreMatrix | MultiplyMatrices
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tile program's parameter.

    ``role``: ``in`` and ``out`` point to elements of type ``element`` ("": the tile's own);
    ``table`` to pointers to such, one per batch element;
    ``offsets`` to int64 offsets; ``at`` is an offset in elements; ``size`` and ``scalar`` are the
    kernel's own run-time sizes and numbers.
    """

    name: str
    role: Literal["in", "out", "table", "offsets", "at", "size", "scalar"]
    element: str = ""


@dataclass(frozen=True, slots=True)
class TileProgram:
    """One register tile: ``body`` sums the products, ``end`` updates C; ``summary`` in words.

    ``numbers`` are the matrix registers by name, once the kernel's configurations are made.
    ``mr`` and ``nr`` are its rows and columns of C, and ``accumulators`` the names of the
    registers that hold them, where they lie in C; ``planned`` is the number that the plan gave the
    tile. All None, or none, where no part of C is computed.
    """

    name: str
    element: str
    parameters: tuple[Parameter, ...]
    body: tuple[Op, ...]
    end: tuple[Op, ...]
    summary: str
    mr: Expr | None = None
    nr: Expr | None = None
    accumulators: tuple[tuple[str, ...], ...] = ()
    planned: int | None = None
    numbers: tuple[tuple[str, int], ...] = ()
