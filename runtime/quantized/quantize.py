"""Quantize a floating-point matrix: choose scales, round the elements, and check the result."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.keywords import spelled
from tilewright.runtime.arrays.dtypes import accepts, preferred
from tilewright.runtime.arrays.elements import decode
from tilewright.runtime.arrays.memory import Array
from tilewright.runtime.arrays.views import as_array, is_masked, what_to_do
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.quantized import SCALES, Quantized

from .choices import one_of
from .fit import by_least_squares, covering, extremes
from .formats import as_format
from .grid import Blocks, Grid
from .matrix import QuantizedMatrix

Method = Literal["nearest", "least_squares"]
#: Function of each method, which improves the blocks that ``covering`` found; None for no change.
_METHODS: dict[str, Callable[[Array, Grid, Blocks], Blocks] | None] = {
    "nearest": None,
    "least_squares": by_least_squares,
}
#: Element types of the matrices that can be quantized.
_FLOATS = ("f32", "f64", "f16", "bf16")
#: Number of elements that are quantized at once. Their float64 values and intermediate results fit
#: in a cache.
_AT_ONCE = 1 << 16


@spelled(ArgumentTypeError)
def quantize(w: Any, format: Quantized | str, *, method: Method = "nearest") -> QuantizedMatrix:
    """Return a quantized matrix that is close to ``w``.

    Elements halfway between two numbers become the even one; of two numbers of a table, the greater
    one if its code is even, else the smaller one. A RuntimeWarning is given if a block
    has elements that are more than half a step off, or if all its elements become 0. The cause is a
    type of scales without a number that is large or small enough.

    Parameters
    ----------
    w : array
        Matrix, k x n, or count x k x n, of f16, bf16, f32 or f64. All elements must be finite.
    format : Quantized or str
        The format; or the name of a GGUF container, for example "q4_0".
    method : {"nearest", "least_squares"}
        "nearest", the default, gives each block the least scale for which all elements are in the
        range of the stored numbers. The scale is rounded to the nearest of its type, or up where an
        element would otherwise be more than half a step off. Scales of type e8m0 are always rounded
        up. "least_squares" starts from there. It alternates rounding with refitting the scale, also
        to negative scales, and keeps the best result. The sum of squared errors of a block never
        grows.

    Returns
    -------
    QuantizedMatrix
        The matrix, of the same shape.

    Raises
    ------
    ArgumentError
        The format is unknown. An element is NaN or Inf, or has a sign that the format lacks. Or a
        scale is too large for its type.

    Examples
    --------
    >>> w = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    >>> b = tw.quantize(w, tw.Quantized("u4", scale="f16", zero=8, block=32))
    >>> b
    <QuantizedMatrix 64x3 of Quantized(type='u4', scale='f16', zero=8, block=32)>
    >>> bool((abs(b.dequantize() - w) <= b.scales.max() / 2).all())
    True
    """
    format = as_format(format)
    improve = _METHODS[one_of(method, _METHODS, "unknown method of quantizing")]
    given, type_ = _floats(as_array(w, "w"))
    grid = Grid(format)
    matrices = given if given.ndim == 3 else given[None]
    shape = matrices.shape[0], *format.blocks(*matrices.shape[1:])
    block, columns = format.block_of(matrices.shape[1]), format.columns
    q = np.empty(matrices.shape, DTYPES[format.stored.unpacked])
    scales = np.empty(shape, preferred(SCALES[format.scale].given))
    own = str(format.zero) if format.zeros == "minima" else format.stored.unpacked
    zeros = np.empty(shape, preferred(own)) if format.zeros else None
    missed = _Missed(grid)
    for index, part in _parts(matrices.shape, block, columns):
        source = matrices[(index, *part)]
        blocks = _in_blocks(decode(source, type_), block, columns)
        _check_numbers(blocks, grid, index, part)
        with np.errstate(over="ignore", invalid="ignore"):
            found = covering(blocks, grid)
            _check_scales(blocks, grid, found, index, part)
            missed.note(blocks, found, index, part)
            found = improve(blocks, grid, found) if improve else found
        q[(index, *part)] = _in_place(grid.codes_of(grid.nearest(blocks, found)), source.shape)
        first, left = part[0].start // block, part[1].start // columns
        at = index, slice(first, first + len(blocks)), slice(left, left + blocks.shape[2])
        scales[at] = grid.scales_of(found.steps)[:, 0]
        if zeros is not None:
            zeros[at] = grid.zeros_of(found.zeros)[:, 0]
    missed.warn()
    if given.ndim == 3:
        return QuantizedMatrix(format, q, scales, zeros)
    return QuantizedMatrix(format, q[0], scales[0], None if zeros is None else zeros[0])


def _floats(w: Any) -> tuple[Array, str]:
    """Return ``w`` and the type of its elements.

    Raises ArgumentError unless it is a floating-point matrix.
    """
    if not isinstance(w, np.ndarray) or is_masked(w):
        raise ArgumentTypeError(
            "w must be an array",
            got=type(w).__name__,
            hint=what_to_do(w, "w") or "np.array(w, np.float32)",
        )
    type_ = next((name for name in _FLOATS if accepts(name, w.dtype) and w.dtype.kind != "u"), None)
    if type_ is None:
        raise ArgumentTypeError(
            "w must be floating point",
            got=f"{w.dtype} array",
            expected=f"one of {', '.join(_FLOATS)}",
            hint="tw.QuantizedMatrix takes integers that are quantized already",
        )
    if w.ndim not in (2, 3):
        raise ArgumentValueError(
            "w has the wrong shape",
            got=w.shape,
            expected="(k, n), or (count, k, n) for several",
        )
    return w, type_


def _in_blocks(w: Array, block: int, columns: int) -> Array:
    """Return ``w`` as an array of blocks: blocks along K x elements of a block x blocks along N.

    ``w`` has only whole blocks, or is part of one.
    """
    (k, n), tall, wide = w.shape, min(block, w.shape[0]), min(columns, w.shape[1])
    parts = w.reshape(k // tall, tall, n // wide, wide).transpose(0, 1, 3, 2)
    return parts.reshape(k // tall, tall * wide, n // wide)


def _in_place(blocks: Array, shape: tuple[int, ...]) -> Array:
    """Return the matrix of this ``shape`` that ``_in_blocks`` turned into ``blocks``."""
    count, _, across = blocks.shape
    parts = blocks.reshape(count, shape[0] // count, shape[1] // across, across)
    return parts.transpose(0, 1, 3, 2).reshape(shape)


def _parts(
    shape: tuple[int, ...], block: int, columns: int
) -> Iterator[tuple[int, tuple[slice[int, int, None], slice[int, int, None]]]]:
    """Yield the parts that are quantized together: index of the matrix, rows and columns."""
    count, k, n = shape
    wide = columns * max(1, min(n, _AT_ONCE // block) // columns)
    tall = block * max(1, _AT_ONCE // (block * wide))
    for index in range(count):
        for rows in _runs(k, block, tall):
            for across in _runs(n, columns, wide):
                yield index, (rows, across)


def _runs(size: int, block: int, most: int) -> Iterator[slice[int, int, None]]:
    """Yield slices of up to ``most`` elements in whole blocks, then the incomplete last block."""
    whole = size - size % block
    for first in range(0, whole, most):
        yield slice(first, min(first + most, whole))
    if whole < size:
        yield slice(whole, size)


# --- what is refused ---------------------------------------------------------------------------


def _check_numbers(
    blocks: Array, grid: Grid, index: int, part: tuple[slice[int, int, None], ...]
) -> None:
    """Raise ArgumentError unless all elements are finite and have signs that the format has."""
    least, most, limit = blocks.min(), blocks.max(), np.finfo(np.float32).max
    if not (-limit <= least and most <= limit):
        got = _said(blocks, ~(np.abs(blocks) <= limit), index, part)
        raise ArgumentValueError(
            "an element cannot be quantized", got=got, expected="finite numbers of f32"
        )
    low, high = (end - grid.form.offset for end in grid.ends)
    if not grid.form.zeros and ((least < 0 <= low) or (most > 0 >= high)):
        wrong = blocks < 0 if least < 0 <= low else blocks > 0
        name = grid.form.type
        hint = f'tw.Quantized("{name}", zero="{name}"), or a zero point within its numbers'
        if grid.form.stored.floating:
            hint = 'tw.Quantized(..., zero="f32"): a minimum for each block'
        raise ArgumentValueError(
            "the format has no number of this sign",
            got=_said(blocks, wrong, index, part),
            expected=f"numbers from {low:g} to {high:g} times a scale",
            hint=hint,
        )


def _check_scales(
    blocks: Array, grid: Grid, found: Blocks, index: int, part: tuple[slice[int, int, None], ...]
) -> None:
    """Raise ArgumentError if a scale or a minimum is too large for its type."""
    for what, type_, numbers in (
        ("scale", grid.form.scale, found.steps),
        ("minimum", str(grid.form.zero), found.zeros),
    ):
        if np.isfinite(numbers).all():
            continue
        text = f"elements for which {type_} has a {what}"
        hint = f'tw.Quantized(..., {"scale" if what == "scale" else "zero"}="f32")'
        problem = f"the {what} of a block is beyond {type_}"
        got = _first(blocks, ~np.isfinite(numbers), index, part)
        raise ArgumentValueError(problem, got=got, expected=text, hint=hint)


class _Missed:
    """Counter of blocks for which no scale of the type is suitable.

    Their elements are more than half a step off, or all become 0.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.counts: dict[str, int] = {}
        self.first: dict[str, str] = {}

    def note(
        self, blocks: Array, found: Blocks, index: int, part: tuple[slice[int, int, None], ...]
    ) -> None:
        """Count the blocks in a part of the matrix whose scales in ``found`` are not suitable."""
        bounds = extremes(blocks)
        type_ = self.grid.form.scale
        for problem, bad in (
            (f"are beyond what scales of {type_} reach", self.grid.beyond(*bounds, found)),
            (f"become 0, as scales of {type_} are not so small", self.grid.vanish(*bounds, found)),
        ):
            if bad.any():
                self.counts[problem] = self.counts.get(problem, 0) + int(bad.sum())
                self.first.setdefault(problem, _first(blocks, bad, index, part))

    def warn(self) -> None:
        """Give one warning for each kind of problem, at the caller of ``quantize``."""
        for problem, count in self.counts.items():
            warnings.warn(
                f'elements {problem}: blocks {count}, first {self.first[problem]}; try scale="f32"',
                RuntimeWarning,
                stacklevel=3,
            )


def _first(blocks: Array, bad: Array, index: int, part: tuple[slice[int, int, None], ...]) -> str:
    """Return the greatest element of the first bad block, with its row and column, as text."""
    magnitude = np.abs(blocks)
    greatest = bad & (magnitude == magnitude.max(axis=1, keepdims=True))
    return _said(blocks, greatest, index, part)


def _said(blocks: Array, bad: Array, index: int, part: tuple[slice[int, int, None], ...]) -> str:
    """Return the first ``bad`` element of a part, with its row and column, as text."""
    shape = tuple(side.stop - side.start for side in part)
    row, column = np.argwhere(_in_place(bad, shape))[0]
    value = _in_place(blocks, shape)[row, column]
    matrix = f" of matrix {index}" if index else ""
    return f"{value:g} at w[{part[0].start + row}, {part[1].start + column}]{matrix}"
