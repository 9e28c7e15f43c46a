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

#: The alignment in bytes of each packed matrix and of its column sums.
ALIGNMENT = 64
#: The pattern of a format's text. Numbers have at most 64 bits.
_TEXT = re.compile(
    r"(?P<type>\w+) as (?P<stored>\w+), (?P<size>(?P<k>[0-9]{1,19})x(?P<n>[0-9]{1,19})|any size) "
    r"in groups of (?P<group>[0-9]{1,19}) along k(?: in steps of (?P<step>[0-9]{1,19}))?, "
    r"(?:a column|blocks of (?P<nb>[0-9]{1,19}) columns|panels of (?P<mb>[0-9]{1,19}) rows)"
    r"(?P<sums> and their sums)?"
)
#: If B has at most this number of bytes, L2 holds it together with the other operands.
CACHED_BYTES = 1 << 18
#: The number of columns in a block of a large B. ``VECTOR_COLUMNS`` are whole tiles of 1, 2 and 3
#: vectors on any target. ``MATRIX_COLUMNS`` are two tiles of a matrix unit.
VECTOR_COLUMNS, MATRIX_COLUMNS = 48, 32


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


def grouped_format(packed: Packed, k: int, n: int) -> PackedFormat[int]:
    """The format of groups of ``packed.bits``, which is the same on every target."""
    assert packed.bits is not None
    size = ITEMSIZE[packed.type]
    group = packed.bits // (8 * size)
    nb = packed.nb or max(n, 1)
    return PackedFormat(packed.type, packed.type, size, k, n, nb, group, sums=False)


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


def packed_format(
    target: Target, a: str, b: Packed, k: Size, n: Size, sums: str
) -> PackedFormat[int] | PackedFormat[None]:
    """Return the format of B for an A of type ``a``, with sums of type ``sums``.

    If only the call knows k or n, the format has neither of them and serves all sizes.
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
    if product.unit is not None:
        raise SpecError(
            f"{target.name} multiplies matrices of these types, and reads rows of A in place",
            got=f"a={a}, b={b}",
            hint="an A of the type that is multiplied, not packed; or tw.Packed(tw.Quantize(...))",
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
        nb=_height(target, product, a.mb),
        group=product.group,
        sums=product.accumulator == "s32",
        rows=True,
    )
    return family.of(k, m) if isinstance(k, int) and isinstance(m, int) else family


def _height(target: Target, product: Product, mb: int | None) -> int:
    """Return the rows in a panel of A: ``mb``, or those of the tallest tile of 3 vectors.

    The default is a multiple of 4, because packing moves 4 rows at a time. A multiply-add of blocks
    of C reads whole vectors of rows; panels have a multiple of these.
    """
    unit = min(v.lanes for v, ops in product.ops.items() if ops) if product.blocks else 1
    if mb is not None and mb % unit:
        raise SpecError(
            f"{target.name} multiplies {unit} rows of A at a time",
            got=f"mb={mb}",
            expected=f"a multiple of {unit}",
        )
    if mb is not None:
        return mb
    rows = max(4, (target.registers - 4) // 3 // 4 * 4)
    if product.op.form == "block":
        rows = max(16, 2 * product.rows)
    return -(-rows // unit) * unit


def _columns(product: Product, n: float, nbytes: float) -> int:
    """Return the number of columns in a block if the caller gives none.

    If L2 holds B, all columns are one block. A larger B has narrow blocks: in a wide block, the
    rows that a tile reads along K would be in different pages and in few sets of L1. A matrix unit
    always has narrow blocks, because its tile fills L1.
    """
    if product.unit is not None:
        return int(min(n, MATRIX_COLUMNS))
    return int(n if nbytes <= CACHED_BYTES else min(n, VECTOR_COLUMNS))


def packed_product(target: Target, a: str, b: Packed, n: Size, held: str = "") -> Product:
    """Return the multiply-add of an A of type ``a`` and a packed B with ``n`` columns.

    Sums have type ``held``; "" means the usual type for these operands.
    """
    types = {"a": a, "b": b.type}
    product = choose_product(target, types, "b", packed=True, held=held)
    if _alone(b, n, product):
        return choose_product(target, types, "b", packed=True, flat=True, held=held)
    return product


def _alone(b: Packed, n: Size, product: Product) -> bool:
    """True if B has a single column and is packed as one, so that vectors run along K.

    In a block of several columns, all lanes but one would be idle.
    """
    return n == 1 and b.nb is None and product.unit is None


def _stored_type(type_: str, product: Product, elements: float) -> str:
    """Return the type in which packed B is stored.

    It is usually the type that the multiply-add takes. If B would then exceed its part of L2, it
    keeps its smaller type, and kernels convert it when they load it.
    """
    if mixes(type_, product.along):
        small = product.along == "f32" and product.op.form not in ("matrix", "block")
        return type_ if small and elements * ITEMSIZE["f32"] > CACHED_BYTES else product.along
    if product.accumulator == "s64" and product.depth == 1:
        # B keeps its smaller type, because kernels widen it by a factor of 4 or 8 with one load.
        return type_
    in_cache = elements * ITEMSIZE[product.along] <= CACHED_BYTES
    if product.depth > 1 or is_integer(type_) or in_cache:
        return product.along
    small = type_ in FORMATS and ITEMSIZE[type_] == 1
    # An 8-bit float is stored as bf16, which represents it exactly.
    return "bf16" if small else type_
