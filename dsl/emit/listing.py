"""Arrange the operations of a tile for C: constants first, multiply-adds as macros.

C declares the literals of a tile at the top of its function, under their labels, where readers find
them. The compiled code is the same. A multiply-add and the ``Keep`` after it become one macro,
which is defined once per file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, ClassVar

from tilewright.ir.nodes import mapped
from tilewright.ir.ops import (
    Keep,
    Loop,
    MultiplyAdd,
    Op,
    Splat,
    TileProgram,
)
from tilewright.ir.values import Register
from tilewright.isa.vector import MulAdd, Vector


@dataclass(frozen=True, slots=True)
class Macro:
    """A C macro: a multiply-add into ``vector``, and a compiler hint that keeps it in a register.

    ``kept`` names the macro's parameters that are kept. ``product`` is true if the macro has a
    register for the products.
    """

    name: str
    op: MulAdd
    vector: Vector
    kept: tuple[str, ...]
    product: bool


@dataclass(frozen=True, slots=True)
class Multiplied:
    """A use of a multiply-add macro in the C code of a tile."""

    kind: ClassVar[str] = "multiplied"
    macro: Macro
    op: MultiplyAdd


@dataclass(frozen=True, slots=True)
class Listing:
    """The C function of a tile, as templates write it: constants, then ``body`` and ``end``."""

    tile: TileProgram
    constants: tuple[Splat, ...]
    body: tuple[Any, ...]
    end: tuple[Any, ...]


@dataclass(slots=True)
class Macros:
    """The multiply-add macros of one C file. Equal macros are defined only once."""

    made: dict[object, Macro] = field(default_factory=dict)

    def listing(self, tile: TileProgram) -> Listing:
        """Return a tile with its constants at the top and its multiply-adds as macros."""
        constants = _Constants()
        body, end = (
            tuple(self._paired(tuple(constants.without(ops)))) for ops in (tile.body, tile.end)
        )
        return Listing(tile, tuple(constants.found.values()), body, end)

    def _paired(self, ops: tuple[Op, ...]) -> Iterator[Any]:
        """Yield ``ops``, with each multiply-add and the ``Keep`` after it as one ``Multiplied``."""
        held = False
        for op, after in zip(ops, (*ops[1:], None), strict=False):
            if held:
                held = False
            elif isinstance(op, Loop):
                yield replace(op, body=tuple(self._paired(op.body)))
            elif isinstance(op, MultiplyAdd) and isinstance(after, Keep):
                held = True
                yield Multiplied(self._macro(op, after), op)
            else:
                yield op

    def _macro(self, op: MultiplyAdd, keep: Keep) -> Macro:
        kept = tuple(_role(op, register) for register in keep.operands)
        vector, product = op.acc.vector, op.product is not None
        key = op.op.spelling, op.op.product, vector.ctype, kept, product
        if key not in self.made:
            lane = "_LANE" if op.op.form == "lane" else ""
            name = f"MULADD_{vector.element.upper()}X{vector.lanes}{lane}"
            taken = {macro.name for macro in self.made.values()}
            self.made[key] = Macro(_free(name, taken), op.op, vector, kept, product)
        return self.made[key]


def _role(op: MultiplyAdd, register: Register) -> str:
    """Return which operand of ``op`` is ``register``: "product", "y" or "x"."""
    roles = {"product": op.product, "y": op.y, "x": op.x}
    return next(role for role, found in roles.items() if found == register)


def _free(name: str, taken: Iterable[str]) -> str:
    names = (name if number == 1 else f"{name}_{number}" for number in count(1))
    return next(found for found in names if found not in taken)


class _Constants:
    """The literals of a tile as C constants. Equal literals with equal labels are one constant."""

    def __init__(self) -> None:
        self.found: dict[object, Splat] = {}
        self._registers: dict[str, Register] = {}

    def without(self, ops: Iterable[Op]) -> Iterator[Op]:
        """Yield ``ops`` without the operations that only set a register to a literal."""
        for op in ops:
            if isinstance(op, Loop):
                yield replace(op, body=tuple(self.without(op.body)))
            elif isinstance(op, Splat) and isinstance(op.source, (int, float)):
                self._registers[op.dst.name] = self._constant(op)
            else:
                yield self._renamed(op)

    def _constant(self, op: Splat) -> Register:
        label = op.label or op.dst.name
        key = label, repr(op.source), op.group, op.dst.vector.ctype
        if key not in self.found:
            name = _free(label, {constant.dst.name for constant in self.found.values()})
            self.found[key] = replace(op, dst=replace(op.dst, name=name))
        return self.found[key].dst

    def _renamed(self, op: Op) -> Op:
        """Return ``op``, changed to read constants instead of registers set to literals."""
        return mapped(op, Register, self._constant_of) if self._registers else op

    def _constant_of(self, given: Register) -> Register:
        known = self._registers.get(given.name)
        return given if known is None else replace(given, name=known.name)
