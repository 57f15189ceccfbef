/* The bus: inbox, requests with their retries, answers. The loop's thread only; never blocks.
 *
 * bus_codec.c turns messages into bytes and back, bus_peer.c sends them, cm_bus_memory.c remembers
 * what was delivered and answered. */
#include "common/bus.h"

#include "common/bus_priv.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <nanomsg/nn.h>
#include <nanomsg/pipeline.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Messages per wake-up before the loop's other handles get their turn. */
#define RECEIVE_MAX 256

#define TRY_MAX_NS (2 * CM_NS_PER_S)

struct pending {
    TAILQ_ENTRY(pending) link;
    enum cm_role role;
    uint32_t index;
    uint64_t sequence;
    struct cm_bus_packet *packet;
    uint64_t next_ns; /* the next try, or the end */
    uint64_t wait_ns;
    unsigned tries_left;
    cm_bus_answer_fn on_answer;
    void *ctx;
};

struct cm_bus {
    uv_loop_t *loop;
    char *run_dir;
    char path[BUS_PATH_MAX]; /* of the inbox */
    enum cm_role role;
    uint32_t index;
    uint64_t instance;
    uint64_t sequence; /* last used */
    cm_bus_message_fn on_message;
    void *ctx;
    int inbox;
    uv_poll_t readable;
    uv_timer_t timer;
    TAILQ_HEAD(, pending) pending;
    unsigned pending_count;
    struct cm_bus_peers *peers;
    struct cm_bus_memory *memory;
    struct cm_bus_counters counters;
    struct cm_log_limit refused_limit;
    unsigned open_parts; /* inbox, timer, peers: each let go by the loop in its own time */
    bool closing;
};

static void on_timer(uv_timer_t *timer);

static void part_closed(struct cm_bus *bus)
{
    if (--bus->open_parts > 0)
        return;
    cm_bus_memory_destroy(bus->memory);
    free(bus->run_dir);
    free(bus);
}

/* --- Sending --- */

/* Packs message as ours. Sender is put in for the time of packing only. */
static enum cm_err pack(struct cm_bus *bus, Ingot__Ipc__Envelope *message,
                        struct cm_bus_packet **ret_packet)
{
    Ingot__Ipc__Sender sender = INGOT__IPC__SENDER__INIT;
    sender.role = bus->role;
    sender.index = bus->index;
    sender.instance = bus->instance;
    message->sender = &sender;
    message->sequence = ++bus->sequence;
    enum cm_err rc = cm_bus_pack(message, ret_packet);
    message->sender = NULL;
    return rc;
}

/* Sets the timer to the earliest thing that waits for time. */
static void rearm(struct cm_bus *bus)
{
    if (bus->closing)
        return;
    uint64_t now_ns = cm_now_ns();
    uint64_t soonest = cm_bus_peers_tick(bus->peers, now_ns);
    struct pending *pending;
    TAILQ_FOREACH(pending, &bus->pending, link)
    if (pending->next_ns < soonest)
        soonest = pending->next_ns;
    if (soonest == CM_NEVER) {
        uv_timer_stop(&bus->timer);
        return;
    }
    uint64_t wait_ms = soonest > now_ns ? (soonest - now_ns) / CM_NS_PER_MS + 1 : 1;
    uv_timer_start(&bus->timer, on_timer, wait_ms, 0);
}

enum cm_err cm_bus_send(struct cm_bus *bus, enum cm_role role, uint32_t index,
                        Ingot__Ipc__Envelope *message)
{
    struct cm_bus_packet *packet = NULL;
    if (bus->closing)
        return CM_CLOSED;
    message->wants_answer = 0;
    message->answer_to = 0;
    enum cm_err rc = pack(bus, message, &packet);
    if (rc != CM_OK)
        return rc;
    rc = cm_bus_peers_send(bus->peers, role, index, packet, cm_now_ns());
    cm_bus_packet_unref(packet);
    rearm(bus);
    return rc;
}

