"""``tw.matmul``: the kernel for two arrays, made on first sight of their shapes and layouts."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.spec import Gemm, Matrix, dim

from .driver import compile
from .kernel import Kernel
from .known import DTYPES, Array

_TYPES = {DTYPES[name]: name for name in ("f32", "f64")}


def matmul(a: Array, b: Array, out: Array | None = None) -> Array:
    """``a @ b`` for 2-d arrays, both f32 or both f64; into ``out`` if given, else a new array.

    Each new combination of shapes, type and memory layout compiles a kernel, once for all
    processes that share the cache; a transposed or strided view needs no copy as long as its rows
    or its columns are contiguous.
    """
    for name, array in (("a", a), ("b", b), ("out", out)):
        if array is not None or name != "out":
            _check(name, array)
    if a.dtype != b.dtype or (out is not None and out.dtype != a.dtype):
        raise ArgumentTypeError(
            "matmul takes arrays of one type",
            got=", ".join(str(x.dtype) for x in (a, b, out) if x is not None),
        )
    if a.shape[1] != b.shape[0]:
        raise ArgumentValueError(
            "a and b do not fit",
            got=f"shapes {a.shape} and {b.shape}",
            expected="as many columns of a as rows of b",
        )
    a, b = _with_lines(a), _with_lines(b)
    layout_c: tuple[Literal["C", "F"], bool] = ("C", True) if out is None else _layout(out)
    kernel = _kernel((*a.shape, b.shape[1]), _TYPES[a.dtype], (_layout(a), _layout(b), layout_c))
    return kernel(a, b) if out is None else kernel(a, b, out)  # type: ignore[no-any-return]


def _check(name: str, array: Any) -> None:
    if not isinstance(array, np.ndarray) or array.dtype not in _TYPES or array.ndim != 2:
        got = type(array).__name__
        if isinstance(array, np.ndarray):
            got = f"{array.ndim}-d array of {array.dtype}"
        raise ArgumentTypeError(
            f"matmul's {name} must be a 2-d array of float32 or float64", got=got
        )


def _with_lines(array: Array) -> Array:
    """``array``, or a copy if neither its rows nor its columns are contiguous and apart."""
    (rows, cols), (row, col), item = array.shape, array.strides, array.itemsize
    by_rows = (cols < 2 or col == item) and (rows < 2 or (row >= cols * item and row % item == 0))
    by_columns = (rows < 2 or row == item) and (
        cols < 2 or (col >= rows * item and col % item == 0)
    )
    fits = by_rows or by_columns or array.size == 0
    return array if fits and array.flags.aligned else np.ascontiguousarray(array)


def _layout(array: Array) -> tuple[Literal["C", "F"], bool]:
    """The order of an array's elements, and whether it is tight."""
    if array.flags.c_contiguous:
        return "C", True
    if array.flags.f_contiguous:
        return "F", True
    return ("C" if array.strides[1] == array.itemsize else "F"), False


@lru_cache(maxsize=1024)
def _kernel(
    sizes: tuple[int, int, int],
    element: str,
    layouts: tuple[tuple[Literal["C", "F"], bool], ...],
) -> Kernel:
    (m, k, n) = sizes
    operands: dict[str, Any] = {
        name: Matrix(element, order) for name, (order, _) in zip("abc", layouts, strict=True)
    }
    leading: dict[str, Any] = {
        f"ld{name}": None if tight else dim(f"ld{name}")
        for name, (_, tight) in zip("abc", layouts, strict=True)
    }
    return compile(Gemm(m, n, k, **operands, **leading))
