"""Decide exactly whether two operands share memory, by comparing the bytes of their rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn

import numpy as np

from tilewright.errors import ArgumentValueError
from tilewright.runtime.arrays.memory import address
from tilewright.spec.signature import ArrayParameter, Signature

from .bound_sizes import Array, Known

#: Maximum number of differences of places that are compared to find elements that share memory.
_DIFFERENCES = 1 << 22


class Region(NamedTuple):
    """The memory of a matrix: ``lines`` rows (or columns) of ``bytes`` bytes, ``step`` bytes apart.

    The first line begins at the address ``start``.
    """

    start: int
    lines: int
    step: int
    bytes: int

    @property
    def end(self) -> int:
        """Address after the region's last byte."""
        return self.start + (self.lines - 1) * self.step + self.bytes


def overlap(a: Region, b: Region) -> bool:
    """Return True if a byte is in both regions. Steps are positive, and the lines of a region do
    not overlap.

    Let ``from`` be the start of line i of ``a``, relative to ``b``. The line meets line j of ``b``
    if ``j*b.step`` is between ``from - b.bytes`` and ``from + a.bytes``. It is enough to test the
    first j above the lower bound.
    """
    if min(a.lines, b.lines, a.bytes, b.bytes) <= 0 or a.end <= b.start or b.end <= a.start:
        return False
    if b.lines < a.lines:
        a, b = b, a
    distance = a.start - b.start
    # With equal steps, only the difference of two line numbers matters.
    if a.step == b.step:
        j = max((distance - b.bytes) // b.step + 1, 1 - a.lines)
        return j < b.lines and j * b.step < distance + a.bytes
    begins = distance + np.arange(a.lines, dtype=np.int64) * a.step
    j_first = np.maximum((begins - b.bytes) // b.step + 1, 0)
    return bool(np.any((j_first < b.lines) & (j_first * b.step < begins + a.bytes)))


def any_overlap(out: Region, inputs: Sequence[Region]) -> int | None:
    """Return the index of the first of ``inputs`` that shares a byte with ``out``, or None."""
    return next((i for i, region in enumerate(inputs) if overlap(out, region)), None)


def check_overlaps(signature: Signature, arrays: tuple[Any, ...], known: Known) -> None:
    """Raise ArgumentError if an output shares an element with an input or another output."""
    held = [
        regions(parameter, given, known, _offsets(signature, arrays, parameter))
        for parameter, given in zip(signature.arrays, arrays, strict=True)
    ]
    shared = signature.shared()
    for written, parameter in enumerate(signature.arrays):
        if parameter.role == "in":
            continue
        if len(held[written]) != 1:
            _check_stack(signature, arrays, written, shared[written])
            continue
        (out,) = held[written]
        for other, inputs in enumerate(held):
            if other == written or (other in shared[written] and inputs == [out]):
                continue
            found = any_overlap(out, inputs)
            if found is not None:
                _shared(parameter, out, signature.arrays[other], inputs, found)


def _check_stack(
    signature: Signature, arrays: tuple[Any, ...], written: int, shared: Collection[int]
) -> None:
    """Raise ArgumentError if an output stack shares elements with an input or within itself."""
    output, out = signature.arrays[written], arrays[written]
    for other, parameter in enumerate(signature.arrays):
        given = arrays[other]
        if other == written or (other in shared and _alike(given, out)):
            continue
        items = given if parameter.kind == "sequence" else (given,)
        for item in items:
            array = item.data if parameter.packed else item
            if np.shares_memory(out, array):
                start, other_start = (np.lib.array_utils.byte_bounds(x)[0] for x in (out, array))
                _refuse(output, parameter, "", start - other_start)
    if not disjoint(out):
        raise ArgumentValueError(
            f"matrices of {output.name} share elements",
            got=f"shape {out.shape}, strides {out.strides} bytes",
            hint="an array of its own",
        )


def _alike(given: Any, out: Array) -> bool:
    """Return True if two arrays have the same elements at the same addresses."""
    same = (given.shape, given.strides) == (out.shape, out.strides)
    return same and address(given) == address(out)


def disjoint(array: Array) -> bool:
    """Return True if no two elements of ``array`` share memory.

    It is decided by the strides alone, exactly for up to two axes with several elements, and for
    more of them unless there are very many elements.
    """
    found = [(s, n) for s, n in zip(map(abs, array.strides), array.shape, strict=True) if n > 1]
    reach = array.itemsize
    if not array.size:
        return True
    for stride, count in sorted(found):
        if stride < reach:
            return _interleaved(found, array.itemsize)
        reach += stride * (count - 1)
    return True


def _interleaved(axes: Sequence[tuple[int, int]], itemsize: int) -> bool:
    """Return True if no two places of ``axes``, strides and counts, are closer than an item.

    All differences along the shorter axes are compared with the nearest multiple of the stride of
    the longest one.
    """
    *shorter, (stride, count) = sorted(axes, key=itemgetter(1))
    if stride < itemsize or prod(2 * n for _, n in shorter) > _DIFFERENCES:
        return False
    apart = np.zeros(1, np.int64)
    for step, n in shorter:
        apart = (apart[:, np.newaxis] + step * np.arange(1 - n, n)).reshape(-1)
    nearest = np.clip(np.rint(-apart / stride), 1 - count, count - 1).astype(np.int64)
    near = np.abs(apart + nearest * stride) < itemsize
    near[len(near) // 2] = False  # no step along the shorter axes; the longest one is wide enough
    return not near.any()


def _shared(
    output: ArrayParameter, out: Region, other: ArrayParameter, held: list[Region], found: int
) -> NoReturn:
    which = f" ({'matrix' if other.kind != 'sequence' else 'array'} {found})"
    _refuse(output, other, which if len(held) > 1 else "", out.start - held[found].start)


def _refuse(output: ArrayParameter, other: ArrayParameter, which: str, after: int) -> NoReturn:
    """Raise the error; the output starts ``after`` bytes after ``other``, or before if negative."""
    where = f"{abs(after)} bytes {'after' if after > 0 else 'before'} {other.name}{which}"
    raise ArgumentValueError(
        f"{output.name} shares elements with {other.name}{which}",
        got=f"{output.name} starts {where if after else f'where {other.name}{which} starts'}",
        expected="an output that has no element in common with the other arrays",
        hint=f"pass {other.name}.copy()",
    )


def _offsets(
    signature: Signature, arrays: tuple[Any, ...], parameter: ArrayParameter
) -> Sequence[int] | None:
    if parameter.kind != "flat":
        return None
    if parameter.static_offsets is not None:
        return parameter.static_offsets
    named = parameter.offsets
    at = next(i for i, p in enumerate(signature.arrays) if p.name == named)
    return [int(offset) for offset in arrays[at]]


def _line(array: Array) -> Region:
    return Region(address(array), 1, max(array.nbytes, 1), array.nbytes)


def _check_matrices(parameter: ArrayParameter, given: Any, offsets: Sequence[int]) -> None:
    """Raise ArgumentError if an offset selects a matrix that a packed operand does not have."""
    count = given.shape[0] if len(given.shape) == 3 else 1
    for i, offset in enumerate(offsets):
        if not 0 <= offset < count:
            raise ArgumentValueError(
                f"offset {i} of {parameter.name} counts to no packed matrix",
                got=offset,
                expected=f"0 to {count - 1}: {parameter.name} has {count}, and offsets of a packed "
                "operand count whole matrices"
                if count
                else f"no offset: {parameter.name} has no matrix",
            )


def regions(
    parameter: ArrayParameter, given: Any, known: Known, offsets: Sequence[int] | None
) -> list[Region]:
    """Return the memory of each matrix of an operand; ArgumentError if an offset is wrong."""
    itemsize = parameter.itemsize
    if parameter.packed:
        if offsets is not None:
            _check_matrices(parameter, given, offsets)
        items = given if parameter.kind == "sequence" else (given,)
        return [_line(item.data) for item in items]
    if parameter.kind in ("offsets", "vector", "tensor"):
        return [_line(given)]
    line, lines = known.lines(parameter)
    leading = line if parameter.leading is None else known.value(parameter.leading)
    step = max(leading if lines > 1 else line, 1) * itemsize
    one = Region(0, lines, step, line * itemsize)
    if parameter.kind == "sequence":
        return [one._replace(start=address(array)) for array in given]
    start = address(given)
    if offsets is not None:
        extent = (lines - 1) * leading + line if line and lines else 0
        for i, offset in enumerate(offsets):
            if not 0 <= offset <= len(given) - extent:
                raise ArgumentValueError(
                    f"offset {i} of {parameter.name} lies outside the array",
                    got=f"{offset}, and a matrix takes {extent} elements",
                    expected=f"0 to {len(given) - extent}: {parameter.name} has {len(given)}"
                    if len(given) >= extent
                    else f"{parameter.name} of at least {extent} elements; it has {len(given)}",
                )
        return [one._replace(start=start + offset * itemsize) for offset in offsets]
    if given.ndim == 3:
        return [one._replace(start=start + i * given.strides[0]) for i in range(given.shape[0])]
    return [one._replace(start=start)]
