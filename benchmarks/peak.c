/* FMA throughput: independent chains of multiply-adds in registers, nothing else in the loop. */
#include <immintrin.h>
#include <stdint.h>

enum { ITERATIONS = 2048 };

#define EACH4(f) f(0) f(1) f(2) f(3)
#define EACH8(f) EACH4(f) f(4) f(5) f(6) f(7)
#define EACH10(f) EACH8(f) f(8) f(9)
#define EACH12(f) EACH10(f) f(10) f(11)
#define EACH14(f) EACH12(f) f(12) f(13)
#define EACH16(f) EACH14(f) f(14) f(15)
#define EACH20(f) EACH16(f) f(16) f(17) f(18) f(19)
#define EACH24(f) EACH20(f) f(20) f(21) f(22) f(23)

#define DECLARE(i) VECTOR s##i = x;
#define CHAIN(i) s##i = FMA(x, y, s##i);
#define KEEP(i) __asm__ volatile("" : "+v"(s##i));
#define SUM(i) x = ADD(x, s##i);

#define PEAK(NAME, EACH)                                                                      \
    __attribute__((target(ISA))) void NAME(const float *a, const float *b, float *c)         \
    {                                                                                         \
        VECTOR x = LOAD(a), y = LOAD(b);                                                      \
        EACH(DECLARE)                                                                         \
        for (int64_t i = 0; i < ITERATIONS; i++) {                                            \
            EACH(CHAIN)                                                                       \
            EACH(KEEP)                                                                        \
        }                                                                                     \
        EACH(SUM)                                                                             \
        STORE(c, x);                                                                          \
    }

int64_t bench_peak_iterations(void) { return ITERATIONS; }

#define ISA "avx512f"
#define VECTOR __m512
#define FMA _mm512_fmadd_ps
#define ADD _mm512_add_ps
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
PEAK(bench_peak_avx512_8, EACH8)
PEAK(bench_peak_avx512_10, EACH10)
PEAK(bench_peak_avx512_12, EACH12)
PEAK(bench_peak_avx512_16, EACH16)
PEAK(bench_peak_avx512_20, EACH20)
PEAK(bench_peak_avx512_24, EACH24)

#undef ISA
#undef VECTOR
#undef FMA
#undef ADD
#undef LOAD
#undef STORE
#undef KEEP
#define ISA "avx2,fma"
#define VECTOR __m256
#define FMA _mm256_fmadd_ps
#define ADD _mm256_add_ps
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define KEEP(i) __asm__ volatile("" : "+x"(s##i));
PEAK(bench_peak_avx2_8, EACH8)
PEAK(bench_peak_avx2_10, EACH10)
PEAK(bench_peak_avx2_12, EACH12)
PEAK(bench_peak_avx2_14, EACH14)
