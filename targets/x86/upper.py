"""Conversions between f32 and bf16 on AVX-512. A bf16 is the upper 16 bits of an f32."""

from __future__ import annotations

from .floats import load_bits


def load_upper() -> str:
    """Return C that loads 16 bf16 and moves each to the upper half of 32 bits, by one shuffle."""
    at = ", ".join(hex(i << 16) for i in range(16))
    words = f"_mm512_castsi256_si512({load_bits(256)})"
    moved = f"_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, _mm512_setr_epi32({at}), {words})"
    return f"_mm512_castsi512_ps({moved})"


def rounded() -> str:
    """Return C that rounds 16 f32 to bf16, to nearest even, by integer operations.

    vcvtneps2bf16 takes subnormal numbers for 0. To branch around it for these numbers costs more in
    tiles of products than it saves. A NaN keeps its upper bits and becomes quiet.
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
