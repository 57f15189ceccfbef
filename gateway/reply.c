/* REPLYs: matching them to calls, opening the workers' leases, sending the answers. Loop thread.
 *
 * Small outputs are copied into the message and released at once. Large ones are sent from where
 * the worker wrote them: core's slices point into the lease, and the last of them to go (on
 * whatever thread core drops it) sends the RELEASE. */
#include "gateway/gw_priv.h"

#include "common/check.h"
#include "common/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COPY_TOTAL 8192u /* answers with outputs up to so many bytes are one slice */
#define COPY_ONE   4096u /* in larger ones, tensors up to so many bytes are copied */

#define LEASE_IDLE_NS (30 * CM_NS_PER_S)
#define LEASES_MAX    1024u

static void finish(struct gw_call *call, const struct cm_record_reply *reply);

/* ---- worker leases ---- */

static struct gw_lease *lease_find(struct gw *gw, const struct cm_slice_ref *slice)
{
    for (struct gw_lease *lease = gw->leases; lease; lease = lease->next)
        if (lease->region == slice->region && lease->generation == slice->generation)
            return lease;
    return NULL;
}

static void lease_remove(struct gw_lease *lease)
{
    struct gw_lease **at = &lease->gw->leases;
    while (*at != lease)
        at = &(*at)->next;
    *at = lease->next;
    atomic_fetch_sub(&lease->gw->n_leases, 1);
    free(lease);
}

/* A worker died between its answer and our opening: once more, with another. */
static void lost_outputs(struct gw_call *call, enum cm_err reason)
{
    gw_held_unref(call->infer.held);
    call->infer.held = NULL;
    if (reason == CM_STALE && call->infer.again == 0) {
        call->infer.again++;
        gw_link_submit_again(call);
        return;
    }
    gw_call_failf(call, CM_UNAVAILABLE, "the worker of this request is gone");
    gw_infer_backend_done(call);
}

static void on_opened(void *ctx, const struct cm_error *error, struct mm_lease *mapped)
{
    struct gw_lease *lease = ctx;
    struct gw_call *waiting = lease->waiting;
    enum cm_err code = mapped ? CM_OK : error->code;
    lease->waiting = NULL;
    lease->lease = mapped;
    lease->used_ns = cm_now_ns();
    if (code != CM_OK)
        lease_remove(lease);
    while (waiting) {
        struct gw_call *call = waiting;
        struct cm_record_reply *reply = call->infer.reply;
        waiting = call->infer.next;
        call->infer.next = NULL;
        call->infer.reply = NULL;
        if (code == CM_OK)
            finish(call, reply);
        else
            lost_outputs(call, code);
        free(reply);
    }
}

/* The mapped lease of a slice; NULL: opening, or it cannot be opened (*ret_code). */
static struct gw_lease *lease_get(struct gw *gw, const struct cm_slice_ref *slice,
                                  enum cm_err *ret_code)
{
    struct gw_lease *lease = lease_find(gw, slice);
    *ret_code = CM_AGAIN;
    if (lease)
        return lease;
    if (atomic_load(&gw->n_leases) >= LEASES_MAX || !(lease = calloc(1, sizeof *lease))) {
        *ret_code = CM_NOMEM;
        return NULL;
    }
    lease->gw = gw;
    lease->region = slice->region;
    lease->generation = slice->generation;
    lease->next = gw->leases;
    gw->leases = lease;
    atomic_fetch_add(&gw->n_leases, 1);
    enum cm_err code =
        mm_client_open(gw->client, slice->region, slice->generation, on_opened, lease);
    if (code != CM_OK) {
        *ret_code = code;
        lease_remove(lease);
        return NULL;
    }
    return lease;
}

void gw_leases_revoked(struct gw *gw, const struct mm_lease *mapped)
{
    for (struct gw_lease *lease = gw->leases; lease; lease = lease->next)
        if (lease->lease == mapped)
            atomic_store_explicit(&lease->revoked, true, memory_order_relaxed);
    gw_leases_tidy(gw, cm_now_ns(), false);
}

