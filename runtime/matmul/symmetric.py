"""For a matrix times its own transpose: compute half of the result, copy it to the other half.

templates/matmul/symmetric.h.j2 decides and computes in the same way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.runtime.arrays.memory import address
from tilewright.runtime.call.abi import HALVED, HALVED_K, PART

Array = np.ndarray[Any, Any]
#: The first half has a multiple of this number of rows, so that tiles are full.
WHOLE = 16


def is_symmetric(a: Array, b: Array) -> bool:
    """Return True if ``b`` is ``a.T``: a view of the same elements."""
    return (
        address(a) == address(b)
        and a.dtype == b.dtype
        and a.shape == b.shape[::-1]
        and a.strides == b.strides[::-1]
    )


def half_of(threads: int, rows: int, k: int) -> int:
    """Return the number of rows of the first half; 0 if all rows are computed at once.

    ``rows`` and ``k`` are the matrix's rows and columns.
    """
    half = -(-(rows // 2) // WHOLE) * WHOLE
    if rows < HALVED or k < HALVED_K:
        return 0
    return half if threads < 2 or half * half >= threads * PART // k else 0


def mirror(out: Array) -> None:
    """Copy the elements below the diagonal of a square matrix to their places above it."""
    rows = len(out)
    if rows < HALVED:
        i, j = np.tril_indices(rows, -1)
        out[j, i] = out[i, j]
        return
    half = rows // 2
    mirror(out[:half, :half])
    out[:half, half:] = out[half:, :half].T
    mirror(out[half:, half:])
