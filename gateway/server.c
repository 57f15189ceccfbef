/* gRPC core: the server, its arguments, the methods, and the completion-queue thread.
 *
 * The queue thread takes every event of core. A new call is armed again first, then opened, checked
 * and asked for its message; an infer call's message is decoded and submitted here; small calls are
 * answered here; a health watch's events are passed to the loop. */
#include "gateway/gw_priv.h"

#include "common/check.h"
#include "common/log.h"
#include "gateway/accept_guard.h"

#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Bytes of a request that carries no tensors. */
#define SMALL_MAX 65536u

/* Slots of other unary calls, half of which may be in use, and of those that are armed or refused.
 */
#define SMALL_CALLS 1024u

#define OIP "/inference.GRPCInferenceService/"

static struct gw_method methods[] = {
    {.path = "/ingot.v1.Inference/Infer", .kind = GW_KIND_INFER, .armed = 64},
    {.path = OIP "ModelInfer", .kind = GW_KIND_INFER, .oip = true, .armed = 64},
    {.path = OIP "ServerLive", .kind = GW_KIND_UNARY, .handle = gw_server_live, .armed = 8},
    {.path = OIP "ServerReady", .kind = GW_KIND_UNARY, .handle = gw_server_ready, .armed = 8},
    {.path = OIP "ModelReady", .kind = GW_KIND_UNARY, .handle = gw_model_ready, .armed = 8},
    {.path = OIP "ServerMetadata", .kind = GW_KIND_UNARY, .handle = gw_server_metadata, .armed = 8},
    {.path = OIP "ModelMetadata", .kind = GW_KIND_UNARY, .handle = gw_model_metadata, .armed = 8},
    {.path = "/grpc.health.v1.Health/Check",
     .kind = GW_KIND_UNARY,
     .handle = gw_health_check,
     .armed = 8},
    {.path = "/grpc.health.v1.Health/Watch", .kind = GW_KIND_WATCH, .armed = 8},
    {.path = NULL, .kind = GW_KIND_GENERIC, .armed = 16},
    /* The last two only with reflection on. */
    {.path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
     .kind = GW_KIND_REFLECT,
     .armed = 4},
    {.path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
     .kind = GW_KIND_REFLECT,
     .armed = 4},
};

static size_t method_count(const struct gw *gw)
{
    return CM_COUNT_OF(methods) - (gw->reflection ? 0 : 2);
}

/* ---- arming ---- */

void gw_server_arm(struct gw *gw, struct gw_method *method)
{
    struct gw_call *call = gw_call_arm(gw, method);
    if (!call)
        return; /* a slot that comes back arms it */
    grpc_call_error error;
    if (method->kind == GW_KIND_GENERIC)
        error = grpc_server_request_call(gw->server, &call->core, &call->details, &call->metadata,
                                         gw->queue, gw->queue, &call->tags[GW_TAG_NEW]);
    else
        error = grpc_server_request_registered_call(gw->server, method->registered, &call->core,
                                                    &call->core_deadline, &call->metadata, NULL,
                                                    gw->queue, gw->queue, &call->tags[GW_TAG_NEW]);
    /* Anything else would be our mistake; a server that shuts down completes the tag with 0. */
    CM_ASSERT(error == GRPC_CALL_OK || error == GRPC_CALL_ERROR_COMPLETION_QUEUE_SHUTDOWN);
    if (error != GRPC_CALL_OK)
        gw_call_disarm(call);
}

/* A method that lacks slots; NULL: none, or the server is shutting down. */
static struct gw_method *take_missing(struct gw *gw)
{
    struct gw_method *found = NULL;
    pthread_mutex_lock(&gw->calls.lock);
    for (size_t i = 0; i < method_count(gw) && gw->calls.missing > 0 && !found; i++) {
        if (methods[i].missing == 0)
            continue;
        found = &methods[i];
        found->missing--;
        gw->calls.missing--;
    }
    pthread_mutex_unlock(&gw->calls.lock);
    return found;
}

