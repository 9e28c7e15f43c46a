"""What an array holds, and how its matrices lie: contiguous lines along one axis, apart."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tilewright.errors import ArgumentTypeError
from tilewright.runtime.arrays.views import OF_ANY, is_masked, what_to_do
from tilewright.spec.operands import Order
from tilewright.spec.types import INPUTS, TYPES

#: What ``contiguous_axis`` finds, as numpy calls it.
ORDERS: tuple[Order, Order] = ("F", "C")


def contiguous_axis(array: np.ndarray[Any, Any]) -> int | None:
    """The axis, 1 or else 0, along which each matrix of ``array`` has contiguous lines; or None.

    The last two axes are the matrix. The lines are in order, apart, and a whole number of elements
    from each other. Where both axes could be said it is 1, but for a column whose elements follow
    each other. As ``tw_lines`` of templates/matmul/matrix.h.j2 decides it.
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


def type_of(array: Any, name: str) -> str:
    """The element type of an array; ArgumentTypeError if it is none, or of another type."""
    if not isinstance(array, np.ndarray) or is_masked(array):
        raise ArgumentTypeError(
            f"{name} must be a numpy array",
            got=type(array).__name__,
            expected=OF_ANY,
            hint=what_to_do(array, name) or f"np.asarray({name})",
        )
    return _named(array.dtype, name)


@cache
def _named(dtype: np.dtype[Any], name: str) -> str:
    known = TYPES if name == "out" else INPUTS
    if dtype.isnative:
        found = next((t for t in known if TYPES[t].numpy == dtype.name), None)
        if found is not None:
            return found
    raise ArgumentTypeError(
        f"{name} has a type that is not multiplied",
        got=dtype.str if not dtype.isnative else dtype.name,
        expected=", ".join(TYPES[t].numpy for t in known),
        hint="astype(np.float32), or to(torch.float32) of a tensor",
    )
