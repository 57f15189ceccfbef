/* Call slots, their holds and their answers. Any thread: see call_state.h for who may do what. */
#include "gateway/gw_priv.h"

#include "common/check.h"
#include "common/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum cm_err gw_calls_init(struct gw *gw, uint32_t capacity)
{
    struct gw_calls *calls = &gw->calls;
    /* Untouched pages cost nothing: the table is as large as its limit, its memory as its use. */
    void *memory = mmap(NULL, capacity * sizeof(struct gw_call), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return CM_NOMEM;
    calls->slots = memory;
    calls->capacity = capacity;
    pthread_mutex_init(&calls->lock, NULL);
    return CM_OK;
}

void gw_calls_fini(struct gw *gw)
{
    struct gw_calls *calls = &gw->calls;
    if (!calls->slots)
        return;
    for (uint32_t i = 0; i < atomic_load(&calls->fresh); i++)
        CM_ASSERT(gw_word_state(&calls->slots[i].word) == GW_CALL_FREE);
    munmap(calls->slots, calls->capacity * sizeof(struct gw_call));
    pthread_mutex_destroy(&calls->lock);
}

static void slot_init(struct gw *gw, struct gw_call *call, uint32_t index)
{
    call->index = index;
    call->gw = gw;
    for (int kind = GW_TAG_NEW; kind <= GW_TAG_CLOSE; kind++) {
        call->tags[kind] = (struct gw_tag){(enum gw_tag_kind)kind, call};
        call->events[kind].call = call;
        call->events[kind].kind = (enum gw_tag_kind)kind;
    }
}

/* All but the large arrays, which are written before they are read. */
static void infer_init(struct gw_infer *infer)
{
    infer->model = NULL;
    infer->block = (struct gw_block){0};
    atomic_store_explicit(&infer->id_length, 0, memory_order_relaxed);
    infer->again = 0;
    infer->held = NULL;
    infer->reply = NULL;
    infer->next = NULL;
}

struct gw_call *gw_call_arm(struct gw *gw, struct gw_method *method)
{
    struct gw_calls *calls = &gw->calls;
    pthread_mutex_lock(&calls->lock);
    struct gw_call *call = calls->free;
    uint32_t fresh = atomic_load_explicit(&calls->fresh, memory_order_relaxed);
    if (call) {
        calls->free = call->free_next;
    } else if (fresh < calls->capacity) {
        call = &calls->slots[fresh];
        slot_init(gw, call, fresh);
        atomic_store_explicit(&calls->fresh, fresh + 1, memory_order_release);
    } else {
        method->missing++;
        calls->missing++;
    }
    pthread_mutex_unlock(&calls->lock);
    if (!call)
        return NULL;
    call->method = method;
    call->core = NULL;
    call->received = NULL;
    call->sending = NULL;
    call->cancelled = 0;
    call->stream_started = false;
    call->counted = false;
    call->deadline_ns = CM_NEVER;
    atomic_store_explicit(&call->expires_ns, CM_NEVER, memory_order_relaxed);
    memset(&call->context, 0, sizeof call->context);
    if (method->kind == GW_KIND_WATCH)
        memset(&call->watch, 0, sizeof call->watch);
    else if (method->kind == GW_KIND_INFER)
        infer_init(&call->infer);
    grpc_metadata_array_init(&call->metadata);
    if (method->kind == GW_KIND_GENERIC)
        grpc_call_details_init(&call->details);
    gw_word_arm(&call->word);
    return call;
}

/* A cleaned slot goes back. True: somebody waits for one. */
static bool slot_put(struct gw_call *call)
{
    struct gw *gw = call->gw;
    pthread_mutex_lock(&gw->calls.lock);
    call->free_next = gw->calls.free;
    gw->calls.free = call;
    bool missing = gw->calls.missing > 0;
    pthread_mutex_unlock(&gw->calls.lock);
    return missing;
}

static void slot_clean(struct gw_call *call)
{
    grpc_metadata_array_destroy(&call->metadata);
    if (call->method->kind == GW_KIND_GENERIC)
        grpc_call_details_destroy(&call->details);
}

void gw_call_disarm(struct gw_call *call)
{
    slot_clean(call);
    gw_word_disarm(&call->word);
    slot_put(call);
}

uint64_t gw_call_handle(const struct gw_call *call)
{
    return (uint64_t)gw_word_generation(&call->word) << 32 | call->index;
}

struct gw_call *gw_call_slot(struct gw *gw, uint64_t handle)
{
    uint32_t index = (uint32_t)handle;
    if (index >= atomic_load_explicit(&gw->calls.fresh, memory_order_acquire))
        return NULL;
    return &gw->calls.slots[index];
}

/* Core's last hold is gone. */
static void let_core_go(struct gw_call *call)
{
    if (call->received)
        grpc_byte_buffer_destroy(call->received);
    if (call->sending)
        grpc_byte_buffer_destroy(call->sending);
    call->received = call->sending = NULL;
    slot_clean(call);
    grpc_call_unref(call->core);
    call->core = NULL;
}

static void slot_free(struct gw_call *call)
{
    struct gw *gw = call->gw;
    if (call->method->kind == GW_KIND_INFER) {
        CM_ASSERT(!call->infer.block.base && !call->infer.held && !call->infer.reply);
        gw_model_unref(call->infer.model);
        call->infer.model = NULL;
    }
    if (call->counted)
        atomic_fetch_sub(gw_is_stream(call->method) ? &gw->streams : &gw->in_flight, 1);
    atomic_fetch_sub(&gw->open_calls, 1);
    gw_word_free(&call->word);
    if (slot_put(call))
        gw_server_rearm(gw);
}

void gw_call_drop(struct gw_call *call, uint32_t hold)
{
    struct gw_dropped dropped = gw_word_drop(&call->word, hold);
    if (dropped.core) {
        let_core_go(call);
        dropped = gw_word_drop(&call->word, GW_HOLD_LETGO);
    }
    if (dropped.all)
        slot_free(call);
}

static void start_batch(struct gw_call *call, const grpc_op *ops, size_t count,
                        enum gw_tag_kind kind)
{
    grpc_call_error error = grpc_call_start_batch(call->core, ops, count, &call->tags[kind], NULL);
    /* Every value but OK means that we broke core's rules. */
    CM_ASSERT(error == GRPC_CALL_OK);
}

/* The id for errors and logs, in buffer: the context's, else the message's own if it is a plain
 * word. Empty: none. */
static const char *request_id(const struct gw_call *call, char buffer[GW_REQUEST_ID_MAX + 1])
{
    const struct gw_infer *infer = &call->infer;
    if (call->context.request_id[0])
        return call->context.request_id;
    buffer[0] = 0;
    if (call->method->kind != GW_KIND_INFER)
        return buffer;
    /* I2: pairs with I1: the whole id, or none yet. */
    size_t length = atomic_load_explicit(&infer->id_length, memory_order_acquire);
    if (length <= GW_REQUEST_ID_MAX && gw_word_valid(infer->id, length)) {
        memcpy(buffer, infer->id, length);
        buffer[length] = 0;
    }
    return buffer;
}

#define STATS_MAX 256

/* The trailing metadata of an answer. */
struct trailers {
    grpc_metadata items[3];
    size_t count;
};

static void add_trailer(struct trailers *trailers, const char *key, grpc_slice value)
{
    grpc_metadata *item = &trailers->items[trailers->count++];
    memset(item, 0, sizeof *item);
    item->key = grpc_slice_from_static_string(key);
    item->value = value;
}

static void send_status(struct gw_call *call, grpc_status_code code, const char *text,
                        struct trailers *trailers)
{
    grpc_op ops[3];
    size_t n = 0;
    memset(ops, 0, sizeof ops);
    if (!call->stream_started)
        ops[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
    call->stream_started = true;
    if (call->sending) {
        ops[n].op = GRPC_OP_SEND_MESSAGE;
        ops[n++].data.send_message.send_message = call->sending;
    }
    grpc_slice details = grpc_slice_from_copied_string(text ? text : "");
    ops[n].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    ops[n].data.send_status_from_server.trailing_metadata_count = trailers->count;
    ops[n].data.send_status_from_server.trailing_metadata = trailers->items;
    ops[n].data.send_status_from_server.status = code;
    ops[n++].data.send_status_from_server.status_details = text ? &details : NULL;
    atomic_fetch_add_explicit(&call->gw->counters.by_status[code], 1, memory_order_relaxed);
    if (code == GRPC_STATUS_OK)
        gw_count(call->gw, ok, 1);
    start_batch(call, ops, n, GW_TAG_SEND);
    grpc_slice_unref(details);
    for (size_t i = 0; i < trailers->count; i++)
        grpc_slice_unref(trailers->items[i].value);
}

/* A stream's last message has been sent: it must not go out again with the status. */
static void drop_sent(struct gw_call *call)
{
    if (call->sending)
        grpc_byte_buffer_destroy(call->sending);
    call->sending = NULL;
}

/* Failures that are ours; a client's mistakes are counted, not logged. */
static void log_failure(const struct gw_call *call, grpc_status_code code, const char *reason,
                        const char *id)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct cm_log_limit limit; /* under lock */
    uint64_t suppressed;
    pthread_mutex_lock(&lock);
    bool allowed = cm_log_allowed(&limit, cm_now_ns(), &suppressed);
    pthread_mutex_unlock(&lock);
    if (allowed)
        cm_log(CM_LOG_ERROR, "call_failed",
               "code=%s reason=%s request_id=%s traceparent=%s suppressed=%llu",
               gw_status_name(code), reason, id, call->context.traceparent,
               (unsigned long long)suppressed);
}

static void fail_taken(struct gw_call *call, const struct cm_error *error)
{
    drop_sent(call);
    struct gw_status status = gw_status_from(error->code);
    struct trailers trailers = {.count = 0};
    char text[sizeof error->text + GW_REQUEST_ID_MAX + 32];
    char pushback[16];
    char buffer[GW_REQUEST_ID_MAX + 1];
    const char *id = request_id(call, buffer);
    if (id[0]) {
        snprintf(text, sizeof text, "%s (request id: %s)", error->text, id);
        add_trailer(&trailers, "x-request-id", grpc_slice_from_copied_string(id));
    } else {
        snprintf(text, sizeof text, "%s", error->text);
    }
    if (status.pushback_ms != 0) {
        snprintf(pushback, sizeof pushback, "%d", status.pushback_ms);
        add_trailer(&trailers, "grpc-retry-pushback-ms", grpc_slice_from_copied_string(pushback));
    }
    if (status.code == GRPC_STATUS_INTERNAL || status.code == GRPC_STATUS_DATA_LOSS)
        log_failure(call, status.code, error->text, id);
    send_status(call, status.code, text, &trailers);
}

bool gw_call_fail(struct gw_call *call, const struct cm_error *error)
{
    if (!gw_word_take(&call->word, GW_HOLD_SEND))
        return false;
    fail_taken(call, error);
    return true;
}

void gw_call_answer_late(struct gw_call *call)
{
    struct cm_error error;
    cm_fail(&error, CM_DEADLINE, "the deadline has passed");
    /* BACKEND first: after the status core may end the call on the other thread. */
    gw_infer_abandoned(call);
    fail_taken(call, &error);
}

bool gw_call_failf(struct gw_call *call, enum cm_err code, const char *format, ...)
{
    struct cm_error error = {.code = code};
    va_list args;
    va_start(args, format);
    vsnprintf(error.text, sizeof error.text, format, args);
    va_end(args);
    return gw_call_fail(call, &error);
}

void gw_call_answer_taken(struct gw_call *call, grpc_slice *slices, size_t count,
                          const struct gw_stats *stats)
{
    struct trailers trailers = {.count = 0};
    uint8_t packed[STATS_MAX];
    call->sending = grpc_raw_byte_buffer_create(slices, count);
    for (size_t i = 0; i < count; i++)
        grpc_slice_unref(slices[i]); /* the buffer has its own references */
    if (stats && call->context.want_stats) {
        struct gw_put put = {packed, 0, sizeof packed};
        gw_put_stats(&put, stats);
        CM_ASSERT(put.length <= put.capacity);
        add_trailer(&trailers, "x-ingot-stats-bin",
                    grpc_slice_from_copied_buffer((const char *)packed, put.length));
    }
    send_status(call, GRPC_STATUS_OK, NULL, &trailers);
}

bool gw_call_answer(struct gw_call *call, const void *bytes, size_t length)
{
    if (!gw_word_take(&call->word, GW_HOLD_SEND))
        return false;
    grpc_slice slice = grpc_slice_from_copied_buffer(bytes, length);
    gw_call_answer_taken(call, &slice, 1, NULL);
    return true;
}

bool gw_call_send_message(struct gw_call *call, const void *bytes, size_t length)
{
    if (!gw_word_hold(&call->word, GW_HOLD_SEND))
        return false;
    grpc_op ops[2];
    size_t n = 0;
    memset(ops, 0, sizeof ops);
    if (!call->stream_started)
        ops[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
    call->stream_started = true;
    if (call->sending)
        grpc_byte_buffer_destroy(call->sending);
    grpc_slice slice = grpc_slice_from_copied_buffer(bytes, length);
    call->sending = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    ops[n].op = GRPC_OP_SEND_MESSAGE;
    ops[n++].data.send_message.send_message = call->sending;
    start_batch(call, ops, n, GW_TAG_SEND);
    return true;
}

bool gw_call_receive(struct gw_call *call)
{
    if (!gw_word_hold(&call->word, GW_HOLD_RECEIVE))
        return false;
    if (call->received)
        grpc_byte_buffer_destroy(call->received);
    call->received = NULL;
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &call->received;
    start_batch(call, &op, 1, GW_TAG_RECEIVE);
    return true;
}

bool gw_call_finish(struct gw_call *call)
{
    if (!gw_word_take(&call->word, GW_HOLD_SEND))
        return false;
    drop_sent(call);
    struct trailers trailers = {.count = 0};
    send_status(call, GRPC_STATUS_OK, NULL, &trailers);
    return true;
}

enum cm_err gw_flatten(grpc_byte_buffer *from, void *buffer, size_t size, size_t *ret_length)
{
    size_t length = grpc_byte_buffer_length(from);
    if (length > size)
        return CM_LIMIT;
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, from))
        return CM_CORRUPT;
    size_t at = 0;
    grpc_slice *slice;
    while (grpc_byte_buffer_reader_peek(&reader, &slice)) {
        size_t n = GRPC_SLICE_LENGTH(*slice);
        CM_ASSERT(n <= size - at);
        memcpy((char *)buffer + at, GRPC_SLICE_START_PTR(*slice), n);
        at += n;
    }
    grpc_byte_buffer_reader_destroy(&reader);
    *ret_length = at;
    return CM_OK;
}
