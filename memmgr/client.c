/* The client's public face: requests, their answers, slices. See client_priv.h for the other files.
 * One loop thread; nothing blocks. A callback may call anything here, mm_client_destroy included,
 * so nothing is believed to be as it was after one. */
#include "memmgr/client_priv.h"

#include "common/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- Requests --- */

static struct request *new_request(struct mm_client *client, enum mm_wire_type type)
{
    struct request *request = calloc(1, sizeof *request);
    if (!request)
        return NULL;
    mm_wire_init(&request->body, type, 0);
    client->n_requests++;
    return request;
}

static enum cm_err may_request(const struct mm_client *client)
{
    CM_ASSERT(client->magic == MM_CLIENT_MAGIC);
    if (client->closing || client->state == CLIENT_REFUSED)
        return CM_CLOSED;
    return client->n_requests < MM_REQUESTS_MAX ? CM_OK : CM_FULL;
}

static void enqueue(struct mm_client *client, struct request *request)
{
    TAILQ_INSERT_TAIL(&client->waiting, request, in_list);
    mm_socket_pump(client);
}

void mm_request_destroy(struct mm_client *client, struct request *request)
{
    client->n_requests--;
    free(request);
}

void mm_request_fail(struct mm_client *client, struct request *request,
                     const struct cm_error *error)
{
    struct request copy = *request;
    mm_request_destroy(client, request);
    if (copy.lease_fn)
        copy.lease_fn(copy.ctx, error, NULL);
    else
        copy.weights_fn(copy.ctx, error, NULL);
}

void mm_requests_unsend(struct mm_client *client)
{
    struct request *request;
    while ((request = TAILQ_LAST(&client->sent, requests))) {
        TAILQ_REMOVE(&client->sent, request, in_list);
        TAILQ_INSERT_HEAD(&client->waiting, request, in_list);
    }
    client->n_sent = 0;
}

static struct request *take_sent(struct mm_client *client, uint32_t sequence)
{
    struct request *request;
    TAILQ_FOREACH(request, &client->sent, in_list)
    {
        if (request->body.header.sequence == sequence) {
            TAILQ_REMOVE(&client->sent, request, in_list);
            client->n_sent--;
            return request;
        }
    }
    return NULL;
}

static void fail_from_wire(struct mm_client *client, struct request *request,
                           const struct mm_wire_failed *failed)
{
    struct cm_error error;
    enum cm_err code = (enum cm_err)failed->code;
    if (code == CM_OK || strcmp(cm_err_name(code), "UNKNOWN") == 0)
        code = CM_INTERNAL;
    cm_fail(&error, code, "%.*s", (int)sizeof failed->text, failed->text);
    struct held *held = request->held;
    if (held) { /* a seal that failed: the weights are unmapped already, and worth nothing */
        held->request = NULL;
        mm_held_leave(held);
    }
    mm_request_fail(client, request, &error);
}

void mm_request_answer(struct mm_client *client, struct mm_packet *packet)
{
    uint32_t sequence = packet->body.header.sequence;
    uint16_t type = packet->body.header.type;
    if (type == MM_WIRE_FAILED || type == MM_WIRE_RESTORED) {
        bool accepted = type == MM_WIRE_RESTORED;
        if (mm_held_restored(client, sequence, accepted) ||
            mm_peer_restored(client, sequence, accepted))
            return;
    }
    struct request *request = take_sent(client, sequence);
    if (!request) { /* memmgr answers what was not asked: have a clean start */
        mm_socket_lost(client);
        return;
    }
    uint16_t asked = request->body.header.type;
    bool lease = asked == MM_WIRE_ACQUIRE || asked == MM_WIRE_OPEN;
    if (type == MM_WIRE_FAILED) {
        fail_from_wire(client, request, &packet->body.failed);
    } else if (asked == MM_WIRE_SEAL && type == MM_WIRE_WEIGHTS_GIVEN) {
        mm_held_sealed(client, request, packet);
    } else if (type == (lease ? MM_WIRE_GRANTED : MM_WIRE_WEIGHTS_GIVEN) && asked != MM_WIRE_SEAL) {
        mm_held_granted(client, request, packet);
    } else {
        TAILQ_INSERT_HEAD(&client->sent, request, in_list);
        client->n_sent++;
        mm_socket_lost(client);
    }
}

