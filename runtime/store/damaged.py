"""Find libraries in the cache that are damaged, remove them, and build them again.

A compiler can leave a damaged library, for example one that ends too early. The damage is found
when the library is loaded.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import TypeVar

from tilewright.errors import CacheError, ToolchainError

from . import cache
from .folders import say

_T = TypeVar("_T")
#: Layout of the header of a 64-bit ELF file, 64 bytes: offsets of the tables of segments and
#: sections, and for each table the size of an entry and the number of entries.
_HEADER = struct.Struct("<4s2B26xQQ6x4H2x")
#: Layout of an entry in an ELF file's table of segments: type, offset in the file, and size there.
_SEGMENT = struct.Struct("<I4xQ16xQ16x")
_LOADED = 1


class DamagedError(CacheError):
    """A library of the cache cannot be loaded."""


def check_whole(path: str) -> None:
    """Raise DamagedError if the ELF file at ``path`` is shorter than its header says.

    The system's loader does not check the length. SIGBUS would kill the process.
    """
    if sys.platform != "linux":
        return
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size or not header.startswith(b"\x7fELF"):
                raise DamagedError("it has no ELF header")
            _, bits, order, at, sections, length, count, *of_section = _HEADER.unpack(header)
            if (bits, order, length) != (2, 1, _SEGMENT.size):
                return
            file.seek(at)
            segments = file.read(length * count)
    except OSError as error:
        raise DamagedError(error.strerror or str(error)) from None
    ends = [at + length * count, sections + prod(of_section)]
    if max(ends) <= size:
        listed = _SEGMENT.iter_unpack(segments)
        ends += [first + held for kind, first, held in listed if kind == _LOADED]
    if max(ends) > size:
        raise DamagedError(f"it ends after {size} bytes, in the middle of what it holds")


@contextmanager
def loading(path: str) -> Iterator[None]:
    """Check the library at ``path``, then raise DamagedError for errors of loading it."""
    check_whole(path)
    try:
        yield
    except (ImportError, OSError) as error:
        raise DamagedError(str(error)) from None


def used(
    entry: cache.Entry, use: Callable[[cache.Entry], _T], again: Callable[[], cache.Entry]
) -> _T:
    """Return ``use(entry)``, after building a new entry if the library is damaged.

    ``again`` builds the new entry. Raise ToolchainError if the new entry is damaged too. Damaged
    libraries are removed from the cache.
    """
    try:
        return use(entry)
    except DamagedError as error:
        say(f"tilewright's cache entry {entry.key[:16]} is made anew: its library: {error}")
        cache.discard(entry)
    entry = again()
    try:
        return use(entry)
    except DamagedError as error:
        cache.discard(entry)
        raise ToolchainError(
            "the compiler left a library that cannot be loaded, twice",
            got=f"{entry.library.name}: {error}",
            expected=f"a whole library of {entry.manifest.get('compiler', 'the compiler')}",
            hint="compile a small C file with -shared by hand, or set CC to another compiler",
        ) from None


def kept(key: str, build: cache.Builder, use: Callable[[cache.Entry], _T]) -> _T:
    """Call ``use`` on the cache entry of ``key``, built if it is missing, and return the result."""

    def made() -> cache.Entry:
        return cache.publish(key, build)

    found = cache.lookup(key)
    return used(made() if found is None else found, use, made)
