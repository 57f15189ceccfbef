/* What leaves: expiry, closing of batches, choice of the worker, the EXECUTE record. Pure. */
#include "scheduler/batcher.h"
#include "scheduler/core_priv.h"

#include <string.h>

/* A batch is given up after this many times its predicted time, and not before limits.hang_ns. */
#define HANG_FACTOR 20u
/* Nobody knows yet how long the first batch of a shape takes: it gets so many times hang_ns. */
#define UNKNOWN_FACTOR 6u

static void wake_at(struct sd_core *core, uint64_t at_ns)
{
    if (at_ns < core->wakeup_ns)
        core->wakeup_ns = at_ns;
}

/* ---- expiry ---- */

static void expire(struct sd_core *core, uint64_t now_ns)
{
    struct sd_request *request;
    while ((request = sd_queue_first_deadline(&core->queue)) && request->deadline_ns <= now_ns)
        sd_finish_without_result(core, request, CM_DEADLINE,
                                 "the deadline passed while the request waited", now_ns);
}

/* Answers a waiting request that would certainly be late, and says so. */
static bool drop_if_late(struct sd_core *core, struct sd_request *request, uint64_t now_ns)
{
    struct sd_prediction run = sd_history_predict(&request->bucket->history, request->rows);
    if (cm_time_add(now_ns, run.low_ns) <= request->deadline_ns)
        return false;
    sd_history_doubt(&request->bucket->history);
    sd_finish_without_result(core, request, CM_DEADLINE,
                             "the deadline is nearer than the model's shortest run", now_ns);
    return true;
}

/* ---- one batch ---- */

static struct sd_batch *begin(struct sd_core *core, uint32_t worker, struct sd_bucket *bucket,
                              bool alone)
{
    struct sd_batch *batch = sd_batch_begin(&core->workers, worker, alone);
    batch->model = bucket->model;
    batch->bucket = bucket;
    sd_bucket_ref(&core->queue, bucket);
    return batch;
}

static void add(struct sd_core *core, struct sd_batch *batch, struct sd_request *request,
                uint64_t now_ns)
{
    sd_queue_take(&core->queue, request);
    request->times.dispatched_ns = now_ns;
    request->batch = batch;
    request->place = batch->n_items;
    batch->items[batch->n_items++] = request;
    batch->rows += request->rows;
    core->workers.items[batch->worker].rows += request->rows;
}

/* Writes the record from batch->items. */
static void send_execute(struct sd_core *core, struct sd_batch *batch, uint64_t now_ns)
{
    uint32_t n_inputs = batch->model->signature.n_inputs;
    size_t inputs_bytes = n_inputs * sizeof(struct cm_tensor_desc);
    struct cm_record_execute head = {.batch = batch->id,
                                     .model = batch->model->ref,
                                     .rows = batch->rows,
                                     .n_items = (uint16_t)batch->n_items,
                                     .n_inputs = (uint16_t)n_inputs};
    unsigned char *at = core->scratch;
    for (uint32_t i = 0; i < batch->n_items; i++) {
        const struct sd_request *request = batch->items[i];
        struct cm_execute_item item = {.trace = request->trace,
                                       .output_mask = request->output_mask,
                                       .gateway = request->instance,
                                       .rows = request->rows};
        item.trace.stage = CM_STAGE_EXECUTE;
        item.trace.device = (uint16_t)batch->worker;
        memcpy(at, &item, sizeof item);
        memcpy(at + sizeof item, request->inputs, inputs_bytes);
        at += sizeof item + inputs_bytes;
        if (request->deadline_ns > head.deadline_ns)
            head.deadline_ns = request->deadline_ns;
    }
    batch->dispatched_ns = now_ns;
    batch->predicted_ns = sd_history_predict(&batch->bucket->history, batch->rows).high_ns;
    core->counters.batches++;
    core->counters.batched_requests += batch->n_items;
    core->counters.batched_rows += batch->rows;
    core->sink.to_worker(core->sink.ctx, batch->worker, CM_RECORD_EXECUTE, &head, sizeof head,
                         core->scratch, (uint32_t)(at - core->scratch));
}

static uint32_t max_rows(const struct sd_model *model)
{
    return model->signature.batchable ? model->signature.max_batch : 1;
}

static void count_close(struct sd_core *core, enum sd_close_reason reason)
{
    switch (reason) {
#define X(name, counter)          \
    case SD_CLOSE_##name:         \
        core->counters.counter++; \
        break;
        SD_CLOSE_MAP(X)
#undef X
    case SD_CLOSE_NOT:
        break;
    }
}

/* Fills one batch from the bucket in turn. The first that does not fit ends it: nobody is overtaken
 * by a smaller one. Nothing is sent if all that waited were late. */
static void dispatch(struct sd_core *core, struct sd_bucket *bucket, enum sd_close_reason reason,
                     uint64_t now_ns)
{
    uint32_t worker = sd_workers_choose(&core->workers, bucket->model->ready & core->workers.free);
    struct sd_batch *batch = NULL;
    struct sd_request *request;
    uint32_t limit = max_rows(bucket->model);
    while ((request = sd_bucket_next(bucket)) != NULL) {
        if (drop_if_late(core, request, now_ns))
            continue;
        if (batch && (batch->n_items == CM_MAX_BATCH_ITEMS || request->rows > limit - batch->rows))
            break;
        if (!batch)
            batch = begin(core, worker, bucket, false);
        add(core, batch, request, now_ns);
    }
    if (!batch)
        return;
    count_close(core, reason);
    send_execute(core, batch, now_ns);
}

