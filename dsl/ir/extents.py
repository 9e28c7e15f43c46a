"""How many elements an operand has, and which of them a tile's pointers reach, as far as is known.

What depends on sizes known only at the call is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import TypeAlias

from tilewright.spec.signature import ArrayParameter
from tilewright.spec.sizes import Size
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import value

from .ops import Advance, Loop, Op

# --- pointers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where a pointer may point: from ``low`` to ``high`` elements behind ``base``; None: unknown.

    ``each``: behind the first element of one matrix of a batch, which is found by an offset or an
    address. ``table``: of pointers in place of elements.
    """

    base: str
    element: str
    written: bool = False
    low: int | None = 0
    high: int | None = 0
    each: bool = False
    table: bool = False

    def moved(self, least: int | None, most: int | None) -> Pointer:
        """Moved by ``least`` to ``most`` elements; None: by a number that only the call knows."""
        if self.low is None or self.high is None or least is None or most is None:
            return replace(self, low=None, high=None)
        return replace(self, low=self.low + least, high=self.high + most)


#: Of each parameter, and (True) of each one's matrix of a batch: the elements that are touched,
#: from the first to the one behind the last.
Reach: TypeAlias = dict[tuple[str, bool], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Touched:
    """What a tile touches, as far as it is known.

    ``written`` are the stretches of elements that it writes behind each parameter, each from its
    first element to the one behind its last; not those of a loop that moves its pointers.
    """

    reach: Reach
    written: Mapping[str, Set[tuple[int, int]]]


def advances(ops: tuple[Op, ...]) -> dict[str, int | None]:
    """By how much operations advance pointers; None: only the call knows."""
    found: dict[str, int | None] = {}
    for op in ops:
        if isinstance(op, Advance):
            step = value(op.step)
            before = found.get(op.pointer, 0)
            found[op.pointer] = None if step is None or before is None else before + step
        elif isinstance(op, Loop):
            trips = value(op.trips)
            for name, step in advances(op.body).items():
                before = found.get(name, 0)
                known = step is not None and before is not None and trips is not None
                found[name] = before + step * trips if known else None  # type: ignore[operator]
    return found


def between(pointer: Pointer, step: int | None, last: int | None) -> Pointer:
    """A pointer where any trip begins, from the first to the ``last``."""
    if step is None or last is None:
        return pointer.moved(0, 0) if step == 0 else pointer.moved(None, None)
    return pointer.moved(min(0, step * last), max(0, step * last))


def behind(pointer: Pointer, step: int | None, trips: int | None) -> Pointer:
    """A pointer behind all trips."""
    whole = None if step is None or trips is None else step * trips
    return pointer.moved(whole, whole)


# --- operands ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """An operand or buffer where a node stands.

    ``whole`` are its elements, all matrices of a batch included, ``each`` those of one matrix;
    None: only the call knows. ``batch`` says how one of ``count`` matrices is found, "" alone.
    """

    element: str
    written: bool
    whole: int | None
    each: int | None = None
    batch: str = ""
    count: int | None = None


_BATCHES = {"strided": "strided", "flat": "offsets", "sequence": "addresses"}


def held(parameter: ArrayParameter, packed: int | None) -> Held:
    """What a kernel is given; ``packed`` are the bytes of one matrix."""
    count, element = _known(parameter.count), parameter.element
    batch = _BATCHES.get(parameter.kind, "")
    if packed is not None:
        each: int | None = packed // ITEMSIZE[element]
        if parameter.role != "in":
            count = _known(parameter.shape[0])
        elif parameter.count is None:
            count = 1
        else:
            batch = batch or "strided"
        several = 1 if parameter.batch_stride == 0 else count
        if parameter.kind == "flat":
            static = parameter.static_offsets
            several = None if static is None else max(static, default=-1) + 1
        whole = None if several is None or each is None else several * each
        return Held(element, parameter.role != "in", whole, each, batch, count)
    rows, cols = (1, 1, *parameter.shape)[-2:]
    lines, line = (rows, cols) if parameter.order == "C" else (cols, rows)
    leading = line if parameter.leading is None else parameter.leading
    each = _matrix(_known(lines), _known(line), _known(leading))
    whole = each if not batch else _batched(parameter, each, _known(lines), _known(leading))
    return Held(element, parameter.role != "in", whole, each, batch, count)


def _known(size: Size | None) -> int | None:
    return size if isinstance(size, int) else None


def _matrix(lines: int | None, line: int | None, leading: int | None) -> int | None:
    """From the first element to the last."""
    if 0 in (lines, line):
        return 0
    if lines is None or line is None or (leading is None and lines != 1):
        return None
    return (lines - 1) * (leading or 0) + line


def _batched(
    parameter: ArrayParameter, each: int | None, lines: int | None, leading: int | None
) -> int | None:
    """From the first element of the first matrix to the last of the last."""
    count, offsets = _known(parameter.count), parameter.static_offsets
    if each is None or count == 0:
        return each
    if parameter.kind == "flat":
        return None if offsets is None else max(offsets, default=0) + each
    stride = parameter.batch_stride
    if stride is None and lines is not None and leading is not None:
        stride = lines * max(leading, 1)
    return (count - 1) * stride + each if isinstance(stride, int) and count is not None else None
