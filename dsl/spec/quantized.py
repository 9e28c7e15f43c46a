"""Matrices of few bits: integers with a scale for each block of K, and operands made so on the way.

An element of a quantized matrix stands for ``scale * (q - zero)``. ``q`` is an integer of few bits,
the scale belongs to a block of elements along K of one column of B, or of one row of A.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tilewright.errors import SpecError

from .sizes import check_count, whole_number
from .types import DTypeLike, TypeName, type_name

#: The types in which elements are stored; their values are integers.
StoredName = Literal["s4", "u4", "s8", "u8"]
#: The types of scales.
ScaleName = Literal["f32", "f16", "bf16"]


class StoredType(NamedTuple):
    """Integers from ``low`` to ``high`` in ``bits`` bits; ``unpacked`` holds one alone."""

    bits: int
    low: int
    high: int
    unpacked: TypeName

    @property
    def signed(self) -> bool:
        """Whether there are negative ones."""
        return self.low < 0


#: The stored types by name.
STORED: dict[str, StoredType] = {
    "u4": StoredType(4, 0, 15, "u8"),
    "s4": StoredType(4, -8, 7, "s8"),
    "u8": StoredType(8, 0, 255, "u8"),
    "s8": StoredType(8, -128, 127, "s8"),
}
#: The types that scales may have.
SCALES = ("f32", "f16", "bf16")
#: Elements of K in a block: a multiple of this many.
BLOCK_UNIT = 8
#: The longest block: sums of one are exact in s32, and so is their product with a zero point.
LONGEST_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Quantized:
    """Elements of few bits, and a scale for each ``block`` elements along K: B of a ``tw.Packed``.

    An element is ``scale * (q - zero)``: ``q`` of ``type`` (s4, u4, s8, u8), the scale of type
    ``scale`` (f32, f16, bf16), one for each column and block of K; the last block may be shorter.
    ``zero`` is one number for all elements. ``block`` is a multiple of 8, up to 4096.

    >>> q4 = tw.Quantized("u4", scale="f16", zero=8, block=32)
    >>> spec = tw.Gemm(tw.dim("m"), 4, 32, a=tw.Quantize("f32", per=("row", 32)), b=tw.Packed(q4))
    >>> layer = tw.compile(spec)
    >>> q, scales = np.full((32, 4), 9, np.uint8), np.full((1, 4), 0.5, np.float16)
    >>> layer(np.ones((2, 32), np.float32), layer.pack_b(q, scales=scales))
    array([[16., 16., 16., 16.],
           [16., 16., 16., 16.]], dtype=float32)
    """

    type: StoredName
    scale: ScaleName = "f32"
    zero: int = 0
    block: int = 32

    def __post_init__(self) -> None:
        if self.type not in STORED:
            raise SpecError(
                "unknown type of stored elements",
                got=self.type,
                expected=f"one of {', '.join(STORED)}",
            )
        if self.scale not in SCALES:
            raise SpecError(
                "scales cannot have this type",
                got=self.scale,
                expected=f"one of {', '.join(SCALES)}",
            )
        object.__setattr__(self, "block", check_block(self.block))
        stored = STORED[self.type]
        zero = whole_number(self.zero)
        if zero is None or not stored.low <= zero <= stored.high:
            raise SpecError(
                "the zero point of stored elements must be one of their numbers",
                got=self.zero,
                expected=f"{stored.low} to {stored.high} for {self.type}",
            )
        object.__setattr__(self, "zero", zero)

    @property
    def stored(self) -> StoredType:
        """What is known of the type of its elements."""
        return STORED[self.type]

    def blocks(self, k: int) -> int:
        """How many blocks ``k`` elements have; the last one may be shorter."""
        return -(-k // self.block)


@dataclass(frozen=True, slots=True)
class Quantize:
    """An A of floating point that the kernel makes integers of: one scale for a block of a row.

    A arrives as ``type`` (f32, f16, bf16, f8) in rows, ``order`` C. Of each block of ``per[1]``
    elements of a row, ``("row", 32)`` as B's blocks are, with the greatest magnitude ``top``:
    ``q = round(x * (127 / top))``, half to even, and the scale is ``top / 127``, each operation
    rounded in f32. A block of zeros has the scale 0; one with Inf or NaN makes its sums NaN.

    >>> a = tw.Quantize("bf16", per=("row", 32))
    >>> a.type, a.block
    ('bf16', 32)
    """

    type: TypeName = "f32"
    to: Literal["s8"] = "s8"
    per: tuple[Literal["row"], int] = ("row", 32)

    def __init__(
        self,
        type: DTypeLike = "f32",
        to: Literal["s8"] = "s8",
        per: tuple[Literal["row"], int] = ("row", 32),
    ) -> None:
        name = type_name(type)
        if name not in _FLOATS:
            raise SpecError(
                "what is quantized must be floating point",
                got=name,
                expected=f"one of {', '.join(_FLOATS)}",
            )
        if to != "s8":
            raise SpecError("A is quantized to another type", got=to, expected="s8")
        given: object = per
        if not isinstance(given, tuple) or len(given) != 2 or given[0] != "row":
            raise SpecError("a scale belongs to a block of a row", got=per, expected='("row", 32)')
        object.__setattr__(self, "type", name)
        object.__setattr__(self, "to", to)
        object.__setattr__(self, "per", ("row", check_block(given[1])))

    @property
    def block(self) -> int:
        """The elements of a row that share a scale."""
        return self.per[1]

    @property
    def order(self) -> Literal["C"]:
        """Rows are contiguous."""
        return "C"


_FLOATS = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2")


def check_block(block: object) -> int:
    """The length of a block; SpecError unless it is a multiple of 8 up to the longest one."""
    count = check_count(block, "the elements of a block")
    if count % BLOCK_UNIT or count > LONGEST_BLOCK:
        raise SpecError(
            "blocks along K must have a multiple of 8 elements",
            got=count,
            expected=f"{BLOCK_UNIT} to {LONGEST_BLOCK}",
        )
    return count


def check_quantized(a: object, b: Quantized | None, zeros: Mapping[str, object]) -> None:
    """SpecError unless A and B are quantized alike; ``zeros`` are the zero points beside them."""
    if not isinstance(a, Quantize) and b is None:
        return
    if b is None:
        raise SpecError(
            "A is quantized by the kernel, and B is not",
            got=a,
            expected="a B of integers with scales",
            hint='b=tw.Packed(tw.Quantized("s8", block=32))',
        )
    if not isinstance(a, Quantize):
        raise SpecError(
            "a B that is quantized meets an A that the kernel quantizes",
            got=f"a={a!r} with b={b!r}",
            hint=f'a=tw.Quantize("f32", per=("row", {b.block}))',
        )
    if a.block != b.block:
        raise SpecError(
            "A and B are quantized in blocks of other lengths",
            got=f"{a.block} elements of K in A, {b.block} in B",
            hint=f'per=("row", {b.block})',
        )
    for name, zero in zeros.items():
        if zero is not None:
            raise SpecError(
                f"{name} is given, but what is quantized in blocks has no zero point beside them",
                got=zero,
                hint="tw.Quantized(zero=...) for B's",
            )