void gw_server_rearm(struct gw *gw)
{
    if (atomic_load(&gw->shut_down))
        return;
    struct gw_method *method = take_missing(gw);
    if (method)
        gw_server_arm(gw, method);
}

/* ---- new calls ---- */

/* Realtime to monotonic, at once: what the clock does later must not matter. */
static uint64_t monotonic_deadline(gpr_timespec deadline, uint64_t now_ns)
{
    if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0)
        return CM_NEVER;
    gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
    if (left.tv_sec < 0)
        return 0;
    if (left.tv_sec > INT_MAX)
        return CM_NEVER;
    return now_ns + (uint64_t)left.tv_sec * CM_NS_PER_S + (uint64_t)left.tv_nsec;
}

static bool key_is(const grpc_metadata *item, const char *key)
{
    return grpc_slice_str_cmp(item->key, key) == 0;
}

/* CM_INVALID: a malformed x-request-context. Of several the last counts. */
static enum cm_err read_metadata(struct gw_call *call, struct cm_error *err)
{
    enum cm_err code = CM_OK;
    for (size_t i = 0; i < call->metadata.count && code == CM_OK; i++) {
        const grpc_metadata *item = &call->metadata.metadata[i];
        const void *value = GRPC_SLICE_START_PTR(item->value);
        size_t length = GRPC_SLICE_LENGTH(item->value);
        if (key_is(item, "x-request-context"))
            code = gw_context_parse(value, length, err, &call->context);
        else if (key_is(item, "traceparent"))
            gw_context_traceparent(&call->context, value, length);
    }
    return code;
}

static void set_deadline(struct gw_call *call)
{
    uint64_t core = monotonic_deadline(call->core_deadline, call->arrived_ns);
    uint64_t most = cm_time_add(call->arrived_ns, call->gw->options.max_deadline_ms * CM_NS_PER_MS);
    call->deadline_ns = core < most ? core : most;
    if (call->context.timeout_us > 0 && call->context.timeout_us < UINT64_MAX / CM_NS_PER_US) {
        uint64_t said = cm_time_add(call->arrived_ns, call->context.timeout_us * CM_NS_PER_US);
        if (said < call->deadline_ns)
            call->deadline_ns = said;
    }
    if (call->deadline_ns < core) {
        atomic_store_explicit(&call->expires_ns, call->deadline_ns, memory_order_release);
        gw_infer_watch_deadline(call);
    }
}

/* Limits of the calls that are open at a time, per kind. */
static enum cm_err admit_one(struct gw_call *call, struct cm_error *err)
{
    struct gw *gw = call->gw;
    if (call->method->kind == GW_KIND_UNARY) {
        unsigned others =
            atomic_load(&gw->open_calls) - atomic_load(&gw->in_flight) - atomic_load(&gw->streams);
        return others > SMALL_CALLS / 2 ? cm_fail(err, CM_FULL, "too many calls are open") : CM_OK;
    }
    call->counted = true;
    if (call->method->kind != GW_KIND_INFER)
        return atomic_fetch_add(&gw->streams, 1) >= gw->options.max_connections
                   ? cm_fail(err, CM_FULL, "too many streams are open")
                   : CM_OK;
    if (atomic_fetch_add(&gw->in_flight, 1) >= gw->options.max_calls) {
        gw_count(gw, refused_calls, 1);
        return cm_fail(err, CM_FULL, "too many calls are open");
    }
    return read_metadata(call, err);
}

/* What is refused before a byte of the message is read. */
static enum cm_err admit(struct gw_call *call, struct cm_error *err)
{
    if (call->method->kind == GW_KIND_GENERIC)
        return cm_fail(err, CM_UNSUPPORTED, "unknown method");
    if (atomic_load_explicit(&call->gw->draining, memory_order_relaxed))
        return cm_fail(err, CM_UNAVAILABLE, "the server is going away");
    enum cm_err code = admit_one(call, err);
    if (code != CM_OK || gw_is_stream(call->method))
        return code;
    /* A client that never sends its message must not keep a slot for ever. */
    set_deadline(call);
    if (call->deadline_ns <= call->arrived_ns)
        return cm_fail(err, CM_DEADLINE, "the deadline has passed");
    return CM_OK;
}

