"""Convert between f32 and the types in memory, by elementary operations.

Elements of 8 and 16 bits are held in s32 lanes: an integer as its value, a floating-point number as
its bits with zeros above. Conversion from f32 rounds to nearest even. Floating-point overflow gives
Inf, or NaN in f8_e4m3, which has no Inf. Integers saturate, and NaN becomes the integer 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.spec.types import FORMATS, FloatFormat

from .builder import Argument, Builder

#: Limits to which an f32 is clamped before its conversion to an integer. The upper limit of s32 is
#: the largest f32 below 2**31.
RANGES = {
    "s8": (-(2**7), 2**7 - 1),
    "u8": (0, 2**8 - 1),
    "s16": (-(2**15), 2**15 - 1),
    "u16": (0, 2**16 - 1),
    "s32": (-(2**31), 2**31 - 128),
}
#: Number of exponent bits of f32. A 16-bit type with as many is the upper half of an f32.
_EXPONENT = 8
_INFINITY, _QUIET = 0x7F800000, 0x7FC00000


def widen(b: Builder, lanes: Argument, type_: str) -> Argument:
    """Return f32 lanes converted from lanes that hold elements of ``type_``.

    The result is exact, except for s32, which is rounded.
    """
    if type_ == "f32":
        return lanes
    if type_ in RANGES:
        return b("to_f32", lanes)
    if is_upper_half(type_):
        return b("float", b("shl", lanes, 16))
    return _widen_small(b, lanes, FORMATS[type_])


def is_upper_half(type_: str) -> bool:
    """Return True if an element of ``type_`` is the upper half of an f32, as for bf16."""
    return type_ in FORMATS and FORMATS[type_].exponent == _EXPONENT


def _widen_small(b: Builder, lanes: Argument, form: FloatFormat) -> Argument:
    """Return f32 lanes from a narrow floating-point type, by moving bits into the fields of f32.

    Adding a constant to the exponent corrects the bias. For a subnormal x this gives ``least / 2 +
    x / 2``, where ``least`` is the least normal number. Subtracting ``least / 2`` and doubling then
    gives x. For a normal x these two steps give x or more, and the smaller of both results is
    right. A multiplication would be shorter, but a subnormal factor costs some 150 cycles on
    Intel's cores.
    """
    magnitude = b("and", lanes, form.sign - 1)
    moved = b("shl", magnitude, 23 - form.mantissa)
    normal = b("float", b("add", moved, (127 - form.bias) << 23))
    half = b("sub", normal, 2.0**-form.bias)
    value = b("bits", b("min", normal, b("add", half, half)))
    if not form.infinity:
        special = b("and", b("eq", magnitude, form.sign - 1), _QUIET)
    else:
        last = form.sign - 1 - (1 << form.mantissa)
        special = b("and", b("gt", magnitude, last), _INFINITY)
    sign = b("shl", b("and", lanes, form.sign), 32 - form.sign.bit_length())
    return b("float", b("or", b("or", value, special), sign))


def power_of_two(b: Builder, lanes: Argument) -> Argument:
    """Return f32 lanes from e8m0: 2**(byte - 127), and NaN for 255.

    2**-127 is subnormal in f32.
    """
    bits = b("max", b("shl", lanes, 23), 1 << 22)
    return b("float", b("or", bits, b("and", b("eq", lanes, 255), _QUIET)))


def look_up(b: Builder, code: Argument, values: Sequence[float]) -> Argument:
    """Return the value of each ``code``, selected from ``values`` bit by bit of the code."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    low, high = look_up(b, code, values[:half]), look_up(b, code, values[half:])
    is_set = b("shr", b("shl", code, 32 - half.bit_length()), 31)
    return b("select", is_set, high, low)


def narrow(b: Builder, x: Argument, type_: str) -> Argument:
    """Return lanes that hold elements of ``type_``, converted from f32."""
    if type_ == "f32":
        return x
    if type_ in RANGES:
        return _to_integer(b, x, type_)
    return _narrow_bf16(b, x) if is_upper_half(type_) else _narrow_small(b, x, FORMATS[type_])


def _to_integer(b: Builder, x: Argument, type_: str) -> Argument:
    low, high = RANGES[type_]
    whole = b("to_s32", b("min", b("max", x, float(low)), float(high)))  # NaN gives low
    if type_ == "s32":
        return b("select", b("lt", x, 2.0**31), whole, b("and", b("eq", x, x), 2**31 - 1))
    return whole if low == 0 else b("and", whole, b("eq", x, x))


def _round_off(b: Builder, bits: Argument, count: int) -> Argument:
    """Return the integer ``bits`` without its last ``count`` bits, rounded to nearest even."""
    odd = b("and", b("ushr", bits, count), 1)
    return b("ushr", b("add", b("add", bits, odd), (1 << (count - 1)) - 1), count)


def _narrow_bf16(b: Builder, x: Argument) -> Argument:
    bits = b("bits", x)
    quiet = b("or", b("ushr", bits, 16), 0x40)
    return b("select", b("eq", x, x), _round_off(b, bits, 16), quiet)


def _narrow_small(b: Builder, x: Argument, form: FloatFormat) -> Argument:
    """Return lanes that hold elements of a narrow floating-point type, converted from f32.

    Normal results are rounded by integer operations. To round a subnormal result, a number is added
    whose last bit has the same value as the last bit of the result.
    """
    dropped = 23 - form.mantissa
    least = 2.0 ** (1 - form.bias)
    magnitude = b("min", b("abs", x), form.over)
    rebias = (127 - form.bias) << form.mantissa
    normal = b("sub", _round_off(b, b("bits", magnitude), dropped), rebias)
    anchor = least * 2.0**dropped
    anchor_bits = (127 + 1 - form.bias + dropped) << 23
    subnormal = b("sub", b("bits", b("add", magnitude, anchor)), anchor_bits)
    result = b("select", b("lt", magnitude, least), subnormal, normal)
    if form.infinity:
        result = b("select", b("eq", x, x), result, form.nan)
    sign = b("and", b("ushr", b("bits", x), 32 - form.sign.bit_length()), form.sign)
    return b("or", result, sign)


def saturate(b: Builder, lanes: Argument, type_: str) -> Argument:
    """Return s32 lanes clamped to an integer type of 8 or 16 bits; s32 is returned unchanged."""
    if type_ == "s32":
        return lanes
    low, high = RANGES[type_]
    return b("min", b("max", lanes, low), high)
