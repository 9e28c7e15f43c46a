/* Every AVX-512 intrinsic that the target spells, each with its result in the arrays. */
#include <stdint.h>
#ifdef TILEWRIGHT_INTRINSICS
#include TILEWRIGHT_INTRINSICS
#else
#include <immintrin.h>
#endif

void every_intrinsic(float *f, double *d);

#define ARITHMETIC(MM, PS, VECTOR, MASK, P, Q)                                             \
    do {                                                                                   \
        VECTOR x = MM##_loadu_##PS(P), y = MM##_set1_##PS(*(Q));                           \
        x = MM##_fmadd_##PS(x, y, MM##_add_##PS(MM##_mul_##PS(y, x), MM##_setzero_##PS())); \
        MM##_storeu_##PS((P) + 16, x);                                                     \
        MM##_mask_storeu_##PS((Q) + 1, (MASK)0x5, MM##_maskz_loadu_##PS((MASK)0x3, P));    \
    } while (0)

void every_intrinsic(float *f, double *d)
{
    ARITHMETIC(_mm512, ps, __m512, __mmask16, f, f + 40);
    ARITHMETIC(_mm256, ps, __m256, __mmask8, f + 1, f + 44);
    ARITHMETIC(_mm, ps, __m128, __mmask8, f + 2, f + 48);
    ARITHMETIC(_mm512, pd, __m512d, __mmask8, d, d + 40);
    ARITHMETIC(_mm256, pd, __m256d, __mmask8, d + 1, d + 44);
    ARITHMETIC(_mm, pd, __m128d, __mmask8, d + 2, d + 48);

    __m512 x = _mm512_loadu_ps(f), y = _mm512_loadu_ps(f + 17);
    x = _mm512_mask_moveldup_ps(x, 0xaaaa, y);
    y = _mm512_mask_movehdup_ps(y, 0x5555, x);
    __m512d u = _mm512_castps_pd(x), v = _mm512_castps_pd(y);
    u = _mm512_unpacklo_pd(u, v);
    v = _mm512_unpackhi_pd(u, v);
    u = _mm512_permutex2var_pd(u, _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), v);
    v = _mm512_permutex2var_pd(v, _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15), u);
    u = _mm512_shuffle_f64x2(u, v, 0x44);
    v = _mm512_shuffle_f64x2(v, u, 0xee);
    _mm512_storeu_ps(f, _mm512_castpd_ps(u));
    _mm512_storeu_ps(f + 16, _mm512_castpd_ps(v));

    __m256 g = _mm256_loadu_ps(f + 32), h = _mm256_loadu_ps(f + 7);
    g = _mm256_blend_ps(g, _mm256_moveldup_ps(h), 0xaa);
    h = _mm256_blend_ps(_mm256_movehdup_ps(g), h, 0x5a);
    __m256d p = _mm256_unpacklo_pd(_mm256_castps_pd(g), _mm256_castps_pd(h));
    __m256d q = _mm256_unpackhi_pd(_mm256_castps_pd(h), p);
    p = _mm256_permute2f128_pd(p, q, 0x20);
    q = _mm256_permute2f128_pd(p, q, 0x31);
    _mm256_storeu_ps(f + 32, _mm256_castpd_ps(p));
    _mm256_storeu_ps(f + 40, _mm256_castpd_ps(_mm256_permute2f128_pd(p, q, 0x83)));
    __m128 k = _mm_loadu_ps(f + 48), l = _mm_loadu_ps(f + 9);
    k = _mm_blend_ps(k, _mm_moveldup_ps(l), 0xa);
    l = _mm_blend_ps(_mm_movehdup_ps(k), l, 0x6);
    _mm_storeu_ps(f + 48, _mm_castpd_ps(_mm_unpacklo_pd(_mm_castps_pd(k), _mm_castps_pd(l))));

    f[60] = _mm512_reduce_add_ps(_mm512_loadu_ps(f + 3));
    d[60] = _mm512_reduce_add_pd(_mm512_loadu_pd(d + 3));
    const __m256 a = _mm256_loadu_ps(f + 5);
    const __m256d b = _mm256_loadu_pd(d + 5);
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    f[61] = _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
    __m128d t = _mm_add_pd(_mm256_castpd256_pd128(b), _mm256_extractf128_pd(b, 1));
    d[61] = _mm_cvtsd_f64(_mm_add_sd(t, _mm_unpackhi_pd(t, t)));
}
