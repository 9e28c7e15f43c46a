"""A unit whose registers hold matrices, and the instructions that multiply them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .vector import MulAdd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatrixUnit:
    """Registers that hold matrices, and the instructions that multiply them.

    There are ``registers`` of up to ``rows`` rows of ``row_bytes`` bytes. A configuration says how
    many rows and bytes of each are in use: ``template`` declares, loads and restores it, with the
    C library's ``headers``. ``consent`` is the system call that asks the operating system for the
    unit. ``products`` are the multiply-adds by the type of their accumulators. In spellings
    ``{dst}``, ``{src}``, ``{acc}``, ``{x}`` and ``{y}`` are registers, ``{p}`` is a pointer, and
    ``{stride}`` the bytes from row to row. ``latency`` is in cycles; a multiply-add takes a cycle
    for each row of y, a load or store one for each row.
    """

    name: str
    registers: int
    rows: int
    row_bytes: int
    products: Mapping[str, tuple[MulAdd, ...]]
    zero: str
    load: str
    store: str
    consent: tuple[int, ...]
    headers: tuple[str, ...]
    template: str
    latency: int

    def with_products(self, more: Mapping[str, tuple[MulAdd, ...]]) -> MatrixUnit:
        """This unit with ``more`` products; those of each type are preferred to its own."""
        names = {*self.products, *more}
        both = {n: (*more.get(n, ()), *self.products.get(n, ())) for n in sorted(names)}
        return replace(self, products=both) if more else self
