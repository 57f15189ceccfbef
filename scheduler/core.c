/* The core's surface: creation, peers that come and go, and the records of gateways.
 *
 * Records are decoded first and applied second: what a peer sent is checked whole before anything
 * changes. Pure. */
#include "scheduler/core_priv.h"

#include <stdlib.h>

/* ---- creation ---- */

static struct sd_limits with_defaults(const struct sd_limits *limits)
{
    struct sd_limits out = *limits;
    if (out.max_requests == 0)
        out.max_requests = 16384;
    if (out.max_buckets == 0)
        out.max_buckets = 1024;
    if (out.max_held == 0)
        out.max_held = 65536;
    if (out.credits == 0)
        out.credits = 2;
    if (out.age_step_ns == 0)
        out.age_step_ns = 250 * CM_NS_PER_MS;
    if (out.hang_ns == 0)
        out.hang_ns = 10 * CM_NS_PER_S;
    return out;
}

enum cm_err sd_core_create(const struct sd_limits *limits, struct sd_models *models,
                           const struct sd_sink *sink, struct sd_core **ret_core)
{
    struct sd_core *core = calloc(1, sizeof *core);
    if (!core)
        return CM_NOMEM;
    core->limits = with_defaults(limits);
    core->models = models;
    core->sink = *sink;
    core->wakeup_ns = CM_NEVER;
    core->scratch = malloc(SD_EXECUTE_MAX);
    core->held = calloc(core->limits.max_held, sizeof *core->held);
    enum cm_err code = core->scratch && core->held ? CM_OK : CM_NOMEM;
    if (code == CM_OK)
        code = sd_workers_init(&core->workers, core->limits.credits, core->limits.epoch);
    if (code == CM_OK)
        code = sd_queue_init(&core->queue, core->limits.max_requests, core->limits.max_buckets,
                             core->limits.age_step_ns);
    if (code != CM_OK) {
        sd_core_destroy(core);
        return code;
    }
    *ret_core = core;
    return CM_OK;
}

void sd_core_destroy(struct sd_core *core)
{
    if (!core)
        return;
    sd_queue_fini(&core->queue);
    sd_workers_fini(&core->workers);
    free(core->held);
    free(core->scratch);
    free(core);
}

/* ---- sending to workers ---- */

static void tell_worker(struct sd_core *core, uint32_t worker, uint8_t type, const void *record,
                        uint32_t length)
{
    core->sink.to_worker(core->sink.ctx, worker, type, record, length, NULL, 0);
}

static void tell_all_workers(struct sd_core *core, uint8_t type, const void *record,
                             uint32_t length)
{
    for (uint64_t left = core->workers.attached; left; left &= left - 1)
        tell_worker(core, (uint32_t)__builtin_ctzll(left), type, record, length);
}

/* ---- outputs that gateways hold since before this scheduler ---- */

static void forget_held(struct sd_core *core, uint32_t index)
{
    core->held[index] = core->held[--core->n_held];
}

static void forget_held_of_gateway(struct sd_core *core, uint32_t gateway)
{
    for (uint32_t i = core->n_held; i-- > 0;)
        if (core->held[i].gateway == gateway)
            forget_held(core, i);
}

static enum cm_err take_held(struct sd_core *core, uint32_t gateway,
                             const struct cm_record_held *held, struct cm_error *err)
{
    if (core->gateways[gateway].resumed)
        return cm_fail(err, CM_CORRUPT, "HELD after RESUMED");
    uint32_t worker = sd_workers_find(&core->workers, held->slab.worker);
    if (worker < SD_MAX_WORKERS) {
        tell_worker(core, worker, CM_RECORD_HELD, held, sizeof *held);
        return CM_OK;
    }
    /* To lose one silently would let a worker reuse memory that the gateway still reads. */
    if (core->n_held == core->limits.max_held)
        return cm_fail(err, CM_CORRUPT, "more than %u outputs held", core->limits.max_held);
    core->held[core->n_held++] = (struct sd_held){gateway, held->slab};
    return CM_OK;
}

