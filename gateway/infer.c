/* An infer call from its received bytes to SUBMIT, and its ends that are not a REPLY.
 *
 * Decoding runs on the queue thread; on the loop's for requests that waited for memory. Whoever
 * decodes owns the hold RECEIVE. */
#include "gateway/gw_priv.h"

#include "common/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Messages in up to so many pieces need no allocation to be walked. */
#define SEGMENTS_INLINE 64

static void gather_segments(const grpc_slice_buffer *from, struct gw_wire_segment *to)
{
    for (size_t i = 0; i < from->count; i++) {
        const grpc_slice *slice = &from->slices[i];
        to[i] = (struct gw_wire_segment){GRPC_SLICE_START_PTR(*slice), GRPC_SLICE_LENGTH(*slice)};
    }
}

/* The earliest of core's deadline, our maximum and what the client said elsewhere. */
static void tighten_deadline(struct gw_call *call, uint64_t timeout_us)
{
    if (timeout_us == 0)
        return;
    uint64_t delay =
        timeout_us > UINT64_MAX / CM_NS_PER_US ? UINT64_MAX : timeout_us * CM_NS_PER_US;
    uint64_t at = cm_time_add(call->arrived_ns, delay);
    if (at >= call->deadline_ns)
        return;
    call->deadline_ns = at;
    atomic_store_explicit(&call->expires_ns, at, memory_order_release);
}

/* For the answer and, where it is harmless, for errors. */
static void keep_id(struct gw_call *call, struct gw_text id)
{
    if (id.length > GW_ID_MAX)
        return;
    memcpy(call->infer.id, id.data, id.length);
    atomic_store_explicit(&call->infer.id_length, (uint16_t)id.length,
                          memory_order_release); /* I1: pairs with I2 */
}

static void fill_submit(struct gw_call *call, const struct gw_request *request,
                        const struct gw_plan *plan)
{
    struct gw *gw = call->gw;
    struct gw_infer *infer = &call->infer;
    uint32_t number = atomic_load_explicit(&gw->process_number, memory_order_relaxed);
    uint32_t sequence = atomic_fetch_add_explicit(&gw->trace_sequence, 1, memory_order_relaxed);
    uint8_t priority = call->context.priority ? call->context.priority : request->priority;
    infer->submit = (struct cm_record_submit){
        .trace = {cm_trace_id(cm_realtime_ns(), number, sequence), sequence, CM_STAGE_SUBMIT,
                  CM_NO_DEVICE},
        .request = gw_call_handle(call),
        .deadline_ns = call->deadline_ns,
        .received_ns = call->arrived_ns,
        .output_mask = plan->output_mask,
        .rows = plan->rows,
        .priority = priority,
        .n_inputs = plan->n_inputs,
    };
    for (unsigned i = 0; i < plan->n_inputs; i++) {
        const struct cm_shape *shape = &request->inputs[plan->source[i]].shape;
        struct cm_tensor_desc *desc = &infer->inputs[i];
        memset(desc, 0, sizeof *desc);
        desc->slice.region = infer->block.region;
        desc->slice.generation = infer->block.generation;
        desc->slice.offset = infer->block.offset + plan->offset[i];
        desc->slice.length = plan->length[i];
        memcpy(desc->dims, shape->dims, shape->rank * sizeof shape->dims[0]);
        desc->dtype = (uint8_t)infer->model->inputs[i].dtype;
        desc->rank = shape->rank;
        desc->index = (uint8_t)i;
    }
    infer->n_outputs = plan->n_outputs;
    memcpy(infer->order, plan->order, plan->n_outputs);
}

/* Finds the model and keeps a reference. */
static enum cm_err find_model(struct gw_call *call, const struct gw_request *request,
                              struct cm_error *err)
{
    struct gw_models *models = gw_models_now(call->gw);
    if (!models)
        return cm_fail(err, CM_UNAVAILABLE, "the cluster is starting");
    struct gw_model *model = NULL;
    enum cm_err code = gw_models_find(models, request->model.data, request->model.length,
                                      request->version.data, request->version.length, err, &model);
    if (code == CM_NOT_FOUND && !models->settled)
        code = cm_fail(err, CM_UNAVAILABLE, "the cluster is starting");
    if (code == CM_OK)
        code = gw_model_usable(model, err);
    if (code == CM_OK) {
        gw_model_unref(call->infer.model);
        call->infer.model = gw_model_ref(model);
    }
    gw_models_unref(models);
    return code;
}

