"""Define the layout of a matrix that is packed ahead of its use, and its text.

This module imports little, because processes import it whose kernels are all in the cache. Sizes
are ints, formulas of the sizes of a call, or not known: None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from tilewright.spec.types import ITEMSIZE, is_integer, is_signed, other_sign

#: The alignment in bytes of each packed matrix and of its column sums.
ALIGNMENT = 64
#: The pattern of a format's text. Numbers have at most 64 bits.
_TEXT = re.compile(
    r"(?P<type>\w+) as (?P<stored>\w+), (?P<size>(?P<k>[0-9]{1,19})x(?P<n>[0-9]{1,19})|any size) "
    r"in groups of (?P<group>[0-9]{1,19}) along k(?: in steps of (?P<step>[0-9]{1,19}))?, "
    r"(?:a column|blocks of (?P<nb>[0-9]{1,19}) columns|panels of (?P<mb>[0-9]{1,19}) rows)"
    r"(?P<sums> and their sums)?"
)


#: The type of a format's sizes: int, Expr for formulas of a call's sizes, or None.
Number = TypeVar("Number")
Other = TypeVar("Other")


@dataclass(frozen=True, slots=True)
class PackedFormat(Generic[Number]):
    """The layout of k x n elements in blocks of ``nb`` columns: ``[n / nb][k / group][nb][group]``.

    A B with a single column is one block of one column, unless the caller asks for more columns.
    Vectors then run along K.

    If only the call knows the sizes, ``k`` and ``n`` are None. The format then describes a family
    of matrices, and ``of`` returns the format of one of them.

    ``type`` is the type of B's elements, and ``stored`` the type in which they are packed for the
    target's multiply-adds. K is padded with zeros to whole groups, and to a multiple of ``step``
    groups. The last block is padded to ``nb`` columns.

    If ``sums`` is True, the s32 sum of each column over all of K follows the elements. If ``rows``
    is True, the matrix is an A: ``n`` is m, a column is a row of A, and a block is a panel of rows.
    """

    type: str
    stored: str
    itemsize: int
    k: Number
    n: Number
    nb: int
    group: int
    sums: bool
    step: int = 1
    rows: bool = False

    @property
    def text(self) -> str:
        """The format as one line of text. Equal formats have equal texts, others different ones."""
        sums = " and their sums" if self.sums else ""
        steps = f" in steps of {self.step}" if self.step > 1 else ""
        blocks = "a column" if self.column else f"blocks of {self.nb} columns"
        blocks = f"panels of {self.nb} rows" if self.rows else blocks
        size = f"{self.n}x{self.k}" if self.rows else f"{self.k}x{self.n}"
        size = "any size" if self.is_open else size
        return (
            f"{self.type} as {self.stored}, {size} in groups of {self.group} along k"
            f"{steps}, {blocks}{sums}"
        )

    @property
    def is_open(self) -> bool:
        """True if the format has no sizes, because only the call knows them."""
        return self.k is None

    def of(self, k: Other, n: Other) -> PackedFormat[Other]:
        """Return the format with these sizes."""
        found: PackedFormat[Any] = replace(self, k=k, n=n)  # type: ignore[arg-type]
        return found

    @property
    def family(self) -> PackedFormat[None]:
        """The format of all matrices that differ only in their sizes."""
        return self.of(None, None)

    @property
    def column(self) -> bool:
        """True if B is a single column, whose K groups are contiguous; vectors then run along K."""
        return self.n == 1 and self.nb == 1 and not self.rows

    @property
    def shape(self) -> tuple[Number, Number]:
        """The sizes in the order of the matrix's axes: (k, n) for a B, (m, k) for an A."""
        return (self.n, self.k) if self.rows else (self.k, self.n)

    @property
    def blocks(self) -> Number:
        """The number of blocks of columns."""
        return _parts(self.n, self.nb)

    @property
    def groups(self) -> Number:
        """The number of K groups, including padding to whole steps."""
        return _times(_parts(self.k, self.group * self.step), self.step)

    @property
    def block_elements(self) -> Number:
        """The number of elements in a block."""
        return _times(self.groups, self.group * self.nb)

    @property
    def sums_at(self) -> Number:
        """The byte at which the sums begin."""
        blocks: Any = self.blocks
        return aligned(_times(self.block_elements, blocks * self.itemsize))

    @property
    def nbytes(self) -> Number:
        """The size of one matrix in bytes."""
        sums: Any = aligned(_times(self.blocks, 4 * self.nb)) if self.sums else 0
        return sums + self.sums_at  # type: ignore[no-any-return]

    @property
    def elements(self) -> Number:
        """The elements from one matrix of a batch to the next."""
        return _parts(self.nbytes, self.itemsize)

    @property
    def shift(self) -> int:
        """The number that was added to each integer.

        It is half the range of the type if the sign bit was flipped, else 0.
        """
        if not is_integer(self.type) or self.stored != other_sign(self.type):
            return 0
        half = 1 << (8 * self.itemsize - 1)
        return half if is_signed(self.type) else -half

    def offset(self, k: int, n: int) -> int:
        """Return the index of element (k, n)."""
        block, column = divmod(n, self.nb)
        group, at = divmod(k, self.group)
        blocks: Any = self.block_elements
        return int(block * blocks) + (group * self.nb + column) * self.group + at


def packed_format_named(text: str) -> PackedFormat[int] | PackedFormat[None] | None:
    """Return the format whose ``text`` this is, or None."""
    found = _TEXT.fullmatch(text)
    if found is None or found["type"] not in ITEMSIZE or found["stored"] not in ITEMSIZE:
        return None
    numbers = {name: int(found[name] or 1) for name in ("nb", "group", "step")}
    rows = found["mb"] is not None
    numbers["nb"] = int(found["mb"]) if rows else numbers["nb"]
    if 0 in (numbers["nb"], numbers["group"], numbers["step"]):
        return None
    stored, sums = found["stored"], found["sums"] is not None
    family = PackedFormat(
        found["type"], stored, ITEMSIZE[stored], k=None, n=None, sums=sums, rows=rows, **numbers
    )
    form: PackedFormat[int] | PackedFormat[None] = family
    if found["k"] is not None:
        k, n = (int(found[name]) for name in ("nk" if rows else "kn"))
        form = family.of(k, n)
    return form if form.text == text else None


def aligned(size: Number) -> Number:
    """Return ``size`` rounded up to whole cache lines."""
    return _times(_parts(size, ALIGNMENT), ALIGNMENT)


def _parts(size: Number, by: int) -> Number:
    """Return ``size`` divided by ``by``, rounded up, so that an incomplete last part counts."""
    given: Any = size
    if isinstance(size, int):
        return -(-given // by)  # type: ignore[no-any-return]
    from tilewright.symbolic import div

    return div(given + (by - 1), by)  # type: ignore[no-any-return]


def _times(size: Number, factor: int) -> Number:
    given: Any = size
    return given * factor  # type: ignore[no-any-return]
