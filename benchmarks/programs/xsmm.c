/* LIBXSMM's generated kernels. It is column-major, and row-major C += A B is C' += B' A' there:
 * the kernels returned take (b, a, c), those for batches (b, a, c, &count). */
#include <libxsmm.h>
#include <stdint.h>

static const float one = 1;

void *bench_xsmm(int m, int n, int k)
{
    int flags = LIBXSMM_GEMM_FLAG_NONE, prefetch = LIBXSMM_GEMM_PREFETCH_NONE;
    return (void *)libxsmm_smmdispatch(n, m, k, &n, &k, &n, &one, &one, &flags, &prefetch);
}

void *bench_xsmm_batch(int m, int n, int k)
{
    int flags = LIBXSMM_GEMM_FLAG_NONE, prefetch = LIBXSMM_GEMM_PREFETCH_NONE;
    int bytes = (int)sizeof(float);
    return (void *)libxsmm_smmdispatch_reducebatch_strd(n, m, k, k * n * bytes, m * k * bytes, &n,
                                                        &k, &n, &one, &one, &flags, &prefetch);
}

int bench_xsmm_isa(void) { return libxsmm_get_target_archid(); }

const char *bench_xsmm_version(void) { return LIBXSMM_VERSION; }

/* The kernel of C = A B, of floats or doubles. */
void *bench_xsmm_product(int m, int n, int k, int doubles)
{
    static const double double_one = 1, double_zero = 0;
    static const float zero = 0;
    int flags = LIBXSMM_GEMM_FLAG_NONE, prefetch = LIBXSMM_GEMM_PREFETCH_NONE;
    if (doubles)
        return (void *)libxsmm_dmmdispatch(n, m, k, &n, &k, &n, &double_one, &double_zero, &flags,
                                           &prefetch);
    return (void *)libxsmm_smmdispatch(n, m, k, &n, &k, &n, &one, &zero, &flags, &prefetch);
}

/* That kernel on each of `count` products, whose matrices are so many bytes apart. */
void bench_xsmm_stack(void *kernel, int64_t count, const char *a, int64_t a_bytes, const char *b,
                      int64_t b_bytes, char *c, int64_t c_bytes)
{
    void (*product)(const void *, const void *, void *) = (void (*)(const void *, const void *,
                                                                    void *))kernel;
    for (int64_t i = 0; i < count; i++)
        product(b + i * b_bytes, a + i * a_bytes, c + i * c_bytes);
}
