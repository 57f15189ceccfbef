/* Workers, their credits, and the batches that are with them.
 *
 * A worker has a few credits: batches that may be with it at once (two: one runs, one waits behind
 * it, so that the device never idles for a message). Batch ids have a generation: a DONE that comes
 * twice, or from an earlier life, matches nothing. Pure; memory is fixed at creation; one thread.
 */
#ifndef SCHEDULER_WORKERS_H
#define SCHEDULER_WORKERS_H

#include "scheduler/queue.h"

#include <stdbool.h>
#include <stdint.h>

#define SD_MAX_CREDITS 8u

struct sd_batch {
    uint64_t id; /* generation << 32 | slot + 1; 0: free */
    uint32_t generation;
    uint32_t worker;
    uint32_t rows;
    uint32_t n_items;
    bool alone; /* a suspect: nothing else may be with the worker */
    uint64_t dispatched_ns;
    uint64_t predicted_ns; /* high guess at dispatch */
    struct sd_model *model;
    struct sd_bucket *bucket;
    struct sd_request *items[CM_MAX_BATCH_ITEMS];
};

struct sd_worker {
    bool attached;
    bool reserved; /* kept free for a suspect; decided anew by every pump */
    bool hung;     /* reported, and waiting to be detached */
    uint64_t instance;
    uint64_t last_done_ns; /* 0: none yet */
    uint32_t in_flight;
    uint32_t rows;                            /* in flight */
    struct sd_batch *batches[SD_MAX_CREDITS]; /* oldest first */
};

struct sd_workers {
    uint32_t credits;
    uint32_t next_generation;
    struct sd_worker items[SD_MAX_WORKERS];
    uint64_t attached; /* bit i: worker i is here */
    uint64_t free;     /* bit i: worker i has a credit for an ordinary batch */
    uint32_t in_flight;
    struct sd_batch *batches; /* SD_MAX_WORKERS * credits */
};

/* epoch: differs between scheduler lives, so that batch ids do. credits: 1..SD_MAX_CREDITS. */
CM_MUST_CHECK enum cm_err sd_workers_init(struct sd_workers *workers, uint32_t credits,
                                          uint32_t epoch);
void sd_workers_fini(struct sd_workers *workers);

void sd_workers_attach(struct sd_workers *workers, uint32_t worker, uint64_t instance);
/* The worker must have no batches left. */
void sd_workers_detach(struct sd_workers *workers, uint32_t worker);

/* SD_MAX_WORKERS if none of this instance is attached. */
uint32_t sd_workers_find(const struct sd_workers *workers, uint64_t instance);

/* The least loaded of the workers in mask: fewest batches, then fewest rows, then lowest index.
 * SD_MAX_WORKERS if mask is empty. */
uint32_t sd_workers_choose(const struct sd_workers *workers, uint64_t mask);

/* Keeps a worker free for a suspect, or ends all such reservations. */
void sd_workers_reserve(struct sd_workers *workers, uint32_t worker);
void sd_workers_unreserve_all(struct sd_workers *workers);

/* A new batch with this worker, which has a credit; the caller fills it. */
struct sd_batch *sd_batch_begin(struct sd_workers *workers, uint32_t worker, bool alone);
/* NULL if no such batch is with this worker. */
struct sd_batch *sd_batch_find(const struct sd_workers *workers, uint32_t worker, uint64_t id);
/* Frees the slot and gives the credit back. */
void sd_batch_end(struct sd_workers *workers, struct sd_batch *batch);

/* When the worker began with its oldest batch, as far as can be seen from here. */
uint64_t sd_batch_began_ns(const struct sd_workers *workers, const struct sd_batch *batch);

#endif
