"""The layout of a B that was packed ahead of its use: what kernels and ``pack_b`` agree on.

Sizes are ints, formulas of the sizes of a call, or not known: None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Generic, TypeVar

from tilewright.errors import SpecError
from tilewright.isa.target import Target
from tilewright.spec.operands import Packed
from tilewright.spec.sizes import Size, most_of
from tilewright.spec.types import FORMATS, ITEMSIZE, is_integer, is_signed, mixes, other_sign

from ..contraction import Product, choose_product, converting_lanes, held_as

#: Bytes to which each packed matrix, and the sums behind it, are aligned.
ALIGNMENT = 64
#: A format's text; no number is longer than one of 64 bits.
_TEXT = re.compile(
    r"(?P<type>\w+) as (?P<stored>\w+), (?P<size>(?P<k>[0-9]{1,19})x(?P<n>[0-9]{1,19})|any size) "
    r"in groups of (?P<group>[0-9]{1,19}) along k(?: in steps of (?P<step>[0-9]{1,19}))?, "
    r"(?:a column|blocks of (?P<nb>[0-9]{1,19}) columns|panels of (?P<mb>[0-9]{1,19}) rows)"
    r"(?P<sums> and their sums)?"
)
#: What a cache close to the core holds of B beside other operands.
CACHED_BYTES = 1 << 18
#: The columns of a block of a larger B: whole tiles of 1, 2 and 3 vectors of any target; of a
#: matrix unit, two tiles.
VECTOR_COLUMNS, MATRIX_COLUMNS = 48, 32


#: The type of a format's sizes: int, Expr for formulas of a call's sizes, or None.
Number = TypeVar("Number")
Other = TypeVar("Other")


@dataclass(frozen=True, slots=True)
class PackedFormat(Generic[Number]):
    """k x n elements in blocks of ``nb`` columns: ``[n / nb][k / group][nb][group]``.

    One column alone is a block, unless more are asked for: then vectors lie along K.

    If only the call knows the sizes, ``k`` and ``n`` are None: the format is that of a family of
    matrices, and ``of`` returns the format of one of them.

    ``type`` is what B was, ``stored`` what its elements were made for the target's multiply-adds.
    K is padded with zeros to whole groups, and those to whole steps of ``step`` of them; the last
    block to whole columns. With ``sums``, the s32 sums of B's columns follow, over all of K, one
    for each column of the blocks. With ``rows`` it is an A: then ``n`` is m, the columns are A's
    rows, and a block is a panel of them.
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
        """All of it in one line, equal exactly when formats are."""
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
        """True if the format does not know its sizes."""
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
        """Whether it is one column alone, whose groups follow each other: vectors lie along K."""
        return self.n == 1 and self.nb == 1 and not self.rows

    @property
    def shape(self) -> tuple[Number, Number]:
        """The sizes in the order of the matrix's axes: k, n; of an A m, k."""
        return (self.n, self.k) if self.rows else (self.k, self.n)

    @property
    def blocks(self) -> Number:
        """How many blocks of columns."""
        return _parts(self.n, self.nb)

    @property
    def groups(self) -> Number:
        """How many groups of K, those that only fill a step included."""
        return _times(_parts(self.k, self.group * self.step), self.step)

    @property
    def block_elements(self) -> Number:
        """Elements of one block."""
        return _times(self.groups, self.group * self.nb)

    @property
    def sums_at(self) -> Number:
        """The byte at which the sums begin."""
        blocks: Any = self.blocks
        return aligned(_times(self.block_elements, blocks * self.itemsize))

    @property
    def nbytes(self) -> Number:
        """Bytes of one matrix."""
        sums: Any = aligned(_times(self.blocks, 4 * self.nb)) if self.sums else 0
        return sums + self.sums_at  # type: ignore[no-any-return]

    @property
    def elements(self) -> Number:
        """From one matrix of a batch to the next, in elements."""
        return _parts(self.nbytes, self.itemsize)

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
        blocks: Any = self.block_elements
        return int(block * blocks) + (group * self.nb + column) * self.group + at


def packed_format_named(text: str) -> PackedFormat[int] | PackedFormat[None] | None:
    """The format whose ``text`` this is; None if it is no format's."""
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


def grouped_format(packed: Packed, k: int, n: int) -> PackedFormat[int]:
    """The format of groups of ``packed.bits``, which is the same on every target."""
    assert packed.bits is not None
    size = ITEMSIZE[packed.type]
    group = packed.bits // (8 * size)
    nb = packed.nb or max(n, 1)
    return PackedFormat(packed.type, packed.type, size, k, n, nb, group, sums=False)


