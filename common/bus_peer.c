/* The sending side of a bus: a nanomsg PUSH socket for each peer and a short queue before it.
 *
 * The loop's thread only; never blocks. nanomsg connects and reconnects by itself, from its own
 * thread; until then a send would say EAGAIN. Without the queue the first message to every peer
 * would be lost and cost a retry, so what cannot go now waits until the socket's send descriptor
 * is readable.
 *
 * nanomsg 1.x drops what it has not written yet when a socket is closed, so a socket is closed only
 * when nothing was sent on it for a while. */
#include "common/bus_priv.h"

#include "common/check.h"
#include "common/clock.h"

#include <errno.h>
#include <nanomsg/nn.h>
#include <nanomsg/pipeline.h>
#include <stdio.h>
#include <stdlib.h>

#define QUEUE_MAX       64u
#define QUEUE_BYTES_MAX (2u * CM_BUS_MESSAGE_MAX)
#define QUEUE_NS        (2 * CM_NS_PER_S)

/* Tools come once and go; the other roles come back under the same address. */
#define IDLE_TOOL_NS (2 * CM_NS_PER_S)
#define IDLE_NS      (60 * CM_NS_PER_S)

#define RECONNECT_MS     10
#define RECONNECT_MAX_MS 200

struct queued {
    STAILQ_ENTRY(queued) link;
    struct cm_bus_packet *packet;
    uint64_t expires_ns;
};

struct peer {
    LIST_ENTRY(peer) link;
    struct cm_bus_peers *owner;
    enum cm_role role;
    uint32_t index;
    int socket;
    uv_poll_t writable; /* active while something is queued */
    STAILQ_HEAD(, queued) queue;
    unsigned queue_count;
    size_t queue_bytes;
    uint64_t used_ns;
};

struct cm_bus_peers {
    uv_loop_t *loop;
    const char *run_dir;
    struct cm_bus_counters *counters;
    LIST_HEAD(, peer) list;
    unsigned count;        /* in the list */
    unsigned open_handles; /* in the list, or closing */
    void (*on_closed)(void *ctx);
    void *ctx;
};

static void queue_pop(struct peer *peer)
{
    struct queued *first = STAILQ_FIRST(&peer->queue);
    STAILQ_REMOVE_HEAD(&peer->queue, link);
    peer->queue_count--;
    peer->queue_bytes -= first->packet->length;
    cm_bus_packet_unref(first->packet);
    free(first);
}

/* After cm_bus_peers_close: the last socket takes the peers along. */
static void free_if_gone(struct cm_bus_peers *peers)
{
    if (peers->open_handles > 0 || !peers->on_closed)
        return;
    void (*on_closed)(void *) = peers->on_closed;
    void *ctx = peers->ctx;
    free(peers);
    on_closed(ctx);
}

static void on_peer_closed(uv_handle_t *handle)
{
    struct peer *peer = handle->data;
    struct cm_bus_peers *peers = peer->owner;
    nn_close(peer->socket);
    free(peer);
    peers->open_handles--;
    free_if_gone(peers);
}

static void peer_close(struct peer *peer)
{
    while (!STAILQ_EMPTY(&peer->queue))
        queue_pop(peer);
    LIST_REMOVE(peer, link);
    peer->owner->count--;
    uv_close((uv_handle_t *)&peer->writable, on_peer_closed);
}

