/* Peers: their channels, what does not fit a ring now, their deaths. The loop's thread.
 *
 * A full ring is back pressure, never a loss: records then wait here, in order, and a short timer
 * tries again. A peer that reads nothing while megabytes wait for it is given up like a dead one.
 * A peer is never closed inside the event that condemns it, but at the end of the turn: the core
 * may be in the middle of sending. */
#include "scheduler/server_priv.h"

#include "common/check.h"
#include "common/clock.h"

#include <stdlib.h>
#include <string.h>

static void doom(struct sd_peer *peer, const char *reason)
{
    if (peer->doomed)
        return;
    peer->doomed = true;
    peer->server->n_doomed++;
    cm_log(CM_LOG_WARN, "peer_closed", "peer=%s index=%u instance=%llu reason=%s",
           cm_role_name(peer->role), peer->index, (unsigned long long)peer->instance, reason);
}

/* ---- sending ---- */

static void keep(struct sd_peer *peer, uint8_t type, const void *head, uint32_t head_length,
                 const void *tail, uint32_t tail_length)
{
    uint32_t length = head_length + tail_length;
    struct sd_pending *pending = malloc(sizeof *pending + length);
    if (!pending || peer->pending_bytes + length > SD_PENDING_BYTES) {
        free(pending);
        doom(peer, "it does not read its channel");
        return;
    }
    *pending = (struct sd_pending){.type = type, .length = length};
    memcpy(pending->bytes, head, head_length);
    if (tail_length > 0)
        memcpy(pending->bytes + head_length, tail, tail_length);
    if (!peer->pending) {
        peer->pending_tail = &peer->pending;
        peer->server->n_pending++;
        sd_server_retry_in(peer->server, SD_RING_RETRY_MS);
    }
    *peer->pending_tail = pending;
    peer->pending_tail = &pending->next;
    peer->pending_bytes += length;
}

/* True: nothing more to do with the record here. */
static bool try_send(struct sd_peer *peer, uint8_t type, const void *head, uint32_t head_length,
                     const void *tail, uint32_t tail_length)
{
    enum cm_err code = cm_channel_send(peer->channel, type, head, head_length, tail, tail_length);
    if (code == CM_FULL)
        return false;
    if (code == CM_OK)
        peer->unflushed = true;
    else if (code != CM_CLOSED) /* closed: the event is on its way */
        doom(peer, cm_err_text(code));
    return true;
}

static void send_record(struct sd_peer *peer, uint8_t type, const void *head, uint32_t head_length,
                        const void *tail, uint32_t tail_length)
{
    if (!peer || peer->doomed)
        return;
    if (peer->pending || !try_send(peer, type, head, head_length, tail, tail_length))
        keep(peer, type, head, head_length, tail, tail_length);
}

static void send_pending(struct sd_peer *peer)
{
    struct sd_pending *pending;
    while ((pending = peer->pending) != NULL && !peer->doomed) {
        if (!try_send(peer, pending->type, pending->bytes, pending->length, NULL, 0))
            return;
        peer->pending = pending->next;
        peer->pending_bytes -= pending->length;
        free(pending);
        if (!peer->pending)
            peer->server->n_pending--;
    }
}

static void flush(struct sd_peer *peer)
{
    if (!peer)
        return;
    if (peer->pending)
        send_pending(peer);
    if (peer->unflushed)
        cm_channel_flush(peer->channel);
    peer->unflushed = false;
}

void sd_peers_flush(struct sd_server *server)
{
    for (uint32_t i = 0; i < SD_MAX_WORKERS; i++)
        flush(server->workers[i]);
    for (uint32_t i = 0; i < SD_MAX_GATEWAYS; i++)
        flush(server->gateways[i]);
    if (server->n_pending > 0)
        sd_server_retry_in(server, SD_RING_RETRY_MS);
}

/* ---- the core's sink ---- */

static void to_gateway(void *ctx, uint32_t gateway, uint8_t type, const void *head,
                       uint32_t head_length, const void *tail, uint32_t tail_length)
{
    struct sd_server *server = ctx;
    send_record(server->gateways[gateway], type, head, head_length, tail, tail_length);
}

static void to_worker(void *ctx, uint32_t worker, uint8_t type, const void *head,
                      uint32_t head_length, const void *tail, uint32_t tail_length)
{
    struct sd_server *server = ctx;
    send_record(server->workers[worker], type, head, head_length, tail, tail_length);
}

static void worker_hung(void *ctx, uint32_t worker)
{
    struct sd_server *server = ctx;
    doom(server->workers[worker], "a batch has been with it for far too long");
}

const struct sd_sink sd_peers_sink = {to_gateway, to_worker, worker_hung, NULL};

/* ---- closing ---- */

static struct sd_peer **slot_of(struct sd_server *server, enum cm_role role, uint32_t index)
{
    if (role == CM_ROLE_WORKER)
        return index < SD_MAX_WORKERS ? &server->workers[index] : NULL;
    if (role == CM_ROLE_GATEWAY)
        return index < SD_MAX_GATEWAYS ? &server->gateways[index] : NULL;
    return NULL;
}

/* dead: false if the same life may go on over another channel. Then its outputs stay: a gateway
 * that we cut off may still be sending them, and will say over its next channel which ones it
 * holds. */
