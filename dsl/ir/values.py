"""The operands of tile operations: registers, addresses, masks; the operations' base classes."""

# Annotations are objects here, not text, because they are read at run time.
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
    """A vector register; ``vector`` is its type: elements, lanes and operations."""

    name: str
    vector: Vector


@dataclass(frozen=True, slots=True)
class MatrixRegister:
    """A register of the matrix unit that uses ``rows`` rows of ``columns`` elements."""

    name: str
    unit: MatrixUnit
    element: str
    rows: Expr
    columns: int


@dataclass(frozen=True, slots=True)
class Address:
    """``pointer + offset``, in elements."""

    pointer: Reads[PointerName]
    offset: Sizes[Expr]


@dataclass(frozen=True, slots=True)
class MaskRegister:
    """A mask that selects the first ``active`` lanes."""

    name: str
    vector: Vector
    active: Sizes[Expr]


#: Active lanes of an access: all (None), a number of lanes, or those of a mask.
Active: TypeAlias = int | Expr | MaskRegister | None


def alone(active: Active) -> int | Masked | None:
    """Return the active lanes in the form that ``Vector.loading`` takes; 0 if known at the call."""
    if isinstance(active, MaskRegister):
        return Masked(value(active.active))
    return 0 if isinstance(active, Expr) else active


def count_of(active: Active, register: Register, group: int) -> Expr:
    """Return the number of elements that a load or store touches."""
    if active is None:
        return Integer(register.vector.lanes * max(group, 1))
    return Integer(1) * (active.active if isinstance(active, MaskRegister) else active)


def bits_of_ones(element: str, group: int) -> int:
    """Return the bits of ``group`` ones of type ``element`` as an integer, to fill registers."""
    return sum(1 << (8 * ITEMSIZE[element] * place) for place in range(group))


# --- what all operations have in common ----------------------------------------------------------

#: Counters of operations. ``Formulas`` and the interpreter have fields of these names.
Counted: TypeAlias = Literal["multiply_adds", "elementary_operations"]


class Access(NamedTuple):
    """``count`` elements of type ``element`` that are read or written at one address."""

    counts: Literal["loads", "broadcasts", "stores"]
    element: str
    count: Expr


class Operation(Node):
    """Base class of all operations, with the defaults."""

    __slots__ = ()
    counts: ClassVar[Counted | None] = None

    @property
    def constant(self) -> bool:
        """True if C declares the register that the operation defines as const."""
        return False

    @property
    def masked_by(self) -> MaskRegister | None:
        """The mask that the operation uses, None for most."""
        return None

    def accesses(self) -> Iterator[Access]:
        """Yield the accesses to memory, in the order of the addresses; hints have none."""
        return iter(())


class Constant(Operation):
    """Base class of operations whose register no later operation may change."""

    __slots__ = ()

    @property
    def constant(self) -> bool:
        """True: C declares the register as const."""
        return True
