"""New arrays: large ones begin at a cache line."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.arrays.memory import (
    ADVISED,
    ALIGNMENT,
    LARGE,
    LARGE_PAGE,
    address,
    in_large_pages,
    new_array,
)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, ml_dtypes.bfloat16])
@pytest.mark.parametrize("order", ["C", "F"])
def test_large_arrays_begin_at_a_line(dtype: Any, order: Any) -> None:
    rows = LARGE // (64 * np.dtype(dtype).itemsize)
    for shape in ((rows, 64), (rows, 65), (3, 5), (0, 7)):
        made = new_array(shape, dtype, order)
        assert (made.shape, made.dtype) == (shape, np.dtype(dtype))
        assert made.flags.c_contiguous if order == "C" else made.flags.f_contiguous
        assert made.flags.writeable
        if made.nbytes >= LARGE:
            assert made.ctypes.data % ALIGNMENT == 0


def test_so_do_results() -> None:
    a, b = np.ones((1024, 3), np.float32), np.ones((3, 512), np.float32)
    kernel = tw.compile(tw.Gemm(tw.dim("m"), 512, 3))
    for result in (tw.matmul(a, b), tw.matmul(a, b), kernel(a, b)):
        assert result.ctypes.data % ALIGNMENT == 0
        assert (result == 3).all()


@pytest.mark.parametrize("nbytes", [1, 63, ADVISED - 1, ADVISED, 3 * LARGE_PAGE - 5, 9 << 20])
def test_bytes_in_large_pages_begin_at_one_where_there_are_as_many(nbytes: int) -> None:
    made = in_large_pages(nbytes)
    assert made.nbytes == nbytes and made.flags.c_contiguous and made.flags.writeable
    assert address(made) % (LARGE_PAGE if nbytes >= ADVISED else ALIGNMENT) == 0
    made[:] = 7
    assert (made == 7).all()
