/* What this process holds: mapping, unmapping, handing back, saying goodbye.
 *
 * Loop thread, except work(), which runs on a uv worker thread for large mappings (populating takes
 * about 7 us a page) and touches only the job fields of its struct held. */
#include "memmgr/client_priv.h"

#include "common/check.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void after_map(struct held *held);
static void after_unmap(struct held *held);

static void forget(struct held *held)
{
    TAILQ_REMOVE(&held->client->helds, held, in_client);
    if (held->fd >= 0)
        close(held->fd);
    free(held);
}

/* --- Mapping and unmapping --- */

static void work(uv_work_t *uv)
{
    struct held *held = cm_container_of(uv, struct held, work);
    held->code = CM_OK;
    if (held->job_map) {
        held->code =
            held->job_populate
                ? mm_memory_map(held->job_fd, held->map_bytes, held->job_writable, &held->error,
                                &held->base)
                : mm_memory_map_bare(held->job_fd, held->map_bytes, &held->error, &held->base);
    } else {
        mm_memory_unmap(held->base, held->map_bytes);
        held->base = NULL;
    }
}

static void done(struct held *held)
{
    if (held->job_map)
        after_map(held);
    else
        after_unmap(held);
}

static void on_work_done(uv_work_t *uv, int status)
{
    struct held *held = cm_container_of(uv, struct held, work);
    struct mm_client *client = held->client;
    CM_ASSERT(status == 0); /* nobody cancels */
    done(held);
    client->n_works--;
    mm_client_unref(client);
}

/* Large ones on a worker thread, small ones at once. */
static void run_job(struct held *held, bool map, bool writable)
{
    struct mm_client *client = held->client;
    held->job_map = map;
    held->job_writable = writable;
    held->job_fd = held->fd;
    /* A reader of another's lease must not wait milliseconds for 64 MiB of page tables before its
     * first request: the pages are there, and each fault maps sixteen of them. */
    held->job_populate = !(map && held->request->body.header.type == MM_WIRE_OPEN);
    if (held->map_bytes <= MM_INLINE_MAX || (map && !held->job_populate)) {
        work(&held->work);
        done(held);
        return;
    }
    CM_ASSERT(uv_queue_work(client->options.loop, &held->work, work, on_work_done) == 0);
    client->n_works++;
}

static void set_base(struct held *held)
{
    held->lease.base = held->base;
    held->weights.base = held->base;
}

/* --- Answers --- */

static void tell_revoked(struct mm_client *client)
{
    struct held *held = TAILQ_FIRST(&client->helds);
    while (held && !client->closing) {
        if (held->state == HELD_USED && held->revoked && !held->told) {
            held->told = true;
            if (client->options.on_revoked)
                client->options.on_revoked(client->options.ctx, &held->lease);
            held = TAILQ_FIRST(&client->helds); /* the callback may have closed any of them */
        } else {
            held = TAILQ_NEXT(held, in_client);
        }
    }
}

static void after_map(struct held *held)
{
    struct mm_client *client = held->client;
    struct request *request = held->request;
    held->request = NULL;
    if (held->code != CM_OK || !request) { /* no request: the client is being destroyed */
        struct cm_error error = held->error;
        if (held->code == CM_OK) {
            mm_memory_unmap(held->base, held->map_bytes);
            held->base = NULL;
        }
        mm_held_leave(held);
        if (request)
            mm_request_fail(client, request, &error);
        return;
    }
    set_base(held);
    held->state = HELD_USED;
    struct request copy = *request;
    const struct cm_error none = {.code = CM_OK};
    mm_request_destroy(client, request);
    if (copy.lease_fn)
        copy.lease_fn(copy.ctx, &none, &held->lease);
    else
        copy.weights_fn(copy.ctx, &none, &held->weights);
    tell_revoked(client);
}

/* The grant answers the request and is what it promises. */
static enum cm_err check_grant(const struct request *request, const struct mm_wire_granted *grant,
                               int fd, struct cm_error *err, size_t *ret_map_bytes)
{
    const union mm_wire_any *asked = &request->body;
    bool writable = grant->writable == 1, right = grant->writable <= 1;
    int seals = MM_SEALS_LEASE;
    struct mm_memory_id id;
    size_t bytes = grant->bytes;
    if (asked->header.type == MM_WIRE_ACQUIRE) {
        right = writable && bytes >= asked->acquire.bytes && bytes <= MM_LEASE_MAX;
    } else if (asked->header.type == MM_WIRE_OPEN) {
        right = right && !writable && grant->region == asked->region.region &&
                grant->generation == asked->region.generation && bytes <= MM_LEASE_MAX;
    } else {
        seals = writable ? MM_SEALS_WRITING : MM_SEALS_SEALED;
        right = right && (asked->header.type == MM_WIRE_SEAL
                              ? !writable && bytes == request->held->weights.bytes
                              : bytes == asked->weights.bytes);
    }
    if (!right || !mm_memory_round(bytes, &bytes))
        return cm_fail(err, CM_CORRUPT, "memmgr answers something else than was asked");
    *ret_map_bytes = bytes;
    return mm_memory_check(fd, bytes, seals, writable, err, &id);
}

