"""The sizes of one call, as its arrays or its named sizes determine them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.errors import SpecError
from tilewright.spec.gemm import Spec
from tilewright.spec.signature import ArrayParameter
from tilewright.spec.sizes import MAX_FIXED, Dim, Size, whole_number

Array = np.ndarray[Any, Any]


def value_of(size: Size, sizes: Mapping[str, int]) -> int:
    """Return the value of ``size``, given the values of the dims by name."""
    return sizes[size.name] if isinstance(size, Dim) else size


def strided(memory: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """Return a view with other axes, for ml_dtypes' dtypes too, which numpy's function does not
    take.
    """
    bits = memory.view(f"u{memory.itemsize}")
    return np.lib.stride_tricks.as_strided(bits, shape, strides).view(memory.dtype)


class Known:
    """The known values of dims, and the array that determined each value."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.source: dict[str, str] = {}

    def value(self, size: Size) -> int:
        """Return the value of ``size``, which must be known."""
        return self.values[size.name] if isinstance(size, Dim) else size

    def has(self, size: Size) -> bool:
        """Return True if ``size`` is a number or a known dim."""
        return not isinstance(size, Dim) or size.name in self.values

    def agrees(self, size: Size, got: int, source: str) -> bool:
        """Return True if ``size`` equals ``got``. A dim that is not known yet gets this value."""
        if isinstance(size, Dim) and size.name not in self.values:
            self.values[size.name] = got
            self.source[size.name] = source
        return self.value(size) == got

    def say(self, size: Size) -> str:
        """Return ``size`` for a message: its value, and for a dim its name and source."""
        if not isinstance(size, Dim):
            return str(size)
        if size.name not in self.values:
            return size.name
        return f"{size.name} == {self.values[size.name]}, from {self.source[size.name]}"

    def lines(self, parameter: ArrayParameter) -> tuple[int, int]:
        """Return the length of a contiguous line of one of the operand's matrices, and the number
        of lines.
        """
        rows, cols = (self.value(size) for size in parameter.shape)
        return (cols, rows) if parameter.order == "C" else (rows, cols)


def given_sizes(spec: Spec, sizes: dict[str, int]) -> dict[str, int]:
    """Return sizes of a call by slot, from their slots or their dims' names.

    Raise SpecError for an unknown name, or for a value that the dim cannot have.
    """
    slots = dict(spec.runtime_sizes())
    dims = {dim.name: dim for dim in slots.values()} | slots
    chosen: dict[str, int] = {}
    for name, given in sizes.items():
        if name not in dims:
            known = ", ".join(dims) or "none: all sizes are fixed"
            raise SpecError(
                f"{name!r} is no size of the call", got=f"{name}={given!r}", expected=known
            )
        dim, size = dims[name], whole_number(given)
        most = MAX_FIXED if dim.max is None else dim.max
        if size is None or not 1 <= size <= most or size % dim.multiple_of:
            multiple = f", a multiple of {dim.multiple_of}" if dim.multiple_of > 1 else ""
            raise SpecError(f"{name} cannot be that", got=given, expected=f"1 to {most}{multiple}")
        if chosen.setdefault(dim.name, size) != size:
            raise SpecError(f"{dim.name} is one size", got=f"{chosen[dim.name]} and {size}")
    return {slot: chosen[dim.name] for slot, dim in slots.items() if dim.name in chosen}
