/* Channels: making the descriptors, opening one end, driving it on a loop.
 *
 * The consuming side runs on the loop's thread; the producing side on that thread or on one other
 * (send, flush, room touch only struct cm_ring_producer and the atomic closed flag). Nothing here
 * blocks: bells are non-blocking eventfds, the lifeline is only read when readable. Descriptors
 * and memory come from memmgr, but their contents come from the peer and are not believed. */
#include "common/channel.h"

#include "common/check.h"
#include "common/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Records per wake-up before the loop's other handles get their turn. */
#define DRAIN_MAX 1024u

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

struct cm_channel {
    struct cm_channel_fds fds;
    struct cm_peer peer;
    void *map;
    size_t map_bytes;
    struct cm_ring_producer out;
    struct cm_ring_consumer in;
    atomic_bool closed; /* set on the loop's thread, read by the sender's */
    unsigned char *buffer;
    struct cm_channel_events events;
    uv_poll_t bell;
    uv_poll_t lifeline;
    bool started;
    bool closing; /* cm_channel_close was called: no callback any more */
    unsigned open_handles;
};

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void cm_channel_fds_close(struct cm_channel_fds *fds)
{
    close_fd(&fds->memory);
    close_fd(&fds->bell_in);
    close_fd(&fds->bell_out);
    close_fd(&fds->lifeline);
}

/* Header, ring A, ring B; each ring begins on a cache line because capacity is a power of two. */
static size_t channel_bytes(uint32_t capacity)
{
    return sizeof(struct cm_channel_header) + 2 * cm_ring_bytes(capacity);
}

static bool capacity_valid(uint32_t capacity)
{
    return capacity >= CM_RING_MIN && capacity <= CM_RING_MAX && (capacity & (capacity - 1)) == 0;
}

/* The memfd of a new channel: sized, populated, with its header, sealed. */
static enum cm_err make_memory(uint64_t id, uint32_t capacity, struct cm_error *err, int *ret_fd)
{
    size_t bytes = channel_bytes(capacity);
    int fd = memfd_create("ingot-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return cm_fail_errno(err, errno, "cannot create a channel's memory");
    void *map = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0)
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (map == MAP_FAILED)
        goto failed;
    struct cm_channel_header header = {
        .magic = CM_CHANNEL_MAGIC,
        .layout = CM_CHANNEL_LAYOUT,
        .capacity = capacity,
        .id = id,
    };
    memcpy(map, &header, sizeof header);
    munmap(map, bytes);
    if (fcntl(fd, F_ADD_SEALS, SEALS) != 0)
        goto failed;
    *ret_fd = fd;
    return CM_OK;
failed:;
    enum cm_err rc =
        cm_fail_errno(err, errno, "cannot prepare a channel's memory of %zu bytes", bytes);
    close(fd);
    return rc;
}

static enum cm_err make_ends(struct cm_channel_fds ends[2], struct cm_error *err)
{
    int life[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, life) != 0)
        return cm_fail_errno(err, errno, "cannot create a channel's lifeline");
    for (int i = 0; i < 2; i++) {
        ends[i].lifeline = life[i];
        ends[i].first = i == 0;
    }
    for (int i = 0; i < 2; i++) {
        ends[i].bell_in = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (ends[i].bell_in < 0)
            return cm_fail_errno(err, errno, "cannot create a channel's doorbell");
        ends[1 - i].bell_out = fcntl(ends[i].bell_in, F_DUPFD_CLOEXEC, 0);
        ends[i].memory = i == 0 ? ends[0].memory : fcntl(ends[0].memory, F_DUPFD_CLOEXEC, 0);
        if (ends[1 - i].bell_out < 0 || ends[i].memory < 0)
            return cm_fail_errno(err, errno, "cannot duplicate a channel's descriptors");
    }
    return CM_OK;
}

enum cm_err cm_channel_make(uint64_t id, uint32_t capacity, struct cm_error *err,
                            struct cm_channel_fds ret_ends[2])
{
    const struct cm_channel_fds none = {-1, -1, -1, -1, false};
    struct cm_channel_fds ends[2] = {none, none};
    if (!capacity_valid(capacity))
        return cm_fail(err, CM_INVALID, "a channel's ring cannot have %u bytes", capacity);
    enum cm_err rc = make_memory(id, capacity, err, &ends[0].memory);
    if (rc == CM_OK)
        rc = make_ends(ends, err);
    if (rc != CM_OK) {
        cm_channel_fds_close(&ends[0]);
        cm_channel_fds_close(&ends[1]);
        return rc;
    }
    ret_ends[0] = ends[0];
    ret_ends[1] = ends[1];
    return CM_OK;
}

