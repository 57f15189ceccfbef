/* Places buffers with known lifetimes in one block of memory. Pure, any thread.
 *
 * Two buffers whose lifetimes meet never share a byte; the others may. */
#ifndef GPU_WORKER_GRAPH_MEMPLAN_H
#define GPU_WORKER_GRAPH_MEMPLAN_H

#include "common/err.h"

#include <stddef.h>
#include <stdint.h>

struct wk_memplan_use {
    size_t bytes;
    uint32_t first, last; /* steps in which the buffer is live, both included; first <= last */
    size_t offset;        /* set by wk_memplan; 0 for an empty buffer */
};

/* Sets every offset, a multiple of alignment (a power of two), and the bytes of the whole block.
 * CM_NOMEM, or CM_LIMIT where the block would exceed limit. Time is quadratic in count up to a few
 * thousand buffers and near linear, at some cost in memory, above. */
CM_MUST_CHECK enum cm_err wk_memplan(struct wk_memplan_use *uses, size_t count, size_t alignment,
                                     size_t limit, size_t *ret_bytes);

#endif
