"""Reading and writing elements of one type as another: converted by the access, or behind it."""

from __future__ import annotations

from collections.abc import Iterator

from .program import Active, Address, Load, Op, Register


def read(dst: Register, address: Address, active: Active, memory: str) -> Iterator[Op]:
    """``dst`` from elements of type ``memory``."""
    same = memory == dst.vector.element
    yield Load(dst, address, active, "" if same else memory)