static void fill_held(struct held *held, const struct request *request,
                      const struct mm_wire_granted *grant)
{
    bool writable = grant->writable == 1;
    held->lease = (struct mm_lease){.region = grant->region,
                                    .generation = grant->generation,
                                    .writable = writable,
                                    .bytes = grant->bytes};
    held->is_weights = request->body.header.type == MM_WIRE_WEIGHTS;
    if (held->is_weights) {
        const struct mm_wire_weights *want = &request->body.weights;
        held->weights.writer = writable;
        held->weights.bytes = grant->bytes;
        memcpy(held->weights.key, want->key, sizeof want->key);
        memcpy(held->label, want->label, sizeof want->label);
    }
}

void mm_held_granted(struct mm_client *client, struct request *request, struct mm_packet *packet)
{
    const struct mm_wire_granted *grant = &packet->body.granted;
    struct cm_error error;
    size_t map_bytes = 0;
    enum cm_err code = check_grant(request, grant, packet->fds[0], &error, &map_bytes);
    struct held *held = code == CM_OK ? calloc(1, sizeof *held) : NULL;
    if (!held) {
        if (code == CM_OK)
            cm_fail(&error, CM_NOMEM, "out of memory");
        /* Without the connection memmgr takes back what it just gave; the rest is handed back. */
        mm_socket_lost(client);
        mm_request_fail(client, request, &error);
        return;
    }
    held->client = client;
    held->state = HELD_MAPPING;
    held->known = true;
    held->fd = mm_packet_take(packet, 0);
    held->request = request;
    held->map_bytes = map_bytes;
    fill_held(held, request, grant);
    TAILQ_INSERT_TAIL(&client->helds, held, in_client);
    run_job(held, true, held->lease.writable);
}

void mm_held_sealed(struct mm_client *client, struct request *request, struct mm_packet *packet)
{
    struct held *held = request->held;
    struct cm_error error;
    size_t map_bytes;
    CM_ASSERT(held->state == HELD_SEALING);
    if (check_grant(request, &packet->body.granted, packet->fds[0], &error, &map_bytes) != CM_OK) {
        held->request = NULL;
        mm_socket_lost(client);
        mm_held_leave(held);
        mm_request_fail(client, request, &error);
        return;
    }
    close(held->fd);
    held->fd = mm_packet_take(packet, 0);
    held->state = HELD_MAPPING;
    held->weights.writer = false;
    held->lease.writable = false;
    run_job(held, true, false);
}

/* --- Letting go --- */

void mm_held_leave(struct held *held)
{
    struct mm_client *client = held->client;
    held->state = HELD_LEAVING;
    if (!held->known && held->restore_sequence == 0)
        forget(held);
    else
        mm_socket_pump(client);
}

static void after_unmap(struct held *held)
{
    struct mm_client *client = held->client;
    set_base(held);
    if (held->seal_next && held->request) {
        held->seal_next = false;
        held->state = HELD_SEALING;
        TAILQ_INSERT_TAIL(&client->waiting, held->request, in_list);
        mm_socket_pump(client);
    } else {
        mm_held_leave(held);
    }
}

void mm_held_unmap(struct held *held, bool seal)
{
    held->state = HELD_UNMAPPED;
    held->seal_next = seal;
    run_job(held, false, false);
}

static enum mm_wire_type goodbye_of(const struct held *held)
{
    if (held->is_weights)
        return MM_WIRE_WEIGHTS_CLOSE;
    return held->lease.writable ? MM_WIRE_RELEASE : MM_WIRE_CLOSE;
}

bool mm_held_pump_goodbyes(struct mm_client *client)
{
    struct held *held = TAILQ_FIRST(&client->helds);
    while (held) {
        struct held *next = TAILQ_NEXT(held, in_client);
        /* While it is being handed back the answer is still to come, and needs its struct. */
        if (held->state == HELD_LEAVING && held->restore_sequence == 0) {
            if (held->known) {
                union mm_wire_any body;
                mm_wire_init(&body, goodbye_of(held), 0);
                body.region.region = held->lease.region;
                body.region.generation = held->lease.generation;
                if (mm_socket_send(client, &body, -1) != CM_OK)
                    return false;
            }
            forget(held);
        }
        held = next;
    }
    return true;
}

