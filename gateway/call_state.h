/* One call's states and holds, in one atomic word: who answers, and when the slot is free again.
 *
 *            arm             new call              queue
 *    FREE ---------> ARMED -----------> OPEN -----------------> QUEUED
 *     ^                |                 |                        |
 *     |  server is     |                 | take                   | take
 *     |  shutting down |                 v                        v
 *     +<---------------+             ANSWERED <-------------------+
 *     |                                  |
 *     +<---------------------------------+  the last hold is dropped
 *
 * take happens exactly once per call, by whoever is first: the answer (loop thread), an error
 * (either thread), the deadline (loop thread), the client's end (completion-queue thread). Only the
 * taker may start the batch that sends the status; a taker for a client that is gone starts none.
 *
 * Holds say who still uses the slot; each is dropped once:
 *    CLOSE     from OPEN on: core has not told the call's end yet
 *    RECEIVE   a receive batch is out, or its bytes are being decoded or wait for memory
 *    SEND      a send batch is out
 *    BACKEND   from QUEUED on: a scheduler may still read the inputs (the REPLY is not here), or
 *              the answer waits for a worker's lease
 *    LETGO     whoever dropped the last of the first three is letting the grpc_call go
 * CLOSE, RECEIVE and SEND are core's: when the last of them goes, the grpc_call is let go, however
 * long BACKEND stays. An ANSWERED call whose only hold is BACKEND is a zombie: its client has gone,
 * its inputs are still being read.
 *
 * The word also carries the slot's generation, so that whoever only knows of a call by its handle
 * (a REPLY, the deadline scan) can never act on the slot's next call.
 *
 *    63            32 31        8 7      0
 *    |  generation   |   holds   | state |
 *
 * Pure functions on the word; any thread. */
#ifndef GATEWAY_CALL_STATE_H
#define GATEWAY_CALL_STATE_H

#include "common/check.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define GW_CALL_STATE_MAP(X) \
    X(FREE, 0)               \
    X(ARMED, 1)              \
    X(OPEN, 2)               \
    X(QUEUED, 3)             \
    X(ANSWERED, 4)

enum gw_call_state {
#define X(name, number) GW_CALL_##name = (number),
    GW_CALL_STATE_MAP(X)
#undef X
};

#define GW_HOLD_CLOSE   0x100u
#define GW_HOLD_RECEIVE 0x200u
#define GW_HOLD_SEND    0x400u
#define GW_HOLD_BACKEND 0x800u
#define GW_HOLDS_CORE   (GW_HOLD_CLOSE | GW_HOLD_RECEIVE | GW_HOLD_SEND)
#define GW_HOLD_LETGO   0x1000u
#define GW_HOLDS        (GW_HOLDS_CORE | GW_HOLD_BACKEND | GW_HOLD_LETGO)

#define GW_STATE_MASK 0xffull

typedef _Atomic uint64_t gw_word;

static inline uint32_t gw_word_generation(const gw_word *word)
{
    return (uint32_t)(atomic_load_explicit(word, memory_order_acquire) >> 32);
}

static inline enum gw_call_state gw_word_state(const gw_word *word)
{
    return (enum gw_call_state)(atomic_load_explicit(word, memory_order_acquire) & GW_STATE_MASK);
}

static inline bool gw_word_holds(const gw_word *word, uint32_t holds)
{
    return (atomic_load_explicit(word, memory_order_acquire) & holds) != 0;
}

/* FREE -> ARMED with the next generation. One thread knows of a FREE or ARMED slot, so the first
 * three are stores. */
static inline void gw_word_arm(gw_word *word)
{
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);
    CM_ASSERT((uint32_t)old == GW_CALL_FREE);
    atomic_store_explicit(word, ((old >> 32) + 1) << 32 | GW_CALL_ARMED, memory_order_release);
}

/* ARMED -> FREE. */
static inline void gw_word_disarm(gw_word *word)
{
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);
    CM_ASSERT((uint32_t)old == GW_CALL_ARMED);
    atomic_store_explicit(word, (old & ~GW_STATE_MASK) | GW_CALL_FREE, memory_order_release);
}

/* ARMED -> OPEN. */
static inline void gw_word_open(gw_word *word, uint32_t holds)
{
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);
    CM_ASSERT((uint32_t)old == GW_CALL_ARMED);
    atomic_store_explicit(word, (old & ~GW_STATE_MASK) | GW_CALL_OPEN | holds,
                          memory_order_release);
}

