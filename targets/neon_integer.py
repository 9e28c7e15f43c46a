"""Neon's vectors of s32, and of the 8-bit and 16-bit integers whose products they sum.

A lane of s32 sums two products of 8-bit integers. A long multiplication gives 16-bit products, and
a pairwise addition to 32 bits sums them exactly. A lane sums only one product of 16-bit integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.isa.vector import Form, MulAdd, Vector

from .neon_words import BITS, alone, fill, filled, forms, group, low_bits, parts
from .scalar import whole

_OPS = {
    "add": "vadd{q}_s32({{x}}, {{y}})",
    "sub": "vsub{q}_s32({{x}}, {{y}})",
    "mul": "vmul{q}_s32({{x}}, {{y}})",
    "min": "vmin{q}_s32({{x}}, {{y}})",
    "max": "vmax{q}_s32({{x}}, {{y}})",
    "and": "vand{q}_s32({{x}}, {{y}})",
    "or": "vorr{q}_s32({{x}}, {{y}})",
    "xor": "veor{q}_s32({{x}}, {{y}})",
    "shl": "vshl{q}_n_s32({{x}}, {{y}})",
    "shr": "vshr{q}_n_s32({{x}}, {{y}})",
    "ushr": "vreinterpret{q}_s32_u32(vshr{q}_n_u32(vreinterpret{q}_u32_s32({{x}}), {{y}}))",
    "lt": "vreinterpret{q}_s32_u32(vclt{q}_s32({{x}}, {{y}}))",
    "eq": "vreinterpret{q}_s32_u32(vceq{q}_s32({{x}}, {{y}}))",
    "gt": "vreinterpret{q}_s32_u32(vcgt{q}_s32({{x}}, {{y}}))",
    "to_f32": "vcvt{q}_f32_s32({{x}})",
    "float": "vreinterpret{q}_f32_s32({{x}})",
    "select": "vbsl{q}_s32(vreinterpret{q}_u32_s32({{x}}), {{y}}, {{z}})",
}


#: The vector type with one lane of s32, which is a C scalar.
_SCALAR = whole("madd")

# --- products -----------------------------------------------------------------------------


def _pairs(element: str, lanes: int) -> Iterator[MulAdd]:
    """Yield multiply-adds that sum two products of the 8-bit type ``element`` in each lane."""
    sign, q = element[0], "q" if lanes == 4 else ""
    wide = f"{sign}16"
    products = f"vmull_{element}({{x}}, {{y}})"
    product = f"vpadal{q}_{wide}({{acc}}, {products if q else f'vget_low_{wide}({products})'})"
    if sign == "u":
        acc = f"vreinterpret{q}_u32_s32({{acc}})"
        product = f"vreinterpret{q}_s32_u32({product})".replace("{acc}", acc)
    pairs = f"vreinterpret_{wide}_{element}({{y}})"
    lane = f"vreinterpret_{element}_{wide}(vdup_lane_{wide}({pairs}, {{lane}}))"
    if lanes == 1:
        product = alone(product, "s32")
    yield _pair("broadcast", element, f"{sign}mull, {sign}adalp", product, lanes)
    if lanes > 1:
        by_lane = product.replace("{y}", lane)
        yield _pair("lane", element, f"dup, {sign}mull, {sign}adalp", by_lane, lanes)


def _pair(form: Form, element: str, mnemonic: str, spelling: str, lanes: int) -> MulAdd:
    return MulAdd(
        form=form,
        mnemonic=mnemonic,
        spelling=spelling,
        cols=lanes,
        depth=2,
        x=element,
        y=element,
        instructions=len(mnemonic.split(", ")),
    )


def _long(element: str, lanes: int) -> tuple[MulAdd, ...]:
    """Return multiply-adds that sum one product of the 16-bit type ``element`` in each lane.

    Four lanes of sums fill a register; two lanes take half of one.
    """
    sums = "{acc}" if lanes == 4 else "vcombine_s32({acc}, vdup_n_s32(0))"
    sums = sums if element == "s16" else f"vreinterpretq_u32_s32({sums})"

    def spelled(way: str, factor: str) -> str:
        product = f"vmlal{way}_{element}({sums}, {{x}}, {factor})"
        product = product if element == "s16" else f"vreinterpretq_s32_u32({product})"
        return product if lanes == 4 else f"vget_low_s32({product})"

    spellings: dict[Form, str] = {
        "broadcast": spelled("", "{y}"),
        "lane": spelled("_lane", "{y}, {lane}"),
    }
    return forms(f"{element[0]}mlal", spellings, lanes, factors=(1, element, element))


def _alone(element: str) -> MulAdd:
    """Return the multiply-add of two 16-bit C scalars into an s32 C scalar."""
    (plain,) = _SCALAR.muladd
    return replace(plain, mnemonic=f"{element[0]}mlal", x=element, y=element)


def _muladd(lanes: int) -> tuple[MulAdd, ...]:
    """Return the multiply-adds of s32 sums: factors of 8 bits in pairs, of 16 bits, and of s32."""
    q = "q" if lanes == 4 else ""
    return (
        *_pairs("s8", lanes),
        *_pairs("u8", lanes),
        *_long("s16", lanes),
        *_long("u16", lanes),
        *forms(
            f"mla v.{lanes}s",
            {
                "scalar": f"vmla{q}_n_s32({{acc}}, {{x}}, {{y}})",
                "lane": f"vmla{q}_lane{q}_s32({{acc}}, {{x}}, {{y}}, {{lane}})",
                "broadcast": f"vmla{q}_s32({{acc}}, {{x}}, {{y}})",
            },
            lanes,
        ),
    )


# --- vectors ------------------------------------------------------------------------------

_S32X2 = "vcombine_s32(vld1_s32({p}), vdup_n_s32(0))"
_X64, _Y64 = (f"vreinterpretq_s64_s32({{{v}}})" for v in "xy")
_TRN_S64 = tuple(f"vreinterpretq_s32_s64(vtrn{i}q_s64({_X64}, {_Y64}))" for i in (1, 2))
_HALVES = "vmovn_s32({v})"
_QUARTERS = f"vmovn_s16(vcombine_s16({_HALVES}, {_HALVES}))"
_PAIR_HALVES, _PAIR_QUARTERS = (
    narrow.replace("{v}", "vcombine_s32({v}, {v})") for narrow in (_HALVES, _QUARTERS)
)


def _rounded(p: str) -> str:
    """Return C that loads two f64 at ``p`` as s32, to nearest even and saturated."""
    return f"vqmovn_s64(vcvtnq_s64_f64(vld1q_f64({p})))"


def _eights(sign: str, size: int) -> str:
    """Return C that loads 8-bit integers, and widens them to 16 bits in half a register.

    ``sign`` is "s" or "u". ``size`` is the number of bits that are read.
    """
    bytes_ = f"vreinterpret_{sign}8_s{size}(vdup_n_s{size}({BITS[size]}))"
    return f"vget_low_{sign}16(vmovl_{sign}8({bytes_}))"


_QUAD = Vector(
    name="q",
    element="s32",
    lanes=4,
    ctype="int32x4_t",
    zero="vdupq_n_s32(0)",
    load="vld1q_s32({p})",
    store="vst1q_s32({p}, {v})",
    broadcast="vld1q_dup_s32({p})",
    splat="vdupq_n_s32({x})",
    muladd=_muladd(4),
    sum_lanes="vaddvq_s32({v})",
    loads={
        "f64": f"vcombine_s32({_rounded('{p}')}, {_rounded('({p}) + 2')})",
        "s64": "vcombine_s32(vqmovn_s64(vld1q_s64({p})), vqmovn_s64(vld1q_s64(({p}) + 2)))",
        "s16": "vmovl_s16(vld1_s16({p}))",
        "u16": "vreinterpretq_s32_u32(vmovl_u16(vld1_u16({p})))",
        "s8": f"vmovl_s16({_eights('s', 32)})",
        "u8": f"vreinterpretq_s32_u32(vmovl_u16({_eights('u', 32)}))",
    },
    stores={
        "f64": (
            "vst1q_f64({p}, vcvtq_f64_s64(vmovl_s32(vget_low_s32({v})))), "
            "vst1q_f64(({p}) + 2, vcvtq_f64_s64(vmovl_high_s32({v})))"
        ),
        "s16": f"vst1_s16({{p}}, {_HALVES})",
        "u16": f"vst1_u16({{p}}, vreinterpret_u16_s16({_HALVES}))",
        "s8": low_bits(32, _QUARTERS, "s8"),
        "u8": low_bits(32, _QUARTERS, "s8"),
    },
    ops=filled(_OPS, q="q"),
    fill=fill("s32", 4),
    first="vgetq_lane_s32({v}, 0)",
    partial_load={
        1: "vld1q_lane_s32({p}, vdupq_n_s32(0), 0)",
        2: _S32X2,
        3: f"vld1q_lane_s32(({{p}}) + 2, {_S32X2}, 2)",
    },
    partial_store={
        1: "vst1q_lane_s32({p}, {v}, 0)",
        2: "vst1_s32({p}, vget_low_s32({v}))",
        3: "vst1_s32({p}, vget_low_s32({v})), vst1q_lane_s32(({p}) + 2, {v}, 2)",
    },
    transpose={
        1: ("vtrn1q_s32({x}, {y})", "vtrn2q_s32({x}, {y})"),
        2: (_TRN_S64[0], _TRN_S64[1]),
    },
)

_PAIR = Vector(
    name="d",
    element="s32",
    lanes=2,
    ctype="int32x2_t",
    zero="vdup_n_s32(0)",
    load="vld1_s32({p})",
    store="vst1_s32({p}, {v})",
    broadcast="vld1_dup_s32({p})",
    splat="vdup_n_s32({x})",
    muladd=_muladd(2),
    sum_lanes="vaddv_s32({v})",
    loads={
        "s16": f"vget_low_s32(vmovl_s16(vreinterpret_s16_s32(vdup_n_s32({BITS[32]}))))",
        "u16": (
            "vget_low_s32(vreinterpretq_s32_u32(vmovl_u16("
            f"vreinterpret_u16_s32(vdup_n_s32({BITS[32]})))))"
        ),
        "s8": f"vget_low_s32(vmovl_s16({_eights('s', 16)}))",
        "u8": f"vget_low_s32(vreinterpretq_s32_u32(vmovl_u16({_eights('u', 16)})))",
        "f64": _rounded("{p}"),
        "s64": "vqmovn_s64(vld1q_s64({p}))",
    },
    stores={
        "f64": "vst1q_f64({p}, vcvtq_f64_s64(vmovl_s32({v})))",
        "s16": low_bits(32, _PAIR_HALVES, "s16"),
        "u16": low_bits(32, _PAIR_HALVES, "s16"),
        "s8": low_bits(16, _PAIR_QUARTERS, "s8"),
        "u8": low_bits(16, _PAIR_QUARTERS, "s8"),
    },
    ops=filled(_OPS, q=""),
    fill=fill("s32", 2),
    first="vget_lane_s32({v}, 0)",
    partial_load={1: "vld1_lane_s32({p}, vdup_n_s32(0), 0)"},
    partial_store={1: "vst1_lane_s32({p}, {v}, 0)"},
    transpose={1: ("vtrn1_s32({x}, {y})", "vtrn2_s32({x}, {y})")},
)

SUMS = (
    _QUAD,
    _PAIR,
    replace(
        _SCALAR,
        muladd=(
            *_pairs("s8", 1),
            *_pairs("u8", 1),
            *(_alone(element) for element in ("s16", "u16")),
            *_SCALAR.muladd,
        ),
    ),
)


def factors(element: str) -> tuple[Vector, ...]:
    """Return the vector types of s8 or u8, with 16, 8, 4 and 2 lanes.

    The vectors with 4 and 2 lanes are factors of multiply-adds with few sums.
    """

    def vector(name: str, lanes: int, load: str) -> Vector:
        q, ctype = "q" if name == "q" else "", {"s8": "int8", "u8": "uint8"}[element]
        return Vector(
            name=name,
            element=element,
            lanes=lanes,
            ctype=f"{ctype}x{16 if q else 8}_t",
            load=load,
            group=group(element, q),
            fields=parts(element, q),
            join=f"vorr{q}_{element}({{x}}, {{y}})",
        )

    def part(size: int) -> str:
        return f"vreinterpret_{element}_s{size}(vdup_n_s{size}({BITS[size]}))"

    return (
        vector("q", 16, f"vld1q_{element}({{p}})"),
        vector("d", 8, f"vld1_{element}({{p}})"),
        vector("s", 4, part(32)),
        vector("h", 2, part(16)),
    )


def halves(element: str) -> tuple[Vector, ...]:
    """Return the vector types of s16 or u16, with four, two and one lanes.

    The vector with one lane is a C scalar. Loads can widen 8-bit integers to ``element``.
    """
    ctype = {"s16": "int16", "u16": "uint16"}[element]
    narrow = ("s8", "u8") if element == "s16" else ("u8",)

    def vector(name: str, lanes: int, load: str) -> Vector:
        return Vector(
            name=name,
            element=element,
            lanes=lanes,
            ctype=f"{ctype}x4_t",
            load=load,
            broadcast=f"vld1_dup_{element}({{p}})",
            loads={each: _widened(each, element, 8 * lanes) for each in narrow},
        )

    two = f"vset_lane_s32({BITS[32]}, vdup_n_s32(0), 0)"
    half = vector("d", 4, f"vld1_{element}({{p}})")
    one = vector("s", 2, f"vreinterpret_{element}_s32(vdup_n_s32({BITS[32]}))")
    first = {
        1: f"vld1_lane_{element}({{p}}, vdup_n_{element}(0), 0)",
        2: f"vreinterpret_{element}_s32({two})",
        3: f"vld1_lane_{element}(({{p}}) + 2, vreinterpret_{element}_s32({two}), 2)",
    }
    alone = Vector(
        name="scalar",
        element=element,
        lanes=1,
        ctype=f"{ctype}_t",
        load="*({p})",
        loads=dict.fromkeys(narrow, "*({p})"),
    )
    return replace(half, partial_load=first), one, alone


def _widened(memory: str, element: str, size: int) -> str:
    """Return C that loads 8-bit integers, and widens them to ``element`` in half a register.

    ``memory`` is the 8-bit type. ``size`` is the number of bits that are read.
    """
    wide = _eights(memory[0], size)
    return wide if memory[0] == element[0] else f"vreinterpret_{element}_{memory[0]}16({wide})"