enum cm_err cm_bus_request(struct cm_bus *bus, enum cm_role role, uint32_t index,
                           Ingot__Ipc__Envelope *message, unsigned try_ms, unsigned tries,
                           cm_bus_answer_fn on_answer, void *ctx)
{
    if (bus->closing)
        return CM_CLOSED;
    if (bus->pending_count >= CM_BUS_PENDING_MAX)
        return CM_FULL;
    struct pending *pending = calloc(1, sizeof *pending);
    if (!pending)
        return CM_NOMEM;
    message->wants_answer = 1;
    message->answer_to = 0;
    enum cm_err rc = pack(bus, message, &pending->packet);
    if (rc == CM_OK)
        rc = cm_bus_peers_send(bus->peers, role, index, pending->packet, cm_now_ns());
    if (rc != CM_OK) {
        cm_bus_packet_unref(pending->packet);
        free(pending);
        return rc;
    }
    pending->role = role;
    pending->index = index;
    pending->sequence = message->sequence;
    pending->wait_ns = (try_ms > 0 ? try_ms : 1) * CM_NS_PER_MS;
    pending->next_ns = cm_time_add(cm_now_ns(), pending->wait_ns);
    pending->tries_left = tries > 0 ? tries - 1 : 0;
    pending->on_answer = on_answer;
    pending->ctx = ctx;
    TAILQ_INSERT_TAIL(&bus->pending, pending, link);
    bus->pending_count++;
    rearm(bus);
    return CM_OK;
}

enum cm_err cm_bus_answer(struct cm_bus *bus, const Ingot__Ipc__Envelope *request,
                          Ingot__Ipc__Envelope *answer)
{
    Ingot__Ipc__Ack ack = INGOT__IPC__ACK__INIT;
    struct cm_bus_packet *packet = NULL;
    CM_ASSERT(request->sender && request->sequence != 0);
    if (bus->closing)
        return CM_CLOSED;
    bool empty = answer->body_case == INGOT__IPC__ENVELOPE__BODY__NOT_SET;
    if (empty) {
        answer->body_case = INGOT__IPC__ENVELOPE__BODY_ACK;
        answer->ack = &ack;
    }
    answer->wants_answer = 0;
    answer->answer_to = request->sequence;
    enum cm_err rc = pack(bus, answer, &packet);
    if (empty)
        answer->body_case = INGOT__IPC__ENVELOPE__BODY__NOT_SET;
    if (rc != CM_OK)
        return rc;
    cm_bus_memory_answer(bus->memory, request->sender, request->sequence, packet);
    rc = cm_bus_peers_send(bus->peers, (enum cm_role)request->sender->role, request->sender->index,
                           packet, cm_now_ns());
    cm_bus_packet_unref(packet);
    rearm(bus);
    return rc;
}

/* --- Requests --- */

/* Takes pending out and tells its owner, who may do anything with the bus. */
static void finish(struct cm_bus *bus, struct pending *pending, enum cm_err err,
                   const Ingot__Ipc__Envelope *answer)
{
    TAILQ_REMOVE(&bus->pending, pending, link);
    bus->pending_count--;
    cm_bus_packet_unref(pending->packet);
    cm_bus_answer_fn on_answer = pending->on_answer;
    void *ctx = pending->ctx;
    free(pending);
    if (on_answer)
        on_answer(ctx, err, answer);
}

static struct pending *first_due(struct cm_bus *bus, uint64_t now_ns)
{
    struct pending *pending;
    TAILQ_FOREACH(pending, &bus->pending, link)
    if (pending->next_ns <= now_ns)
        return pending;
    return NULL;
}

static void try_again(struct cm_bus *bus, struct pending *pending, uint64_t now_ns)
{
    pending->tries_left--;
    pending->wait_ns *= 2;
    if (pending->wait_ns > TRY_MAX_NS)
        pending->wait_ns = TRY_MAX_NS;
    pending->next_ns = cm_time_add(now_ns, pending->wait_ns);
    bus->counters.retried++;
    /* A try that fails is a try: the next one or the deadline follows. */
    enum cm_err rc =
        cm_bus_peers_send(bus->peers, pending->role, pending->index, pending->packet, now_ns);
    (void)rc;
}

static void on_timer(uv_timer_t *timer)
{
    struct cm_bus *bus = timer->data;
    uint64_t now_ns = cm_now_ns();
    struct pending *pending;
    while (!bus->closing && (pending = first_due(bus, now_ns))) {
        if (pending->tries_left > 0)
            try_again(bus, pending, now_ns);
        else
            finish(bus, pending, CM_DEADLINE, NULL);
    }
    rearm(bus);
}

/* --- Receiving --- */

static void refuse(struct cm_bus *bus, const char *reason)
{
    uint64_t suppressed = 0;
    bus->counters.refused++;
    if (cm_log_allowed(&bus->refused_limit, cm_now_ns(), &suppressed))
        cm_log(CM_LOG_WARN, "bus_message_refused", "reason=%s suppressed=%llu", reason,
               (unsigned long long)suppressed);
}