/* A connected-to-be PUSH socket, or -1 with errno set. */
static int open_socket(const char *path, int *ret_writable_fd)
{
    char address[BUS_PATH_MAX + 8];
    snprintf(address, sizeof address, "ipc://%s", path);
    int interval = RECONNECT_MS, interval_max = RECONNECT_MAX_MS;
    size_t size = sizeof *ret_writable_fd;
    int s = nn_socket(AF_SP, NN_PUSH);
    if (s < 0)
        return -1;
    if (nn_setsockopt(s, NN_SOL_SOCKET, NN_RECONNECT_IVL, &interval, sizeof interval) < 0 ||
        nn_setsockopt(s, NN_SOL_SOCKET, NN_RECONNECT_IVL_MAX, &interval_max, sizeof interval_max) <
            0 ||
        nn_getsockopt(s, NN_SOL_SOCKET, NN_SNDFD, ret_writable_fd, &size) < 0 ||
        nn_connect(s, address) < 0) {
        int errnum = nn_errno();
        nn_close(s);
        errno = errnum;
        return -1;
    }
    return s;
}

static enum cm_err peer_create(struct cm_bus_peers *peers, enum cm_role role, uint32_t index,
                               struct peer **ret_peer)
{
    char path[BUS_PATH_MAX];
    int writable_fd = -1;
    if (!cm_bus_path(peers->run_dir, role, index, path))
        return CM_LIMIT;
    struct peer *peer = calloc(1, sizeof *peer);
    if (!peer)
        return CM_NOMEM;
    peer->socket = open_socket(path, &writable_fd);
    if (peer->socket < 0) {
        enum cm_err rc = cm_err_from_errno(errno);
        free(peer);
        return rc;
    }
    int rc = uv_poll_init(peers->loop, &peer->writable, writable_fd);
    if (rc != 0) {
        nn_close(peer->socket);
        free(peer);
        return cm_err_from_errno(-rc);
    }
    peer->writable.data = peer;
    peer->owner = peers;
    peer->role = role;
    peer->index = index;
    STAILQ_INIT(&peer->queue);
    LIST_INSERT_HEAD(&peers->list, peer, link);
    peers->count++;
    peers->open_handles++;
    *ret_peer = peer;
    return CM_OK;
}

/* Makes room for a new peer by closing the one that was idle longest, if any was idle at all. */
static bool make_room(struct cm_bus_peers *peers, uint64_t now_ns)
{
    struct peer *peer, *oldest = NULL;
    LIST_FOREACH(peer, &peers->list, link)
    if (peer->queue_count == 0 && now_ns - peer->used_ns >= IDLE_TOOL_NS &&
        (!oldest || peer->used_ns < oldest->used_ns))
        oldest = peer;
    if (oldest)
        peer_close(oldest);
    return oldest != NULL;
}

static enum cm_err find_peer(struct cm_bus_peers *peers, enum cm_role role, uint32_t index,
                             uint64_t now_ns, struct peer **ret_peer)
{
    struct peer *peer;
    LIST_FOREACH(peer, &peers->list, link)
    if (peer->role == role && peer->index == index) {
        *ret_peer = peer;
        return CM_OK;
    }
    if (peers->count >= CM_BUS_PEERS_MAX && !make_room(peers, now_ns))
        return CM_FULL;
    return peer_create(peers, role, index, ret_peer);
}

/* True when the packet has left or never will; false: try later. */
static bool send_now(struct peer *peer, const struct cm_bus_packet *packet, uint64_t now_ns)
{
    int n;
    do
        n = nn_send(peer->socket, packet->bytes, packet->length, NN_DONTWAIT);
    while (n < 0 && nn_errno() == EINTR);
    if (n < 0 && nn_errno() == EAGAIN)
        return false;
    peer->used_ns = now_ns;
    if (n < 0)
        peer->owner->counters->expired++;
    else
        peer->owner->counters->sent++;
    return true;
}

static void on_writable(uv_poll_t *handle, int status, int events)
{
    (void)events;
    struct peer *peer = handle->data;
    uint64_t now_ns = cm_now_ns();
    while (status == 0 && !STAILQ_EMPTY(&peer->queue)) {
        struct queued *first = STAILQ_FIRST(&peer->queue);
        bool unwanted = first->packet->request && first->packet->references == 1;
        if (!unwanted && !send_now(peer, first->packet, now_ns))
            return;
        queue_pop(peer);
    }
    uv_poll_stop(&peer->writable);
}

