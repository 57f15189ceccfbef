/* Channels that this process wants or has: asking, handing on, handing back. Loop thread.
 *
 * A channel belongs to whoever gets it from on_channel. Only a second descriptor of its memory is
 * kept here, so that a new memmgr can count it; memmgr says when that is of no more use. */
#include "memmgr/client_priv.h"

#include "common/check.h"

#include <fcntl.h>
#include <unistd.h>

static void drop_memory(struct peer *peer)
{
    if (peer->memory >= 0)
        close(peer->memory);
    peer->memory = -1;
}

struct peer *mm_peer_find(struct mm_client *client, enum cm_role role, uint32_t index)
{
    for (size_t i = 0; i < MM_CLIENT_PEERS; i++) {
        if (client->peers[i].role == role && client->peers[i].index == index)
            return &client->peers[i];
    }
    return NULL;
}

struct peer *mm_peer_add(struct mm_client *client, enum cm_role role, uint32_t index)
{
    struct peer *peer = mm_peer_find(client, role, index);
    if (peer)
        return peer;
    for (size_t i = 0; i < MM_CLIENT_PEERS; i++) {
        peer = &client->peers[i];
        bool in_use = peer->role != CM_ROLE_NONE &&
                      (peer->wanted || peer->memory >= 0 || peer->restore_sequence != 0);
        if (!in_use) {
            *peer = (struct peer){.role = role, .index = index, .memory = -1};
            return peer;
        }
    }
    return NULL;
}

static void remember(struct mm_client *client, const struct mm_wire_channel *message, int memory)
{
    struct peer *peer = mm_peer_add(client, (enum cm_role)message->role, message->index);
    if (!peer) { /* a full table: the channel works, a new memmgr will not count it */
        if (memory >= 0)
            close(memory);
        return;
    }
    drop_memory(peer);
    peer->instance = message->instance;
    peer->channel = message->id;
    peer->memory = memory;
    peer->bytes = message->bytes;
    peer->wanted = false;
    peer->known = true;
    peer->lost = false;
}

void mm_peer_channel(struct mm_client *client, struct mm_packet *packet)
{
    const struct mm_wire_channel *message = &packet->body.channel;
    bool right =
        message->role >= CM_ROLE_WORKER && message->role <= CM_ROLE_TOOL && message->first <= 1;
    if (!right) {
        mm_socket_lost(client);
        return;
    }
    int memory = fcntl(packet->fds[0], F_DUPFD_CLOEXEC, 0);
    struct cm_channel_fds fds = {.first = message->first == 1};
    fds.memory = mm_packet_take(packet, 0);
    fds.bell_in = mm_packet_take(packet, 1);
    fds.bell_out = mm_packet_take(packet, 2);
    fds.lifeline = mm_packet_take(packet, 3);
    if (!client->options.on_channel) {
        cm_channel_fds_close(&fds);
        remember(client, message, memory);
        return;
    }
    struct cm_peer identity = {(enum cm_role)message->role, message->index, message->instance};
    struct cm_channel *channel;
    struct cm_error error;
    if (cm_channel_open(&fds, identity, &error, &channel) != CM_OK) {
        /* No memory or no descriptors: a new connection asks again for what is still wanted. */
        if (memory >= 0)
            close(memory);
        mm_socket_lost(client);
        return;
    }
    remember(client, message, memory);
    client->options.on_channel(client->options.ctx, channel);
}

void mm_peer_ended(struct mm_client *client, uint64_t channel)
{
    for (size_t i = 0; i < MM_CLIENT_PEERS; i++) {
        if (client->peers[i].role != CM_ROLE_NONE && client->peers[i].channel == channel)
            drop_memory(&client->peers[i]);
    }
}

static bool send_restore(struct mm_client *client, struct peer *peer)
{
    union mm_wire_any body;
    uint32_t sequence = mm_socket_sequence(client);
    mm_wire_init(&body, MM_WIRE_RESTORE, sequence);
    body.restore.kind = MM_RESTORE_CHANNEL;
    body.restore.region = peer->channel;
    body.restore.bytes = peer->bytes;
    body.restore.peer_role = peer->role;
    body.restore.peer_index = peer->index;
    body.restore.peer_instance = peer->instance;
    if (mm_socket_send(client, &body, peer->memory) != CM_OK)
        return false;
    peer->restore_sequence = sequence;
    peer->known = true;
    client->n_sent++;
    return true;
}

static bool send_want(struct mm_client *client, struct peer *peer)
{
    union mm_wire_any body;
    mm_wire_init(&body, MM_WIRE_WANT_CHANNEL, 0);
    body.want.last = peer->channel;
    body.want.role = peer->role;
    body.want.index = peer->index;
    if (mm_socket_send(client, &body, -1) != CM_OK)
        return false;
    peer->sent = true;
    return true;
}

bool mm_peer_pump(struct mm_client *client)
{
    for (size_t i = 0; i < MM_CLIENT_PEERS; i++) {
        struct peer *peer = &client->peers[i];
        if (peer->role == CM_ROLE_NONE)
            continue;
        if (peer->memory >= 0 && !peer->known && !peer->lost &&
            (client->n_sent >= MM_WINDOW || !send_restore(client, peer)))
            return false;
        if (peer->wanted && !peer->sent && !send_want(client, peer))
            return false;
    }
    return true;
}

bool mm_peer_restored(struct mm_client *client, uint32_t sequence, bool accepted)
{
    for (size_t i = 0; i < MM_CLIENT_PEERS; i++) {
        struct peer *peer = &client->peers[i];
        if (sequence != 0 && peer->restore_sequence == sequence) {
            peer->restore_sequence = 0;
            client->n_sent--;
            if (!accepted) {
                peer->lost = true;
                drop_memory(peer);
            }
            return true;
        }
    }
    return false;
}

void mm_peer_connection_lost(struct mm_client *client)
{
    for (size_t i = 0; i < MM_CLIENT_PEERS; i++) {
        client->peers[i].known = false;
        client->peers[i].sent = false;
        client->peers[i].restore_sequence = 0;
    }
}

void mm_peer_close_all(struct mm_client *client)
{
    for (size_t i = 0; i < MM_CLIENT_PEERS; i++)
        drop_memory(&client->peers[i]);
}
