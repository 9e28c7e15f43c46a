"""Stacks of products by LIBXSMM: one of its kernels, called in a loop in C."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.measure.native import MissingError

from .f32 import xsmm_library

Array = np.ndarray[Any, Any]


def xsmm_stack(a: Array, b: Array, c: Array) -> Callable[[], object]:
    """What computes ``c = a @ b`` of stacks of one type, float32 or float64, in C order.

    MissingError where LIBXSMM is not installed, or has no kernel for the size.
    """
    found = xsmm_library()
    found.bench_xsmm_product.restype = ctypes.c_void_p
    found.bench_xsmm_stack.restype = None
    (m, k), n = a.shape[1:], b.shape[2]
    kernel = found.bench_xsmm_product(m, n, k, int(a.dtype == np.float64))
    if not kernel:
        raise MissingError(f"LIBXSMM generates no kernel for {m}x{n}x{k}")
    arguments: list[Any] = [ctypes.c_void_p(kernel), ctypes.c_int64(len(c))]
    for array in (a, b, c):
        arguments += [ctypes.c_void_p(array.ctypes.data), ctypes.c_int64(array.strides[0])]
    stack = found.bench_xsmm_stack
    return lambda: stack(*arguments)
