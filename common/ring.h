/* A single-producer single-consumer ring of framed records in shared memory.
 *
 * Two structs, two sides: struct cm_ring_shared lies in the channel's memfd and each of its fields
 * has one writer; struct cm_ring_producer and struct cm_ring_consumer are private to one process,
 * and to one thread of it. Indices are free-running 32-bit byte counts, masked on access.
 * Everything the peer writes is hostile: its index is range-checked, its record copied out before
 * it is checked. Nothing here blocks, allocates or makes a system call; the doorbell is the
 * channel's business. */
#ifndef COMMON_RING_H
#define COMMON_RING_H

#include "common/err.h"
#include "common/frame.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Capacity of the data area: a power of two between these, in bytes. */
#define CM_RING_MIN 4096u
#define CM_RING_MAX (64u * 1024u * 1024u)

struct cm_ring_shared {
    alignas(64) _Atomic uint32_t written; /* producer only; consumer reads with acquire */
    alignas(64) _Atomic uint32_t read;    /* consumer only; producer reads with acquire */
    alignas(64) _Atomic uint32_t asleep;  /* consumer sets 1 before it sleeps; the side that takes
                                             it back to 0 (exchange) owns the wake-up */
    alignas(
        64) unsigned char data[]; /* capacity bytes; each record: frame, payload, padding to 8 */
};
_Static_assert(sizeof(struct cm_ring_shared) == 192, "three lines, then data");

struct cm_ring_producer {
    struct cm_ring_shared *shared;
    uint32_t capacity;
    uint32_t written;   /* what will be published */
    uint32_t published; /* what the consumer can see */
    uint32_t read;      /* the consumer's index as last seen */
};

struct cm_ring_consumer {
    struct cm_ring_shared *shared;
    uint32_t capacity;
    uint32_t read;
    uint32_t written; /* the producer's index as last seen */
};

/* Bytes of a ring with this capacity, shared header included. */
size_t cm_ring_bytes(uint32_t capacity);

/* Attach one side. shared is cm_ring_bytes(capacity) mapped bytes, zero when the ring is new. A
 * producer or consumer that attaches to a used ring is not supported: a channel lives as long as
 * both its ends. */
void cm_ring_producer_init(struct cm_ring_producer *ring, struct cm_ring_shared *shared,
                           uint32_t capacity);
void cm_ring_consumer_init(struct cm_ring_consumer *ring, struct cm_ring_shared *shared,
                           uint32_t capacity);

/* Appends one record (payload in two parts, the second may be empty), not yet visible. CM_FULL:
 * nothing was written, try after the consumer has read. CM_LIMIT: can never fit (over CM_RECORD_MAX
 * or over a quarter of the capacity). CM_CORRUPT: the peer's index is impossible: close the
 * channel. */
CM_MUST_CHECK enum cm_err cm_ring_write(struct cm_ring_producer *ring, uint8_t type,
                                        const void *head, uint32_t head_length, const void *tail,
                                        uint32_t tail_length);

/* Makes written records visible. True if the consumer sleeps and must be woken (at most once per
 * sleep). */
bool cm_ring_publish(struct cm_ring_producer *ring);

/* Bytes that can be written now, frame and padding included; refreshes the peer's index. */
uint32_t cm_ring_room(struct cm_ring_producer *ring);

/* Copies the next record out: frame into ret_frame, payload into buffer (8-byte aligned, size
 * bytes). CM_AGAIN: none there. CM_CORRUPT, CM_UNSUPPORTED, CM_LIMIT (larger than size): close the
 * channel. The space is given back to the producer by cm_ring_release, once for many reads. */
CM_MUST_CHECK enum cm_err cm_ring_read(struct cm_ring_consumer *ring, struct cm_frame *ret_frame,
                                       void *buffer, uint32_t size, struct cm_error *err);
void cm_ring_release(struct cm_ring_consumer *ring);

/* The consumer's order before sleeping: cm_ring_sleep, and if it says false there is something to
 * read (do not sleep). After any wake-up, cm_ring_awake. */
bool cm_ring_sleep(struct cm_ring_consumer *ring);
void cm_ring_awake(struct cm_ring_consumer *ring);

#endif
