/* What ends: results, failures, deaths; the REPLY and RELEASE records. Pure.
 *
 * Exactly once: a REPLY is written in three places here (answer, sd_refuse, and answer through
 * sd_finish_without_result), each of which frees the request or never had one. */
#include "scheduler/core_priv.h"

#include <string.h>

/* ---- records to gateways ---- */

/* Bytes of text that fit a record, without cutting a UTF-8 character. */
static uint16_t text_bytes(const char *text, size_t length)
{
    if (length > CM_MAX_TEXT) {
        length = CM_MAX_TEXT;
        while (length > 0 && ((unsigned char)text[length] & 0xc0) == 0x80)
            length--;
    }
    return (uint16_t)length;
}

static void send_reply(struct sd_core *core, uint32_t gateway, struct cm_record_reply *reply,
                       const void *tail, uint32_t tail_length)
{
    reply->trace.stage = CM_STAGE_REPLY;
    core->sink.to_gateway(core->sink.ctx, gateway, CM_RECORD_REPLY, reply, sizeof *reply, tail,
                          tail_length);
}

static void count_end(struct sd_core *core, enum cm_err status)
{
    switch (status) {
    case CM_OK:
        core->counters.completed++;
        break;
    case CM_CANCELLED:
        core->counters.cancelled++;
        break;
    case CM_DEADLINE:
        core->counters.expired++;
        break;
    case CM_POISON:
        core->counters.poison++;
        break;
    default:
        core->counters.failed++;
        break;
    }
}

/* How a request ends. outputs with CM_OK, else text. */
struct ending {
    enum cm_err status;
    const char *text;
    size_t text_length;
    const struct sd_batch *batch; /* NULL if it was in none */
    const struct cm_record_done *done;
    const struct cm_done_item *item;
    uint64_t now_ns;
};

static void answer(struct sd_core *core, struct sd_request *request, const struct ending *end)
{
    struct cm_record_reply reply = {.trace = request->trace,
                                    .request = request->handle,
                                    .times = request->times,
                                    .status = end->status,
                                    .attempts = request->attempts};
    const void *tail = end->text;
    uint32_t tail_length = 0;
    reply.times.replied_ns = end->now_ns;
    if (end->batch) {
        reply.trace.device = (uint16_t)end->batch->worker;
        reply.batch_rows = end->batch->rows;
        reply.batch_items = (uint16_t)end->batch->n_items;
    }
    if (end->done) {
        reply.times.accepted_ns = end->done->received_ns;
        reply.times.started_ns = end->done->started_ns;
        reply.times.finished_ns = end->done->finished_ns;
    }
    if (end->status == CM_OK) {
        reply.slab = end->item->slab;
        reply.n_outputs = end->item->n_outputs;
        tail = cm_done_outputs(end->item);
        tail_length = (uint32_t)(reply.n_outputs * sizeof(struct cm_tensor_desc));
    } else {
        reply.text_length = text_bytes(end->text, end->text_length);
        tail_length = reply.text_length;
    }
    count_end(core, end->status);
    send_reply(core, request->gateway, &reply, tail, tail_length);
    sd_queue_free(&core->queue, request);
}

void sd_finish_without_result(struct sd_core *core, struct sd_request *request, enum cm_err status,
                              const char *text, uint64_t now_ns)
{
    CM_ASSERT(status != CM_OK);
    struct ending end = {
        .status = status, .text = text, .text_length = strlen(text), .now_ns = now_ns};
    answer(core, request, &end);
}

void sd_refuse(struct sd_core *core, uint32_t gateway, const struct cm_record_submit *submit,
               const struct cm_error *error, uint64_t now_ns)
{
    struct cm_record_reply reply = {
        .trace = submit->trace,
        .request = submit->request,
        .times = {.received_ns = submit->received_ns, .queued_ns = now_ns, .replied_ns = now_ns},
        .status = error->code,
        .text_length = text_bytes(error->text, strlen(error->text))};
    if (error->code == CM_DEADLINE)
        core->counters.expired++;
    else
        core->counters.refused++;
    send_reply(core, gateway, &reply, error->text, reply.text_length);
}

