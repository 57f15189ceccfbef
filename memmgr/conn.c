/* One client's connection: attach, dispatch, answers, and what its end means.
 *
 * memmgr's loop thread. Every value in a message is the peer's claim. A peer that breaks the
 * protocol or does not read its answers loses the connection, never our time. */
#include "memmgr/server_priv.h"

#include "common/check.h"
#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MESSAGES_PER_WAKE 64u
#define SEND_BUFFER_BYTES (1024 * 1024)

/* --- Sending --- */

void mm_conn_doom(struct mm_conn *conn)
{
    CM_ASSERT(conn->magic == MM_CONN_MAGIC);
    if (conn->doomed)
        return;
    conn->doomed = true;
    conn->server->n_doomed++;
}

void mm_conn_send(struct mm_conn *conn, const union mm_wire_any *body, const int *fds)
{
    if (conn->doomed)
        return;
    enum cm_err code = mm_wire_send(conn->fd, body, fds);
    if (code == CM_AGAIN) {
        struct mm_server *server = conn->server;
        uint64_t held_back;
        server->ledger.counters.slow_peers++;
        if (cm_log_allowed(&server->slow_log, cm_now_ns(), &held_back))
            cm_log(CM_LOG_WARN, "slow_peer", "role=%s index=%u message=%s suppressed=%llu",
                   cm_role_name(conn->peer.role), conn->peer.index, mm_wire_name(body->header.type),
                   (unsigned long long)held_back);
    }
    if (code != CM_OK)
        mm_conn_doom(conn);
}

static void send_failure(struct mm_conn *conn, enum mm_wire_type type, uint32_t sequence,
                         const struct cm_error *error)
{
    union mm_wire_any body;
    mm_wire_init(&body, type, sequence);
    body.failed.code = error->code;
    snprintf(body.failed.text, sizeof body.failed.text, "%.*s", (int)MM_TEXT_BYTES - 1,
             error->text);
    mm_conn_send(conn, &body, NULL);
}

void mm_conn_fail(struct mm_conn *conn, uint32_t sequence, const struct cm_error *error)
{
    send_failure(conn, MM_WIRE_FAILED, sequence, error);
}

static void refuse(struct mm_conn *conn, uint32_t sequence, const struct cm_error *error)
{
    conn->server->ledger.counters.refused++;
    cm_log(CM_LOG_WARN, "refused", "reason=%s", error->text);
    send_failure(conn, MM_WIRE_REFUSED, sequence, error);
    mm_conn_doom(conn);
}

/* --- Waiting requests and limits --- */

struct mm_ask *mm_ask_create(struct mm_conn *conn, const union mm_wire_any *body)
{
    struct cm_error error;
    struct mm_ask *ask = NULL;
    if (conn->n_asks >= MM_ASKS_MAX)
        cm_fail(&error, CM_FULL, "this process has %u open requests, the limit", MM_ASKS_MAX);
    else if (!(ask = calloc(1, sizeof *ask)))
        cm_fail(&error, CM_NOMEM, "memmgr is out of memory");
    if (!ask) {
        mm_conn_fail(conn, body->header.sequence, &error);
        return NULL;
    }
    ask->conn = conn;
    ask->body = *body;
    TAILQ_INSERT_TAIL(&conn->asks, ask, in_conn);
    conn->n_asks++;
    return ask;
}

void mm_ask_wait(struct mm_ask *ask, struct mm_asks *list)
{
    CM_ASSERT(!ask->list);
    ask->list = list;
    TAILQ_INSERT_TAIL(list, ask, in_list);
}

void mm_ask_destroy(struct mm_ask *ask)
{
    if (ask->list)
        TAILQ_REMOVE(ask->list, ask, in_list);
    TAILQ_REMOVE(&ask->conn->asks, ask, in_conn);
    ask->conn->n_asks--;
    free(ask);
}

