"""Choose the scales and zero points of blocks: from the elements' range, or by least squares.

In go blocks of elements (g x block x n: g blocks along K, n columns) and the grid of a format. Out
come the scales and zeros of each block.
"""

from __future__ import annotations

import numpy as np

from tilewright.runtime.arrays.memory import Array

from .grid import Blocks, Grid

#: Shares of a block's range from which least squares starts, and the number of rounds of rounding
#: and fitting for each share.
_SHARES, _ROUNDS = (1.0, 0.9, 0.8, 0.7), 2


def covering(w: Array, grid: Grid) -> Blocks:
    """Return quantization steps and zeros with which elements are at most half a step off.

    Blocks for which no scale is suitable keep larger errors.

    The result is that of ``by_range`` with one correction. Rounding can make a scale too short, or
    move a zero too far, so that an element is more than half a step outside the range of the
    numbers. Such a block gets the next larger scale.
    """
    found = by_range(w, grid)
    least, most = extremes(w)
    short = grid.beyond(least, most, found)
    if not short.any():
        return found
    longer = _longer(least, most, grid, found)
    usable = short & np.all([np.isfinite(each) for each in (*longer, *found)], axis=0)
    return Blocks(*(np.where(usable, *pair) for pair in zip(longer, found, strict=True)))


def extremes(w: Array) -> tuple[Array, Array]:
    """Return the least and the greatest element of each block: g x 1 x n."""
    return w.min(axis=1, keepdims=True), w.max(axis=1, keepdims=True)


def by_range(w: Array, grid: Grid, share: float = 1.0) -> Blocks:
    """Return for each block the smallest scale, and its zero point, that cover all its elements.

    ``w`` is g x block x n. Scales are rounded to the nearest number that the format can store. A
    ``share`` below 1 makes the scales smaller. Elements that are then out of range are clipped to
    the least or the greatest number of the format.
    """
    least, most = extremes(w)
    steps = grid.rounded_steps(share * _exact_steps(least, most, grid))
    return _centered(least, most, grid, steps)


def _exact_steps(least: Array, most: Array, grid: Grid) -> Array:
    """Return the least steps, not rounded, with which the numbers cover ``least`` to ``most``."""
    low, high = grid.ends
    kind = grid.form.zeros
    if not kind:
        return _reaching(least, most, grid, float(grid.form.offset))
    # A zero point is a stored number, so the range must include 0.
    if kind == "zeros":
        least, most = np.minimum(least, 0), np.maximum(most, 0)
    found: Array = (most - least) / (high - low)
    return found


def _reaching(least: Array, most: Array, grid: Grid, zero: float) -> Array:
    """Return the least steps with which ``number - zero`` covers ``least`` to ``most``."""
    low, high = (end - zero for end in grid.ends)
    parts = [*([least / low] if low < 0 else []), *([most / high] if high > 0 else [])]
    found: Array = np.maximum.reduce([*parts, np.zeros_like(least)])
    return found


def _centered(least: Array, most: Array, grid: Grid, steps: Array) -> Blocks:
    """Return blocks with these steps, and zeros that center the numbers on the range."""
    if not grid.form.zeros:
        return Blocks(steps, grid.rounded_zeros(steps))
    if grid.form.zeros == "zeros":
        least, most = np.minimum(least, 0), np.maximum(most, 0)
    low, high = grid.ends
    return _with_minima(grid, steps, (least + most) / 2 - steps * (low + high) / 2)


def _longer(least: Array, most: Array, grid: Grid, found: Blocks) -> Blocks:
    """Return blocks with steps rounded up, which cover the range also after minima are rounded."""
    if grid.form.zeros != "minima":
        steps = grid.rounded_steps(_exact_steps(least, most, grid), up=True)
        return _centered(least, most, grid, steps)
    # If the least number is not 0, the least element is not at the minimum.
    below = grid.ends[0] != 0
    minima = found.zeros if below else grid.rounded_zeros(least, down=True)
    exact = _reaching(least - minima, most - minima, grid, 0.0)
    return Blocks(grid.rounded_steps(exact, up=True), minima)


def by_least_squares(w: Array, grid: Grid, first: Blocks) -> Blocks:
    """Return the best quantization steps and zeros found by rounding and fitting in turns.

    No block has a larger sum of squared errors, computed in float64, than in ``first``.
    """
    best = first
    least = grid.errors(w, grid.nearest(w, best), best)
    sides = _sides(w, grid)
    for share in _SHARES:
        steps, zeros = by_range(sides * w, grid, share)
        tried = Blocks(sides * steps, zeros)
        for _ in range(_ROUNDS):
            numbers = grid.nearest(w, tried)
            errors = grid.errors(w, numbers, tried)
            better = errors < least
            best = Blocks(*(np.where(better, *pair) for pair in zip(tried, best, strict=True)))
            least = np.where(better, errors, least)
            tried = _fitted(w, numbers, tried, grid)
    return best


def _sides(w: Array, grid: Grid) -> Array | int:
    """Return -1 for blocks that need a negative scale to use the longer end of the numbers, else 1.

    The result is 1 for all blocks if scales have no sign, if the numbers are symmetric, or if
    blocks have zeros.
    """
    low, high = (end - grid.form.offset for end in grid.ends)
    if grid.form.zeros or low >= 0 or high <= 0 or low == -high or not grid.scales_have_signs:
        return 1
    least, most = extremes(w)
    return np.where((most > -least) == (high > -low), 1, -1)


def _fitted(w: Array, numbers: Array, blocks: Blocks, grid: Grid) -> Blocks:
    """Return the quantization steps and zeros with which ``numbers`` come nearest to ``w``.

    Blocks that cannot be fitted keep the old steps and zeros.
    """
    if grid.form.zeros:
        center, middle = numbers.mean(axis=1, keepdims=True), w.mean(axis=1, keepdims=True)
    else:
        center, middle = blocks.zeros, np.zeros_like(blocks.zeros)
    off = numbers - center
    weight = np.square(off).sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.multiply(off, w - middle, out=off).sum(axis=1, keepdims=True) / weight
    steps = grid.rounded_steps(np.where((weight > 0) & (exact * blocks.steps > 0), exact, 0))
    steps = np.where((steps != 0) & np.isfinite(steps), steps, blocks.steps)
    if not grid.form.zeros:
        return Blocks(steps, blocks.zeros)
    found = _with_minima(grid, steps, middle - steps * center)
    return Blocks(steps, np.where(np.isfinite(found.zeros), found.zeros, blocks.zeros))


def _with_minima(grid: Grid, steps: Array, minima: Array) -> Blocks:
    """Return blocks with these steps, and with the minima or their zero points, rounded."""
    if grid.form.zeros == "zeros":
        minima = -minima / np.where(steps == 0, np.inf, steps)
    return Blocks(steps, grid.rounded_zeros(minima))