void gw_leases_tidy(struct gw *gw, uint64_t now_ns, bool all)
{
    struct gw_lease *next;
    for (struct gw_lease *lease = gw->leases; lease; lease = next) {
        next = lease->next;
        bool over = all || atomic_load_explicit(&lease->revoked, memory_order_relaxed) ||
                    now_ns - lease->used_ns > LEASE_IDLE_NS;
        if (!lease->lease || !over || atomic_load_explicit(&lease->uses, memory_order_acquire) > 0)
            continue;
        mm_client_close_lease(gw->client, lease->lease);
        lease_remove(lease);
    }
}

void gw_leases_fini(struct gw *gw)
{
    while (gw->leases)
        lease_remove(gw->leases);
}

/* ---- answers ---- */

/* One output of an answer and its bytes in the worker's lease. */
struct part {
    struct gw_lease *lease; /* NULL if there are no bytes */
    const unsigned char *data;
};

struct answer {
    struct gw_output outputs[CM_MAX_TENSORS];
    struct part parts[CM_MAX_TENSORS];
    uint32_t n_outputs;
    size_t bytes;
    uint64_t now_ns;
    struct gw_stats stats;
    struct gw_answer wire;
    uint8_t header[GW_ANSWER_HEADER_MAX];
};

/* A reply to this request must have exactly the outputs that it asked for. */
static enum cm_err check_outputs(const struct gw_infer *infer, const struct cm_record_reply *reply)
{
    const struct cm_tensor_desc *descs = cm_reply_outputs(reply);
    if (reply->n_outputs != infer->n_outputs)
        return CM_CORRUPT;
    uint64_t mask = 0;
    for (uint32_t i = 0; i < reply->n_outputs; i++) {
        unsigned index = descs[i].index;
        if (index >= infer->model->n_outputs || mask >> index != 0 ||
            descs[i].dtype != infer->model->outputs[index].dtype)
            return CM_CORRUPT;
        mask |= 1ull << index;
    }
    return mask == infer->submit.output_mask ? CM_OK : CM_CORRUPT;
}

/* Finds every output's bytes, in the order of the answer. CM_AGAIN: ret_wait is being opened. */
static enum cm_err locate(struct gw_call *call, const struct cm_record_reply *reply,
                          struct answer *answer, struct gw_lease **ret_wait)
{
    const struct gw_infer *infer = &call->infer;
    const struct cm_tensor_desc *descs = cm_reply_outputs(reply);
    const struct cm_tensor_desc *by_index[CM_MAX_TENSORS] = {NULL};
    for (uint32_t i = 0; i < reply->n_outputs; i++)
        by_index[descs[i].index] = &descs[i];
    answer->n_outputs = infer->n_outputs;
    answer->bytes = 0;
    for (uint32_t i = 0; i < infer->n_outputs; i++) {
        const struct cm_tensor_desc *desc = by_index[infer->order[i]];
        answer->outputs[i] = (struct gw_output){&infer->model->outputs[infer->order[i]],
                                                cm_desc_shape(desc), desc->slice.length};
        answer->parts[i] = (struct part){NULL, NULL};
        answer->bytes += desc->slice.length;
        if (desc->slice.length == 0)
            continue;
        enum cm_err code;
        struct gw_lease *lease = lease_get(call->gw, &desc->slice, &code);
        if (!lease)
            return code;
        if (!lease->lease) {
            *ret_wait = lease;
            return CM_AGAIN;
        }
        lease->used_ns = answer->now_ns;
        answer->parts[i].lease = lease;
        answer->parts[i].data = mm_lease_resolve(lease->lease, &desc->slice);
        if (!answer->parts[i].data)
            return CM_CORRUPT;
    }
    return CM_OK;
}

static double span_us(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns && to_ns > from_ns ? (double)(to_ns - from_ns) / 1e3 : 0.0;
}

