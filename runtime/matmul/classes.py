"""Define classes of sizes: one kernel of ``tw.matmul`` computes all products of a class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from tilewright.spec.expression import Expression
    from tilewright.spec.sums import Math

#: A number larger than any product's sizes.
UNBOUNDED = (1 << 62) - 1
Shape = Literal[
    "column", "row", "matrix", "thin", "blocks", "column stream", "row stream", "few", "turned",
    "across", "along k", "row along k", "column along k", "in matrices", "shares",
]  # fmt: skip
Axes = tuple[int, int, int]


class Options(NamedTuple):
    """The options of a call of ``tw.matmul``: its arguments besides the arrays.

    ``scaled`` is True if kernels take alpha and beta. ``reads`` is True if beta is not 0, so that
    the output is read.
    """

    scaled: bool = False
    reads: bool = False
    epilogue: Expression | None = None
    threads: int | None = None
    deterministic: bool = False
    target: str = "host"
    math: Math = None


class Class(NamedTuple):
    """A range of sizes that one kernel computes: m, n, k and m * n * k from ``least`` to ``most``.

    ``shape`` is one of:

    - ``column``, ``row``: B has one column, or A one row; with ``stream``, if the matrix is too
      large for L2;
    - ``few``: C has so few rows (or columns) that the large operand is read from memory only once;
    - ``turned``: the small operand has another order than the large one, and is transposed first;
    - ``across``: C has few rows and another order than the large operand, and is stored transposed;
    - ``along k``: C has few rows or columns, types are converted, and vectors run along K;
    - ``in matrices``: the same for more rows or columns, on a matrix unit;
    - ``matrix``: all operands are read in place;
    - ``blocks``: operands are packed in blocks that fit the caches;
    - ``shares``: a large C with few rows (or columns) on several threads: each thread packs the
      panels of the large operand that it multiplies, so no thread waits for another one;
    - ``thin``: a large product, but the rows of C are short: only the operand along them is packed.

    ``stacked`` is True for a stack, whose products together have ``total[0]`` to ``total[1]``
    multiply-adds. If ``tiny`` is not 0, m, n and k are at most ``tiny``, and each matrix is
    contiguous; in a ``cube`` all three equal ``tiny``. One of m, n and k is larger than ``above``.
    If ``loose``, m, n and k are small, but not all matrices are contiguous.
    """

    shape: Shape
    parallel: bool
    least: tuple[int, int, int, int]
    most: tuple[int, int, int, int]
    stacked: bool = False
    total: tuple[int, int] = (0, UNBOUNDED)
    tiny: int = 0
    above: int = -1
    loose: bool = False

    @property
    def cube(self) -> bool:
        """True if the class has one size only: a kernel is compiled for it, n x n x n."""
        return self.tiny > 0 and self.least[:3] == self.most[:3]


class Family(NamedTuple):
    """A key for all products that the same kernel computes.

    ``types`` are the element types of a, b and the output. ``axes`` has the contiguous axis of each
    of these three arrays. ``sizes`` is the class of m, n and k, for example "up to 31 rows".
    """

    types: tuple[str, str, str]
    axes: Axes
    sizes: Class
    options: Options


def in_place(axes: Axes) -> bool:
    """Return True if both C and B have contiguous rows, or both C and A contiguous columns."""
    a, b, c = axes
    return b == 1 if c == 1 else a == 0


def crosses(axes: Axes) -> bool:
    """Return True if A is not contiguous along K; for a C in order F, if B is not."""
    a, b, c = axes
    return a == 0 if c == 1 else b == 1


def small_line(axes: Axes) -> int:
    """Return which of m and n (0, 1) is the small operand's number of rows or columns."""
    a, b, c = axes
    return a if a == b else c


def short_line(axes: Axes) -> int | None:
    """Return which of m and n (0, 1) must be small for C's order not to be the larger operand's."""
    a, b, c = axes
    return c if (a == 0 and c == 1) or (b == 1 and c == 0) else None
