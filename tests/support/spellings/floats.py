"""Samples of all f32 numbers, and errors in units in the last place."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0**-126, -(2.0**-126), 2.0**-149,
     -(2.0**-149), 2.0**-126 - 2.0**-149, np.finfo(np.float32).max, -np.finfo(np.float32).max],
    np.float32,
)  # fmt: skip


def everywhere(mantissas: int, seed: int = 0) -> F32:
    """Every sign and exponent with that many random mantissas, and the special values."""
    rng = np.random.default_rng(seed)
    head = np.arange(512, dtype=np.uint32) << 23
    tail = rng.integers(0, 2**23, (512, mantissas), dtype=np.uint32)
    return np.concatenate([SPECIAL, (head[:, None] | tail).ravel().view(np.float32)])


def between(low: float, high: float, count: int, seed: int = 0) -> F32:
    """Uniform random numbers, with the bounds."""
    found = np.random.default_rng(seed).uniform(low, high, count)
    return np.concatenate([[low, high], found]).astype(np.float32)


def ulps(got: np.float32, exact: Any) -> float:
    """How far ``got`` is from the real number ``exact``, in units of the last place of that.

    What rounds to infinity is infinite; a computed infinity counts as 2**128.
    """
    limit = mpmath.mpf(2) ** 128
    exact = mpmath.mpf(exact)
    value = limit * int(np.sign(got)) if np.isinf(got) else mpmath.mpf(float(got))
    bounded = max(min(exact, limit), -limit)
    exponent = max(int(mpmath.frexp(bounded)[1]) - 1, -126) if bounded else -126
    return float(abs(value - bounded) / mpmath.mpf(2) ** (min(exponent, 127) - 23))


def same(x: Any, y: Any) -> Any:
    """Equal bits, or NaN both."""
    x, y = np.asarray(x), np.asarray(y)
    equal = x.view(f"u{x.itemsize}") == y.view(f"u{y.itemsize}")
    return equal | ((np.isnan(x) & np.isnan(y)) if x.dtype.kind == "f" else False)
