"""Plain C for any machine: one element at a time, products rounded before they are added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.isa.machine import Core
from tilewright.isa.target import Target
from tilewright.isa.vector import MulAdd, Vector

from .stored import fields, table

_C_TYPES = {"f32": "float", "f64": "double"}
#: Elementary operations on one element. A comparison gives -1 for true and 0 for false.
_ARITHMETIC = {
    "add": "({x}) + ({y})",
    "sub": "({x}) - ({y})",
    "mul": "({x}) * ({y})",
    "div": "({x}) / ({y})",
    "neg": "-({x})",
    "min": "(({x}) < ({y}) ? ({x}) : ({y}))",
    "max": "(({x}) > ({y}) ? ({x}) : ({y}))",
    "lt": "-(({x}) < ({y}))",
    "le": "-(({x}) <= ({y}))",
    "eq": "-(({x}) == ({y}))",
    "select": "(({x}) != 0 ? ({y}) : ({z}))",
}
_FLOAT = {
    **_ARITHMETIC,
    "sqrt": "__builtin_sqrt{f}({{x}})",
    "abs": "__builtin_fabs{f}({{x}})",
    "fma": "__builtin_fma{f}({{x}}, {{y}}, {{z}})",
    "round": "__builtin_rint{f}({{x}})",
}
_SINGLE = {"to_s32": "(int32_t)__builtin_rintf({x})", "bits": "bits_of_float({x})"}
_INTEGER = {
    **{name: _ARITHMETIC[name] for name in ("min", "max", "lt", "eq", "select")},
    "add": "(int32_t)((uint32_t)({x}) + (uint32_t)({y}))",
    "sub": "(int32_t)((uint32_t)({x}) - (uint32_t)({y}))",
    "mul": "(int32_t)((uint32_t)({x}) * (uint32_t)({y}))",
    "and": "({x}) & ({y})",
    "or": "({x}) | ({y})",
    "xor": "({x}) ^ ({y})",
    "shl": "(int32_t)((uint32_t)({x}) << ({y}))",
    "shr": "({x}) >> ({y})",
    "ushr": "(int32_t)((uint32_t)({x}) >> ({y}))",
    "gt": "-(({x}) > ({y}))",
    "to_f32": "(float)({x})",
    "float": "float_of_bits({x})",
}
_SIGNS = {"add": "+", "mul": "*"}
_NUMBERS = "".join(f"\\x{byte:02x}" for byte in table(unsigned=False))
_FIELDS = fields(
    lambda right, mask: (
        f"(int32_t)(((uint32_t){{v}} {'>>' if right >= 0 else '<<'} {abs(right)}) & {mask}u)"
    ),
    lambda index: f'(int8_t)"{_NUMBERS}"[{index}]',
)
#: A double as s32, rounded to nearest even and saturated; NaN becomes 0.
_ROUNDED = (
    "({{ const double x_ = *({p}); x_ >= 2147483647.0 ? INT32_MAX : x_ > -2147483648.0 ? "
    "(int32_t)__builtin_rint(x_) : x_ == x_ ? INT32_MIN : 0; }})"
)
#: An int64_t as s32, saturated.
_CLAMPED = (
    "({{ const int64_t x_ = *({p}); (int32_t)(x_ > INT32_MAX ? INT32_MAX : x_ < INT32_MIN ? "
    "INT32_MIN : x_); }})"
)
_FUSED = {"f32": "__builtin_fmaf({x}, {y}, {acc})", "f64": "__builtin_fma({x}, {y}, {acc})"}


def plain(
    element: str,
    fused: str | None = None,
    loads: Mapping[str, str] | None = None,
    stores: Mapping[str, str] | None = None,
) -> Vector:
    """Return the vector type with one lane of f32 or f64, which is a C scalar.

    ``fused`` is the mnemonic of the fused multiply-add, None if the machine has none. ``loads`` and
    ``stores`` convert from and to narrower types.
    """
    other = "f64" if element == "f32" else "f32"
    spelling = _FUSED[element] if fused else "{acc} + {x} * {y}"
    return Vector(
        name="scalar",
        element=element,
        lanes=1,
        ctype=_C_TYPES[element],
        zero="0",
        load="*({p})",
        store="*({p}) = {v}",
        broadcast="*({p})",
        splat="{x}",
        sum_lanes="{v}",
        muladd=(MulAdd(form="scalar", mnemonic=fused or "", spelling=spelling, cols=1),),
        ops=_float_ops(element),
        loads={other: f"({_C_TYPES[element]})*({{p}})", **(loads or {})},
        stores={other: f"*({{p}}) = ({_C_TYPES[other]})({{v}})", **(stores or {})},
    )


def _float_ops(element: str) -> dict[str, str]:
    letter = {"f32": "f", "f64": ""}[element]
    ops = {name: s.format(f=letter) if "{{" in s else s for name, s in _FLOAT.items()}
    return ops | (_SINGLE if element == "f32" else {})


def whole(mnemonic: str = "") -> Vector:
    """Return the vector type with one lane of s32; ``mnemonic`` is that of its multiply-add."""
    return Vector(
        name="scalar",
        element="s32",
        lanes=1,
        ctype="int32_t",
        zero="0",
        load_group="group_of({p}, {bytes})",
        store_group="memcpy({p}, &{v}, {bytes})",
        load="*({p})",
        store="*({p}) = {v}",
        broadcast="*({p})",
        splat="{x}",
        sum_lanes="{v}",
        loads=dict.fromkeys(("s8", "u8", "s16", "u16"), "*({p})")
        | {"f64": _ROUNDED, "s64": _CLAMPED},
        stores={
            "s8": "*({p}) = (int8_t)({v})",
            "u8": "*({p}) = (uint8_t)({v})",
            "s16": "*({p}) = (int16_t)({v})",
            "u16": "*({p}) = (uint16_t)({v})",
            "s64": "*({p}) = {v}",
            "f64": "*({p}) = (double)({v})",
        },
        muladd=(
            MulAdd(
                form="scalar",
                mnemonic=mnemonic,
                spelling="(int32_t)((uint32_t){acc} + (uint32_t){x} * (uint32_t){y})",
                cols=1,
            ),
        ),
        ops=_INTEGER,
        fields=_FIELDS,
        join="{x} | {y}",
    )


#: Addition and multiplication of one s64. On overflow, both wrap, as vector instructions do.
_WIDE = {
    op: f"(int64_t)((uint64_t)({{x}}) {sign} (uint64_t)({{y}}))" for op, sign in _SIGNS.items()
}


def wide(mnemonic: str = "", factors: tuple[str, ...] = ()) -> Vector:
    """Return the vector type with one lane of s64; ``mnemonic`` is that of its multiply-adds.

    Each type in ``factors`` gets a multiply-add of its own, besides the one with factors of s64.
    """
    alike = MulAdd(
        form="scalar",
        mnemonic=mnemonic,
        spelling="(int64_t)((uint64_t){acc} + (uint64_t){x} * (uint64_t){y})",
        cols=1,
    )
    product = "(int64_t)((uint64_t){acc} + (uint64_t)((int64_t){x} * {y}))"
    return Vector(
        name="scalar",
        element="s64",
        lanes=1,
        ctype="int64_t",
        zero="0",
        load="*({p})",
        store="*({p}) = {v}",
        broadcast="*({p})",
        splat="{x}",
        sum_lanes="{v}",
        loads=dict.fromkeys(("s8", "u8", "s16", "u16"), "*({p})"),
        muladd=(*(replace(alike, spelling=product, x=x, y=x) for x in factors), alike),
        ops=_WIDE,
    )


TARGET = Target(
    name="scalar",
    title="plain C",
    machine="",
    cpu_flags=(),
    compiler_flags=(),
    zig_flags=("-mcpu=baseline",),
    headers=(),
    registers=16,
    vectors=(plain("f32"), plain("f64"), whole(), wide()),
    core=Core(fma_latency=8, fma_units=1, loads=2, stores=1, issue=4),
)