/* ---- results ---- */

void sd_release(struct sd_core *core, const struct cm_slab_ref *slab)
{
    struct cm_record_release release = {.slab = *slab};
    uint32_t worker = sd_workers_find(&core->workers, slab->worker);
    if (worker == SD_MAX_WORKERS) {
        core->counters.releases_ignored++;
        return;
    }
    core->counters.released++;
    core->sink.to_worker(core->sink.ctx, worker, CM_RECORD_RELEASE, &release, sizeof release, NULL,
                         0);
}

static enum cm_err check_item(const struct sd_core *core, const struct sd_batch *batch,
                              const struct sd_request *request, const struct cm_done_item *item,
                              struct cm_error *err)
{
    const struct sd_signature *signature = &batch->model->signature;
    if (item->status != CM_OK)
        return item->n_outputs == 0 ? CM_OK
                                    : cm_fail(err, CM_CORRUPT, "DONE: a failed item with outputs");
    if (item->slab.worker != core->workers.items[batch->worker].instance)
        return cm_fail(err, CM_CORRUPT, "DONE: outputs of another process");
    if (item->n_outputs != __builtin_popcountll(request->output_mask))
        return cm_fail(err, CM_CORRUPT, "DONE: %u outputs, not those that were asked for",
                       item->n_outputs);
    const struct cm_tensor_desc *outputs = cm_done_outputs(item);
    uint64_t left = request->output_mask;
    for (uint32_t i = 0; i < item->n_outputs; i++, left &= left - 1) {
        uint32_t index = (uint32_t)__builtin_ctzll(left);
        if (outputs[i].index != index || outputs[i].dtype != signature->outputs[index].dtype)
            return cm_fail(err, CM_CORRUPT, "DONE: output %u is not output %u of model %s", i,
                           index, batch->model->name);
        if (signature->batchable &&
            (outputs[i].rank == 0 || outputs[i].dims[0] != (int64_t)request->rows))
            return cm_fail(err, CM_CORRUPT, "DONE: output %u has not the request's %u rows", i,
                           request->rows);
    }
    return CM_OK;
}

static enum cm_err check_done(const struct sd_core *core, const struct sd_batch *batch,
                              const struct cm_record_done *done, struct cm_error *err)
{
    if (done->status != CM_OK)
        return CM_OK;
    if (done->n_items != batch->n_items)
        return cm_fail(err, CM_CORRUPT, "DONE: %u items for a batch of %u", done->n_items,
                       batch->n_items);
    const struct cm_done_item *item = cm_done_first(done);
    for (uint32_t i = 0; i < batch->n_items; i++, item = cm_done_next(item)) {
        enum cm_err code = check_item(core, batch, batch->items[i], item, err);
        if (code != CM_OK)
            return code;
    }
    return CM_OK;
}

/* A status that a worker sent: ours to pass on if it is in the list, and not one that only the
 * scheduler may give. STALE (inputs or a model that the worker could not find) makes the gateway
 * submit once more. */
static enum cm_err worker_status(uint32_t status)
{
    switch (status) {
    case CM_OK:
    case CM_POISON:
    case CM_CANCELLED:
        return CM_INTERNAL;
    default:
        return status <= CM_POISON ? (enum cm_err)status : CM_INTERNAL;
    }
}

/* A status that one request's tensors can cause (an index out of range, say) and that fails the run for
 * its company too. */
static bool may_be_one_requests_fault(uint32_t status)
{
    switch (status) {
    case CM_INVALID:
    case CM_LIMIT:
    case CM_UNSUPPORTED:
    case CM_PRECONDITION:
    case CM_CORRUPT:
    case CM_INTERNAL:
        return true;
    default:
        return false;
    }
}

