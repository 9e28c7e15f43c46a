"""Define ``Step``, one stage of a network, and the names of sizes in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from sympy import Expr, Integer

from tilewright.ir.nest import Name
from tilewright.ir.stages import Buffer
from tilewright.spec.expression.nodes import Expression
from tilewright.spec.expression.tensors import Input
from tilewright.spec.network.value import slot_of
from tilewright.spec.sizes import Dim, Size
from tilewright.symbolic import ZERO, symbol, value

from ..plan import ByRows, Plan
from ..routines.copy import CopyPlan
from ..rows.plan import RowsPlan
from .block import Block, Outer
from .placed import Axis, Placed, axes_of, merged

#: The number of a row that a stage reads, in formulas.
FOUND = symbol("found")


class Opening(Enum):
    """Which rows a stage can compute in one run."""

    WHOLE = "all rows"
    ROWS = "some rows, counted through all leading axes"
    STACK = "some rows of one matrix; the leading axes are loops around the stage"


@dataclass(frozen=True, slots=True)
class Found:
    """The array and the element that hold the number ``FOUND`` of a row: see ``Lookup``."""

    indices: Name
    at: Expr
    count: Expr


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a stage that computes each row of its result from the same row of its operands.

    ``slot`` is the stage's name of the number of rows, None if there is one row. ``steps`` are the
    elements from row to row of each operand's array.
    """

    slot: str | None
    total: Expr
    steps: Mapping[str, Expr]


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a stage. Maps its names of operands and sizes to those of the network.

    ``loops`` are around the plan; if ``parallel``, threads share the outermost. ``shifts`` are
    offsets of operands in elements. ``rows`` is as in ``Step``.
    """

    plan: Plan | ByRows | RowsPlan | CopyPlan
    operands: Mapping[str, Name]
    sizes: Mapping[str, Expr]
    loops: tuple[Outer, ...]
    shifts: Mapping[str, Expr]
    parallel: bool = False
    rows: Rows | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One stage: its name, its plan, and the array that it writes.

    ``operands`` and ``sizes`` map names of the stage to those of the network. ``buffer`` is the
    intermediate tensor that this stage writes first, None for a result or a later part of a
    tensor. ``said`` is the computed expression as text. ``loops`` are around the stage.
    ``shifts`` has for each operand the offset in elements from the start of its array. If
    ``parallel``, threads share the outermost loop. ``found`` is an index that shifts depend on.
    ``rows`` is None if rows of the result need other rows, or if nobody asked. ``block`` is the
    loop that the stage shares with others. ``inside`` are names of the functions that the stage
    computes, besides the last one of a stage without a product. ``parts`` are other names, of the
    operators in these functions. ``also`` are other names of the stage: that of its last operator,
    and those of functions that several stages compute. ``alone`` are the tensors that its operators
    read and write if each runs alone; none for a copy. The stage does not run if ``unless``, an
    input, is the same array as ``written``.
    """

    name: str
    plan: Plan | ByRows | RowsPlan | CopyPlan
    written: Name
    buffer: Buffer | None
    operands: Mapping[str, Name]
    sizes: Mapping[str, Expr]
    said: str
    loops: tuple[Outer, ...] = ()
    shifts: Mapping[str, Expr] = field(default_factory=dict)
    parallel: bool = False
    found: Found | None = None
    rows: Rows | None = None
    block: Block | None = None
    inside: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    alone: tuple[Expression, ...] = field(default=(), compare=False, repr=False)
    unless: Name | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the stage."""
        return (self.name, *self.also)

    @property
    def in_place(self) -> bool:
        """True if the stage reads the elements that it writes."""
        own = [name for name, array in self.operands.items() if array == self.written]
        return len({self.shifts.get(name, ZERO) for name in own}) < len(own)

    @property
    def product(self) -> Plan | ByRows | None:
        """The plan if the stage is a product, possibly with functions of elements after it."""
        return self.plan if isinstance(self.plan, Plan | ByRows) else None

    @property
    def nest(self) -> Plan | None:
        """The first nest of a product."""
        return None if self.product is None else self.product.nests[0]

    @property
    def row_program(self) -> RowsPlan | None:
        """The plan if the stage is a row program."""
        return self.plan if isinstance(self.plan, RowsPlan) else None


class Sizes:
    """Gives a dim to each size of a stage that is a formula of the network's sizes."""

    def __init__(self, taken: frozenset[str]) -> None:
        self.taken = taken
        self.bound: dict[str, Expr] = {}
        self._made: dict[Expr, Dim] = {}

    def of(self, formula: Expr) -> Size:
        """Return the size of the stage for a formula: a number, or a dim."""
        known = value(formula)
        if known is not None:
            return known
        if formula not in self._made:
            self._made[formula] = self.new(formula)
        return self._made[formula]

    def new(self, formula: Expr) -> Dim:
        """Return a dim of its own with this value."""
        name = f"size{len(self.bound)}"
        while name in self.taken:
            name = f"{name}x"
        self.bound[slot_of(name)] = formula
        return Dim(name)


@dataclass(frozen=True, slots=True)
class Indexed:
    """Loops over numbers of rows, and in them row ``FOUND`` of a table and a row of a value.

    If ``parallel``, threads share the outermost loop, over parts of both rows.
    """

    loops: tuple[Outer, ...]
    found: Found
    table: Placed
    value: Placed
    parallel: bool


def outer_loops(
    axes: list[Axis],
    operands: tuple[str, ...],
    offsets: tuple[Expr, ...],
    around: tuple[Outer, ...] = (),
) -> tuple[tuple[Outer, ...], dict[str, Expr]]:
    """Return loops over ``axes``, and the offset of each operand in an iteration, in elements.

    Without loops, the operands begin at ``offsets``. The loops ``around`` come first.
    """
    loops = tuple(Outer(f"outer{i}", axis.size) for i, axis in enumerate(axes, len(around)))
    shifts = dict(zip(operands, offsets, strict=True))
    for loop, axis in zip(loops, axes, strict=True):
        for name, step in zip(operands, axis.steps, strict=True):
            shifts[name] += symbol(loop.counter) * step
    return (*around, *loops), {name: shift for name, shift in shifts.items() if shift != 0}


def rows_of(index: Placed, table: Placed, value: Placed, threads: int = 1) -> Indexed:
    """Return the loops over an ``index``, whose numbers are those of rows of ``table``.

    The leading axes of ``value`` are those of the index. Each of several ``threads`` has columns of
    its own if it can have equally many.
    """
    count, around = len(index.shape), tuple[Outer, ...]()
    share = symbol("outer0")
    one, other = table.part(1, threads, share), value.part(count, threads, share)
    if threads > 1 and one is not None and other is not None:
        table, value, around = one, other, (Outer("outer0", Integer(threads)),)
    axes = merged(axes_of(index.sizes, (index.strides, value.strides[:count])))
    names, offsets = ("index", "value"), (index.offset, value.offset)
    loops, shifts = outer_loops(axes, names, offsets, around)
    at, first = (shifts.get(name, ZERO) for name in names)
    row = Placed(value.name, value.type, value.shape[count:], value.strides[count:], first)
    found = Found(index.name, at, table.sizes[0])
    return Indexed(loops, found, table.row(FOUND), row, parallel=bool(around))


def shown_as(node: Expression, name: Name) -> Expression:
    """Return a tensor with the name of the array ``name``, to print it in place of ``node``."""
    assert node.tensor is not None
    return Input(str(name), *node.tensor)
