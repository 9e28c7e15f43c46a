"""Conversions between 16 f32 of AVX-512 and bf16, which are their upper halves."""

from __future__ import annotations

from dataclasses import replace

from tilewright.isa.vector import Vector

from .floats import load_bits, store_bits

#: Category of subnormal numbers in vfpclassps.
_SUBNORMAL = 0x20


def load_upper() -> str:
    """Return C that loads 16 bf16 and moves each to the upper half of 32 bits, by one shuffle."""
    at = ", ".join(hex(i << 16) for i in range(16))
    words = f"_mm512_castsi256_si512({load_bits(256)})"
    moved = f"_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, _mm512_setr_epi32({at}), {words})"
    return f"_mm512_castsi512_ps({moved})"


def rounded() -> str:
    """Return C that rounds 16 f32 to bf16, to nearest even, by integer operations.

    A NaN keeps its upper bits and becomes quiet.
    """
    given = "_mm512_castps_si512({v})"
    odd = f"_mm512_and_si512(_mm512_srli_epi32({given}, 16), _mm512_set1_epi32(1))"
    nearest = f"_mm512_add_epi32(_mm512_add_epi32({given}, _mm512_set1_epi32(32767)), {odd})"
    quiet = f"_mm512_or_si512({given}, _mm512_set1_epi32(4194304))"
    number = "_mm512_cmp_ps_mask({v}, {v}, _CMP_EQ_OQ)"
    upper = f"_mm512_mask_blend_epi32({number}, {quiet}, {nearest})"
    words = ", ".join(hex((i + 2) << 16 | i) for i in range(1, 32, 4))
    at = f"_mm512_setr_epi32({words}, 0, 0, 0, 0, 0, 0, 0, 0)"
    return f"_mm512_castsi512_si256(_mm512_permutexvar_epi16({at}, {upper}))"


def rounding(vector: Vector) -> Vector:
    """Return ``vector`` with a store of bf16 by the instruction of AVX-512 BF16, if it has 16 f32.

    vcvtneps2bf16 takes subnormal numbers for 0. Integer operations round vectors that contain one.
    """
    if vector.element != "f32" or vector.lanes != 16:
        return vector
    seldom = f"__builtin_expect(_mm512_fpclass_ps_mask({{v}}, {_SUBNORMAL}) != 0, 0)"
    either = f"{seldom} ? {rounded()} : (__m256i)_mm512_cvtneps_pbh({{v}})"
    return replace(vector, stores={**vector.stores, "bf16": store_bits(256, either)})
