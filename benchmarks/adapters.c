/* C += A B, row-major f32, by libraries whose functions take sizes: one thin adapter for each
 * calling convention. Batches are `count` tight products into the same C. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct product {
    void *function;
    void *state; /* MKL's jitter */
    int64_t m, n, k, count;
};

enum { ROW_MAJOR = 101, NO_TRANS = 111 };

#define CBLAS_ADAPTER(NAME, INT)                                                              \
    void NAME(const float *a, const float *b, float *c, const struct product *p)             \
    {                                                                                         \
        void (*gemm)(int, int, int, INT, INT, INT, float, const float *, INT, const float *,  \
                     INT, float, float *, INT) = p->function;                                 \
        INT m = (INT)p->m, n = (INT)p->n, k = (INT)p->k;                                      \
        for (int64_t i = 0; i < p->count; i++, a += p->m * p->k, b += p->k * p->n)            \
            gemm(ROW_MAJOR, NO_TRANS, NO_TRANS, m, n, k, 1, a, k, b, n, 1, c, n);             \
    }

CBLAS_ADAPTER(bench_cblas32, int32_t)
CBLAS_ADAPTER(bench_cblas64, int64_t)

/* at::native::cpublas::brgemm(M, N, K, ld_a, ld_b, ld_c, add_C, A, B, C, is_vnni) */
void bench_brgemm(const float *a, const float *b, float *c, const struct product *p)
{
    void (*brgemm)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, const float *,
                   const float *, float *, bool) = p->function;
    for (int64_t i = 0; i < p->count; i++, a += p->m * p->k, b += p->k * p->n)
        brgemm(p->m, p->n, p->k, p->k, p->n, p->n, true, a, b, c, false);
}

/* One product is timed by calling MKL's generated function itself; this one is for batches. */
void bench_mkl_jit(const float *a, const float *b, float *c, const struct product *p)
{
    void (*gemm)(void *, const float *, const float *, float *) = p->function;
    for (int64_t i = 0; i < p->count; i++, a += p->m * p->k, b += p->k * p->n)
        gemm(p->state, a, b, c);
}

/* What a packing is compared with. */
void bench_copy(const void *from, void *to, const int64_t *bytes)
{
    memcpy(to, from, (size_t)*bytes);
}