/* --- Leases --- */

static struct held *lease_held(struct mm_client *client, struct mm_lease *lease, bool writable)
{
    struct held *held = cm_container_of(lease, struct held, lease);
    CM_ASSERT(client->magic == MM_CLIENT_MAGIC && held->client == client);
    CM_ASSERT(!held->is_weights && lease->writable == writable && held->state == HELD_USED);
    return held;
}

enum cm_err mm_client_acquire(struct mm_client *client, size_t bytes, mm_lease_fn fn, void *ctx)
{
    enum cm_err code = bytes == 0 ? CM_INVALID : may_request(client);
    if (code != CM_OK)
        return code;
    struct request *request = new_request(client, MM_WIRE_ACQUIRE);
    if (!request)
        return CM_NOMEM;
    request->body.acquire.bytes = bytes;
    request->lease_fn = fn;
    request->ctx = ctx;
    enqueue(client, request);
    return CM_OK;
}

void mm_client_release(struct mm_client *client, struct mm_lease *lease)
{
    mm_held_unmap(lease_held(client, lease, true), false);
}

enum cm_err mm_client_open(struct mm_client *client, uint64_t region, uint32_t generation,
                           mm_lease_fn fn, void *ctx)
{
    enum cm_err code = may_request(client);
    if (code != CM_OK)
        return code;
    struct request *request = new_request(client, MM_WIRE_OPEN);
    if (!request)
        return CM_NOMEM;
    request->body.region.region = region;
    request->body.region.generation = generation;
    request->lease_fn = fn;
    request->ctx = ctx;
    enqueue(client, request);
    return CM_OK;
}

void mm_client_close_lease(struct mm_client *client, struct mm_lease *lease)
{
    mm_held_unmap(lease_held(client, lease, false), false);
}

const void *mm_lease_resolve(const struct mm_lease *lease, const struct cm_slice_ref *slice)
{
    if (slice->region != lease->region || slice->generation != lease->generation ||
        slice->offset > lease->bytes || slice->length > lease->bytes - slice->offset)
        return NULL;
    return lease->base + slice->offset;
}

/* --- Weights --- */

static struct held *weights_held(struct mm_client *client, struct mm_weights *weights)
{
    struct held *held = cm_container_of(weights, struct held, weights);
    CM_ASSERT(client->magic == MM_CLIENT_MAGIC && held->client == client);
    CM_ASSERT(held->is_weights && held->state == HELD_USED);
    return held;
}

enum cm_err mm_client_weights(struct mm_client *client, const uint8_t key[32], size_t bytes,
                              const char *label, mm_weights_fn fn, void *ctx)
{
    enum cm_err code = may_request(client);
    if (code != CM_OK)
        return code;
    struct request *request = new_request(client, MM_WIRE_WEIGHTS);
    if (!request)
        return CM_NOMEM;
    struct mm_wire_weights *want = &request->body.weights;
    want->bytes = bytes;
    memcpy(want->key, key, sizeof want->key);
    snprintf(want->label, sizeof want->label, "%s", label ? label : "");
    for (char *c = want->label; *c; c++) { /* it is for people to read */
        if (*c < 0x20 || *c > 0x7e)
            *c = '?';
    }
    request->weights_fn = fn;
    request->ctx = ctx;
    enqueue(client, request);
    return CM_OK;
}

enum cm_err mm_client_weights_seal(struct mm_client *client, struct mm_weights *weights,
                                   mm_weights_fn fn, void *ctx)
{
    struct held *held = weights_held(client, weights);
    CM_ASSERT(weights->writer);
    enum cm_err code = may_request(client);
    if (code != CM_OK)
        return code;
    struct request *request = new_request(client, MM_WIRE_SEAL);
    if (!request)
        return CM_NOMEM;
    request->body.region.region = held->lease.region;
    request->body.region.generation = held->lease.generation;
    request->weights_fn = fn;
    request->ctx = ctx;
    request->held = held;
    held->request = request;
    mm_held_unmap(held, true);
    return CM_OK;
}

