"""Data class for a matrix unit: registers that hold matrices of sums, as in AMX and SME."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from .vector import MulAdd, Vector


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatrixUnit:
    """A matrix unit: registers of matrices of sums, and the instructions that multiply into them.

    Registers:

    - ``registers``: number of registers, by the type of the sums.
    - ``rows``, ``row_bytes``: most rows of a register, and bytes of a row.
    - ``aliases``: vector registers of the target that one matrix register occupies.
    - ``ctype``: C type of a variable for a register, "" if intrinsics take its number.

    Instructions:

    - ``products``: multiply-adds by the type of their sums.
    - ``zero``: sets all sums of a register to 0.
    - ``factors``: "matrices" if factors are in matrix registers too, whose rows ``load`` and
      ``store`` move. "vectors" if factors are vectors: the target's, or the unit's own
      ``vectors``.
    - ``read``: C that reads sums by rows, if factors are vectors. If ``rows_at_once`` is 1 it is an
      expression for row number ``{row}``, which may be computed at run time. Otherwise it is a
      statement that fills the array ``{dst}`` with ``rows_at_once`` rows.
    - ``read_column``: the same expression for a column, "" if columns cannot be read.
    - ``write``: fills a row with vector ``{v}``. A unit that has ``write`` and ``read_column``
      transposes.

    Configuration and cost:

    - ``template``: C that declares, loads and restores a configuration, which says how many rows
      and bytes of each register are in use. It is "" if the unit has no configuration. ``headers``
      are the headers of the C library that it includes.
    - ``consent``: system call that asks the operating system for permission to use the unit.
    - ``latency``: cycles from the start of a multiply-add to its sums. A multiply-add of matrices
      takes one cycle per row of y; a load or store takes one per row.
    - ``configuring``: cycles that a change of the configuration takes.

    Fields in spellings: ``{dst}``, ``{src}``, ``{acc}``, ``{x}`` and ``{y}`` are registers, ``{p}``
    is a pointer, ``{stride}`` the bytes from row to row, and ``{element}`` the type of sums, of
    ``{bits}`` bits.
    """

    name: str
    registers: Mapping[str, int]
    rows: int
    row_bytes: int
    products: Mapping[str, tuple[MulAdd, ...]]
    zero: str
    factors: Literal["matrices", "vectors"]
    latency: int
    ctype: str = ""
    aliases: int = 0
    vectors: tuple[Vector, ...] = ()
    load: str = ""
    store: str = ""
    read: str = ""
    read_column: str = ""
    write: str = ""
    rows_at_once: int = 1
    consent: tuple[int, ...] = ()
    headers: tuple[str, ...] = ()
    template: str = ""
    configuring: float = 0

    @property
    def by_lines(self) -> bool:
        """True if sums are read by row or column number, one at a time, in a loop."""
        return self.factors == "vectors" and self.rows_at_once == 1

    def transposes(self, element: str) -> bool:
        """Return True if blocks of ``element`` can be transposed through the unit's registers."""
        return bool(self.write and self.read_column) and element in self.registers

    @property
    def most(self) -> int:
        """The number of matrix registers for the type of sums that has the most registers."""
        return max(self.registers.values())

    def with_products(self, more: Mapping[str, tuple[MulAdd, ...]]) -> MatrixUnit:
        """Return this unit with ``more`` products, which are preferred to the unit's own."""
        names = {*self.products, *more}
        both = {n: (*more.get(n, ()), *self.products.get(n, ())) for n in sorted(names)}
        return replace(self, products=both) if more else self