/* ---- suspects ---- */

/* A suspect needs a worker with nothing else on it: the next death must be its own. Where all are
 * busy the least loaded one is kept free of new batches until it is idle, so that suspects do not
 * starve behind a busy queue. */
static void dispatch_suspects(struct sd_core *core, uint64_t now_ns)
{
    sd_workers_unreserve_all(&core->workers);
    uint64_t usable = 0;
    for (uint64_t left = core->workers.attached; left; left &= left - 1) {
        uint32_t i = (uint32_t)__builtin_ctzll(left);
        if (!core->workers.items[i].hung)
            usable |= 1ull << i;
    }
    struct sd_request *next;
    for (struct sd_request *s = core->queue.suspects.first; s && usable; s = next) {
        next = s->after;
        uint32_t worker = sd_workers_choose(&core->workers, s->model->ready & usable);
        if (worker == SD_MAX_WORKERS || drop_if_late(core, s, now_ns))
            continue;
        usable &= ~(1ull << worker);
        if (core->workers.items[worker].in_flight > 0) {
            sd_workers_reserve(&core->workers, worker);
            continue;
        }
        struct sd_batch *batch = begin(core, worker, s->bucket, true);
        add(core, batch, s, now_ns);
        core->counters.closed_alone++;
        send_execute(core, batch, now_ns);
    }
}

/* ---- the pump ---- */

static struct sd_close ask(const struct sd_bucket *bucket, uint64_t now_ns)
{
    const struct sd_model *model = bucket->model;
    uint64_t max_wait_ns = (uint64_t)model->config.max_wait_us * CM_NS_PER_US;
    struct sd_waiting waiting = {
        .rows = bucket->rows,
        .items = bucket->items,
        .max_rows = max_rows(model),
        .max_items = CM_MAX_BATCH_ITEMS,
        .max_wait_ns = max_wait_ns,
        .oldest_ns = bucket->arrivals.first->times.queued_ns,
        .earliest_deadline_ns = CM_NEVER,
    };
    if (max_wait_ns > 0 && waiting.rows < waiting.max_rows && waiting.items < waiting.max_items) {
        waiting.earliest_deadline_ns = sd_bucket_earliest_deadline(bucket);
        waiting.predicted_ns = sd_history_predict(&bucket->history, bucket->rows).high_ns;
    }
    return sd_batcher_close(&waiting, now_ns);
}

/* Of the buckets whose batch should leave now and can, the one whose first request goes before all
 * others'. NULL if there is none; the time to ask again is then noted. */
static struct sd_bucket *next_bucket(struct sd_core *core, uint64_t now_ns,
                                     enum sd_close_reason *ret_reason)
{
    struct sd_bucket *best = NULL;
    for (struct sd_bucket *b = core->queue.waiting.first; b; b = b->after) {
        if ((b->model->ready & core->workers.free) == 0)
            continue; /* a DONE or a worker that comes will pump again */
        struct sd_close close = ask(b, now_ns);
        if (close.reason == SD_CLOSE_NOT) {
            wake_at(core, close.at_ns);
        } else if (!best || sd_request_before(sd_bucket_next(b), sd_bucket_next(best))) {
            best = b;
            *ret_reason = close.reason;
        }
    }
    return best;
}

/* Reports workers that take far too long, and notes when the next one will. */
static void watch_for_hangs(struct sd_core *core, uint64_t now_ns)
{
    for (uint64_t left = core->workers.attached; left; left &= left - 1) {
        uint32_t i = (uint32_t)__builtin_ctzll(left);
        struct sd_worker *worker = &core->workers.items[i];
        if (worker->hung || worker->in_flight == 0)
            continue;
        const struct sd_batch *batch = worker->batches[0];
        uint64_t patience = batch->predicted_ns * HANG_FACTOR;
        uint64_t least = core->limits.hang_ns * (batch->predicted_ns ? 1 : UNKNOWN_FACTOR);
        if (patience < least)
            patience = least;
        uint64_t end_ns = cm_time_add(sd_batch_began_ns(&core->workers, batch), patience);
        if (end_ns > now_ns) {
            wake_at(core, end_ns);
            continue;
        }
        worker->hung = true;
        core->workers.free &= ~(1ull << i);
        core->counters.worker_hangs++;
        core->sink.worker_hung(core->sink.ctx, i);
    }
}

void sd_core_pump(struct sd_core *core, uint64_t now_ns)
{
    enum sd_close_reason reason = SD_CLOSE_NOT;
    struct sd_bucket *bucket;
    core->wakeup_ns = CM_NEVER;
    expire(core, now_ns);
    watch_for_hangs(core, now_ns);
    dispatch_suspects(core, now_ns);
    while (core->queue.waiting.first && (bucket = next_bucket(core, now_ns, &reason)) != NULL)
        dispatch(core, bucket, reason, now_ns);
    watch_for_hangs(core, now_ns); /* again: for the wake-ups of what has just left */
    const struct sd_request *first = sd_queue_first_deadline(&core->queue);
    if (first)
        wake_at(core, first->deadline_ns);
}
