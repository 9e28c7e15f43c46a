"""Define ``Tensor``, which declares the type, shape and strides of an array of a network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tilewright.errors import SpecError, SpecTypeError
from tilewright.keywords import spelled

from ..quantized import Quantized
from ..sizes import Size, call_text, check_extent, check_size, most_of
from ..types import ITEMSIZE, DTypeLike, TypeName, type_name

#: The largest number of axes of a tensor.
MOST_AXES = 6


@spelled(SpecTypeError)
@dataclass(frozen=True, slots=True, init=False, repr=False)
class Tensor:
    """An array that a network takes or returns: its type, its shape, and how it lies in memory.

    Parameters
    ----------
    type : str, numpy type or Quantized
        Element type. A weight may have a low-bit format.
    shape : sequence of int or Dim
        Size of each axis. A ``tw.dim`` is read from the arrays at the call.
    strides : sequence of int or Dim, optional
        Elements from one index of an axis to the next. By default the array has no gaps.

    Raises
    ------
    SpecError
        The type, a size or a stride is not possible.

    Examples
    --------
    >>> tw.Tensor("f32", (tw.dim("rows"), 768))
    Tensor('f32', (dim('rows'), 768))
    """

    type: TypeName | Quantized
    shape: tuple[Size, ...]
    strides: tuple[Size, ...] | None

    def __init__(
        self,
        type: DTypeLike | Quantized,
        shape: Iterable[Size] | Size,
        strides: Iterable[Size] | None = None,
    ) -> None:
        found = type if isinstance(type, Quantized) else type_name(type)
        sizes = _sizes(shape, "shape", "a size of a tensor")
        steps = None if strides is None else _sizes(strides, "strides", "a stride of a tensor")
        if steps is not None and len(steps) != len(sizes):
            raise SpecError(
                "a tensor has a stride for each axis",
                got=f"{len(steps)} strides, {len(sizes)} axes",
            )
        if steps is not None and len(sizes) > 2:
            raise SpecError(
                "a tensor with more than two axes has no gaps",
                got=f"strides {steps}",
                expected="no strides",
            )
        if steps and 1 not in steps:
            raise SpecError(
                "the elements of a tensor follow each other along one axis",
                got=f"strides {steps}",
                expected="a stride of 1",
                hint="the whole array, of which the function takes x[:, ::2]",
            )
        if steps is not None and len(sizes) == 2:
            steps = None if _one_line(sizes, steps) else steps
        if steps is not None and len(sizes) == 2:
            _check_rows(sizes, steps)
        check_extent(sizes, 8 if isinstance(found, Quantized) else ITEMSIZE[found], "a tensor")
        object.__setattr__(self, "type", found)
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "strides", steps)

    def __repr__(self) -> str:
        options = {"strides": (self.strides, None)}
        return call_text("Tensor", [self.type, self.shape], options)


def _one_line(sizes: tuple[Size, ...], steps: tuple[Size, ...]) -> bool:
    """Return True if a matrix is one contiguous row or column: the other axis has any stride."""
    return any(
        sizes[axis] == 1 == steps[1 - axis] and isinstance(steps[axis], int) for axis in (0, 1)
    )


def _check_rows(sizes: tuple[Size, ...], steps: tuple[Size, ...]) -> None:
    """Raise SpecError if rows of a matrix share elements; columns, if these are contiguous."""
    turned = steps[0] == 1 != steps[1]
    what, line, step = ("column", sizes[0], steps[1]) if turned else ("row", sizes[1], steps[0])
    least = line if isinstance(line, int) else 1
    if most_of(step) < least:
        repeated = (1, sizes[1]) if what == "row" else (sizes[0], 1)
        raise SpecError(
            f"{what}s of a tensor share elements",
            got=f"strides {steps} of shape {sizes}",
            expected=f"{least} elements or more from one {what} to the next",
            hint=f"shape {repeated}, which broadcasts" if step == 0 else "no strides",
        )


def _sizes(given: Any, name: str, what: str) -> tuple[Size, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = (given,)
    found = tuple(check_size(size, what) for size in given)
    if len(found) > MOST_AXES:
        raise SpecError(f"a tensor has at most {MOST_AXES} axes: {name} has more", got=found)
    return found
