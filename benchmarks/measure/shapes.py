"""The sizes measured: C (m x n) += A (m x k) B (k x n), f32, rows contiguous."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """Sizes of one product, or of ``count`` tight products added into one C."""

    m: int
    n: int
    k: int
    count: int = 1

    @property
    def flops(self) -> int:
        """Multiplications and additions of one call."""
        return 2 * self.m * self.n * self.k * self.count

    def __str__(self) -> str:
        batch = f" ({self.count})" if self.count > 1 else ""
        return f"{self.m}x{self.n}x{self.k}{batch}"


def _shapes(*texts: str) -> tuple[Shape, ...]:
    return tuple(Shape(*map(int, text.split("x"))) for text in texts)


# Small, odd and round sizes on which the libraries publish or were measured.
TABLE = _shapes(
    "16x6x64", "64x48x64", "64x64x64", "6x16x64", "6x15x64", "1x64x64", "4x4x4", "8x8x8",
    "16x16x16", "13x5x7", "23x23x23", "32x32x32", "37x37x37", "96x96x96", "256x256x256",
)  # fmt: skip

# Sizes of a batch-reduce ukernel: thin, long in K, few accumulators.
UKERNEL = (
    *_shapes("16x32x32", "13x48x64", "6x16x256", "1x64x512", "64x48x512", "1x16x256", "16x8x128"),
    *_shapes("16x1x64", "48x80x65"),
    Shape(64, 64, 64, 16),
)

# Sizes that no vector divides: a last vector exists in part.
TAILS = _shapes(
    "13x5x7", "6x15x64", "23x23x23", "37x37x37", "64x50x64", "61x61x61", "16x1x64", "95x95x95",
    "127x127x127",
)  # fmt: skip

ROUND = _shapes("64x48x64", "64x64x64")
#: What keeps a matrix unit busy.
DEEP = _shapes("64x64x512", "128x128x512")
BATCH = Shape(64, 48, 64, 16)

# The rows of the batch-reduce ukernel's table, all of them.
LOW = (*_shapes("16x16x16", "64x64x64", "1x64x64"), *UKERNEL)


def odd_shapes(seed: int, count: int = 20, largest: int = 100) -> tuple[Shape, ...]:
    """Random sizes of which a quarter have an odd K by force, and a quarter an odd N."""
    drawn = random_shapes(seed, count, largest)
    odd_k = {index: replace(drawn[index], k=drawn[index].k | 1) for index in range(0, count, 4)}
    odd_n = {index: replace(drawn[index], n=drawn[index].n | 1) for index in range(1, count, 4)}
    return tuple((odd_k | odd_n).get(index, shape) for index, shape in enumerate(drawn))


def random_shapes(seed: int, count: int = 30, largest: int = 100) -> tuple[Shape, ...]:
    """``count`` sizes, each of m, n and k uniform in 1..``largest``."""
    sizes = np.random.default_rng(seed).integers(1, largest, (count, 3), endpoint=True)
    return tuple(Shape(*map(int, size)) for size in sizes)
