/* The ring: one producer, one consumer, framed records, two indices.
 *
 * Runs on the one thread that owns the side (producer or consumer). It must not block, allocate or
 * make system calls, and must not trust anything that it reads from shared memory.
 *
 * Indices count bytes since the ring was new, modulo 2^32; capacity is a power of two, so
 * subtraction gives distances and a mask gives positions even across the wrap of the counter. A
 * record that reaches the end of the data area goes on at its start: copying in two parts is
 * simpler than padding records, and a record is copied anyway.
 *
 * Barriers, in pairs:
 *   P1 publish: records are in place before written says so     pairs with C1 (acquire of written)
 *   C2 release: records are copied out before read says so      pairs with P2 (acquire of read)
 *   S1, S2      written against asleep, see cm_ring_sleep
 * All other accesses to private fields need no order: each has one thread. */
#include "common/ring.h"

#include "common/check.h"
#include "common/record.h"

#include <string.h>

/* What a record occupies: frame, payload, padding to 8. 64 bits: it cannot wrap. */
static uint64_t record_space(uint64_t payload_length)
{
    return (sizeof(struct cm_frame) + payload_length + 7) & ~(uint64_t)7;
}

static void copy_in(unsigned char *data, uint32_t capacity, uint32_t index, const void *bytes,
                    uint32_t length)
{
    if (length == 0)
        return;
    uint32_t at = index & (capacity - 1);
    uint32_t first = length < capacity - at ? length : capacity - at;
    memcpy(data + at, bytes, first);
    memcpy(data, (const unsigned char *)bytes + first, length - first);
}

static void copy_out(const unsigned char *data, uint32_t capacity, uint32_t index, void *bytes,
                     uint32_t length)
{
    if (length == 0)
        return;
    uint32_t at = index & (capacity - 1);
    uint32_t first = length < capacity - at ? length : capacity - at;
    memcpy(bytes, data + at, first);
    memcpy((unsigned char *)bytes + first, data, length - first);
}

static bool capacity_valid(uint32_t capacity)
{
    return capacity >= CM_RING_MIN && capacity <= CM_RING_MAX && (capacity & (capacity - 1)) == 0;
}

size_t cm_ring_bytes(uint32_t capacity)
{
    CM_ASSERT(capacity_valid(capacity));
    return sizeof(struct cm_ring_shared) + capacity;
}

void cm_ring_producer_init(struct cm_ring_producer *ring, struct cm_ring_shared *shared,
                           uint32_t capacity)
{
    CM_ASSERT(capacity_valid(capacity));
    *ring = (struct cm_ring_producer){.shared = shared, .capacity = capacity};
}

void cm_ring_consumer_init(struct cm_ring_consumer *ring, struct cm_ring_shared *shared,
                           uint32_t capacity)
{
    CM_ASSERT(capacity_valid(capacity));
    *ring = (struct cm_ring_consumer){.shared = shared, .capacity = capacity};
}

/* Takes over the consumer's index if it is possible: not behind what was seen before, not beyond
 * what was published, on a record boundary's alignment. */
static bool refresh_read(struct cm_ring_producer *ring)
{
    /* P2: pairs with C2. The consumer's copies out of the space that is about to be reused come
     * before. */
    uint32_t read = atomic_load_explicit(&ring->shared->read, memory_order_acquire);
    if (read % 8 != 0 || ring->published - read > ring->published - ring->read)
        return false;
    ring->read = read;
    return true;
}

uint32_t cm_ring_room(struct cm_ring_producer *ring)
{
    /* An impossible index gives no new room; the next write reports it. */
    if (!refresh_read(ring))
        return 0;
    return ring->capacity - (ring->written - ring->read);
}

enum cm_err cm_ring_write(struct cm_ring_producer *ring, uint8_t type, const void *head,
                          uint32_t head_length, const void *tail, uint32_t tail_length)
{
    uint64_t payload = (uint64_t)head_length + tail_length;
    uint64_t space = record_space(payload);
    if (payload > CM_RECORD_MAX || space > ring->capacity / 4)
        return CM_LIMIT;
    /* The cached index is enough most of the time: the consumer's line is fetched only when the
     * ring looks full. */
    if (space > ring->capacity - (ring->written - ring->read)) {
        if (!refresh_read(ring))
            return CM_CORRUPT;
        if (space > ring->capacity - (ring->written - ring->read))
            return CM_FULL;
    }
    struct cm_frame frame;
    cm_frame_seal(&frame, type, head, head_length, tail, tail_length);
    unsigned char *data = ring->shared->data;
    uint32_t at = ring->written;
    copy_in(data, ring->capacity, at, &frame, sizeof frame);
    at += sizeof frame;
    copy_in(data, ring->capacity, at, head, head_length);
    copy_in(data, ring->capacity, at + head_length, tail, tail_length);
    ring->written += (uint32_t)space;
    return CM_OK;
}