static enum cm_err queue_push(struct peer *peer, struct cm_bus_packet *packet, uint64_t now_ns)
{
    struct queued *queued;
    STAILQ_FOREACH(queued, &peer->queue, link)
    if (queued->packet == packet) { /* a retry of what still waits */
        queued->expires_ns = now_ns + QUEUE_NS;
        return CM_OK;
    }
    queued = malloc(sizeof *queued);
    if (!queued)
        return CM_NOMEM;
    while (peer->queue_count >= QUEUE_MAX ||
           (peer->queue_count > 0 && peer->queue_bytes + packet->length > QUEUE_BYTES_MAX)) {
        queue_pop(peer); /* the oldest: what is newer is likelier still true */
        peer->owner->counters->expired++;
    }
    *queued = (struct queued){.packet = cm_bus_packet_ref(packet), .expires_ns = now_ns + QUEUE_NS};
    STAILQ_INSERT_TAIL(&peer->queue, queued, link);
    peer->queue_count++;
    peer->queue_bytes += packet->length;
    peer->used_ns = now_ns;
    int rc = uv_poll_start(&peer->writable, UV_READABLE, on_writable);
    return rc == 0 ? CM_OK : cm_err_from_errno(-rc);
}

struct cm_bus_peers *cm_bus_peers_create(uv_loop_t *loop, const char *run_dir,
                                         struct cm_bus_counters *counters)
{
    struct cm_bus_peers *peers = calloc(1, sizeof *peers);
    if (!peers)
        return NULL;
    peers->loop = loop;
    peers->run_dir = run_dir;
    peers->counters = counters;
    LIST_INIT(&peers->list);
    return peers;
}

enum cm_err cm_bus_peers_send(struct cm_bus_peers *peers, enum cm_role role, uint32_t index,
                              struct cm_bus_packet *packet, uint64_t now_ns)
{
    struct peer *peer = NULL;
    enum cm_err rc = find_peer(peers, role, index, now_ns, &peer);
    if (rc != CM_OK)
        return rc;
    /* Nothing overtakes what is queued. */
    if (STAILQ_EMPTY(&peer->queue) && send_now(peer, packet, now_ns))
        return CM_OK;
    return queue_push(peer, packet, now_ns);
}

/* Drops expired packets and says when this peer wants the next look. */
static uint64_t peer_tick(struct peer *peer, uint64_t now_ns)
{
    struct queued *first;
    /* Retries renew single entries, so the queue is not ordered by expiry: only the head decides,
     * the others follow. */
    while ((first = STAILQ_FIRST(&peer->queue)) && first->expires_ns <= now_ns) {
        queue_pop(peer);
        peer->owner->counters->expired++;
    }
    if (first)
        return first->expires_ns;
    uv_poll_stop(&peer->writable);
    uint64_t soonest = peer->used_ns + (peer->role == CM_ROLE_TOOL ? IDLE_TOOL_NS : IDLE_NS);
    if (soonest > now_ns)
        return soonest;
    peer_close(peer);
    return CM_NEVER;
}

uint64_t cm_bus_peers_tick(struct cm_bus_peers *peers, uint64_t now_ns)
{
    uint64_t soonest = CM_NEVER;
    struct peer *next;
    for (struct peer *peer = LIST_FIRST(&peers->list); peer; peer = next) {
        next = LIST_NEXT(peer, link);
        uint64_t wanted = peer_tick(peer, now_ns);
        if (wanted < soonest)
            soonest = wanted;
    }
    return soonest;
}

void cm_bus_peers_close(struct cm_bus_peers *peers, void (*on_closed)(void *ctx), void *ctx)
{
    peers->on_closed = on_closed;
    peers->ctx = ctx;
    while (!LIST_EMPTY(&peers->list))
        peer_close(LIST_FIRST(&peers->list));
    free_if_gone(peers);
}