static void receive_close(struct gw_call *call)
{
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    op.data.recv_close_on_server.cancelled = &call->cancelled;
    grpc_call_error error =
        grpc_call_start_batch(call->core, &op, 1, &call->tags[GW_TAG_CLOSE], NULL);
    CM_ASSERT(error == GRPC_CALL_OK);
}

static void on_new(struct gw_call *call, bool success)
{
    struct gw *gw = call->gw;
    if (!success) {
        gw_call_disarm(call);
        return;
    }
    gw_server_arm(gw, call->method);
    gw_count(gw, calls, 1);
    atomic_fetch_add(&gw->open_calls, 1);
    call->arrived_ns = cm_now_ns();
    gw_word_open(&call->word, GW_HOLD_CLOSE);
    receive_close(call);
    struct cm_error error;
    if (admit(call, &error) != CM_OK)
        gw_call_fail(call, &error);
    else
        gw_call_receive(call);
}

/* ---- the other events ---- */

static void unary_received(struct gw_call *call)
{
    uint8_t bytes[SMALL_MAX];
    size_t length;
    if (!call->received)
        gw_call_failf(call, CM_INVALID, "the call has no message");
    else if (gw_flatten(call->received, bytes, sizeof bytes, &length) != CM_OK)
        gw_call_failf(call, CM_LIMIT, "the message is longer than %u bytes", SMALL_MAX);
    else
        call->method->handle(call, bytes, length);
    gw_call_drop(call, GW_HOLD_RECEIVE);
}

/* One question of a reflection stream, or the client's half-close. */
static void reflect_received(struct gw_call *call)
{
    uint8_t bytes[GW_REFLECTION_REQUEST_MAX];
    uint8_t answer[GW_REFLECTION_ANSWER_MAX];
    size_t length, answer_length;
    if (!call->received)
        gw_call_finish(call);
    else if (gw_flatten(call->received, bytes, sizeof bytes, &length) != CM_OK ||
             !gw_reflection_answer(call->gw->reflection, bytes, length, answer, &answer_length))
        gw_call_failf(call, CM_INVALID, "not a ServerReflectionRequest of at most %u bytes",
                      GW_REFLECTION_REQUEST_MAX);
    else
        gw_call_send_message(call, answer, answer_length);
    gw_call_drop(call, GW_HOLD_RECEIVE);
}

static void on_receive(struct gw_call *call)
{
    switch (call->method->kind) {
    case GW_KIND_INFER:
        gw_infer_received(call);
        break;
    case GW_KIND_UNARY:
        unary_received(call);
        break;
    case GW_KIND_REFLECT:
        reflect_received(call);
        break;
    case GW_KIND_GENERIC:
    case GW_KIND_WATCH:
        CM_ASSERT(false); /* never asked for a message; go to the loop */
    }
}

static void on_send(struct gw_call *call, bool success)
{
    /* A stream's answer went out: next question. */
    if (call->method->kind == GW_KIND_REFLECT && success)
        gw_call_receive(call);
    gw_call_drop(call, GW_HOLD_SEND);
}

/* Core tells the call's end: after our status, or because the client is gone. */
static void on_close(struct gw_call *call)
{
    if (call->cancelled)
        gw_count(call->gw, client_gone, 1);
    if (gw_word_take(&call->word, 0) && call->method->kind == GW_KIND_INFER)
        gw_infer_abandoned(call);
    gw_call_drop(call, GW_HOLD_CLOSE);
}

static void post_to_loop(struct gw_call *call, enum gw_tag_kind kind, bool success)
{
    struct gw_event *event = &call->events[kind];
    event->success = success;
    bool posted = cm_mailbox_post(&call->gw->events, &event->mail);
    CM_ASSERT(posted); /* it is closed after this thread has ended */
}

