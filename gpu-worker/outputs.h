/* Who still needs which outputs: the slabs of this worker's leases and the holds on them.
 *
 * A batch writes its outputs into one slab. Each request of the batch has a hold on it, named in
 * DONE and given back by RELEASE; the slab is free when its last hold is gone. After a scheduler's
 * death the holds made under it are kept until the gateway has said, through the new scheduler,
 * which ones it really has (HELD, RESUMED), because a DONE may have died with the old scheduler.
 *
 *   hold:  FREE -> ACTIVE -----------------------> FREE     release, drop
 *                    | the scheduler's death
 *                    v
 *                 LIMBO -> (HELD) -> CLAIMED ----> FREE     release, drop; ACTIVE at RESUMED
 *                    `-------------------------->  FREE     RESUMED without HELD
 *
 * Pure bookkeeping: it never touches the memory. One thread (the device thread) owns it. */
#ifndef GPU_WORKER_OUTPUTS_H
#define GPU_WORKER_OUTPUTS_H

#include "common/err.h"
#include "common/record.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wk_outputs;

struct wk_outputs_options {
    uint64_t
        worker; /* this process's instance, for references; set later by wk_outputs_set_worker */
    uint32_t max_holds;   /* requests whose outputs may be held at a time */
    uint32_t max_regions; /* leases */
};

CM_MUST_CHECK enum cm_err wk_outputs_create(const struct wk_outputs_options *options,
                                            struct wk_outputs **ret_outputs);
void wk_outputs_destroy(struct wk_outputs *outputs);
void wk_outputs_set_worker(struct wk_outputs *outputs, uint64_t worker);

/* A lease for slabs. bytes: a power of two. CM_FULL at max_regions. */
CM_MUST_CHECK enum cm_err wk_outputs_add_region(struct wk_outputs *outputs, uint64_t region,
                                                uint32_t generation, size_t bytes,
                                                unsigned char *base);
/* Takes out a region without slabs, never the last one: for giving idle memory back. False if there
 * is none. */
bool wk_outputs_take_idle_region(struct wk_outputs *outputs, uint64_t *ret_region);
size_t wk_outputs_region_count(const struct wk_outputs *outputs);

struct wk_slab {
    uint32_t index; /* of the slab, for wk_outputs_hold and wk_outputs_abandon */
    uint64_t region;
    uint32_t generation;
    size_t offset; /* WK_ALIGN aligned */
    unsigned char *base;
};

/* Room for bytes (at least 1). CM_FULL: nothing is free now, a RELEASE may help; CM_LIMIT: no
 * region is large enough. */
CM_MUST_CHECK enum cm_err wk_outputs_reserve(struct wk_outputs *outputs, size_t bytes,
                                             struct wk_slab *ret_slab);
/* Adds a hold of gateway on the slab. CM_FULL at max_holds. */
CM_MUST_CHECK enum cm_err wk_outputs_hold(struct wk_outputs *outputs, const struct wk_slab *slab,
                                          uint64_t gateway, struct cm_slab_ref *ret_ref);
/* Frees a slab and whatever holds it has: the batch failed. */
void wk_outputs_abandon(struct wk_outputs *outputs, const struct wk_slab *slab);

/* False, and counted, for a stale or foreign reference. */
bool wk_outputs_release(struct wk_outputs *outputs, struct cm_slab_ref ref);
/* Every hold of that gateway. Returns how many. */
size_t wk_outputs_drop(struct wk_outputs *outputs, uint64_t gateway);

/* The scheduler has died: all holds go into limbo. */
void wk_outputs_limbo(struct wk_outputs *outputs);
bool wk_outputs_held(struct wk_outputs *outputs, struct cm_slab_ref ref);
/* gateway has named all that it holds. Instances only grow and a node has one gateway, so holds of
 * older gateways go too. Returns how many were freed. */
size_t wk_outputs_resumed(struct wk_outputs *outputs, uint64_t gateway);

struct wk_outputs_stats {
    size_t holds, slabs, bytes_used, bytes_total;
    uint64_t stale;
};
struct wk_outputs_stats wk_outputs_stats(const struct wk_outputs *outputs);

#endif