static void take_release(struct sd_core *core, uint32_t gateway,
                         const struct cm_record_release *release)
{
    const struct cm_slab_ref *slab = &release->slab;
    if (sd_workers_find(&core->workers, slab->worker) == SD_MAX_WORKERS) {
        for (uint32_t i = 0; i < core->n_held; i++) {
            const struct sd_held *held = &core->held[i];
            if (held->gateway == gateway && held->slab.worker == slab->worker &&
                held->slab.slab == slab->slab && held->slab.generation == slab->generation) {
                forget_held(core, i);
                break;
            }
        }
    }
    sd_release(core, slab);
}

static enum cm_err take_resumed(struct sd_core *core, uint32_t gateway,
                                const struct cm_record_resumed *resumed, struct cm_error *err)
{
    if (resumed->gateway != core->gateways[gateway].instance)
        return cm_fail(err, CM_CORRUPT, "RESUMED for another process");
    core->gateways[gateway].resumed = true;
    tell_all_workers(core, CM_RECORD_RESUMED, resumed, sizeof *resumed);
    return CM_OK;
}

/* ---- peers ---- */

enum cm_err sd_core_gateway_attach(struct sd_core *core, uint32_t gateway, uint64_t instance)
{
    if (gateway >= SD_MAX_GATEWAYS)
        return CM_LIMIT;
    CM_ASSERT(!core->gateways[gateway].attached);
    core->gateways[gateway] = (struct sd_gateway){.attached = true, .instance = instance};
    return CM_OK;
}

/* The worker may leave it out if it has not begun; either way it says when it is done with the inputs,
 * and the REPLY waits for that. */
static void abandon(struct sd_core *core, struct sd_request *request)
{
    struct cm_record_abandon record = {.batch = request->batch->id, .item = request->place};
    sd_queue_abandon(request);
    tell_worker(core, request->batch->worker, CM_RECORD_ABANDON, &record, sizeof record);
}

/* Its waiting requests go; those with a worker lose their reply and keep their inputs' place until
 * the worker is done. */
static void orphan_requests(struct sd_core *core, uint32_t gateway)
{
    struct sd_queue *queue = &core->queue;
    uint32_t used = queue->max_requests - queue->fresh_requests;
    for (uint32_t i = 0; i < used; i++) {
        struct sd_request *request = &queue->requests[i];
        if (request->state == SD_REQUEST_FREE || request->gateway != gateway || request->orphan)
            continue;
        core->counters.orphaned++;
        request->orphan = true;
        if (request->state == SD_REQUEST_QUEUED)
            sd_queue_free(queue, request);
        else if (request->state == SD_REQUEST_DISPATCHED)
            abandon(core, request);
    }
}

void sd_core_gateway_detach(struct sd_core *core, uint32_t gateway, bool dead)
{
    if (gateway >= SD_MAX_GATEWAYS || !core->gateways[gateway].attached)
        return;
    struct cm_record_drop drop = {.gateway = core->gateways[gateway].instance};
    core->gateways[gateway] = (struct sd_gateway){0};
    forget_held_of_gateway(core, gateway);
    orphan_requests(core, gateway);
    if (!dead)
        return;
    core->counters.gateway_deaths++;
    core->dropped[core->n_dropped++ % SD_DROPPED_KEPT] = drop.gateway;
    tell_all_workers(core, CM_RECORD_DROP, &drop, sizeof drop);
}

/* What a worker that lived before this scheduler must know to let go of old outputs, in this order.
 */
