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

/* C = A B of narrower types, row-major: `count` products into the same C, of float or int32_t.
 *
 * A is m x k, its rows lda apart, a_bytes from one to the next. With groups, B is blocks of 64
 * columns, padded to a multiple of 16: [block][count][k / groups][columns][groups]. */
struct typed {
    void *function;
    int64_t m, n, k, count, lda;
    int64_t a_bytes, b_bytes; /* from one matrix to the next */
    int64_t item;             /* bytes of an element of A, and of B */
    int64_t groups;           /* of K in B; 0 none */
};

/* What at::native::cpublas::brgemm_release is called by: the next call of the ukernel configures
 * tiles anew, as whoever else has its turn may have configured others. */
void (*bench_release)(bool);

void bench_begin_brgemm(void)
{
    bench_release(true);
}

/* at::native::cpublas::brgemm of these types; without groups it is PyTorch's own product. */
void bench_typed_brgemm(const char *a, const char *b, float *c, const struct typed *p)
{
    void (*brgemm)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, const void *,
                   const void *, void *, bool) = p->function;
    int64_t width = p->groups ? 64 : p->n;
    for (int64_t j = 0; j < p->n; j += width) {
        int64_t n = p->n - j < width ? p->n - j : width;
        int64_t ldb = p->groups ? (n + 15) / 16 * 16 : n;
        for (int64_t i = 0; i < p->count; i++, b += p->k * ldb * p->item)
            brgemm(p->m, n, p->k, p->lda, ldb, p->n, i > 0, a + i * p->a_bytes, b, c + j,
                   p->groups > 0);
    }
}

enum { PACKED = 151, FIX_OFFSET = 173 };

/* MKL's cblas_gemm_bf16bf16f32_compute and its kin, B packed. */
void bench_mkl_halves(const char *a, const char *b, float *c, const struct typed *p)
{
    void (*gemm)(int, int, int, int, int, int, float, const void *, int, const void *, int, float,
                 float *, int) = p->function;
    int m = (int)p->m, n = (int)p->n, k = (int)p->k;
    for (int64_t i = 0; i < p->count; i++, a += p->a_bytes, b += p->b_bytes)
        gemm(ROW_MAJOR, NO_TRANS, PACKED, m, n, k, 1, a, (int)p->lda, b, n, i > 0, c, n);
}

/* MKL's cblas_gemm_s8u8s32_compute, in rows u8 x s8, B packed. */
void bench_mkl_bytes(const char *a, const char *b, int32_t *c, const struct typed *p)
{
    void (*gemm)(int, int, int, int, int, int, int, float, const void *, int, int8_t, const void *,
                 int, int8_t, float, int32_t *, int, const int32_t *) = p->function;
    int m = (int)p->m, n = (int)p->n, k = (int)p->k;
    int32_t none = 0;
    for (int64_t i = 0; i < p->count; i++, a += p->a_bytes, b += p->b_bytes)
        gemm(ROW_MAJOR, NO_TRANS, PACKED, FIX_OFFSET, m, n, k, 1, a, (int)p->lda, 0, b, n, 0,
             i > 0, c, n, &none);
}
