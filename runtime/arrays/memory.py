"""Make numpy arrays on memory that another object owns, and new arrays in aligned memory."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
#: Alignment of new memory in bytes: a cache line.
ALIGNMENT = 64
#: Minimum size in bytes of a new array that is aligned to a cache line. Smaller arrays fit in L2,
#: where their alignment matters little.
LARGE = 1 << 20
#: Bytes of a large page on x86, and on Arm if normal pages have 4 KiB.
LARGE_PAGE = 1 << 21
#: Minimum size in bytes of an array for which numpy asks the system for large pages.
ADVISED = 1 << 22


def address(block: np.ndarray[Any, Any]) -> int:
    """Return the address of a numpy array's first element."""
    return int(block.__array_interface__["data"][0])


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a new array of bytes whose address is a multiple of ``alignment``."""
    block = np.empty(nbytes + alignment, np.uint8)
    start = -address(block) % alignment
    return block[start : start + nbytes]


def in_large_pages(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return new bytes that begin at a cache line, in the system's large pages if there are many.

    Reading memory once from end to end waits for TLB misses if pages are small. For example, one
    row of A by 4-bit weights in memory reads 20 GB/s on a Zen 4 with small pages, and 29 GB/s with
    large pages. The last page is large if at least half of it is used.
    """
    if nbytes < ADVISED:
        return aligned(nbytes)
    rest = nbytes % LARGE_PAGE
    unused = LARGE_PAGE - rest if 2 * rest >= LARGE_PAGE else 0
    return aligned(nbytes + unused, LARGE_PAGE)[:nbytes]


def new_array(shape: tuple[int, ...], dtype: Any, order: Literal["C", "F"] = "C") -> Array:
    """Return a new array with unset elements. A large one begins at a cache line.

    Arrays of ``np.empty`` begin 16 bytes after the start of a cache line. Each store of a long
    vector then touches two lines, and stores that bypass the caches are impossible.
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
    """Return an array on the memory at an address. The array keeps ``owner`` alive.

    ``strides`` are in bytes.
    """
    if 0 in shape:
        return np.empty(shape, dtype)
    found = np.asarray(_Memory(pointer, shape, strides, dtype, owner, writeable))
    return found.view(dtype)


class _Memory:
    """An object with numpy's array interface for memory that another object owns."""

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
    """Return the dtype called ``name`` in numpy or ml_dtypes, None if neither has it."""
    found: Any = getattr(np, name, None)
    if found is None:
        try:
            import ml_dtypes
        except ImportError:
            return None
        found = getattr(ml_dtypes, name, None)
    return None if found is None else np.dtype(found)
