"""numpy arrays on memory that belongs to something else, which they keep alive."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def at(
    pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any],
    owner: Any, *, writeable: bool,
) -> Array:  # fmt: skip
    """The elements of ``dtype`` at an address, ``strides`` bytes apart; keeps ``owner`` alive."""
    if 0 in shape:
        return np.empty(shape, dtype)
    found = np.asarray(_Memory(pointer, shape, strides, dtype, owner, writeable))
    return found.view(dtype)


class _Memory:
    """What numpy asks for memory that is another's."""

    def __init__(
        self, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...],
        dtype: np.dtype[Any], owner: Any, writeable: bool,
    ) -> None:  # fmt: skip
        plain = dtype.kind in "fiub" and dtype.isbuiltin == 1
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "data": (pointer, not writeable),
            "shape": shape,
            "strides": strides,
            "typestr": dtype.str if plain else np.dtype(f"V{dtype.itemsize}").str,
        }


@cache
def dtype_named(name: str) -> Any:
    """Numpy's or ml_dtypes' dtype of that name; None where neither has one."""
    found: Any = getattr(np, name, None)
    if found is None:
        try:
            import ml_dtypes
        except ImportError:
            return None
        found = getattr(ml_dtypes, name, None)
    return None if found is None else np.dtype(found)
