"""Neon's vectors of f32 and f64, in whole registers and in half registers."""

from __future__ import annotations

from tilewright.isa.vector import MulAdd, Numbers, Vector

from .neon_words import BITS, fill, filled, forms, low_bits
from .scalar import plain
from .stored import by_fields

_F32X2 = "vcombine_f32(vld1_f32({p}), vdup_n_f32(0.0f))"
_X64, _Y64 = (f"vreinterpretq_f64_f32({{{v}}})" for v in "xy")
_TRN_F64 = tuple(f"vreinterpretq_f32_f64(vtrn{i}q_f64({_X64}, {_Y64}))" for i in (1, 2))

#: Elementary operations. ``{q}`` is "q" for vectors of 128 bits, empty for 64 bits. ``{f}`` is the
#: element type, ``{u}`` the unsigned integer type of the same size. ``{m}`` is the element type of
#: the result of a comparison.
_OPS = {
    "add": "vadd{q}_{f}({{x}}, {{y}})",
    "sub": "vsub{q}_{f}({{x}}, {{y}})",
    "mul": "vmul{q}_{f}({{x}}, {{y}})",
    "div": "vdiv{q}_{f}({{x}}, {{y}})",
    "sqrt": "vsqrt{q}_{f}({{x}})",
    "min": "vbsl{q}_{f}(vclt{q}_{f}({{x}}, {{y}}), {{x}}, {{y}})",
    "max": "vbsl{q}_{f}(vcgt{q}_{f}({{x}}, {{y}}), {{x}}, {{y}})",
    "abs": "vabs{q}_{f}({{x}})",
    "neg": "vneg{q}_{f}({{x}})",
    "fma": "vfma{q}_{f}({{z}}, {{x}}, {{y}})",
    "lt": "vreinterpret{q}_{m}_{u}(vclt{q}_{f}({{x}}, {{y}}))",
    "le": "vreinterpret{q}_{m}_{u}(vcle{q}_{f}({{x}}, {{y}}))",
    "eq": "vreinterpret{q}_{m}_{u}(vceq{q}_{f}({{x}}, {{y}}))",
    "select": "vbsl{q}_{f}(vreinterpret{q}_{u}_{m}({{x}}), {{y}}, {{z}})",
}
_SINGLE_OPS = {
    "round": "vrndn{q}_f32({{x}})",
    "to_s32": "vcvtn{q}_s32_f32({{x}})",
    "bits": "vreinterpret{q}_s32_f32({{x}})",
}


def _ops(element: str, q: str) -> dict[str, str]:
    if element == "f64":
        return filled(_OPS, q=q, f="f64", u="u64", m="f64")
    return filled(_OPS | _SINGLE_OPS, q=q, f="f32", u="u32", m="s32")


def _fmas(suffix: str, arrangement: str, lanes: int, q: str = "q") -> tuple[MulAdd, ...]:
    """Return the multiply-adds of vectors of 128 bits, or of 64 bits if ``q`` is empty."""
    return forms(
        f"fmla {arrangement}",
        {
            "scalar": f"vfma{q}_n_{suffix}({{acc}}, {{x}}, {{y}})",
            "lane": f"vfma{q}_lane{q}_{suffix}({{acc}}, {{x}}, {{y}}, {{lane}})",
            "broadcast": f"vfma{q}_{suffix}({{acc}}, {{x}}, {{y}})",
        },
        lanes,
    )


_PARTIAL_LOAD = {
    "f32": {
        1: "vld1q_lane_f32({p}, vdupq_n_f32(0.0f), 0)",
        2: _F32X2,
        3: f"vld1q_lane_f32(({{p}}) + 2, {_F32X2}, 2)",
    },
    "f64": {1: "vcombine_f64(vld1_f64({p}), vdup_n_f64(0.0))"},
}
_PARTIAL_STORE = {
    "f32": {
        1: "vst1q_lane_f32({p}, {v}, 0)",
        2: "vst1_f32({p}, vget_low_f32({v}))",
        3: "vst1_f32({p}, vget_low_f32({v})), vst1q_lane_f32(({p}) + 2, {v}, 2)",
    },
    "f64": {1: "vst1_f64({p}, vget_low_f64({v}))"},
}
_QUAD_LOADS = {
    "f64": "vcvt_high_f32_f64(vcvt_f32_f64(vld1q_f64({p})), vld1q_f64(({p}) + 2))",
    "f16": "vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16({p})))",
    "bf16": "vreinterpretq_f32_u32(vshll_n_u16(vld1_u16({p}), 16))",
}
_QUAD_STORES = {
    "f16": "vst1_u16({p}, vreinterpret_u16_f16(vcvt_f16_f32({v})))",
    "f64": (
        "vst1q_f64({p}, vcvt_f64_f32(vget_low_f32({v}))), "
        "vst1q_f64(({p}) + 2, vcvt_high_f64_f32({v}))"
    ),
}


