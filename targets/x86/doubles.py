"""x86's loads and stores that convert between f64 and f32, and between f64 and s32."""

from __future__ import annotations

#: C that makes a vector of f32 or s32 of two vectors of half its bits, ``low`` and ``high``.
_JOINED = {
    ("f32", 256): "_mm256_insertf128_ps(_mm256_castps128_ps256({low}), {high}, 1)",
    ("f32", 512): "_mm512_insertf32x8(_mm512_castps256_ps512({low}), {high}, 1)",
    ("s32", 256): "_mm256_inserti128_si256(_mm256_castsi128_si256({low}), {high}, 1)",
    ("s32", 512): "_mm512_inserti32x8(_mm512_castsi256_si512({low}), {high}, 1)",
}
#: C of the lower and the upper half of such a vector.
_HALVES = {
    ("f32", 256): ("_mm256_castps256_ps128({v})", "_mm256_extractf128_ps({v}, 1)"),
    ("f32", 512): ("_mm512_castps512_ps256({v})", "_mm512_extractf32x8_ps({v}, 1)"),
    ("s32", 256): ("_mm256_castsi256_si128({v})", "_mm256_extracti128_si256({v}, 1)"),
    ("s32", 512): ("_mm512_castsi512_si256({v})", "_mm512_extracti64x4_epi64({v}, 1)"),
}
#: C that replaces NaN by 0 in ``x_``, a vector of 256 or 512 bits.
_NUMBERS = {
    256: "_mm256_blendv_pd(_mm256_setzero_pd(), x_, _mm256_cmp_pd(x_, x_, _CMP_EQ_OQ))",
    512: "_mm512_mask_blend_pd(_mm512_cmp_pd_mask(x_, x_, _CMP_EQ_OQ), _mm512_setzero_pd(), x_)",
}


def load_doubles(element: str, bits: int) -> str:
    """Return C that loads f64 as a vector of f32 or s32, rounded; s32 saturates."""
    if bits == 128:
        return _loaded(element, 256, "{p}")
    low, high = (_loaded(element, bits, p) for p in ("{p}", f"({{p}}) + {bits // 64}"))
    return _JOINED[element, bits].replace("{low}", low).replace("{high}", high)


def store_doubles(element: str, bits: int) -> str:
    """Return C that stores a vector of f32 or s32 as f64."""
    mm, kind = f"_mm{max(bits, 256)}", {"f32": "ps", "s32": "epi32"}[element]
    halves = _HALVES.get((element, bits), ("{v}",))
    places = "{p}", f"({{p}}) + {bits // 64}"
    return ", ".join(
        f"{mm}_storeu_pd({p}, {mm}_cvt{kind}_pd({half}))"
        for p, half in zip(places, halves, strict=False)
    )


def load_singles(bits: int) -> str:
    """Return C that loads f32 as a vector of f64."""
    if bits == 128:
        return "_mm_cvtps_pd(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)({p}))))"
    half = {256: "_mm", 512: "_mm256"}[bits]
    return f"_mm{bits}_cvtps_pd({half}_loadu_ps({{p}}))"


def store_singles(bits: int) -> str:
    """Return C that stores a vector of f64 as f32, rounded."""
    if bits == 128:
        return "_mm_storel_epi64((__m128i *)({p}), _mm_castps_si128(_mm_cvtpd_ps({v})))"
    half = {256: "_mm", 512: "_mm256"}[bits]
    return f"{half}_storeu_ps({{p}}, _mm{bits}_cvtpd_ps({{v}}))"


def _loaded(element: str, bits: int, p: str) -> str:
    """Return C for half a vector of f32 or s32, converted from ``bits`` bits of f64 at ``p``."""
    mm = f"_mm{bits}"
    if element == "f32":
        return f"{mm}_cvtpd_ps({mm}_loadu_pd({p}))"
    low, high = (f"{mm}_set1_pd({bound})" for bound in ("-2147483648.0", "2147483647.0"))
    clamped = f"{mm}_min_pd({mm}_max_pd({_NUMBERS[bits]}, {low}), {high})"
    return f"({{{{ const __m{bits}d x_ = {mm}_loadu_pd({p}); {mm}_cvtpd_epi32({clamped}); }}}})"
