"""The layout of a B that was packed ahead of its use: what kernels and ``pack_b`` agree on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilewright.isa.target import Target
from tilewright.spec.operands import Packed
from tilewright.spec.types import FORMATS, ITEMSIZE, is_integer, is_signed, mixes, other_sign

from ..contraction import Product, choose_product, converting_lanes, held_as

#: Bytes to which each packed matrix, and the sums behind it, are aligned.
ALIGNMENT = 64
#: A format's text; no number is longer than one of 64 bits.
_TEXT = re.compile(
    r"(?P<type>\w+) as (?P<stored>\w+), (?P<k>[0-9]{1,19})x(?P<n>[0-9]{1,19}) "
    r"in groups of (?P<group>[0-9]{1,19}) along k(?: in steps of (?P<step>[0-9]{1,19}))?, "
    r"(?:a column|blocks of (?P<nb>[0-9]{1,19}) columns)(?P<sums> and their sums)?"
)
#: What a cache close to the core holds of B beside other operands.
CACHED_BYTES = 1 << 18
#: The columns of a block of a larger B: whole tiles of 1, 2 and 3 vectors of any target; of a
#: matrix unit, two tiles.
VECTOR_COLUMNS, MATRIX_COLUMNS = 48, 32


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """k x n elements in blocks of ``nb`` columns: ``[n / nb][k / group][nb][group]``.

    One column alone is a block, unless more are asked for: then vectors lie along K.

    ``type`` is what B was, ``stored`` what its elements were made for the target's multiply-adds.
    K is padded with zeros to whole groups, and those to whole steps of ``step`` of them; the last
    block to whole columns. With ``sums``, the s32 sums of B's columns follow, over all of K, one
    for each column of the blocks.
    """

    type: str
    stored: str
    itemsize: int
    k: int
    n: int
    nb: int
    group: int
    sums: bool
    step: int = 1

    @property
    def text(self) -> str:
        """All of it in one line, equal exactly when formats are."""
        sums = " and their sums" if self.sums else ""
        steps = f" in steps of {self.step}" if self.step > 1 else ""
        blocks = "a column" if self.column else f"blocks of {self.nb} columns"
        return (
            f"{self.type} as {self.stored}, {self.k}x{self.n} in groups of {self.group} along k"
            f"{steps}, {blocks}{sums}"
        )

    @property
    def column(self) -> bool:
        """Whether it is one column alone, whose groups follow each other: vectors lie along K."""
        return self.n == self.nb == 1

    @property
    def blocks(self) -> int:
        """How many blocks of columns."""
        return -(-self.n // self.nb)

    @property
    def groups(self) -> int:
        """How many groups of K, those that only fill a step included."""
        return -(-self.k // (self.group * self.step)) * self.step

    @property
    def block_elements(self) -> int:
        """Elements of one block."""
        return self.groups * self.group * self.nb

    @property
    def sums_at(self) -> int:
        """The byte at which the sums begin."""
        return aligned(self.blocks * self.block_elements * self.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of one matrix."""
        return self.sums_at + (aligned(4 * self.blocks * self.nb) if self.sums else 0)

    @property
    def elements(self) -> int:
        """From one matrix of a batch to the next, in elements."""
        return self.nbytes // self.itemsize

    @property
    def shift(self) -> int:
        """The number that was added to each integer: half its range if the sign was flipped."""
        if not is_integer(self.type) or self.stored != other_sign(self.type):
            return 0
        half = 1 << (8 * self.itemsize - 1)
        return half if is_signed(self.type) else -half

    def offset(self, k: int, n: int) -> int:
        """The element at which (k, n) lies."""
        block, column = divmod(n, self.nb)
        group, at = divmod(k, self.group)
        return block * self.block_elements + (group * self.nb + column) * self.group + at


