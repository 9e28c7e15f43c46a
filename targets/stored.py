"""What all targets spell of stored types: the fields of bytes, and the table of f4_e2m1."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.spec.quantized import STORED

#: The 16 numbers of f4_e2m1 in halves, those less than zero last.
F4 = STORED["f4_e2m1"].values
#: What is added to the numbers of f4_e2m1 in unsigned lanes.
SHIFT = -min(F4)


def table(*, unsigned: bool) -> tuple[int, ...]:
    """The bytes of the 16 numbers of f4_e2m1 in halves, shifted where lanes are ``unsigned``."""
    return tuple((value + (SHIFT if unsigned else 0)) % 256 for value in F4)


def words(numbers: tuple[int, ...]) -> tuple[str, str]:
    """16 bytes as two integers of C, the first byte lowest."""
    low, high = (int.from_bytes(bytes(numbers[i : i + 8]), "little") for i in (0, 8))
    return f"0x{low:016x}", f"0x{high:016x}"


def fields(
    part: Callable[[int, int], str], looked_up: Callable[[str], str]
) -> dict[str, tuple[str, ...]]:
    """The spellings of a vector's ``fields``.

    ``part`` spells some bits of ``{v}``, those that ``mask`` keeps after it was moved so many to
    the right, or to the left where they are negative; ``looked_up`` the numbers of f4_e2m1 for
    fields of four bits.
    """
    found = {
        f"u{bits}" + (f"<<{up}" if up else ""): tuple(
            part(low - up, ((1 << bits) - 1) << up) for low in range(0, 8, bits)
        )
        for bits, up in ((4, 0), (2, 0), (2, 4), (1, 2), (1, 4), (1, 6))
    }
    return {**found, "f4_e2m1": tuple(looked_up(index) for index in found["u4"])}
