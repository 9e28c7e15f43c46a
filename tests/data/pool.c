/* A program whose own threads run the parallel loops of a library, beside the library's threads. */
#include <lib.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 3, M = 200, TIMES = 20 };

/* One loop at a time: each thread takes tasks until none is left. */
static struct {
    lib_thread_task *task;
    void *context;
    int64_t tasks, next;
    int64_t loops, ran, wrong; /* how many loops and tasks there were, and workers out of range */
} pool;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *work(void *number)
{
    for (;;) {
        pthread_mutex_lock(&lock);
        const int64_t task = pool.next++;
        pool.ran += task < pool.tasks;
        pool.wrong += pool.tasks > THREADS;
        pthread_mutex_unlock(&lock);
        if (task >= pool.tasks)
            return NULL;
        pool.task(pool.context, task, *(const int64_t *)number);
    }
}

static void run(void *given, lib_thread_task *task, void *context, int64_t tasks)
{
    static const int64_t numbers[THREADS] = {0, 1, 2};
    pthread_t threads[THREADS];
    *(int *)given += 1;
    pool.task = task, pool.context = context, pool.tasks = tasks, pool.next = 0;
    pool.loops++;
    for (int i = 1; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)&numbers[i]))
            abort();
    work((void *)&numbers[0]);
    for (int i = 1; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* Tasks need not run on several threads. */
static void in_order(void *given, lib_thread_task *task, void *context, int64_t tasks)
{
    for (int64_t i = tasks; i-- > 0;)
        task(context, i, 0);
    *(int *)given += 1;
}

static float a[M * M], b[M * M], c[M * M], expected[M * M];
static void *scratch; /* for all threads of lib_packed; a page behind it must not be touched */

static int right(void)
{
    memset(c, 0, sizeof c);
    lib_big(a, b, c);
    const int whole = memcmp(c, expected, sizeof c) == 0;
    memset(c, 0, sizeof c);
    lib_packed(a, b, c, scratch);
    return whole && memcmp(c, expected, sizeof c) == 0;
}

static void *guarded(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    char *const first = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (first == MAP_FAILED || mprotect(first + whole, page, PROT_NONE))
        abort();
    return first + whole - bytes;
}

static int handled;

static void handler(int signal)
{
    (void)signal;
    handled = right();
}

int main(void)
{
    struct sigaction action = {.sa_handler = handler};
    int calls = 0, ordered = 0, good = lib_packed_scratch_bytes() == THREADS * 40000;
    scratch = guarded((size_t)lib_packed_scratch_bytes());
    for (int i = 0; i < M * M; i++)
        a[i] = (float)(i % 7 - 3), b[i] = (float)(i % 5 - 2);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < M; j++)
            for (int k = 0; k < M; k++)
                expected[i * M + j] += a[i * M + k] * b[k * M + j];
    for (int i = 0; i < TIMES; i++)
        good &= right();
    lib_use_threads(run, &calls, THREADS);
    const int64_t most = lib_threads();
    for (int i = 0; i < TIMES; i++)
        good &= right();
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);  /* where it may not wait, the kernel does not use the pool */
    good &= handled;
    lib_use_threads(in_order, &ordered, 2);
    good &= right();
    lib_use_threads(NULL, NULL, 1);
    const int64_t one = lib_threads();
    good &= right();
    lib_use_threads(NULL, NULL, 0);
    good &= right();
    printf("right %d most %d loops %d tasks %d wrong %d ordered %d one %d\n", good, (int)most,
        calls, (int)pool.ran, (int)pool.wrong, ordered, (int)one);
    return !good;
}
