/* Shared memory for requests' inputs: leases from memmgr, cut into blocks by buddy arenas.
 *
 * A block is taken by whichever thread decodes a request and given back by whichever thread sees
 * its end, so a mutex stands around the arenas (it is never held over anything slow). Leases come
 * and go on the loop's thread: the arena only says how much it would like to have. */
#ifndef GATEWAY_ARENA_H
#define GATEWAY_ARENA_H

#include "common/err.h"
#include "common/record.h"
#include "memmgr/client.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GW_ARENA_LEASES_MAX 64u
#define GW_ARENA_LEASE      (64u * 1024u * 1024u) /* bytes of an ordinary lease */
#define GW_ARENA_MIN_BLOCK  1024u

struct gw_arena;

/* Bytes of one request. base is writable; region, generation and offset go into slices. */
struct gw_block {
    unsigned char *base; /* NULL: no block */
    uint64_t region;
    uint64_t offset;
    size_t size; /* rounded */
    uint32_t generation;
    uint32_t lease; /* the arena's index */
};

/* limit: bytes of all leases together. */
CM_MUST_CHECK enum cm_err gw_arena_create(size_t limit, struct gw_arena **ret_arena);
/* All blocks are back. The leases are the caller's matter (gw_arena_pop). NULL is allowed. */
void gw_arena_destroy(struct gw_arena *arena);

/* Any thread. CM_FULL: nothing is free now, growing would help (gw_arena_wants tells the loop).
 * CM_LIMIT: all memory that may be had is in use, or bytes is more than it. bytes 0 is allowed. */
CM_MUST_CHECK enum cm_err gw_arena_alloc(struct gw_arena *arena, size_t bytes,
                                         struct gw_block *ret_block);
/* Any thread. Clears block; one without base is allowed. */
void gw_arena_free(struct gw_arena *arena, struct gw_block *block);

/* Bytes of a lease that should be acquired now, or 0: for a request that was refused, or because
 * half of everything is in use. Counts what gw_arena_expect announced. Loop thread. */
size_t gw_arena_wants(struct gw_arena *arena);
/* An acquire of bytes was started (add), or has ended in whatever way (not add). Loop thread. */
void gw_arena_expect(struct gw_arena *arena, size_t bytes, bool add);
/* Forgets what was refused: the requests that waited for it have been answered. */
void gw_arena_forget(struct gw_arena *arena);
/* Takes a lease. False: no room in the table or no memory, the lease is still the caller's. */
CM_MUST_CHECK bool gw_arena_add(struct gw_arena *arena, struct mm_lease *lease);

/* A lease that has been empty since idle_since_ns or longer, to be given back to memmgr; NULL if
 * none. all: take any empty one, the last included (else one lease stays). Loop thread. */
struct mm_lease *gw_arena_pop(struct gw_arena *arena, uint64_t now_ns, uint64_t idle_ns, bool all);

struct gw_arena_stats {
    size_t leases, bytes, used, blocks;
};
struct gw_arena_stats gw_arena_stats(struct gw_arena *arena);

#endif
