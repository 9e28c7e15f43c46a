"""Many small products in a parallel loop that numba compiles.

    python examples/numba_loop.py [COUNT]           (by default: 10000)

``kernel.numba`` is the kernel as numba's compiled code calls it: no Python in between, no lock of
the interpreter, arrays checked. What the loop does beside the product, taking traces, is numba's.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import tilewright as tw


def traces(a: Any, b: Any) -> Any:
    """The trace of ``a[i] @ b[i]`` for each i; both are count x 8 x 8, f32."""
    import numba

    product = tw.compile(tw.Gemm(8, 8, 8)).numba

    def loop(a: Any, b: Any, out: Any) -> None:
        for i in numba.prange(len(a)):
            c = np.empty((8, 8), np.float32)
            product(a[i], b[i], c)
            out[i] = np.trace(c)

    out = np.empty(len(a), np.float32)
    numba.njit(loop, parallel=True)(a, b, out)
    return out


def check(count: int) -> float:
    """How far the traces are off what numpy finds, at most."""
    a, b = np.random.default_rng(0).standard_normal((2, count, 8, 8), np.float32)
    expected = np.einsum("nij,nji->n", a.astype(np.float64), b.astype(np.float64))
    return float(np.abs(traces(a, b) - expected).max())


def main() -> int:
    """Run, and say how far off it was: not zero if too far."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10000
    error = check(count)
    print(f"traces of {count} products of 8x8x8: largest error {error:.1e}")
    return int(error > 1e-3)


if __name__ == "__main__":
    sys.exit(main())
