"""Neon of Armv8-A: 32 registers of 128 bits, multiply-add by a lane, partial loads and stores.

Spellings: Arm Neon Intrinsics Reference. Latency and units: Arm's software optimisation guides
(Neoverse N1 and V1: 4 cycles, two 128-bit units).
"""

from __future__ import annotations

from tilewright.isa import Core, Emulation, Hold, MulAdd, Target, Vector

from .scalar import plain

_F32X2 = "vcombine_f32(vld1_f32({p}), vdup_n_f32(0.0f))"
_X64, _Y64 = (f"vreinterpretq_f64_f32({{{v}}})" for v in "xy")
_TRN_F64 = tuple(f"vreinterpretq_f32_f64(vtrn{i}q_f64({_X64}, {_Y64}))" for i in (1, 2))


def _fmas(suffix: str, arrangement: str, lanes: int, q: str = "q") -> tuple[MulAdd, ...]:
    """The forms on a whole register, or (``q`` empty) on the half of one."""
    by_lane = f"fmla {arrangement} by element"
    return (
        MulAdd(
            form="scalar",
            mnemonic=by_lane,
            spelling=f"vfma{q}_n_{suffix}({{acc}}, {{x}}, {{y}})",
            cols=lanes,
        ),
        MulAdd(
            form="lane",
            mnemonic=by_lane,
            spelling=f"vfma{q}_lane{q}_{suffix}({{acc}}, {{x}}, {{y}}, {{lane}})",
            cols=lanes,
        ),
        MulAdd(
            form="broadcast",
            mnemonic=f"fmla {arrangement}",
            spelling=f"vfma{q}_{suffix}({{acc}}, {{x}}, {{y}})",
            cols=lanes,
        ),
    )


def _quad(element: str) -> Vector:
    suffix = element
    ctype, lanes, arrangement = {
        "f32": ("float32x4_t", 4, "v.4s"),
        "f64": ("float64x2_t", 2, "v.2d"),
    }[element]
    half = {
        "f32": {
            1: "vld1q_lane_f32({p}, vdupq_n_f32(0.0f), 0)",
            2: _F32X2,
            3: f"vld1q_lane_f32(({{p}}) + 2, {_F32X2}, 2)",
        },
        "f64": {1: "vcombine_f64(vld1_f64({p}), vdup_n_f64(0.0))"},
    }[element]
    stores = {
        "f32": {
            1: "vst1q_lane_f32({p}, {v}, 0)",
            2: "vst1_f32({p}, vget_low_f32({v}))",
            3: "vst1_f32({p}, vget_low_f32({v})), vst1q_lane_f32(({p}) + 2, {v}, 2)",
        },
        "f64": {1: "vst1_f64({p}, vget_low_f64({v}))"},
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
        add=f"vaddq_{suffix}({{x}}, {{y}})",
        mul=f"vmulq_{suffix}({{x}}, {{y}})",
        muladd=_fmas(suffix, arrangement, lanes),
        sum_lanes=f"vaddvq_{suffix}({{v}})",
        partial_load=half,
        partial_store=stores,
        transpose={1: trn, 2: (_TRN_F64[0], _TRN_F64[1])} if element == "f32" else {1: trn},
    )


_PAIR = Vector(
    name="d",
    element="f32",
    lanes=2,
    ctype="float32x2_t",
    zero="vdup_n_f32(0)",
    load="vld1_f32({p})",
    store="vst1_f32({p}, {v})",
    broadcast="vld1_dup_f32({p})",
    splat="vdup_n_f32({x})",
    add="vadd_f32({x}, {y})",
    mul="vmul_f32({x}, {y})",
    muladd=_fmas("f32", "v.2s", 2, q=""),
    sum_lanes="vaddv_f32({v})",
    partial_load={1: "vld1_lane_f32({p}, vdup_n_f32(0.0f), 0)"},
    partial_store={1: "vst1_lane_f32({p}, {v}, 0)"},
    transpose={1: ("vtrn1_f32({x}, {y})", "vtrn2_f32({x}, {y})")},
)


TARGET = Target(
    name="neon",
    title="Neon (Armv8-A)",
    machine="aarch64",
    cpu_flags=("asimd",),
    compiler_flags=("-march=armv8-a",),
    zig_flags=("-mcpu=generic",),
    headers=("arm_neon.h",),
    registers=32,
    vectors=(_quad("f32"), _PAIR, plain("f32", "fmadd"), _quad("f64"), plain("f64", "fmadd")),
    core=Core(fma_latency=4, fma_units=2, loads=2, stores=1, issue=6, shuffles=2),
    hold=Hold(constraint="w", operands=False, spare=4),
    emulation=Emulation(qemu="qemu-aarch64", cpu="max"),
)
