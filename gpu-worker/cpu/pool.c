/* Fork-join pool: one job at a time, threads wait on a futex word.
 *
 * The caller thread owns the pool. A job's parts are dealt out as one share per thread, and a share
 * is a count of parts that nobody has taken yet. Whoever takes a part counts it down (acquire) and
 * may then read the job, which stays as it is until all its parts are done: the caller waits until
 * `pending` is 0 (acquire), and whoever finishes parts counts it down (release). So it does not
 * matter which job a thread was woken for, nor whether it comes at all: what a late or suspended
 * thread has not taken, the others take, and the caller never waits for a part that nobody has
 * begun.
 *
 * Whoever sleeps says so first (seq_cst) and the kernel compares the word again, so no wake-up is
 * lost:
 *
 *   E: epoch advances, then asleep is read      pairs with  S: asleep is set, then epoch is
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
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* How long an idle thread spins inside a plan run, and the caller at a join. Long enough for the
 * serial stretches between two jobs, short enough not to starve a neighbour for a time slice. */
#define SPIN_NS 100000

/* Sleepers are woken once the jobs of a bracket have taken about this long. Waking takes as long;
 * what is shorter is done before they come. */
#define WAKE_NS 30000.0

struct worker {
    struct cpu_pool *pool;
    pthread_t thread;
    unsigned index;
};

struct cpu_pool {
    unsigned threads; /* with the caller; constant */
    double spent_ns;  /* jobs since begin; the caller's */

    /* The job. Written by the caller before it deals out the shares, constant until pending is 0.
     */
    cpu_part_fn *fn;
    void *context;
    size_t n_parts;

    alignas(64) _Atomic uint32_t epoch;   /* counts jobs; written by the caller */
    _Atomic uint32_t busy;                /* 1 between begin and end; written by the caller */
    _Atomic uint32_t quit;                /* written by the caller before epoch advances */
    alignas(64) _Atomic uint32_t asleep;  /* 1 if a worker may sleep */
    alignas(64) _Atomic uint32_t pending; /* parts that are not done */
    _Atomic uint32_t waiting;             /* 1 while the caller sleeps at the join */

    struct share {
        alignas(64) _Atomic size_t left; /* parts that nobody has taken */
        struct worker worker;            /* unused in share 0, the caller's */
    } shares[];                          /* threads */
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

/* Takes the next part of a thread's share; false if there is none. */
static bool take_part(struct cpu_pool *pool, unsigned owner, size_t *ret_part)
{
    _Atomic size_t *left = &pool->shares[owner].left;
    size_t seen = atomic_load_explicit(left, memory_order_relaxed);
    do {
        if (seen == 0)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(left, &seen, seen - 1, memory_order_acquire,
                                                    memory_order_relaxed));
    size_t begin, end;
    cpu_pool_share(pool->n_parts, 1, pool->threads, owner, &begin, &end);
    *ret_part = end - seen;
    return true;
}

/* Runs the thread's own share, then what is left of the others'. */
static void run_parts(struct cpu_pool *pool, unsigned thread)
{
    uint32_t done = 0;
    size_t part;
    for (unsigned i = 0; i < pool->threads; i++)
        while (take_part(pool, (thread + i) % pool->threads, &part)) {
            pool->fn(pool->context, part, thread);
            done++;
        }
    if (done > 0 && atomic_fetch_sub(&pool->pending, done) == done && thread > 0 &&
        atomic_load(&pool->waiting)) /* P */
        futex_wake_all(&pool->pending);
}

/* Returns when epoch is no longer seen. */
static void await_epoch(struct cpu_pool *pool, uint32_t seen)
{
    if (atomic_load_explicit(&pool->busy, memory_order_relaxed) &&
        spin_until_changed(&pool->epoch, seen, &pool->busy))
        return;
    while (atomic_load(&pool->epoch) == seen) {
        atomic_store(&pool->asleep, 1); /* S */
        futex_wait(&pool->epoch, seen);
    }
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    struct cpu_pool *pool = worker->pool;
    uint32_t seen = 0;
    for (;;) {
        await_epoch(pool, seen);
        seen = atomic_load_explicit(&pool->epoch, memory_order_acquire);
        if (atomic_load_explicit(&pool->quit, memory_order_relaxed))
            return NULL;
        run_parts(pool, worker->index);
    }
}

static void publish(struct cpu_pool *pool, bool wake)
{
    atomic_store_explicit(&pool->pending, (uint32_t)pool->n_parts, memory_order_relaxed);
    for (unsigned t = 0; t < pool->threads; t++) {
        size_t begin, end;
        cpu_pool_share(pool->n_parts, 1, pool->threads, t, &begin, &end);
        atomic_store_explicit(&pool->shares[t].left, end - begin, memory_order_release);
    }
    atomic_fetch_add(&pool->epoch, 1); /* E */
    if (wake && atomic_load(&pool->asleep) && atomic_exchange(&pool->asleep, 0))
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
    atomic_store_explicit(&pool->quit, 1, memory_order_relaxed);
    atomic_fetch_add(&pool->epoch, 1);
    futex_wake_all(&pool->epoch);
    for (unsigned i = 0; i < started; i++)
        pthread_join(pool->shares[i + 1].worker.thread, NULL);
}

enum cm_err cpu_pool_create(unsigned threads, struct cpu_pool **ret_pool)
{
    if (threads == 0)
        threads = 1;
    if (threads > CPU_POOL_MAX_THREADS)
        return CM_LIMIT;
    size_t size = sizeof(struct cpu_pool) + threads * sizeof(struct share);
    struct cpu_pool *pool = aligned_alloc(alignof(struct cpu_pool), size);
    if (!pool)
        return CM_NOMEM;
    memset(pool, 0, size);
    pool->threads = threads;
    for (unsigned i = 1; i < threads; i++) {
        struct worker *worker = &pool->shares[i].worker;
        *worker = (struct worker){.pool = pool, .index = i};
        int error = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (error) {
            stop_workers(pool, i - 1);
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
    if (!pool)
        return;
    pool->spent_ns = 0;
    atomic_store_explicit(&pool->busy, 1, memory_order_relaxed);
}

void cpu_pool_end(struct cpu_pool *pool)
{
    if (pool)
        atomic_store_explicit(&pool->busy, 0, memory_order_relaxed);
}

void cpu_pool_run(struct cpu_pool *pool, cpu_part_fn *fn, void *context, size_t n_parts,
                  double about_ns)
{
    if (!pool || pool->threads == 1 || n_parts <= 1) {
        for (size_t part = 0; part < n_parts; part++)
            fn(context, part, 0);
        return;
    }
    CM_ASSERT(n_parts <= UINT32_MAX);
    pool->fn = fn;
    pool->context = context;
    pool->n_parts = n_parts;
    pool->spent_ns += about_ns;
    publish(pool, pool->spent_ns >= WAKE_NS);
    run_parts(pool, 0);
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
