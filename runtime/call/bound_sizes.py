"""Find the run-time sizes of one call, from its arrays or from sizes given by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.errors import SpecError
from tilewright.spec.gemm import Spec
from tilewright.spec.signature import ArrayParameter
from tilewright.spec.sizes import MAX_FIXED, Dim, Size, dims_of, whole_number

Array = np.ndarray[Any, Any]


def value_of(size: Size, sizes: Mapping[str, int]) -> int:
    """Return the value of ``size``, given the values of all run-time sizes by name."""
    return size.at(sizes) if isinstance(size, Dim) else size


def strided(memory: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """Return a view of ``memory`` with another shape and strides in bytes.

    Unlike numpy's ``as_strided``, it also takes the dtypes of ml_dtypes.
    """
    bits = memory.view(f"u{memory.itemsize}")
    return np.lib.stride_tricks.as_strided(bits, shape, strides).view(memory.dtype)


class Known:
    """The run-time sizes that are known so far, and the array that determined each value."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.source: dict[str, str] = {}

    def value(self, size: Size) -> int:
        """Return the value of ``size``, which must be known."""
        return value_of(size, self.values)

    def has(self, size: Size) -> bool:
        """Return True if ``size`` is a number, or a run-time size whose value is known."""
        return all(each.name in self.values for each in dims_of((size,)))

    def agrees(self, size: Size, got: int, source: str) -> bool:
        """Return True if ``size`` equals ``got``. A run-time size without a value gets ``got``."""
        if not self.has(size):
            assert isinstance(size, Dim)
            self.values[size.name] = got
            self.source[size.name] = source
        return self.value(size) == got

    def say(self, size: Size) -> str:
        """Return text about ``size`` for an error message.

        It has the value. For a run-time size, it also has the name and the array that gave the
        value.
        """
        if not isinstance(size, Dim):
            return str(size)
        if size.parts != (size,) and self.has(size):
            return str(self.value(size))
        if size.name not in self.values:
            return size.name
        return f"{size.name} == {self.values[size.name]}, from {self.source[size.name]}"

    def lines(self, parameter: ArrayParameter) -> tuple[int, int]:
        """Return the length and the number of an operand's rows, or of its columns in order F."""
        rows, cols = (self.value(size) for size in parameter.shape)
        return (cols, rows) if parameter.order == "C" else (rows, cols)


def given_sizes(spec: Spec, sizes: dict[str, int]) -> dict[str, int]:
    """Return the given run-time sizes with the names of their C parameters, such as "lda", as keys.

    A key of ``sizes`` may be such a name, or the name of a ``tw.dim``. Raise SpecError for an
    unknown name, or for a value that the size cannot have.
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
