/* Leases: acquire, release, open, close, and what a holder's death does to them.
 *
 * memmgr's loop thread. Memory goes back to the pool only when everyone who had it has said so: a
 * client that merely lost its connection may still be writing, so what it held is given back to the
 * kernel instead, which frees it when the last mapping is gone. */
#include "memmgr/server_priv.h"

#include "common/check.h"
#include "common/clock.h"
#include "memmgr/client.h"

#include <stdio.h>
#include <unistd.h>

static void send_grant(struct mm_conn *conn, uint32_t sequence, const struct mm_region *region,
                       bool writable, int fd)
{
    union mm_wire_any body;
    mm_wire_init(&body, MM_WIRE_GRANTED, sequence);
    body.granted.region = region->number;
    body.granted.bytes = region->bytes;
    body.granted.generation = region->generation;
    body.granted.writable = writable;
    mm_conn_send(conn, &body, &fd);
}

static void send_revoked(struct mm_conn *conn, const struct mm_region *region)
{
    union mm_wire_any body;
    mm_wire_init(&body, MM_WIRE_REVOKED, 0);
    body.region.region = region->number;
    body.region.generation = region->generation;
    mm_conn_send(conn, &body, NULL);
}

static void fail(struct mm_conn *conn, uint32_t sequence, enum cm_err code, const char *text)
{
    struct cm_error error;
    cm_fail(&error, code, "%s", text);
    mm_conn_fail(conn, sequence, &error);
}

/* --- Own leases --- */

static void grant(struct mm_conn *conn, uint32_t sequence, struct mm_region *region)
{
    struct mm_server *server = conn->server;
    uint64_t now_ns = cm_now_ns();
    if (!mm_conn_hold(conn, region, true, sequence)) {
        if (region->state == MM_STATE_NEW)
            mm_ledger_retire(&server->ledger, region, now_ns);
        return;
    }
    mm_ledger_move(&server->ledger, region, MM_EVENT_GRANT, now_ns);
    server->ledger.counters.leases_granted++;
    send_grant(conn, sequence, region, true, region->fd);
}

static size_t class_of(uint64_t bytes)
{
    size_t size = MM_LEASE_MIN;
    while (size < bytes)
        size *= 2;
    return size;
}

static void populate_and_grant(struct mm_conn *conn, const union mm_wire_any *body, size_t bytes)
{
    struct mm_server *server = conn->server;
    struct cm_error error;
    struct mm_region *region;
    const struct mm_region_init init = {.kind = MM_KIND_LEASE, .bytes = bytes, .fd = -1};
    char what[48];
    snprintf(what, sizeof what, "a lease of %llu bytes", (unsigned long long)body->acquire.bytes);
    struct mm_ask *ask = mm_ask_create(conn, body);
    if (!ask)
        return;
    enum cm_err code = mm_ledger_make_room(&server->ledger, bytes, what, &error);
    if (code == CM_OK)
        code = mm_ledger_add(&server->ledger, &init, cm_now_ns(), &error, &region);
    if (code == CM_OK) {
        code = mm_job_populate(server, region, &error);
        if (code == CM_OK) {
            mm_ask_wait(ask, &region->waiting);
            return;
        }
        mm_ledger_move(&server->ledger, region, MM_EVENT_DROP, 0);
    }
    mm_ask_destroy(ask);
    mm_conn_fail(conn, body->header.sequence, &error);
}

void mm_lease_acquire(struct mm_conn *conn, const union mm_wire_any *body)
{
    uint32_t sequence = body->header.sequence;
    uint64_t bytes = body->acquire.bytes;
    if (bytes == 0) {
        fail(conn, sequence, CM_INVALID, "a lease of 0 bytes");
        return;
    }
    if (bytes > MM_LEASE_MAX) {
        struct cm_error error;
        cm_fail(&error, CM_LIMIT, "a lease of %llu bytes: the largest has %u",
                (unsigned long long)bytes, MM_LEASE_MAX);
        mm_conn_fail(conn, sequence, &error);
        return;
    }
    if (!mm_may_own(conn, sequence))
        return;
    size_t size = class_of(bytes);
    struct mm_region *idle = mm_ledger_find_idle(&conn->server->ledger, size);
    if (idle) {
        conn->server->ledger.counters.leases_from_pool++;
        grant(conn, sequence, idle);
    } else {
        populate_and_grant(conn, body, size);
    }
}

void mm_lease_ready(struct mm_server *server, struct mm_region *region, enum cm_err code,
                    const struct cm_error *error)
{
    if (code != CM_OK) {
        mm_asks_fail(&region->waiting, error);
        mm_ledger_move(&server->ledger, region, MM_EVENT_DROP, 0);
        return;
    }
    struct mm_ask *ask = TAILQ_FIRST(&region->waiting);
    if (!ask) { /* the asker died meanwhile */
        mm_ledger_retire(&server->ledger, region, cm_now_ns());
        return;
    }
    struct mm_conn *conn = ask->conn;
    uint32_t sequence = ask->body.header.sequence;
    mm_ask_destroy(ask);
    grant(conn, sequence, region);
}