void mm_held_revoked(struct mm_client *client, const struct mm_wire_region *which)
{
    struct held *held;
    TAILQ_FOREACH(held, &client->helds, in_client)
    {
        if (!held->is_weights && !held->lease.writable && held->lease.region == which->region &&
            held->lease.generation == which->generation)
            held->revoked = true;
    }
    tell_revoked(client);
}

/* --- Handing back --- */

static bool to_restore(const struct held *held)
{
    bool going = held->state == HELD_LEAVING || (held->state == HELD_UNMAPPED && !held->seal_next);
    return !held->known && !held->lost && !going;
}

/* Weights that were sealed by a memmgr that did not live to tell: from here on as a holder. */
static bool is_sealed_meanwhile(struct held *held)
{
    int seals = mm_memory_seals(held->fd);
    int fd;
    struct cm_error error;
    if (seals < 0 || !(seals & F_SEAL_WRITE))
        return false;
    if (mm_memory_readonly(held->fd, &error, &fd) != CM_OK)
        return false;
    close(held->fd);
    held->fd = fd;
    held->weights.writer = false;
    return true;
}

static enum mm_restore_kind restore_kind(struct held *held)
{
    if (!held->is_weights)
        return held->lease.writable ? MM_RESTORE_OWNER : MM_RESTORE_READER;
    if (!held->weights.writer || (held->state == HELD_SEALING && is_sealed_meanwhile(held)))
        return MM_RESTORE_HOLDER;
    return MM_RESTORE_WRITER;
}

bool mm_held_pump_restores(struct mm_client *client)
{
    struct held *held;
    TAILQ_FOREACH(held, &client->helds, in_client)
    {
        if (!to_restore(held))
            continue;
        if (client->n_sent >= MM_WINDOW)
            return false;
        union mm_wire_any body;
        uint32_t sequence = mm_socket_sequence(client);
        mm_wire_init(&body, MM_WIRE_RESTORE, sequence);
        body.restore.kind = restore_kind(held);
        body.restore.region = held->lease.region;
        body.restore.generation = held->lease.generation;
        body.restore.bytes = held->lease.bytes;
        memcpy(body.restore.key, held->weights.key, sizeof body.restore.key);
        memcpy(body.restore.label, held->label, sizeof body.restore.label);
        if (mm_socket_send(client, &body, held->fd) != CM_OK)
            return false;
        held->restore_sequence = sequence;
        held->known = true;
        client->n_sent++;
    }
    return true;
}

bool mm_held_restored(struct mm_client *client, uint32_t sequence, bool accepted)
{
    struct held *held;
    TAILQ_FOREACH(held, &client->helds, in_client)
    {
        if (sequence != 0 && held->restore_sequence == sequence)
            break;
    }
    if (!held)
        return false;
    held->restore_sequence = 0;
    client->n_sent--;
    if (!accepted) {
        /* The memory stays valid here, but nobody else will find it any more. */
        held->known = false;
        held->lost = true;
        held->revoked = !held->is_weights && !held->lease.writable;
        tell_revoked(client);
    }
    return true;
}

void mm_held_connection_lost(struct mm_client *client)
{
    struct held *held = TAILQ_FIRST(&client->helds);
    while (held) {
        struct held *next = TAILQ_NEXT(held, in_client);
        held->known = false;
        held->restore_sequence = 0;
        if (held->state == HELD_LEAVING) /* memmgr has taken it back by itself */
            forget(held);
        held = next;
    }
}

/* --- The end --- */

/* What a destroyed client's caller has not given back stays mapped until exit, and its struct
 * mm_lease or mm_weights readable: here is where it is still known. */
static _Atomic(struct held *) abandoned;

void mm_held_abandon(struct mm_client *client)
{
    struct held *held;
    while ((held = TAILQ_FIRST(&client->helds))) {
        if (held->state != HELD_USED) {
            forget(held);
            continue;
        }
        TAILQ_REMOVE(&client->helds, held, in_client);
        close(held->fd);
        held->fd = -1;
        held->client = NULL;
        held->in_client.tqe_next = atomic_load(&abandoned);
        while (!atomic_compare_exchange_weak(&abandoned, &held->in_client.tqe_next, held))
            ;
    }
}
