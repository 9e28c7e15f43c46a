"""Scales and zeros for blocks of numbers: by their range, and by least squares from there."""

from __future__ import annotations

import numpy as np

from tilewright.runtime.arrays.memory import Array

from .grid import Blocks, Grid

#: Parts of the range from which least squares begins, and how often it rounds and fits from each.
_SHARES, _ROUNDS = (1.0, 0.9, 0.8, 0.7), 2


def by_range(w: Array, grid: Grid, share: float = 1.0) -> Blocks:
    """The least steps with which every element of ``w``, g x block x n, lies within the numbers.

    ``share`` makes the steps shorter: what is beyond the numbers then becomes their ends.
    """
    low, high = grid.ends
    least, most = w.min(axis=1, keepdims=True), w.max(axis=1, keepdims=True)
    kind = grid.form.zeros
    if not kind:
        ends = low - grid.form.offset, high - grid.form.offset
        parts = [bound / end for bound, end in zip((least, most), ends, strict=True) if end]
        steps = grid.rounded_steps(share * np.maximum.reduce([*parts, np.zeros_like(least)]))
        return Blocks(steps, grid.rounded_zeros(steps))
    if kind == "zeros":  # 0 must be in the range, for it to stand for itself
        least, most = np.minimum(least, 0), np.maximum(most, 0)
    steps = grid.rounded_steps(share * (most - least) / (high - low))
    return _with_minima(grid, steps, (least + most) / 2 - steps * (low + high) / 2)


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
    least, most = w.min(axis=1, keepdims=True), w.max(axis=1, keepdims=True)
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
