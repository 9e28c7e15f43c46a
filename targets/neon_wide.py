"""Neon's vector of s64: elements are widened to s32, and a lane sums one product of two s32."""

from __future__ import annotations

from tilewright.isa.vector import MulAdd, Vector

from .neon_words import fill, forms
from .scalar import wide

_LOW = {v: f"vreinterpretq_u32_s64({{{v}}})" for v in "xy"}
#: Sum of the high half of each 64-bit factor times the low half of the other; overflow is harmless.
#: Shifted left by 32 bits and added to the product of the low halves, it gives the low 64 bits.
_CROSSING = f"vpaddlq_u32(vmulq_u32({_LOW['x']}, vrev64q_u32({_LOW['y']})))"
_NARROW = {v: f"vmovn_u64(vreinterpretq_u64_s64({{{v}}}))" for v in "xy"}
_PRODUCT = f"vmlal_u32(vshlq_n_u64({_CROSSING}, 32), {_NARROW['x']}, {_NARROW['y']})"
_OPS = {"add": "vaddq_s64({x}, {y})", "mul": f"vreinterpretq_s64_u64({_PRODUCT})"}

_QUAD = Vector(
    name="q",
    element="s64",
    lanes=2,
    ctype="int64x2_t",
    zero="vdupq_n_s64(0)",
    load="vld1q_s64({p})",
    store="vst1q_s64({p}, {v})",
    broadcast="vld1q_dup_s64({p})",
    splat="vdupq_n_s64({x})",
    muladd=(
        *forms(
            "smlal v.2d",
            {
                "scalar": "vmlal_n_s32({acc}, {x}, {y})",
                "lane": "vmlal_lane_s32({acc}, {x}, {y}, {lane})",
                "broadcast": "vmlal_s32({acc}, {x}, {y})",
            },
            2,
            factors=(1, "s32", "s32"),
        ),
        MulAdd(
            form="broadcast",
            mnemonic="umlal, mul, add",
            spelling=f"vaddq_s64({{acc}}, {_OPS['mul']})",
            cols=2,
            instructions=8,
        ),
    ),
    sum_lanes="vaddvq_s64({v})",
    ops=_OPS,
    fill=fill("s64", 2),
    first="vgetq_lane_s64({v}, 0)",
    partial_load={1: "vcombine_s64(vld1_s64({p}), vdup_n_s64(0))"},
    partial_store={1: "vst1_s64({p}, vget_low_s64({v}))"},
    transpose={1: ("vtrn1q_s64({x}, {y})", "vtrn2q_s64({x}, {y})")},
)

WIDE_SUMS = (_QUAD, wide("smaddl", ("s32",)))