void mm_asks_fail(struct mm_asks *list, const struct cm_error *error)
{
    struct mm_ask *ask;
    while ((ask = TAILQ_FIRST(list))) {
        mm_conn_fail(ask->conn, ask->body.header.sequence, error);
        mm_ask_destroy(ask);
    }
}

static bool may(struct mm_conn *conn, unsigned now, unsigned limit, const char *what,
                uint32_t sequence)
{
    if (now < limit)
        return true;
    struct cm_error error;
    cm_fail(&error, CM_FULL, "this process holds %u %s, the limit", limit, what);
    mm_conn_fail(conn, sequence, &error);
    return false;
}

bool mm_may_own(struct mm_conn *conn, uint32_t sequence)
{
    return may(conn, conn->n_owned, MM_LEASES_MAX, "leases", sequence);
}

bool mm_may_open(struct mm_conn *conn, uint32_t sequence)
{
    return may(conn, conn->n_opened, MM_OPENS_MAX, "open leases", sequence);
}

struct mm_hold *mm_conn_hold(struct mm_conn *conn, struct mm_region *region, bool owner,
                             uint32_t sequence)
{
    struct mm_hold *hold = mm_ledger_hold(region, conn, owner, &conn->holds);
    if (!hold) {
        struct cm_error error;
        cm_fail(&error, CM_NOMEM, "memmgr is out of memory");
        mm_conn_fail(conn, sequence, &error);
        return NULL;
    }
    if (owner)
        conn->n_owned++;
    else
        conn->n_opened++;
    return hold;
}

void mm_conn_unhold(struct mm_hold *hold, uint64_t now_ns)
{
    if (hold->owner)
        hold->conn->n_owned--;
    else
        hold->conn->n_opened--;
    mm_ledger_unhold(hold, &hold->conn->holds, now_ns);
}

/* --- Attaching --- */

struct mm_conn *mm_conn_find(struct mm_server *server, enum cm_role role, uint32_t index)
{
    struct mm_conn *conn;
    TAILQ_FOREACH(conn, &server->conns, in_server)
    {
        if (conn->peer.role == role && conn->peer.index == index && !conn->doomed)
            return conn;
    }
    return NULL;
}