static void brief_worker(struct sd_core *core, uint32_t worker, uint64_t instance)
{
    uint32_t kept = core->n_dropped < SD_DROPPED_KEPT ? core->n_dropped : SD_DROPPED_KEPT;
    for (uint32_t i = 0; i < kept; i++) {
        struct cm_record_drop drop = {.gateway = core->dropped[i]};
        tell_worker(core, worker, CM_RECORD_DROP, &drop, sizeof drop);
    }
    for (uint32_t i = core->n_held; i-- > 0;) {
        struct cm_record_held held = {.slab = core->held[i].slab};
        if (held.slab.worker != instance)
            continue;
        tell_worker(core, worker, CM_RECORD_HELD, &held, sizeof held);
        forget_held(core, i);
    }
    for (uint32_t i = 0; i < SD_MAX_GATEWAYS; i++) {
        struct cm_record_resumed resumed = {.gateway = core->gateways[i].instance};
        if (core->gateways[i].attached && core->gateways[i].resumed)
            tell_worker(core, worker, CM_RECORD_RESUMED, &resumed, sizeof resumed);
    }
}

enum cm_err sd_core_worker_attach(struct sd_core *core, uint32_t worker, uint64_t instance)
{
    if (worker >= SD_MAX_WORKERS)
        return CM_LIMIT;
    sd_workers_attach(&core->workers, worker, instance);
    brief_worker(core, worker, instance);
    return CM_OK;
}

void sd_core_worker_detach(struct sd_core *core, uint32_t worker, uint64_t now_ns)
{
    if (worker >= SD_MAX_WORKERS || !core->workers.items[worker].attached)
        return;
    core->counters.worker_deaths++;
    while (core->workers.items[worker].in_flight > 0)
        sd_batch_lost(core, core->workers.items[worker].batches[0], now_ns);
    sd_workers_detach(&core->workers, worker);
}

/* ---- records ---- */

static void submit(struct sd_core *core, uint32_t gateway, const struct cm_record_submit *record,
                   uint64_t now_ns)
{
    struct cm_error error = {.code = CM_OK};
    struct sd_request *request = NULL;
    core->counters.submitted++;
    if (sd_queue_find(&core->queue, gateway, record->request)) {
        core->counters.duplicates_ignored++;
        return;
    }
    struct sd_model *model = sd_models_find(core->models, record->model);
    if (!model) {
        cm_fail(&error, CM_STALE, "the model table has changed");
    } else if (sd_model_check(model, record, &error) != CM_OK) {
        /* error says why */
    } else if (record->deadline_ns <= now_ns) {
        cm_fail(&error, CM_DEADLINE, "the deadline had passed before the request could wait");
    } else if (model->queued >= model->config.max_queue) {
        cm_fail(&error, CM_UNAVAILABLE, "the queue of model %s is full (%u requests wait)",
                model->name, model->queued);
    } else if (sd_queue_submit(&core->queue, gateway, core->gateways[gateway].instance, model,
                               record, now_ns, &error, &request) != CM_OK) {
        error.code = CM_UNAVAILABLE; /* a full table here is a passing state for the client */
    } else {
        return;
    }
    sd_refuse(core, gateway, record, &error, now_ns);
}

static void cancel(struct sd_core *core, uint32_t gateway, const struct cm_record_cancel *record,
                   uint64_t now_ns)
{
    struct sd_request *request = sd_queue_find(&core->queue, gateway, record->request);
    if (request && request->state == SD_REQUEST_QUEUED)
        sd_finish_without_result(core, request, CM_CANCELLED, "cancelled while it waited", now_ns);
    else if (request && request->state == SD_REQUEST_DISPATCHED)
        abandon(core, request);
    else
        core->counters.cancels_ignored++;
}

enum cm_err sd_core_from_gateway(struct sd_core *core, uint32_t gateway, uint8_t type,
                                 const void *payload, uint32_t length, uint64_t now_ns,
                                 struct cm_error *err)
{
    (void)length; /* checked with the record */
    CM_ASSERT(gateway < SD_MAX_GATEWAYS && core->gateways[gateway].attached);
    enum cm_err code = CM_OK;
    switch (type) {
    case CM_RECORD_SUBMIT:
        submit(core, gateway, payload, now_ns);
        break;
    case CM_RECORD_CANCEL:
        cancel(core, gateway, payload, now_ns);
        break;
    case CM_RECORD_RELEASE:
        take_release(core, gateway, payload);
        break;
    case CM_RECORD_HELD:
        code = take_held(core, gateway, payload, err);
        break;
    case CM_RECORD_RESUMED:
        code = take_resumed(core, gateway, payload, err);
        break;
    default:
        code = cm_fail(err, CM_CORRUPT, "a gateway sent a record of type %u", type);
        break;
    }
    if (code != CM_OK)
        core->counters.hostile_records++;
    return code;
}

