"""Define the layouts of a low-bit B and of a quantized A, and their texts.

This module imports little, because processes import it whose kernels are all in the cache.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any

from tilewright.spec.quantized import Plane, StoredType, stored_type
from tilewright.spec.types import ITEMSIZE

from .layout import ALIGNMENT, aligned

#: The type of a block's packed sum of elements. The kernel multiplies it by A's zero point.
SUMS = "s32"
#: Rows of quantized A are an odd multiple of this number of bytes apart. They then use all sets of
#: L1.
ROW_UNIT = 64


@dataclass(frozen=True, slots=True)
class QuantizedFormat:
    """The layout of k x n quantized elements in blocks of ``nb`` columns, with scales and zero
    points.

    Elements with one plane are stored as ``[n / nb][k / (fields * group)][nb][group]`` bytes of
    type ``stored``. Elements with several planes are stored as ``[n / nb][k / (fields * group)]``
    units. A unit has the bytes of one plane after another, ``[fields * bits / 8][nb][group]`` each;
    the last unit of a block may be shorter.

    The scales follow as ``[n / nb][k / block][nb]`` of type ``scale``. Zero points or minima follow
    in the same layout with type ``zeros``, "" if there are none. With ``sums``, the sum of each
    block's elements follows, less the common zero point, of type ``sums``. K is padded to whole
    blocks, and the last block of columns to whole columns, with elements that are not used.

    ``shift`` is added to each element before it is multiplied, and ``offset`` is the common zero
    point. ``offset`` and ``minima`` change no byte, but distinguish formats whose bytes have
    different meanings.
    """

    type: str
    stored: str
    scale: str
    zeros: str
    k: int
    n: int
    nb: int
    group: int
    block: int
    shift: int
    offset: int = 0
    minima: bool = False
    sums: str = ""

    #: The kernel's pointer to packed B counts in units of this number of bytes.
    itemsize = 1

    @property
    def text(self) -> str:
        """The format as one line of text. Equal formats have equal texts, others different ones."""
        shift = f" {self.shift:+}" if self.shift else ""
        zeros = f" and {self.zeros} {'minima' if self.minima else 'zeros'}" if self.zeros else ""
        zeros += f" and {self.sums} sums" if self.sums else ""
        offset = f" less {self.offset}" if self.offset else ""
        return (
            f"{self.type}{offset}{shift} as {self.stored} with {self.scale} scales{zeros} "
            f"for {self.block}, {self.k}x{self.n} in groups of {self.group} along k, "
            f"blocks of {self.nb} columns"
        )

    @property
    def numbers(self) -> StoredType:
        """The type of the elements."""
        found = stored_type(self.type)
        assert found is not None, self.type
        return found

    @property
    def fields(self) -> int:
        """The number of K groups that share bytes."""
        return self.numbers.fields

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The planes into which the bits of an element are split."""
        return self.numbers.planes

    def lines(self, groups: int) -> int:
        """Return the number of rows of bytes that ``groups`` K groups of a block take.

        A row has ``nb * group`` bytes.
        """
        units, left = divmod(groups, self.fields)
        whole = units * sum(self.fields * plane.bits // 8 for plane in self.planes)
        return whole + sum(-(-left * plane.bits // 8) for plane in self.planes)

    def place(self, index: int, plane: int) -> tuple[int, int]:
        """Return where K group ``index`` is stored in a plane: the row of bytes, and the field."""
        unit, group = divmod(index, self.fields)
        groups = min(self.fields, self.block // self.group - unit * self.fields)
        before = sum(-(-groups * each.bits // 8) for each in self.planes[:plane])
        line, field = divmod(group, 8 // self.planes[plane].bits)
        return self.lines(unit * self.fields) + before + line, field

    @property
    def blocks(self) -> int:
        """The number of blocks of columns."""
        return -(-self.n // self.nb)

    @property
    def k_blocks(self) -> int:
        """The number of blocks of K; each has a scale in every column."""
        return -(-self.k // self.block)

    @property
    def block_elements(self) -> int:
        """The bytes of the elements in one block of columns."""
        return self.k_blocks * self.lines(self.block // self.group) * self.nb * self.group

    @property
    def scales_at(self) -> int:
        """The byte at which the scales begin."""
        return aligned(self.blocks * self.block_elements)

    @property
    def zeros_at(self) -> int:
        """The byte at which the zero points begin."""
        return self.scales_at + self._room(self.scale)

    @property
    def sums_at(self) -> int:
        """The byte at which the sums begin."""
        return self.zeros_at + self._room(self.zeros)

    @property
    def is_open(self) -> bool:
        """Always False: a low-bit matrix has known sizes."""
        return False

    @property
    def shape(self) -> tuple[int, int]:
        """The sizes k and n."""
        return self.k, self.n

    def of(self, k: int, n: int) -> QuantizedFormat:
        """The format with these sizes."""
        return replace(self, k=k, n=n)

    @property
    def nbytes(self) -> int:
        """The size of one matrix in bytes, including padding for vectors that begin at its last
        column.
        """
        return self.sums_at + self._room(self.sums) + ALIGNMENT

    def _room(self, type_: str) -> int:
        """Return the size in bytes of an array with one number for each block and column.

        The size is 0 if ``type_`` is "".
        """
        return aligned(self.blocks * self.k_blocks * self.nb * ITEMSIZE[type_]) if type_ else 0

    def field_type(self, plane: Plane) -> str:
        """Return the type as which a field of ``plane`` is extracted from its byte.

        Integers are extracted as unsigned ones, to which signed integers were shifted. Codes of a
        table keep B's type.
        """
        return self.type if self.numbers.values else f"u{plane.bits}"

    @property
    def bias(self) -> int:
        """The number that was added to each element of B and is still in the factors of products.

        It is 0 if blocks have zero points, because these were shifted by the same number.
        """
        own = self.zeros and not self.minima
        return 0 if own else self.offset + self.shift

    @property
    def column(self) -> bool:
        """False: vectors never run along K, because each column has its own scales."""
        return False


@dataclass(frozen=True, slots=True)
class NumbersFormat(QuantizedFormat):
    """A panel of ``nb`` columns; each element has bytes of its own, of type ``stored``."""

    @property
    def fields(self) -> int:
        """One: an element shares no bytes."""
        return 1

    @property
    def planes(self) -> tuple[Plane, ...]:
        """A single plane with all bits of an element."""
        return (Plane(8 * ITEMSIZE[self.stored], 0),)

    def lines(self, groups: int) -> int:
        """Return the rows of bytes: one for each K group."""
        return groups

    def place(self, index: int, plane: int) -> tuple[int, int]:
        """Return the row of bytes and the field of a K group. Each group has a row of its own."""
        return index, plane


def in_panel(form: QuantizedFormat, type_: str, width: int) -> NumbersFormat:
    """Return the format of ``form``'s numbers unpacked to ``type_``, in panels of ``width``
    columns.
    """
    given = {field.name: getattr(form, field.name) for field in fields(form)}
    return NumbersFormat(**given | {"stored": type_, "nb": width})


_TEXT_OF_B = re.compile(
    r"(?P<type>\w+|table\([^ ]+\))"
    r"(?: less (?P<offset>-?[0-9]{1,3}))?(?: (?P<shift>[+-][0-9]{1,3}))? "
    r"as (?P<stored>\w+) with (?P<scale>\w+) scales(?: and (?P<zeros>\w+) (?P<kind>zeros|minima))?"
    r"(?: and (?P<sums>\w+) sums)? "
    r"for (?P<block>[0-9]{1,19}), (?P<k>[0-9]{1,19})x(?P<n>[0-9]{1,19}) in groups of "
    r"(?P<group>[0-9]{1,19}) along k, blocks of (?P<nb>[0-9]{1,19}) columns"
)


def quantized_format_named(text: str) -> QuantizedFormat | None:
    """Return the quantized format whose ``text`` this is, or None."""
    found = _TEXT_OF_B.fullmatch(text)
    if found is None or stored_type(found["type"]) is None:
        return None
    scale, zeros, sums = found["scale"], found["zeros"] or "", found["sums"] or ""
    if scale not in ITEMSIZE or zeros not in ("", *ITEMSIZE) or sums not in ("", SUMS):
        return None
    names = ("k", "n", "nb", "group", "block", "shift", "offset")
    numbers = {name: int(found[name] or 0) for name in names}
    minima = found["kind"] == "minima"
    form = QuantizedFormat(
        found["type"], found["stored"], scale, zeros, **numbers, minima=minima, sums=sums
    )
    whole = 0 not in (form.nb, form.group, form.block) and form.block % form.group == 0
    return (
        form
        if whole and form.stored in ("u8", "s8", form.numbers.unpacked) and form.text == text
        else None
    )


_TEXT_OF_A = re.compile(
    r"(?P<integers>[su](?:8|16|32)) rows with f32 scales(?P<zeros> and s32 zeros)? "
    r"for each (?P<per>row|block)(?:, sums times (?P<bias>-?[0-9]{1,9}))?"
    r"(?:, (?P<sums>negated|scaled) sums)?"
    r", blocks of (?P<block>[0-9]{1,9}), "
    r"(?P<m>[0-9]{1,19}|any m)x(?P<k>[0-9]{1,19})"
)


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """The layout of an m x k A that was quantized ahead: a record of ``row_bytes`` for each row.

    A record has these parts, in this order:

    - the row's integers, of type ``integers``, padded to whole blocks of K;
    - f32 scales, one for each block, or one for the row if ``whole``;
    - as many s32 zero points, negated, if ``zeros``;
    - for each block the s32 sum of its integers times ``-bias``, if the packed elements of B exceed
      their values by ``bias``;
    - for each block the f32 sum of its integers, "negated" or "scaled", if B has zero points or
      minima;
    - zeros.

    ``m`` is None if it is known only at the call.
    """

    integers: str
    m: Any
    k: int
    block: int
    whole: bool
    zeros: bool
    bias: int
    sums: str

    #: The kernel's pointer to a packed A counts in bytes.
    stored, itemsize = "u8", 1

    @property
    def text(self) -> str:
        """The format as one line of text. Equal formats have equal texts, others different ones."""
        zeros = " and s32 zeros" if self.zeros else ""
        sums = f", sums times {-self.bias}" if self.bias else ""
        sums += f", {self.sums} sums" if self.sums else ""
        rows, each = "any m" if self.is_open else self.m, "row" if self.whole else "block"
        return (
            f"{self.integers} rows with f32 scales{zeros} for each {each}{sums}, "
            f"blocks of {self.block}, {rows}x{self.k}"
        )

    @property
    def is_open(self) -> bool:
        """True if only the call knows the number of rows."""
        return self.m is None

    @property
    def shape(self) -> tuple[Any, int]:
        """The sizes m and k."""
        return self.m, self.k

    @property
    def family(self) -> QuantizedRows:
        """The same format for any number of rows."""
        return replace(self, m=None)

    def of(self, k: int, n: Any) -> QuantizedRows:
        """Return the same format for ``n`` rows."""
        return replace(self, m=n)

    @property
    def blocks(self) -> int:
        """The number of blocks of K in a row."""
        return -(-self.k // self.block)

    @property
    def parts(self) -> dict[str, tuple[str, int, int]]:
        """For each part of a record: its type, its first byte, and the number of its elements.

        The names are those of the operands of a product.
        """
        own = 1 if self.whole else self.blocks
        numbers = {
            "a": (self.integers, self.blocks * self.block),
            "a_scales": ("f32", own),
            "a_zeros": ("s32", own if self.zeros else 0),
            "a_starts": ("s32", self.blocks if self.bias else 0),
            "a_totals": ("f32", self.blocks if self.sums else 0),
        }
        found, begin = {}, 0
        for name, (type_, count) in numbers.items():
            if count:
                found[name] = type_, begin, count
                begin += ITEMSIZE[type_] * count
        return found

    @property
    def used(self) -> int:
        """The bytes of a record without the zeros at its end."""
        type_, begin, count = list(self.parts.values())[-1]
        return begin + ITEMSIZE[type_] * count

    @property
    def row_bytes(self) -> int:
        """The size of a record, an odd number of cache lines, so that rows use all sets of L1."""
        return (-(-self.used // ROW_UNIT) | 1) * ROW_UNIT

    @property
    def nbytes(self) -> Any:
        """The size of the matrix in bytes."""
        return self.m * self.row_bytes


def rows_format_named(text: str) -> QuantizedRows | None:
    """Return the format whose ``text`` this is, or None."""
    found = _TEXT_OF_A.fullmatch(text)
    if found is None:
        return None
    form = QuantizedRows(
        integers=found["integers"],
        m=None if found["m"] == "any m" else int(found["m"]),
        k=int(found["k"]),
        block=int(found["block"]),
        whole=found["per"] == "row",
        zeros=found["zeros"] is not None,
        bias=-int(found["bias"] or 0),
        sums=found["sums"] or "",
    )
    return form if form.block and form.text == text else None
