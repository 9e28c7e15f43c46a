"""AVX2 with FMA and F16C: 16 registers of 256 bits, masks in vector registers.

Spellings: Intel Intrinsics Guide. Latency and units: Intel and AMD optimisation manuals; 5 is
Haswell's, 4 that of its successors.
"""

from __future__ import annotations

from tilewright.isa import Core, Emulation, Mask, Target, Vector

from .x86 import scalar, vector

_PD = {
    1: ("_mm256_unpacklo_pd({x}, {y})", "_mm256_unpackhi_pd({x}, {y})"),
    2: ("_mm256_permute2f128_pd({x}, {y}, 0x20)", "_mm256_permute2f128_pd({x}, {y}, 0x31)"),
}


def _as_pd(spelling: str) -> str:
    inner = spelling.replace("{x}", "_mm256_castps_pd({x})").replace("{y}", "_mm256_castps_pd({y})")
    return f"_mm256_castpd_ps({inner})"


_PS = {
    1: (
        "_mm256_blend_ps({x}, _mm256_moveldup_ps({y}), 0xaa)",
        "_mm256_blend_ps(_mm256_movehdup_ps({x}), {y}, 0xaa)",
    ),
    **{2 * h: (_as_pd(even), _as_pd(odd)) for h, (even, odd) in _PD.items()},
}


def _mask(element: str) -> Mask:
    ps, bits = {"f32": ("ps", 32), "f64": ("pd", 64)}[element]
    lanes = ", ".join(map(str, range(256 // bits)))
    splat, setr = {
        32: ("_mm256_set1_epi32((int)({count}))", f"_mm256_setr_epi32({lanes})"),
        64: ("_mm256_set1_epi64x({count})", f"_mm256_setr_epi64x({lanes})"),
    }[bits]
    return Mask(
        ctype="__m256i",
        make=f"_mm256_cmpgt_epi{bits}({splat}, {setr})",
        load=f"_mm256_maskload_{ps}({{p}}, {{mask}})",
        store=f"_mm256_maskstore_{ps}({{p}}, {{mask}}, {{v}})",
        registers=1,
    )


def _vectors(element: str) -> tuple[Vector, ...]:
    transpose = _PS if element == "f32" else _PD
    wide = vector(element, 256, mask=_mask(element), transpose=transpose)
    return (wide, vector(element, 128), scalar(element))


TARGET = Target(
    name="avx2",
    title="AVX2, FMA, F16C",
    machine="x86_64",
    cpu_flags=("avx2", "fma", "f16c"),
    compiler_flags=("-mavx2", "-mfma", "-mf16c"),
    zig_flags=("-mcpu=x86_64_v3",),
    headers=("immintrin.h",),
    registers=16,
    vectors=_vectors("f32") + _vectors("f64"),
    core=Core(fma_latency=5, fma_units=2, loads=2, stores=1, issue=4),
    emulation=Emulation(qemu="qemu-x86_64", cpu="max"),
)
