"""Small matrices of a product whose lines lie across those of a large one, and are copied."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from tilewright.spec.schedule import LARGE

from .arrays import contiguous_axis
from .families import Class

Array = np.ndarray[Any, Any]

#: Multiply-adds of 4 bytes an element from which on a copy takes less than it saves.
WORTH = 3 << 21
#: Rows of C from which on it pays to have no vectors along K; and those that fill vectors along M.
TALL, WHOLE = 6, (8, 16)


class Turned(NamedTuple):
    """The arrays that a product is computed with; ``out`` is to be copied back if it is another."""

    a: Array
    b: Array
    out: Array


def turned(a: Array, b: Array, out: Array, *, reads: bool) -> Turned | None:
    """Copies of the small ones of ``a``, ``b`` and ``out`` with lines along those of the large one.

    None where that gains nothing. With few rows of C a tile reads lines of B. Where these lie along
    K so must those of A, and where they lie along N those of C; several rows are transposed faster
    where those of A lie along M. So it is of few columns and A. What ``out`` held is copied too
    where the product ``reads`` it.

    >>> a, b, out = np.ones((3, 900), order="F"), np.ones((900, 900), order="F"), np.ones((3, 900))
    >>> found = turned(a, b, out, reads=False)
    >>> found.a.flags.c_contiguous, found.out is out
    (True, True)
    """
    if a.shape[0] > b.shape[1]:
        found = turned(b.T, a.T, out.T, reads=reads)
        return None if found is None else Turned(found.b.T, found.a.T, found.out.T)
    small = _small(a, b, out)
    if small is None:
        return None
    if small == "out":
        copied = np.array(out, order="C") if reads else np.empty(out.shape, out.dtype)
        return Turned(a, b, copied)
    return Turned(
        np.ascontiguousarray(a) if contiguous_axis(a) == 0 else np.asfortranarray(a), b, out
    )


def _small(a: Array, b: Array, out: Array) -> Literal["few", "out"] | None:
    """What is to be copied: the operand of few lines, or ``out``; None if nothing is."""
    (m, k), n = a.shape, b.shape[1]
    if m > n:
        return _small(b.T, a.T, out.T)
    if not 2 <= m < LARGE[0] or k < LARGE[2] or m * n * k < _worth(out):
        return None
    axes = contiguous_axis(a), contiguous_axis(b), contiguous_axis(out)
    if axes[1:] == (1, 0):
        return "out"
    across = axes == (0, 0, 1) and m not in WHOLE
    return "few" if across or (axes == (1, 0, 0) and m >= TALL) else None


def _worth(out: Array) -> int:
    return WORTH * 4 // out.itemsize


def apart(sizes: Class, a: Array, b: Array, out: Array) -> Class | None:
    """The products of ``sizes`` that are computed as they lie, as that of ``a`` and ``b`` is.

    None where that one is not, or they cannot be told from others by what each of m, n, k is at
    least and at most.
    """
    (m, k), n = a.shape, b.shape[1]
    if _small(a, b, out) is not None:
        return None
    lines = tuple(contiguous_axis(each) for each in (a, b, out))
    if lines in ((1, 1, 1), (0, 0, 0)):  # none of which is ever turned
        return sizes
    least, most = list(sizes.least), list(sizes.most)
    if m * n * k < _worth(out):
        most[3] = min(most[3], _worth(out) - 1)
    elif k < LARGE[2]:
        most[2] = min(most[2], LARGE[2] - 1)
    elif min(m, n) >= LARGE[0]:
        least[:2] = (max(each, LARGE[0]) for each in least[:2])
    elif min(m, n) >= 2 and max(m, n) < LARGE[0]:
        return None
    elif min(m, n) >= 2:
        few, rows = (0, m) if m < n else (1, n)
        first, last = (2, TALL - 1) if rows < TALL else (TALL, LARGE[0] - 1)
        first, last = (rows, rows) if rows in WHOLE else (first, last)
        least[few], most[few] = max(least[few], first), min(most[few], last)
        least[1 - few] = max(least[1 - few], LARGE[0])
    return sizes._replace(least=tuple(least), most=tuple(most))  # type: ignore[arg-type]
