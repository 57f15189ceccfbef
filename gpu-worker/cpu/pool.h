/* Fork-join pool of the CPU backend. A pool belongs to one caller thread; the others only run
 * parts.
 *
 * Between the jobs of one plan run (cpu_pool_begin .. cpu_pool_end) idle threads spin for a bounded
 * time, because a sleeping thread costs tens of microseconds per job to wake; outside they sleep.
 */
#ifndef GPU_WORKER_CPU_POOL_H
#define GPU_WORKER_CPU_POOL_H

#include "common/err.h"

#include <stddef.h>

#define CPU_POOL_MAX_THREADS 256

struct cpu_pool;

/* Runs part `part` of a job. thread is 0..threads-1 (0 is the caller of cpu_pool_run): the index of
 * the workspace to use. Must not call into the pool. */
typedef void cpu_part_fn(void *context, size_t part, unsigned thread);

/* threads counts the caller; 0 means 1. CM_LIMIT above CPU_POOL_MAX_THREADS, CM_NOMEM or CM_AGAIN
 * where threads cannot be started. */
CM_MUST_CHECK enum cm_err cpu_pool_create(unsigned threads, struct cpu_pool **ret_pool);
/* Joins the threads. No run may be in progress. NULL is allowed. */
void cpu_pool_destroy(struct cpu_pool *pool);

/* 1 for a NULL pool. */
unsigned cpu_pool_threads(const struct cpu_pool *pool);

/* Brackets the jobs of one plan run; without the bracket jobs still run, but idle threads sleep at
 * once. Never blocks. */
void cpu_pool_begin(struct cpu_pool *pool);
void cpu_pool_end(struct cpu_pool *pool);

/* Runs fn for parts 0..n_parts-1 and returns when all are done. Thread t is dealt the same parts
 * every time for the same n_parts (cpu_pool_share: contiguous, so that a core reads what it wrote
 * in the job before), but a thread that has done its share takes parts of others that have not come
 * to theirs. about_ns is how long the job takes on one thread, roughly: sleeping threads are woken
 * only once the jobs since cpu_pool_begin are worth it, and until then the caller does it all. A
 * plain loop in the caller if the pool has one thread or is NULL, or n_parts is 1. */
void cpu_pool_run(struct cpu_pool *pool, cpu_part_fn *fn, void *context, size_t n_parts,
                  double about_ns);

/* Share `part` of `parts` of the items 0..count-1, [*ret_begin, *ret_end). Shares differ by at most
 * one unit; unit > 1 keeps boundaries at multiples of it. */
void cpu_pool_share(size_t count, size_t unit, size_t parts, size_t part, size_t *ret_begin,
                    size_t *ret_end);

#endif