def packed_format_named(text: str) -> PackedFormat | None:
    """The format whose ``text`` this is; None if it is no format's."""
    found = _TEXT.fullmatch(text)
    if found is None or found["type"] not in ITEMSIZE or found["stored"] not in ITEMSIZE:
        return None
    numbers = {name: int(found[name] or 1) for name in ("k", "n", "nb", "group", "step")}
    if 0 in (numbers["nb"], numbers["group"], numbers["step"]):
        return None
    stored, sums = found["stored"], found["sums"] is not None
    form = PackedFormat(found["type"], stored, ITEMSIZE[stored], sums=sums, **numbers)
    return form if form.text == text else None


def grouped_format(packed: Packed, k: int, n: int) -> PackedFormat:
    """The format of groups of ``packed.bits``, which is the same on every target."""
    assert packed.bits is not None
    size = ITEMSIZE[packed.type]
    group = packed.bits // (8 * size)
    nb = packed.nb or max(n, 1)
    return PackedFormat(packed.type, packed.type, size, k, n, nb, group, sums=False)


def aligned(size: int) -> int:
    """``size`` in whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def packed_format(target: Target, a: str, b: Packed, k: int, n: int, sums: str) -> PackedFormat:
    """The format of B for an A of type ``a``, with sums of type ``sums``."""
    held = held_as(target, a, b.type, sums)
    product = packed_product(target, a, b, n, held).in_steps(k)
    lanes = max(target.of(held)[0].lanes, converting_lanes(target, held))
    stored = _stored_type(b.type, product, k * n)
    columns = b.nb or _columns(product, n, k * n * ITEMSIZE[stored])
    return PackedFormat(
        type=b.type,
        stored=stored,
        itemsize=ITEMSIZE[stored],
        k=k,
        n=n,
        nb=1 if _alone(b, n, product) else max(lanes, -(-columns // lanes) * lanes),
        group=product.group,
        sums=held == "s32",
        step=product.depth // product.group,
    )


def _columns(product: Product, n: int, nbytes: int) -> int:
    """The columns of a block where nobody says how many: all, if a cache holds them.

    Else what a tile reads of K would lie as far apart as rows of B are long: in other pages, and in
    few sets of the first cache. What a matrix unit's tile reads fills that cache in any case.
    """
    if product.unit is not None:
        return min(n, MATRIX_COLUMNS)
    return n if nbytes <= CACHED_BYTES else min(n, VECTOR_COLUMNS)


def packed_product(target: Target, a: str, b: Packed, n: int, held: str = "") -> Product:
    """The multiply-add of an A of type ``a`` with a B of ``n`` columns that is packed ahead.

    Sums are of type ``held``, "" for the one of these types.
    """
    types = {"a": a, "b": b.type}
    product = choose_product(target, types, "b", packed=True, held=held)
    if _alone(b, n, product):
        return choose_product(target, types, "b", packed=True, flat=True, held=held)
    return product


def _alone(b: Packed, n: int, product: Product) -> bool:
    """Whether B is packed as a column: along more of them all lanes but one would be idle."""
    return n == 1 and b.nb is None and product.unit is None


def _stored_type(type_: str, product: Product, elements: int) -> str:
    """The type that a B packed ahead is stored as: what the multiply-add takes, or a smaller one.

    Where B is too large for the cache it keeps its smaller source type, and kernels convert it as
    they load it.
    """
    if mixes(type_, product.along):
        small = product.along == "f32" and product.op.form not in ("matrix", "block")
        return type_ if small and elements * ITEMSIZE["f32"] > CACHED_BYTES else product.along
    if product.accumulator == "s64" and product.depth == 1:
        return type_  # one load makes an element four or eight times as large
    in_cache = elements * ITEMSIZE[product.along] <= CACHED_BYTES
    if product.depth > 1 or is_integer(type_) or in_cache:
        return product.along
    small = type_ in FORMATS and ITEMSIZE[type_] == 1
    return "bf16" if small else type_  # which holds every number of 8 bits
