"""Copy C to the order of the large operand, if that makes a product with few rows faster."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from tilewright.spec.schedule import LARGE

from .arrays import contiguous_axis
from .families import SHORT, Class, short_line

Array = np.ndarray[Any, Any]

#: Least numbers of multiply-adds, for 4-byte elements, for which copying C saves time: in general,
#: and if C's contiguous rows (or columns) fill vectors. For example, copying makes 4096x16x4096
#: 1.4 times as fast on Emerald Rapids.
WORTH, WORTH_FILLED = 3 << 21, 1 << 26


def copied(a: Array, b: Array, out: Array, *, reads: bool) -> Array | None:
    """Return an array in a faster order for the product; the caller copies it to ``out`` later.

    It has the order of the larger operand. The result is None if the copy would save no time.

    If C has few rows, its tiles read rows of B. If B is then contiguous along N, C should be too.
    The same holds for few columns and A. The array holds the elements of ``out`` if the product
    ``reads`` them.

    Examples
    --------
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
    """Return the part of a class of sizes for which C is not copied, None if ``out`` is copied."""
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
    elif given[few] >= LARGE[few]:
        # A smaller number of rows is 1, which has another class.
        least[few] = max(least[few], LARGE[few])
    return sizes._replace(least=tuple(least), most=tuple(most))  # type: ignore[arg-type]


def _few(a: Array, b: Array, out: Array) -> int | None:
    """Return which of m (0) and n (1) must be small for C to be copied, None if C's order
    is good.
    """
    return short_line((contiguous_axis(a), contiguous_axis(b), contiguous_axis(out)))  # type: ignore[arg-type]


def _is_copied(given: tuple[int, int, int], few: int, worth: int) -> bool:
    m, n, k = given
    large = given[1 - few] >= LARGE[1 - few] and k >= LARGE[2]
    return 2 <= given[few] < LARGE[few] and large and m * n * k >= worth


def _worth(out: Array, lines: int) -> int:
    """Return the least number of multiply-adds for which a C of ``lines`` rows is copied.

    If C has few columns, ``lines`` is their number.
    """
    return (WORTH_FILLED if lines >= _filled(out) else WORTH) * 4 // out.itemsize


def _filled(out: Array) -> int:
    """Return the least length at which a row or column of C fills vectors."""
    return SHORT // out.itemsize + 1
