"""Handle stacks of matrices: the shape of a result, broadcasting, and merging of axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import ArgumentValueError
from tilewright.runtime.call.bound_sizes import strided

from .arrays import contiguous_axis

Array = np.ndarray[Any, Any]


def shapes(a: Array, b: Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of the result, and the shape of the stack of products in it."""
    if not a.ndim or not b.ndim:
        raise ArgumentValueError(
            "matmul multiplies matrices, not numbers",
            got=f"a {a.shape}, b {b.shape}",
            expected="one dimension or more",
            hint="a * b",
        )
    rows = a.shape[-2:-1]
    depth, columns = (b.shape[-2], b.shape[-1:]) if b.ndim > 1 else (b.shape[0], ())
    if a.shape[-1] != depth:
        raise ArgumentValueError(
            "matmul: a has another number of columns than b has rows",
            got=f"a {a.shape}, b {b.shape}: {a.shape[-1]} is not {depth}",
            expected="(..., m, k) and (..., k, n)",
        )
    stack = stack_shape(a.shape[:-2], b.shape[:-2])
    if stack is None:
        raise ArgumentValueError(
            "matmul: stacks of matrices could not be broadcast together",
            got=f"a {a.shape[:-2]} of {a.shape[-2:]}, b {b.shape[:-2]} of {b.shape[-2:]}",
            expected="equal dimensions before the last two, or 1",
        )
    return (*stack, *rows, *columns), stack


def stack_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of both stacks broadcast as in numpy, None if they do not fit."""
    short, long = sorted((a, b), key=len)
    pairs = [*zip((1,) * (len(long) - len(short)) + short, long, strict=True)]
    if any(x != y and 1 not in (x, y) for x, y in pairs):
        return None
    return tuple(y if x == 1 else x for x, y in pairs)


def broadcast(
    a: Array, b: Array, out: Array, stack: tuple[int, ...], *, alike: bool
) -> list[tuple[Array, Array, Array]]:
    """Return triples (a, b, out) of matrices, or of stacks with one axis.

    If all products of a stack share one b, they are one large product, provided that their rows
    follow each other in memory and are ``alike``: the epilogue has no operand by row.
    """
    column = b.ndim == 1
    b = b[:, None] if column else b
    if column:
        out = out[..., None]
    if a.ndim == 1:
        a = a[None, :]
        out = out[..., None, :]
    if not stack:
        return [(a, b, out)]
    if alike and b.ndim == 2 and a.size and a.shape[:-2] == stack:
        rows = merged(a, out, own=1)
        if all(x.ndim == 2 for x in rows):
            return [(rows[0], b, rows[1])]
    a, b = (np.broadcast_to(x, (*stack, *x.shape[-2:])) for x in (a, b))
    a, b, out = merged(a, b, out)
    return [(a[i], b[i], out[i]) for i in np.ndindex(*out.shape[:-3])]


def merged(*stacks: Array, own: int = 2) -> tuple[Array, ...]:
    """Return arrays whose axes before the last ``own`` ones are merged where their strides
    allow.
    """
    for axis in range(stacks[0].ndim - own - 2, -1, -1):
        if all(x.strides[axis] == x.strides[axis + 1] * x.shape[axis + 1] for x in stacks):
            stacks = tuple(without_axis(x, axis) for x in stacks)
    return stacks


def without_axis(x: Array, axis: int) -> Array:
    """Return ``x`` with ``axis`` and the next axis merged."""
    shape = (*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])
    return strided(x, shape, (*x.strides[:axis], *x.strides[axis + 1 :]))


def is_tight(x: Array) -> bool:
    """Return True if each matrix of a stack is contiguous."""
    axis = contiguous_axis(x)
    lines, line = x.shape[-2:] if axis else x.shape[:-3:-1]
    return bool(lines < 2 or x.strides[-2 if axis else -1] == line * x.itemsize)
