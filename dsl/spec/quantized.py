"""Formats of low-bit matrices, and operands that a kernel quantizes.

An element of a quantized matrix represents ``scale * (q - zero)``. ``q`` is a low-bit number. The
scale belongs to a block of elements along K, in a column of B or in a row of A.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from tilewright.errors import SpecError, SpecTypeError
from tilewright.keywords import spelled

from .sizes import check_count, real_number, whole_number
from .types import DTypeLike, TypeName, is_integer, type_name

#: Names of the types in which low-bit matrices store their elements.
StoredName = Literal[
    "s2", "u2", "s3", "u3", "s4", "u4", "s5", "u5", "s6", "u6", "s8", "u8", "f4_e2m1", "iq4_nl",
    "nf4", "f8_e4m3", "f8_e5m2",
]  # fmt: skip
#: Names of the types that the scales of blocks may have.
ScaleName = Literal["f32", "f16", "bf16", "e8m0", "f8_e4m3"]


class Plane(NamedTuple):
    """A group of bits of each low-bit number, which is stored apart from the number's other bits.

    The group has ``bits`` bits, from bit ``up`` of the number upwards.
    """

    bits: int
    up: int


class StoredType(NamedTuple):
    """A type of low-bit numbers: integers from ``low`` to ``high``, or a table of ``values``.

    ``unpacked`` is the type that holds a single number, or its index in the table. The number that
    an entry of the table represents is ``unit`` times the entry. Entries are numbers of f32.
    ``factor`` is the type of the entries in products with integers; "" if integers do not multiply
    this table.
    """

    bits: int
    low: int
    high: int
    unpacked: TypeName
    values: tuple[float, ...] = ()
    unit: float = 1.0
    factor: str = ""

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The groups of 8, 4, 2 or 1 bits into which numbers are split for packing, low bits first.

        For example, 6 bits are 4 low bits and 2 high bits. A byte holds only whole groups.
        """
        left, found, up = self.bits, [], 0
        for bits in (8, 4, 2, 1):
            if left & bits:
                found.append(Plane(bits, up))
                up += bits
        return tuple(found)

    @property
    def fields(self) -> int:
        """The largest number of elements that share a byte: 4 for 6-bit elements (4 + 2 bits)."""
        return 8 // self.planes[-1].bits

    @property
    def integers(self) -> tuple[int, ...]:
        """The entries of a table of integers."""
        return tuple(map(int, self.values))

    @property
    def floating(self) -> bool:
        """True if the low-bit numbers are floating point."""
        return bool(self.values) or not is_integer(self.unpacked)


_F4 = (0, 1, 2, 3, 4, 6, 8, 12)
#: The table of GGUF's IQ4_NL (ggml, ``kvalues_iq4nl``).
_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
#: NormalFloat of 4 bits: Dettmers et al., QLoRA (arXiv:2305.14314), appendix E; bitsandbytes' nf4.
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip


def integers(bits: int, *, signed: bool) -> StoredType:
    """Return the low-bit type that holds all integers with ``bits`` bits."""
    below = 1 << (bits - 1) if signed else 0
    return StoredType(bits, -below, (1 << bits) - 1 - below, "s8" if signed else "u8")