void mm_lease_orphan(struct mm_server *server, struct mm_region *region, uint64_t now_ns)
{
    CM_ASSERT(!region->owner);
    if (region->n_readers == 0) {
        mm_ledger_retire(&server->ledger, region, now_ns);
        return;
    }
    mm_ledger_move(&server->ledger, region, MM_EVENT_ORPHAN, now_ns);
    struct mm_hold *reader;
    TAILQ_FOREACH(reader, &region->readers, in_region)
    {
        server->ledger.counters.revoked++;
        send_revoked(reader->conn, region);
    }
}

/* This connection's claim on exactly this grant; NULL (counted) for anything else. */
static struct mm_hold *find_hold(struct mm_conn *conn, const struct mm_wire_region *which,
                                 bool owner)
{
    struct mm_ledger *ledger = &conn->server->ledger;
    struct mm_region *region = mm_ledger_find(ledger, which->region);
    if (region && region->kind == MM_KIND_LEASE && region->generation == which->generation) {
        if (owner && region->owner && region->owner->conn == conn)
            return region->owner;
        struct mm_hold *reader;
        TAILQ_FOREACH(reader, &region->readers, in_region)
        {
            if (!owner && reader->conn == conn)
                return reader;
        }
    }
    ledger->counters.stale_refused++;
    return NULL;
}

void mm_lease_release(struct mm_conn *conn, const union mm_wire_any *body)
{
    struct mm_hold *hold = find_hold(conn, &body->region, true);
    if (!hold)
        return;
    struct mm_region *region = hold->region;
    uint64_t now_ns = cm_now_ns();
    mm_conn_unhold(hold, now_ns);
    mm_lease_orphan(conn->server, region, now_ns);
}

/* --- Others' leases --- */

bool mm_lease_try_open(struct mm_conn *conn, const union mm_wire_any *body)
{
    struct mm_server *server = conn->server;
    uint32_t sequence = body->header.sequence;
    struct mm_region *region = mm_ledger_find(&server->ledger, body->region.region);
    if (!region && server->restoring)
        return false;
    bool held = region && region->kind == MM_KIND_LEASE &&
                (region->state == MM_STATE_GRANTED || region->state == MM_STATE_AWAITED);
    if (!held || region->generation != body->region.generation) {
        server->ledger.counters.stale_refused++;
        fail(conn, sequence, CM_STALE, "no such lease, or another generation of it");
        return true;
    }
    if (!mm_may_open(conn, sequence))
        return true;
    struct cm_error error;
    int fd;
    if (mm_memory_readonly(region->fd, &error, &fd) != CM_OK) {
        mm_conn_fail(conn, sequence, &error);
        return true;
    }
    if (mm_conn_hold(conn, region, false, sequence)) {
        server->ledger.counters.opens++;
        send_grant(conn, sequence, region, false, fd);
    }
    close(fd);
    return true;
}

void mm_lease_open(struct mm_conn *conn, const union mm_wire_any *body)
{
    if (mm_lease_try_open(conn, body))
        return;
    struct mm_ask *ask = mm_ask_create(conn, body);
    if (ask)
        mm_ask_wait(ask, &conn->server->parked);
}

/* What is left of a region after a reader has gone. */
static void after_reader(struct mm_server *server, struct mm_region *region, uint64_t now_ns)
{
    if (region->n_readers > 0)
        return;
    if (region->state == MM_STATE_ORPHANED)
        mm_ledger_retire(&server->ledger, region, now_ns);
    else if (region->state == MM_STATE_AWAITED) /* its owner hands it back as new, if at all */
        mm_ledger_move(&server->ledger, region, MM_EVENT_DROP, now_ns);
}

void mm_lease_close(struct mm_conn *conn, const union mm_wire_any *body)
{
    struct mm_hold *hold = find_hold(conn, &body->region, false);
    if (!hold)
        return;
    struct mm_region *region = hold->region;
    uint64_t now_ns = cm_now_ns();
    mm_conn_unhold(hold, now_ns);
    after_reader(conn->server, region, now_ns);
}

/* --- Death --- */

void mm_lease_lost(struct mm_server *server, struct mm_hold *hold, uint64_t now_ns)
{
    struct mm_region *region = hold->region;
    bool owner = hold->owner;
    region->tainted = true;
    mm_conn_unhold(hold, now_ns);
    if (owner) {
        region->orphaned = true;
        mm_lease_orphan(server, region, now_ns);
    } else {
        after_reader(server, region, now_ns);
    }
}
