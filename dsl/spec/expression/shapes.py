"""Shapes and types of tensors: how they broadcast, and what is left of them by a reduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tilewright.errors import SpecError

from ..sizes import Size
from ..types import TypeName


class Shaped(NamedTuple):
    """The element type and the shape of a tensor, or of a value computed from tensors."""

    type: TypeName
    shape: tuple[Size, ...]

    def __str__(self) -> str:
        return f"{self.type} of shape {said(self.shape)}"


def said(shape: Sequence[Size]) -> str:
    """Return a shape as text, for example ``(rows, 768)``."""
    sizes = [str(size) if isinstance(size, int) else size.name for size in shape]
    return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"


def together(fn: str, given: Sequence[Shaped]) -> Shaped:
    """Return the type and shape of function ``fn`` of tensors, which broadcast as numpy has it.

    Arithmetic is in f32, or in f64 if all tensors are f64.
    """
    wide = [one.type == "f64" for one in given]
    if any(wide) and not all(wide):
        raise SpecError(
            f"{fn} mixes f64 with another type",
            got=" and ".join(map(str, given)),
            expected="f64 alone, or no f64",
        )
    shape = given[0].shape
    for other in given[1:]:
        if other.shape != shape:
            shape = _both(fn, shape, other.shape)
    return Shaped("f64" if wide[0] else "f32", shape)


def _both(fn: str, one: tuple[Size, ...], other: tuple[Size, ...]) -> tuple[Size, ...]:
    axes = max(len(one), len(other))
    pairs = zip(*((1,) * (axes - len(shape)) + shape for shape in (one, other)), strict=True)
    sizes: list[Size] = []
    for x, y in pairs:
        if x != y and 1 not in (x, y):
            raise SpecError(
                f"shapes do not fit together in {fn}",
                got=f"{said(one)} and {said(other)}",
                expected="sizes that are equal, or 1, counted from the last axis",
                hint="keepdims=True keeps the axis that a reduction leaves with size 1",
            )
        sizes.append(y if x == 1 else x)
    return tuple(sizes)


def reduced(fn: str, given: Shaped | None, axis: int, keepdims: bool) -> Shaped:
    """Return what a reduction along ``axis`` leaves; SpecError if there is no such axis."""
    if given is None:
        raise SpecError(
            f"nn.{fn} reduces tensors",
            got="an expression without a tensor",
            hint="an epilogue is of one element; outputs={'top': tw.row_max(...)} reduces rows",
        )
    axes = len(given.shape)
    if not -axes <= axis < axes:
        raise SpecError(
            f"nn.{fn}: there is no axis {axis}", got=str(given), expected=f"{-axes} to {axes - 1}"
        )
    at = axis % axes
    if fn in ("max", "min") and given.shape[at] == 0:
        raise SpecError(
            f"nn.{fn} along an axis of size 0 has no value", got=str(given), expected="1 or more"
        )
    left = (1,) if keepdims else ()
    kept: TypeName = "f64" if given.type == "f64" else "f32"
    return Shaped(kept, (*given.shape[:at], *left, *given.shape[at + 1 :]))