/* One request of a batch that has ended. item is NULL if the whole batch failed. */
static void finish_item(struct sd_core *core, struct sd_request *request,
                        const struct sd_batch *batch, const struct cm_record_done *done,
                        const struct cm_done_item *item, uint64_t now_ns)
{
    struct ending end = {.batch = batch, .done = done, .item = item, .now_ns = now_ns};
    bool has_result = item && item->status == CM_OK;
    if (request->state == SD_REQUEST_ABANDONED) {
        if (has_result)
            sd_release(core, &item->slab);
        if (request->orphan) {
            sd_queue_free(&core->queue, request);
            return;
        }
        end.status = CM_CANCELLED;
        end.text = "cancelled while it ran";
    } else if (has_result) {
        end.status = CM_OK;
        batch->model->requests++;
    } else {
        end.status = worker_status(item ? item->status : done->status);
        end.text = cm_err_text(end.status);
    }
    if (end.text)
        end.text_length = strlen(end.text);
    if (!has_result && !item && done->text_length > 0 && end.status != CM_CANCELLED) {
        end.text = cm_done_text(done); /* not terminated */
        end.text_length = done->text_length;
    }
    answer(core, request, &end);
}

enum cm_err sd_done(struct sd_core *core, uint32_t worker, const struct cm_record_done *done,
                    uint64_t now_ns, struct cm_error *err)
{
    struct sd_batch *batch = sd_batch_find(&core->workers, worker, done->batch);
    if (!batch) {
        core->counters.dones_ignored++;
        return CM_OK;
    }
    enum cm_err code = check_done(core, batch, done, err);
    if (code != CM_OK)
        return code;
    bool ran = done->status == CM_OK;
    if (ran) {
        uint64_t began_ns = sd_batch_began_ns(&core->workers, batch);
        sd_history_add(&batch->bucket->history, batch->rows,
                       now_ns > began_ns ? now_ns - began_ns : 1);
        batch->model->batches++;
        batch->model->rows += batch->rows;
    }
    core->workers.items[worker].last_done_ns = now_ns;
    const struct cm_done_item *item = ran ? cm_done_first(done) : NULL;
    bool split = !ran && batch->n_items > 1 && may_be_one_requests_fault(done->status);
    for (uint32_t i = 0; i < batch->n_items; i++) {
        struct sd_request *request = batch->items[i];
        if (split && request->state != SD_REQUEST_ABANDONED) {
            /* Nobody fails for another's tensors: each runs again by itself. */
            core->counters.split++;
            sd_queue_put_back(&core->queue, request, true);
        } else {
            finish_item(core, request, batch, done, item, now_ns);
        }
        item = item ? cm_done_next(item) : NULL;
    }
    sd_bucket_unref(&core->queue, batch->bucket);
    sd_batch_end(&core->workers, batch);
    return CM_OK;
}

/* ---- deaths ---- */

static void lose_item(struct sd_core *core, struct sd_request *request, uint64_t now_ns)
{
    if (request->state == SD_REQUEST_ABANDONED) {
        if (request->orphan)
            sd_queue_free(&core->queue, request);
        else
            sd_finish_without_result(core, request, CM_CANCELLED,
                                     "cancelled; its worker died meanwhile", now_ns);
        return;
    }
    request->deaths++;
    if (request->alone && request->deaths > SD_DEATHS_IN_COMPANY) {
        sd_finish_without_result(core, request, CM_POISON,
                                 "three workers died with this request, the last one with nothing "
                                 "else to do; it is not tried again",
                                 now_ns);
        return;
    }
    core->counters.redispatched++;
    bool alone = request->alone || request->deaths >= SD_DEATHS_IN_COMPANY;
    if (alone && !request->alone)
        core->counters.split++;
    sd_queue_put_back(&core->queue, request, alone);
}

void sd_batch_lost(struct sd_core *core, struct sd_batch *batch, uint64_t now_ns)
{
    for (uint32_t i = 0; i < batch->n_items; i++)
        lose_item(core, batch->items[i], now_ns);
    sd_bucket_unref(&core->queue, batch->bucket);
    sd_batch_end(&core->workers, batch);
}