enum cm_err sd_core_from_worker(struct sd_core *core, uint32_t worker, uint8_t type,
                                const void *payload, uint32_t length, uint64_t now_ns,
                                struct cm_error *err)
{
    (void)length;
    CM_ASSERT(worker < SD_MAX_WORKERS && core->workers.items[worker].attached);
    enum cm_err code = CM_OK;
    if (type == CM_RECORD_DONE)
        code = sd_done(core, worker, payload, now_ns, err);
    else
        code = cm_fail(err, CM_CORRUPT, "a worker sent a record of type %u", type);
    if (code != CM_OK)
        core->counters.hostile_records++;
    return code;
}

/* ---- what others may see ---- */

uint64_t sd_core_next_wakeup_ns(const struct sd_core *core)
{
    return core->wakeup_ns;
}

const struct sd_counters *sd_core_counters(const struct sd_core *core)
{
    return &core->counters;
}

uint32_t sd_core_queued(const struct sd_core *core)
{
    return core->queue.queued;
}

uint32_t sd_core_in_use(const struct sd_core *core)
{
    return core->queue.in_use;
}

uint32_t sd_core_in_flight(const struct sd_core *core)
{
    return core->workers.in_flight;
}

uint32_t sd_core_held(const struct sd_core *core)
{
    return core->n_held;
}

static uint32_t audit_workers(const struct sd_core *core)
{
    uint32_t with_workers = 0, in_flight = 0;
    for (uint32_t w = 0; w < SD_MAX_WORKERS; w++) {
        const struct sd_worker *worker = &core->workers.items[w];
        uint32_t rows = 0;
        CM_ASSERT(worker->in_flight <= core->workers.credits);
        CM_ASSERT(worker->attached || worker->in_flight == 0);
        for (uint32_t b = 0; b < worker->in_flight; b++) {
            const struct sd_batch *batch = worker->batches[b];
            CM_ASSERT(batch->id != 0 && batch->worker == w && batch->bucket->users > 0);
            CM_ASSERT(!batch->alone || (worker->in_flight == 1 && batch->n_items == 1));
            for (uint32_t i = 0; i < batch->n_items; i++)
                CM_ASSERT(batch->items[i]->state == SD_REQUEST_DISPATCHED ||
                          batch->items[i]->state == SD_REQUEST_ABANDONED);
            with_workers += batch->n_items;
            rows += batch->rows;
        }
        CM_ASSERT(rows == worker->rows);
        in_flight += worker->in_flight;
    }
    CM_ASSERT(in_flight == core->workers.in_flight);
    return with_workers;
}

void sd_core_audit(const struct sd_core *core)
{
    uint32_t waiting = 0, by_model = 0;
    for (const struct sd_bucket *b = core->queue.waiting.first; b; b = b->after) {
        uint32_t items = 0, rows = 0;
        for (const struct sd_request *r = b->arrivals.first; r; r = r->after) {
            CM_ASSERT(r->state == SD_REQUEST_QUEUED && r->bucket == b && !r->alone);
            CM_ASSERT(!r->after || r->order < r->after->order);
            items++;
            rows += r->rows;
        }
        CM_ASSERT(items > 0 && items == b->items && rows == b->rows && b->turns.root);
        waiting += items;
    }
    for (const struct sd_request *r = core->queue.suspects.first; r; r = r->after) {
        CM_ASSERT(r->state == SD_REQUEST_QUEUED && r->alone);
        waiting++;
    }
    for (uint32_t i = 0; i < core->models->count; i++)
        by_model += core->models->items[i].queued;
    CM_ASSERT(waiting == core->queue.queued && waiting == by_model);
    CM_ASSERT(waiting + audit_workers(core) == core->queue.in_use);
}
