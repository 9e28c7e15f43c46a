"""Products of few lines whose C lies across a large matrix: they are computed in a copy of C."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from tilewright.spec.schedule import LARGE

from .arrays import contiguous_axis
from .families import SHORT, Class, short_line

Array = np.ndarray[Any, Any]

#: Multiply-adds of 4 bytes an element from which on a copy takes less than it saves; and where
#: lines of C fill vectors as they lie. On Emerald Rapids 1000x31x1280 in f32 takes 0.67 ms as it
#: lies, 1.06 with a copy, and 4096x16x4096 8.3 and 6.1.
WORTH, WORTH_FILLED = 3 << 21, 1 << 26


def copied(a: Array, b: Array, out: Array, *, reads: bool) -> Array | None:
    """An array with the lines of the large one of ``a`` and ``b``, to be copied to ``out``.

    None where that gains nothing. Few rows of C are tiles that read lines of B. Where these lie
    along N, those of ``out`` must. So it is of few columns, and lines of A. It holds what ``out``
    does where the product ``reads`` it.

    >>> a, b, out = np.ones((3, 900)), np.ones((900, 900)), np.ones((3, 900), order="F")
    >>> copied(a, b, out, reads=False).flags.c_contiguous
    True
    """
    (m, k), n = a.shape, b.shape[1]
    few = _few(a, b, out)
    if few is None or not _is_copied((m, n, k), few, _worth(out, out.shape[few])):
        return None
    order: Literal["C", "F"] = "F" if few else "C"
    return np.array(out, order=order) if reads else np.empty(out.shape, out.dtype, order)


def as_it_lies(sizes: Class, a: Array, b: Array, out: Array) -> Class | None:
    """The products of ``sizes`` that are computed where C lies, as that of ``a`` and ``b`` is.

    None if that one is not.
    """
    (m, k), n = a.shape, b.shape[1]
    few = _few(a, b, out)
    if few is None:
        return sizes
    worth = _worth(out, out.shape[few])
    given = m, n, k
    if _is_copied(given, few, worth):
        return None
    least, most = list(sizes.least), list(sizes.most)
    if m * n * k < worth:
        most[3] = min(most[3], worth - 1)
        filled = _filled(out)
        if given[few] >= filled:
            least[few] = max(least[few], filled)
        else:
            most[few] = min(most[few], filled - 1)
    elif k < LARGE[2]:
        most[2] = min(most[2], LARGE[2] - 1)
    elif given[1 - few] < LARGE[1 - few]:
        most[1 - few] = min(most[1 - few], LARGE[1 - few] - 1)
    elif given[few] >= LARGE[few]:  # else it is one line, which has a class of its own
        least[few] = max(least[few], LARGE[few])
    return sizes._replace(least=tuple(least), most=tuple(most))  # type: ignore[arg-type]


def _few(a: Array, b: Array, out: Array) -> int | None:
    """Which of m and n must be few for C to be copied: 0 or 1; None where it lies well."""
    return short_line((contiguous_axis(a), contiguous_axis(b), contiguous_axis(out)))  # type: ignore[arg-type]


def _is_copied(given: tuple[int, int, int], few: int, worth: int) -> bool:
    m, n, k = given
    large = given[1 - few] >= LARGE[1 - few] and k >= LARGE[2]
    return 2 <= given[few] < LARGE[few] and large and m * n * k >= worth


def _worth(out: Array, lines: int) -> int:
    """From how many multiply-adds on so few lines of C are copied."""
    return (WORTH_FILLED if lines >= _filled(out) else WORTH) * 4 // out.itemsize


def _filled(out: Array) -> int:
    """The least elements of a line of C that fill vectors."""
    return SHORT // out.itemsize + 1
