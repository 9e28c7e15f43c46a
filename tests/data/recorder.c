/* Stands in for a kernel: says how often it was called and with what. */
#include <stdint.h>

int64_t recorder_calls, recorder_arrays, recorder_slots, recorder_scratch;
int64_t recorder_pointers[64], recorder_sizes[64];
double recorder_scalars[2];

void recorder_invoke(void *const *arrays, const int64_t *sizes, const double *scalars, void *scratch);
int64_t recorder_scratch_bytes(const int64_t *sizes);

void recorder_invoke(void *const *arrays, const int64_t *sizes, const double *scalars, void *scratch)
{
    recorder_scratch = (int64_t)scratch;
    recorder_calls++;
    for (int64_t i = 0; i < recorder_arrays; i++)
        recorder_pointers[i] = (int64_t)arrays[i];
    for (int64_t i = 0; i < recorder_slots; i++)
        recorder_sizes[i] = sizes[i];
    recorder_scalars[0] = scalars[0];
    recorder_scalars[1] = scalars[1];
}

int64_t recorder_scratch_bytes(const int64_t *sizes)
{
    (void)sizes;
    return recorder_scratch;
}
