/* Weights: one writer, one seal, any number of readers, by content hash.
 *
 * memmgr's loop thread. The first asker writes; later ones wait in the region's list until the seal
 * is on. A writer that dies before takes its region with it, and the first that waits becomes the
 * writer of a new one. */
#include "memmgr/server_priv.h"

#include "common/check.h"
#include "common/clock.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void send_weights(struct mm_conn *conn, uint32_t sequence, const struct mm_region *region,
                         bool writable)
{
    union mm_wire_any body;
    mm_wire_init(&body, MM_WIRE_WEIGHTS_GIVEN, sequence);
    body.granted.region = region->number;
    body.granted.bytes = region->length;
    body.granted.generation = region->generation;
    body.granted.writable = writable;
    mm_conn_send(conn, &body, &region->fd);
}

static void give(struct mm_conn *conn, uint32_t sequence, struct mm_region *region)
{
    CM_ASSERT(region->state == MM_STATE_SEALED && !region->writable);
    if (mm_may_open(conn, sequence) && mm_conn_hold(conn, region, false, sequence)) {
        conn->server->ledger.counters.weights_shared++;
        send_weights(conn, sequence, region, false);
    }
}

static enum cm_err check_ask(const struct mm_wire_weights *want, struct cm_error *err,
                             size_t *ret_bytes)
{
    if (!mm_wire_label_valid(want->label))
        return cm_fail(err, CM_INVALID, "the label is not a line of printable ASCII");
    if (!mm_memory_round(want->bytes, ret_bytes) || *ret_bytes > INT64_MAX)
        return cm_fail(err, CM_LIMIT, "weights of %llu bytes are larger than any memory",
                       (unsigned long long)want->bytes);
    return CM_OK;
}

/* A new region, which the first in its list will write. */
static enum cm_err begin(struct mm_server *server, struct mm_ask *ask, size_t bytes,
                         struct cm_error *err)
{
    const struct mm_wire_weights *want = &ask->body.weights;
    struct mm_region *region;
    const struct mm_region_init init = {.kind = MM_KIND_WEIGHTS, .bytes = bytes, .fd = -1};
    char what[MM_LABEL_BYTES + 64];
    snprintf(what, sizeof what, "weights of %s (%llu bytes)", want->label,
             (unsigned long long)want->bytes);
    enum cm_err code = mm_ledger_make_room(&server->ledger, bytes, what, err);
    if (code == CM_OK)
        code = mm_ledger_add(&server->ledger, &init, cm_now_ns(), err, &region);
    if (code != CM_OK)
        return code;
    memcpy(region->key, want->key, sizeof region->key);
    memcpy(region->label, want->label, sizeof region->label);
    region->length = want->bytes;
    code = mm_job_populate(server, region, err);
    if (code != CM_OK) {
        mm_ledger_move(&server->ledger, region, MM_EVENT_DROP, 0);
        return code;
    }
    mm_ask_wait(ask, &region->waiting);
    return CM_OK;
}

/* Answers ask, or puts it where it waits. */
static void serve(struct mm_server *server, struct mm_ask *ask)
{
    struct mm_conn *conn = ask->conn;
    const struct mm_wire_weights *want = &ask->body.weights;
    uint32_t sequence = ask->body.header.sequence;
    struct cm_error error;
    size_t bytes;
    enum cm_err code = check_ask(want, &error, &bytes);
    struct mm_region *region =
        code == CM_OK ? mm_ledger_find_key(&server->ledger, want->key) : NULL;
    if (code == CM_OK && region && region->length != want->bytes) {
        code = cm_fail(&error, CM_INVALID, "weights of this hash have %zu bytes, not %llu",
                       region->length, (unsigned long long)want->bytes);
    } else if (code == CM_OK && region && region->state == MM_STATE_SEALED) {
        mm_ask_destroy(ask);
        give(conn, sequence, region);
        return;
    } else if (code == CM_OK && region) {
        mm_ask_wait(ask, &region->waiting);
        return;
    } else if (code == CM_OK && server->restoring) {
        mm_ask_wait(ask, &server->parked);
        return;
    } else if (code == CM_OK) {
        code = begin(server, ask, bytes, &error);
        if (code == CM_OK)
            return;
    }
    mm_ask_destroy(ask);
    mm_conn_fail(conn, sequence, &error);
}

void mm_weights_again(struct mm_server *server, struct mm_ask *ask)
{
    serve(server, ask);
}

void mm_weights_ask(struct mm_conn *conn, const union mm_wire_any *body)
{
    struct mm_ask *ask = mm_ask_create(conn, body);
    if (ask)
        serve(conn->server, ask);
}

/* --- The writer --- */

