/* LIBXSMM's generated kernels. It is column-major, and row-major C += A B is C' += B' A' there:
 * the kernels returned take (b, a, c), those for batches (b, a, c, &count). */
#include <libxsmm.h>

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
