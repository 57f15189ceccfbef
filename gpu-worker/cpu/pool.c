/* Fork-join pool: one job at a time, threads wait on a futex word.
 *
 * The caller thread owns the pool and publishes a job by advancing `epoch` (release); workers see
 * it (acquire), run their share and count down `pending` (release), which the caller awaits
 * (acquire). Whoever sleeps says so first (seq_cst) and the kernel compares the word again, so no
 * wake-up is lost:
 *
 *   E: epoch advances, then sleepers is read    pairs with  S: sleepers counts up, then epoch is
 *                                                              compared by FUTEX_WAIT
 *   P: pending reaches 0, then waiting is read  pairs with  W: waiting is set, then pending is
 *                                                              compared by FUTEX_WAIT */
#include "gpu-worker/cpu/pool.h"

#include "common/check.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* How long an idle thread spins inside a plan run, and the caller at a join. Long enough for the
 * serial stretches between two jobs, short enough not to starve a neighbour for a time slice. */
#define SPIN_NS 100000

struct cpu_pool {
    unsigned threads; /* with the caller; constant */

    /* The job. Written by the caller before epoch advances, constant until pending is 0. */
    cpu_part_fn *fn;
    void *context;
    size_t n_parts;
    bool quit;

    alignas(64) _Atomic uint32_t epoch;    /* written by the caller */
    _Atomic uint32_t busy;                 /* 1 between begin and end; written by the caller */
    alignas(64) _Atomic uint32_t sleepers; /* workers that sleep or are about to */
    alignas(64) _Atomic uint32_t pending;  /* workers that have not finished the job */
    _Atomic uint32_t waiting;              /* 1 while the caller sleeps at the join */

    struct worker {
        struct cpu_pool *pool;
        pthread_t thread;
        unsigned index;
    } workers[]; /* threads - 1 */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    /* Any return is fine: the caller looks at the word again. */
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Spins until *word differs from seen; false after SPIN_NS, or where while_busy has become 0. */
static bool spin_until_changed(_Atomic uint32_t *word, uint32_t seen, _Atomic uint32_t *while_busy)
{
    uint64_t end = now_ns() + SPIN_NS;
    do {
        for (unsigned i = 0; i < 64; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != seen)
                return true;
            __builtin_ia32_pause();
        }
        if (while_busy && !atomic_load_explicit(while_busy, memory_order_relaxed))
            return false;
    } while (now_ns() < end);
    return false;
}

static void run_share(struct cpu_pool *pool, unsigned thread)
{
    size_t begin, end;
    cpu_pool_share(pool->n_parts, 1, pool->threads, thread, &begin, &end);
    for (size_t part = begin; part < end; part++)
        pool->fn(pool->context, part, thread);
}

/* Returns when epoch is no longer seen. */
static void await_epoch(struct cpu_pool *pool, uint32_t seen)
{
    if (atomic_load_explicit(&pool->busy, memory_order_relaxed) &&
        spin_until_changed(&pool->epoch, seen, &pool->busy))
        return;
    atomic_fetch_add(&pool->sleepers, 1); /* S */
    while (atomic_load(&pool->epoch) == seen)
        futex_wait(&pool->epoch, seen);
    atomic_fetch_sub(&pool->sleepers, 1);
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    struct cpu_pool *pool = worker->pool;
    uint32_t seen = 0;
    for (;;) {
        await_epoch(pool, seen);
        seen++; /* the caller joins every job, so a worker is never more than one behind */
        if (pool->quit)
            return NULL;
        run_share(pool, worker->index);
        if (atomic_fetch_sub(&pool->pending, 1) == 1 && atomic_load(&pool->waiting)) /* P */
            futex_wake_all(&pool->pending);
    }
}

static void publish(struct cpu_pool *pool)
{
    atomic_store_explicit(&pool->pending, pool->threads - 1, memory_order_relaxed);
    atomic_fetch_add(&pool->epoch, 1); /* E */
    if (atomic_load(&pool->sleepers) > 0)
        futex_wake_all(&pool->epoch);
}

static void join(struct cpu_pool *pool)
{
    uint64_t end = now_ns() + SPIN_NS;
    do {
        for (unsigned i = 0; i < 64; i++) {
            if (atomic_load_explicit(&pool->pending, memory_order_acquire) == 0)
                return;
            __builtin_ia32_pause();
        }
    } while (now_ns() < end);
    atomic_store(&pool->waiting, 1); /* W */
    for (;;) {
        uint32_t left = atomic_load(&pool->pending);
        if (left == 0)
            break;
        futex_wait(&pool->pending, left);
    }
    atomic_store(&pool->waiting, 0);
}

static void stop_workers(struct cpu_pool *pool, unsigned started)
{
    pool->quit = true;
    atomic_fetch_add(&pool->epoch, 1);
    futex_wake_all(&pool->epoch);
    for (unsigned i = 0; i < started; i++)
        pthread_join(pool->workers[i].thread, NULL);
}

enum cm_err cpu_pool_create(unsigned threads, struct cpu_pool **ret_pool)
{
    if (threads == 0)
        threads = 1;
    if (threads > CPU_POOL_MAX_THREADS)
        return CM_LIMIT;
    size_t size = sizeof(struct cpu_pool) + (threads - 1) * sizeof(struct worker);
    size = (size + alignof(struct cpu_pool) - 1) & ~(alignof(struct cpu_pool) - 1);
    struct cpu_pool *pool = aligned_alloc(alignof(struct cpu_pool), size);
    if (!pool)
        return CM_NOMEM;
    *pool = (struct cpu_pool){.threads = threads};
    for (unsigned i = 0; i + 1 < threads; i++) {
        struct worker *worker = &pool->workers[i];
        *worker = (struct worker){.pool = pool, .index = i + 1};
        int error = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (error) {
            stop_workers(pool, i);
            free(pool);
            return cm_err_from_errno(error);
        }
    }
    *ret_pool = pool;
    return CM_OK;
}

void cpu_pool_destroy(struct cpu_pool *pool)
{
    if (!pool)
        return;
    stop_workers(pool, pool->threads - 1);
    free(pool);
}

unsigned cpu_pool_threads(const struct cpu_pool *pool)
{
    return pool ? pool->threads : 1;
}

void cpu_pool_begin(struct cpu_pool *pool)
{
    if (pool)
        atomic_store_explicit(&pool->busy, 1, memory_order_relaxed);
}

void cpu_pool_end(struct cpu_pool *pool)
{
    if (pool)
        atomic_store_explicit(&pool->busy, 0, memory_order_relaxed);
}

void cpu_pool_run(struct cpu_pool *pool, cpu_part_fn *fn, void *context, size_t n_parts)
{
    if (!pool || pool->threads == 1 || n_parts <= 1) {
        for (size_t part = 0; part < n_parts; part++)
            fn(context, part, 0);
        return;
    }
    pool->fn = fn;
    pool->context = context;
    pool->n_parts = n_parts;
    publish(pool);
    run_share(pool, 0);
    join(pool);
}

void cpu_pool_share(size_t count, size_t unit, size_t parts, size_t part, size_t *ret_begin,
                    size_t *ret_end)
{
    size_t units = count / unit + (count % unit != 0);
    size_t each = units / parts, more = units % parts;
    size_t begin = part * each + (part < more ? part : more);
    size_t end = begin + each + (part < more);
    *ret_begin = begin * unit < count ? begin * unit : count;
    *ret_end = end * unit < count ? end * unit : count;
}
