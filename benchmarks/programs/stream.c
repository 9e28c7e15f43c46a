/* Reads memory as fast as one thread can: loads for which nothing waits. */
#include <stdint.h>

typedef long long vector __attribute__((vector_size(32)));

enum { UNROLL = 8 };

/* Reads so many bytes, a multiple of 256, at a multiple of 32. */
void stream_read(const vector *x, int64_t bytes)
{
    for (const vector *end = x + bytes / (int64_t)sizeof *x; x < end; x += UNROLL) {
        vector v[UNROLL];
#pragma GCC unroll 8
        for (int j = 0; j < UNROLL; j++)
            v[j] = x[j];
#pragma GCC unroll 8
        for (int j = 0; j < UNROLL; j++)
            __asm__ volatile("" : : "x"(v[j]));
    }
}