/* Everything from bytes to a filled SUBMIT. CM_FULL: there is no memory just now. */
static enum cm_err decode_message(struct gw_call *call, struct gw_wire message,
                                  struct cm_error *err)
{
    struct gw *gw = call->gw;
    struct gw_infer *infer = &call->infer;
    struct gw_request request;
    struct gw_plan plan;
    enum cm_err code = call->method->oip ? gw_parse_oip(message, &request, err)
                                         : gw_parse_ingot(message, &request, err);
    keep_id(call, request.id);
    if (code == CM_OK)
        code = find_model(call, &request, err);
    if (code == CM_OK)
        code = gw_request_check(&request, infer->model, err, &plan);
    if (code != CM_OK)
        return code;
    tighten_deadline(call, request.timeout_us);
    if (call->deadline_ns <= cm_now_ns())
        return cm_fail(err, CM_DEADLINE, "the deadline has passed");
    code = gw_arena_alloc(gw->arena, plan.bytes, &infer->block);
    if (code == CM_LIMIT)
        return cm_fail(err, CM_LIMIT, "no memory for %zu bytes of inputs", plan.bytes);
    if (code != CM_OK)
        return CM_FULL;
    code = gw_request_copy(&request, infer->model, &plan, infer->block.base, err);
    if (code != CM_OK) {
        gw_arena_free(gw->arena, &infer->block);
        return code;
    }
    gw_count(gw, bytes_in, plan.bytes);
    fill_submit(call, &request, &plan);
    infer->decoded_ns = cm_now_ns();
    return CM_OK;
}

static enum cm_err decode(struct gw_call *call, struct cm_error *err)
{
    const grpc_byte_buffer *received = call->received;
    if (received->type != GRPC_BB_RAW || received->data.raw.compression != GRPC_COMPRESS_NONE)
        return cm_fail(err, CM_UNSUPPORTED, "compressed messages are not supported");
    const grpc_slice_buffer *slices = &received->data.raw.slice_buffer;
    struct gw_wire_segment few[SEGMENTS_INLINE], *segments = few;
    if (slices->count > SEGMENTS_INLINE && !(segments = malloc(slices->count * sizeof *segments)))
        return cm_fail(err, CM_NOMEM, "no memory for the request");
    segments[0] = (struct gw_wire_segment){NULL, 0}; /* an empty message has no slices */
    gather_segments(slices, segments);
    struct gw_wire message;
    gw_wire_init(&message, segments, slices->count);
    enum cm_err code = decode_message(call, message, err);
    if (segments != few)
        free(segments);
    return code;
}

void gw_infer_backend_done(struct gw_call *call)
{
    struct gw *gw = call->gw;
    gw_arena_free(gw->arena, &call->infer.block);
    if (atomic_load_explicit(&gw->n_parked, memory_order_relaxed) > 0)
        gw_kick(gw, GW_KICK_MEMORY);
    gw_call_drop(call, GW_HOLD_BACKEND);
}

/* False: the stop has begun, which asks for no more memory and has let go of all that waited. */
static bool park(struct gw_call *call)
{
    struct gw *gw = call->gw;
    pthread_mutex_lock(&gw->parked_lock);
    bool draining = atomic_load_explicit(&gw->draining, memory_order_relaxed);
    if (!draining) {
        call->infer.next = gw->parked;
        gw->parked = call;
        atomic_fetch_add(&gw->n_parked, 1);
    }
    pthread_mutex_unlock(&gw->parked_lock);
    if (draining)
        return false;
    gw_count(gw, waited_for_memory, 1);
    gw_kick(gw, GW_KICK_GROW);
    return true;
}

/* A decoded request goes to the scheduler, unless its client was faster. */
static void submit(struct gw_call *call)
{
    if (!gw_word_queue(&call->word)) {
        gw_arena_free(call->gw->arena, &call->infer.block);
        return;
    }
    enum cm_err code = gw_link_submit(call);
    if (code == CM_OK) {
        gw_infer_watch_deadline(call);
        return;
    }
    if (code == CM_FULL)
        gw_call_failf(call, CM_FULL, "too many requests are waiting");
    gw_infer_backend_done(call);
}

