"""A unit whose registers hold matrices of sums, and the instructions that multiply into them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from .vector import MulAdd, Vector


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatrixUnit:
    """Registers that hold matrices of sums, and the instructions that multiply into them.

    ``registers`` says how many there are, by the type of the sums; each has up to ``rows`` rows of
    ``row_bytes`` bytes, and takes the place of ``aliases`` of the target's vector registers.
    ``ctype`` is the C type of a variable that is one, "" where intrinsics know them by number.
    ``products`` are the multiply-adds by the type of their sums, ``zero`` sets all sums to 0.

    ``factors`` are "matrices" in registers of the same kind, which ``load`` and ``store`` move by
    rows, or "vectors" of the target or of the unit's own ``vectors``. ``read`` then is how C reads
    rows of sums: with ``rows_at_once`` of 1 an expression for the one of number ``{row}``, which
    the call may compute, and ``read_column`` one for a column; else a statement that fills an array
    ``{dst}`` of so many, which are all. ``write`` fills a row with a vector ``{v}``: a unit
    that can also be read by columns transposes.

    A configuration may say how many rows and bytes of each register are in use: ``template``
    declares, loads and restores it, with the C library's ``headers``; "" where there is none.
    ``consent`` is the system call that asks the operating system for the unit. In spellings
    ``{dst}``, ``{src}``, ``{acc}``, ``{x}`` and ``{y}`` are registers, ``{p}`` is a pointer,
    ``{stride}`` the bytes from row to row, and ``{element}`` the type of sums, of ``{bits}`` bits.
    ``latency`` is in cycles; a multiply-add of matrices takes a cycle for each row of y, a load or
    store one for each row. ``configuring`` are those of loading a configuration, and of what else
    a change of it takes.
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
        """Whether sums are read row by row or column by column, of a number that a loop counts."""
        return self.factors == "vectors" and self.rows_at_once == 1

    def transposes(self, element: str) -> bool:
        """Whether squares of vectors of ``element`` are turned by way of its registers."""
        return bool(self.write and self.read_column) and element in self.registers

    @property
    def most(self) -> int:
        """How many registers there are of the type that has most."""
        return max(self.registers.values())

    def with_products(self, more: Mapping[str, tuple[MulAdd, ...]]) -> MatrixUnit:
        """This unit with ``more`` products; those of each type are preferred to its own."""
        names = {*self.products, *more}
        both = {n: (*more.get(n, ()), *self.products.get(n, ())) for n in sorted(names)}
        return replace(self, products=both) if more else self
