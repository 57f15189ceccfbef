/* A channel: the two rings, two doorbells and the lifeline that join two processes.
 *
 * memmgr makes the descriptors and hands one struct cm_channel_fds to each end (memmgr/client.h).
 * The owner drives the channel on one uv loop; that loop's thread calls these functions, except
 * that the sending side may belong to one other thread (cm_channel_send). All that is there is
 * drained per wake-up; a producer rings only for a sleeper; the peer's death is the lifeline's
 * hang-up and is reported once.
 *
 *   memfd: | header 64 B | ring A (a -> b) | ring B (b -> a) |   sealed against shrink and grow
 */
#ifndef COMMON_CHANNEL_H
#define COMMON_CHANNEL_H

#include "common/err.h"
#include "common/frame.h"
#include "common/ring.h"
#include "common/role.h"

#include <uv.h>

#define CM_CHANNEL_MAGIC  0x4c4e4843u /* "CHNL" */
#define CM_CHANNEL_LAYOUT 1

/* At offset 0 of the memfd; written by memmgr before the descriptors leave it, then constant. */
struct cm_channel_header {
    uint32_t magic;
    uint32_t layout;
    uint32_t capacity; /* of each ring */
    uint32_t reserved;
    uint64_t id;
    uint64_t padding[5];
};
_Static_assert(sizeof(struct cm_channel_header) == 64, "one line");

/* One end's descriptors. The receiver owns them. */
struct cm_channel_fds {
    int memory;
    int bell_in;  /* eventfd that wakes this end */
    int bell_out; /* eventfd that wakes the peer */
    int lifeline; /* socket: hang-up = the peer has closed or died */
    bool first;   /* this end writes ring A */
};

struct cm_channel;

/* One record, already frame-checked and cm_record_check-ed. payload is valid during the call. */
typedef void (*cm_channel_record_fn)(void *ctx, struct cm_channel *channel, uint8_t type,
                                     const void *payload, uint32_t length);
/* After the last record of a wake-up: the place for decisions over all of them and for
 * cm_channel_flush of other channels. */
typedef void (*cm_channel_drained_fn)(void *ctx, struct cm_channel *channel);
/* The peer is gone (CM_CLOSED) or wrote nonsense (CM_CORRUPT, CM_UNSUPPORTED). Called once; records
 * that were readable before a hang-up are delivered first. The owner then calls cm_channel_close.
 */
typedef void (*cm_channel_closed_fn)(void *ctx, struct cm_channel *channel, enum cm_err reason);

struct cm_channel_events {
    cm_channel_record_fn on_record;
    cm_channel_drained_fn on_drained; /* may be NULL */
    cm_channel_closed_fn on_closed;
    void *ctx;
};

/* Memory and descriptors for both ends of a new channel; for memmgr and tests. capacity: bytes of
 * each ring, a power of two. The memory is populated, sealed and has its header. */
CM_MUST_CHECK enum cm_err cm_channel_make(uint64_t id, uint32_t capacity, struct cm_error *err,
                                          struct cm_channel_fds ret_ends[2]);
void cm_channel_fds_close(struct cm_channel_fds *fds);

/* Takes the descriptors (also on failure), checks seals, size and header, maps and populates.
 * CM_CORRUPT for what is not a channel. Not driven yet: cm_channel_start. */
CM_MUST_CHECK enum cm_err cm_channel_open(struct cm_channel_fds *fds, struct cm_peer peer,
                                          struct cm_error *err, struct cm_channel **ret_channel);

/* Begins delivering records on loop. The loop's thread owns the consuming side from here on. */
CM_MUST_CHECK enum cm_err cm_channel_start(struct cm_channel *channel, uv_loop_t *loop,
                                           const struct cm_channel_events *events);

struct cm_peer cm_channel_peer(const struct cm_channel *channel);

/* Writes one record, visible to the peer at the next cm_channel_flush. Errors as cm_ring_write, and
 * CM_CLOSED after a hang-up was seen. The producing side belongs to one thread: the loop's by
 * default; another thread may own it if it alone calls send and flush. */
CM_MUST_CHECK enum cm_err cm_channel_send(struct cm_channel *channel, uint8_t type,
                                          const void *head, uint32_t head_length, const void *tail,
                                          uint32_t tail_length);
/* Publishes, and rings the bell if the peer sleeps. Cheap when nothing was written. */
void cm_channel_flush(struct cm_channel *channel);

/* Bytes of room for sending now. */
uint32_t cm_channel_room(struct cm_channel *channel);

/* Stops delivery, closes the descriptors (the peer sees a hang-up), frees the channel once the loop
 * has let go of its handles. No callback comes after. NULL is allowed. For a channel that was
 * started: on the loop's thread, with no other thread inside cm_channel_send. */
void cm_channel_close(struct cm_channel *channel);

#endif