static void take_answer(struct cm_bus *bus, const Ingot__Ipc__Envelope *message)
{
    struct pending *pending;
    TAILQ_FOREACH(pending, &bus->pending, link)
    if (pending->sequence == message->answer_to &&
        (uint32_t)pending->role == message->sender->role &&
        pending->index == message->sender->index) {
        finish(bus, pending, CM_OK, message);
        return;
    }
    bus->counters.strays++;
}

/* A body that this release does not know. */
static void answer_unknown(struct cm_bus *bus, const Ingot__Ipc__Envelope *message)
{
    Ingot__Ipc__Envelope answer = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__Error error = INGOT__IPC__ERROR__INIT;
    error.code = CM_UNSUPPORTED;
    error.text = "this process does not know the message";
    answer.body_case = INGOT__IPC__ENVELOPE__BODY_ERROR;
    answer.error = &error;
    enum cm_err rc = cm_bus_answer(bus, message, &answer);
    (void)rc; /* the sender tries again */
}

static void take_request(struct cm_bus *bus, const Ingot__Ipc__Envelope *message)
{
    struct cm_bus_packet *answer = NULL;
    enum cm_err rc;
    switch (cm_bus_memory_ask(bus->memory, message->sender, message->sequence, &answer)) {
    case BUS_NEW:
        if (message->body_case == INGOT__IPC__ENVELOPE__BODY__NOT_SET) {
            refuse(bus, "unknown message");
            answer_unknown(bus, message);
            return;
        }
        bus->counters.received++;
        bus->on_message(bus->ctx, bus, message);
        return;
    case BUS_KNOWN:
        bus->counters.repeated++;
        rc = cm_bus_peers_send(bus->peers, (enum cm_role)message->sender->role,
                               message->sender->index, answer, cm_now_ns());
        (void)rc; /* the sender tries again */
        rearm(bus);
        return;
    case BUS_WAITING:
    case BUS_OLD:
        bus->counters.repeated++;
        return;
    }
}

static void take_bytes(struct cm_bus *bus, const void *bytes, size_t length)
{
    struct cm_error err;
    Ingot__Ipc__Envelope *message = NULL;
    if (cm_bus_parse(bytes, length, &err, &message) != CM_OK) {
        refuse(bus, err.text);
        return;
    }
    if (message->answer_to != 0) {
        take_answer(bus, message);
    } else if (message->wants_answer) {
        take_request(bus, message);
    } else if (message->body_case == INGOT__IPC__ENVELOPE__BODY__NOT_SET) {
        refuse(bus, "unknown message");
    } else {
        bus->counters.received++;
        bus->on_message(bus->ctx, bus, message);
    }
    ingot__ipc__envelope__free_unpacked(message, NULL);
}

static void on_readable(uv_poll_t *handle, int status, int events)
{
    (void)status; /* nanomsg's own eventfd: it has no errors to report */
    (void)events;
    struct cm_bus *bus = handle->data;
    for (int i = 0; i < RECEIVE_MAX && !bus->closing; i++) {
        void *bytes = NULL;
        int n = nn_recv(bus->inbox, &bytes, NN_MSG, NN_DONTWAIT);
        if (n < 0)
            return; /* EAGAIN: empty; the descriptor tells of more */
        take_bytes(bus, bytes, (size_t)n);
        nn_freemsg(bytes);
    }
}

/* --- Open and close --- */

static enum cm_err open_inbox(struct cm_bus *bus, struct cm_error *err, int *ret_readable_fd)
{
    char text[4096];
    int n = snprintf(text, sizeof text, "%s/bus", bus->run_dir);
    if (n <= 0 || !cm_bus_path(bus->run_dir, bus->role, bus->index, bus->path))
        return cm_fail(err, CM_LIMIT,
                       "run directory '%.200s' is too long for a Unix socket (%d bytes with the "
                       "file's name): use a shorter one",
                       bus->run_dir, BUS_PATH_MAX - 1);
    if (mkdir(text, 0700) != 0 && errno != EEXIST)
        return cm_fail_errno(err, errno, "cannot create '%s'", text);
    int size_max = CM_BUS_MESSAGE_MAX;
    size_t size = sizeof *ret_readable_fd;
    snprintf(text, sizeof text, "ipc://%s", bus->path);
    bus->inbox = nn_socket(AF_SP, NN_PULL);
    if (bus->inbox < 0)
        return cm_fail_errno(err, nn_errno(), "cannot create a bus socket");
    if (nn_setsockopt(bus->inbox, NN_SOL_SOCKET, NN_RCVMAXSIZE, &size_max, sizeof size_max) < 0 ||
        nn_getsockopt(bus->inbox, NN_SOL_SOCKET, NN_RCVFD, ret_readable_fd, &size) < 0)
        return cm_fail_errno(err, nn_errno(), "cannot prepare a bus socket");
    if (nn_bind(bus->inbox, text) >= 0)
        return CM_OK;
    if (nn_errno() == EADDRINUSE)
        return cm_fail(err, CM_EXISTS, "%s %u is running already in '%s'", cm_role_name(bus->role),
                       bus->index, bus->run_dir);
    return cm_fail_errno(err, nn_errno(), "cannot listen on '%s'", bus->path);
}

