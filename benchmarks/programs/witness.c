/* Two loops that tell whether another thread of the core is at work. Loads for which nothing waits take the
   core's load units, which its threads share; multiplications of registers leave those alone. */
#include <stdint.h>

typedef float vector __attribute__((vector_size(16)));

enum { VECTORS = 256, TRIPS = 16, CHAINS = 8 };

/* Reads VECTORS * 16 bytes again and again. */
void witness_loads(const vector *x)
{
    for (int trip = 0; trip < TRIPS; trip++)
        for (int i = 0; i < VECTORS; i += CHAINS) {
            vector v[CHAINS];
#pragma GCC unroll 8
            for (int j = 0; j < CHAINS; j++)
                v[j] = x[i + j];
#pragma GCC unroll 8
            for (int j = 0; j < CHAINS; j++)
                __asm__ volatile("" : : "x"(v[j]));
        }
}

/* As many multiplications, in chains side by side. */
void witness_products(const vector *x)
{
    vector v[CHAINS], factor = x[0];
#pragma GCC unroll 8
    for (int j = 0; j < CHAINS; j++)
        v[j] = factor;
    for (int i = 0; i < TRIPS * VECTORS; i += CHAINS) {
#pragma GCC unroll 8
        for (int j = 0; j < CHAINS; j++) {
            v[j] *= factor;
            __asm__ volatile("" : "+x"(v[j]));
        }
    }
}