@spelled(SpecTypeError)
@dataclass(frozen=True, slots=True)
class Table:
    """A table of numbers, as the ``type`` of a ``tw.Quantized``.

    An element is a code: the index of its number in the table. The A of a product must be floating
    point. Tables of the same numbers are equal.

    Parameters
    ----------
    numbers : sequence of float
        16 numbers for elements of 4 bits, or 4 for 2 bits, in the order of their codes. Each is
        rounded to the nearest f32. A number may occur twice, but not all may be equal.

    Raises
    ------
    SpecError
        The count is another one, or a number is NaN or not in the range of f32.

    Examples
    --------
    >>> powers = tw.Quantized(tw.Table((0, 1, 2, 4)), scale="f32", block=16)
    >>> b = tw.quantize(np.float32([[4], [0.9], [2.9], [3.1], *[[0]] * 12]), powers)
    >>> b.q[:4, 0], b.dequantize()[:4, 0]
    (array([3, 1, 2, 3], dtype=uint8), array([4., 1., 2., 4.], dtype=float32))
    """

    numbers: tuple[float, ...]

    def __init__(self, numbers: Iterable[float]) -> None:
        given: object = numbers
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise SpecTypeError("a table has several numbers", got=given, expected=_COUNTS)
        found = tuple(_in_f32(each, code) for code, each in enumerate(numbers))
        if len(found) not in (4, 16):
            raise SpecError(
                "a table has another count of numbers",
                got=f"{len(found)} numbers",
                expected=_COUNTS,
                hint="repeat a number for codes that do not occur",
            )
        if len(set(found)) == 1:
            raise SpecError(
                "all numbers of a table are equal", got=found[0], expected="at least two numbers"
            )
        object.__setattr__(self, "numbers", found)

    def __str__(self) -> str:
        return f"a table of {len(self.numbers)} numbers"

    @property
    def text(self) -> str:
        """The numbers as one word. Nine digits identify a number of f32."""
        return f"table({','.join(f'{number:.9g}' for number in self.numbers)})"

    @property
    def stored(self) -> StoredType:
        """The type of the codes, with the numbers."""
        most = len(self.numbers) - 1
        return StoredType(most.bit_length(), 0, most, "u8", self.numbers)


_COUNTS = "16 numbers for elements of 4 bits, or 4 for 2 bits"


def _in_f32(given: object, code: int) -> float:
    """Return a number of a table, rounded to f32."""
    number = real_number(given)
    try:
        found: float = struct.unpack("f", struct.pack("f", number))[0]
    except (OverflowError, struct.error):
        found = math.nan
    if not math.isfinite(found) or (found == 0 and number != 0):
        raise SpecError(
            f"the number of code {code} is none that a table can have",
            got=given,
            expected="0, or a number of magnitude 1.4e-45 to 3.4e38",
            hint="scale the numbers, and the scales of blocks by the inverse",
        )
    return found + 0.0  # 0.0 for -0.0, which equals it


@lru_cache(maxsize=256)
def _table_of(text: str) -> Table | None:
    """Return the table with this ``text``; None if there is none."""
    numbers = text.removeprefix("table(").removesuffix(")").split(",")
    try:
        found = Table(map(float, numbers))
    except (ValueError, SpecError):
        return None
    return found if found.text == text else None


def stored_type(name: str) -> StoredType | None:
    """Return the type of stored elements with a name, or with a table's text; None if unknown."""
    table = None if name in STORED else _table_of(name)
    return STORED.get(name) if table is None else table.stored


#: The types of stored elements by name. Integers of another width need only an entry here.
STORED: dict[str, StoredType] = {
    **{f"u{bits}": integers(bits, signed=False) for bits in (2, 3, 4, 5, 6, 8)},
    **{f"s{bits}": integers(bits, signed=True) for bits in (2, 3, 4, 5, 6, 8)},
    "f4_e2m1": StoredType(4, 0, 15, "u8", (*_F4, *(-value for value in _F4)), 0.5, "s5"),
    "iq4_nl": Table(_IQ4_NL).stored,
    "nf4": Table(_NF4).stored,
    "f8_e4m3": StoredType(8, -448, 448, "f8_e4m3"),
    "f8_e5m2": StoredType(8, -57344, 57344, "f8_e5m2"),
}


class ScaleType(NamedTuple):
    """The type of scales in the caller's array, and a type that holds them exactly when packed."""

    given: str
    packed: TypeName


#: The types of scales by name. A scale of type e8m0 is a byte that encodes 2**(byte - 127); 255 is
#: NaN.
SCALES: dict[str, ScaleType] = {
    "f32": ScaleType("f32", "f32"),
    "f16": ScaleType("f16", "f16"),
    "bf16": ScaleType("bf16", "bf16"),
    "e8m0": ScaleType("u8", "bf16"),
    "f8_e4m3": ScaleType("f8_e4m3", "f16"),
}
#: The length of a block along K must be a multiple of this. If more than two elements share a byte,
#: it must be a multiple of four times their number.
BLOCK_UNIT = 8
#: If all of K is one block, its length is padded to a multiple of this, or of four times the number
#: of elements that share a byte, whichever is larger.
WHOLE_UNIT = 16
#: Maximum number of elements in a block. The second number holds if blocks have zero points.
LONGEST_BLOCK, LONGEST_WITH_ZEROS = 65536, 4096
#: A block with more elements than this must not end inside bytes that several elements share.
LONGEST_UNEVEN = 64