bool cm_ring_publish(struct cm_ring_producer *ring)
{
    if (ring->published == ring->written)
        return false;
    ring->published = ring->written;
    /* P1: pairs with C1. S1: sequentially consistent, pairs with S2. */
    atomic_store_explicit(&ring->shared->written, ring->written, memory_order_seq_cst);
    if (atomic_load_explicit(&ring->shared->asleep, memory_order_seq_cst) == 0)
        return false;
    /* Whoever takes the flag back owns the wake-up: one bell for one sleep. */
    return atomic_exchange_explicit(&ring->shared->asleep, 0, memory_order_seq_cst) != 0;
}

/* Takes over the producer's index if it is possible: no more than a full ring ahead, not behind
 * what was seen before, aligned. */
static enum cm_err refresh_written(struct cm_ring_consumer *ring, struct cm_error *err)
{
    /* C1: pairs with P1. */
    uint32_t written = atomic_load_explicit(&ring->shared->written, memory_order_acquire);
    uint32_t ahead = written - ring->read;
    if (written % 8 != 0 || ahead > ring->capacity || ahead < ring->written - ring->read)
        return cm_fail(err, CM_CORRUPT, "peer's ring index is impossible: %u bytes ahead of %u",
                       ahead, ring->read);
    ring->written = written;
    return CM_OK;
}

enum cm_err cm_ring_read(struct cm_ring_consumer *ring, struct cm_frame *ret_frame, void *buffer,
                         uint32_t size, struct cm_error *err)
{
    if (ring->read == ring->written) {
        enum cm_err rc = refresh_written(ring, err);
        if (rc != CM_OK)
            return rc;
        if (ring->read == ring->written)
            return CM_AGAIN;
    }
    uint32_t available = ring->written - ring->read;
    if (available < sizeof(struct cm_frame))
        return cm_fail(err, CM_CORRUPT, "ring holds %u bytes, less than a frame", available);

    /* Copy first, then check: the peer may still be writing to what it has published. */
    struct cm_frame frame;
    const unsigned char *data = ring->shared->data;
    copy_out(data, ring->capacity, ring->read, &frame, sizeof frame);
    enum cm_err rc = cm_frame_check_header(&frame, CM_RECORD_MAX, err);
    if (rc != CM_OK)
        return rc;
    uint64_t space = record_space(frame.payload_length);
    if (space > available)
        return cm_fail(err, CM_CORRUPT, "record of %llu bytes in a ring that holds %u",
                       (unsigned long long)space, available);
    if (frame.payload_length > size)
        return cm_fail(err, CM_LIMIT, "record of %u bytes, the reader takes %u",
                       frame.payload_length, size);
    copy_out(data, ring->capacity, ring->read + sizeof frame, buffer, frame.payload_length);
    rc = cm_frame_check(&frame, buffer, CM_RECORD_MAX, err);
    if (rc != CM_OK)
        return rc;
    ring->read += (uint32_t)space;
    *ret_frame = frame;
    return CM_OK;
}

void cm_ring_release(struct cm_ring_consumer *ring)
{
    /* C2: pairs with P2. */
    atomic_store_explicit(&ring->shared->read, ring->read, memory_order_release);
}

/* The lost wake-up that must not happen: the producer publishes and sees asleep = 0 (no bell),
 * while the consumer sets asleep and sees the old index (sleeps). Release and acquire allow
 * exactly that, since each side's store may still wait in its store buffer when its load is done.
 *
 *     producer                       consumer
 *     S1  written = new              S2  asleep = 1
 *         look at asleep                 look at written
 *
 * All four accesses are sequentially consistent, so they have one order that both sides agree on
 * (on x86 the stores become locked exchanges, which drain the store buffer: the same price as a
 * fence). In that order one of the two stores is first, and the other side's look comes after its
 * own store, hence after that one: at least one side sees the other. If both do, the consumer does
 * not sleep and the bell rings once for nothing, which is harmless. */
bool cm_ring_sleep(struct cm_ring_consumer *ring)
{
    atomic_store_explicit(&ring->shared->asleep, 1, memory_order_seq_cst);                 /* S2 */
    uint32_t written = atomic_load_explicit(&ring->shared->written, memory_order_seq_cst); /* S2 */
    if (written == ring->read)
        return true;
    cm_ring_awake(ring);
    return false;
}

void cm_ring_awake(struct cm_ring_consumer *ring)
{
    /* Relaxed: the flag guards nothing; cm_ring_read's acquire orders the records. */
    atomic_store_explicit(&ring->shared->asleep, 0, memory_order_relaxed);
}