void mm_client_weights_close(struct mm_client *client, struct mm_weights *weights)
{
    mm_held_unmap(weights_held(client, weights), false);
}

/* --- Channels --- */

enum cm_err mm_client_want_channel(struct mm_client *client, enum cm_role role, uint32_t index)
{
    CM_ASSERT(client->magic == MM_CLIENT_MAGIC);
    if (client->closing || client->state == CLIENT_REFUSED)
        return CM_CLOSED;
    if (role < CM_ROLE_WORKER || role > CM_ROLE_TOOL ||
        (role == client->options.role && index == client->options.index))
        return CM_INVALID;
    struct peer *peer = mm_peer_add(client, role, index);
    if (!peer)
        return CM_FULL;
    if (!peer->wanted) {
        peer->wanted = true;
        peer->sent = false;
        mm_socket_pump(client);
    }
    return CM_OK;
}

/* --- Beginning and end --- */

void mm_client_unref(struct mm_client *client)
{
    if (!client->closing || client->n_handles > 0 || client->n_works > 0)
        return;
    mm_held_abandon(client);
    client->magic = 0;
    free(client);
}

static void on_first_connect(uv_timer_t *timer)
{
    mm_socket_connect(cm_container_of(timer, struct mm_client, retry));
}

enum cm_err mm_client_create(const struct mm_client_options *options, struct cm_error *err,
                             struct mm_client **ret_client)
{
    struct mm_client *client = calloc(1, sizeof *client);
    if (!client)
        return cm_fail(err, CM_NOMEM, "out of memory");
    client->magic = MM_CLIENT_MAGIC;
    client->options = *options;
    client->options.run_dir = NULL; /* the caller's; the address is what is needed */
    client->retry_ms = MM_RETRY_FIRST_MS;
    client->identity.number = MM_NUMBER_NONE;
    client->address.sun_family = AF_UNIX;
    TAILQ_INIT(&client->waiting);
    TAILQ_INIT(&client->sent);
    TAILQ_INIT(&client->helds);
    for (size_t i = 0; i < MM_CLIENT_PEERS; i++)
        client->peers[i].memory = -1;
    int length = snprintf(client->address.sun_path, sizeof client->address.sun_path,
                          "%s/" MM_SOCKET_NAME, options->run_dir);
    if (length < 0 || (size_t)length >= sizeof client->address.sun_path) {
        free(client);
        return cm_fail(err, CM_INVALID, "run directory %s: its name is too long for a socket",
                       options->run_dir);
    }
    CM_ASSERT(uv_timer_init(options->loop, &client->retry) == 0);
    client->n_handles = 1;
    /* From the loop, so that no callback comes before this function has returned. */
    uv_timer_start(&client->retry, on_first_connect, 0, 0);
    *ret_client = client;
    return CM_OK;
}

static void on_retry_closed(uv_handle_t *handle)
{
    struct mm_client *client = cm_container_of(handle, struct mm_client, retry);
    client->n_handles--;
    mm_client_unref(client);
}

/* Requests in either list, and those that a worker thread's result would have answered. */
static struct request *take_any_request(struct mm_client *client)
{
    struct request *request = TAILQ_FIRST(&client->waiting);
    if (request) {
        TAILQ_REMOVE(&client->waiting, request, in_list);
    } else {
        struct held *held;
        TAILQ_FOREACH(held, &client->helds, in_client)
        {
            if (held->request) {
                request = held->request;
                held->request = NULL;
                break;
            }
        }
    }
    if (request && request->held) /* SEAL, in the waiting list */
        request->held->request = NULL;
    return request;
}

void mm_client_destroy(struct mm_client *client)
{
    if (!client)
        return;
    CM_ASSERT(client->magic == MM_CLIENT_MAGIC && !client->closing);
    client->closing = true;
    mm_socket_close(client);
    mm_requests_unsend(client);
    mm_peer_close_all(client);
    uv_timer_stop(&client->retry);
    struct cm_error error;
    struct request *request;
    cm_fail(&error, CM_CLOSED, "this process is letting go of memmgr");
    while ((request = take_any_request(client)))
        mm_request_fail(client, request, &error);
    uv_close((uv_handle_t *)&client->retry, on_retry_closed);
}