def aligned(size: Number) -> Number:
    """``size`` in whole cache lines."""
    return _times(_parts(size, ALIGNMENT), ALIGNMENT)


def _parts(size: Number, by: int) -> Number:
    """How many parts of ``by`` elements ``size`` has, the last one included."""
    given: Any = size
    if isinstance(size, int):
        return -(-given // by)  # type: ignore[no-any-return]
    from tilewright.symbolic import div

    return div(given + (by - 1), by)  # type: ignore[no-any-return]


def _times(size: Number, factor: int) -> Number:
    given: Any = size
    return given * factor  # type: ignore[no-any-return]


def packed_format(
    target: Target, a: str, b: Packed, k: Size, n: Size, sums: str
) -> PackedFormat[int] | PackedFormat[None]:
    """The format of B for an A of type ``a``, with sums of type ``sums``.

    If the call tells k or n it is open in both: then one format is that of all sizes.
    """
    known = isinstance(k, int) and isinstance(n, int)
    held = held_as(target, a, b.type, sums)
    product = packed_product(target, a, b, n, held).in_steps(k if isinstance(k, int) else None)
    lanes = max(target.of(held)[0].lanes, converting_lanes(target, held))
    elements = k * n if isinstance(k, int) and isinstance(n, int) else inf
    stored = _stored_type(b.type, product, elements)
    columns = b.nb or _columns(product, most_of(n), elements * ITEMSIZE[stored])
    family = PackedFormat(
        type=b.type,
        stored=stored,
        itemsize=ITEMSIZE[stored],
        k=None,
        n=None,
        nb=1 if _alone(b, n, product) else max(lanes, -(-columns // lanes) * lanes),
        group=product.group,
        sums=held == "s32",
        step=product.depth // product.group,
    )
    return family.of(k, n) if known else family  # type: ignore[return-value]


def packed_a_product(target: Target, a: str, b: str, sums: str) -> Product:
    """The multiply-add of an A that is packed ahead and a B of type ``b``, with vectors along B."""
    held = held_as(target, a, b, sums)
    product = choose_product(target, {"a": a, "b": b}, "b", packed=True, held=held)
    if product.unit is not None or product.blocks:
        raise SpecError(
            f"{target.name} multiplies matrices of these types, for which no A is packed ahead",
            got=f"a={a}, b={b}",
            hint="a target without the matrix instructions, or an A that is not packed",
        )
    return product


def packed_a_format(
    target: Target, a: Packed, b: str, m: Size, k: Size, sums: str
) -> PackedFormat[int] | PackedFormat[None]:
    """The format of A for a B of type ``b``: ``[m / mb][k / group][mb][group]``."""
    product = packed_a_product(target, a.type, b, sums)
    stored = product.across
    family = PackedFormat(
        type=a.type,
        stored=stored,
        itemsize=ITEMSIZE[stored],
        k=None,
        n=None,
        nb=a.mb or _height(target),
        group=product.group,
        sums=product.accumulator == "s32",
        rows=True,
    )
    return family.of(k, m) if isinstance(k, int) and isinstance(m, int) else family


def _height(target: Target) -> int:
    """The rows of the tallest tiles of 3 vectors: whole vectors of 4, by which rows are packed."""
    return max(4, (target.registers - 4) // 3 // 4 * 4)


def _columns(product: Product, n: float, nbytes: float) -> int:
    """The columns of a block where nobody says how many: all, if a cache holds them.

    Else what a tile reads of K would lie as far apart as rows of B are long: in other pages, and in
    few sets of the first cache. What a matrix unit's tile reads fills that cache in any case.
    """
    if product.unit is not None:
        return int(min(n, MATRIX_COLUMNS))
    return int(n if nbytes <= CACHED_BYTES else min(n, VECTOR_COLUMNS))


def packed_product(target: Target, a: str, b: Packed, n: Size, held: str = "") -> Product:
    """The multiply-add of an A of type ``a`` with a B of ``n`` columns that is packed ahead.

    Sums are of type ``held``, "" for the one of these types.
    """
    types = {"a": a, "b": b.type}
    product = choose_product(target, types, "b", packed=True, held=held)
    if _alone(b, n, product):
        return choose_product(target, types, "b", packed=True, flat=True, held=held)
    return product


def _alone(b: Packed, n: Size, product: Product) -> bool:
    """Whether B is packed as a column: along more of them all lanes but one would be idle."""
    return n == 1 and b.nb is None and product.unit is None


def _stored_type(type_: str, product: Product, elements: float) -> str:
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
