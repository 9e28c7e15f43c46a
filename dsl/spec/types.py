"""The element types: their size, kind, and what sums of their products are held in."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from tilewright.errors import SpecError

Kind = Literal["float", "int"]


class ElementType(NamedTuple):
    """One element type.

    ``numpy`` is the name of its dtype, numpy's own or ml_dtypes'; ``bits`` the unsigned type that
    arrays of its bits may have in place of it, "" for none.
    """

    name: str
    kind: Kind
    itemsize: int
    numpy: str
    ctype: str
    bits: str = ""


_ALL = (
    ElementType("f32", "float", 4, "float32", "float"),
    ElementType("f64", "float", 8, "float64", "double"),
    ElementType("f16", "float", 2, "float16", "uint16_t", "uint16"),
    ElementType("bf16", "float", 2, "bfloat16", "uint16_t", "uint16"),
    ElementType("f8_e4m3", "float", 1, "float8_e4m3fn", "uint8_t", "uint8"),
    ElementType("f8_e5m2", "float", 1, "float8_e5m2", "uint8_t", "uint8"),
    ElementType("s8", "int", 1, "int8", "int8_t"),
    ElementType("u8", "int", 1, "uint8", "uint8_t"),
    ElementType("s32", "int", 4, "int32", "int32_t"),
)
_MORE = (  # what registers and buffers hold besides
    ElementType("s16", "int", 2, "int16", "int16_t"),
    ElementType("u16", "int", 2, "uint16", "uint16_t"),
    ElementType("i64", "int", 8, "int64", "int64_t"),
)
#: The types that users name.
TYPES = {t.name: t for t in _ALL}
#: Those and what the machine uses inside.
ELEMENTS = {t.name: t for t in (*_ALL, *_MORE)}
#: Bytes per element.
ITEMSIZE = {t.name: t.itemsize for t in ELEMENTS.values()}
_NUMPY_NAMES = {t.numpy: t.name for t in _ALL}
#: What A and B may be.
INPUTS = tuple(name for name in TYPES if name != "s32")


def type_name(type_: Any) -> str:
    """The tilewright name of a type given as a name, a numpy dtype or a numpy scalar type."""
    name = type_ if isinstance(type_, str) else getattr(type_, "name", None)
    if name is None:
        name = getattr(type_, "__name__", None)
    name = _NUMPY_NAMES.get(str(name), name)
    if name not in TYPES:
        raise SpecError(
            "unknown element type", got=type_, expected=f"one of {', '.join(TYPES)}, or numpy's"
        )
    return str(name)


def is_integer(name: str) -> bool:
    """Whether the type holds integers."""
    return ELEMENTS[name].kind == "int"


def accumulator(a: str, b: str) -> str:
    """What sums of products of types ``a`` and ``b`` are held in; SpecError if there is nothing."""
    if is_integer(a) and is_integer(b):
        return "s32"
    if a == b == "f64":
        return "f64"
    if is_integer(a) or is_integer(b) or "f64" in (a, b):
        raise SpecError(
            "no product of these types",
            got=f"a={a}, b={b}",
            expected="two of s8 and u8, two f64, or two of f32, f16, bf16 and the f8",
        )
    return "f32"
