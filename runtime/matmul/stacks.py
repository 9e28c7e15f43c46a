"""Handle stacks of matrices: the shape of a result, broadcasting, and merging of axes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import ArgumentValueError
from tilewright.runtime.call.bound_sizes import strided

from .arrays import contiguous_axis

Array = np.ndarray[Any, Any]


def shape_of(a: Array, b: Array) -> tuple[int, ...]:
    """Return the shape of the result; ArgumentValueError if there is none."""
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
    return (*stack, *rows, *columns)


def stack_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of both stacks broadcast as in numpy, None if they do not fit."""
    short, long = sorted((a, b), key=len)
    pairs = [*zip((1,) * (len(long) - len(short)) + short, long, strict=True)]
    if any(x != y and 1 not in (x, y) for x, y in pairs):
        return None
    return tuple(y if x == 1 else x for x, y in pairs)


def broadcast(
    a: Array, b: Array, out: Array, *, rows: bool, columns: bool
) -> list[tuple[Array, Array, Array]]:
    """Return triples (a, b, out) of matrices, or of stacks with one axis.

    If ``rows`` is True, products that share one b become one product with more rows, if the rows of
    a and of ``out`` follow each other in memory. If ``columns`` is True, products that share one a
    become one product with more columns in the same way. templates/matmul/stacks.h.j2 decides in
    the same way.
    """
    if b.ndim == 1:
        b, out = b[:, None], out[..., None]
    if a.ndim == 1:
        a, out = a[None, :], out[..., None, :]
    matrices = [_first(x) for x in (a, b, out)]
    axes = _axes(a, b, out)
    for operand, allowed in enumerate((rows, columns)):
        if allowed:
            _fold(axes, matrices, operand)
    if not axes:
        return [(matrices[0], matrices[1], matrices[2])]
    longest = max(axes, key=lambda axis: axis.length)
    axes.remove(longest)
    stacks = [
        strided(x, (longest.length, *x.shape), (step, *x.strides))
        for x, step in zip(matrices, longest.steps, strict=True)
    ]
    for axis in axes:
        stacks = [
            strided(x, (axis.length, *x.shape), (step, *x.strides))
            for x, step in zip(stacks, axis.steps, strict=True)
        ]
    a, b, out = stacks
    return [(a[i], b[i], out[i]) for i in np.ndindex(*out.shape[:-3])]


class _Axis(NamedTuple):
    """An axis of a stack: its number of products, and the bytes from one to the next.

    ``steps`` has these bytes for a, b and out.
    """

    length: int
    steps: tuple[int, int, int]


def _first(x: Array) -> Array:
    """Return the first matrix of a stack that is not empty."""
    matrix: Array = x[(0,) * (x.ndim - 2)]
    return matrix


def _axes(a: Array, b: Array, out: Array) -> list[_Axis]:
    """Return the axes of a stack, innermost first.

    Two neighbouring axes become one if the products along both are equally far apart in memory.
    """
    stack = out.shape[:-2]
    steps = [np.broadcast_to(x, (*stack, *x.shape[-2:])).strides[:-2] for x in (a, b)]
    found: list[_Axis] = []
    for length, *each in zip(
        stack[::-1], *(s[::-1] for s in (*steps, out.strides[:-2])), strict=True
    ):
        inner = found[-1] if found else None
        if length == 1:
            continue
        if inner is not None and all(
            step == below * inner.length for step, below in zip(each, inner.steps, strict=True)
        ):
            found[-1] = inner._replace(length=length * inner.length)
        else:
            found.append(_Axis(length, (each[0], each[1], each[2])))
    return found


def _fold(axes: list[_Axis], matrices: list[Array], operand: int) -> None:
    """Turn an axis of a stack into more rows (operand 0) or columns (1) of its matrices.

    The axis is removed from ``axes``, and the matrices in the list are replaced. If no axis is
    suitable, nothing changes.
    """
    for i, axis in enumerate(axes):
        pairs = [(x, axis.steps[x]) for x in (operand, 2)]
        if axis.steps[1 - operand] == 0 and all(
            _lines_follow(matrices[x], operand, axis.length, step) for x, step in pairs
        ):
            for x, step in pairs:
                matrices[x] = _longer(matrices[x], operand, axis.length, step)
            del axes[i]
            return


def _lines_follow(x: Array, axis: int, count: int, step: int) -> bool:
    """Return True if the rows (axis 0) or columns (1) of ``count`` matrices form one matrix.

    ``x`` is the first of the matrices, which are ``step`` bytes apart.
    """
    length, elements = x.shape[axis], x.shape[1 - axis]
    between, within = step if length == 1 else x.strides[axis], x.strides[1 - axis]
    if step <= 0 or step != length * between:
        return False
    return bool(elements < 2 or between >= elements * within or within >= length * count * between)


def _longer(x: Array, axis: int, count: int, step: int) -> Array:
    """Return one matrix of the rows (axis 0) or columns (1) of ``count`` matrices like ``x``."""
    shape, strides = list(x.shape), list(x.strides)
    strides[axis] = step if shape[axis] == 1 else strides[axis]
    shape[axis] *= count
    return strided(x, tuple(shape), tuple(strides))


def is_tight(x: Array) -> bool:
    """Return True if each matrix of a stack is contiguous."""
    axis = contiguous_axis(x)
    lines, line = x.shape[-2:] if axis else x.shape[:-3:-1]
    return bool(lines < 2 or x.strides[-2 if axis else -1] == line * x.itemsize)
