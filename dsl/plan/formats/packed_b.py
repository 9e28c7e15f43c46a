"""Choose the layout of a B or an A that is packed ahead of its use, for a target."""

from __future__ import annotations

from math import inf

from tilewright.errors import SpecError
from tilewright.isa.target import Target
from tilewright.spec.operands import Packed
from tilewright.spec.sizes import Size, most_of
from tilewright.spec.types import FORMATS, ITEMSIZE, is_integer, mixes

from ..contraction import Product, choose_product, converting_lanes, held_as
from .layout import PackedFormat

#: If B has at most this number of bytes, L2 holds it together with the other operands.
CACHED_BYTES = 1 << 18
#: The number of columns in a block of a large B. ``VECTOR_COLUMNS`` are whole tiles of 1, 2 and 3
#: vectors on any target. ``MATRIX_COLUMNS`` are two tiles of a matrix unit.
VECTOR_COLUMNS, MATRIX_COLUMNS = 48, 32


def grouped_format(packed: Packed, k: int, n: int) -> PackedFormat[int]:
    """The format of groups of ``packed.bits``, which is the same on every target."""
    assert packed.bits is not None
    size = ITEMSIZE[packed.type]
    group = packed.bits // (8 * size)
    nb = packed.nb or max(n, 1)
    return PackedFormat(packed.type, packed.type, size, k, n, nb, group, sums=False)


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
    return choose_product(target, {"a": a, "b": b}, "b", packed=True, held=held)


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
        step=1 if product.unit is None else product.depth // product.group,
        rows=True,
    )
    return family.of(k, m) if isinstance(k, int) and isinstance(m, int) else family


def _height(target: Target, product: Product, mb: int | None) -> int:
    """Return the rows in a panel of A: ``mb``, or those of the tallest tile of 3 vectors.

    The default is a multiple of 4, because packing moves 4 rows at a time. A multiply-add of blocks
    of C reads whole vectors of rows; panels have a multiple of these. A matrix unit reads rows one
    by one; each is a panel.
    """
    if product.unit is not None:
        if mb not in (None, 1):
            raise SpecError(
                f"{target.name} reads a packed A row by row", got=f"mb={mb}", expected="mb=1"
            )
        return 1
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