static inline bool gw_word_swap(gw_word *word, uint64_t *old, uint64_t now)
{
    return atomic_compare_exchange_weak_explicit(word, old, now, memory_order_acq_rel,
                                                 memory_order_acquire);
}

/* OPEN -> QUEUED with BACKEND. False: it is ANSWERED, nothing has changed. */
static inline bool gw_word_queue(gw_word *word)
{
    uint64_t old = atomic_load_explicit(word, memory_order_acquire);
    do {
        if ((old & GW_STATE_MASK) == GW_CALL_ANSWERED)
            return false;
        CM_ASSERT((old & GW_STATE_MASK) == GW_CALL_OPEN && !(old & GW_HOLD_BACKEND));
    } while (!gw_word_swap(word, &old, (old & ~GW_STATE_MASK) | GW_CALL_QUEUED | GW_HOLD_BACKEND));
    return true;
}

/* OPEN or QUEUED -> ANSWERED, with hold (GW_HOLD_SEND or 0). False: someone was first. */
static inline bool gw_word_take(gw_word *word, uint32_t hold)
{
    uint64_t old = atomic_load_explicit(word, memory_order_acquire);
    do {
        uint64_t state = old & GW_STATE_MASK;
        if (state == GW_CALL_ANSWERED)
            return false;
        CM_ASSERT(state == GW_CALL_OPEN || state == GW_CALL_QUEUED);
        CM_ASSERT(!(old & hold));
    } while (!gw_word_swap(word, &old, (old & ~GW_STATE_MASK) | GW_CALL_ANSWERED | hold));
    return true;
}

/* The same for one who may be late: false also if the slot is in another use. */
static inline bool gw_word_take_if(gw_word *word, uint32_t generation, uint32_t hold)
{
    uint64_t old = atomic_load_explicit(word, memory_order_acquire);
    do {
        uint64_t state = old & GW_STATE_MASK;
        if (old >> 32 != generation || (state != GW_CALL_OPEN && state != GW_CALL_QUEUED))
            return false;
        CM_ASSERT(!(old & hold));
    } while (!gw_word_swap(word, &old, (old & ~GW_STATE_MASK) | GW_CALL_ANSWERED | hold));
    return true;
}

/* Adds a hold to an OPEN call (another batch of a stream). False: it is ANSWERED. */
static inline bool gw_word_hold(gw_word *word, uint32_t hold)
{
    uint64_t old = atomic_load_explicit(word, memory_order_acquire);
    do {
        if ((old & GW_STATE_MASK) == GW_CALL_ANSWERED)
            return false;
        CM_ASSERT((old & GW_STATE_MASK) == GW_CALL_OPEN && !(old & hold));
    } while (!gw_word_swap(word, &old, old | hold));
    return true;
}

struct gw_dropped {
    bool core; /* that was the last of core's holds: let the grpc_call go, then drop LETGO */
    bool all;  /* that was the last hold: the slot is the caller's to clean and free */
};

/* Drops one hold. A call without holds is always ANSWERED: CLOSE stays until core tells the end,
 * and that takes. */
static inline struct gw_dropped gw_word_drop(gw_word *word, uint32_t hold)
{
    uint64_t old = atomic_load_explicit(word, memory_order_acquire);
    uint64_t now;
    do {
        CM_ASSERT(old & hold);
        now = old & ~(uint64_t)hold;
        if ((hold & GW_HOLDS_CORE) && !(now & GW_HOLDS_CORE))
            now |= GW_HOLD_LETGO;
        if (!(now & GW_HOLDS))
            CM_ASSERT((now & GW_STATE_MASK) == GW_CALL_ANSWERED);
    } while (!gw_word_swap(word, &old, now));
    return (struct gw_dropped){
        .core = (hold & GW_HOLDS_CORE) && !(now & GW_HOLDS_CORE),
        .all = !(now & GW_HOLDS),
    };
}

/* After gw_word_drop said all: ANSWERED -> FREE, once the owner has cleaned the slot. */
static inline void gw_word_free(gw_word *word)
{
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);
    CM_ASSERT((uint32_t)old == GW_CALL_ANSWERED);
    atomic_store_explicit(word, (old & ~GW_STATE_MASK) | GW_CALL_FREE, memory_order_release);
}

#endif