static void fill_stats(const struct gw_call *call, const struct cm_record_reply *reply,
                       uint64_t now, struct gw_stats *stats)
{
    const struct gw_infer *infer = &call->infer;
    const struct cm_stage_times *times = &reply->times;
    *stats = (struct gw_stats){
        .batch_rows = reply->batch_rows,
        .batch_requests = reply->batch_items,
        .worker = reply->trace.device,
        .attempts = reply->attempts,
        .decode_us = span_us(call->arrived_ns, infer->decoded_ns),
        .submit_us = span_us(infer->submitted_ns, times->queued_ns),
        .queue_us = span_us(times->queued_ns, times->dispatched_ns),
        .dispatch_us = span_us(times->dispatched_ns, times->accepted_ns),
        .gather_us = span_us(times->accepted_ns, times->started_ns),
        .execute_us = span_us(times->started_ns, times->finished_ns),
        .return_us = span_us(times->finished_ns, now),
        .total_us = span_us(call->arrived_ns, now),
    };
    snprintf(stats->trace_id, sizeof stats->trace_id, "%016llx",
             (unsigned long long)infer->submit.trace.trace_id);
}

static size_t piece_start(const struct gw_answer *wire, size_t index)
{
    return index == 0 ? 0 : wire->ends[index - 1];
}

/* Small: everything in one slice. */
static grpc_slice join(const struct answer *answer)
{
    const struct gw_answer *wire = &answer->wire;
    grpc_slice slice = grpc_slice_malloc(wire->header.length + answer->bytes);
    uint8_t *to = GRPC_SLICE_START_PTR(slice);
    for (size_t i = 0; i < wire->n_pieces; i++) {
        size_t start = piece_start(wire, i), length = wire->ends[i] - start;
        memcpy(to, wire->header.data + start, length);
        to += length;
        if (i < answer->n_outputs && answer->outputs[i].length > 0) {
            memcpy(to, answer->parts[i].data, answer->outputs[i].length);
            to += answer->outputs[i].length;
        }
    }
    return slice;
}

/* Core has dropped a slice of a worker's memory. Any thread. */
static void on_slice_gone(void *ctx)
{
    struct gw_held *held = ctx;
    struct gw *gw = held->gw;
    gw_held_unref(held);
    gw_link_flush(gw);
}

static void use_lease(struct gw_held *held, struct gw_lease *lease)
{
    for (unsigned i = 0; i < held->n_leases; i++)
        if (held->leases[i] == lease)
            return;
    atomic_fetch_add_explicit(&lease->uses, 1, memory_order_relaxed);
    held->leases[held->n_leases++] = lease;
}

/* Large: header pieces are copied, large tensors stay where they are. Returns the slices' count. */
static size_t point(struct gw_held *held, const struct answer *answer,
                    grpc_slice slices[2 * CM_MAX_TENSORS + 1])
{
    const struct gw_answer *wire = &answer->wire;
    size_t n = 0;
    for (uint32_t i = 0; i < answer->n_outputs; i++)
        if (answer->outputs[i].length > COPY_ONE)
            use_lease(held, answer->parts[i].lease); /* all before the first slice can go */
    for (size_t i = 0; i < wire->n_pieces; i++) {
        size_t start = piece_start(wire, i);
        slices[n++] = grpc_slice_from_copied_buffer((const char *)wire->header.data + start,
                                                    wire->ends[i] - start);
        if (i >= answer->n_outputs || answer->outputs[i].length == 0)
            continue;
        const unsigned char *data = answer->parts[i].data;
        size_t length = answer->outputs[i].length;
        if (length <= COPY_ONE) {
            slices[n++] = grpc_slice_from_copied_buffer((const char *)data, length);
        } else {
            gw_held_ref(held);
            slices[n++] =
                grpc_slice_new_with_user_data((void *)(uintptr_t)data, length, on_slice_gone, held);
        }
    }
    return n;
}

