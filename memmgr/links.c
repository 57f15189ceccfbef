/* Channels: bringing two processes together, and keeping account of what they then share.
 *
 * memmgr's loop thread. Descriptors are made by a job. memmgr keeps none that could hold a lifeline
 * or a bell open: only the memory's, so that the ledger can say what it costs. The account ends
 * when either end detaches, or a newer channel joins the same two places. */
#include "memmgr/server_priv.h"

#include "common/check.h"
#include "common/clock.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define MM_LINK_BYTES_MAX (1024ull * 1024 * 1024)

static bool same_place(struct cm_peer a, struct cm_peer b)
{
    return a.role == b.role && a.index == b.index;
}

static bool same_life(struct cm_peer a, struct cm_peer b)
{
    return same_place(a, b) && a.instance == b.instance;
}

/* --- The account --- */

static void tell_ended(struct mm_server *server, const struct mm_link *link, unsigned end)
{
    struct mm_conn *conn = mm_conn_find(server, link->ends[end].role, link->ends[end].index);
    if (!conn || conn->peer.instance != link->ends[end].instance)
        return;
    union mm_wire_any body;
    mm_wire_init(&body, MM_WIRE_CHANNEL_ENDED, 0);
    body.region.region = link->id;
    mm_conn_send(conn, &body, NULL);
}

static void drop_link(struct mm_server *server, struct mm_link *link)
{
    TAILQ_REMOVE(&server->links, link, in_server);
    server->n_links--;
    mm_ledger_uncharge(&server->ledger, link->bytes);
    if (link->fd >= 0)
        close(link->fd);
    free(link);
}

static struct mm_link *find_link(struct mm_server *server, struct cm_peer a, struct cm_peer b)
{
    struct mm_link *link;
    TAILQ_FOREACH(link, &server->links, in_server)
    {
        if ((same_place(link->ends[0], a) && same_place(link->ends[1], b)) ||
            (same_place(link->ends[0], b) && same_place(link->ends[1], a)))
            return link;
    }
    return NULL;
}

/* Takes fd. */
static struct mm_link *add_link(struct mm_server *server, uint64_t id, struct cm_peer a,
                                struct cm_peer b, int fd, size_t bytes)
{
    struct mm_link *link = server->n_links < MM_CHANNELS_MAX ? calloc(1, sizeof *link) : NULL;
    if (!link) {
        close(fd);
        return NULL;
    }
    struct mm_link *old = find_link(server, a, b);
    if (old)
        drop_link(server, old);
    *link = (struct mm_link){
        .id = id, .ends = {a, b}, .fd = fd, .bytes = bytes, .since_ns = cm_now_ns()};
    TAILQ_INSERT_TAIL(&server->links, link, in_server);
    server->n_links++;
    mm_ledger_charge(&server->ledger, bytes);
    return link;
}

/* --- Wanting --- */

static void drop_want(struct mm_server *server, struct mm_want *want)
{
    TAILQ_REMOVE(&server->wants, want, in_server);
    if (want->conn)
        want->conn->n_wants--;
    free(want);
}

static void start(struct mm_server *server, struct mm_want *want)
{
    if (want->making || !mm_conn_find(server, want->role, want->index))
        return;
    enum cm_err code = mm_job_channel(server, want);
    CM_ASSERT(code == CM_OK || !want->making); /* out of memory: the next tick tries again */
}

static struct mm_want *find_want(struct mm_server *server, const struct mm_conn *conn,
                                 enum cm_role role, uint32_t index)
{
    struct mm_want *want;
    TAILQ_FOREACH(want, &server->wants, in_server)
    {
        if (want->conn == conn && want->role == role && want->index == index)
            return want;
    }
    return NULL;
}

