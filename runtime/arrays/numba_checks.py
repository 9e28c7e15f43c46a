"""The checks of a call, as functions that numba compiles; importing it imports numba.

``row`` is an array's in the table of ``numba_table``; ``known`` holds the dims that were learnt, -1
for others.
"""

from __future__ import annotations

from typing import Any

import numba
from numba.extending import overload

from .numba_table import ALIGNED, AXES, DIM, ITEM, LEADING, LINE, STEP, TIGHT, WRITTEN

_IS_DIM = DIM // 2

# --- one array ---------------------------------------------------------------------------------


def _agrees(known: Any, wanted: int, got: int) -> bool:
    """Whether a size is the number that is wanted, or the dim, which is learnt if it is new."""
    if wanted > _IS_DIM:
        return wanted == got
    if known[wanted - DIM] < 0:
        known[wanted - DIM] = got
    return known[wanted - DIM] == got  # type: ignore[no-any-return]


_agree = numba.njit(_agrees)


def _check_shape(x: Any, row: Any, known: Any) -> None:
    for axis in range(x.ndim):
        if not _agree(known, row[AXES - x.ndim + axis], x.shape[axis]):
            raise ValueError("an array has the wrong shape for this kernel")


def _check_lines(x: Any, row: Any) -> None:
    line = x.ndim - 2 + row[LINE]
    if x.shape[line] > 1 and x.strides[line] != row[ITEM]:
        raise ValueError("an array's lines are not contiguous, or of the other order")


def _check_leading(x: Any, row: Any, known: Any) -> None:
    line, other = x.ndim - 2 + row[LINE], x.ndim - 1 - row[LINE]
    step = x.strides[other] // row[ITEM]
    if x.shape[other] > 1 and (
        x.strides[other] != step * row[ITEM]
        or step < x.shape[line]
        or not _agree(known, row[LEADING], step)
    ):
        raise ValueError("an array has the wrong leading dimension for this kernel")


def _check_step(x: Any, row: Any, known: Any) -> None:
    """The distance of the matrices of a stack."""
    line, other = x.ndim - 2 + row[LINE], x.ndim - 1 - row[LINE]
    step, matrices = x.strides[other] // row[ITEM], x.strides[0] // row[ITEM]
    if row[STEP] == TIGHT:
        right = matrices == x.shape[other] * (step if x.shape[other] > 1 else x.shape[line])
    else:
        right = _agree(known, row[STEP], matrices)
    if not right or x.strides[0] != matrices * row[ITEM] or matrices < 0:
        raise ValueError("an array has the wrong batch stride for this kernel")


_shape, _lines, _leading, _step = map(
    numba.njit, (_check_shape, _check_lines, _check_leading, _check_step)
)


def check(x: Any, row: Any, known: Any) -> None:
    """ValueError unless an array fits its row; a number always does."""
    raise NotImplementedError


def _typed_check(x: Any, row: Any, known: Any) -> Any:
    def of_number(x: Any, row: Any, known: Any) -> None:
        return

    def of_array(x: Any, row: Any, known: Any) -> None:
        _shape(x, row, known)
        if x.size == 0:
            return
        if x.ctypes.data % row[ALIGNED]:
            raise ValueError("a packed matrix does not begin at a multiple of 64 bytes")
        _lines(x, row)
        if x.ndim > 1:
            _leading(x, row, known)
        if x.ndim == 3 and x.shape[0] > 1:
            _step(x, row, known)

    return of_array if isinstance(x, numba.types.Array) else of_number


overload(check)(_typed_check)


def ends(x: Any, bounds: Any) -> Any:
    """The address of an array, whose ends are put into ``bounds``; a number is itself."""
    raise NotImplementedError


def _typed_ends(x: Any, bounds: Any) -> Any:
    def of_number(x: Any, bounds: Any) -> Any:
        return x

    def of_array(x: Any, bounds: Any) -> Any:
        first = x.ctypes.data
        last = first + x.itemsize if x.size else first
        for axis in range(x.ndim):
            last += (x.shape[axis] - 1) * x.strides[axis] if x.size else 0
        if bounds.size:
            bounds[0], bounds[1] = first, last
        return first

    return of_array if isinstance(x, numba.types.Array) else of_number


overload(ends)(_typed_ends)

# --- all of them -------------------------------------------------------------------------------


def _fill(wanted: Any, limits: Any, known: Any, slots: Any, values: Any) -> None:
    for row in wanted:
        for column in (LEADING, STEP):
            at = row[column] - DIM
            if row[column] < _IS_DIM and known[at] < 0:
                line = row[1 + row[LINE]]
                line = known[line - DIM] if line < _IS_DIM else line
                multiple = limits[at, 0]
                up = max(-(-line // multiple) * multiple, multiple)
                known[at] = up if column == LEADING else 0
    for at in range(len(slots)):
        value = known[slots[at]]
        multiple, most = limits[slots[at]]
        if value < 0 or value > most or value % multiple:
            raise ValueError("a size of the call is beyond the limits of its dim")
        values[at] = value


def _apart(wanted: Any, bounds: Any) -> None:
    for i in range(len(wanted)):
        for j in range(len(wanted)):
            meets = bounds[i, 0] < bounds[j, 1] and bounds[j, 0] < bounds[i, 1]
            if i != j and wanted[i, WRITTEN] and meets:
                raise ValueError("an array that is written shares memory with another")


#: Puts the sizes of the call into ``values``; ValueError beyond the limits of a dim.
fill = numba.njit(_fill)
#: ValueError where an array that is written overlaps another.
apart = numba.njit(_apart)