/* Frees a bus that has no handles yet. */
static void bus_free(struct cm_bus *bus)
{
    if (bus->inbox >= 0)
        nn_close(bus->inbox);
    free(bus->peers);
    cm_bus_memory_destroy(bus->memory);
    free(bus->run_dir);
    free(bus);
}

static struct cm_bus *bus_alloc(const struct cm_bus_options *options)
{
    struct cm_bus *bus = calloc(1, sizeof *bus);
    if (!bus)
        return NULL;
    bus->loop = options->loop;
    bus->role = options->role;
    bus->index = options->index;
    bus->on_message = options->on_message;
    bus->ctx = options->ctx;
    bus->inbox = -1;
    /* No two lives of a process use a number twice, also before memmgr gave it an instance: nobody
     * sends a message each nanosecond. */
    bus->sequence = cm_now_ns();
    TAILQ_INIT(&bus->pending);
    bus->run_dir = strdup(options->run_dir);
    bus->memory = cm_bus_memory_create();
    if (bus->run_dir)
        bus->peers = cm_bus_peers_create(bus->loop, bus->run_dir, &bus->counters);
    if (!bus->run_dir || !bus->memory || !bus->peers) {
        bus_free(bus);
        return NULL;
    }
    return bus;
}

enum cm_err cm_bus_open(const struct cm_bus_options *options, struct cm_error *err,
                        struct cm_bus **ret_bus)
{
    CM_ASSERT(options->on_message && cm_role_name(options->role)[0] != '?');
    struct cm_bus *bus = bus_alloc(options);
    if (!bus)
        return cm_fail(err, CM_NOMEM, "no memory for the bus");
    int readable_fd = -1;
    enum cm_err rc = open_inbox(bus, err, &readable_fd);
    if (rc == CM_OK) {
        int uv = uv_poll_init(bus->loop, &bus->readable, readable_fd);
        if (uv != 0)
            rc = cm_fail_errno(err, -uv, "cannot watch the bus");
    }
    if (rc != CM_OK) {
        bus_free(bus);
        return rc;
    }
    bus->readable.data = bus;
    int uv = uv_timer_init(bus->loop, &bus->timer); /* cannot fail */
    CM_ASSERT(uv == 0);
    bus->timer.data = bus;
    bus->open_parts = 3;
    uv = uv_poll_start(&bus->readable, UV_READABLE, on_readable);
    CM_ASSERT(uv == 0);
    *ret_bus = bus;
    return CM_OK;
}

void cm_bus_set_instance(struct cm_bus *bus, uint64_t instance)
{
    bus->instance = instance;
}

struct cm_bus_counters cm_bus_counters(const struct cm_bus *bus)
{
    return bus->counters;
}

static void on_inbox_closed(uv_handle_t *handle)
{
    part_closed(handle->data);
}

static void on_timer_closed(uv_handle_t *handle)
{
    part_closed(handle->data);
}

static void on_peers_closed(void *ctx)
{
    part_closed(ctx);
}

void cm_bus_close(struct cm_bus *bus)
{
    if (!bus || bus->closing)
        return;
    bus->closing = true;
    while (!TAILQ_EMPTY(&bus->pending))
        finish(bus, TAILQ_FIRST(&bus->pending), CM_CLOSED, NULL);
    uv_close((uv_handle_t *)&bus->readable, on_inbox_closed);
    /* At once, which libuv allows after uv_close: nanomsg also removes the inbox's file, and the
     * next owner of the address may come as soon as we return. */
    nn_close(bus->inbox);
    uv_close((uv_handle_t *)&bus->timer, on_timer_closed);
    cm_bus_peers_close(bus->peers, on_peers_closed, bus);
}
