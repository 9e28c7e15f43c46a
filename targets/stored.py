"""Shared spellings of stored types: fields of bytes, and tables of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.isa.vector import Numbers
from tilewright.spec.quantized import STORED

#: The 16 numbers of f4_e2m1, in units of one half, in the order of their codes. The last eight are
#: negative.
F4 = STORED["f4_e2m1"].integers
#: Offset that is added to the numbers of f4_e2m1 for unsigned lanes, so that none is negative.
SHIFT = -min(F4)


def table(*, unsigned: bool) -> tuple[int, ...]:
    """Return the numbers of f4_e2m1 as bytes, in units of one half; ``unsigned`` adds ``SHIFT``."""
    return tuple((value + (SHIFT if unsigned else 0)) % 256 for value in F4)


def words(numbers: tuple[int, ...]) -> tuple[str, str]:
    """Return 16 bytes as two C integers of 64 bits; the first byte is the lowest."""
    low, high = (int.from_bytes(bytes(numbers[i : i + 8]), "little") for i in (0, 8))
    return f"0x{low:016x}", f"0x{high:016x}"


def fields(
    part: Callable[[int, int], str], looked_up: Callable[[str], str]
) -> dict[str, tuple[str, ...]]:
    """Return the spellings of a vector's ``fields``.

    ``part(right, mask)`` returns C that shifts ``{v}`` to the right by ``right`` bits, or to the
    left if ``right`` is negative, and keeps the bits in ``mask``. ``looked_up(index)`` returns C
    that looks up the number of f4_e2m1 with the four-bit code ``index``.
    """
    found = {
        f"u{bits}" + (f"<<{up}" if up else ""): tuple(
            part(low - up, ((1 << bits) - 1) << up) for low in range(0, 8, bits)
        )
        for bits, up in ((4, 0), (2, 0), (2, 4), (1, 2), (1, 4), (1, 6))
    }
    return {**found, "f4_e2m1": tuple(looked_up(index) for index in found["u4"])}


def by_fields(found: Callable[[int], str]) -> dict[str, tuple[str, ...]]:
    """Return ``found(low)`` for each field of a byte that begins at bit ``low``, by type."""
    return {f"u{size}": tuple(map(found, range(0, 8, size))) for size in (4, 2)}


def in_memory(element: str, found: Mapping[str, tuple[str, ...]]) -> Numbers:
    """Return a table of numbers in memory: ``{table}`` points to elements of a C type."""
    spelling = f"(const {element} *)(const int32_t[]){{{{{{numbers}}}}}}"
    return Numbers(spelling, "s32", found, ctype=f"{element} *", several=True)
