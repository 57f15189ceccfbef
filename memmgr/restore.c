/* After memmgr's own death: clients hand back what they hold, and the ledger is rebuilt from it.
 *
 * memmgr's loop thread. What comes back is checked like any hostile input: seals and size (so that
 * nothing can be truncated under a reader), the right to write, and that one memory has one number
 * and one number one memory. Handed-back memory never goes to the pool. Until the grace time is
 * over, requests for what is unknown wait, because its holder may be about to come. */
#include "memmgr/server_priv.h"

#include "common/check.h"
#include "common/clock.h"
#include "memmgr/client.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A descriptor that came back, with what the kernel says about it. */
struct handed {
    int fd;
    size_t bytes;
    struct mm_memory_id id;
};

static bool is_lease_size(uint64_t bytes)
{
    return bytes >= MM_LEASE_MIN && bytes <= MM_LEASE_MAX && (bytes & (bytes - 1)) == 0;
}

static enum cm_err check_numbers(const struct mm_wire_restore *back, struct cm_error *err)
{
    bool lease = back->kind == MM_RESTORE_OWNER || back->kind == MM_RESTORE_READER;
    if (back->region == 0 || back->region > cm_realtime_ns() + MM_CLOCK_SLACK_NS)
        return cm_fail(err, CM_INVALID, "region %llu was never given out",
                       (unsigned long long)back->region);
    if (lease && (!is_lease_size(back->bytes) || back->generation == 0))
        return cm_fail(err, CM_INVALID, "no lease has %llu bytes and generation %u",
                       (unsigned long long)back->bytes, back->generation);
    if (!mm_wire_label_valid(back->label))
        return cm_fail(err, CM_INVALID, "the label is not a line of printable ASCII");
    return CM_OK;
}

/* The memory behind the descriptor is what kind promises. Fills the rest of handed. */
static enum cm_err check_memory(const struct mm_wire_restore *back, struct handed *handed,
                                struct cm_error *err)
{
    if (!mm_memory_round(back->bytes, &handed->bytes))
        return cm_fail(err, CM_INVALID, "no region has %llu bytes",
                       (unsigned long long)back->bytes);
    bool writable = back->kind == MM_RESTORE_OWNER || back->kind == MM_RESTORE_WRITER;
    int seals = back->kind == MM_RESTORE_WRITER   ? MM_SEALS_WRITING
                : back->kind == MM_RESTORE_HOLDER ? MM_SEALS_SEALED
                                                  : MM_SEALS_LEASE;
    enum cm_err code =
        mm_memory_check(handed->fd, handed->bytes, seals, writable, err, &handed->id);
    if (code == CM_OK && back->kind == MM_RESTORE_WRITER &&
        (mm_memory_seals(handed->fd) & F_SEAL_WRITE))
        code = cm_fail(err, CM_CORRUPT, "these weights are sealed already");
    return code;
}

static bool same_memory(struct mm_memory_id a, struct mm_memory_id b)
{
    return a.inode == b.inode && a.device == b.device;
}

/* A region that the ledger has already: does the claim fit it? */
static enum cm_err check_known(const struct mm_region *region, const struct mm_wire_restore *back,
                               struct mm_memory_id id, struct cm_error *err)
{
    bool weights = back->kind == MM_RESTORE_WRITER || back->kind == MM_RESTORE_HOLDER;
    if ((region->kind == MM_KIND_WEIGHTS) != weights || !same_memory(region->id, id))
        return cm_fail(err, CM_CORRUPT, "region %llu is other memory",
                       (unsigned long long)back->region);
    bool fits = false;
    switch (back->kind) {
    case MM_RESTORE_OWNER:
        fits = region->generation == back->generation &&
               (region->state == MM_STATE_AWAITED || region->state == MM_STATE_ORPHANED);
        break;
    case MM_RESTORE_READER:
        fits = region->generation == back->generation &&
               (region->state == MM_STATE_GRANTED || region->state == MM_STATE_AWAITED ||
                region->state == MM_STATE_ORPHANED);
        break;
    case MM_RESTORE_HOLDER:
        fits = region->state == MM_STATE_SEALED && region->length == back->bytes &&
               memcmp(region->key, back->key, sizeof region->key) == 0;
        break;
    }
    return fits ? CM_OK
                : cm_fail(err, CM_STALE, "region %llu is %s, generation %u",
                          (unsigned long long)back->region, mm_state_name(region->state),
                          region->generation);
}

