/* Slabs and holds of a worker's outputs: see outputs.h. Device thread only. */
#include "gpu-worker/outputs.h"

#include "common/check.h"
#include "memmgr/buddy.h"

#include <stdlib.h>

#define MIN_BLOCK 256u /* of a slab; a multiple of the tensors' alignment */
#define NONE      UINT32_MAX

enum hold_state { HOLD_FREE, HOLD_ACTIVE, HOLD_LIMBO, HOLD_CLAIMED };

struct hold {
    uint64_t gateway;
    uint32_t slab;
    uint32_t generation; /* of this place; grows when the hold ends */
    uint32_t next;       /* free list */
    enum hold_state state;
};

struct slab {
    uint32_t region; /* index */
    uint32_t holds;
    uint32_t next; /* free list */
    bool used;
    size_t offset;
};

struct region {
    uint64_t id;
    uint32_t generation;
    size_t bytes;
    unsigned char *base;
    struct mm_buddy *buddy; /* NULL: place is free */
};

struct wk_outputs {
    uint64_t worker;
    struct hold *holds;
    struct slab *slabs; /* as many as holds: each slab in use has at least one */
    struct region *regions;
    uint32_t max_holds, max_regions;
    uint32_t free_hold, free_slab;
    size_t holds_used, slabs_used;
    uint64_t stale;
};

enum cm_err wk_outputs_create(const struct wk_outputs_options *options,
                              struct wk_outputs **ret_outputs)
{
    CM_ASSERT(options->max_holds > 0 && options->max_holds < NONE && options->max_regions > 0);
    struct wk_outputs *outputs = calloc(1, sizeof *outputs);
    if (!outputs)
        return CM_NOMEM;
    outputs->worker = options->worker;
    outputs->max_holds = options->max_holds;
    outputs->max_regions = options->max_regions;
    outputs->holds = calloc(options->max_holds, sizeof *outputs->holds);
    outputs->slabs = calloc(options->max_holds, sizeof *outputs->slabs);
    outputs->regions = calloc(options->max_regions, sizeof *outputs->regions);
    if (!outputs->holds || !outputs->slabs || !outputs->regions) {
        wk_outputs_destroy(outputs);
        return CM_NOMEM;
    }
    for (uint32_t i = 0; i < options->max_holds; i++) {
        uint32_t next = i + 1 < options->max_holds ? i + 1 : NONE;
        outputs->holds[i] = (struct hold){.generation = 1, .next = next};
        outputs->slabs[i] = (struct slab){.next = next};
    }
    *ret_outputs = outputs;
    return CM_OK;
}

void wk_outputs_destroy(struct wk_outputs *outputs)
{
    if (!outputs)
        return;
    for (uint32_t i = 0; outputs->regions && i < outputs->max_regions; i++)
        mm_buddy_destroy(outputs->regions[i].buddy);
    free(outputs->regions);
    free(outputs->slabs);
    free(outputs->holds);
    free(outputs);
}

void wk_outputs_set_worker(struct wk_outputs *outputs, uint64_t worker)
{
    outputs->worker = worker;
}

enum cm_err wk_outputs_add_region(struct wk_outputs *outputs, uint64_t region, uint32_t generation,
                                  size_t bytes, unsigned char *base)
{
    for (uint32_t i = 0; i < outputs->max_regions; i++) {
        struct region *place = &outputs->regions[i];
        if (place->buddy)
            continue;
        struct mm_buddy *buddy = NULL;
        enum cm_err err = mm_buddy_create(bytes, MIN_BLOCK, &buddy);
        if (err != CM_OK)
            return err;
        *place = (struct region){region, generation, bytes, base, buddy};
        return CM_OK;
    }
    return CM_FULL;
}

size_t wk_outputs_region_count(const struct wk_outputs *outputs)
{
    size_t count = 0;
    for (uint32_t i = 0; i < outputs->max_regions; i++)
        count += outputs->regions[i].buddy != NULL;
    return count;
}

bool wk_outputs_take_idle_region(struct wk_outputs *outputs, uint64_t *ret_region)
{
    if (wk_outputs_region_count(outputs) < 2)
        return false;
    for (uint32_t i = 0; i < outputs->max_regions; i++) {
        struct region *region = &outputs->regions[i];
        if (!region->buddy || mm_buddy_stats(region->buddy).blocks > 0)
            continue;
        *ret_region = region->id;
        mm_buddy_destroy(region->buddy);
        *region = (struct region){0};
        return true;
    }
    return false;
}

/* Takes a block in any region, first fit over the regions. */
static enum cm_err reserve_block(struct wk_outputs *outputs, size_t bytes, uint32_t *ret_region,
                                 size_t *ret_offset)
{
    enum cm_err result = CM_LIMIT;
    for (uint32_t i = 0; i < outputs->max_regions; i++) {
        struct region *region = &outputs->regions[i];
        if (!region->buddy)
            continue;
        enum cm_err err = mm_buddy_alloc(region->buddy, bytes, ret_offset);
        if (err == CM_OK) {
            *ret_region = i;
            return CM_OK;
        }
        if (err == CM_FULL)
            result = CM_FULL;
    }
    return result;
}

enum cm_err wk_outputs_reserve(struct wk_outputs *outputs, size_t bytes, struct wk_slab *ret_slab)
{
    if (outputs->free_slab == NONE)
        return CM_FULL;
    uint32_t region = 0;
    size_t offset = 0;
    enum cm_err err = reserve_block(outputs, bytes ? bytes : 1, &region, &offset);
    if (err != CM_OK)
        return err;
    uint32_t index = outputs->free_slab;
    struct slab *slab = &outputs->slabs[index];
    outputs->free_slab = slab->next;
    *slab = (struct slab){.region = region, .offset = offset, .used = true};
    outputs->slabs_used++;
    const struct region *place = &outputs->regions[region];
    *ret_slab = (struct wk_slab){index, place->id, place->generation, offset, place->base + offset};
    return CM_OK;
}