/* Checks that fd is a channel's memory that nobody can shrink under us, and maps it. */
static enum cm_err map_memory(struct cm_channel *channel, struct cm_error *err,
                              uint32_t *ret_capacity)
{
    int fd = channel->fds.memory;
    struct stat st;
    struct cm_channel_header header;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS)
        return cm_fail(err, CM_CORRUPT, "channel memory is not a sealed memfd");
    if (fstat(fd, &st) != 0 || st.st_size < (off_t)sizeof header)
        return cm_fail(err, CM_CORRUPT, "channel memory is shorter than its header");
    if (pread(fd, &header, sizeof header, 0) != (ssize_t)sizeof header)
        return cm_fail(err, CM_CORRUPT, "channel header cannot be read");
    if (header.magic != CM_CHANNEL_MAGIC)
        return cm_fail(err, CM_CORRUPT, "channel magic is 0x%08x", header.magic);
    if (header.layout != CM_CHANNEL_LAYOUT)
        return cm_fail(err, CM_UNSUPPORTED, "channel layout is %u, this process knows %u",
                       header.layout, CM_CHANNEL_LAYOUT);
    if (!capacity_valid(header.capacity) || header.reserved != 0)
        return cm_fail(err, CM_CORRUPT, "channel header has a ring of %u bytes", header.capacity);
    size_t bytes = channel_bytes(header.capacity);
    if (st.st_size != (off_t)bytes)
        return cm_fail(err, CM_CORRUPT, "channel memory has %lld bytes, its header says %zu",
                       (long long)st.st_size, bytes);
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (map == MAP_FAILED)
        return cm_fail_errno(err, errno, "cannot map a channel");
    channel->map = map;
    channel->map_bytes = bytes;
    *ret_capacity = header.capacity;
    return CM_OK;
}

/* Frees a channel whose handles are gone or never were. */
static void channel_free(struct cm_channel *channel)
{
    if (channel->map)
        munmap(channel->map, channel->map_bytes);
    cm_channel_fds_close(&channel->fds);
    free(channel->buffer);
    free(channel);
}

enum cm_err cm_channel_open(struct cm_channel_fds *fds, struct cm_peer peer, struct cm_error *err,
                            struct cm_channel **ret_channel)
{
    struct cm_channel *channel = calloc(1, sizeof *channel);
    unsigned char *buffer = malloc(CM_RECORD_MAX);
    if (!channel || !buffer) {
        free(channel);
        free(buffer);
        cm_channel_fds_close(fds);
        return cm_fail(err, CM_NOMEM, "no memory for a channel");
    }
    memset(buffer, 0, CM_RECORD_MAX); /* touch it now, not under the first large record */
    channel->buffer = buffer;
    channel->peer = peer;
    channel->fds = *fds;
    fds->memory = fds->bell_in = fds->bell_out = fds->lifeline = -1;

    uint32_t capacity = 0;
    enum cm_err rc = map_memory(channel, err, &capacity);
    if (rc != CM_OK) {
        channel_free(channel);
        return rc;
    }
    unsigned char *a = (unsigned char *)channel->map + sizeof(struct cm_channel_header);
    unsigned char *b = a + cm_ring_bytes(capacity);
    bool first = channel->fds.first;
    cm_ring_producer_init(&channel->out, (void *)(first ? a : b), capacity);
    cm_ring_consumer_init(&channel->in, (void *)(first ? b : a), capacity);
    *ret_channel = channel;
    return CM_OK;
}

static void ring_bell(int fd)
{
    uint64_t one = 1;
    ssize_t n;
    /* EAGAIN: the counter is full, so the sleeper has been rung. Other errors are the peer's loss;
     * its death is the lifeline's news. */
    do
        n = write(fd, &one, sizeof one);
    while (n < 0 && errno == EINTR);
}

static void quiet_bell(int fd)
{
    uint64_t count;
    ssize_t n;
    do
        n = read(fd, &count, sizeof count);
    while (n < 0 && errno == EINTR);
}

/* The channel is over: no more delivery, later sends say CM_CLOSED, the owner is told once. */
static void channel_end(struct cm_channel *channel, enum cm_err reason)
{
    if (atomic_exchange(&channel->closed, true))
        return;
    uv_poll_stop(&channel->bell);
    uv_poll_stop(&channel->lifeline);
    channel->events.on_closed(channel->events.ctx, channel, reason);
}

/* Delivers at most limit records. CM_AGAIN: the ring is empty. CM_OK: the limit was reached, or the
 * owner closed the channel from a callback. Else: what the peer did wrong. */
static enum cm_err deliver(struct cm_channel *channel, uint32_t *count, uint32_t limit)
{
    while (*count < limit && !channel->closing) {
        struct cm_frame frame;
        enum cm_err rc = cm_ring_read(&channel->in, &frame, channel->buffer, CM_RECORD_MAX, NULL);
        if (rc == CM_OK)
            rc = cm_record_check(frame.type, channel->buffer, frame.payload_length, NULL);
        if (rc != CM_OK)
            return rc;
        ++*count;
        channel->events.on_record(channel->events.ctx, channel, frame.type, channel->buffer,
                                  frame.payload_length);
    }
    return CM_OK;
}

/* One run over the ring: deliver, give the space back, tell the owner. */
static enum cm_err drain_once(struct cm_channel *channel, uint32_t *count, uint32_t limit)
{
    uint32_t before = *count;
    enum cm_err rc = deliver(channel, count, limit);
    if (channel->closing)
        return CM_OK;
    cm_ring_release(&channel->in);
    if (*count != before && channel->events.on_drained)
        channel->events.on_drained(channel->events.ctx, channel);
    return rc;
}

