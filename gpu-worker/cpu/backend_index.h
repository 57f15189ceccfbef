/* Indices that come with the data of a run. They may lie in memory that another process is writing:
 * each is read once, checked, and used from a private copy. Shared by backend*.c only.
 *
 * Bodies on several threads cannot return an error. They leave an element with a bad index alone
 * and note its position; after the split the step reports the first one. */
#ifndef GPU_WORKER_CPU_BACKEND_INDEX_H
#define GPU_WORKER_CPU_BACKEND_INDEX_H

#include "gpu-worker/cpu/backend_priv.h"

#include <stdatomic.h>

/* One tensor of indices of a node. */
struct cpu_indices {
    const struct wk_node *node;
    unsigned input;
    bool wide; /* INT64, otherwise INT32 */
};

static inline int64_t cpu_index_read(const struct cpu_indices *indices, const struct wk_run *run,
                                     size_t i)
{
    const void *data = run->in[indices->input];
    return indices->wide ? ((const volatile int64_t *)data)[i]
                         : ((const volatile int32_t *)data)[i];
}

/* Index i counted from the front; false outside [-n, n - 1]. */
static inline bool cpu_index_at(const struct cpu_indices *indices, const struct wk_run *run,
                                size_t i, size_t n, size_t *ret)
{
    int64_t index = cpu_index_read(indices, run, i);
    index += index < 0 ? (int64_t)n : 0;
    *ret = (size_t)index;
    return index >= 0 && index < (int64_t)n;
}

/* The node's indices, and room in the workspace for the notes, which must be the workspace's
 * beginning. */
struct cpu_indices cpu_indices_of(struct cpu_prepare *p, unsigned input);

/* Before the split; in bodies; after the split (limit: elements of the axis, for the message). */
static inline void cpu_bad_clear(const struct wk_run *run)
{
    atomic_init((_Atomic size_t *)run->workspace, SIZE_MAX);
}
void cpu_bad_note(const struct wk_run *run, size_t i);
static inline bool cpu_bad_any(const struct wk_run *run, size_t *ret_first)
{
    *ret_first = atomic_load_explicit((_Atomic size_t *)run->workspace, memory_order_relaxed);
    return *ret_first != SIZE_MAX;
}
enum cm_err cpu_bad_report(const struct cpu_indices *indices, const struct wk_run *run, size_t i,
                           size_t limit);

#endif