static void send_answer(struct gw_call *call, const struct cm_record_reply *reply,
                        struct answer *answer)
{
    struct gw *gw = call->gw;
    struct gw_infer *infer = &call->infer;
    grpc_slice slices[2 * CM_MAX_TENSORS + 1];
    size_t n = 1;
    fill_stats(call, reply, answer->now_ns, &answer->stats);
    answer->wire.header = (struct gw_put){answer->header, 0, sizeof answer->header};
    bool fits = call->method->oip
                    ? gw_answer_oip(infer->model, answer->outputs, answer->n_outputs,
                                    (struct gw_text){infer->id, atomic_load(&infer->id_length)},
                                    &answer->stats, &answer->wire)
                    : gw_answer_ingot(infer->model, answer->outputs, answer->n_outputs,
                                      &answer->stats, &answer->wire);
    if (!fits) {
        gw_call_failf(call, CM_INTERNAL, "the answer's description is too long");
        return;
    }
    if (!gw_word_take(&call->word, GW_HOLD_SEND))
        return;
    if (answer->bytes <= COPY_TOTAL) {
        slices[0] = join(answer);
    } else {
        n = point(infer->held, answer, slices);
        gw_count(gw, zero_copy, 1);
    }
    gw_count(gw, bytes_out, answer->bytes);
    gw_call_answer_taken(call, slices, n, &answer->stats);
}

/* The end of a call's stay with the backend: outputs and inputs go. */
static void done(struct gw_call *call)
{
    gw_held_unref(call->infer.held);
    call->infer.held = NULL;
    gw_infer_backend_done(call);
}

/* Waits for a lease with a copy of the reply: the original is the channel's buffer. */
static enum cm_err wait_for(struct gw_lease *lease, struct gw_call *call,
                            const struct cm_record_reply *reply)
{
    size_t bytes = sizeof *reply + reply->n_outputs * sizeof(struct cm_tensor_desc);
    struct cm_record_reply *copy = malloc(bytes);
    if (!copy)
        return CM_NOMEM;
    memcpy(copy, reply, bytes);
    call->infer.reply = copy;
    call->infer.next = lease->waiting;
    lease->waiting = call;
    return CM_OK;
}

/* A reply with outputs, whose leases may have to be opened first. */
static void finish(struct gw_call *call, const struct cm_record_reply *reply)
{
    struct answer answer;
    struct gw_lease *wait = NULL;
    if (gw_word_state(&call->word) == GW_CALL_ANSWERED) {
        done(call);
        return;
    }
    answer.now_ns = cm_now_ns();
    enum cm_err code = check_outputs(&call->infer, reply);
    if (code == CM_OK)
        code = locate(call, reply, &answer, &wait);
    if (code == CM_AGAIN)
        code = wait_for(wait, call, reply);
    if (wait && code == CM_OK)
        return;
    if (code == CM_OK) {
        send_answer(call, reply, &answer);
    } else if (code == CM_CORRUPT) {
        gw_count(call->gw, bad_replies, 1);
        gw_call_failf(call, CM_INTERNAL, "the answer does not fit the request");
    } else {
        gw_call_failf(call, CM_UNAVAILABLE, "the answer could not be taken: %s", cm_err_text(code));
    }
    done(call);
}

static void failed(struct gw_call *call, const struct cm_record_reply *reply)
{
    enum cm_err code = (enum cm_err)reply->status;
    if (code == CM_STALE && call->infer.again == 0 &&
        gw_word_state(&call->word) != GW_CALL_ANSWERED) {
        /* The model was replaced between the table that we used and the scheduler's. */
        call->infer.again++;
        gw_link_submit_again(call);
        return;
    }
    if (reply->text_length > 0)
        gw_call_failf(call, code, "%.*s", (int)reply->text_length, cm_reply_text(reply));
    else
        gw_call_failf(call, code, "%s", cm_err_text(code));
    gw_infer_backend_done(call);
}

void gw_reply_record(struct gw *gw, const struct cm_record_reply *reply)
{
    gw_count(gw, replies, 1);
    struct gw_call *call = gw_link_replied(gw, reply->request);
    struct gw_held *held = NULL;
    if (reply->status == CM_OK)
        held = gw_held_create(gw, &reply->slab);
    if (!call) {
        gw_count(gw, bad_replies, 1);
        gw_held_unref(held);
        return;
    }
    if (reply->status != CM_OK) {
        failed(call, reply);
        return;
    }
    call->infer.held = held;
    if (held) {
        finish(call, reply);
        return;
    }
    gw_call_failf(call, CM_NOMEM, "no memory for the answer");
    gw_infer_backend_done(call);
}