static void on_bell(uv_poll_t *handle, int status, int events)
{
    (void)events;
    struct cm_channel *channel = handle->data;
    if (status < 0) {
        channel_end(channel, CM_CORRUPT); /* not a descriptor that can ring */
        return;
    }
    quiet_bell(channel->fds.bell_in);
    cm_ring_awake(&channel->in);
    uint32_t count = 0;
    while (!channel->closing) {
        enum cm_err rc = drain_once(channel, &count, DRAIN_MAX);
        if (channel->closing)
            return;
        if (rc == CM_AGAIN) {
            if (cm_ring_sleep(&channel->in))
                return;
        } else if (rc != CM_OK) {
            channel_end(channel, rc == CM_UNSUPPORTED ? rc : CM_CORRUPT);
            return;
        } else {
            /* Others' turn. Still awake for the producer, so ring for ourselves. */
            ring_bell(channel->fds.bell_in);
            return;
        }
    }
}

/* What the peer published before it went. Bounded by what one ring can hold: a peer that hung up
 * but keeps writing does not hold us. */
static enum cm_err drain_last(struct cm_channel *channel)
{
    uint32_t count = 0;
    enum cm_err rc =
        drain_once(channel, &count, channel->in.capacity / (uint32_t)sizeof(struct cm_frame));
    return rc == CM_OK || rc == CM_AGAIN ? CM_CLOSED : rc;
}

static void on_lifeline(uv_poll_t *handle, int status, int events)
{
    struct cm_channel *channel = handle->data;
    enum cm_err reason = CM_CLOSED;
    if (status >= 0 && !(events & UV_DISCONNECT)) {
        char byte;
        ssize_t n = recv(channel->fds.lifeline, &byte, 1, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n > 0)
            reason = CM_CORRUPT; /* nothing is ever sent on a lifeline */
    }
    if (reason == CM_CLOSED)
        reason = drain_last(channel);
    if (!channel->closing)
        channel_end(channel, reason);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct cm_channel *channel = handle->data;
    if (--channel->open_handles == 0 && channel->closing)
        channel_free(channel);
}

enum cm_err cm_channel_start(struct cm_channel *channel, uv_loop_t *loop,
                             const struct cm_channel_events *events)
{
    CM_ASSERT(!channel->started && events->on_record && events->on_closed);
    channel->events = *events;
    int rc = uv_poll_init(loop, &channel->bell, channel->fds.bell_in);
    if (rc != 0)
        return cm_err_from_errno(-rc);
    channel->bell.data = channel;
    channel->open_handles++;
    channel->started = true;
    rc = uv_poll_init(loop, &channel->lifeline, channel->fds.lifeline);
    if (rc != 0) {
        uv_close((uv_handle_t *)&channel->bell, on_handle_closed);
        return cm_err_from_errno(-rc);
    }
    channel->lifeline.data = channel;
    channel->open_handles++;
    /* On handles that were just made these two cannot fail. */
    rc = uv_poll_start(&channel->bell, UV_READABLE, on_bell);
    CM_ASSERT(rc == 0);
    rc = uv_poll_start(&channel->lifeline, UV_READABLE | UV_DISCONNECT, on_lifeline);
    CM_ASSERT(rc == 0);
    /* The peer may have written while nobody slept here, so it did not ring: look once. */
    ring_bell(channel->fds.bell_in);
    return CM_OK;
}

struct cm_peer cm_channel_peer(const struct cm_channel *channel)
{
    return channel->peer;
}

enum cm_err cm_channel_send(struct cm_channel *channel, uint8_t type, const void *head,
                            uint32_t head_length, const void *tail, uint32_t tail_length)
{
    if (atomic_load_explicit(&channel->closed, memory_order_relaxed))
        return CM_CLOSED;
    return cm_ring_write(&channel->out, type, head, head_length, tail, tail_length);
}

void cm_channel_flush(struct cm_channel *channel)
{
    if (cm_ring_publish(&channel->out))
        ring_bell(channel->fds.bell_out);
}

uint32_t cm_channel_room(struct cm_channel *channel)
{
    return cm_ring_room(&channel->out);
}

void cm_channel_close(struct cm_channel *channel)
{
    if (!channel)
        return;
    CM_ASSERT(!channel->closing);
    channel->closing = true;
    atomic_store(&channel->closed, true);
    if (channel->open_handles == 0) {
        channel_free(channel);
        return;
    }
    /* The peer learns it now, although the descriptors stay open until the loop lets go. */
    shutdown(channel->fds.lifeline, SHUT_RDWR);
    if (!uv_is_closing((uv_handle_t *)&channel->bell))
        uv_close((uv_handle_t *)&channel->bell, on_handle_closed);
    if (channel->open_handles == 2 && !uv_is_closing((uv_handle_t *)&channel->lifeline))
        uv_close((uv_handle_t *)&channel->lifeline, on_handle_closed);
}