static void free_slab(struct wk_outputs *outputs, uint32_t index)
{
    struct slab *slab = &outputs->slabs[index];
    CM_ASSERT(slab->used && slab->holds == 0);
    mm_buddy_free(outputs->regions[slab->region].buddy, slab->offset);
    *slab = (struct slab){.next = outputs->free_slab};
    outputs->free_slab = index;
    outputs->slabs_used--;
}

/* Ends a hold without looking at what is left of its slab. */
static void end_hold(struct wk_outputs *outputs, uint32_t index)
{
    struct hold *hold = &outputs->holds[index];
    CM_ASSERT(hold->state != HOLD_FREE);
    CM_ASSERT(outputs->slabs[hold->slab].holds > 0);
    outputs->slabs[hold->slab].holds--;
    hold->state = HOLD_FREE;
    hold->generation++;
    hold->next = outputs->free_hold;
    outputs->free_hold = index;
    outputs->holds_used--;
}

static void let_go(struct wk_outputs *outputs, uint32_t index)
{
    uint32_t slab = outputs->holds[index].slab;
    end_hold(outputs, index);
    if (outputs->slabs[slab].holds == 0)
        free_slab(outputs, slab);
}

enum cm_err wk_outputs_hold(struct wk_outputs *outputs, const struct wk_slab *slab,
                            uint64_t gateway, struct cm_slab_ref *ret_ref)
{
    CM_ASSERT(slab->index < outputs->max_holds && outputs->slabs[slab->index].used);
    uint32_t index = outputs->free_hold;
    if (index == NONE)
        return CM_FULL;
    struct hold *hold = &outputs->holds[index];
    outputs->free_hold = hold->next;
    hold->gateway = gateway;
    hold->slab = slab->index;
    hold->state = HOLD_ACTIVE;
    outputs->slabs[slab->index].holds++;
    outputs->holds_used++;
    *ret_ref = (struct cm_slab_ref){outputs->worker, index, hold->generation};
    return CM_OK;
}

void wk_outputs_abandon(struct wk_outputs *outputs, const struct wk_slab *slab)
{
    for (uint32_t i = 0; i < outputs->max_holds && outputs->slabs[slab->index].holds > 0; i++)
        if (outputs->holds[i].state != HOLD_FREE && outputs->holds[i].slab == slab->index)
            end_hold(outputs, i);
    free_slab(outputs, slab->index);
}

/* A reference comes from a peer: NULL unless it names a live hold of this worker. */
static struct hold *find_hold(struct wk_outputs *outputs, struct cm_slab_ref ref)
{
    if (ref.worker != outputs->worker || ref.slab >= outputs->max_holds)
        return NULL;
    struct hold *hold = &outputs->holds[ref.slab];
    if (hold->state == HOLD_FREE || hold->generation != ref.generation)
        return NULL;
    return hold;
}

bool wk_outputs_release(struct wk_outputs *outputs, struct cm_slab_ref ref)
{
    if (!find_hold(outputs, ref)) {
        outputs->stale++;
        return false;
    }
    let_go(outputs, ref.slab);
    return true;
}

size_t wk_outputs_drop(struct wk_outputs *outputs, uint64_t gateway)
{
    size_t dropped = 0;
    for (uint32_t i = 0; i < outputs->max_holds; i++) {
        if (outputs->holds[i].state == HOLD_FREE || outputs->holds[i].gateway != gateway)
            continue;
        let_go(outputs, i);
        dropped++;
    }
    return dropped;
}

void wk_outputs_limbo(struct wk_outputs *outputs)
{
    for (uint32_t i = 0; i < outputs->max_holds; i++)
        if (outputs->holds[i].state != HOLD_FREE)
            outputs->holds[i].state = HOLD_LIMBO;
}

bool wk_outputs_held(struct wk_outputs *outputs, struct cm_slab_ref ref)
{
    struct hold *hold = find_hold(outputs, ref);
    if (!hold) {
        outputs->stale++;
        return false;
    }
    if (hold->state == HOLD_LIMBO)
        hold->state = HOLD_CLAIMED;
    return true;
}

size_t wk_outputs_resumed(struct wk_outputs *outputs, uint64_t gateway)
{
    size_t freed = 0;
    for (uint32_t i = 0; i < outputs->max_holds; i++) {
        struct hold *hold = &outputs->holds[i];
        if (hold->state == HOLD_LIMBO && hold->gateway <= gateway) {
            let_go(outputs, i);
            freed++;
        } else if (hold->state == HOLD_CLAIMED && hold->gateway == gateway) {
            hold->state = HOLD_ACTIVE;
        }
    }
    return freed;
}

struct wk_outputs_stats wk_outputs_stats(const struct wk_outputs *outputs)
{
    struct wk_outputs_stats stats = {
        .holds = outputs->holds_used, .slabs = outputs->slabs_used, .stale = outputs->stale};
    for (uint32_t i = 0; i < outputs->max_regions; i++) {
        if (!outputs->regions[i].buddy)
            continue;
        struct mm_buddy_stats buddy = mm_buddy_stats(outputs->regions[i].buddy);
        stats.bytes_used += buddy.used;
        stats.bytes_total += buddy.total;
    }
    return stats;
}