static void on_event(struct gw *gw, struct gw_tag *tag, bool success)
{
    struct gw_call *call = tag->call;
    if (tag->kind == GW_TAG_SHUTDOWN) {
        atomic_store(&gw->shut_down, true);
        gw_kick(gw, GW_KICK_SHUT_DOWN);
        return;
    }
    if (tag->kind == GW_TAG_NEW) {
        on_new(call, success);
        return;
    }
    if (call->method->kind == GW_KIND_WATCH) {
        post_to_loop(call, tag->kind, success);
        return;
    }
    if (tag->kind == GW_TAG_RECEIVE)
        on_receive(call);
    else if (tag->kind == GW_TAG_SEND)
        on_send(call, success);
    else
        on_close(call);
}

static void *queue_main(void *ctx)
{
    struct gw *gw = ctx;
    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(gw->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        if (event.type == GRPC_OP_COMPLETE)
            on_event(gw, event.tag, event.success != 0);
    }
}

/* ---- start and stop ---- */

/* Core's own lines: where, not what. The text may quote a client's headers. */
static void on_core_log(gpr_log_func_args *args)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct cm_log_limit limit; /* under lock */
    uint64_t suppressed = 0;
    if (args->severity != GPR_LOG_SEVERITY_ERROR) {
        cm_log(CM_LOG_DEBUG, "grpc", "file=%s line=%d text=%.200s", args->file, args->line,
               args->message);
        return;
    }
    pthread_mutex_lock(&lock);
    bool allowed = cm_log_allowed(&limit, cm_now_ns(), &suppressed);
    pthread_mutex_unlock(&lock);
    if (allowed)
        cm_log(CM_LOG_WARN, "grpc", "file=%s line=%d suppressed=%llu", args->file, args->line,
               (unsigned long long)suppressed);
    cm_log(CM_LOG_DEBUG, "grpc", "file=%s line=%d text=%.200s", args->file, args->line,
           args->message);
}

/* Core wants int arguments; out of range cannot happen by options' limits. */
#define MS(x) ((x)*1000)

