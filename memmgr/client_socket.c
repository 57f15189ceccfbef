/* The client's connection: connect, attach, send, receive, lose, try again. Loop thread. */
#include "memmgr/client_priv.h"

#include "common/check.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define MESSAGES_PER_WAKE 64u

static void on_event(uv_poll_t *poll, int status, int events);

/* --- Losing it --- */

static void on_socket_closed(uv_handle_t *handle)
{
    struct wire_socket *closed = cm_container_of(handle, struct wire_socket, poll);
    struct mm_client *client = closed->client;
    free(closed);
    client->n_handles--;
    mm_client_unref(client);
}

void mm_socket_close(struct mm_client *client)
{
    struct wire_socket *closing = client->socket;
    if (client->state != CLIENT_REFUSED)
        client->state = CLIENT_DOWN;
    if (!closing)
        return;
    client->socket = NULL;
    uv_close((uv_handle_t *)&closing->poll, on_socket_closed);
    close(closing->fd);
    mm_requests_unsend(client);
    mm_held_connection_lost(client);
    mm_peer_connection_lost(client);
}

static void on_retry(uv_timer_t *timer)
{
    mm_socket_connect(cm_container_of(timer, struct mm_client, retry));
}

static void retry_later(struct mm_client *client)
{
    if (client->closing || client->state == CLIENT_REFUSED)
        return;
    uv_timer_start(&client->retry, on_retry, client->retry_ms, 0);
    client->retry_ms *= 2;
    if (client->retry_ms > MM_RETRY_LAST_MS)
        client->retry_ms = MM_RETRY_LAST_MS;
}

void mm_socket_lost(struct mm_client *client)
{
    if (!client->socket)
        return;
    bool was_up = client->state == CLIENT_UP;
    mm_socket_close(client);
    retry_later(client);
    if (was_up && client->options.on_lost)
        client->options.on_lost(client->options.ctx);
}

static void refused(struct mm_client *client, const struct cm_error *error)
{
    client->state = CLIENT_REFUSED;
    mm_socket_close(client);
    if (client->options.on_refused)
        client->options.on_refused(client->options.ctx, error);
}

/* --- Sending --- */

uint32_t mm_socket_sequence(struct mm_client *client)
{
    if (++client->sequence == 0)
        client->sequence = 1;
    return client->sequence;
}

static void watch(struct wire_socket *of, int extra)
{
    CM_ASSERT(uv_poll_start(&of->poll, UV_READABLE | UV_DISCONNECT | extra, on_event) == 0);
}

enum cm_err mm_socket_send(struct mm_client *client, const union mm_wire_any *body, int fd)
{
    enum cm_err code = mm_wire_send(client->socket->fd, body, &fd);
    if (code == CM_AGAIN)
        watch(client->socket, UV_WRITABLE);
    else if (code != CM_OK)
        mm_socket_lost(client);
    return code;
}

void mm_socket_pump(struct mm_client *client)
{
    /* What is handed back goes first, so that nothing that follows speaks of the unknown. */
    if (client->state != CLIENT_UP || !mm_held_pump_restores(client) || !mm_peer_pump(client) ||
        !mm_held_pump_goodbyes(client))
        return;
    struct request *request;
    while (client->n_sent < MM_WINDOW && (request = TAILQ_FIRST(&client->waiting))) {
        request->body.header.sequence = mm_socket_sequence(client);
        if (mm_socket_send(client, &request->body, -1) != CM_OK)
            return;
        TAILQ_REMOVE(&client->waiting, request, in_list);
        TAILQ_INSERT_TAIL(&client->sent, request, in_list);
        client->n_sent++;
    }
}

/* --- Receiving --- */

