"""Compute how many elements an operand has, and which elements the pointers of a tile reach.

A number is None if it depends on sizes that are known only at the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from tilewright.spec.signature import ArrayParameter
from tilewright.spec.sizes import Size
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import value

from .ops import Advance, Loop, Op

# --- pointers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pointer:
    """The range to which a pointer may point: ``low`` to ``high`` elements after ``base``.

    Both are None if the range is unknown.

    If ``each`` is true, ``base`` is the first element of one matrix of a batch, which is found by
    an offset or an address. If ``table`` is true, ``base`` holds pointers instead of elements.
    """

    base: str
    element: str
    written: bool = False
    low: int | None = 0
    high: int | None = 0
    each: bool = False
    table: bool = False

    def moved(self, least: int | None, most: int | None) -> Pointer:
        """Return the pointer moved by ``least`` to ``most`` elements; None means unknown."""
        if self.low is None or self.high is None or least is None or most is None:
            return replace(self, low=None, high=None)
        return replace(self, low=self.low + least, high=self.high + most)


#: For each parameter, the first element that a tile touches, and the one after the last. A key is
#: (name, flag). The flag is True if elements are counted from the beginning of a matrix of a batch,
#: not of the whole array.
Reach: TypeAlias = dict[tuple[str, bool], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Touched:
    """The elements that one call of a tile touches, as far as they are known before the call.

    ``reach`` has the range of touched elements for each parameter.

    ``written`` has the ranges of elements that the tile writes, by parameter. Each range is given
    by its first element and the one after its last. Writes through pointers that a loop moves are
    not included.
    """

    reach: Reach
    written: Mapping[str, Set[tuple[int, int]]]


def advances(ops: tuple[Op, ...]) -> dict[str, int | None]:
    """Return the elements by which ``ops`` advance each pointer; None if known only at the call."""
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
    """Return the range of a pointer when iterations 0 to ``last`` of a loop begin.

    Each iteration advances the pointer by ``step`` elements.
    """
    if step is None or last is None:
        return pointer.moved(0, 0) if step == 0 else pointer.moved(None, None)
    return pointer.moved(min(0, step * last), max(0, step * last))


def behind(pointer: Pointer, step: int | None, trips: int | None) -> Pointer:
    """Return the range of a pointer after a loop whose ``trips`` iterations add ``step`` each."""
    whole = None if step is None or trips is None else step * trips
    return pointer.moved(whole, whole)


# --- operands ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """The sizes of an operand or buffer that a nest uses.

    - ``whole``: its number of elements in all matrices of a batch; None if only the call knows.
    - ``each``: elements of one matrix of the batch.
    - ``batch``: the way to find one of ``count`` matrices, "" if there is only one.
    """

    element: str
    written: bool
    whole: int | None
    each: int | None = None
    batch: str = ""
    count: int | None = None


_BATCHES = {"strided": "strided", "flat": "offsets", "sequence": "addresses"}


def held(parameter: ArrayParameter, packed: Mapping[str, int | None]) -> Held:
    """Return the sizes of the operand that ``parameter`` passes.

    ``packed`` gives the bytes of one matrix of each packed operand, None if only the call knows.
    """
    count, element = _known(parameter.count), parameter.element
    batch = _BATCHES.get(parameter.kind, "")
    if parameter.name in packed:
        nbytes = packed[parameter.name]
        each = None if nbytes is None else nbytes // ITEMSIZE[element]
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
    if parameter.kind == "tensor":
        sizes = [size for size in parameter.shape if isinstance(size, int)]
        whole = prod(sizes) if len(sizes) == len(parameter.shape) or 0 in sizes else None
        return Held(element, parameter.role != "in", whole, whole)
    rows, cols = (1, 1, *parameter.shape)[-2:]
    lines, line = (rows, cols) if parameter.order == "C" else (cols, rows)
    leading = line if parameter.leading is None else parameter.leading
    each = _matrix(_known(lines), _known(line), _known(leading))
    whole = each if not batch else _batched(parameter, each, _known(lines), _known(leading))
    return Held(element, parameter.role != "in", whole, each, batch, count)


def _known(size: Size | None) -> int | None:
    return size if isinstance(size, int) else None


def _matrix(lines: int | None, line: int | None, leading: int | None) -> int | None:
    """Return the elements that a matrix spans in memory, from its first to its last."""
    if 0 in (lines, line):
        return 0
    if lines is None or line is None or (leading is None and lines != 1):
        return None
    return (lines - 1) * (leading or 0) + line


def _batched(
    parameter: ArrayParameter, each: int | None, lines: int | None, leading: int | None
) -> int | None:
    """Return the elements that a whole batch spans in memory, from the first to the last."""
    count, offsets = _known(parameter.count), parameter.static_offsets
    if each is None or count == 0:
        return each
    if parameter.kind == "flat":
        return None if offsets is None else max(offsets, default=0) + each
    stride = parameter.batch_stride
    if stride is None and lines is not None and leading is not None:
        stride = lines * max(leading, 1)
    return (count - 1) * stride + each if isinstance(stride, int) and count is not None else None