/* A killed process's hang-up and its successor's attach may arrive in one wake-up, in any order. */
static bool has_hung_up(const struct mm_conn *conn)
{
    struct pollfd watch = {.fd = conn->fd, .events = POLLRDHUP};
    return poll(&watch, 1, 0) > 0 && (watch.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

static bool take_number(struct mm_server *server, uint32_t wish, uint32_t *ret_number)
{
    for (uint32_t i = 0; i <= MM_NUMBERS; i++) {
        /* Round robin, so that a number comes back as late as possible. */
        uint32_t number = i == 0 ? wish : (server->next_number + i - 1) % MM_NUMBERS;
        if (number >= MM_NUMBERS || (server->numbers[number / 8] >> (number % 8)) & 1)
            continue;
        server->numbers[number / 8] |= (uint8_t)(1u << (number % 8));
        if (i > 0)
            server->next_number = (number + 1) % MM_NUMBERS;
        *ret_number = number;
        return true;
    }
    return false;
}

static void give_number(struct mm_server *server, uint32_t number)
{
    server->numbers[number / 8] &= (uint8_t) ~(1u << (number % 8));
}

static enum cm_err check_attach(struct mm_server *server, const struct mm_wire_attach *attach,
                                struct cm_error *err)
{
    switch (attach->role) {
    case CM_ROLE_WORKER:
    case CM_ROLE_SCHEDULER:
    case CM_ROLE_GATEWAY:
    case CM_ROLE_TOOL:
        break;
    default:
        return cm_fail(err, CM_INVALID, "role %u does not attach", attach->role);
    }
    uint64_t newest = cm_realtime_ns() + MM_CLOCK_SLACK_NS;
    if (attach->reserved != 0 || attach->instance > newest)
        return cm_fail(err, CM_INVALID, "instance %llu was never given out",
                       (unsigned long long)attach->instance);
    struct mm_conn *other = mm_conn_find(server, attach->role, attach->index);
    if (other && has_hung_up(other)) {
        mm_conn_close(other);
        other = NULL;
    }
    if (other)
        return cm_fail(err, CM_EXISTS, "another live process is %s.%u", cm_role_name(attach->role),
                       attach->index);
    return CM_OK;
}

static void attach(struct mm_conn *conn, const union mm_wire_any *body)
{
    struct mm_server *server = conn->server;
    const struct mm_wire_attach *wish = &body->attach;
    struct cm_error error;
    uint32_t number = 0;
    enum cm_err code = check_attach(server, wish, &error);
    if (code == CM_OK && !take_number(server, wish->number, &number))
        code = cm_fail(&error, CM_FULL, "all %u process numbers are taken", MM_NUMBERS);
    if (code != CM_OK) {
        refuse(conn, body->header.sequence, &error);
        return;
    }
    uint64_t instance = wish->instance;
    if (instance == 0) {
        uint64_t now_ns = cm_realtime_ns();
        instance = now_ns > server->last_instance ? now_ns : server->last_instance + 1;
    }
    if (instance > server->last_instance)
        server->last_instance = instance;
    conn->peer = (struct cm_peer){(enum cm_role)wish->role, wish->index, instance};
    conn->number = number;
    if (conn->peer.role != CM_ROLE_TOOL)
        server->settled_ns = cm_now_ns();
    server->ledger.counters.attached++;
    union mm_wire_any answer;
    mm_wire_init(&answer, MM_WIRE_ATTACHED, body->header.sequence);
    answer.attached.instance = instance;
    answer.attached.epoch = server->epoch;
    answer.attached.number = number;
    mm_conn_send(conn, &answer, NULL);
    cm_log(CM_LOG_INFO, "attached", "role=%s index=%u instance=%llu number=%u again=%d",
           cm_role_name(conn->peer.role), conn->peer.index, (unsigned long long)instance, number,
           wish->instance != 0);
    mm_link_rendezvous(server, conn);
}

/* --- Receiving --- */

static void break_off(struct mm_conn *conn, const struct cm_error *error)
{
    struct mm_server *server = conn->server;
    uint64_t held_back;
    server->ledger.counters.protocol_errors++;
    if (cm_log_allowed(&server->protocol_log, cm_now_ns(), &held_back))
        cm_log(CM_LOG_WARN, "protocol_error", "role=%s index=%u reason=%s suppressed=%llu",
               cm_role_name(conn->peer.role), conn->peer.index, error->text,
               (unsigned long long)held_back);
    mm_conn_doom(conn);
}

static void dispatch(struct mm_conn *conn, struct mm_packet *packet)
{
    const union mm_wire_any *body = &packet->body;
    struct cm_error error;
    if ((conn->peer.role == CM_ROLE_NONE) != (body->header.type == MM_WIRE_ATTACH)) {
        cm_fail(&error, CM_CORRUPT, "%s %s attaching", mm_wire_name(body->header.type),
                conn->peer.role == CM_ROLE_NONE ? "before" : "after");
        break_off(conn, &error);
        return;
    }
    switch (body->header.type) {
    case MM_WIRE_ATTACH:
        attach(conn, body);
        break;
    case MM_WIRE_ACQUIRE:
        mm_lease_acquire(conn, body);
        break;
    case MM_WIRE_RELEASE:
        mm_lease_release(conn, body);
        break;
    case MM_WIRE_OPEN:
        mm_lease_open(conn, body);
        break;
    case MM_WIRE_CLOSE:
        mm_lease_close(conn, body);
        break;
    case MM_WIRE_WEIGHTS:
        mm_weights_ask(conn, body);
        break;
    case MM_WIRE_SEAL:
        mm_weights_seal(conn, body);
        break;
    case MM_WIRE_WEIGHTS_CLOSE:
        mm_weights_close(conn, body);
        break;
    case MM_WIRE_WANT_CHANNEL:
        mm_link_want(conn, body);
        break;
    case MM_WIRE_RESTORE:
        mm_restore(conn, packet);
        break;
    default:
        cm_fail(&error, CM_CORRUPT, "%s is not for memmgr", mm_wire_name(body->header.type));
        break_off(conn, &error);
    }
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    (void)events;
    struct mm_conn *conn = cm_container_of(poll, struct mm_conn, poll);
    struct mm_server *server = conn->server;
    CM_ASSERT(conn->magic == MM_CONN_MAGIC);
    if (status < 0)
        mm_conn_doom(conn);
    for (unsigned i = 0; i < MESSAGES_PER_WAKE && !conn->doomed; i++) {
        struct mm_packet packet;
        struct cm_error error;
        enum cm_err code = mm_wire_recv(conn->fd, &packet, &error);
        if (code == CM_AGAIN)
            break;
        if (code == CM_OK) {
            dispatch(conn, &packet);
            mm_packet_close(&packet);
        } else if (code == CM_UNSUPPORTED) {
            refuse(conn, packet.body.header.sequence, &error);
        } else if (code == CM_CORRUPT) {
            break_off(conn, &error);
        } else {
            mm_conn_doom(conn);
        }
    }
    mm_server_reap(server);
}

/* --- Beginning and end --- */

void mm_conn_accept(struct mm_server *server, int fd)
{
    struct mm_conn *conn = calloc(1, sizeof *conn);
    if (!conn || uv_poll_init(server->loop, &conn->poll, fd) != 0) {
        free(conn);
        close(fd);
        return;
    }
    conn->magic = MM_CONN_MAGIC;
    conn->server = server;
    conn->fd = fd;
    conn->since_ns = cm_now_ns();
    TAILQ_INIT(&conn->holds);
    TAILQ_INIT(&conn->asks);
    TAILQ_INSERT_TAIL(&server->conns, conn, in_server);
    server->n_conns++;
    server->n_handles++;
    server->ledger.counters.connections++;
    int bytes = SEND_BUFFER_BYTES; /* the kernel caps it; larger is only kinder */
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    CM_ASSERT(uv_poll_start(&conn->poll, UV_READABLE | UV_DISCONNECT, on_readable) == 0);
}

static void on_conn_closed(uv_handle_t *handle)
{
    struct mm_conn *conn = cm_container_of(handle, struct mm_conn, poll);
    struct mm_server *server = conn->server;
    conn->magic = 0;
    free(conn);
    server->n_handles--;
    mm_server_unref(server);
}

/* In this order: nobody finds the place any more; waiting requests go, so that nothing is granted
 * to the dead; then channels, then memory. */
void mm_conn_close(struct mm_conn *conn)
{
    struct mm_server *server = conn->server;
    uint64_t now_ns = cm_now_ns();
    mm_conn_doom(conn);
    server->n_doomed--;
    TAILQ_REMOVE(&server->conns, conn, in_server);
    server->n_conns--;
    bool attached = conn->peer.role != CM_ROLE_NONE;
    if (attached) {
        give_number(server, conn->number);
        if (conn->peer.role != CM_ROLE_TOOL)
            server->settled_ns = now_ns;
        cm_log(CM_LOG_INFO, "detached", "role=%s index=%u instance=%llu owned=%u opened=%u",
               cm_role_name(conn->peer.role), conn->peer.index,
               (unsigned long long)conn->peer.instance, conn->n_owned, conn->n_opened);
    }
    struct mm_ask *ask;
    while ((ask = TAILQ_FIRST(&conn->asks)))
        mm_ask_destroy(ask);
    mm_link_lost(conn);
    struct mm_hold *hold;
    while ((hold = TAILQ_FIRST(&conn->holds))) {
        if (hold->region->kind == MM_KIND_LEASE)
            mm_lease_lost(server, hold, now_ns);
        else
            mm_weights_lost(server, hold, now_ns);
    }
    uv_close((uv_handle_t *)&conn->poll, on_conn_closed);
    close(conn->fd);
}
