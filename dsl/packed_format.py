"""The layout of a B that was packed ahead of its use: what kernels and ``pack_b`` agree on."""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes to which each packed matrix, and the sums behind it, are aligned.
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """k x n elements in blocks of ``nb`` columns: ``[n / nb][k / group][nb][group]``.

    ``type`` is what B was, ``stored`` what its elements were made for the target's multiply-adds.
    K is padded with zeros to whole groups, the last block to whole columns. With ``sums``, the
    s32 sums of B's columns follow, over all of K, one for each column of the blocks.
    """

    type: str
    stored: str
    itemsize: int
    k: int
    n: int
    nb: int
    group: int
    sums: bool

    @property
    def text(self) -> str:
        """All of it in one line, equal exactly when formats are."""
        sums = " and their sums" if self.sums else ""
        return (
            f"{self.type} as {self.stored}, {self.k}x{self.n} in groups of {self.group} along k, "
            f"blocks of {self.nb} columns{sums}"
        )

    @property
    def blocks(self) -> int:
        """How many blocks of columns."""
        return -(-self.n // self.nb)

    @property
    def block_elements(self) -> int:
        """Elements of one block."""
        return -(-self.k // self.group) * self.group * self.nb

    @property
    def sums_at(self) -> int:
        """The byte at which the sums begin."""
        return _aligned(self.blocks * self.block_elements * self.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of one matrix."""
        return self.sums_at + (_aligned(4 * self.blocks * self.nb) if self.sums else 0)

    def offset(self, k: int, n: int) -> int:
        """The element at which (k, n) lies."""
        block, column = divmod(n, self.nb)
        group, at = divmod(k, self.group)
        return block * self.block_elements + (group * self.nb + column) * self.group + at


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