void mm_link_want(struct mm_conn *conn, const union mm_wire_any *body)
{
    struct mm_server *server = conn->server;
    const struct mm_wire_want *wish = &body->want;
    struct cm_peer peer = {(enum cm_role)wish->role, wish->index, 0};
    bool known = wish->role >= CM_ROLE_WORKER && wish->role <= CM_ROLE_TOOL;
    if (!known || same_place(peer, conn->peer) || conn->n_wants >= MM_WANTS_MAX) {
        server->ledger.counters.protocol_errors++;
        mm_conn_doom(conn);
        return;
    }
    struct mm_conn *other = mm_conn_find(server, peer.role, peer.index);
    struct mm_link *link = find_link(server, conn->peer, peer);
    bool under_way =
        link && other && link->id > wish->last &&
        (same_life(link->ends[0], conn->peer) || same_life(link->ends[1], conn->peer)) &&
        (same_life(link->ends[0], other->peer) || same_life(link->ends[1], other->peer));
    /* The other end asked first and our CHANNEL message has crossed this one, or is about to be. */
    struct mm_want *theirs =
        other ? find_want(server, other, conn->peer.role, conn->peer.index) : NULL;
    if (under_way || (theirs && theirs->making) || find_want(server, conn, peer.role, peer.index))
        return;
    struct mm_want *want = calloc(1, sizeof *want);
    if (!want) {
        mm_conn_doom(conn); /* it comes back and asks again */
        return;
    }
    *want = (struct mm_want){.conn = conn, .role = peer.role, .index = peer.index};
    TAILQ_INSERT_TAIL(&server->wants, want, in_server);
    conn->n_wants++;
    start(server, want);
}

void mm_link_rendezvous(struct mm_server *server, struct mm_conn *conn)
{
    struct mm_want *want;
    TAILQ_FOREACH(want, &server->wants, in_server)
    {
        if (want->conn &&
            (!conn || (want->role == conn->peer.role && want->index == conn->peer.index)))
            start(server, want);
    }
}

/* --- Handing out --- */

static void send_end(struct mm_conn *conn, const struct mm_link *link, struct cm_peer peer,
                     const struct cm_channel_fds *end)
{
    union mm_wire_any body;
    mm_wire_init(&body, MM_WIRE_CHANNEL, 0);
    body.channel.id = link->id;
    body.channel.bytes = link->bytes;
    body.channel.instance = peer.instance;
    body.channel.role = peer.role;
    body.channel.index = peer.index;
    body.channel.first = end->first;
    const int fds[4] = {end->memory, end->bell_in, end->bell_out, end->lifeline};
    mm_conn_send(conn, &body, fds);
}

static void hand_out(struct mm_server *server, struct mm_conn *asker, struct mm_conn *other,
                     uint64_t id, struct cm_channel_fds ends[2])
{
    struct stat status;
    struct mm_link *link = NULL;
    int fd = fcntl(ends[0].memory, F_DUPFD_CLOEXEC, 0);
    if (fd >= 0 && fstat(fd, &status) == 0)
        link = add_link(server, id, asker->peer, other->peer, fd, (size_t)status.st_size);
    if (!link) /* no descriptor, no memory or over the limit: like a failed job */
        return;
    link->memory = (struct mm_memory_id){(uint64_t)status.st_dev, (uint64_t)status.st_ino};
    server->ledger.counters.channels_made++;
    send_end(asker, link, other->peer, &ends[0]);
    send_end(other, link, asker->peer, &ends[1]);
}

void mm_link_ready(struct mm_server *server, struct mm_want *want, enum cm_err code,
                   const struct cm_error *error, uint64_t id, struct cm_channel_fds ends[2])
{
    struct mm_conn *asker = want->conn;
    struct mm_conn *other = asker ? mm_conn_find(server, want->role, want->index) : NULL;
    if (code != CM_OK) {
        uint64_t held_back;
        if (cm_log_allowed(&server->job_log, cm_now_ns(), &held_back))
            cm_log(CM_LOG_ERROR, "channel_failed", "reason=%s suppressed=%llu", error->text,
                   (unsigned long long)held_back);
    }
    if (!asker) {
        drop_want(server, want);
    } else if (code == CM_OK && other) {
        hand_out(server, asker, other, id, ends);
        /* If the descriptors did not suffice the want stays, and the next tick tries again. */
        struct mm_link *link = find_link(server, asker->peer, other->peer);
        if (link && link->id == id)
            drop_want(server, want);
    }
    if (code == CM_OK) {
        cm_channel_fds_close(&ends[0]);
        cm_channel_fds_close(&ends[1]);
    }
}