static void attached(struct mm_client *client, const struct mm_wire_attached *answer)
{
    client->identity = (struct mm_identity){
        .instance = answer->instance, .number = answer->number, .epoch = answer->epoch};
    client->state = CLIENT_UP;
    client->retry_ms = MM_RETRY_FIRST_MS;
    mm_socket_pump(client);
    /* Also if the connection is lost again already: the identity holds all the same. */
    if (client->options.on_attached) {
        struct mm_identity identity = client->identity;
        client->options.on_attached(client->options.ctx, &identity);
    }
}

static void not_attached(struct mm_client *client, const struct mm_wire_failed *answer)
{
    struct cm_error error;
    enum cm_err code = (enum cm_err)answer->code;
    cm_fail(&error, code, "%.*s", (int)sizeof answer->text, answer->text);
    if (code == CM_FULL || code == CM_NOMEM) /* a passing want of something */
        mm_socket_lost(client);
    else
        refused(client, &error);
}

static void receive(struct mm_client *client, struct mm_packet *packet)
{
    uint16_t type = packet->body.header.type;
    if (client->state == CLIENT_ATTACHING) {
        if (type == MM_WIRE_ATTACHED)
            attached(client, &packet->body.attached);
        else if (type == MM_WIRE_REFUSED)
            not_attached(client, &packet->body.failed);
        else
            mm_socket_lost(client);
        return;
    }
    switch (type) {
    case MM_WIRE_GRANTED:
    case MM_WIRE_WEIGHTS_GIVEN:
    case MM_WIRE_FAILED:
    case MM_WIRE_RESTORED:
        mm_request_answer(client, packet);
        break;
    case MM_WIRE_REVOKED:
        mm_held_revoked(client, &packet->body.region);
        break;
    case MM_WIRE_CHANNEL:
        mm_peer_channel(client, packet);
        break;
    case MM_WIRE_CHANNEL_ENDED:
        mm_peer_ended(client, packet->body.region.region);
        break;
    default:
        mm_socket_lost(client);
    }
}

static void on_event(uv_poll_t *poll, int status, int events)
{
    struct wire_socket *from = cm_container_of(poll, struct wire_socket, poll);
    struct mm_client *client = from->client;
    if (status < 0) {
        mm_socket_lost(client);
        return;
    }
    if (events & UV_WRITABLE)
        watch(from, 0);
    /* A callback may end the connection, or the client: then client->socket is another. */
    for (unsigned i = 0; i < MESSAGES_PER_WAKE && client->socket == from; i++) {
        struct mm_packet packet;
        struct cm_error error;
        enum cm_err code = mm_wire_recv(from->fd, &packet, &error);
        if (code == CM_AGAIN)
            break;
        if (code == CM_OK) {
            receive(client, &packet);
            mm_packet_close(&packet);
        } else if (code == CM_UNSUPPORTED) {
            refused(client, &error);
        } else {
            mm_socket_lost(client);
        }
    }
    if (client->socket == from)
        mm_socket_pump(client);
}

/* --- Connecting --- */

static int open_socket(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

void mm_socket_connect(struct mm_client *client)
{
    CM_ASSERT(!client->socket && !client->closing);
    int fd = open_socket(&client->address);
    struct wire_socket *opened = fd < 0 ? NULL : calloc(1, sizeof *opened);
    if (!opened || uv_poll_init(client->options.loop, &opened->poll, fd) != 0) {
        free(opened);
        if (fd >= 0)
            close(fd);
        retry_later(client);
        return;
    }
    opened->client = client;
    opened->fd = fd;
    client->socket = opened;
    client->n_handles++;
    client->state = CLIENT_ATTACHING;
    watch(opened, 0);
    union mm_wire_any body;
    mm_wire_init(&body, MM_WIRE_ATTACH, mm_socket_sequence(client));
    body.attach.instance = client->identity.instance;
    body.attach.role = client->options.role;
    body.attach.index = client->options.index;
    body.attach.number = client->identity.number;
    if (mm_socket_send(client, &body, -1) != CM_OK)
        mm_socket_lost(client);
}
