"""numpy arrays on memory that belongs to something else, which they keep alive."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
#: Bytes of the lines that caches hold.
ALIGNMENT = 64
#: Bytes from which on a new array begins at a line: vectors of smaller ones stay in a near cache,
#: where it matters little how they lie.
LARGE = 1 << 20
#: Bytes of the large pages of x86, and of Arm where pages have 4 KiB; and from how many bytes on
#: numpy asks the system for them.
LARGE_PAGE = 1 << 21
ADVISED = 1 << 22


def address(block: np.ndarray[Any, Any]) -> int:
    """The address of a numpy array's first element."""
    return int(block.__array_interface__["data"][0])


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """New bytes that begin at a cache line, or at a multiple of ``alignment``."""
    block = np.empty(nbytes + alignment, np.uint8)
    start = -address(block) % alignment
    return block[start : start + nbytes]


def in_large_pages(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """New bytes that begin at a cache line, in pages as large as the system has for so many.

    What is read once from end to end waits for the places of small pages: one row of A by weights
    of four bits out of memory has 20 GB/s of a Zen 4 in small pages, and 29 in large ones. The
    last page is a large one where at least half of it is used.
    """
    if nbytes < ADVISED:
        return aligned(nbytes)
    rest = nbytes % LARGE_PAGE
    unused = LARGE_PAGE - rest if 2 * rest >= LARGE_PAGE else 0
    return aligned(nbytes + unused, LARGE_PAGE)[:nbytes]


def new_array(shape: tuple[int, ...], dtype: Any, order: Literal["C", "F"] = "C") -> Array:
    """``np.empty``, of which a large array begins at a cache line.

    numpy's own begin 16 bytes behind one, so that each store of a long vector touches two lines,
    and none goes past the caches.
    """
    made: Array = np.empty(shape, dtype, order)
    if made.nbytes < LARGE:
        return made
    large: Array = aligned(made.nbytes).view(dtype).reshape(shape, order=order)
    return large


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
