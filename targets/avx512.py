"""AVX-512 (F, BW, DQ, VL, CD): 32 registers of 512 bits, masks, broadcasts from memory.

Spellings: Intel Intrinsics Guide. Latency and units: Intel's and AMD's optimisation manuals.
Skylake-X, Ice Lake, Zen 4 and Zen 5 all have a multiply-add latency of 4 cycles. No core has more
than two multiply-add units of 512 bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.isa.machine import CompilerHints, Core
from tilewright.isa.target import Target
from tilewright.isa.vector import Mask, Numbers, Vector

from .detection import X86
from .processors import processors
from .x86 import wide
from .x86.doubles import store_doubles
from .x86.features import HEADER, bf16, vnni
from .x86.floats import (
    cast,
    integer_transposes,
    looked_up,
    predicate,
    prefix,
    scalar,
    short_stores,
    store_bits,
    transposes,
    vector,
    with_parts,
)
from .x86.halves import fp16
from .x86.integers import alone, factors, s32
from .x86.upper import load_upper, rounded

_WIDTHS = (512, 256, 128)
#: Widths of vectors of factors, in bits. A factor has 32 bits if the sum is a C scalar.
_GROUPS = (*_WIDTHS, 32)


_SUFFIX = {"f32": "ps", "f64": "pd", "s32": "epi32", "s64": "epi64"}


def _cuts(element: str, bits: int) -> dict[str, Any]:
    """Return the fields of ``Vector`` for access to some of the lanes."""
    return {
        "mask": _mask(element, bits),
        "fill": _fill(element, bits),
        "partial_store": short_stores(element, bits),
    }


def _fill(element: str, bits: int) -> str:
    """Return the C that takes the lanes of the mask from one vector, and all others from another.

    GCC 12 fails on a masked conversion of bytes to 8 or 4 lanes of s32, and makes it of a blend and
    a conversion. It does not if the mask is that of the other lanes.
    """
    blend = f"{prefix(bits)}_mask_blend_{_SUFFIX[element]}"
    if element == "s32" and bits < _WIDTHS[0]:
        return f"{blend}((__mmask8)~{{mask}}, {{v}}, {{other}})"
    return f"{blend}({{mask}}, {{other}}, {{v}})"


def _mask(element: str, bits: int) -> Mask:
    ps = _SUFFIX[element]
    lanes = bits // (64 if element in ("f64", "s64") else 32)
    mask = predicate(ps, bits, lanes)
    if element == "s32":
        load = f"{prefix(bits)}_maskz_loadu_epi{{}}({{{{mask}}}}, {{{{p}}}})"
        mask = replace(mask, groups={n: load.format(32 // n) for n in (2, 4)})
    if element == "s64":
        mask = replace(mask, loads=wide.masked_loads(bits, mask))
    return with_parts(mask, ps, bits, lanes)


def _permute2(indices: str) -> str:
    return f"_mm512_permutex2var_pd({{x}}, _mm512_setr_epi64({indices}), {{y}})"


_PD = {
    1: ("_mm512_unpacklo_pd({x}, {y})", "_mm512_unpackhi_pd({x}, {y})"),
    2: (_permute2("0, 1, 8, 9, 4, 5, 12, 13"), _permute2("2, 3, 10, 11, 6, 7, 14, 15")),
    4: ("_mm512_shuffle_f64x2({x}, {y}, 0x44)", "_mm512_shuffle_f64x2({x}, {y}, 0xee)"),
}
_PS = (
    "_mm512_mask_moveldup_ps({x}, 0xaaaa, {y})",
    "_mm512_mask_movehdup_ps({y}, 0x5555, {x})",
)
_TRANSPOSE = {element: transposes(element, 512, _PD, _PS) for element in ("f32", "f64")}
_TRANSPOSE["s32"] = integer_transposes(512, "ps", _TRANSPOSE["f32"])
_TRANSPOSE["s64"] = integer_transposes(512, "pd", _TRANSPOSE["f64"])


def _ops(element: str, bits: int) -> dict[str, str]:
    """Return C for the operations that differ from AVX2's.

    These are selection, and scaling of f32, at all widths, and comparison and rounding at 512 bits.
    """
    mm, kind = prefix(bits), {"f32": "ps", "f64": "pd", "s32": "si"}[element]
    size = 64 if element == "f64" else 32
    x, y, z = (f"{{{v}}}" if kind == "si" else cast(kind, "si", bits, f"{{{v}}}") for v in "xyz")
    mask = x if element == "f64" else "{x}"
    chosen = f"{mm}_ternarylogic_epi{size}({mask}, {y}, {z}, 0xca)"
    select = {"select": chosen if kind == "si" else cast("si", kind, bits, chosen)}
    if kind == "ps":
        select["scale"] = f"{mm}_scalef_ps({{x}}, {{y}})"
        above = f"{mm}_cmp_ps_mask({{y}}, {{x}}, _CMP_NLT_UQ)"
        select["zero_below"] = f"{mm}_maskz_mov_ps({above}, {{z}})"
    if bits != 512:
        return select
    return select | (_integer_tests() if kind == "si" else _tests(kind, size))


def _tests(kind: str, size: int) -> dict[str, str]:
    """Return C for comparisons and rounding of floating-point vectors of 512 bits."""
    found = {"round": f"_mm512_roundscale_{kind}({{x}}, 8)"}
    for op in ("lt", "le", "eq"):
        test = f"_mm512_cmp_{kind}_mask({{x}}, {{y}}, _CMP_{op.upper()}_OQ)"
        lanes = f"_mm512_movm_epi{size}({test})"
        found[op] = cast("si", "pd", 512, lanes) if size == 64 else lanes
    return found


def _integer_tests() -> dict[str, str]:
    tests = {"lt": "cmplt", "gt": "cmpgt", "eq": "cmpeq"}
    return {
        op: f"_mm512_movm_epi32(_mm512_{name}_epi32_mask({{x}}, {{y}}))"
        for op, name in tests.items()
    }


def _vectors(element: str) -> tuple[Vector, ...]:
    return (*(_wide(element, bits) for bits in _WIDTHS), scalar(element))


def _wide(element: str, bits: int) -> Vector:
    transpose = {"transpose": _TRANSPOSE[element]} if bits == 512 else {}
    return vector(
        element,
        bits,
        memory_operand=True,
        **_cuts(element, bits),
        ops=_ops(element, bits),
        numbers=_numbers(bits) if element == "f32" else None,
        loads={"bf16": load_upper()} if element == "f32" and bits == 512 else {},
        stores={"bf16": store_bits(256, rounded())} if element == "f32" and bits == 512 else {},
        **transpose,
    )


def _numbers(bits: int) -> Numbers:
    """Return the lookup of f32 in a table of 16 numbers by the low four bits of each lane.

    The table is one register of 512 bits.
    """

    def found(at: str) -> str:
        at = at if bits == 512 else f"_mm512_castsi{bits}_si512({at})"
        number = f"_mm512_permutexvar_ps({at}, {{table}})"
        return number if bits == 512 else f"_mm512_castps512_ps{bits}({number})"

    return Numbers(
        spelling="_mm512_castsi512_ps(_mm512_setr_epi32({numbers}))",
        codes="s32",
        found=looked_up(bits, 32, found),
        ctype="__m512",
    )


def _integers() -> tuple[Vector, ...]:
    held = (factors(e, bits, masked=True) for e in ("s16", "u8", "s8") for bits in _GROUPS)
    sums = (*(_s32(bits) for bits in _WIDTHS), alone())
    return (*sums, *(_s64(bits) for bits in _WIDTHS), wide.alone(), *held)


def _s32(bits: int) -> Vector:
    transpose = {"transpose": _TRANSPOSE["s32"]} if bits == 512 else {}
    stores = {
        name: store_bits(bits * size // 32, f"{prefix(bits)}_cvtepi32_epi{size}({{v}})")
        for name, size in (("s16", 16), ("u16", 16), ("s8", 8), ("u8", 8))
    }
    stores |= {"s64": wide.store_widened(bits), "f64": store_doubles("s32", bits)}
    return s32(
        bits,
        memory_operand=True,
        **_cuts("s32", bits),
        ops=_ops("s32", bits),
        stores=stores,
        **transpose,
    )


def _s64(bits: int) -> Vector:
    transpose = {"transpose": _TRANSPOSE["s64"]} if bits == 512 else {}
    return wide.s64(
        bits,
        memory_operand=True,
        **_cuts("s64", bits),
        ops={"mul": f"{prefix(bits)}_mullo_epi64({{x}}, {{y}})"},
        **transpose,
    )


TARGET = Target(
    name="avx512",
    title="AVX-512 F, BW, DQ, VL, CD",
    machine="x86_64",
    detection=X86,
    cpu_flags=("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"),
    compiler_flags=(
        "-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl",
        "-mavx512cd",
    ),
    zig_flags=("-mcpu=x86_64_v4",),
    headers=("immintrin.h",),
    fence="_mm_sfence()",
    registers=32,
    vectors=_vectors("f32") + _vectors("f64") + _integers(),
    core=Core(fma_latency=4, fma_units=2, loads=2, stores=1, issue=6, shared=1),
    threads=2,
    hints=CompilerHints(constraint="v", operands=True, pointers=False, lanes=False, spare=1),
    emulation=HEADER,
    features={
        "vnni": vnni(_GROUPS, "VNNI", "avx512_vnni", "avx512vnni", wide=True),
        "bf16": bf16(_GROUPS, "avx512_bf16", "avx512bf16"),
        "fp16": fp16(
            {bits: v.transpose for bits, v in zip(_WIDTHS, _integers(), strict=False)}
        ),
        **processors("avx512"),
    },
)  # fmt: skip
