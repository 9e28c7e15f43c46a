/* A kernel that misbehaves as its first size tells it to; the array has as many bytes as its second. */
#include <stdint.h>
#include <stdlib.h>

void fault_invoke(void *const *arrays, const int64_t *sizes, const double *scalars, void *scratch);
int64_t fault_scratch_bytes(const int64_t *sizes);

int64_t fault_scratch_bytes(const int64_t *sizes)
{
    return sizes[0] == 7 ? 64 : 0;
}

void fault_invoke(void *const *arrays, const int64_t *sizes, const double *scalars, void *scratch)
{
    volatile char *data = arrays[0], *work = scratch;
    volatile int64_t forever = 1;
    (void)scalars;
    switch (sizes[0]) {
    case 0: break;
    case 1: (void)data[-1]; break;
    case 2: (void)data[sizes[1]]; break;
    case 3: data[-1] = 0; break;
    case 4: data[sizes[1]] = 0; break;
    case 5: abort();
    case 6: while (forever) {} break;
    case 7: work[64] = 1; break;
    case 8: __builtin_trap(); break;
    case 9: *(volatile char *)(intptr_t)(forever + 4095) = 0; break;
    case 10: exit(5);
    case 11: data[0] = 1; break;
    case 12: (void)data[sizes[1] + 32]; break;
    }
}
