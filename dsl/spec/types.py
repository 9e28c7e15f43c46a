"""The table of element types: size, kind, bits, and the type that holds sums of products.

A new type needs one entry in the table. Its conversions in kernels, its numpy arrays, its range of
exact results and its overflow follow from the entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from tilewright.errors import SpecError

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["float", "int"]
#: The names that a user may give an element type: tilewright's, then those of numpy and ml_dtypes.
TypeName = Literal[
    "f32", "f64", "f16", "bf16", "f8_e4m3", "f8_e5m2", "s8", "u8", "s16", "u16", "s32", "s64",
    "float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
    "int8", "uint8", "int16", "uint16", "int32", "int64",
]  # fmt: skip
#: A user gives an element type by its name, as a numpy dtype, or as a numpy scalar type.
DTypeLike: TypeAlias = "TypeName | np.dtype[Any] | type[np.generic]"


class FloatFormat(NamedTuple):
    """The bit layout of an 8-bit or 16-bit floating-point type: sign, exponent, mantissa.

    ``exponent`` and ``mantissa`` count stored bits. Exponents are stored with ``bias`` added, half
    of their range. As in IEEE 754, exponents of all ones are infinity and NaN. If ``infinity`` is
    False, only all ones in exponent and mantissa are NaN, and the rest are numbers.
    """

    exponent: int
    mantissa: int
    infinity: bool = True

    @property
    def bias(self) -> int:
        """The number that is added to an exponent before it is stored."""
        return int(2 ** (self.exponent - 1)) - 1

    @property
    def sign(self) -> int:
        """The sign bit, as an integer in which only this bit is 1."""
        return 1 << (self.exponent + self.mantissa)

    @property
    def above(self) -> int:
        """The bits that an overflow gives: infinity, or NaN if the type has no infinity."""
        return self.sign - (1 << self.mantissa if self.infinity else 1)

    @property
    def nan(self) -> int:
        """The bits of a quiet NaN."""
        return self.above | (1 << (self.mantissa - 1))

    @property
    def least(self) -> int:
        """The exponent of the smallest normal number."""
        return 1 - self.bias

    @property
    def over(self) -> float:
        """The value that the bits ``above`` would have if they encoded a finite number."""
        fraction = self.above & ((1 << self.mantissa) - 1)
        exponent = (self.above >> self.mantissa) - self.bias
        return float((2**self.mantissa + fraction) * 2.0 ** (exponent - self.mantissa))

    @property
    def largest(self) -> float:
        """The largest finite number. Its bits are the integer before ``above``."""
        last = self.above - 1
        fraction, exponent = last & ((1 << self.mantissa) - 1), (last >> self.mantissa) - self.bias
        return float((2**self.mantissa + fraction) * 2.0 ** (exponent - self.mantissa))


class ElementType(NamedTuple):
    """One row of the table of element types.

    ``numpy`` is the name of its dtype in numpy or ml_dtypes. ``bits`` is the unsigned type of
    arrays that hold its bits instead, "" for none. ``format`` describes the bits.
    """

    name: str
    kind: Kind
    itemsize: int
    numpy: str
    ctype: str
    bits: str = ""
    format: FloatFormat | None = None


_ALL = (
    ElementType("f32", "float", 4, "float32", "float"),
    ElementType("f64", "float", 8, "float64", "double"),
    ElementType("f16", "float", 2, "float16", "uint16_t", "uint16", FloatFormat(5, 10)),
    ElementType("bf16", "float", 2, "bfloat16", "uint16_t", "uint16", FloatFormat(8, 7)),
    ElementType(
        "f8_e4m3",
        "float",
        1,
        "float8_e4m3fn",
        "uint8_t",
        "uint8",
        FloatFormat(4, 3, infinity=False),
    ),
    ElementType("f8_e5m2", "float", 1, "float8_e5m2", "uint8_t", "uint8", FloatFormat(5, 2)),
    ElementType("s8", "int", 1, "int8", "int8_t"),
    ElementType("u8", "int", 1, "uint8", "uint8_t"),
    ElementType("s16", "int", 2, "int16", "int16_t"),
    ElementType("u16", "int", 2, "uint16", "uint16_t"),
    ElementType("s32", "int", 4, "int32", "int32_t"),
    ElementType("s64", "int", 8, "int64", "int64_t"),
)
#: Element types that registers and buffers may have, but users cannot name.
_MORE = (
    # u4 holds 0 to 15, s4 holds -8 to 7, one number in each byte.
    ElementType("u4", "int", 1, "uint8", "uint8_t"),
    ElementType("s4", "int", 1, "int8", "int8_t"),
    # s5 holds -12 to 12: twice the values of f4_e2m1, which are multiples of 0.5.
    ElementType("s5", "int", 1, "int8", "int8_t"),
)
#: Types of which a matrix may hold two elements in each byte. The first one is in the low bits.
NibbleName = Literal["u4", "s4"]
NIBBLES: tuple[str, ...] = ("u4", "s4")
#: Types that users can name.
TYPES = {t.name: t for t in _ALL}
#: All element types by name, including those that users cannot name.
ELEMENTS = {t.name: t for t in (*_ALL, *_MORE)}
#: Size of an element in bytes, by type name.
ITEMSIZE = {t.name: t.itemsize for t in ELEMENTS.values()}
#: Bit layouts of the floating-point types that are converted to f32 for arithmetic.
FORMATS = {t.name: t.format for t in _ALL if t.format is not None}
_NUMPY_NAMES = {t.numpy: t.name for t in _ALL}
#: Types that A and B may have.
INPUTS = tuple(name for name in TYPES if name not in ("s32", "s64"))


def type_name(type_: object) -> TypeName:
    """Return the name of a type that is given as a name, a numpy dtype or a numpy scalar type."""
    name = type_ if isinstance(type_, str) else getattr(type_, "name", None)
    if name is None:
        name = getattr(type_, "__name__", None)
    name = _NUMPY_NAMES.get(str(name), name)
    if name not in TYPES:
        raise SpecError(
            "unknown element type",
            got=type_,
            expected=f"one of {', '.join(TYPES)}, or numpy's",
            hint=_meant(type_),
        )
    return cast(TypeName, str(name))


#: Names for element types in numpy, PyTorch, C and other projects. A number in a numpy name is a
#: size in bytes: numpy's "f4" is f32.
_OTHERS: dict[str, tuple[str, ...]] = {
    "f64": ("d", "double", "fp64", "float", "float64"),
    "f32": ("f4", "f", "single", "fp32", "float32"),
    "f16": ("f2", "e", "half", "fp16", "float16"),
    "bf16": ("bfloat", "brain16", "bfloat16"),
    "f8_e4m3": ("e4m3", "f8e4m3", "f8e4m3fn", "fp8e4m3", "float8e4m3", "float8e4m3fn", "fp8"),
    "f8_e5m2": ("e5m2", "f8e5m2", "fp8e5m2", "float8e5m2"),
    "s8": ("i1", "b", "int8", "char"),
    "u8": ("u1", "byte", "uint8", "uchar"),
    "s16": ("i2", "h", "i16", "int16", "short"),
    "u16": ("u2", "uint16", "ushort"),
    "s32": ("i4", "i", "i32", "int", "int32"),
    "s64": ("i64", "l", "q", "long", "int64"),
}


#: Hints for names that could mean two types, and for low-bit types, which only B may have.
_UNLIKE = {
    "f8": '"f64" is numpy\'s f8, of 8 bytes; "f8_e4m3" and "f8_e5m2" have 8 bits',
    "i8": '"s64" is numpy\'s i8, of 8 bytes; "s8" has 8 bits',
    **dict.fromkeys(
        ("s4", "u4", "s2", "u2", "int4", "uint4", "int2", "uint2", "f4e2m1", "e2m1", "fp4"),
        'b=tw.Packed(tw.Quantized("s4", ...)): B alone may have fewer than 8 bits',
    ),
}


def _meant(type_: object) -> str | None:
    """Return the type that an unknown name probably means, for example s8 for int8; None without a
    guess.
    """
    if isinstance(type_, type):
        said = type_.__name__
    elif isinstance(type_, str) or type(type_).__name__ == "dtype":  # PyTorch dtypes too
        said = str(type_)
    else:
        return None
    plain = "".join(filter(str.isalnum, said.lower().rpartition(".")[2]))
    found = next((name for name, others in _OTHERS.items() if plain in (name, *others)), None)
    return _UNLIKE.get(plain, None if found is None else f'"{found}"')


def unconverted(source: str, made: str) -> str:
    """Return what to do in place of a conversion that does not exist; "" if this one does."""
    pair = {source, made}
    if len(pair) == 2 and "s64" in pair and not all(map(is_integer, pair)):
        return "s32 first, if it holds all elements"
    if source == "f64" and ITEMSIZE[made] < 4 and not is_integer(made):
        return f"f32 first, and then {made}, which rounds twice"
    return ""


def in_word(name: str) -> int:
    """Return the number of elements of type ``name`` in a 32-bit word; 1 if they are larger."""
    return max(1, 4 // ITEMSIZE[name])


def is_integer(name: str) -> bool:
    """Return True if the element type ``name`` is an integer type."""
    return ELEMENTS[name].kind == "int"


def is_signed(name: str) -> bool:
    """Return True if the element type ``name`` is a signed integer type."""
    return is_integer(name) and name[0] != "u"


def other_sign(name: str) -> str:
    """Return the integer type of the same size with the other signedness, for example u8 for s8.

    The result is "" if ``name`` is no 8-bit or 16-bit integer type.
    """
    if name not in INPUTS or not is_integer(name):
        return ""
    return ("u" if is_signed(name) else "s") + name[1:]


def accumulator(a: str, b: str) -> TypeName:
    """Return the type that sums of products of types ``a`` and ``b`` have by default.

    An integer that meets floating point becomes floating point. SpecError if the two types cannot
    be multiplied.
    """
    if is_integer(a) and is_integer(b):
        return "s32"
    if a == b == "f64":
        return "f64"
    if "f64" in (a, b):
        raise SpecError(
            "no product of these types",
            got=f"a={a}, b={b}",
            expected="two f64, or two of s8, u8, s16, u16, f32, f16, bf16 and the f8",
            hint="array.astype(np.float32): arrays of numpy are f64 by default",
        )
    return "f32"


def mixes(a: str, b: str) -> bool:
    """Return True if one of two element types is an integer type, and the other is not."""
    return is_integer(a) != is_integer(b)
