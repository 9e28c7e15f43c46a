"""The buffers that all calls of one shape share, and the check of what they compute."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .native import Call
from .shapes import Shape

Array = npt.NDArray[np.float32]
PAGE = 4096
# Where A, B and C start in their pages: at cache lines, the same in every run, and apart, since
# a load that follows a store to the same place in another page waits for it.
OFFSETS = (0, 21 * 64, 42 * 64)


class WrongResultError(Exception):
    """A kernel or a peer computed something else than C + A B."""


@dataclass(frozen=True, slots=True)
class Operands:
    """A (count x m x k), B (count x k x n) and C (m x n), each on a cache line."""

    a: Array
    b: Array
    c: Array

    @classmethod
    def random(cls, shape: Shape, rng: np.random.Generator) -> Operands:
        """Uniform in -1..1."""
        sizes = (
            (shape.count, shape.m, shape.k),
            (shape.count, shape.k, shape.n),
            (shape.m, shape.n),
        )
        a, b, c = (placed(size, at) for size, at in zip(sizes, OFFSETS, strict=True))
        for array in (a, b, c):
            array[...] = rng.uniform(-1, 1, array.shape)
        return cls(a, b, c)

    def check(self, call: Call) -> None:
        """Run the call once and compare with numpy in float64; WrongResultError if it differs.

        The bound is (k * count + 4) * eps * (|C| + |A| |B|), elementwise.
        """
        a, b, before = (x.astype(np.float64) for x in (self.a, self.b, self.c))
        call.once()
        error = np.abs(self.c - (before + (a @ b).sum(0)))
        terms = a.shape[0] * a.shape[2] + 4
        bound = terms * np.finfo(np.float32).eps * (np.abs(before) + (abs(a) @ abs(b)).sum(0))
        if not (error <= bound).all():
            where = np.unravel_index(
                np.argmax(np.nan_to_num(error / bound, nan=np.inf)), error.shape
            )
            raise WrongResultError(
                f"{call.name}: C[{where[0]}, {where[1]}] is off by {error[where]:.3g}, "
                f"the bound is {bound[where]:.3g}"
            )


def placed(shape: tuple[int, ...], offset: int, dtype: npt.DTypeLike = np.float32) -> Any:
    """Zeros whose address is ``offset`` bytes into a page."""
    size = np.dtype(dtype).itemsize * math.prod(shape)
    raw = np.zeros(size + PAGE, np.uint8)
    start = (offset - raw.ctypes.data) % PAGE
    return raw[start : start + size].view(dtype).reshape(shape)
