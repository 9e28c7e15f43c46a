"""AVX-512 (F, BW, DQ, VL, CD): 32 registers of 512 bits, masks, broadcasts from memory.

Spellings: Intel Intrinsics Guide. Latency and units: Intel and AMD optimisation manuals
(Skylake-X, Ice Lake, Zen 4 and 5 agree on a latency of 4; two 512-bit units where there are).
"""

from __future__ import annotations

from tilewright.isa import Core, Emulation, Hold, Mask, Target, Vector

from .x86 import scalar, transposes, vector


def _mask(element: str, bits: int) -> Mask:
    prefix = "_mm" if bits == 128 else f"_mm{bits}"
    ps = {"f32": "ps", "f64": "pd"}[element]
    lanes = bits // {"f32": 32, "f64": 64}[element]
    ctype = "__mmask16" if lanes == 16 else "__mmask8"
    return Mask(
        ctype=ctype,
        make=f"({ctype})((1u << ({{count}})) - 1u)",
        load=f"{prefix}_maskz_loadu_{ps}({{mask}}, {{p}})",
        store=f"{prefix}_mask_storeu_{ps}({{p}}, {{mask}}, {{v}})",
        registers=0,
    )


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


def _vectors(element: str) -> tuple[Vector, ...]:
    wide = vector(
        element,
        512,
        memory_operand=True,
        mask=_mask(element, 512),
        transpose=transposes(element, 512, _PD, _PS),
    )
    narrow = tuple(
        vector(element, bits, memory_operand=True, mask=_mask(element, bits)) for bits in (256, 128)
    )
    return (wide, *narrow, scalar(element))


TARGET = Target(
    name="avx512",
    title="AVX-512 F, BW, DQ, VL, CD",
    machine="x86_64",
    cpu_flags=("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"),
    compiler_flags=(
        "-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl",
        "-mavx512cd",
    ),
    zig_flags=("-mcpu=x86_64_v4",),
    headers=("immintrin.h",),
    registers=32,
    vectors=_vectors("f32") + _vectors("f64"),
    core=Core(fma_latency=4, fma_units=2, loads=2, stores=1, issue=6),
    hold=Hold(constraint="v", operands=True, spare=1),
    emulation=Emulation(header="avx512.h.j2"),
)  # fmt: skip
