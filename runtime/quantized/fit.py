"""Scales and zeros for blocks of numbers: by their range, and by least squares from there."""

from __future__ import annotations

import numpy as np

from tilewright.runtime.arrays.memory import Array

from .grid import Blocks, Grid

#: Parts of the range from which least squares begins, and how often it rounds and fits from each.
_SHARES, _ROUNDS = (1.0, 0.9, 0.8, 0.7), 2


def covering(w: Array, grid: Grid) -> Blocks:
    """Return blocks of which no element is farther off than half a step, where there are some.

    They are those of ``by_range``. Where rounding made a scale so short, or moved a zero so far,
    that an element is more than half a step beyond the numbers, the scale is the next longer one.
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
    """The least steps with which every element of ``w``, g x block x n, lies within the numbers.

    They are rounded to the nearest scale. ``share`` makes them shorter: what is beyond the numbers
    then becomes their ends.
    """
    least, most = extremes(w)
    steps = grid.rounded_steps(share * _exact_steps(least, most, grid))
    return _centered(least, most, grid, steps)


def _exact_steps(least: Array, most: Array, grid: Grid) -> Array:
    """Return the least steps with which the numbers reach from ``least`` to ``most``."""
    low, high = grid.ends
    kind = grid.form.zeros
    if not kind:
        return _reaching(least, most, grid, float(grid.form.offset))
    if kind == "zeros":  # 0 must be in the range, for it to stand for itself
        least, most = np.minimum(least, 0), np.maximum(most, 0)
    found: Array = (most - least) / (high - low)
    return found


def _reaching(least: Array, most: Array, grid: Grid, zero: float) -> Array:
    """Return the least steps with which ``number - zero`` reaches ``least`` and ``most``."""
    ends = (end - zero for end in grid.ends)
    parts = [bound / end for bound, end in zip((least, most), ends, strict=True) if end]
    found: Array = np.maximum.reduce([*parts, np.zeros_like(least)])
    return found


def _centered(least: Array, most: Array, grid: Grid, steps: Array) -> Blocks:
    """Return blocks of these steps, whose zeros put the middle of the range amid the numbers."""
    if not grid.form.zeros:
        return Blocks(steps, grid.rounded_zeros(steps))
    if grid.form.zeros == "zeros":
        least, most = np.minimum(least, 0), np.maximum(most, 0)
    low, high = grid.ends
    return _with_minima(grid, steps, (least + most) / 2 - steps * (low + high) / 2)


def _longer(least: Array, most: Array, grid: Grid, found: Blocks) -> Blocks:
    """Return blocks whose steps are not rounded down, minima included in what they reach."""
    if grid.form.zeros != "minima":
        steps = grid.rounded_steps(_exact_steps(least, most, grid), up=True)
        return _centered(least, most, grid, steps)
    below = grid.ends[0] < 0  # then numbers reach below a minimum as well
    minima = found.zeros if below else grid.rounded_zeros(least, down=True)
    exact = _reaching(least - minima, most - minima, grid, 0.0)
    return Blocks(grid.rounded_steps(exact, up=True), minima)


def by_least_squares(w: Array, grid: Grid, first: Blocks) -> Blocks:
    """The best of what is found by rounding and fitting in turns, from parts of the range on.

    A block is never farther off than with ``first``, as far as float64 can tell.
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
    """-1 for blocks whose greatest magnitude a negative scale brings to the longer end, else 1.

    It is 1 for all where scales have no sign, where no end is longer, and where blocks have zeros.
    """
    low, high = (end - grid.form.offset for end in grid.ends)
    if grid.form.zeros or low >= 0 or high <= 0 or low == -high or not grid.scales_have_signs:
        return 1
    least, most = extremes(w)
    return np.where((most > -least) == (high > -low), 1, -1)


def _fitted(w: Array, numbers: Array, blocks: Blocks, grid: Grid) -> Blocks:
    """The steps, and zeros, that are best for these numbers; as they were where there are none."""
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
    """Blocks with these steps and minima, or with the zero points that come nearest to them."""
    if grid.form.zeros == "zeros":
        minima = -minima / np.where(steps == 0, np.inf, steps)
    return Blocks(steps, grid.rounded_zeros(minima))
