"""The operands of tile operations: registers, addresses, masks, and active lanes."""

# ``from __future__ import annotations`` is missing on purpose: ``nodes.py`` reads the annotations
# of these classes at run time, and needs them as objects, not as text.
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
