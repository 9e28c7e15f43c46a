"""The operands of tile operations: registers, addresses, masks; the operations' base classes."""

# ``from __future__ import annotations`` is missing on purpose: ``nodes.py`` reads the annotations
# of these classes at run time, and needs them as objects, not as text.
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from sympy import Expr, Integer

from tilewright.isa.matrix_unit import MatrixUnit
from tilewright.isa.vector import Masked, Vector
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import value

from .nodes import Node, PointerName, Reads, Sizes


@dataclass(frozen=True, slots=True)
class Register:
    """A vector register. ``vector`` is its type, which gives elements, lanes and instructions."""

    name: str
    vector: Vector


@dataclass(frozen=True, slots=True)
class MatrixRegister:
    """A register of the matrix unit, of which ``rows`` rows of ``columns`` elements are used."""

    name: str
    unit: MatrixUnit
    element: str
    rows: Expr
    columns: int


@dataclass(frozen=True, slots=True)
class Address:
    """An address in memory: ``offset`` elements after ``pointer``."""

    pointer: Reads[PointerName]
    offset: Sizes[Expr]


@dataclass(frozen=True, slots=True)
class MaskRegister:
    """A mask that selects the first ``active`` lanes."""

    name: str
    vector: Vector
    active: Sizes[Expr]


#: The lanes that a load or store moves: all (None), the first lanes (their number), or the lanes
#: that a mask selects.
Active: TypeAlias = int | Expr | MaskRegister | None


def alone(active: Active) -> int | Masked | None:
    """Return the active lanes in the form that ``Vector.loading`` takes.

    0 means a number of lanes that is known only at the call.
    """
    if isinstance(active, MaskRegister):
        return Masked(value(active.active))
    return 0 if isinstance(active, Expr) else active


def count_of(active: Active, register: Register, group: int) -> Expr:
    """Return the number of elements that a load or store of ``active`` lanes moves.

    If a lane holds a group of elements, ``group`` is their number, else 0.
    """
    if active is None:
        return Integer(register.vector.lanes * max(group, 1))
    return Integer(1) * (active.active if isinstance(active, MaskRegister) else active)


def bits_of_ones(element: str, group: int) -> int:
    """Return an integer whose bytes are ``group`` numbers of type ``element``, all equal to 1."""
    return sum(1 << (8 * ITEMSIZE[element] * place) for place in range(group))


# --- the base classes of operations --------------------------------------------------------------

#: Counters that operations increase. ``Formulas`` and the interpreter's ``Counts`` have them too.
Counted: TypeAlias = Literal["multiply_adds", "elementary_operations"]


class Access(NamedTuple):
    """An access to memory: ``count`` elements of type ``element`` are read or written at once."""

    counts: Literal["loads", "broadcasts", "stores"]
    element: str
    count: Expr


class Operation(Node):
    """Base class of all operations. By default, they use no mask and do not access memory."""

    __slots__ = ()
    counts: ClassVar[Counted | None] = None

    @property
    def constant(self) -> bool:
        """True if C declares the register that the operation defines as const."""
        return False

    @property
    def masked_by(self) -> MaskRegister | None:
        """The mask that the operation uses; None for most operations."""
        return None

    def accesses(self) -> Iterator[Access]:
        """Yield the operation's accesses to memory, in the order of its address fields."""
        return iter(())


class Constant(Operation):
    """Base class of operations whose register no later operation may change."""

    __slots__ = ()

    @property
    def constant(self) -> bool:
        """True: C declares the register as const."""
        return True