/* Puts a region that the ledger does not know into it, in state NEW. Takes the descriptor only on
 * success. */
static enum cm_err add_unknown(struct mm_server *server, const struct mm_wire_restore *back,
                               const struct handed *handed, struct cm_error *err,
                               struct mm_region **ret_region)
{
    struct mm_ledger *ledger = &server->ledger;
    bool weights = back->kind == MM_RESTORE_WRITER || back->kind == MM_RESTORE_HOLDER;
    if (mm_ledger_find_memory(ledger, handed->id))
        return cm_fail(err, CM_CORRUPT, "this memory is another region");
    if (back->kind == MM_RESTORE_WRITER && mm_ledger_find_key(ledger, back->key))
        return cm_fail(err, CM_STALE, "someone else writes or holds these weights now");
    struct mm_region *region;
    const struct mm_region_init init = {.kind = weights ? MM_KIND_WEIGHTS : MM_KIND_LEASE,
                                        .number = back->region,
                                        .bytes = handed->bytes,
                                        .fd = handed->fd};
    enum cm_err code = mm_ledger_add(ledger, &init, cm_now_ns(), err, &region);
    if (code != CM_OK)
        return code;
    mm_ledger_saw(ledger, back->region);
    if (server->budget_is_default && server->restoring)
        ledger->budget += mm_memory_resident(handed->fd) / 2; /* as if it had been free then */
    region->id = handed->id;
    region->writable = back->kind == MM_RESTORE_OWNER || back->kind == MM_RESTORE_WRITER;
    region->tainted = true;
    region->generation = back->generation;
    if (weights) {
        region->length = back->bytes;
        memcpy(region->key, back->key, sizeof region->key);
        memcpy(region->label, back->label, sizeof region->label);
    }
    *ret_region = region;
    return CM_OK;
}

static void send_revoked(struct mm_conn *conn, const struct mm_region *region)
{
    union mm_wire_any body;
    mm_wire_init(&body, MM_WIRE_REVOKED, 0);
    body.region.region = region->number;
    body.region.generation = region->generation;
    mm_conn_send(conn, &body, NULL);
}

/* The claim is right: the states follow. */
static void settle(struct mm_server *server, struct mm_region *region, enum mm_restore_kind kind)
{
    uint64_t now_ns = cm_now_ns();
    bool fresh = region->state == MM_STATE_NEW;
    switch (kind) {
    case MM_RESTORE_OWNER:
        region->orphaned = false;
        mm_ledger_move(&server->ledger, region, MM_EVENT_ADOPT, now_ns);
        break;
    case MM_RESTORE_READER:
        if (fresh)
            mm_ledger_move(&server->ledger, region,
                           server->restoring ? MM_EVENT_AWAIT : MM_EVENT_ORPHAN, now_ns);
        break;
    case MM_RESTORE_WRITER:
        mm_ledger_move(&server->ledger, region, MM_EVENT_WRITE, now_ns);
        break;
    case MM_RESTORE_HOLDER:
        if (fresh)
            mm_ledger_move(&server->ledger, region, MM_EVENT_SEAL, now_ns);
        break;
    case MM_RESTORE_CHANNEL:
        break;
    }
}

static void answer_restored(struct mm_conn *conn, uint32_t sequence)
{
    union mm_wire_any body;
    conn->server->ledger.counters.restored++;
    mm_wire_init(&body, MM_WIRE_RESTORED, sequence);
    mm_conn_send(conn, &body, NULL);
}

