"""Extensions of Neon: dot products, 2x2 matrix products, products of f16 and bf16.

They need Armv8.2-A. Semantics: Arm Architecture Reference Manual. ``bfdot`` and ``bfmmla`` flush
denormals, and round to odd between their additions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.isa.target import Feature
from tilewright.isa.vector import Factors, Form, MulAdd, Numbers, Vector

from .neon_words import BITS, alone, forms, group, parts

Muladds = dict[tuple[str, str], tuple[MulAdd, ...]]
#: Vector types of sums by name: the number of lanes, and the letter for the width in intrinsics.
_SUMS = {"q": (4, "q"), "d": (2, ""), "scalar": (1, "")}


@dataclass(frozen=True, slots=True)
class _Dot:
    """A multiply-add whose lanes each sum the products of one K group.

    ``broadcast`` and ``lane`` are C expressions. In ``broadcast``, all groups of the second factor
    are equal. In ``lane``, the second factor is one group of a register.
    """

    mnemonic: str
    factors: Factors
    broadcast: str
    lane: str

    def beside(self, name: str, element: str) -> tuple[MulAdd, ...]:
        """Return the multiply-adds whose sums are in the vector type ``name`` of ``_SUMS``."""
        lanes, q = _SUMS[name]
        broadcast, lane = (text.format(q=q) for text in (self.broadcast, self.lane))
        spellings: dict[Form, str] = {"broadcast": broadcast, "lane": lane}
        if lanes == 1:
            spellings = {"broadcast": alone(broadcast, element)}
        return forms(self.mnemonic, spellings, lanes, factors=self.factors)


def _dots(element: str, *dots: _Dot) -> Muladds:
    return {
        (name, element): tuple(op for dot in dots for op in dot.beside(name, element))
        for name in _SUMS
    }


def _square(element: str, mnemonic: str, factors: Factors, product: str) -> Muladds:
    """Return the multiply-add whose register of sums holds a 2x2 block of C.

    The instruction's first factor is ``{y}``: each of its two K groups belongs to a row of C.
    """
    spellings: dict[Form, str] = {"broadcast": product.format(q="q")}
    return {("q", element): forms(mnemonic, spellings, 2, rows=2, factors=factors)}


def _joined(*parts: Muladds) -> Muladds:
    return {
        key: tuple(op for part in parts for op in part.get(key, ()))
        for key in dict.fromkeys(key for part in parts for key in part)
    }


def _unsigned(product: str) -> str:
    """Return ``product``, which sums in u32, with casts that make its accumulator s32."""
    acc = "vreinterpret{q}_u32_s32({{acc}})"
    return f"vreinterpret{{q}}_s32_u32({product.replace('{{acc}}', acc)})"


# --- integers -----------------------------------------------------------------------------

_SDOT = _Dot(
    mnemonic="sdot",
    factors=(4, "s8", "s8"),
    broadcast="vdot{q}_s32({{acc}}, {{x}}, {{y}})",
    lane="vdot{q}_lane{q}_s32({{acc}}, {{x}}, {{y}}, {{lane}})",
)
_UDOT = _Dot(
    mnemonic="udot",
    factors=(4, "u8", "u8"),
    broadcast=_unsigned("vdot{q}_u32({{acc}}, {{x}}, {{y}})"),
    lane=_unsigned("vdot{q}_lane{q}_u32({{acc}}, {{x}}, {{y}}, {{lane}})"),
)
_USDOT = _Dot(
    mnemonic="usdot",
    factors=(4, "u8", "s8"),
    broadcast="vusdot{q}_s32({{acc}}, {{x}}, {{y}})",
    lane="vusdot{q}_lane{q}_s32({{acc}}, {{x}}, {{y}}, {{lane}})",
)
_SUDOT = _Dot(
    mnemonic="sudot",
    factors=(4, "s8", "u8"),
    broadcast="vusdot{q}_s32({{acc}}, {{y}}, {{x}})",
    lane="vsudot{q}_lane{q}_s32({{acc}}, {{x}}, {{y}}, {{lane}})",
)

_DOTPROD = Feature(
    title="dot products of 8-bit integers",
    cpu_flags=("asimddp",),
    compiler_flags=("-march=armv8.2-a", "+dotprod"),
    zig="+dotprod",
    muladd=_dots("s32", _SDOT, _UDOT),
)
_I8MM = Feature(
    title="dot products of mixed signs and matrix products of 8-bit integers",
    cpu_flags=("i8mm",),
    compiler_flags=("-march=armv8.2-a", "+i8mm"),
    zig="+i8mm",
    muladd=_joined(
        _dots("s32", _USDOT, _SUDOT),
        _square("s32", "smmla", (8, "s8", "s8"), "vmmlaq_s32({{acc}}, {{y}}, {{x}})"),
        _square("s32", "usmmla", (8, "s8", "u8"), "vusmmlaq_s32({{acc}}, {{y}}, {{x}})"),
        _square("s32", "ummla", (8, "u8", "u8"), _unsigned("vmmlaq_u32({{acc}}, {{y}}, {{x}})")),
    ),
)

# --- floating point -----------------------------------------------------------------------

_BFDOT = _Dot(
    mnemonic="bfdot",
    factors=(2, "bf16", "bf16"),
    broadcast="vbfdot{q}_f32({{acc}}, {{x}}, {{y}})",
    lane="vbfdot{q}_lane{q}_f32({{acc}}, {{x}}, {{y}}, {{lane}})",
)
_FMLAL = _Dot(
    mnemonic="fmlal",
    factors=(1, "f16", "f16"),
    broadcast="vfmlal{q}_low_f16({{acc}}, {{x}}, {{y}})",
    lane="vfmlal{q}_lane{q}_low_f16({{acc}}, {{x}}, {{y}}, {{lane}})",
)


def _held(element: str, lanes: int, ctype: str, load: str) -> Vector:
    q = "q" if ctype.endswith("x8_t") else ""
    return Vector(
        name={"f16": {4: "q", 2: "d", 1: "h"}, "bf16": {8: "q", 4: "d", 2: "s"}}[element][lanes],
        element=element,
        lanes=lanes,
        ctype=ctype,
        load=load,
        broadcast=f"vreinterpret{q}_{element}_u16(vld1{q}_dup_u16({{p}}))",
        group=group(element, q),
    )


def _looking_up(vector: Vector) -> Vector:
    """Return ``vector``, a vector type of eight bf16, with lookups in a table of 16 numbers.

    One register holds the low bytes of the 16 numbers, another register the high bytes.
    """
    fields = parts("u8", "")

    def found(index: str) -> str:
        index = f"vcombine_u8({index}, vdup_n_u8(0))"
        bytes_ = (f"vqtbl1q_u8({{table}}.val[{i}], {index})" for i in range(2))
        return f"vreinterpretq_bf16_u8(vzip1q_u8({', '.join(bytes_)}))"

    return replace(
        vector,
        numbers=Numbers(
            spelling="vld2q_u8((const uint8_t *)(const int16_t[]){{{numbers}}})",
            codes="u8",
            found={name: tuple(map(found, fields[name])) for name in ("u4", "u2")},
            ctype="uint8x16x2_t",
        ),
        loads={"s8": _from_bytes("s"), "u8": _from_bytes("u")},
        store="vst1q_u16({p}, vreinterpretq_u16_bf16({v}))",
    )


def _from_bytes(sign: str) -> str:
    """Return C that loads eight 8-bit integers, converts them to f32, and then exactly to bf16."""
    words = f"vmovl_{sign}8(vld1_{sign}8({{p}}))"

    def half(which: str) -> str:
        long = f"vmovl_{sign}16(vget_{which}_{sign}16({words}))"
        return f"vcvtq_f32_{sign}32({long})"

    return f"vcvtq_high_bf16_f32(vcvtq_low_bf16_f32({half('low')}), {half('high')})"


_BF16 = Feature(
    title="dot and matrix products of bf16",
    cpu_flags=("bf16",),
    compiler_flags=("-march=armv8.2-a", "+bf16"),
    zig="+bf16",
    muladd=_joined(
        _dots("f32", _BFDOT),
        _square("f32", "bfmmla", (4, "bf16", "bf16"), "vbfmmlaq_f32({{acc}}, {{y}}, {{x}})"),
    ),
    vectors=(
        _looking_up(_held("bf16", 8, "bfloat16x8_t", "vreinterpretq_bf16_u16(vld1q_u16({p}))")),
        _held("bf16", 4, "bfloat16x4_t", "vreinterpret_bf16_u16(vld1_u16({p}))"),
        _held("bf16", 2, "bfloat16x4_t", f"vreinterpret_bf16_s32(vdup_n_s32({BITS[32]}))"),
    ),
)
#: Load of four f16 into the lower half of a register. ``fmlal`` reads its factors from there.
_F16X4 = "vreinterpretq_f16_u16(vcombine_u16(vld1_u16({p}), vdup_n_u16(0)))"
_FP16FML = Feature(
    title="products of f16 added to f32",
    cpu_flags=("asimdfhm",),
    compiler_flags=("-march=armv8.2-a", "+fp16fml"),
    zig="+fp16fml",
    muladd=_dots("f32", _FMLAL),
    vectors=(
        _held("f16", 4, "float16x8_t", _F16X4),
        _held("f16", 2, "float16x4_t", f"vreinterpret_f16_s32(vdup_n_s32({BITS[32]}))"),
        _held("f16", 1, "float16x4_t", "vreinterpret_f16_u16(vdup_n_u16(*({p})))"),
    ),
)

#: Features by name. A target's name lists them in this order: ``neon+dotprod+i8mm``.
FEATURES = {"dotprod": _DOTPROD, "i8mm": _I8MM, "bf16": _BF16, "fp16fml": _FP16FML}
