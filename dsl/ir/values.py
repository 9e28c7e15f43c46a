"""The operands of tile operations: registers, addresses, masks, and active lanes."""

# Annotations are objects here, not text, because they are read at run time.
from dataclasses import dataclass
from typing import TypeAlias

from sympy import Expr, Integer

from tilewright.isa.matrix_unit import MatrixUnit
from tilewright.isa.vector import Masked, Vector
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import value

from .nodes import PointerName, Reads, Sizes


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