static void close_peer(struct sd_peer *peer, bool dead)
{
    struct sd_server *server = peer->server;
    /* Out of the table first: the core, told next, must not find it to send to. */
    *slot_of(server, peer->role, peer->index) = NULL;
    if (peer->doomed)
        server->n_doomed--;
    if (peer->pending)
        server->n_pending--;
    if (peer->role == CM_ROLE_GATEWAY && peer->attached) {
        sd_core_gateway_detach(server->core, peer->index, dead);
    } else if (peer->attached) {
        if (sd_models_worker_gone(&server->models, peer->index))
            sd_server_models_changed(server);
        sd_core_worker_detach(server->core, peer->index, cm_now_ns());
    }
    cm_channel_close(peer->channel);
    while (peer->pending) {
        struct sd_pending *pending = peer->pending;
        peer->pending = pending->next;
        free(pending);
    }
    free(peer);
}

void sd_peers_close_doomed(struct sd_server *server)
{
    for (uint32_t i = 0; i < SD_MAX_WORKERS; i++)
        if (server->workers[i] && server->workers[i]->doomed)
            close_peer(server->workers[i], true);
    for (uint32_t i = 0; i < SD_MAX_GATEWAYS; i++)
        if (server->gateways[i] && server->gateways[i]->doomed)
            close_peer(server->gateways[i], server->gateways[i]->gone);
}

void sd_peers_close_all(struct sd_server *server)
{
    for (uint32_t i = 0; i < SD_MAX_GATEWAYS; i++)
        if (server->gateways[i])
            close_peer(server->gateways[i], false);
    for (uint32_t i = 0; i < SD_MAX_WORKERS; i++)
        if (server->workers[i])
            close_peer(server->workers[i], true);
}

/* ---- receiving ---- */

static void on_record(void *ctx, struct cm_channel *channel, uint8_t type, const void *payload,
                      uint32_t length)
{
    struct sd_peer *peer = ctx;
    struct sd_server *server = peer->server;
    struct cm_error err = {.code = CM_OK};
    enum cm_err code;
    (void)channel;
    if (peer->doomed)
        return;
    if (!peer->attached)
        code = cm_fail(&err, CM_CORRUPT, "a record before the peer's Hello");
    else if (peer->role == CM_ROLE_GATEWAY)
        code = sd_core_from_gateway(server->core, peer->index, type, payload, length, cm_now_ns(),
                                    &err);
    else
        code = sd_core_from_worker(server->core, peer->index, type, payload, length, cm_now_ns(),
                                   &err);
    if (code != CM_OK)
        doom(peer, err.text);
}

static void on_drained(void *ctx, struct cm_channel *channel)
{
    (void)channel;
    sd_server_turn(((struct sd_peer *)ctx)->server); /* may free the peer */
}

static void on_closed(void *ctx, struct cm_channel *channel, enum cm_err reason)
{
    struct sd_peer *peer = ctx;
    (void)channel;
    peer->gone = reason == CM_CLOSED;
    doom(peer, reason == CM_CLOSED ? "it is gone" : cm_err_text(reason));
    sd_server_turn(peer->server);
}

/* ---- new channels ---- */

void sd_peers_try_attach(struct sd_server *server, uint32_t worker)
{
    struct sd_peer *peer = server->workers[worker];
    if (!peer || peer->attached || peer->doomed ||
        server->worker_hellos[worker].instance != peer->instance)
        return;
    enum cm_err code = sd_core_worker_attach(server->core, worker, peer->instance);
    CM_ASSERT(code == CM_OK); /* the index was checked with the channel */
    peer->attached = true;
    cm_log(CM_LOG_INFO, "worker_attached", "index=%u instance=%llu", worker,
           (unsigned long long)peer->instance);
    sd_control_load_all(server, peer);
}

static struct sd_peer *make_peer(struct sd_server *server, struct cm_channel *channel)
{
    static const struct cm_channel_events events = {on_record, on_drained, on_closed, NULL};
    struct cm_peer who = cm_channel_peer(channel);
    struct sd_peer *peer = calloc(1, sizeof *peer);
    if (!peer)
        return NULL;
    *peer = (struct sd_peer){.server = server,
                             .role = who.role,
                             .index = who.index,
                             .instance = who.instance,
                             .serial = ++server->last_serial,
                             .channel = channel};
    struct cm_channel_events own = events;
    own.ctx = peer;
    if (cm_channel_start(channel, server->options.loop, &own) == CM_OK)
        return peer;
    free(peer);
    return NULL;
}

void sd_peers_channel(struct sd_server *server, struct cm_channel *channel)
{
    struct cm_peer who = cm_channel_peer(channel);
    struct sd_peer **slot = slot_of(server, who.role, who.index);
    if (!slot || !server->core) {
        cm_log(CM_LOG_WARN, "channel_refused", "peer=%s index=%u", cm_role_name(who.role),
               who.index);
        cm_channel_close(channel);
        return;
    }
    if (*slot)
        close_peer(*slot, (*slot)->instance != who.instance);
    struct sd_peer *peer = make_peer(server, channel);
    if (!peer) {
        cm_log(CM_LOG_ERROR, "channel_failed", "peer=%s index=%u", cm_role_name(who.role),
               who.index);
        cm_channel_close(channel);
        return;
    }
    *slot = peer;
    if (who.role == CM_ROLE_WORKER) {
        sd_peers_try_attach(server, who.index);
        return;
    }
    enum cm_err code = sd_core_gateway_attach(server->core, who.index, who.instance);
    CM_ASSERT(code == CM_OK);
    peer->attached = true;
    cm_log(CM_LOG_INFO, "gateway_attached", "index=%u instance=%llu", who.index,
           (unsigned long long)who.instance);
}