/* --- Death and return --- */

void mm_link_lost(struct mm_conn *conn)
{
    struct mm_server *server = conn->server;
    struct mm_want *want, *next_want;
    MM_FOREACH_SAFE(want, next_want, &server->wants, in_server)
    {
        if (want->conn != conn)
            continue;
        if (want->making) {
            want->conn = NULL; /* the job's end frees it */
            conn->n_wants--;
        } else {
            drop_want(server, want);
        }
    }
    if (conn->peer.role == CM_ROLE_NONE)
        return;
    struct mm_link *link, *next_link;
    MM_FOREACH_SAFE(link, next_link, &server->links, in_server)
    {
        for (unsigned end = 0; end < 2; end++) {
            if (same_life(link->ends[end], conn->peer)) {
                tell_ended(server, link, 1 - end);
                drop_link(server, link);
                break;
            }
        }
    }
}

enum cm_err mm_link_restore(struct mm_conn *conn, const struct mm_wire_restore *body, int fd,
                            struct cm_error *err)
{
    struct mm_server *server = conn->server;
    struct cm_peer peer = {(enum cm_role)body->peer_role, body->peer_index, body->peer_instance};
    struct mm_memory_id memory;
    enum cm_err code = CM_OK;
    if (body->peer_role < CM_ROLE_WORKER || body->peer_role > CM_ROLE_TOOL ||
        same_place(peer, conn->peer) || body->bytes == 0 || body->bytes > MM_LINK_BYTES_MAX)
        code = cm_fail(err, CM_INVALID, "a channel to nobody, or of an impossible size");
    if (code == CM_OK)
        code = mm_memory_check(fd, body->bytes, MM_SEALS_LEASE, true, err, &memory);
    struct mm_link *link = code == CM_OK ? find_link(server, conn->peer, peer) : NULL;
    if (link && link->id == body->region) { /* the other end was here before */
        bool equal = link->memory.inode == memory.inode && link->memory.device == memory.device;
        code = equal ? CM_OK : cm_fail(err, CM_CORRUPT, "another channel has this number");
    } else if (link && link->id > body->region) {
        code = cm_fail(err, CM_STALE, "a newer channel joins these two");
    } else if (code == CM_OK) {
        link = add_link(server, body->region, conn->peer, peer, fd, body->bytes);
        fd = -1;
        if (link)
            link->memory = memory;
        else
            code = cm_fail(err, CM_FULL, "memmgr cannot count another channel");
    }
    if (fd >= 0)
        close(fd);
    return code;
}

void mm_link_grace_over(struct mm_server *server)
{
    struct mm_link *link, *next;
    MM_FOREACH_SAFE(link, next, &server->links, in_server)
    {
        for (unsigned end = 0; end < 2; end++) {
            struct mm_conn *conn =
                mm_conn_find(server, link->ends[end].role, link->ends[end].index);
            if (!conn || conn->peer.instance != link->ends[end].instance) {
                tell_ended(server, link, 1 - end);
                drop_link(server, link);
                break;
            }
        }
    }
}

void mm_link_fini(struct mm_server *server)
{
    struct mm_want *want, *next;
    MM_FOREACH_SAFE(want, next, &server->wants, in_server)
    {
        if (!want->making)
            drop_want(server, want);
    }
    struct mm_link *link;
    while ((link = TAILQ_FIRST(&server->links)))
        drop_link(server, link);
}
