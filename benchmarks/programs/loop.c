/* The one loop that times every kernel and every peer.
 *
 * All are called through the same pointer with six pointer arguments: a kernel `(a, b, c)`
 * ignores the last ones (both System V x86-64 and AAPCS64 allow it), an adapter finds its sizes
 * in the fourth, and a function that wants its state first is given it first. What is to be done
 * before a quantum, such as configuring a matrix unit that others use in their turns, is not timed.
 */
#include <stdint.h>
#include <time.h>

enum { POINTERS = 6 };

typedef void (*function)(const void *, const void *, const void *, const void *, const void *,
                         const void *);

struct call {
    function function;
    const void *operands[POINTERS];
    int64_t calls; /* in one quantum */
    void (*begin)(void);
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void call(const struct call *c, int64_t calls)
{
    function f = c->function;
    const void *p = c->operands[0], *q = c->operands[1], *r = c->operands[2];
    const void *s = c->operands[3], *t = c->operands[4], *u = c->operands[5];
    for (int64_t i = 0; i < calls; i++)
        f(p, q, r, s, t, u);
}

void bench_call(const struct call *c, int64_t calls)
{
    if (c->begin)
        c->begin();
    call(c, calls);
}

/* Some generated code returns with the upper halves of the registers in use, which slows SSE code
 * that is called next; it must not pay for its neighbour in the round. */
static void clear_upper_halves(void)
{
#ifdef __x86_64__
    __asm__ volatile("vzeroupper" ::: "memory");
#endif
}

/* Seconds for `calls` calls, after a sixteenth of them untimed: caches and predictors are warm. */
double bench_time(const struct call *c, int64_t calls)
{
    clear_upper_halves();
    bench_call(c, calls / 16 + 1);
    double start = now();
    call(c, calls);
    return now() - start;
}

/* seconds[round][entry]: per call, the least of `repeats` quanta. Entries take turns quantum by
 * quantum, and each repeat starts at another one, so that no entry always follows the same. */
void bench_rounds(const struct call *calls, int64_t entries, int64_t rounds, int64_t repeats,
                  double *seconds)
{
    for (int64_t round = 0; round < rounds; round++) {
        double *row = seconds + round * entries;
        for (int64_t e = 0; e < entries; e++)
            row[e] = 1e30;
        for (int64_t repeat = 0; repeat < repeats; repeat++) {
            for (int64_t i = 0; i < entries; i++) {
                int64_t e = (i + repeat + round) % entries;
                double t = bench_time(&calls[e], calls[e].calls) / (double)calls[e].calls;
                if (t < row[e])
                    row[e] = t;
            }
        }
    }
}
