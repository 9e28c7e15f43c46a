"""The BLAS call ``sgemm('N', 'T', 10, 20, 30, alpha=1.1, beta)`` by ``tw.matmul``.

    python examples/sgemm.py [TARGET]           (by default: host)

BLAS is told where matrices lie by numbers: columns are contiguous, leading dimensions apart. numpy
arrays say so themselves, by their strides. ``sgemm`` makes views of BLAS's arguments and hands them
to ``tw.matmul``, which copies none of them.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

import tilewright as tw

Array = NDArray[Any]
Transposed = Literal["N", "T"]


def sgemm(
    transa: Transposed, transb: Transposed, m: int, n: int, k: int,
    alpha: float, a: Array, lda: int, b: Array, ldb: int, beta: float, c: Array, ldc: int,
    target: str = "host",
) -> None:  # fmt: skip
    """C = alpha op(A) op(B) + beta C, as BLAS has it: ``a``, ``b`` and ``c`` are flat arrays.

    op(A) is m x k, op(B) k x n, C m x n. C is not read where beta is 0.
    """
    x = _columns(a, m, k, lda) if transa == "N" else _columns(a, k, m, lda).T
    y = _columns(b, k, n, ldb) if transb == "N" else _columns(b, n, k, ldb).T
    tw.matmul(x, y, _columns(c, m, n, ldc), alpha=alpha, beta=beta, target=target)


def _columns(flat: Array, rows: int, columns: int, leading: int) -> Array:
    """A view of a flat array as a matrix of contiguous columns, ``leading`` elements apart."""
    needed = (columns - 1) * leading + rows
    if leading < rows or flat.size < needed:
        raise ValueError(
            f"a {rows} x {columns} matrix with columns {leading} apart needs {needed} elements, "
            f"and columns at least {rows} apart; there are {flat.size}"
        )
    item = flat.itemsize
    return as_strided(flat, (rows, columns), (item, leading * item))


def check(target: str = "host") -> float:
    """The largest error of the call, beside numpy in float64."""
    m, n, k, lda, ldb, ldc = 10, 20, 30, 12, 24, 16
    rng = np.random.default_rng(1)
    a, b, c = (rng.standard_normal(size).astype(np.float32) for size in (lda * k, ldb * k, ldc * n))
    wide = [x.astype(np.float64) for x in (a, b, c)]
    op_a, op_b = _columns(wide[0], m, k, lda), _columns(wide[1], n, k, ldb).T
    worst = 0.0
    for beta in (0.0, 0.7):
        out = c.copy()
        sgemm("N", "T", m, n, k, 1.1, a, lda, b, ldb, beta, out, ldc, target)
        right = 1.1 * op_a @ op_b + beta * _columns(wide[2], m, n, ldc)
        worst = max(worst, float(np.abs(_columns(out, m, n, ldc) - right).max()))
    return worst


def main() -> None:
    """Print the largest error."""
    target = sys.argv[1] if len(sys.argv) > 1 else "host"
    print(f"sgemm('N', 'T', 10, 20, 30): largest error {check(target):.2e}, by kernels of {target}")


if __name__ == "__main__":
    main()