static enum cm_err restore_region(struct mm_conn *conn, const struct mm_wire_restore *back, int *fd,
                                  struct cm_error *err)
{
    struct mm_server *server = conn->server;
    struct handed handed = {.fd = *fd};
    bool owner = back->kind == MM_RESTORE_OWNER || back->kind == MM_RESTORE_WRITER;
    if (owner ? conn->n_owned >= MM_LEASES_MAX : conn->n_opened >= MM_OPENS_MAX)
        return cm_fail(err, CM_FULL, "this process holds too many regions");
    enum cm_err code = check_memory(back, &handed, err);
    if (code != CM_OK)
        return code;
    struct mm_region *region = mm_ledger_find(&server->ledger, back->region);
    bool known = region != NULL;
    code = known ? check_known(region, back, handed.id, err)
                 : add_unknown(server, back, &handed, err, &region);
    if (code != CM_OK)
        return code;
    if (!known || (owner && !region->writable)) {
        if (known) /* what a reader handed back cannot be granted or populated again */
            close(region->fd);
        region->fd = *fd;
        region->writable = owner;
        *fd = -1;
    }
    struct mm_hold *hold = mm_ledger_hold(region, conn, owner, &conn->holds);
    if (!hold) {
        if (!known)
            mm_ledger_move(&server->ledger, region, MM_EVENT_DROP, 0);
        return cm_fail(err, CM_NOMEM, "memmgr is out of memory");
    }
    if (owner)
        conn->n_owned++;
    else
        conn->n_opened++;
    settle(server, region, (enum mm_restore_kind)back->kind);
    answer_restored(conn, back->header.sequence);
    if (region->state == MM_STATE_ORPHANED)
        send_revoked(conn, region);
    return CM_OK;
}

void mm_restore(struct mm_conn *conn, struct mm_packet *packet)
{
    struct mm_server *server = conn->server;
    const struct mm_wire_restore *back = &packet->body.restore;
    struct cm_error error;
    int fd = mm_packet_take(packet, 0);
    enum cm_err code = check_numbers(back, &error);
    if (code == CM_OK) {
        switch (back->kind) {
        case MM_RESTORE_OWNER:
        case MM_RESTORE_READER:
        case MM_RESTORE_WRITER:
        case MM_RESTORE_HOLDER:
            code = restore_region(conn, back, &fd, &error);
            break;
        case MM_RESTORE_CHANNEL:
            code = mm_link_restore(conn, back, fd, &error);
            fd = -1;
            if (code == CM_OK) {
                mm_ledger_saw(&server->ledger, back->region);
                answer_restored(conn, back->header.sequence);
            }
            break;
        default:
            code = cm_fail(&error, CM_INVALID, "nothing of kind %u can be handed back", back->kind);
        }
    }
    if (fd >= 0)
        close(fd);
    if (code != CM_OK) {
        uint64_t held_back;
        server->ledger.counters.restore_refused++;
        if (cm_log_allowed(&server->restore_log, cm_now_ns(), &held_back))
            cm_log(CM_LOG_WARN, "restore_refused", "role=%s index=%u reason=%s suppressed=%llu",
                   cm_role_name(conn->peer.role), conn->peer.index, error.text,
                   (unsigned long long)held_back);
        mm_conn_fail(conn, back->header.sequence, &error);
        return;
    }
    mm_restore_unpark(server);
}

/* --- Requests that wait for it --- */

void mm_restore_unpark(struct mm_server *server)
{
    struct mm_asks waiting = TAILQ_HEAD_INITIALIZER(waiting);
    struct mm_ask *ask;
    while ((ask = TAILQ_FIRST(&server->parked))) {
        TAILQ_REMOVE(&server->parked, ask, in_list);
        ask->list = NULL;
        mm_ask_wait(ask, &waiting);
    }
    while ((ask = TAILQ_FIRST(&waiting))) {
        TAILQ_REMOVE(&waiting, ask, in_list);
        ask->list = NULL;
        if (ask->body.header.type == MM_WIRE_WEIGHTS)
            mm_weights_again(server, ask);
        else if (mm_lease_try_open(ask->conn, &ask->body))
            mm_ask_destroy(ask);
        else
            mm_ask_wait(ask, &server->parked);
    }
}

void mm_restore_grace_over(struct mm_server *server)
{
    if (server->closing)
        return;
    server->restoring = false;
    uint64_t now_ns = cm_now_ns();
    struct mm_region *region, *next;
    MM_FOREACH_SAFE(region, next, &server->ledger.all, in_all)
    {
        if (region->state == MM_STATE_AWAITED) {
            region->orphaned = true;
            mm_lease_orphan(server, region, now_ns);
        }
    }
    mm_link_grace_over(server);
    mm_restore_unpark(server);
    cm_log(CM_LOG_INFO, "restored", "regions=%u channels=%u", server->ledger.n_regions,
           server->n_links);
}
