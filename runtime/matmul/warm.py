"""Compile the kernels that ``tw.matmul`` needs most often, ahead of the first call."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from tilewright.runtime.driver import compile_many
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.types import accumulator

from .arrays import contiguous_axis
from .families import Axes, Family, Options, class_of, schedule_of, spec_of

#: Numbers of rows or columns, and sizes K, such that each class of sizes occurs.
_LINES, _DEPTHS = (1, 4, 16, 64, 200, 2048), (8, 64, 300, 2048)
#: Number of kernels that are compiled into one library.
_TOGETHER = 8


def common(type_: str, target: str = "host") -> list[Family]:
    """Return one family for each common kernel: products of two matrices by rows, and ``x @ w.T``.

    Products with an epilogue, alpha, beta, stacks or other layouts are not included.
    """
    types = type_, type_, accumulator(type_, type_)
    options = Options(target=target)
    found: dict[object, Family] = {}
    for m, n, k in product(_LINES, _LINES, _DEPTHS):
        for by_columns in (False, True):
            axes = _axes(m, n, k, type_, by_columns=by_columns)
            family = Family(types, axes, class_of(m, n, k, types, options, axes), options)
            found.setdefault((spec_of(family), schedule_of(family)), family)
    return list(found.values())


def _axes(m: int, n: int, k: int, type_: str, *, by_columns: bool) -> Axes:
    """Return the contiguous axes of A, B and C; B is a transposed view if ``by_columns``."""
    dtype = DTYPES[type_]
    a, c = np.empty((m, k), dtype), np.empty((m, n), dtype)
    b = np.empty((n, k), dtype).T if by_columns else np.empty((k, n), dtype)
    found = [contiguous_axis(x) for x in (a, b, c)]
    return tuple(0 if axis is None else axis for axis in found)  # type: ignore[return-value]


def warm(type_: str, target: str = "host") -> Iterator[tuple[int, int]]:
    """Compile the common kernels of a type; yield how many are done, and how many there are.

    Kernels that are already in the cache take almost no time.
    """
    families = common(type_, target)
    for first in range(0, len(families), _TOGETHER):
        part = families[first : first + _TOGETHER]
        compile_many([(spec_of(each), schedule_of(each), target) for each in part])
        yield first + len(part), len(families)