/* Decodes and submits; RECEIVE is dropped unless the call is parked. */
static void try_decode(struct gw_call *call)
{
    struct cm_error error;
    enum cm_err code = decode(call, &error);
    if (code == CM_FULL) {
        if (park(call))
            return;
        cm_fail(&error, CM_UNAVAILABLE, "the server is going away");
    }
    if (code == CM_OK)
        submit(call);
    else
        gw_call_fail(call, &error);
    gw_call_drop(call, GW_HOLD_RECEIVE);
}

void gw_infer_received(struct gw_call *call)
{
    if (gw_word_state(&call->word) == GW_CALL_ANSWERED) { /* late, or its client is gone */
        gw_call_drop(call, GW_HOLD_RECEIVE);
        return;
    }
    if (!call->received) { /* half-closed without a message, or died in mid-upload */
        gw_call_failf(call, CM_INVALID, "the call has no message");
        gw_call_drop(call, GW_HOLD_RECEIVE);
        return;
    }
    try_decode(call);
}

void gw_infer_unpark(struct gw *gw, const struct cm_error *error)
{
    pthread_mutex_lock(&gw->parked_lock);
    struct gw_call *list = gw->parked;
    gw->parked = NULL;
    pthread_mutex_unlock(&gw->parked_lock);
    /* Oldest first: the list was pushed at its head. */
    struct gw_call *ordered = NULL;
    while (list) {
        struct gw_call *next = list->infer.next;
        list->infer.next = ordered;
        ordered = list;
        list = next;
    }
    while (ordered) {
        struct gw_call *call = ordered;
        ordered = call->infer.next;
        call->infer.next = NULL;
        atomic_fetch_sub(&gw->n_parked, 1);
        if (gw_word_state(&call->word) == GW_CALL_ANSWERED) {
            gw_call_drop(call, GW_HOLD_RECEIVE);
        } else if (error) {
            gw_call_fail(call, error);
            gw_call_drop(call, GW_HOLD_RECEIVE);
        } else {
            try_decode(call);
        }
    }
}

void gw_infer_abandoned(struct gw_call *call)
{
    if (gw_word_holds(&call->word, GW_HOLD_BACKEND) && gw_link_cancel(call))
        gw_infer_backend_done(call);
}

void gw_infer_watch_deadline(struct gw_call *call)
{
    struct gw *gw = call->gw;
    uint64_t at = atomic_load_explicit(&call->expires_ns, memory_order_relaxed);
    uint64_t due = atomic_load(&gw->due_ns);
    while (at < due)
        if (atomic_compare_exchange_weak(&gw->due_ns, &due, at)) {
            gw_kick(gw, GW_KICK_DEADLINE);
            return;
        }
}

/* One slot of the scan: answers it if it is late, else tells when it will be. */
static uint64_t expire_one(struct gw_call *call, uint64_t now_ns)
{
    enum gw_call_state state = gw_word_state(&call->word);
    if (state != GW_CALL_OPEN && state != GW_CALL_QUEUED)
        return CM_NEVER;
    /* The slot may get another call at any time; the generation makes that harmless. */
    uint32_t generation = gw_word_generation(&call->word);
    uint64_t at = atomic_load_explicit(&call->expires_ns, memory_order_acquire);
    if (at > now_ns)
        return at;
    if (!gw_word_take_if(&call->word, generation, GW_HOLD_SEND))
        return CM_NEVER;
    gw_call_answer_late(call);
    return CM_NEVER;
}

void gw_infer_expire(struct gw *gw, uint64_t now_ns)
{
    /* Before the scan: a call that comes during it lowers this by itself. */
    atomic_store(&gw->due_ns, CM_NEVER);
    uint64_t next = CM_NEVER;
    uint32_t fresh = atomic_load_explicit(&gw->calls.fresh, memory_order_acquire);
    for (uint32_t i = 0; i < fresh; i++) {
        uint64_t at = expire_one(&gw->calls.slots[i], now_ns);
        if (at < next)
            next = at;
    }
    uint64_t due = atomic_load(&gw->due_ns);
    while (next < due && !atomic_compare_exchange_weak(&gw->due_ns, &due, next))
        continue;
}
