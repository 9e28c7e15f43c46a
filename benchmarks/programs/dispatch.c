/* What a call by way of a library's dispatch takes beyond a call of the target's own function.
 *
 * Linked with the library "timed", whose kernel "tiny" is one product of two numbers. Prints the
 * nanoseconds of one, of the other, and of the difference: medians over rounds, taken in turns. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "timed.h"

void timed_tiny_scalar(const float *a, const float *b, float *c);

enum { ROUNDS = 101, CALLS = 200000 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int ascending(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(double *numbers)
{
    qsort(numbers, ROUNDS, sizeof *numbers, ascending);
    return numbers[ROUNDS / 2];
}

#define TIMED(call) \
    do { \
        const double begun = now(); \
        for (int i = 0; i < CALLS; i++) { \
            call; \
            __asm__ volatile("" ::: "memory"); \
        } \
        took = (now() - begun) / CALLS; \
    } while (0)

int main(void)
{
    static double direct[ROUNDS], dispatched[ROUNDS], apart[ROUNDS];
    float a[1] = {2}, b[1] = {3}, c[1] = {0};
    double took;
    if (timed_use("scalar") != TIMED_OK)
        return 1;
    for (int round = 0; round < ROUNDS; round++) {
        TIMED(timed_tiny_scalar(a, b, c));
        direct[round] = took;
        TIMED(timed_tiny(a, b, c));
        dispatched[round] = took;
        apart[round] = took - direct[round];
    }
    printf("%.3f %.3f %.3f\n", median(direct), median(dispatched), median(apart));
    return c[0] != 6;
}
