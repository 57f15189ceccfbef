/* grpc.health.v1: Check on the queue thread, Watch on the loop.
 *
 * A watch's events travel from the queue thread to the loop by mailbox, so that one thread owns it:
 * the same that sees the statuses change. Names: "" and "readiness" are the server, "liveness" is
 * the process, "model/NAME" or NAME a model, and the services have the server's status. */
#include "gateway/gw_priv.h"

#include "common/check.h"
#include "proto/health.pb-c.h"

#include <string.h>

enum serving {
    SERVING = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING,
    NOT_SERVING = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING,
    SERVICE_UNKNOWN = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN,
};

static bool is_server(const char *service)
{
    static const char *const names[] = {"", "readiness", "ingot.v1.Inference",
                                        "inference.GRPCInferenceService", "grpc.health.v1.Health"};
    for (size_t i = 0; i < CM_COUNT_OF(names); i++)
        if (strcmp(service, names[i]) == 0)
            return true;
    return false;
}

/* Any thread. */
static enum serving status_of(struct gw *gw, const char *service)
{
    bool draining = atomic_load_explicit(&gw->draining, memory_order_relaxed);
    if (strcmp(service, "liveness") == 0)
        return draining ? NOT_SERVING : SERVING;
    bool ready = atomic_load_explicit(&gw->ready, memory_order_relaxed) && !draining;
    if (is_server(service))
        return ready ? SERVING : NOT_SERVING;
    const char *name = strncmp(service, "model/", 6) == 0 ? service + 6 : service;
    struct gw_models *models = gw_models_now(gw);
    struct gw_model *model = NULL;
    enum serving status = SERVICE_UNKNOWN;
    if (gw_models_find(models, name, strlen(name), "", 0, NULL, &model) == CM_OK)
        status =
            ready && model->state == GW_MODEL_READY && model->n_workers > 0 ? SERVING : NOT_SERVING;
    gw_models_unref(models);
    return status;
}

static size_t pack_status(enum serving status, uint8_t buffer[16])
{
    Grpc__Health__V1__HealthCheckResponse message = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    message.status = (Grpc__Health__V1__HealthCheckResponse__ServingStatus)status;
    size_t length = grpc__health__v1__health_check_response__get_packed_size(&message);
    CM_ASSERT(length <= 16);
    return grpc__health__v1__health_check_response__pack(&message, buffer);
}

/* The service's name; false if the request is not one. */
static bool parse_service(const uint8_t *bytes, size_t length, char ret_service[256])
{
    Grpc__Health__V1__HealthCheckRequest *request =
        grpc__health__v1__health_check_request__unpack(NULL, length, bytes);
    if (!request)
        return false;
    size_t n = strlen(request->service);
    bool fits = n < 256;
    if (fits)
        memcpy(ret_service, request->service, n + 1);
    grpc__health__v1__health_check_request__free_unpacked(request, NULL);
    return fits;
}

void gw_health_check(struct gw_call *call, const uint8_t *bytes, size_t length)
{
    char service[256];
    uint8_t packed[16];
    if (!parse_service(bytes, length, service)) {
        gw_call_failf(call, CM_INVALID,
                      "not a HealthCheckRequest with a name of at most 255 bytes");
        return;
    }
    enum serving status = status_of(call->gw, service);
    if (status == SERVICE_UNKNOWN)
        gw_call_failf(call, CM_NOT_FOUND, "unknown service");
    else
        gw_call_answer(call, packed, pack_status(status, packed));
}

/* ---- Watch: all on the loop ---- */

static bool sending(const struct gw_call *call)
{
    return gw_word_holds(&call->word, GW_HOLD_SEND);
}

/* Sends the status if it is news and the last one is out. Draining ends the stream after the client
 * has been told. */
static void push(struct gw_call *call)
{
    struct gw_watch *watch = &call->watch;
    if (!watch->known || sending(call))
        return;
    enum serving status = status_of(call->gw, watch->service);
    if ((int)status != watch->last) {
        uint8_t packed[16];
        if (gw_call_send_message(call, packed, pack_status(status, packed)))
            watch->last = (int)status;
        return;
    }
    if (atomic_load_explicit(&call->gw->draining, memory_order_relaxed))
        gw_call_failf(call, CM_UNAVAILABLE, "the server is going away");
}

static void watch_link(struct gw_call *call)
{
    struct gw *gw = call->gw;
    call->watch.last = -1;
    call->watch.known = true;
    call->watch.next = gw->watches;
    call->watch.previous = NULL;
    if (gw->watches)
        gw->watches->watch.previous = call;
    gw->watches = call;
}

static void watch_unlink(struct gw_call *call)
{
    struct gw_watch *watch = &call->watch;
    if (!watch->known)
        return;
    if (watch->next)
        watch->next->watch.previous = watch->previous;
    if (watch->previous)
        watch->previous->watch.next = watch->next;
    else
        call->gw->watches = watch->next;
    watch->known = false;
}

static void watch_received(struct gw_call *call)
{
    uint8_t bytes[1024];
    size_t length;
    if (!call->received)
        gw_call_failf(call, CM_INVALID, "the call has no message");
    else if (gw_flatten(call->received, bytes, sizeof bytes, &length) != CM_OK ||
             !parse_service(bytes, length, call->watch.service))
        gw_call_failf(call, CM_INVALID,
                      "not a HealthCheckRequest with a name of at most 255 bytes");
    else if (gw_word_state(&call->word) != GW_CALL_ANSWERED) {
        watch_link(call);
        push(call);
    }
    gw_call_drop(call, GW_HOLD_RECEIVE);
}

void gw_watch_event(void *ctx, struct cm_mail *mail)
{
    struct gw *gw = ctx;
    struct gw_event *event = cm_container_of(mail, struct gw_event, mail);
    struct gw_call *call = event->call;
    (void)gw;
    switch (event->kind) {
    case GW_TAG_RECEIVE:
        watch_received(call);
        break;
    case GW_TAG_SEND: {
        /* Dropped first: push looks at it. CLOSE keeps the call alive if it is still known. */
        bool known = call->watch.known;
        gw_call_drop(call, GW_HOLD_SEND);
        if (known && gw_word_state(&call->word) != GW_CALL_ANSWERED)
            push(call);
        break;
    }
    case GW_TAG_CLOSE:
        if (call->cancelled)
            gw_count(call->gw, client_gone, 1);
        gw_word_take(&call->word, 0);
        watch_unlink(call);
        gw_call_drop(call, GW_HOLD_CLOSE);
        break;
    default:
        CM_ASSERT(false);
    }
}

void gw_watch_update(struct gw *gw)
{
    struct gw_call *next;
    for (struct gw_call *call = gw->watches; call; call = next) {
        next = call->watch.next;
        if (gw_word_state(&call->word) != GW_CALL_ANSWERED)
            push(call);
    }
}
