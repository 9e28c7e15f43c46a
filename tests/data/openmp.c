/* An OpenMP runtime as kernels see one. Its teams are new threads; it says what it was asked, and a test
 * sets what it answers. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64 };

static int most = 2, inside, fewer;
static long late;                      /* nanoseconds for which a team keeps its caller waiting */
static int64_t regions, threads_asked; /* atomic; the latter of the last region */
static int64_t callers;                /* atomic: threads that have called */
static __thread int called;

struct member {
    void (*body)(void *);
    void *data;
};

static void *member(void *given)
{
    const struct member *const one = given;
    one->body(one->data);
    return NULL;
}

void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags);
int omp_get_max_threads(void);
int omp_in_parallel(void);
void fake_set(int of_most, int of_inside, int of_fewer, long of_late);
int64_t fake_told(int number);
void fake_signal(void (*kernel)(const float *, const float *, float *), const float *a, const float *b, float *c);
int64_t fake_fork(int64_t (*most_threads)(void), int64_t forks);

void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags)
{
    const struct timespec pause = {0, late};
    struct member one = {body, data};
    pthread_t made[MOST];
    const int others = fewer || threads > MOST ? 0 : (int)threads - 1;
    (void)flags;
    __atomic_fetch_add(&regions, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&threads_asked, threads, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&callers, !called, __ATOMIC_SEQ_CST);
    called = 1;
    for (int i = 0; i < others; i++)
        pthread_create(&made[i], NULL, member, &one);
    body(data);
    for (int i = 0; i < others; i++)
        pthread_join(made[i], NULL);
    if (late)
        nanosleep(&pause, NULL);
}

int omp_get_max_threads(void)
{
    return most;
}

int omp_in_parallel(void)
{
    return inside;
}

void fake_set(int of_most, int of_inside, int of_fewer, long of_late)
{
    most = of_most, inside = of_inside, fewer = of_fewer, late = of_late;
}

int64_t fake_told(int number)
{
    int64_t *const told[] = {&regions, &threads_asked, &callers};
    return __atomic_load_n(told[number], __ATOMIC_SEQ_CST);
}

static int64_t (*asked)(void);
static int stops; /* atomic */

static void *asks(void *unused)
{
    while (!__atomic_load_n(&stops, __ATOMIC_SEQ_CST))
        asked();
    return unused;
}

/* Forks while another thread asks how many threads there are, and returns how many children cannot ask. */
int64_t fake_fork(int64_t (*most_threads)(void), int64_t forks)
{
    int64_t failed = 0;
    int status = 0;
    pthread_t thread;
    asked = most_threads;
    pthread_create(&thread, NULL, asks, NULL);
    for (int64_t i = 0; i < forks && !failed; i++) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(5);
            asked();
            _exit(0);
        }
        failed += waitpid(child, &status, 0) != child || status != 0;
    }
    __atomic_store_n(&stops, 1, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    return failed;
}

static void (*handled)(const float *, const float *, float *);
static const float *handled_a, *handled_b;
static float *handled_c;

static void handler(int signal)
{
    (void)signal;
    handled(handled_a, handled_b, handled_c);
}

/* Calls a kernel in a handler of a signal. */
void fake_signal(void (*kernel)(const float *, const float *, float *), const float *a, const float *b, float *c)
{
    struct sigaction action = {.sa_handler = handler}, before;
    handled = kernel, handled_a = a, handled_b = b, handled_c = c;
    sigaction(SIGUSR1, &action, &before);
    raise(SIGUSR1);
    sigaction(SIGUSR1, &before, NULL);
}
