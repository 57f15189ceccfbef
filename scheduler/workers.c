/* Worker and batch tables. Pure; nothing is allocated after sd_workers_init. */
#include "scheduler/workers.h"

#include "common/check.h"

#include <stdlib.h>
#include <string.h>

enum cm_err sd_workers_init(struct sd_workers *workers, uint32_t credits, uint32_t epoch)
{
    CM_ASSERT(credits >= 1 && credits <= SD_MAX_CREDITS);
    struct sd_batch *batches = calloc((size_t)SD_MAX_WORKERS * credits, sizeof *batches);
    if (!batches)
        return CM_NOMEM;
    /* Lives begin at unrelated numbers; one life counts on from its own. */
    *workers =
        (struct sd_workers){.credits = credits, .next_generation = epoch, .batches = batches};
    return CM_OK;
}

void sd_workers_fini(struct sd_workers *workers)
{
    free(workers->batches);
    *workers = (struct sd_workers){0};
}

/* One place decides whether a worker may get an ordinary batch. */
static void refresh(struct sd_workers *workers, uint32_t index)
{
    const struct sd_worker *worker = &workers->items[index];
    uint64_t bit = 1ull << index;
    bool exclusive = worker->in_flight > 0 && worker->batches[0]->alone;
    CM_ASSERT(worker->in_flight <= workers->credits);
    bool has = worker->attached && !worker->hung && !worker->reserved && !exclusive &&
               worker->in_flight < workers->credits;
    workers->free = has ? workers->free | bit : workers->free & ~bit;
    workers->attached = worker->attached ? workers->attached | bit : workers->attached & ~bit;
}

void sd_workers_attach(struct sd_workers *workers, uint32_t worker, uint64_t instance)
{
    CM_ASSERT(worker < SD_MAX_WORKERS && !workers->items[worker].attached);
    workers->items[worker] = (struct sd_worker){.attached = true, .instance = instance};
    refresh(workers, worker);
}

void sd_workers_detach(struct sd_workers *workers, uint32_t worker)
{
    CM_ASSERT(workers->items[worker].in_flight == 0);
    workers->items[worker] = (struct sd_worker){0};
    refresh(workers, worker);
}

uint32_t sd_workers_find(const struct sd_workers *workers, uint64_t instance)
{
    for (uint64_t left = workers->attached; left; left &= left - 1) {
        uint32_t i = (uint32_t)__builtin_ctzll(left);
        if (workers->items[i].instance == instance)
            return i;
    }
    return SD_MAX_WORKERS;
}

uint32_t sd_workers_choose(const struct sd_workers *workers, uint64_t mask)
{
    uint32_t best = SD_MAX_WORKERS;
    for (uint64_t left = mask; left; left &= left - 1) {
        uint32_t i = (uint32_t)__builtin_ctzll(left);
        const struct sd_worker *a = &workers->items[i], *b = &workers->items[best % SD_MAX_WORKERS];
        if (best == SD_MAX_WORKERS || a->in_flight < b->in_flight ||
            (a->in_flight == b->in_flight && a->rows < b->rows))
            best = i;
    }
    return best;
}

void sd_workers_reserve(struct sd_workers *workers, uint32_t worker)
{
    workers->items[worker].reserved = true;
    refresh(workers, worker);
}

void sd_workers_unreserve_all(struct sd_workers *workers)
{
    for (uint64_t left = workers->attached; left; left &= left - 1) {
        uint32_t i = (uint32_t)__builtin_ctzll(left);
        if (workers->items[i].reserved) {
            workers->items[i].reserved = false;
            refresh(workers, i);
        }
    }
}

struct sd_batch *sd_batch_begin(struct sd_workers *workers, uint32_t index, bool alone)
{
    struct sd_worker *worker = &workers->items[index];
    CM_ASSERT(worker->attached && worker->in_flight < workers->credits);
    struct sd_batch *batch = &workers->batches[(size_t)index * workers->credits];
    uint32_t slot = index * workers->credits;
    while (batch->id != 0) {
        batch++;
        slot++;
    }
    batch->generation = workers->next_generation++;
    batch->id = (uint64_t)batch->generation << 32 | (slot + 1);
    batch->worker = index;
    batch->alone = alone;
    batch->rows = 0;
    batch->n_items = 0;
    worker->batches[worker->in_flight++] = batch;
    workers->in_flight++;
    refresh(workers, index);
    return batch;
}

struct sd_batch *sd_batch_find(const struct sd_workers *workers, uint32_t index, uint64_t id)
{
    const struct sd_worker *worker = &workers->items[index];
    for (uint32_t i = 0; i < worker->in_flight; i++)
        if (worker->batches[i]->id == id)
            return worker->batches[i];
    return NULL;
}

void sd_batch_end(struct sd_workers *workers, struct sd_batch *batch)
{
    struct sd_worker *worker = &workers->items[batch->worker];
    uint32_t i = 0;
    while (worker->batches[i] != batch)
        i++;
    memmove(&worker->batches[i], &worker->batches[i + 1],
            (worker->in_flight - i - 1) * sizeof worker->batches[0]);
    worker->in_flight--;
    worker->rows -= batch->rows;
    workers->in_flight--;
    batch->id = 0;
    refresh(workers, batch->worker);
}

uint64_t sd_batch_began_ns(const struct sd_workers *workers, const struct sd_batch *batch)
{
    uint64_t last = workers->items[batch->worker].last_done_ns;
    return last > batch->dispatched_ns ? last : batch->dispatched_ns;
}