#: Types of an A of integers that meets a quantized B. The number is subtracted from its elements
#: and zero points while A is copied, so that the elements are those of s8.
SHIFTS = {"s8": 0, "u8": 128}

#: The part of A that has one scale: "row", or ("row", length) for blocks of a row.
PerRow = Literal["row"] | tuple[Literal["row"], int]


@spelled(SpecTypeError)
@dataclass(frozen=True, slots=True)
class Quantized:
    """The format of a low-bit matrix: stored elements, with a scale for each block of K.

    An element represents ``scale * (q - zero)``, or ``scale * q + minimum``. ``tw.Packed(format)``
    is a B in this format.

    Parameters
    ----------
    type : str or Table
        Stored type of ``q``: s2, u2, s3, u3, s4, u4, s5, u5, s6, u6, s8, u8, f4_e2m1, iq4_nl, nf4,
        f8_e4m3, f8_e5m2, or a ``tw.Table`` of any numbers. f8, iq4_nl, nf4 and tables need an A of
        floating point.
    scale : str
        Type of the scales: f32, f16, bf16, e8m0 or f8_e4m3.
    zero : int or str, optional
        None or 0: symmetric, nothing is subtracted. An int: one zero point for all elements. The
        name ``type`` again: an integer zero point for each block. "f32", "f16" or "bf16": a minimum
        of that type for each block.
    block : int or (int, int), optional
        Elements of K in a block, up to 65536, a multiple of 8 (of 16 for two bits); the last block
        may be shorter. None is one block for all of K. A pair such as (128, 128) is elements of K
        by columns. Blocks of more than 64 elements are multiples of 32 for three and five bits, and
        of 16 for six bits.

    Raises
    ------
    SpecError
        The parameters do not fit each other.

    Examples
    --------
    >>> q4 = tw.Quantized("u4", scale="f16", zero=8, block=32)
    >>> spec = tw.Gemm(tw.dim("m"), 4, 32, a=tw.Quantize("f32", per=("row", 32)), b=tw.Packed(q4))
    >>> layer = tw.compile(spec)
    >>> q, scales = np.full((32, 4), 9, np.uint8), np.full((1, 4), 0.5, np.float16)
    >>> layer(np.ones((2, 32), np.float32), layer.pack_b(q, scales=scales))
    array([[16., 16., 16., 16.],
           [16., 16., 16., 16.]], dtype=float32)
    """

    type: StoredName | Table
    scale: ScaleName = "f32"
    zero: int | StoredName | ScaleName | None = None
    block: int | tuple[int, int] | None = None

    def __post_init__(self) -> None:
        table = _table_of(self.type) if isinstance(self.type, str) else self.type
        if isinstance(table, Table):
            object.__setattr__(self, "type", table)
        else:
            _one_of(self.type, (*STORED, "a tw.Table"), "unknown type of stored elements")
        _one_of(self.scale, SCALES, "scales cannot have this type")
        object.__setattr__(self, "block", _block(self))
        if isinstance(self.zero, str):
            _check_zeros(self)
        else:
            object.__setattr__(self, "zero", _zero(self))

    @property
    def stored(self) -> StoredType:
        """The properties of the type of the elements."""
        return self.type.stored if isinstance(self.type, Table) else STORED[self.type]

    @property
    def stored_name(self) -> str:
        """The name of the type of the elements, or its table's text."""
        return self.type.text if isinstance(self.type, Table) else self.type

    @property
    def word(self) -> str:
        """The type's name as part of names of kernels: "table" for any table."""
        return "table" if isinstance(self.type, Table) else self.type

    @property
    def zeros(self) -> Literal["", "zeros", "minima"]:
        """The numbers that each block has besides its scale: "zeros", "minima", or "" for none."""
        if not isinstance(self.zero, str):
            return ""
        return "zeros" if self.zero == self.type else "minima"

    @property
    def offset(self) -> int:
        """The zero point that all elements share; 0 if each block has its own zero point."""
        return 0 if isinstance(self.zero, str) else self.zero or 0

    @property
    def columns(self) -> int:
        """The number of columns in a block."""
        return self.block[1] if isinstance(self.block, tuple) else 1

    @property
    def along(self) -> int | None:
        """The number of elements of K in a block; None if all of K is one block."""
        return self.block[0] if isinstance(self.block, tuple) else self.block

    @property
    def per(self) -> PerRow:
        """The argument ``per`` for a ``tw.Quantize`` A whose blocks are as long as B's."""
        return "row" if self.along is None else ("row", self.along)

    def block_of(self, k: int) -> int:
        """Return the elements of K in a block: if all of K is one block, ``k`` rounded up."""
        unit = max(WHOLE_UNIT, 4 * self.stored.fields)
        return self.along or max(1, -(-k // unit)) * unit

    def blocks(self, k: int, n: int) -> tuple[int, int]:
        """Return the number of blocks along K and along n; the last ones may be smaller."""
        return -(-k // self.block_of(k)), -(-n // self.columns)


def _one_of(name: object, known: Collection[str], problem: str) -> None:
    if not isinstance(name, str) or name not in known:
        raise SpecError(problem, got=name, expected=f"one of {', '.join(known)}")


def _zero(form: Quantized) -> int:
    stored, zero = form.stored, whole_number(0 if form.zero is None else form.zero)
    if stored.floating and zero != 0:
        raise SpecError("floating point has no zero point", got=form.zero, expected="0")
    if zero is None or not stored.low <= zero <= stored.high:
        raise SpecError(
            "the zero point of stored elements must be one of their numbers",
            got=form.zero,
            expected=f"{stored.low} to {stored.high} for {form.type}",
        )
    return zero


def _check_zeros(form: Quantized) -> None:
    stored = form.stored
    named: dict[str, object] = {} if stored.floating else {form.stored_name: None}
    _one_of(form.zero, {**named, "f32": None, "f16": None, "bf16": None}, "unknown type of zeros")
    if form.along is not None:
        check_length(form, form.along)


def check_length(form: Quantized, length: int, *, wide: bool = False) -> None:
    """Raise SpecError if a block is so long that the integer sum over it might not be exact.

    ``wide`` is True if the A of the product has zero points.
    """
    own = form.zeros == "zeros"
    most = longest_block(form.stored.bits, own=own, wide=wide)
    if length > most:
        own_zeros = " with zero points of their own" if own else ""
        of_a = ", for an A with zero points," if wide else ""
        raise SpecError(
            f"blocks of {form.type}{own_zeros}{of_a} are too long",
            got=f"{length} elements of K",
            expected=f"up to {most}: what is computed of them is exact",
            hint="a shorter block=",
        )


def longest_block(bits: int, *, own: bool, wide: bool = False) -> int:
    """Return the largest block length for which sums of products with A stay exact.

    ``bits`` is the number of bits of B's elements. If each block has its ``own`` zero points, f32
    must hold the sums exactly, otherwise s32. ``wide`` is True if A has zero points: differences of
    A's numbers and their zero point have 9 bits.
    """
    most = ((1 << bits) - 1) * (255 if wide else 128)
    exact = (1 << (24 if own else 31)) // most
    return min(LONGEST_WITH_ZEROS if own else LONGEST_BLOCK, 1 << (exact.bit_length() - 1))


@spelled(SpecTypeError)
@dataclass(frozen=True, slots=True)
class Quantize:
    """An A of floating point that the kernel quantizes to integers, row by row or block by block.

    Parameters
    ----------
    type : str or numpy type
        Type of the given A: f32, f16, bf16 or f8, with contiguous rows.
    to : {"s8"}
        Type of the integers.
    per : "row" or ("row", int)
        Part of A with its own scale: a row, or blocks of a row as long as B's, such as ("row", 32).
    zero : {"s8"}, optional
        With "s8" each part has its own zero point too, and uses all 256 numbers.

    Raises
    ------
    SpecError
        The type or ``per`` is not possible.

    Notes
    -----
    Without ``zero``, let ``top`` be the greatest magnitude. Then ``q = round(x * (127 / top))``,
    half to even, and the scale is ``top / 127``; each operation is rounded in f32. A part of zeros
    has scale 0. A part with Inf or NaN makes its sums NaN.

    With ``zero="s8"``, let ``low`` and ``high`` be the least and the greatest element, or 0 if that
    is beyond them, and ``half = high / 2 - low / 2``. The scale is ``half / 127.5``, ``unit = 127.5
    / half`` and ``z = round(-128 - low * unit)``. Then ``q = round(x * unit) + z``, at most 127,
    represents ``scale * (q - z)``.

    Examples
    --------
    >>> a = tw.Quantize("bf16", per=("row", 32))
    >>> a.type, a.block
    ('bf16', 32)
    >>> w8 = tw.Packed(tw.Quantized("s8"))                     # a scale for each row and column
    >>> layer = tw.compile(tw.Gemm(2, 3, 4, a=tw.Quantize("f32", zero="s8"), b=w8))
    >>> b = layer.pack_b(np.full((4, 3), 100, np.int8), scales=np.full((1, 3), 0.01, np.float32))
    >>> layer(np.float32([[0, 1, 2, 3], [0, 0, 0, 4]]), b).round(2)
    array([[6., 6., 6.],
           [4., 4., 4.]], dtype=float32)
    """

    type: TypeName = "f32"
    to: Literal["s8"] = "s8"
    per: PerRow = "row"
    zero: Literal["s8"] | None = None

    def __init__(
        self,
        type: DTypeLike = "f32",
        to: Literal["s8"] = "s8",
        per: PerRow = "row",
        zero: Literal["s8"] | None = None,
    ) -> None:
        name = type_name(type)
        if name not in FLOATS:
            raise SpecError(
                "what is quantized must be floating point",
                got=name,
                expected=f"one of {', '.join(FLOATS)}",
            )
        _one_of(to, {"s8": None}, "A is quantized to another type")
        if zero is not None:
            _one_of(zero, {"s8": None}, "zero points of A have another type")
        object.__setattr__(self, "type", name)
        object.__setattr__(self, "zero", zero)
        object.__setattr__(self, "to", to)
        object.__setattr__(self, "per", _per(per))

    @property
    def block(self) -> int | None:
        """The number of elements of a row of A that share a scale; None for the whole row."""
        return None if self.per == "row" else self.per[1]

    @property
    def order(self) -> Literal["C"]:
        """Always "C", because rows of A must be contiguous."""
        return "C"


#: The types of floating point that A may have if B is a low-bit matrix.
FLOATS = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2")


def _per(per: Any) -> PerRow:
    if isinstance(per, str) and per == "row":
        return "row"
    if not isinstance(per, tuple) or len(per) != 2 or per[0] != "row":
        raise SpecError(
            "a scale belongs to a row or to a block of one", got=per, expected='"row", ("row", 32)'
        )
    return "row", check_block(per[1])


def _block(form: Quantized) -> int | tuple[int, int] | None:
    """Return the block shape of ``form`` if it is possible, else raise SpecError."""
    block: object = form.block
    if block is None:
        return None
    if not isinstance(block, tuple):
        return _check_even(check_block(block, 8 // form.stored.bits), form)
    if len(block) != 2:
        raise SpecError(
            "a block is so many elements of K, or those by so many columns",
            got=block,
            expected="128, (128, 128), or None for all of K",
        )
    along = _check_even(check_block(block[0], 8 // form.stored.bits), form)
    return along, check_count(block[1], "the columns of a block")


def _check_even(along: int, form: Quantized) -> int:
    """Return the block length ``along``; SpecError if a long block ends inside a shared byte."""
    unit = 4 * form.stored.fields
    if along > LONGEST_UNEVEN and along % unit:
        raise SpecError(
            f"long blocks of {form.type} must be whole bytes",
            got=along,
            expected=f"up to {LONGEST_UNEVEN} elements of K, or a multiple of {unit}",
        )
    return along


def check_block(block: object, together: int = 1) -> int:
    """Return the block length ``block`` if it is possible, else raise SpecError.

    It must be a multiple of 8, and of four times ``together``, the elements that share a byte.
    """
    count = check_count(block, "the elements of a block")
    unit = max(BLOCK_UNIT, 4 * together)
    if count % unit or count > LONGEST_BLOCK:
        raise SpecError(
            f"blocks along K must have a multiple of {unit} elements",
            got=count,
            expected=f"{unit} to {LONGEST_BLOCK}",
        )
    return count
