/* A buddy allocator over offsets: which byte ranges of a lease are in use. It never touches the
 * memory.
 *
 * Private to one process and one thread; metadata is ordinary memory, so no peer can corrupt it.
 * Sizes are rounded up to a power of two of at least min_block; freed neighbours merge. */
#ifndef MEMMGR_BUDDY_H
#define MEMMGR_BUDDY_H

#include "common/err.h"

#include <stddef.h>
#include <stdint.h>

struct mm_buddy;

/* bytes and min_block: powers of two, min_block <= bytes, at most 2^24 blocks. */
CM_MUST_CHECK enum cm_err mm_buddy_create(size_t bytes, size_t min_block, struct mm_buddy **ret);
void mm_buddy_destroy(struct mm_buddy *buddy);

/* CM_FULL: no block of that size is free now. CM_LIMIT: larger than the whole. CM_INVALID: size 0.
 */
CM_MUST_CHECK enum cm_err mm_buddy_alloc(struct mm_buddy *buddy, size_t size, size_t *ret_offset);

/* offset must come from mm_buddy_alloc and not be free already: asserted. */
void mm_buddy_free(struct mm_buddy *buddy, size_t offset);

struct mm_buddy_stats {
    size_t total, used, largest_free; /* bytes; used counts rounded blocks */
    size_t blocks;                    /* allocations now */
};
struct mm_buddy_stats mm_buddy_stats(const struct mm_buddy *buddy);

#endif
