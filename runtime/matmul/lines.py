"""How the matrix in an array lies: contiguous lines along one axis, a leading dimension apart."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.spec.operands import Order

#: What ``contiguous_axis`` finds, as numpy calls it.
ORDERS: tuple[Order, Order] = ("F", "C")


def contiguous_axis(array: np.ndarray[Any, Any]) -> int | None:
    """The axis, 1 or else 0, along which each matrix of ``array`` has contiguous lines; or None.

    The last two axes are the matrix. The lines are in order, apart, and a whole number of elements
    from each other. Where both axes could be said it is 1, but for a column whose elements follow
    each other. As ``tw_lines`` of templates/dispatch/dispatch_routes.h.j2 decides it.
    """
    (rows, columns), (across, along) = array.shape[-2:], array.strides[-2:]
    item = array.itemsize
    if columns == 1 and rows > 1 and across == item:
        return 0
    if _lines(rows, columns, across, along, item):
        return 1
    return 0 if _lines(columns, rows, along, across, item) else None


def _lines(lines: int, length: int, between: int, within: int, item: int) -> bool:
    whole = lines < 2 or (between % item == 0 and between // item >= length)
    return whole and (length < 2 or within == item)


def disjoint(array: np.ndarray[Any, Any]) -> bool:
    """Whether no two elements of ``array`` share memory, as far as its strides show plainly."""
    found = [(s, n) for s, n in zip(map(abs, array.strides), array.shape, strict=True) if n > 1]
    reach = array.itemsize
    if not array.size:
        return True
    for stride, count in sorted(found):
        if stride < reach:
            return False
        reach += stride * (count - 1)
    return True