static grpc_server *create_server(struct gw *gw)
{
    int message = (int)(gw->options.max_message_mb * 1024 * 1024);
    grpc_resource_quota *quota = grpc_resource_quota_create("gateway");
    size_t quota_bytes = (size_t)gw->options.max_message_mb * 1024 * 1024 * 8;
    grpc_resource_quota_resize(quota, quota_bytes > 512u << 20 ? quota_bytes : 512u << 20);
    struct {
        const char *key;
        int value;
    } numbers[] = {
        {GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, message},
        {GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, message},
        {GRPC_ARG_MAX_METADATA_SIZE, 16384},
        {GRPC_ARG_MAX_CONCURRENT_STREAMS, 256},
        {GRPC_ARG_KEEPALIVE_TIME_MS, MS(60)},
        {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, MS(20)},
        {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
        {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, MS(10)},
        {GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2},
        {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
        {GRPC_ARG_MAX_CONNECTION_IDLE_MS, MS(600)},
        {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, MS(10)},
        {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20},
        {GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 1 << 20},
        /* A second process on the port must fail to bind, not take half of the connections. */
        {GRPC_ARG_ALLOW_REUSEPORT, 0},
        {GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1},
        {GRPC_ARG_ENABLE_CHANNELZ, 0},
    };
    grpc_arg args[CM_COUNT_OF(numbers) + 1];
    memset(args, 0, sizeof args);
    for (size_t i = 0; i < CM_COUNT_OF(numbers); i++) {
        args[i].type = GRPC_ARG_INTEGER;
        args[i].key = (char *)(uintptr_t)numbers[i].key;
        args[i].value.integer = numbers[i].value;
    }
    grpc_arg *last = &args[CM_COUNT_OF(numbers)];
    last->type = GRPC_ARG_POINTER;
    last->key = (char *)(uintptr_t)GRPC_ARG_RESOURCE_QUOTA;
    last->value.pointer.p = quota;
    last->value.pointer.vtable = grpc_resource_quota_arg_vtable();
    grpc_channel_args channel_args = {CM_COUNT_OF(args), args};
    grpc_server *server = grpc_server_create(&channel_args, NULL);
    grpc_resource_quota_unref(quota);
    return server;
}

static enum cm_err add_port(struct gw *gw, struct cm_error *err)
{
    char host[256];
    uint16_t wanted;
    grpc_server_credentials *credentials =
        gw->tls ? gw_tls_credentials(gw->tls) : grpc_insecure_server_credentials_create();
    if (!credentials)
        return cm_fail(err, CM_INVALID, "the TLS files were refused");
    int port = grpc_server_add_http2_port(gw->server, gw->options.grpc, credentials);
    grpc_server_credentials_release(credentials);
    if (port == 0)
        return cm_fail(err, CM_IO, "cannot listen for gRPC on %s", gw->options.grpc);
    enum cm_err code = gw_address_split(gw->options.grpc, err, host, &wanted);
    if (code != CM_OK)
        return code;
    gw->grpc_port = (uint16_t)port;
    snprintf(gw->grpc_address, sizeof gw->grpc_address, strchr(host, ':') ? "[%s]:%d" : "%s:%d",
             host, port);
    return CM_OK;
}

static enum cm_err register_methods(struct gw *gw, struct cm_error *err)
{
    for (size_t i = 0; i < method_count(gw); i++) {
        if (!methods[i].path)
            continue;
        methods[i].registered = grpc_server_register_method(gw->server, methods[i].path, NULL,
                                                            GRPC_SRM_PAYLOAD_NONE, 0);
        if (!methods[i].registered)
            return cm_fail(err, CM_INTERNAL, "cannot register %s", methods[i].path);
    }
    return CM_OK;
}

enum cm_err gw_server_start(struct gw *gw, struct cm_error *err)
{
    gpr_set_log_function(on_core_log);
    gw_accept_guard_init((uint32_t)gw->options.max_connections);
    grpc_init();
    /* A stream for each connection: clients that watch the server's health must not be refused. */
    uint32_t slots = (uint32_t)(gw->options.max_calls + gw->options.max_connections) + SMALL_CALLS;
    if (gw_calls_init(gw, slots) != CM_OK)
        return cm_fail(err, CM_NOMEM, "no memory for %u calls", slots);
    gw->queue = grpc_completion_queue_create_for_next(NULL);
    gw->server = create_server(gw);
    grpc_server_register_completion_queue(gw->server, gw->queue, NULL);
    gw->shutdown_tag = (struct gw_tag){GW_TAG_SHUTDOWN, NULL};
    enum cm_err code = register_methods(gw, err);
    if (code == CM_OK)
        code = add_port(gw, err);
    if (code != CM_OK)
        return code;
    grpc_server_start(gw->server);
    for (size_t i = 0; i < method_count(gw); i++)
        for (unsigned k = 0; k < methods[i].armed; k++)
            gw_server_arm(gw, &methods[i]);
    if (pthread_create(&gw->queue_thread, NULL, queue_main, gw) != 0)
        return cm_fail(err, CM_NOMEM, "cannot start the completion-queue thread");
    gw->queue_running = true;
    return CM_OK;
}

void gw_server_shut_down(struct gw *gw)
{
    grpc_server_shutdown_and_notify(gw->server, gw->queue, &gw->shutdown_tag);
    grpc_server_cancel_all_calls(gw->server);
}

void gw_server_stop(struct gw *gw)
{
    grpc_server_destroy(gw->server);
    gw->server = NULL;
    grpc_completion_queue_shutdown(gw->queue);
    pthread_join(gw->queue_thread, NULL);
    gw->queue_running = false;
    grpc_completion_queue_destroy(gw->queue);
    gw->queue = NULL;
    grpc_shutdown();
}
