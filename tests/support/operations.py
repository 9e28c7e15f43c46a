"""The classes of all operations of tile programs."""

from __future__ import annotations

from tilewright.ir import ops
from tilewright.ir.values import Operation


def operations() -> tuple[type[Operation], ...]:
    """Return the class of each operation, in the order of their definitions."""
    classes = (each for each in vars(ops).values() if isinstance(each, type))
    return tuple(each for each in classes if issubclass(each, Operation) and hasattr(each, "kind"))