def quad(element: str) -> Vector:
    """Return the vector type of f32 or f64 that fills a register of 128 bits."""
    suffix = element
    ctype, lanes, arrangement = {
        "f32": ("float32x4_t", 4, "v.4s"),
        "f64": ("float64x2_t", 2, "v.2d"),
    }[element]
    trn = (f"vtrn1q_{suffix}({{x}}, {{y}})", f"vtrn2q_{suffix}({{x}}, {{y}})")
    return Vector(
        name="q",
        element=element,
        lanes=lanes,
        ctype=ctype,
        zero=f"vdupq_n_{suffix}(0)",
        load=f"vld1q_{suffix}({{p}})",
        store=f"vst1q_{suffix}({{p}}, {{v}})",
        broadcast=f"vld1q_dup_{suffix}({{p}})",
        splat=f"vdupq_n_{suffix}({{x}})",
        muladd=_fmas(suffix, arrangement, lanes),
        sum_lanes=f"vaddvq_{suffix}({{v}})",
        loads=_QUAD_LOADS if element == "f32" else {"f32": "vcvt_f64_f32(vld1_f32({p}))"},
        stores=_QUAD_STORES if element == "f32" else {"f32": "vst1_f32({p}, vcvt_f32_f64({v}))"},
        ops=_ops(element, "q"),
        fill=fill(element, lanes),
        first=f"vgetq_lane_{suffix}({{v}}, 0)",
        partial_load=_PARTIAL_LOAD[element],
        partial_store=_PARTIAL_STORE[element],
        transpose={1: trn, 2: (_TRN_F64[0], _TRN_F64[1])} if element == "f32" else {1: trn},
        numbers=_numbers() if element == "f32" else None,
    )


def _numbers() -> Numbers:
    """Return the lookup of f32 in a table of 16 numbers by the low four bits of each lane.

    The table has 64 bytes in four registers. The four bytes of a number follow each other.
    """

    def found(low: int) -> str:
        code = "vreinterpretq_u32_s32({v})"
        code = f"vshrq_n_u32({code}, {low})" if low else code
        code = f"vandq_u32({code}, vdupq_n_u32(15))"
        places = f"vmlaq_n_u32(vdupq_n_u32(0x03020100), {code}, 0x04040404)"
        return f"vreinterpretq_f32_u8(vqtbl4q_u8({{table}}, vreinterpretq_u8_u32({places})))"

    return Numbers(
        spelling="vld1q_u8_x4((const uint8_t *)(const int32_t[]){{{numbers}}})",
        codes="s32",
        found=by_fields(found),
        ctype="uint8x16x4_t",
        several=True,
    )


PAIR = Vector(
    name="d",
    element="f32",
    lanes=2,
    ctype="float32x2_t",
    zero="vdup_n_f32(0)",
    load="vld1_f32({p})",
    store="vst1_f32({p}, {v})",
    broadcast="vld1_dup_f32({p})",
    splat="vdup_n_f32({x})",
    muladd=_fmas("f32", "v.2s", 2, q=""),
    sum_lanes="vaddv_f32({v})",
    loads={
        "f16": f"vget_low_f32(vcvt_f32_f16(vreinterpret_f16_s32(vdup_n_s32({BITS[32]}))))",
        "bf16": (
            f"vget_low_f32(vreinterpretq_f32_s32(vshll_n_s16("
            f"vreinterpret_s16_s32(vdup_n_s32({BITS[32]})), 16)))"
        ),
        "f64": "vcvt_f32_f64(vld1q_f64({p}))",
    },
    stores={
        "f16": low_bits(32, "vcvt_f16_f32(vcombine_f32({v}, {v}))", "f16"),
        "f64": "vst1q_f64({p}, vcvt_f64_f32({v}))",
    },
    ops=_ops("f32", ""),
    fill=fill("f32", 2),
    first="vget_lane_f32({v}, 0)",
    partial_load={1: "vld1_lane_f32({p}, vdup_n_f32(0.0f), 0)"},
    partial_store={1: "vst1_lane_f32({p}, {v}, 0)"},
    transpose={1: ("vtrn1_f32({x}, {y})", "vtrn2_f32({x}, {y})")},
)

SINGLE = plain(
    "f32",
    "fmadd",
    loads={
        "f16": "vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(*({p})))), 0)",
        "bf16": "vget_lane_f32(vreinterpret_f32_u32(vdup_n_u32((uint32_t)*({p}) << 16)), 0)",
    },
    stores={
        "f16": ("*({p}) = vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32({v}))), 0)")
    },
)
