/* The fork-join pool: every part exactly once, with and without the bracket, at once after a long
 * sleep, and by another thread where its own is held up. Run under the thread sanitizer too. Test
 * code. */
#include "common/check.h"
#include "gpu-worker/cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

struct job {
    unsigned counts[64]; /* by part; not atomic: the join must order everything */
    unsigned thread[64];
    pthread_t self[64];
};

static void part_fn(void *context, size_t part, unsigned thread)
{
    struct job *job = context;
    job->counts[part]++;
    job->thread[part] = thread;
    job->self[part] = pthread_self();
}

static void run_many(struct cpu_pool *pool, unsigned jobs)
{
    static struct job job;
    memset(&job, 0, sizeof(job));
    for (unsigned i = 0; i < jobs; i++) {
        cpu_pool_run(pool, part_fn, &job, 13, i % 3 ? 1e6 : 0);
        for (unsigned part = 0; part < 13; part++) {
            assert_int_equal(job.counts[part], i + 1);
            assert_in_range(job.thread[part], 0, cpu_pool_threads(pool) - 1);
            assert_int_equal(job.thread[part] == 0,
                             pthread_equal(job.self[part], pthread_self()) != 0);
        }
    }
}

static void test_every_part_once(void **state)
{
    (void)state;
    for (unsigned threads = 0; threads <= 5; threads++) {
        struct cpu_pool *pool = NULL;
        assert_int_equal(cpu_pool_create(threads, &pool), CM_OK);
        assert_int_equal(cpu_pool_threads(pool), threads ? threads : 1);
        run_many(pool, 200); /* no bracket: wakes sleepers */
        for (unsigned round = 0; round < 20; round++) {
            cpu_pool_begin(pool);
            run_many(pool, 50);
            cpu_pool_end(pool);
        }
        cpu_pool_destroy(pool);
    }
}

static void test_without_pool(void **state)
{
    (void)state;
    assert_int_equal(cpu_pool_threads(NULL), 1);
    cpu_pool_begin(NULL);
    run_many(NULL, 3);
    cpu_pool_end(NULL);
    cpu_pool_destroy(NULL);
    struct cpu_pool *pool = NULL;
    assert_int_equal(cpu_pool_create(CPU_POOL_MAX_THREADS + 1, &pool), CM_LIMIT);
    assert_null(pool);
}

static void no_part(void *context, size_t part, unsigned thread)
{
    (void)context, (void)part, (void)thread;
    fail_msg("a job of no parts ran one");
}

static void test_few_parts(void **state)
{
    (void)state;
    struct cpu_pool *pool = NULL;
    assert_int_equal(cpu_pool_create(4, &pool), CM_OK);
    cpu_pool_run(pool, no_part, NULL, 0, 1e6);
    struct job job = {0};
    cpu_pool_run(pool, part_fn, &job, 2, 1e6); /* fewer parts than threads */
    assert_int_equal(job.counts[0] + job.counts[1], 2);
    cpu_pool_destroy(pool);
}

/* Parts that take long put the caller to sleep at the join, and gaps between jobs put the workers
 * to sleep inside the bracket: both ways of waking must work. */
static void slow_part(void *context, size_t part, unsigned thread)
{
    (void)thread;
    struct timespec until, now;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += part == 0 ? 0 : 400000;
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while (now.tv_sec < until.tv_sec ||
           (now.tv_sec == until.tv_sec && now.tv_nsec < until.tv_nsec));
    part_fn(context, part, thread);
}

static void test_sleepers_wake(void **state)
{
    (void)state;
    struct cpu_pool *pool = NULL;
    struct job job = {0};
    assert_int_equal(cpu_pool_create(3, &pool), CM_OK);
    cpu_pool_begin(pool);
    for (unsigned i = 0; i < 100; i++) {
        cpu_pool_run(pool, slow_part, &job, 3, 1e6);
        struct job gap = {0};
        slow_part(&gap, 1, 0);
    }
    cpu_pool_end(pool);
    for (unsigned part = 0; part < 3; part++)
        assert_int_equal(job.counts[part], 100);
    cpu_pool_destroy(pool);
}

/* Shares are parts 0, 1 and 2, 3. A worker that has begun part 2 is held up until part 3 is done,
 * which only the caller can do then. */
struct held {
    struct job job;
    _Atomic unsigned last_done;
};

static void held_part(void *context, size_t part, unsigned thread)
{
    struct held *held = context;
    while (part == 2 && thread != 0 && !held->last_done)
        sched_yield();
    part_fn(&held->job, part, thread);
    if (part == 3)
        held->last_done = 1;
}

static void test_others_take_over(void **state)
{
    (void)state;
    struct cpu_pool *pool = NULL;
    assert_int_equal(cpu_pool_create(2, &pool), CM_OK);
    cpu_pool_begin(pool);
    for (unsigned i = 0; i < 1000; i++) {
        struct held held = {0};
        cpu_pool_run(pool, held_part, &held, 4, 1e6);
        for (unsigned part = 0; part < 4; part++)
            assert_int_equal(held.job.counts[part], 1);
    }
    cpu_pool_end(pool);
    cpu_pool_destroy(pool);
}

static void test_share(void **state)
{
    (void)state;
    for (size_t count = 0; count < 70; count++)
        for (size_t unit = 1; unit < 9; unit++)
            for (size_t parts = 1; parts < 9; parts++) {
                size_t at = 0, least = SIZE_MAX, most = 0;
                for (size_t part = 0; part < parts; part++) {
                    size_t begin, end;
                    cpu_pool_share(count, unit, parts, part, &begin, &end);
                    assert_int_equal(begin, at);
                    assert_true(end >= begin);
                    assert_true(end == count || end % unit == 0);
                    size_t units = (end - begin + unit - 1) / unit;
                    least = units < least ? units : least;
                    most = units > most ? units : most;
                    at = end;
                }
                assert_int_equal(at, count);
                assert_true(most - least <= 1);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_part_once),  cmocka_unit_test(test_without_pool),
        cmocka_unit_test(test_few_parts),        cmocka_unit_test(test_sleepers_wake),
        cmocka_unit_test(test_others_take_over), cmocka_unit_test(test_share),
    };
    return cmocka_run_group_tests_name("kernels_pool", tests, NULL, NULL);
}