static bool make_writer(struct mm_server *server, struct mm_region *region, struct mm_ask *ask)
{
    struct mm_conn *conn = ask->conn;
    uint32_t sequence = ask->body.header.sequence;
    mm_ask_destroy(ask);
    if (!mm_may_own(conn, sequence) || !mm_conn_hold(conn, region, true, sequence))
        return false;
    mm_ledger_move(&server->ledger, region, MM_EVENT_WRITE, cm_now_ns());
    send_weights(conn, sequence, region, true);
    return true;
}

void mm_weights_ready(struct mm_server *server, struct mm_region *region, enum cm_err code,
                      const struct cm_error *error)
{
    struct mm_ask *ask;
    if (code != CM_OK)
        mm_asks_fail(&region->waiting, error);
    while ((ask = TAILQ_FIRST(&region->waiting))) {
        if (make_writer(server, region, ask))
            return;
    }
    mm_ledger_move(&server->ledger, region, MM_EVENT_DROP, 0);
}

/* The writer will not seal: its bytes are worth nothing. Those that wait begin anew. */
static void discard(struct mm_server *server, struct mm_region *region)
{
    struct mm_asks waiting = TAILQ_HEAD_INITIALIZER(waiting);
    struct mm_ask *ask;
    while ((ask = TAILQ_FIRST(&region->waiting))) {
        TAILQ_REMOVE(&region->waiting, ask, in_list);
        ask->list = NULL;
        mm_ask_wait(ask, &waiting);
    }
    mm_ledger_move(&server->ledger, region, MM_EVENT_DROP, 0);
    server->ledger.counters.writers_lost++;
    while ((ask = TAILQ_FIRST(&waiting))) {
        TAILQ_REMOVE(&waiting, ask, in_list);
        ask->list = NULL;
        serve(server, ask);
    }
}

static enum cm_err put_seal(struct mm_region *region, struct cm_error *err)
{
    /* The read-only descriptor first: a failure then leaves the region as it was. */
    int fd;
    enum cm_err code = mm_memory_readonly(region->fd, err, &fd);
    if (code != CM_OK)
        return code;
    code = mm_memory_seal(region->fd, MM_SEALS_SEALED, err);
    if (code != CM_OK) {
        close(fd);
        return code;
    }
    close(region->fd);
    region->fd = fd;
    region->writable = false;
    return CM_OK;
}

static bool holds(const struct mm_conn *conn, const struct mm_region *region)
{
    const struct mm_hold *hold;
    TAILQ_FOREACH(hold, &region->readers, in_region)
    {
        if (hold->conn == conn)
            return true;
    }
    return false;
}

void mm_weights_seal(struct mm_conn *conn, const union mm_wire_any *body)
{
    struct mm_server *server = conn->server;
    uint32_t sequence = body->header.sequence;
    struct mm_region *region = mm_ledger_find(&server->ledger, body->region.region);
    struct cm_error error;
    enum cm_err code = CM_OK;
    if (region && region->state == MM_STATE_SEALED && holds(conn, region)) {
        /* Sealed by an earlier memmgr that did not live to say so. */
        send_weights(conn, sequence, region, false);
        return;
    }
    if (!region || region->state != MM_STATE_WRITING || region->owner->conn != conn) {
        server->ledger.counters.stale_refused++;
        code = cm_fail(&error, CM_STALE, "these weights are not this process's to seal");
    }
    if (code == CM_OK)
        code = put_seal(region, &error);
    if (code != CM_OK) {
        mm_conn_fail(conn, sequence, &error);
        return;
    }
    uint64_t now_ns = cm_now_ns();
    mm_ledger_move(&server->ledger, region, MM_EVENT_SEAL, now_ns);
    server->ledger.counters.weights_written++;
    mm_conn_unhold(region->owner, now_ns);
    if (mm_conn_hold(conn, region, false, sequence))
        send_weights(conn, sequence, region, false);
    struct mm_ask *ask;
    while ((ask = TAILQ_FIRST(&region->waiting))) {
        struct mm_conn *asker = ask->conn;
        uint32_t answers = ask->body.header.sequence;
        mm_ask_destroy(ask);
        give(asker, answers, region);
    }
}

/* --- Letting go --- */

static void let_go(struct mm_server *server, struct mm_hold *hold, uint64_t now_ns)
{
    struct mm_region *region = hold->region;
    bool writer = hold->owner;
    mm_conn_unhold(hold, now_ns);
    if (writer)
        discard(server, region);
}

void mm_weights_close(struct mm_conn *conn, const union mm_wire_any *body)
{
    struct mm_server *server = conn->server;
    struct mm_hold *hold;
    TAILQ_FOREACH(hold, &conn->holds, in_conn)
    {
        if (hold->region->kind == MM_KIND_WEIGHTS && hold->region->number == body->region.region) {
            let_go(server, hold, cm_now_ns());
            return;
        }
    }
    server->ledger.counters.stale_refused++;
}

void mm_weights_lost(struct mm_server *server, struct mm_hold *hold, uint64_t now_ns)
{
    let_go(server, hold, now_ns);
}
