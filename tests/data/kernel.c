/* A hand-written stand-in for generated C: c = a + s * b over n floats, and a sum of matrices. */
#include <stdint.h>

void axpy(const float *a, const float *b, float *c, int64_t n, float s);
void axpy_invoke(void *const *arrays, const int64_t *sizes, const double *scalars, void *scratch);
int64_t axpy_scratch_bytes(const int64_t *sizes);
void total(const float *const *a, float *c, int64_t n, int64_t count);
void total_invoke(void *const *arrays, const int64_t *sizes, const double *scalars, void *scratch);
int64_t total_scratch_bytes(const int64_t *sizes);

void axpy(const float *a, const float *b, float *c, int64_t n, float s)
{
    for (int64_t i = 0; i < n; i++)
        c[i] = a[i] + s * b[i];
}
void axpy_invoke(void *const *arrays, const int64_t *sizes, const double *scalars, void *scratch)
{
    (void)scratch;
    axpy(arrays[0], arrays[1], arrays[2], sizes[0], (float)scalars[0]);
}
int64_t axpy_scratch_bytes(const int64_t *sizes)
{
    (void)sizes;
    return 0;
}

void total(const float *const *a, float *c, int64_t n, int64_t count)
{
    for (int64_t j = 0; j < count; j++)
        for (int64_t i = 0; i < n; i++)
            c[i] += a[j][i];
}
void total_invoke(void *const *arrays, const int64_t *sizes, const double *scalars, void *scratch)
{
    (void)scalars;
    float *sums = scratch;
    for (int64_t i = 0; i < sizes[0]; i++)
        sums[i] = ((float *)arrays[1])[i];
    total(arrays[0], sums, sizes[0], sizes[1]);
    for (int64_t i = 0; i < sizes[0]; i++)
        ((float *)arrays[1])[i] = sums[i];
}
int64_t total_scratch_bytes(const int64_t *sizes)
{
    return 4 * sizes[0];
}
