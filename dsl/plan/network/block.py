"""Define ``Block``, a loop over blocks of rows, and the formulas of the blocks' rows."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from sympy import Expr, Integer

from tilewright.ir.nest import Bound, Name
from tilewright.symbolic import Least, Quotient, div, symbol, value

#: In formulas of a stage in blocks: the number of the block, its first row, and its rows.
BLOCK, START, HERE = symbol("block_of_rows"), symbol("first_row"), symbol("rows_here")
#: In formulas: the number of blocks of a matrix.
COUNT = symbol("blocks_of_rows")


@dataclass(frozen=True, slots=True)
class Outer:
    """A loop around a stage: the name of its counter, and its trip count."""

    counter: str
    trips: Expr


@dataclass(frozen=True, slots=True)
class Block:
    """A loop over blocks of rows, in which stages run one after another.

    ``first`` is the number of the first of these stages. ``total`` rows are cut into blocks of at
    most ``rows`` rows, and ``threads`` threads share the blocks. ``private`` are arrays that have
    the rows of one block only, because no other stage reads them. ``stack`` are loops over leading
    axes, around the loop over blocks.

    On one thread, all blocks but the last have ``rows`` rows. Several threads get equal shares: the
    number of blocks is a multiple of the threads, and blocks have multiples of ``unit`` rows that
    differ by at most ``unit``. There are fewer blocks if they would have less than half of
    ``least`` rows. If ``inner``, and there is only one block, threads share the loops in it: up to
    ``least`` rows are one block, and more rows have a block for each thread. ``work`` is the number
    of vector multiply-adds of a row, None if it is not known.

    A call never has more threads than ``threads``, and only the region knows whether it has fewer.
    The blocks are the same then.
    """

    first: int
    rows: int
    total: Expr
    threads: int
    private: frozenset[Name]
    stack: tuple[Outer, ...] = ()
    unit: int = 1
    least: int = 1
    inner: bool = False
    work: int | None = None

    @property
    def parallel(self) -> bool:
        """True if threads share the blocks."""
        return self.threads > 1

    @property
    def most(self) -> Expr:
        """The maximum number of rows of a block."""
        return Least(Integer(self.rows), self.total)

    @property
    def matrices(self) -> int:
        """The largest known factor of the number of matrices; it is the same for all calls."""
        return prod(int(loop.trips.as_coeff_Mul()[0]) or 1 for loop in self.stack)

    @property
    def around(self) -> tuple[Bound, ...]:
        """The sizes that are computed before the loop."""
        return () if self.height is not None else (Bound(COUNT.name, self.count),)

    @property
    def trips(self) -> Expr:
        """The trip count of the loop: the number of blocks of one matrix."""
        return self.count if self.height is not None else COUNT

    @property
    def sharing(self) -> int:
        """The number of threads that share the blocks of one matrix."""
        return self.threads // gcd(self.threads, self.matrices)

    @property
    def count(self) -> Expr:
        """The number of blocks of one matrix; 0 without rows."""
        if not self.parallel:
            return div(self.total + (self.rows - 1), self.rows)
        every = self.sharing * self._most
        even = self.sharing * div(self._units + (every - 1), every)
        if self.sharing == 1:
            return even
        single = self.single // self.unit
        if self._inner:
            return Least(even, 1 + self.sharing * div(self._units, single + 1))
        return Least(even, div(self._units + (single - 1), single))

    @property
    def single(self) -> int:
        """The maximum number of rows that are a single block even with several threads."""
        least = max(1, self.least // self.unit)
        if self._inner:
            return self.unit * min(self._most, max(self.sharing, least))
        return self.unit * min(max(1, self._most // 2), least)

    @property
    def _most(self) -> int:
        """The largest block, in units."""
        return max(1, self.rows // self.unit)

    @property
    def _inner(self) -> bool:
        return self.inner and self.sharing <= self._most

    @property
    def usual(self) -> Expr:
        """The rows of a block, if there are not more blocks than threads."""
        height = self.height
        if height is not None:
            return Least(Integer(height), self.total)
        return Least(Integer(self.rows), div(self.total + (self.sharing - 1), self.sharing))

    @property
    def said(self) -> str:
        """The rows of a block as text."""
        height = self.height
        return f"at most {self.rows} rows" if height is None else f"{height} rows"

    @property
    def height(self) -> int | None:
        """The rows of all blocks but the last if the plan knows them, else None."""
        if not self.parallel:
            return self.rows
        count, units = value(self.count), value(self._units)
        if count is None or units is None:
            return None
        each = -(-units // count) if count else self.rows
        last = units - (count - 1) * each
        return each * self.unit if last >= max(1, each - 1) else None

    @property
    def start(self) -> Expr:
        """The first row of block number BLOCK."""
        return START if self.height is None else BLOCK * self.height

    @property
    def bound(self) -> tuple[Bound, ...]:
        """The sizes of block number BLOCK."""
        if (height := self.height) is not None:
            known = value(self.total)
            exact = known is not None and known % height == 0
            left = self.total - BLOCK * height
            rows = Integer(height) if exact else Least(Integer(height), left)
            return (Bound(HERE.name, rows),)
        first, end = (self.unit * self._share(number) for number in (BLOCK, BLOCK + 1))
        if self.unit > 1:
            end = Least(end, self.total)
        return Bound(START.name, first), Bound(HERE.name, end - START)

    @property
    def _units(self) -> Expr:
        return div(self.total + (self.unit - 1), self.unit)

    def _share(self, number: Expr) -> Expr:
        """Return the number of units of rows before block ``number``."""
        return Quotient(number * self._units, COUNT)
