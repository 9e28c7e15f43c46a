"""Libraries that a compiler left damaged: found as they are loaded, removed, and made once more."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from math import prod
from typing import TypeVar

from tilewright.errors import CacheError, ToolchainError

from . import cache
from .folders import say

_T = TypeVar("_T")
#: The first 64 bytes of an ELF file of 64 bits: where its segments and its sections are listed, and
#: of both lists how long an item is and how many there are.
_HEADER = struct.Struct("<4s2B26xQQ6x4H2x")
#: A segment: its type, then where in the file it begins, and its bytes there.
_SEGMENT = struct.Struct("<I4xQ16xQ16x")
_LOADED = 1


class DamagedError(CacheError):
    """A library of the cache that cannot be loaded, and why."""


def check_whole(path: str) -> None:
    """DamagedError if the ELF file at ``path`` ends before what its header promises.

    The system's loader does not look: the process would be killed by SIGBUS.
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


def used(
    entry: cache.Entry, use: Callable[[cache.Entry], _T], again: Callable[[], cache.Entry]
) -> _T:
    """Return ``use(entry)``; if its library is damaged, that of an entry made ``again``, once.

    ToolchainError if that is damaged too. Nothing damaged stays in the cache.
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
    """Return what ``use`` makes of the entry of ``key``, from the cache or built."""

    def made() -> cache.Entry:
        return cache.publish(key, build)

    found = cache.lookup(key)
    return used(made() if found is None else found, use, made)
