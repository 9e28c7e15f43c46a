"""Shapes and types of tensors: how they broadcast, and what is left of them by a reduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tilewright.errors import SpecError

from ..sizes import Size, joined_size, terms_of
from ..types import TypeName

#: The maximum length of an operand's text in an error message.
_SHOWN = 80


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
                got=f"{said(one)} and {said(other)}"
                if said(one) != said(other)
                else f"{x!r}, {y!r}",
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


def grouped(
    old: Sequence[Size], new: Sequence[Size]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return which axes of ``old`` become which axes of ``new`` in a reshape.

    Each group has the smallest number of axes with the same number of elements. Axes of size 1 may
    be in a group without axes on the other side. Without elements, all axes are one group.
    """
    if 0 in old and 0 in new:
        return [(tuple(range(len(old))), tuple(range(len(new))))]
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        ours, theirs = [i] if i < len(old) else [], [j] if j < len(new) else []
        while _elements(old, ours) != _elements(new, theirs):
            few = _few(_elements(old, ours), _elements(new, theirs))
            side, sizes = (ours, old) if few else (theirs, new)
            start = i if few else j
            if start + len(side) == len(sizes):
                raise SpecError(
                    "a reshape keeps the elements, and dims stay whole",
                    got=f"{said(old)} to {said(new)}",
                    expected="axes are joined; an axis is cut into its dims and its number",
                )
            side.append(start + len(side))
        found.append((tuple(ours), tuple(theirs)))
        i, j = i + len(ours), j + len(theirs)
    return found


def _elements(sizes: Sequence[Size], axes: Sequence[int]) -> tuple[int, tuple[str, ...]]:
    """Return the product of some sizes: that of the numbers, and the names of the dims."""
    number, dims = terms_of(joined_size([sizes[axis] for axis in axes]))
    return number, tuple(each.name for each in dims)


def _few(one: tuple[int, tuple[str, ...]], other: tuple[int, tuple[str, ...]]) -> bool:
    """Return True if ``one`` needs more axes to become ``other``."""
    if one[1] != other[1]:
        return len(one[1]) < len(other[1]) or (len(one[1]) == len(other[1]) and one < other)
    return one[0] < other[0]


def joined(given: Sequence[Shaped | None], axis: int) -> Shaped:
    """Return the type and shape of tensors one after another along an axis."""
    first = given[0]
    assert first is not None
    total = 0
    for one in given:
        assert one is not None
        alike = (
            one.shape[:axis] == first.shape[:axis]
            and one.shape[axis + 1 :] == (first.shape[axis + 1 :])
        )
        size = one.shape[axis] if len(one.shape) == len(first.shape) else None
        if one.type != first.type or not alike or not isinstance(size, int):
            raise SpecError(
                "joined tensors agree in type, and in all axes but the joined one",
                got=f"{first} and {one}, along axis {axis}",
                expected="a fixed size of the joined axis in each tensor",
            )
        total += size
    return Shaped(first.type, (*first.shape[:axis], total, *first.shape[axis + 1 :]))


def multiplied(x: Shaped, y: Shaped, of: Sequence[object]) -> tuple[Size, ...]:
    """Return the shape of a product of the nodes ``of``: leading axes broadcast."""

    # Text of a node takes time in proportion to the whole expression: it is for errors alone.
    def text() -> str:
        texts = (repr(node) for node in of)
        return " @ ".join(f"({t[:_SHOWN]}...)" if len(t) > _SHOWN else t for t in texts)

    for name, one in (("the first operand", x), ("the second operand", y)):
        if len(one.shape) < 2:
            raise SpecError(
                f"{name} of a product has two or more axes",
                got=f"{one} in {text()}",
                expected="(..., m, k) @ (..., k, n)",
            )
    if x.shape[-1] != y.shape[-2]:
        raise SpecError(
            "the columns of the first operand are not the rows of the second",
            got=f"{said(x.shape)} @ {said(y.shape)} in {text()}",
            expected="(..., m, k) @ (..., k, n)",
            hint="the second operand transposed, .T" if x.shape[-1] == y.shape[-1] else None,
        )
    lead = _both("a product", x.shape[:-2], y.shape[:-2])
    return (*lead, x.shape[-2], y.shape[-1])
